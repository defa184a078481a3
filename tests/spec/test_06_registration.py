"""Sections 6.4–6.9 and ruling 7: registering, leaving, finding, listing and renewing actors."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import Peer, code_of
from tests.support.stage import RunStage, Stage, addresses, numbered


async def crowd_of(stage: Stage, count: int) -> Peer:
    """A session with addresses `@(local/0)` and on."""
    peer = await stage.connect()
    for address in numbered("local", count):
        assert (await peer.register(address))["type"] == "hub:registered"
    return peer


@pytest.mark.also_over_sockets
async def test_6_4_registered_carries_the_facts_in_payload_and_metadata(
    timed: Stage, clock: FakeClock
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
    [
        *((None, 300), (60, 60), (1.5, 1.5), (1, 1), (0.5, 1), (0, 1), (-5, 1)),
        *((3600, 3600), (99_999, 3600)),
    ],
)
async def test_6_4_lease_is_clamped_between_a_second_and_an_hour(
    timed: Stage, clock: FakeClock, asked: float | None, lease_s: float
) -> None:
    peer = await timed.connect()

    # Only `ttlSeconds` counts.
    reply = await peer.register("@(local/a)", ttlSeconds=asked, ttl=1000)

    assert reply["payload"]["expiresAt"] == clock.now_ms() + lease_s * 1000


FITTING: list[dict[str, Any]] = [
    {"capabilities": []},
    {"capabilities": ["x"] * 64},
    {"capabilities": ["x" * 128], "metadata": None},
    {"capabilities": [], "metadata": {"x": "y" * 8_182}},
]
NOT_FITTING: dict[str, list[Any]] = {
    "actorAddress": [..., 7, None, "@(" + "x" * 254 + ")"],
    "capabilities": [..., None, "plan", [7], ["x" * 129], ["x"] * 65],
    "metadata": [[], "text", {"big": "x" * 8_183}],
    "ttlSeconds": ["60", []],
}


async def test_6_4_registration_that_does_not_fit_is_refused(timed: Stage) -> None:
    peer = await timed.connect()
    good: dict[str, Any] = {"actorAddress": "@(local/a)", "capabilities": ["plan"]}
    bad: list[Any] = [good | {name: value} for name in NOT_FITTING for value in NOT_FITTING[name]]
    bad = [{name: each[name] for name in each if each[name] is not ...} for each in bad]
    bad.append(good | {"capabilities": ["x" * 128] * 33, "metadata": {"x": "y" * 4_096}})

    for payload in [*bad, None, [], "text", 7, {}]:
        for pattern in ("tell", "ask"):
            reply = await peer.ask("hub:register", payload, pattern=pattern)
            assert code_of(reply) == "internal_error", str(payload)[:80]
    assert await addresses(peer) == []
    for change in FITTING:
        reply = await peer.ask("hub:register", good | change)
        assert reply["type"] == "hub:registered", str(change)[:80]


@pytest.mark.parametrize(
    ("limit", "accepted"), [(1, 1), (10, 10), (19, 19), (20, 20), (100, 96), (1_000, 951)]
)
async def test_6_4_registry_above_95_percent_refuses_new_addresses_only(
    run_stage: RunStage, limit: int, accepted: int
) -> None:
    async with run_stage(registry={"limit": limit}, message_rate=0) as stage:
        # A full hub takes no more sockets.
        other = await stage.connect("@(local/other)")
        peer = await crowd_of(stage, accepted)

        reply = await other.register("@(local/new)")

        assert code_of(reply) == "registry_full"
        assert reply["payload"]["retryable"] is True
        assert reply["payload"]["details"] == {
            "currentSize": accepted,
            "limit": limit,
            "action": "retry_later_or_use_different_hub",
        }
        assert (await peer.register("@(local/0)"))["type"] == "hub:registered"
        await peer.ask("hub:unregister", {"actorAddress": "@(local/0)"})
        assert (await other.register("@(local/new)"))["type"] == "hub:registered"


@pytest.mark.also_over_sockets
async def test_6_5_unregister_is_silent_for_a_tell_and_confirmed_for_an_ask(
    timed: Stage, clock: FakeClock
) -> None:
    peer = await timed.connect()
    for address in ("@(local/a)", "@(local/b)", "@(local/c)"):
        await peer.register(address)
        await peer.ask("hub:subscribe", {"topic": "news"})

    peer.send("hub:unregister", {"actorAddress": "@(local/c)"})
    reply = await peer.ask("hub:unregister", {"actorAddress": "@(local/b)"})
    await peer.nothing_more()

    assert reply["type"] == "hub:unregistered"
    assert reply["payload"] == {"actorAddress": "@(local/b)", "unregisteredAt": clock.now_ms()}
    assert await addresses(peer) == ["@(local/a)"]
    # Its subscriptions go with an address, and only its own.
    peer.send("hub:publish", {"topic": "news", "type": "note", "data": 1})
    assert (await peer.receive("note"))["to"] == "@(local/a)"
    assert (await peer.receive("hub:published"))["payload"]["subscriberCount"] == 1
    # Without a payload the sender is meant.
    peer.send("hub:unregister", None, sender="@(local/a)")
    assert await addresses(peer) == []


async def test_6_5_only_the_owner_may_unregister_and_unknown_is_a_silent_no_op(
    stage: Stage,
) -> None:
    owner, other = await stage.join("@(local/a)"), await stage.join("@(local/b)")

    for address in ("@(local/a)", "@(local/never)", "anything"):
        other.send("hub:unregister", {"actorAddress": address})
    other.send("hub:unregister", None, sender="@(local/a)")
    await other.nothing_more()
    bad: list[Any] = [{}, {"actorAddress": 7}, {"actorAddress": None}, [], "text"]
    for payload in bad:
        reply = await other.ask("hub:unregister", payload, pattern="tell")
        assert code_of(reply) == "internal_error"

    assert await addresses(owner) == ["@(local/a)", "@(local/b)"]


ACTORS = ("@(local/disc)", "@(local/disc-2)", "@(browser/ui.v1)", "@(browser/deep/ui)", "@(x)")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        *(("*", ACTORS), ("@(*)", ACTORS), ("**", ACTORS)),
        *(("local/*", ACTORS[:2]), ("@(local/*)", ACTORS[:2]), ("*ui*", ACTORS[2:4])),
        *(("browser/*ui", ACTORS[3:4]), ("*/disc", ACTORS[:1]), ("l*c", ACTORS[:1])),
        *(("local/disc", ACTORS[:1]), ("@(local/disc)", ACTORS[:1]), ("x", ACTORS[4:])),
        *(("browser/ui.v1", ACTORS[2:3]), ("browser/ui.*", ACTORS[2:3])),
        *((pattern, ()) for pattern in ("disc", "Local/*", "browser/ui?v1", "local/disc[-]2")),
        *((pattern, ()) for pattern in ("*x*x*", "local")),
    ],
)
async def test_6_6_pattern_is_a_glob_in_which_only_the_star_is_special(
    stage: Stage, pattern: str, found: tuple[str, ...]
) -> None:
    peer = await stage.connect()
    for address in ACTORS:
        await peer.register(address)

    assert await addresses(peer, pattern) == list(found)


@pytest.mark.also_over_sockets
async def test_6_6_capability_is_exact_membership_and_order_is_that_of_registration(
    stage: Stage,
) -> None:
    peer = await stage.connect()
    await peer.register("@(local/z)", "plan", "draw", metadata={"secret": 1})
    await peer.register("@(local/a)", "planner")
    await peer.register("@(browser/m)", "plan")
    # Registering again keeps the place.
    await peer.register("@(local/z)", "plan", "draw")

    assert await addresses(peer, capability="plan") == ["@(local/z)", "@(browser/m)"]
    assert await addresses(peer, capability="Plan") == []
    for none in ("", None):
        assert len(await addresses(peer, capability=none)) == 3
    reply = await peer.ask("hub:discover", {"pattern": "local/*", "capability": "draw"})
    assert reply["payload"] == {
        "actors": [{"address": "@(local/z)", "capabilities": ["plan", "draw"]}],
        "hasMore": False,
    }


async def test_6_6_limit_is_clamped_and_has_more_is_true_when_there_is(timed: Stage) -> None:
    peer = await crowd_of(timed, 101)
    counts = []

    for limit in (None, 1000, 100, 2.9, 2, 1, 0, -7):
        page = (await peer.ask("hub:discover", {"pattern": "*", "limit": limit}))["payload"]
        assert page["hasMore"] is True
        counts.append(len(page["actors"]))
    await peer.ask("hub:unregister", {"actorAddress": "@(local/0)"})
    full = await peer.ask("hub:discover", {"pattern": "*"})

    assert counts == [100, 100, 100, 2, 2, 1, 1, 1]
    # A page that is just full.
    assert (len(full["payload"]["actors"]), full["payload"]["hasMore"]) == (100, False)


async def test_6_6_ill_typed_discovery_is_refused(stage: Stage) -> None:
    peer = await stage.connect()

    bad: list[Any] = [None, {}, [], "*", {"pattern": "*", "capability": 7}]
    for payload in [*bad, {"pattern": ""}, {"pattern": 7}, {"pattern": "x" * 257}]:
        assert code_of(await peer.ask("hub:discover", payload)) == "internal_error", payload


@pytest.mark.also_over_sockets
async def test_6_7_list_shows_everything_but_the_renewal_token(
    timed: Stage, clock: FakeClock
) -> None:
    peer = await timed.dial()
    session_id = (await peer.connect())["payload"]["sessionId"]
    metadata = {"room": {"n": 7, "deep": [1.0, None]}}
    await peer.register("@(local/a)", "plan", metadata=metadata, ttlSeconds=60)

    for is_empty in (True, False):
        reply = await peer.ask("hub:list_actors", {} if is_empty else None)
        assert reply["type"] == "hub:actor_list"
        assert reply["payload"] == {
            "actors": [
                {
                    "actorAddress": "@(local/a)",
                    "capabilities": ["plan"],
                    "metadata": metadata,
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


async def test_6_7_pages_are_clamped_and_say_whether_there_is_more(timed: Stage) -> None:
    peer = await crowd_of(timed, 105)
    everybody = list(numbered("local", 105))

    for asked, offset, limit, has_more in (
        ({}, 0, 100, True),
        ({"limit": 500}, 0, 100, True),
        ({"offset": 100}, 100, 100, False),
        ({"offset": 5}, 5, 100, False),
        ({"offset": -3, "limit": 2}, 0, 2, True),
        ({"offset": 103, "limit": 2}, 103, 2, False),
        ({"offset": 1000}, 1000, 100, False),
        ({"limit": 0}, 0, 1, True),
        ({"offset": 2**53, "limit": -1}, 2**53, 1, False),
    ):
        page = (await peer.ask("hub:list_actors", asked))["payload"]
        listed = [actor["actorAddress"] for actor in page["actors"]]
        assert listed == everybody[offset : offset + limit], asked
        assert (page["offset"], page["limit"], page["total"]) == (offset, limit, 105)
        assert page["hasMore"] is has_more
    for number in (1e300, -1e300, 10**40, 1.5):
        for member in ("offset", "limit"):
            reply = await peer.ask("hub:list_actors", {member: number})
            assert reply["type"] == "hub:actor_list" or code_of(reply) == "internal_error"
            assert reply["payload"].get("retryable", False) is False
    assert code_of(await peer.ask("hub:list_actors", {"offset": "x"})) == "internal_error"


@pytest.mark.also_over_sockets
async def test_6_8_lease_that_ran_out_hides_the_actor_until_it_speaks(
    timed: Stage, clock: FakeClock
) -> None:
    peer, other = await timed.connect(), await timed.join("@(local/other)")
    await peer.register("@(local/a)", "plan", ttlSeconds=30)

    clock.advance(29.999)
    assert (await other.ask_actor("@(local/a)", "note"))["type"] == "hub:delivery_ack"
    clock.advance(0.001)

    assert (await other.ask_actor("@(local/a)", "note"))["type"] == "hub:unknown_actor"
    assert await addresses(other) == ["@(local/other)"]
    assert (await other.ask("hub:list_actors", {}))["payload"]["total"] == 1
    ack = await other.ask("hub:broadcast", {"type": "note", "excludeSelf": True})
    assert ack["payload"]["deliveredCount"] == 0
    # The socket stays, and what it says next brings the actor back.
    await peer.receive("note")
    back = {"actorAddress": "@(local/a)", "capabilities": [], "ttlSeconds": 30}
    for type, payload in (("heartbeat", None), ("renew", None), ("register", back)):
        await peer.ask(f"hub:{type}", payload, sender="@(local/a)")
        assert await addresses(other) == ["@(local/other)", "@(local/a)"]
        clock.advance(30)
        assert await addresses(other) == ["@(local/other)"]


@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("hub:heartbeat", None),
        ("hub:discover", {"pattern": "*"}),
        ("hub:send", {"to": "@(nobody/here)", "type": "t"}),
        ("hub:publish", {"topic": "t", "type": "t"}),
        ("hub:metrics", None),
        ("hub:subscribe", {"topic": "t"}),
    ],
)
async def test_r7_every_accepted_frame_renews_all_leases_of_its_session_and_no_other(
    timed: Stage, clock: FakeClock, type: str, payload: object
) -> None:
    other = await timed.connect()
    await other.register("@(local/other)", ttlSeconds=11)
    peer = await timed.connect()
    await peer.register("@(local/short)", ttlSeconds=10)
    await peer.register("@(local/long)", ttlSeconds=20)

    clock.advance(9)
    await peer.ask(type, payload, sender="@(local/other)")
    clock.advance(9)

    observer = await timed.connect()
    assert await addresses(observer) == ["@(local/short)", "@(local/long)"]
    clock.advance(1)
    assert await addresses(observer) == ["@(local/long)"]


async def test_r7_frame_that_is_no_envelope_renews_nothing(timed: Stage, clock: FakeClock) -> None:
    peer, other = await timed.join("@(local/a)"), await timed.connect()

    clock.advance(299)
    peer.send_text("{}")
    await peer.receive("hub:error")
    clock.advance(1)

    assert await addresses(other) == []


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("place", ["payload", "metadata"])
async def test_6_9_renewal_by_token_extends_rotates_and_counts(
    timed: Stage, clock: FakeClock, place: str
) -> None:
    peer = await timed.connect()
    token = (await peer.register("@(local/a)", ttlSeconds=60))["payload"]["renewalToken"]
    clock.advance(30)
    given = {"renewalToken": token}
    payload, metadata = (given, {}) if place == "payload" else (None, given)

    reply = await peer.ask("hub:renew", payload, metadata=metadata, sender="@(no/body)")

    assert reply["type"] == "hub:renewed"
    renewed = reply["payload"]
    assert renewed.pop("renewalToken") != token
    assert renewed == {
        "actorAddress": "@(local/a)",
        "expiresAt": clock.now_ms() + 60_000,
        "version": 2,
    }
    for stale in (token, "renewal-unknown", ""):
        reply = await peer.ask("hub:renew", {"renewalToken": stale}, sender="@(no/body)")
        assert code_of(reply) == "unauthorized"


@pytest.mark.parametrize(
    "payload", [None, {}, {"renewalToken": "renewal-stale"}, {"renewalToken": None}]
)
async def test_6_9_owner_without_a_good_token_renews_and_nothing_is_rotated(
    timed: Stage, clock: FakeClock, payload: object
) -> None:
    peer = await timed.connect()
    token = (await peer.register("@(local/a)"))["payload"]["renewalToken"]
    clock.advance(200)

    reply = await peer.ask("hub:renew", payload, sender="@(local/a)", pattern="tell")

    assert reply["type"] == "hub:renewed"
    assert reply["payload"]["expiresAt"] == clock.now_ms() + 300_000
    assert reply["payload"]["renewalToken"] == token


async def test_6_9_other_sessions_cannot_renew_by_token_or_by_name(stage: Stage) -> None:
    owner, other = await stage.connect(), await stage.connect()
    token = (await owner.register("@(local/a)"))["payload"]["renewalToken"]

    for payload in ({"renewalToken": token}, None):
        reply = await other.ask("hub:renew", payload, sender="@(local/a)")
        assert code_of(reply) == "unauthorized"
