"""Patterns and topics behave like their simplest possible models."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from signalhub.wire import names
from signalhub.wire.names import Pattern

paths = st.text(alphabet="ab/.@()", max_size=12)
patterns = st.text(alphabet="ab/.@()*", max_size=10)
any_text = st.text(max_size=20)
levels = st.sampled_from(["", "a", "b", "ab", "a+", "#a"])
topics = st.lists(levels, min_size=1, max_size=5).map("/".join)
wildcards = st.builds(
    lambda given, subtree: "/".join([*given, "#"] if subtree else given),
    st.lists(st.one_of(levels, st.just("+")), min_size=1, max_size=4),
    st.booleans(),
)


def matches_by_regex(pattern: str, name: str) -> bool:
    literals = (re.escape(part) for part in names.path_of(pattern).split("*"))
    return re.fullmatch(".*".join(literals), names.path_of(name), re.DOTALL) is not None


def hears(wanted: list[str], given: list[str]) -> bool:
    """The textbook definition of a topic wildcard, level by level."""
    if wanted == ["#"]:
        return True
    if not wanted or not given:
        return not wanted and not given
    return wanted[0] in ("+", given[0]) and hears(wanted[1:], given[1:])


@given(patterns, paths)
@example("a*a", "a")
@example("*a*", "a")
@example("a*b*b", "ab")
@example("@(*)", "")
@example("@(a*)", "@(ab)")
@example("@(a*", "@(ab)")
@example("**", "anything")
def test_a_pattern_matches_what_its_regular_expression_matches(pattern: str, name: str) -> None:
    assert Pattern(pattern).matches(name) is matches_by_regex(pattern, name)


@given(any_text, any_text)
def test_characters_other_than_the_star_are_never_special(pattern: str, name: str) -> None:
    assert Pattern(pattern).matches(name) is matches_by_regex(pattern, name)


@given(paths)
def test_a_name_matches_itself_with_and_without_its_parentheses(path: str) -> None:
    address = f"@({path})"

    assert Pattern(path).matches(names.path_of(path))
    assert Pattern(address).matches(address)
    assert Pattern(address).matches(path) is (names.path_of(path) == path)


@given(patterns)
def test_a_pattern_that_claims_to_match_all_does(pattern: str) -> None:
    is_stars = set(names.path_of(pattern)) == {"*"}

    assert Pattern(pattern).matches_all is is_stars


@given(any_text)
def test_an_address_is_a_path_in_parentheses(text: str) -> None:
    if names.is_address(text):
        assert text == f"@({names.path_of(text)})"
        assert 0 < len(names.path_of(text)) <= names.ADDRESS_CHARS_MAX - 3
    if text and text.isprintable():
        assert names.is_address(f"@({text})")


@given(wildcards, topics)
@example("#", "a")
@example("a/#", "a")
@example("a/+/#", "a")
@example("a/b/#", "a")
@example("+", "a/b")
@example("+/", "a")
@example("", "")
def test_a_wildcard_hears_what_the_textbook_says(wildcard: str, topic: str) -> None:
    expected = hears(wildcard.split("/"), topic.split("/"))

    assert names.topic_matches(wildcard, topic) is expected


@given(topics)
def test_a_topic_without_wildcards_hears_only_itself(topic: str) -> None:
    assert not names.has_wildcard(topic)
    assert names.topic_matches(topic, topic)
    assert not names.topic_matches(topic, topic + "/a")


@given(st.lists(st.one_of(levels, st.sampled_from(["+", "#"])), min_size=1, max_size=5))
def test_a_hash_is_allowed_only_as_the_last_level(given: list[str]) -> None:
    topic = "/".join(given)

    assert names.is_subscribable(topic) is (len(topic) > 0 and "#" not in given[:-1])
    assert names.has_wildcard(topic) is bool({"+", "#"} & set(given))
