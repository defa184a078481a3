"""Permissions add up, and a wildcard subscription never hears what a plain one could not."""

from __future__ import annotations

from hypothesis import assume, example, given
from hypothesis import strategies as st

from signalhub import names
from signalhub.core.policy import Allowance, Permissions

IDENTITY = "@(local/me)"

levels = st.text(alphabet="ab*+", max_size=3)
patterns = st.lists(levels, min_size=1, max_size=3).map("/".join)
lists = st.lists(patterns, max_size=3).map(tuple)
topics = st.lists(st.text(alphabet="abz+", max_size=3), min_size=1, max_size=4).map("/".join)
wildcards = st.builds(
    lambda given, subtree: "/".join([*given, "#"] if subtree else given),
    st.lists(st.one_of(st.just("+"), st.text(alphabet="ab", max_size=2)), max_size=3),
    st.booleans(),
)
permissions = st.builds(Permissions, lists, lists, lists, lists, lists)


def answers(allowance: Allowance, name: str) -> dict[str, bool]:
    return {
        "send": allowance.may_send(name),
        "broadcast": allowance.may_broadcast(name),
        "everybody": allowance.may_broadcast(None),
        "publish": allowance.may_publish(name),
        "subscribe": allowance.may_subscribe(name),
        "register": allowance.may_register(name),
        "speak": allowance.may_speak_as(name),
    }


@given(permissions, permissions, st.one_of(topics, wildcards))
def test_adding_patterns_never_removes_a_permission(
    held: Permissions, added: Permissions, name: str
) -> None:
    verbs = Permissions.__struct_fields__
    joined = Permissions(*(getattr(held, verb) + getattr(added, verb) for verb in verbs))

    before = answers(Allowance(IDENTITY, held), name)
    after = answers(Allowance(IDENTITY, joined), name)

    assert [verb for verb in before if before[verb] and not after[verb]] == []


@given(lists, wildcards, topics)
@example(("prices/*",), "prices/#", "prices")
@example(("a/+",), "a/+", "a/b")
def test_what_a_wildcard_hears_could_be_subscribed_to_by_name(
    granted: tuple[str, ...], wildcard: str, topic: str
) -> None:
    allowance = Allowance(IDENTITY, Permissions(subscribe=granted))
    assume(names.has_wildcard(wildcard) and not names.has_wildcard(topic))
    assume(names.topic_matches(wildcard, topic))

    assert allowance.may_subscribe(topic) or not allowance.may_subscribe(wildcard)


@given(st.lists(patterns, min_size=1, max_size=1).map(tuple), wildcards)
def test_a_wildcard_is_refused_only_for_a_name_it_could_hear(
    granted: tuple[str, ...], wildcard: str
) -> None:
    allowance = Allowance(IDENTITY, Permissions(subscribe=granted))
    assume(names.has_wildcard(wildcard) and not allowance.may_subscribe(wildcard))

    *parents, last = (level if level != "+" else "z" for level in wildcard.split("/"))
    heard = ["/".join([*parents, "z" if last == "#" else last])]
    if last == "#" and parents:
        heard.append("/".join(parents))

    assert not all(allowance.may_subscribe(topic) for topic in heard)
