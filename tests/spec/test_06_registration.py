"""Sections 6.4–6.9: registering, leaving, finding, listing and renewing actors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.stage import InProcess, addresses, code_of, numbered, run_stage


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def timed(clock: FakeClock) -> AsyncIterator[InProcess]:
    """A hub whose clock the test turns."""
    async with run_stage(clock) as stage:
        yield stage


async def test_6_4_registered_carries_the_facts_in_payload_and_metadata(
    timed: InProcess, clock: FakeClock
) -> None:
    peer = await timed.connect()

    reply = await peer.register("@(local/a)", "plan", metadata={"room": 7})

    facts = {
        "expiresAt": clock.now_ms() + 300_000,
        "renewalToken": reply["payload"]["renewalToken"],
        "version": 1,
    }
    added = {"durable": False, "waiting": 0}
    assert reply["payload"] == {"actorAddress": "@(local/a)"} | facts | added
    assert reply["metadata"] == facts
    assert facts["renewalToken"].startswith("renewal-")


@pytest.mark.parametrize(
    ("asked", "lease_s"),
    [(None, 300), (60, 60), (1, 1), (0.5, 1), (0, 1), (-5, 1), (3600, 3600), (99_999, 3600)],
)
async def test_6_4_lease_is_clamped_between_a_second_and_an_hour(
    timed: InProcess, clock: FakeClock, asked: float | None, lease_s: int
) -> None:
    peer = await timed.connect()

    reply = await peer.register("@(local/a)", ttlSeconds=asked)

    assert reply["payload"]["expiresAt"] == clock.now_ms() + lease_s * 1000


async def test_6_4_empty_capabilities_are_accepted(stage: InProcess) -> None:
    peer = await stage.connect()

    assert (await peer.register("@(local/a)"))["type"] == "hub:registered"


@pytest.mark.parametrize(
    "change",
    [
        {"actorAddress": ...},
        {"actorAddress": 7},
        {"actorAddress": None},
        {"actorAddress": "@(" + "x" * 300 + ")"},
        {"capabilities": ...},
        {"capabilities": None},
        {"capabilities": "plan"},
        {"capabilities": [7]},
        {"capabilities": ["x" * 1000]},
        {"capabilities": ["x"] * 1000},
        {"metadata": []},
        {"metadata": "text"},
        {"metadata": {"big": "x" * 100_000}},
        {"ttlSeconds": "60"},
        {"ttlSeconds": []},
    ],
    ids=lambda change: str(change)[:40],
)
async def test_6_4_ill_typed_registration_is_refused(
    stage: InProcess, change: dict[str, Any]
) -> None:
    peer = await stage.connect()
    payload = {"actorAddress": "@(local/a)", "capabilities": ["plan"]} | change
    payload = {name: value for name, value in payload.items() if value is not ...}

    for pattern in ("tell", "ask"):
        reply = await peer.ask("hub:register", payload, pattern=pattern)
        assert code_of(reply) == "internal_error"
    assert await addresses(peer) == []


@pytest.mark.parametrize("payload", [None, [], "text", 7])
async def test_6_4_registration_without_an_object_is_refused(
    stage: InProcess, payload: object
) -> None:
    peer = await stage.connect()

    assert code_of(await peer.ask("hub:register", payload)) == "internal_error"


async def test_6_4_registry_above_95_percent_refuses_new_addresses_only() -> None:
    async with run_stage(registry={"limit": 20}) as stage:
        peer = await stage.connect()
        for address in numbered("local", 20):
            assert (await peer.register(address))["type"] == "hub:registered"

        reply = await peer.register("@(local/new)")

        assert code_of(reply) == "registry_full"
        assert reply["payload"]["retryable"] is True
        assert reply["payload"]["details"] == {
            "currentSize": 20,
            "limit": 20,
            "action": "retry_later_or_use_different_hub",
        }
        assert (await peer.register("@(local/3)"))["type"] == "hub:registered"
        await peer.ask("hub:unregister", {"actorAddress": "@(local/0)"})
        assert (await peer.register("@(local/new)"))["type"] == "hub:registered"


async def test_6_5_unregister_is_silent_for_a_tell(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")

    peer.send("hub:unregister", {"actorAddress": "@(local/a)"})

    await peer.nothing_more()
    assert await addresses(peer) == []


async def test_6_5_unregister_is_confirmed_for_an_ask(timed: InProcess, clock: FakeClock) -> None:
    peer = await timed.join("@(local/a)")

    reply = await peer.ask("hub:unregister", {"actorAddress": "@(local/a)"})

    assert reply["type"] == "hub:unregistered"
    assert reply["payload"] == {"actorAddress": "@(local/a)", "unregisteredAt": clock.now_ms()}


async def test_6_5_unknown_address_is_a_silent_no_op(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")

    peer.send("hub:unregister", {"actorAddress": "@(local/never)"})

    await peer.nothing_more()
    assert await addresses(peer) == ["@(local/a)"]


async def test_6_5_null_payload_means_the_sender(stage: InProcess) -> None:
    peer = await stage.connect()
    await peer.register("@(local/a)")
    await peer.register("@(local/b)")

    peer.send("hub:unregister", None, sender="@(local/a)")

    assert await addresses(peer) == ["@(local/b)"]


async def test_6_5_only_the_owner_may_unregister(stage: InProcess) -> None:
    owner, other = await stage.join("@(local/a)"), await stage.connect()

    other.send("hub:unregister", {"actorAddress": "@(local/a)"})
    other.send("hub:unregister", None, sender="@(local/a)")

    await other.nothing_more()
    assert await addresses(owner) == ["@(local/a)"]


async def test_6_5_subscriptions_of_the_address_go_with_it(stage: InProcess) -> None:
    peer = await stage.connect()
    for address in ("@(local/a)", "@(local/b)"):
        await peer.register(address)
        await peer.ask("hub:subscribe", {"topic": "news"})

    await peer.ask("hub:unregister", {"actorAddress": "@(local/a)"})

    peer.send("hub:publish", {"topic": "news", "type": "note", "data": 1})
    assert (await peer.receive("note"))["to"] == "@(local/b)"
    assert (await peer.receive("hub:published"))["payload"]["subscriberCount"] == 1


@pytest.mark.parametrize("payload", [{}, {"actorAddress": 7}, {"actorAddress": None}, [], "text"])
async def test_6_5_ill_typed_unregister_is_refused(stage: InProcess, payload: object) -> None:
    peer = await stage.connect()

    assert code_of(await peer.ask("hub:unregister", payload, pattern="tell")) == "internal_error"


ACTORS = ("@(local/disc)", "@(local/disc-2)", "@(browser/ui.v1)", "@(browser/deep/ui)", "@(x)")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ACTORS),
        ("@(*)", ACTORS),
        ("**", ACTORS),
        ("local/*", ACTORS[:2]),
        ("@(local/*)", ACTORS[:2]),
        ("*ui*", ACTORS[2:4]),
        ("browser/*ui", ACTORS[3:4]),
        ("*/disc", ACTORS[:1]),
        ("local/disc", ACTORS[:1]),
        ("@(local/disc)", ACTORS[:1]),
        ("disc", ()),
        ("Local/*", ()),
        ("browser/ui?v1", ()),
        ("browser/ui.v1", ACTORS[2:3]),
        ("local/disc[-]2", ()),
        ("l*c", ACTORS[:1]),
        ("x", ACTORS[4:]),
        ("*x*x*", ()),
    ],
)
async def test_6_6_pattern_is_a_glob_in_which_only_the_star_is_special(
    stage: InProcess, pattern: str, found: tuple[str, ...]
) -> None:
    peer = await stage.connect()
    for address in ACTORS:
        await peer.register(address)

    assert await addresses(peer, pattern) == list(found)


async def test_6_6_capability_is_exact_membership(stage: InProcess) -> None:
    peer = await stage.connect()
    await peer.register("@(local/a)", "plan", "draw")
    await peer.register("@(local/b)", "planner")
    await peer.register("@(browser/c)", "plan")

    assert await addresses(peer, "*", capability="plan") == ["@(local/a)", "@(browser/c)"]
    assert await addresses(peer, "local/*", capability="plan") == ["@(local/a)"]
    assert await addresses(peer, "*", capability="Plan") == []
    for none in ("", None):
        assert len(await addresses(peer, "*", capability=none)) == 3


async def test_6_6_entries_hold_address_and_capabilities_only(stage: InProcess) -> None:
    peer = await stage.connect()
    await peer.register("@(local/a)", "plan", metadata={"secret": 1})

    reply = await peer.ask("hub:discover", {"pattern": "*"})

    assert reply["payload"] == {
        "actors": [{"address": "@(local/a)", "capabilities": ["plan"]}],
        "hasMore": False,
    }


async def test_6_6_order_is_that_of_registration_and_survives_registering_again(
    stage: InProcess,
) -> None:
    peer = await stage.connect()
    for address in ("@(local/z)", "@(local/a)", "@(local/m)"):
        await peer.register(address)

    await peer.register("@(local/z)", "new")

    assert await addresses(peer) == ["@(local/z)", "@(local/a)", "@(local/m)"]


@pytest.mark.parametrize(
    ("limit", "count", "has_more"),
    [(None, 100, True), (1000, 100, True), (2, 2, True), (1, 1, True), (0, 1, True), (-7, 1, True)],
)
async def test_6_6_limit_is_clamped_and_has_more_is_true_when_there_is(
    stage: InProcess, limit: int | None, count: int, has_more: bool
) -> None:
    peer = await stage.connect()
    for address in numbered("local", 101):
        await peer.register(address)

    reply = await peer.ask("hub:discover", {"pattern": "*", "limit": limit})

    assert len(reply["payload"]["actors"]) == count
    assert reply["payload"]["hasMore"] is has_more


async def test_6_6_has_more_is_false_when_the_page_is_just_full(stage: InProcess) -> None:
    peer = await stage.connect()
    for address in numbered("local", 3):
        await peer.register(address)

    reply = await peer.ask("hub:discover", {"pattern": "*", "limit": 3})

    assert reply["payload"]["hasMore"] is False


@pytest.mark.parametrize(
    "payload",
    [None, {}, {"pattern": ""}, {"pattern": 7}, {"pattern": "*", "capability": 7}, [], "*"],
)
async def test_6_6_ill_typed_discovery_is_refused(stage: InProcess, payload: object) -> None:
    peer = await stage.connect()

    assert code_of(await peer.ask("hub:discover", payload)) == "internal_error"


async def test_6_7_list_shows_everything_but_the_renewal_token(
    timed: InProcess, clock: FakeClock
) -> None:
    peer = await timed.dial()
    session_id = (await peer.connect())["payload"]["sessionId"]
    await peer.register("@(local/a)", "plan", metadata={"room": {"n": 7}}, ttlSeconds=60)

    reply = await peer.ask("hub:list_actors", {})

    assert reply["type"] == "hub:actor_list"
    assert reply["payload"] == {
        "actors": [
            {
                "actorAddress": "@(local/a)",
                "capabilities": ["plan"],
                "metadata": {"room": {"n": 7}},
                "connectionId": session_id,
                "registeredAt": clock.now_ms(),
                "expiresAt": clock.now_ms() + 60_000,
                "version": 1,
            }
        ],
        "total": 1,
        "offset": 0,
        "limit": 100,
        "hasMore": False,
    }


@pytest.mark.parametrize(
    ("asked", "offset", "limit", "count", "has_more"),
    [
        ({}, 0, 100, 100, True),
        ({"limit": 500}, 0, 100, 100, True),
        ({"offset": 100}, 100, 100, 5, False),
        ({"offset": 5}, 5, 100, 100, False),
        ({"offset": -3, "limit": 2}, 0, 2, 2, True),
        ({"offset": 103, "limit": 2}, 103, 2, 2, False),
        ({"offset": 1000}, 1000, 100, 0, False),
    ],
    ids=str,
)
async def test_6_7_pages_are_clamped_and_say_whether_there_is_more(
    stage: InProcess, asked: dict[str, int], offset: int, limit: int, count: int, has_more: bool
) -> None:
    peer = await stage.connect()
    for address in numbered("local", 105):
        await peer.register(address)

    page = (await peer.ask("hub:list_actors", asked))["payload"]

    assert (page["offset"], page["limit"]) == (offset, limit)
    assert len(page["actors"]) == count
    assert page["total"] == 105
    assert page["hasMore"] is has_more


@pytest.mark.parametrize("number", [1e300, -1e300, 10**40, 1.5, 2**53])
async def test_6_7_absurd_numbers_of_a_page_harm_nobody(stage: InProcess, number: float) -> None:
    peer = await stage.join("@(local/a)")

    for member in ("offset", "limit"):
        reply = await peer.ask("hub:list_actors", {member: number})
        assert reply["type"] == "hub:actor_list" or code_of(reply) == "internal_error"
        assert reply["payload"].get("retryable", False) is False
    await peer.nothing_more()


async def test_6_8_lease_that_ran_out_hides_the_actor_from_everybody(
    timed: InProcess, clock: FakeClock
) -> None:
    peer, other = await timed.connect(), await timed.join("@(local/other)")
    await peer.register("@(local/a)", "plan", ttlSeconds=30)

    clock.advance(29)
    assert (await other.ask_actor("@(local/a)", "note"))["type"] == "hub:delivery_ack"
    clock.advance(1)

    assert (await other.ask_actor("@(local/a)", "note"))["type"] == "hub:unknown_actor"
    assert await addresses(other) == ["@(local/other)"]
    listed = await other.ask("hub:list_actors", {})
    assert listed["payload"]["total"] == 1
    ack = await other.ask("hub:broadcast", {"type": "note", "excludeSelf": True})
    assert ack["payload"]["deliveredCount"] == 0
    await peer.receive("note")
    await peer.nothing_more()


async def test_6_8_lease_that_ran_out_leaves_the_socket_open_and_can_be_had_again(
    timed: InProcess, clock: FakeClock
) -> None:
    peer, other = await timed.join("@(local/a)"), await timed.connect()
    clock.advance(301)
    assert await addresses(other) == []

    assert (await peer.register("@(local/a)"))["type"] == "hub:registered"

    assert await addresses(other) == ["@(local/a)"]


async def test_6_9_renewal_extends_rotates_and_counts(timed: InProcess, clock: FakeClock) -> None:
    peer = await timed.connect()
    registered = await peer.register("@(local/a)")
    clock.advance(100)

    reply = await peer.ask(
        "hub:renew", {"renewalToken": registered["payload"]["renewalToken"]}, sender="@(no/body)"
    )

    assert reply["type"] == "hub:renewed"
    assert reply["payload"]["expiresAt"] == clock.now_ms() + 300_000
    assert reply["payload"]["renewalToken"] != registered["payload"]["renewalToken"]
    listed = await peer.ask("hub:list_actors", {})
    assert listed["payload"]["actors"][0]["version"] == 2


async def test_6_9_token_may_be_in_the_metadata(stage: InProcess) -> None:
    peer = await stage.connect()
    token = (await peer.register("@(local/a)"))["payload"]["renewalToken"]

    reply = await peer.ask(
        "hub:renew", None, metadata={"renewalToken": token}, sender="@(no/body)", pattern="tell"
    )

    assert reply["type"] == "hub:renewed"
    assert reply["payload"]["renewalToken"] != token


@pytest.mark.parametrize("payload", [None, {}, {"renewalToken": "renewal-stale"}])
async def test_6_9_owner_without_a_good_token_renews_and_nothing_is_rotated(
    timed: InProcess, clock: FakeClock, payload: object
) -> None:
    peer = await timed.connect()
    token = (await peer.register("@(local/a)"))["payload"]["renewalToken"]
    clock.advance(200)

    reply = await peer.ask("hub:renew", payload, sender="@(local/a)", pattern="tell")

    assert reply["type"] == "hub:renewed"
    assert reply["payload"]["expiresAt"] == clock.now_ms() + 300_000
    assert reply["payload"]["renewalToken"] == token


async def test_6_9_unknown_or_used_token_is_unauthorized(stage: InProcess) -> None:
    peer = await stage.connect()
    token = (await peer.register("@(local/a)"))["payload"]["renewalToken"]
    await peer.ask("hub:renew", {"renewalToken": token})

    for stale in (token, "renewal-unknown", ""):
        reply = await peer.ask("hub:renew", {"renewalToken": stale}, sender="@(no/body)")
        assert code_of(reply) == "unauthorized"


async def test_6_9_other_sessions_cannot_use_the_token(stage: InProcess) -> None:
    owner, other = await stage.connect(), await stage.connect()
    token = (await owner.register("@(local/a)"))["payload"]["renewalToken"]

    reply = await other.ask("hub:renew", {"renewalToken": token}, sender="@(local/a)")

    assert code_of(reply) == "unauthorized"


async def test_6_9_renewal_brings_a_hidden_actor_back(timed: InProcess, clock: FakeClock) -> None:
    peer, other = await timed.join("@(local/a)"), await timed.connect()
    clock.advance(301)
    assert await addresses(other) == []

    await peer.ask("hub:renew", None, sender="@(local/a)")

    assert await addresses(other) == ["@(local/a)"]
