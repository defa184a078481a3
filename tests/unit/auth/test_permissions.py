"""The table: every verb, with every list of patterns, on every name, against a slow oracle."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from typing import Literal

import msgspec
import pytest

from signalhub.auth.permissions import EVERYTHING, ROLES, Allowance, Permissions
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
    assert all(
        getattr(EVERYTHING, f"may_{verb}")(name)
        for verb in (
            *("create", "manage", "delete", "read", "discover", "host", "control"),
            *("use_room", "administer"),
        )
    )
    assert EVERYTHING.may_consume(name, "billing", "somebody")


# Younger verbs: their fallback, and what an empty list does to it.


def given(**verbs: tuple[str, ...]) -> Allowance:
    return Allowance(IDENTITY, Permissions(**verbs), "me")


@pytest.mark.parametrize("verb", ["manage", "delete"])
def test_managing_and_deleting_fall_back_to_creating(verb: str) -> None:
    def may(allowance: Allowance, *args: str) -> bool:
        return bool(getattr(allowance, f"may_{verb}")(*args))

    assert may(given(create=("orders",)), "orders")
    assert not may(given(create=("orders",)), "payments")
    assert not may(given(create=("orders",), **{verb: ()}), "orders")
    assert may(given(**{verb: ("orders",)}), "orders")
    assert may(given(**{verb: ()}), "orders", "me")
    assert not may(given(**{verb: ()}), "orders", "you")
    assert not may(Allowance(IDENTITY, Permissions()), "orders", "")


def test_a_subscription_is_consumed_by_its_owner_by_name_or_by_managers_of_the_topic() -> None:
    subscriber = given(subscribe=("orders",))

    assert subscriber.may_consume("orders", "billing")
    assert subscriber.may_consume("orders", "billing", "me")
    assert not subscriber.may_consume("orders", "billing", "you")
    assert given(consume=("orders/billing",)).may_consume("orders", "billing", "you")
    assert not given(consume=("orders/billing",)).may_consume("orders", "audit", "you")
    assert given(manage=("orders",)).may_consume("orders", "billing", "you")
    assert given(create=("orders",)).may_consume("orders", "billing", "you")
    assert not given(subscribe=("orders",), consume=()).may_consume("orders", "billing")
    assert given(consume=()).may_consume("orders", "billing", "me")


def test_no_subscription_of_another_topic_passes_for_the_one_that_is_named() -> None:
    allowance = given(consume=("orders/eu/billing", "prices/eu/*"))

    assert allowance.may_consume("orders/eu", "billing")
    assert allowance.may_consume("prices/eu", "a/b")
    assert not allowance.may_consume("orders", "eu/billing")
    assert not allowance.may_consume("prices", "eu/billing")
    assert given(consume=("orders/*",)).may_consume("orders", "eu/billing")


def test_reading_falls_back_to_subscribing_for_topics_only() -> None:
    subscriber = given(subscribe=("*",), send=("*",))

    assert subscriber.may_read("orders")
    assert not subscriber.may_read("@(shop/till)")
    assert not given(subscribe=("*",), read=()).may_read("orders")
    assert given(read=("shop/*",)).may_read("@(shop/till)")


def test_discovering_falls_back_to_what_it_may_send_to_and_itself() -> None:
    sender = given(send=("shop/*",))

    assert sender.may_discover("@(shop/till)")
    assert sender.may_discover(IDENTITY)
    assert not sender.may_discover("@(office/desk)")
    assert not given(send=("shop/*",), discover=()).may_discover("@(shop/till)")
    assert given(discover=("office/*",)).may_discover("@(office/desk)")
    assert given(send=("*",)).discovers_all


@pytest.mark.parametrize("verb", ["host", "control", "use_room", "administer"])
def test_hosting_controlling_rooms_and_administering_have_no_fallback(verb: str) -> None:
    messaging = {one: ("*",) for one in (*VERBS, "create")}
    name = {"use_room": "rooms", "administer": "admin"}.get(verb, verb)

    assert not getattr(given(**messaging), f"may_{verb}")("one")
    assert getattr(given(**{name: ("o*",)}), f"may_{verb}")("one")
    assert not getattr(given(**{name: ("o*",)}), f"may_{verb}")("two")


def test_purging_a_host_is_never_a_matter_of_creating_topics() -> None:
    assert not given(create=("*",)).may_delete("@(actors/one)")
    assert given(delete=("actors/*",)).may_delete("@(actors/one)")


def test_a_token_says_only_what_it_was_given() -> None:
    held = Permissions(send=("*",), manage=())

    encoded = msgspec.json.encode(held)

    assert encoded == b'{"send":["*"],"manage":[]}'
    assert msgspec.json.decode(encoded, type=Permissions) == held


def test_roles_grant_what_their_names_say_and_no_messaging() -> None:
    viewer, operator, admin = (given(**ROLES[role]) for role in ("viewer", "operator", "admin"))

    assert viewer.may_administer("view")
    assert viewer.discovers_all
    assert not viewer.may_administer("sessions")
    assert not viewer.may_read("orders")
    assert operator.may_manage("orders")
    assert operator.may_control("@(actors/one)")
    assert operator.may_administer("sessions")
    assert not operator.may_administer("erase")
    assert not operator.may_delete("orders")
    assert admin.may_delete("orders")
    assert admin.may_delete("@(actors/one)")
    assert admin.may_administer("erase")
    for role in (viewer, operator, admin):
        assert not role.may_send("@(a/b)")
        assert not role.may_publish("orders")
        assert not role.may_host("order")
