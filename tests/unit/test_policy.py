"""The table: every verb, with every list of patterns, on every name, against a slow oracle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Literal

import pytest

from signalhub.auth.permissions import EVERYTHING, Allowance, Permissions
from signalhub.wire import names

Verb = Literal["send", "broadcast", "publish", "subscribe", "register"]
VERBS: tuple[Verb, ...] = ("send", "broadcast", "publish", "subscribe", "register")

IDENTITY = "@(local/me)"
GRANTS: tuple[tuple[str, ...], ...] = (
    (),
    ("*",),
    ("@(*)",),
    ("**",),
    ("local/*",),
    ("@(local/*)",),
    ("local/b",),
    ("local/*/x",),
    ("*/x",),
    ("l*l/*b*",),
    ("loca",),
    ("", "local/?"),
    ("local", "local/*"),
    ("+", "#", "local/+", "local/#"),
    ("local/[ab]", "l.cal/b", "LOCAL/B"),
)
NAMES = (
    "local",
    "local/",
    "local/b",
    "@(local/b)",
    "local/b/x",
    "local/b/c/x",
    "locals/b",
    "LOCAL/b",
    "local/bb",
    "x",
    "other/x",
    "@(local/me)",
    "local/me",
    "local/+",
    "local/#",
    "local/+/x",
    "local/b/#",
    "+",
    "#",
    "+/x",
    "+/b/#",
    "a+b",
    "local/?",
    "*",
)
# Topics a wildcard may match; letters that occur in no pattern stand for anything else.
LEVELS = ("", "local", "b", "x", "zq", "+")
TOPICS = ["/".join(levels) for depth in (1, 2, 3, 4) for levels in product(LEVELS, repeat=depth)]


def oracle_covers(patterns: tuple[str, ...], name: str) -> bool:
    globs = (".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns)
    return any(re.fullmatch(glob, name, re.DOTALL) for glob in globs)


def oracle_allows(verb: Verb, patterns: tuple[str, ...], name: str) -> bool:
    if verb == "register" and name == IDENTITY:
        return True
    if verb in ("send", "register"):
        # Patterns over addresses may leave the brackets out; topics are taken as they are.
        patterns, name = tuple(map(names.path_of, patterns)), names.path_of(name)
    if verb == "subscribe" and names.has_wildcard(name):
        heard = [topic for topic in TOPICS if topic and names.topic_matches(name, topic)]
        assert heard
        return all(oracle_covers(patterns, topic) for topic in heard)
    return oracle_covers(patterns, name)


def allows(verb: Verb, patterns: tuple[str, ...], name: str) -> bool:
    allowance = Allowance(IDENTITY, Permissions(**{verb: patterns}))
    answers = {
        "send": allowance.may_send(name),
        "broadcast": allowance.may_broadcast(name),
        "publish": allowance.may_publish(name),
        "subscribe": allowance.may_subscribe(name),
        "register": allowance.may_register(name),
    }
    denied = {other: may for other, may in answers.items() if other != verb}
    denied["register"] = denied.get("register", False) and name != IDENTITY
    assert not any(denied.values()), f"{verb} patterns also allow {denied}"
    return answers[verb]


def table() -> Iterator[tuple[Verb, tuple[str, ...], str]]:
    for verb, first, second, name in product(VERBS, GRANTS, GRANTS[:2], NAMES):
        yield verb, first + second, name


def test_every_verb_allows_what_its_patterns_cover_and_nothing_else() -> None:
    rows = list(table())
    assert len(rows) >= 2_000

    wrong = [row for row in rows if allows(*row) != oracle_allows(*row)]

    assert wrong == []


@pytest.mark.parametrize(
    ("patterns", "wildcard", "allowed"),
    [
        (("prices/*",), "prices/+", True),
        (("prices/*",), "prices/+/eur", True),
        (("prices/*",), "prices/eu/#", True),
        (("prices/*",), "prices/#", False),  # It would also hear `prices`.
        (("prices", "prices/*"), "prices/#", True),
        (("prices*",), "prices/#", True),
        (("prices/*/eur",), "prices/+/eur", True),
        (("prices/*/eur",), "prices/+", False),
        (("prices/eu", "prices/us"), "prices/+", False),
        (("prices/+",), "prices/+", False),  # No name but `prices/+` itself.
        (("prices/#",), "prices/#", False),
        (("*",), "#", True),
        (("*/*",), "#", False),
        (("*/*",), "+/+", True),
        (("*/*",), "+", False),
        ((), "#", False),
    ],
)
def test_a_wildcard_needs_everything_it_can_match(
    patterns: tuple[str, ...], wildcard: str, allowed: bool
) -> None:
    allowance = Allowance(IDENTITY, Permissions(subscribe=patterns))

    assert allowance.may_subscribe(wildcard) is allowed


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [
        ((), False),
        (("*",), True),
        (("**",), True),
        (("@(*)",), False),
        (("a*", "*z"), False),
        (("",), False),
    ],
)
def test_a_broadcast_to_everybody_needs_the_star(patterns: tuple[str, ...], allowed: bool) -> None:
    allowance = Allowance(IDENTITY, Permissions(broadcast=patterns))

    assert allowance.may_broadcast(None) is allowed
    assert allowance.may_broadcast("") is allowed


def test_a_session_may_speak_as_itself_and_as_what_it_may_register() -> None:
    allowance = Allowance(IDENTITY, Permissions(register=("robots/*",), send=("*",)))

    assert allowance.may_speak_as(IDENTITY)
    assert allowance.may_speak_as("@(robots/7)")
    assert not allowance.may_speak_as("@(local/you)")


def test_without_permissions_only_the_own_identity_may_be_registered() -> None:
    allowance = Allowance(IDENTITY, Permissions())

    assert allowance.may_register(IDENTITY)
    assert not allowance.may_send(IDENTITY)
    assert not allowance.may_subscribe("local/me")
    assert not allowance.may_publish("local/me")


@pytest.mark.parametrize("name", [*NAMES, "", "@()"])
def test_everything_allows_everything(name: str) -> None:
    assert EVERYTHING.may_send(name)
    assert EVERYTHING.may_broadcast(name)
    assert EVERYTHING.may_broadcast(None)
    assert EVERYTHING.may_publish(name)
    assert EVERYTHING.may_subscribe(name)
    assert EVERYTHING.may_register(name)
    assert EVERYTHING.may_speak_as(name)
