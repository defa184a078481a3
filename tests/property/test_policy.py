"""Permissions add up, and a wildcard subscription never hears what a plain one could not."""

from __future__ import annotations

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from signalhub.auth.permissions import Allowance, Permissions
from signalhub.wire import names

IDENTITY = "@(local/me)"

# A busy machine is no failure.
patient = settings(deadline=None)

PATTERN_LETTERS = "ab*+"
patterns = st.lists(st.text(PATTERN_LETTERS, max_size=3), min_size=1, max_size=3).map("/".join)
lists = st.lists(patterns, max_size=3).map(tuple)
levels = st.text("abz", max_size=3)
topics = st.lists(levels, min_size=1, max_size=4).map("/".join)
wildcards = st.builds(
    lambda before, wild, after, subtree: [*before, wild, *after, *subtree],
    st.lists(levels, max_size=2),
    st.just("+"),
    st.lists(st.one_of(st.just("+"), levels), max_size=2),
    st.sampled_from([[], ["#"]]),
).map("/".join) | st.lists(levels, max_size=2).map(lambda before: "/".join([*before, "#"]))


@st.composite
def wildcards_with_topic(draw: st.DrawFn) -> tuple[str, str]:
    """A wildcard and a topic it matches."""
    wildcard = draw(wildcards)
    heard: list[str] = []
    for level in wildcard.split("/"):
        if level == "#":
            heard += draw(st.lists(levels, min_size=0 if heard else 1, max_size=2))
        else:
            heard.append(draw(levels) if level == "+" else level)
    return wildcard, "/".join(heard)


Patterns = tuple[str, ...]
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


def _joined(held: Patterns | None, added: Patterns | None) -> Patterns | None:
    # Mentioning a verb replaces its fallback, so only two lists can be joined.
    return None if held is None or added is None else held + added


@patient
@given(permissions, permissions, st.one_of(topics, wildcards))
def test_adding_patterns_never_removes_a_permission(
    held: Permissions, added: Permissions, name: str
) -> None:
    verbs = Permissions.__struct_fields__
    lists = {verb: _joined(getattr(held, verb), getattr(added, verb)) for verb in verbs}
    joined = msgspec.convert(lists, Permissions)

    before = answers(Allowance(IDENTITY, held), name)
    after = answers(Allowance(IDENTITY, joined), name)

    assert [verb for verb in before if before[verb] and not after[verb]] == []


@patient
@given(lists, wildcards_with_topic())
@example(("prices/*",), ("prices/#", "prices"))
@example(("a/+",), ("a/+", "a/b"))
def test_what_a_wildcard_hears_could_be_subscribed_to_by_name(
    granted: tuple[str, ...], heard: tuple[str, str]
) -> None:
    wildcard, topic = heard
    allowance = Allowance(IDENTITY, Permissions(subscribe=granted))
    assert names.topic_matches(wildcard, topic)

    assert allowance.may_subscribe(topic) or not allowance.may_subscribe(wildcard)


@patient
@given(patterns, wildcards)
def test_a_wildcard_is_refused_only_for_a_name_it_could_hear(pattern: str, wildcard: str) -> None:
    allowance = Allowance(IDENTITY, Permissions(subscribe=(pattern,)))

    # No pattern holds a `z` of its own.
    *parents, last = (level if level != "+" else "z" for level in wildcard.split("/"))
    heard = ["/".join([*parents, "z" if last == "#" else last])]
    if last == "#" and parents:
        heard.append("/".join(parents))

    by_name = all(allowance.may_subscribe(topic) for topic in heard)
    assert allowance.may_subscribe(wildcard) == by_name
