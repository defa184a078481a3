"""The table: every verb, with every list of patterns, on every name, against a slow oracle."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from typing import Literal

import pytest

from signalhub.auth.permissions import EVERYTHING, Allowance, Permissions
from signalhub.wire import names

Verb = Literal["send", "broadcast", "publish", "subscribe", "register"]
VERBS: tuple[Verb, ...] = ("send", "broadcast", "publish", "subscribe", "register")

IDENTITY = "@(local/me)"
GRANTS: tuple[tuple[str, ...], ...] = (
    *((), ("*",), ("@(*)",), ("**",), ("local/*",), ("@(local/*)",), ("local/b",)),
    *(("local/*/x",), ("*/x",), ("l*l/*b*",), ("loca",), ("", "local/?"), ("local", "local/*")),
    ("+", "#", "local/+", "local/#"),
    ("local/[ab]", "l.cal/b", "LOCAL/B"),
)
NAMES = (
    *("local", "local/", "local/b", "@(local/b)", "local/b/x", "local/b/c/x", "locals/b"),
    *("LOCAL/b", "local/bb", "x", "other/x", "@(local/me)", "local/me", "local/+", "local/#"),
    *("local/+/x", "local/b/#", "+", "#", "+/x", "+/b/#", "a+b", "local/?", "*"),
)
# Topics a wildcard may match; letters that occur in no pattern stand for anything else.
LEVELS = ("", "local", "b", "x", "zq", "+")
TOPICS = ["/".join(levels) for depth in (1, 2, 3, 4) for levels in product(LEVELS, repeat=depth)]


@cache
def topics_of(wildcard: str) -> list[str]:
    heard = [topic for topic in TOPICS if topic and names.topic_matches(wildcard, topic)]
    assert heard
    return heard


def oracle_covers(patterns: tuple[str, ...], *some: str) -> bool:
    globs = [".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns]
    return all(any(re.fullmatch(glob, one, re.DOTALL) for glob in globs) for one in some)


def oracle_allows(verb: Verb, patterns: tuple[str, ...], name: str) -> bool:
    if verb == "register" and name == IDENTITY:
        return True
    if verb in ("send", "register"):
        # Patterns over addresses may leave the brackets out; topics are taken as they are.
        patterns, name = tuple(map(names.path_of, patterns)), names.path_of(name)
    if verb == "subscribe" and names.has_wildcard(name):
        return oracle_covers(patterns, *topics_of(name))
    return oracle_covers(patterns, name)


def allows(verb: Verb, patterns: tuple[str, ...], name: str) -> bool:
    allowance = Allowance(IDENTITY, Permissions(**{verb: patterns}))
    answers = {one: getattr(allowance, f"may_{one}")(name) for one in VERBS}
    allowed = answers.pop(verb)
    if name == IDENTITY:
        answers.pop("register", None)
    assert not any(answers.values()), f"{verb} patterns also allow {answers}"
    return bool(allowed)


def test_every_verb_allows_what_its_patterns_cover_and_nothing_else() -> None:
    rows = [
        (verb, first + second, name)
        for verb, first, second, name in product(VERBS, GRANTS, GRANTS[:2], NAMES)
    ]
    assert len(rows) >= 2_000

    assert [row for row in rows if allows(*row) != oracle_allows(*row)] == []


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [
        *(((), False), (("*",), True), (("**",), True)),
        *((("@(*)",), False), (("a*", "*z"), False), (("",), False)),
    ],
)
def test_a_broadcast_to_everybody_needs_the_star(patterns: tuple[str, ...], allowed: bool) -> None:
    allowance = Allowance(IDENTITY, Permissions(broadcast=patterns))

    assert allowance.may_broadcast(None) is allowance.may_broadcast("") is allowed


def test_a_session_may_speak_as_itself_and_as_what_it_may_register() -> None:
    allowance = Allowance(IDENTITY, Permissions(register=("robots/*",), send=("*",)))

    speakers = [allowance.may_speak_as(one) for one in (IDENTITY, "@(robots/7)", "@(local/you)")]
    assert speakers == [True, True, False]


@pytest.mark.parametrize("name", [*NAMES, "", "@()"])
def test_everything_allows_everything(name: str) -> None:
    assert all(getattr(EVERYTHING, f"may_{verb}")(name) for verb in (*VERBS, "speak_as"))
    assert EVERYTHING.may_broadcast(None)
