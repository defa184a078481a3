"""Registering, renewing, leaving and finding actors."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.settings.model import RegistrySettings, Settings
from tests.support.memory.shell import MemoryShell, Message, Peer


def sized(limit: int, **changes: Any) -> MemoryShell:
    return MemoryShell(Settings(message_rate=0, registry=RegistrySettings(limit=limit, **changes)))


def discover(peer: Peer, pattern: str = "*", **payload: Any) -> Message:
    reply = peer.ask("hub:discover", {"pattern": pattern, **payload})
    assert reply["type"] == "hub:discovered", reply
    found: Message = reply["payload"]
    return found


def found(peer: Peer, pattern: str = "*", **payload: Any) -> list[str]:
    return [actor["address"] for actor in discover(peer, pattern, **payload)["actors"]]


def crowd(shell: MemoryShell, count: int) -> Peer:
    host = shell.connect("@(local/host)")
    for number in range(count):
        host.register(f"@(crowd/{number})")
    return host


def test_the_facts_of_a_registration_are_in_payload_and_metadata() -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/a)")

    reply = peer.register()

    facts = {
        "expiresAt": shell.now + 300_000,
        "renewalToken": reply["payload"]["renewalToken"],
        "version": 1,
    }
    expected = {"actorAddress": "@(local/a)", **facts, "durable": False, "waiting": 0}
    assert reply["payload"] == expected
    assert reply["metadata"] == facts


@pytest.mark.parametrize(
    "payload",
    [
        None,
        {},
        {"capabilities": []},
        {"actorAddress": "@(a/b)"},
        {"actorAddress": "", "capabilities": []},
        {"actorAddress": "a/b", "capabilities": []},
        {"actorAddress": "@()", "capabilities": []},
        {"actorAddress": "@(a/b", "capabilities": []},
        {"actorAddress": "@(a\nb)", "capabilities": []},
        {"actorAddress": "@(" + "x" * 254 + ")", "capabilities": []},
        {"actorAddress": 5, "capabilities": []},
        {"actorAddress": "@(a/b)", "capabilities": "all"},
        {"actorAddress": "@(a/b)", "capabilities": [1]},
        {"actorAddress": "@(a/b)", "capabilities": ["x"] * 65},
        {"actorAddress": "@(a/b)", "capabilities": ["x" * 129]},
        {"actorAddress": "@(a/b)", "capabilities": [], "metadata": []},
        {"actorAddress": "@(a/b)", "capabilities": [], "metadata": {"x": "y" * 8_192}},
        {
            "actorAddress": "@(a/b)",
            "capabilities": ["x" * 128] * 33,
            "metadata": {"x": "y" * 4_096},
        },
        {"actorAddress": "@(cloudflare/signal-hub)", "capabilities": []},
        {"actorAddress": "@(a/b)", "capabilities": [], "ttlSeconds": "long"},
    ],
)
def test_a_registration_that_does_not_fit_is_refused(payload: object) -> None:
    shell = MemoryShell()

    reply = shell.connect().ask("hub:register", payload)

    assert reply["payload"]["code"] == "internal_error"
    assert len(shell.hub.registry) == 0
    assert shell.written == []


@pytest.mark.parametrize(
    "payload",
    [
        {"actorAddress": "@(a)", "capabilities": []},
        {"actorAddress": "@(" + "x" * 253 + ")", "capabilities": []},
        {"actorAddress": "@(A.b/c/ü)", "capabilities": ["x"] * 64},
        {"actorAddress": "@(a/b)", "capabilities": ["x" * 128], "metadata": None},
        {"actorAddress": "@(a/b)", "capabilities": [], "metadata": {"x": "y" * 8_182}},
    ],
)
def test_a_registration_that_just_fits_is_accepted(payload: object) -> None:
    reply = MemoryShell().connect().ask("hub:register", payload)

    assert reply["type"] == "hub:registered"


@pytest.mark.parametrize(
    ("limit", "accepted"), [(1, 1), (10, 10), (19, 19), (20, 20), (100, 96), (1_000, 951)]
)
def test_new_addresses_are_refused_once_more_than_95_percent_are_taken(
    limit: int, accepted: int
) -> None:
    shell = sized(limit)
    host = shell.connect("@(local/host)")

    replies = [host.register(f"@(local/{number})") for number in range(limit + 1)]

    types = [reply["type"] for reply in replies]
    assert types == ["hub:registered"] * accepted + ["hub:error"] * (limit + 1 - accepted)
    refused = replies[-1]["payload"]
    assert refused["code"] == "registry_full"
    assert refused["retryable"] is True
    assert refused["details"] == {
        "currentSize": accepted,
        "limit": limit,
        "action": "retry_later_or_use_different_hub",
    }
    assert shell.tally.registry_refused == limit + 1 - accepted


def test_the_registry_never_grows_beyond_its_limit() -> None:
    shell = sized(10, refuse_above=1.0, warn_above=1.0)

    crowd(shell, 20)

    assert len(shell.hub.registry) == 10


def test_a_known_address_may_register_again_when_the_registry_is_full() -> None:
    shell = sized(2)
    crowd(shell, 2)

    moved = shell.connect("@(local/other)").register("@(crowd/1)")

    assert moved["type"] == "hub:registered"


def test_room_is_made_when_actors_leave() -> None:
    shell = sized(2)
    host = crowd(shell, 2)
    other = shell.connect("@(local/other)")
    refused = other.register("@(local/new)")

    host.tell("hub:unregister", {"actorAddress": "@(crowd/0)"})
    accepted = other.register("@(local/new)")

    assert (refused["type"], accepted["type"]) == ("hub:error", "hub:registered")


@pytest.mark.parametrize(("count", "warned"), [(18, []), (19, ["registry_near_capacity"])])
def test_operators_are_warned_above_90_percent(count: int, warned: list[str]) -> None:
    shell = sized(20)

    crowd(shell, count)

    assert shell.hub.degradations() == warned


def test_unregister_without_a_payload_means_the_sender() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")

    replies = peer.tell("hub:unregister")

    assert replies == []
    assert found(peer) == []


def test_unregister_is_confirmed_to_those_who_ask() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")

    reply = peer.ask("hub:unregister", {"actorAddress": "@(local/a)"})

    assert reply["type"] == "hub:unregistered"
    assert reply["payload"] == {"actorAddress": "@(local/a)", "unregisteredAt": shell.now}


@pytest.mark.parametrize("address", ["@(local/b)", "@(no/body)", "anything"])
def test_nobody_can_unregister_what_is_not_theirs(address: str) -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    shell.join("@(local/b)")

    replies = peer.tell("hub:unregister", {"actorAddress": address})

    assert replies == []
    assert found(peer) == ["@(local/a)", "@(local/b)"]


def test_an_unregistered_address_hears_no_more_topics_but_its_neighbours_do() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    peer.ask("hub:subscribe", {"topic": "t"}, sender="@(local/a)")
    peer.register("@(local/b)")
    peer.ask("hub:subscribe", {"topic": "t"}, sender="@(local/b)")

    peer.tell("hub:unregister", {"actorAddress": "@(local/a)"})
    published = peer.ask("hub:publish", {"topic": "t", "type": "t"}, sender="@(local/b)")

    assert published["payload"]["subscriberCount"] == 1
    assert [one["to"] for one in peer.heard()] == ["@(local/b)"]


def test_renewing_by_token_rotates_the_token_and_counts_the_version() -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/host)")
    first = peer.register("@(local/a)", ttlSeconds=60)["payload"]
    shell.clock.advance(30)

    renewed = peer.ask("hub:renew", {"renewalToken": first["renewalToken"]}, sender="@(x/y)")
    again = peer.ask("hub:renew", {"renewalToken": first["renewalToken"]}, sender="@(x/y)")

    assert renewed["type"] == "hub:renewed"
    assert renewed["payload"]["actorAddress"] == "@(local/a)"
    assert renewed["payload"]["expiresAt"] == shell.now + 60_000
    assert renewed["payload"]["renewalToken"] != first["renewalToken"]
    assert renewed["payload"]["version"] == 2
    assert again["payload"]["code"] == "unauthorized"


def test_the_renewal_token_is_also_found_in_the_metadata() -> None:
    peer = MemoryShell().connect("@(local/host)")
    token = peer.register("@(local/a)")["payload"]["renewalToken"]

    (renewed,) = peer.tell("hub:renew", metadata={"renewalToken": token}, sender="@(x/y)")

    assert renewed["type"] == "hub:renewed"


@pytest.mark.parametrize("payload", [None, {}, {"renewalToken": "stale"}, {"renewalToken": None}])
def test_an_owner_renews_without_its_token_and_nothing_rotates(payload: object) -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/a)")
    token = peer.register()["payload"]["renewalToken"]
    shell.clock.advance(200)

    renewed = peer.ask("hub:renew", payload)["payload"]

    assert renewed["expiresAt"] == shell.now + 300_000
    assert renewed["renewalToken"] == token


def test_nobody_can_renew_what_is_not_theirs() -> None:
    shell = MemoryShell()
    owner = shell.connect("@(local/a)")
    token = owner.register()["payload"]["renewalToken"]
    thief = shell.connect("@(local/thief)")

    by_token = thief.ask("hub:renew", {"renewalToken": token})
    by_name = thief.ask("hub:renew", sender="@(local/a)")

    assert by_token["payload"]["code"] == by_name["payload"]["code"] == "unauthorized"


def test_actors_are_found_in_the_order_of_registration_and_keep_their_place() -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/host)")
    for name in ("c", "a", "b"):
        peer.register(f"@(local/{name})")

    peer.register("@(local/c)")

    assert found(peer) == ["@(local/c)", "@(local/a)", "@(local/b)"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", ["@(local/a)", "@(local/b/c)", "@(Local/a)", "@(x.y/?)"]),
        ("**", ["@(local/a)", "@(local/b/c)", "@(Local/a)", "@(x.y/?)"]),
        ("@(*)", ["@(local/a)", "@(local/b/c)", "@(Local/a)", "@(x.y/?)"]),
        ("local/*", ["@(local/a)", "@(local/b/c)"]),
        ("@(local/*)", ["@(local/a)", "@(local/b/c)"]),
        ("*/a", ["@(local/a)", "@(Local/a)"]),
        ("local", []),
        ("l*/*c", ["@(local/b/c)"]),
        ("x?y/?", []),
        ("x.y/?", ["@(x.y/?)"]),
        ("x.*", ["@(x.y/?)"]),
    ],
)
def test_patterns_are_globs_without_special_characters_but_the_star(
    pattern: str, expected: list[str]
) -> None:
    peer = MemoryShell().connect("@(local/host)")
    for address in ("@(local/a)", "@(local/b/c)", "@(Local/a)", "@(x.y/?)"):
        peer.register(address)

    assert found(peer, pattern) == expected


def test_capability_and_pattern_must_both_hold_and_an_empty_capability_is_no_filter() -> None:
    peer = MemoryShell().connect("@(local/host)")
    peer.register("@(a/1)", capabilities=["draw", "plan"])
    peer.register("@(a/2)", capabilities=["plan"])
    peer.register("@(b/1)", capabilities=["draw"])

    assert found(peer, "a/*", capability="draw") == ["@(a/1)"]
    assert found(peer, "*", capability="plan") == ["@(a/1)", "@(a/2)"]
    assert found(peer, "*", capability="dra") == []
    assert found(peer, "*", capability="") == ["@(a/1)", "@(a/2)", "@(b/1)"]
    assert discover(peer, "a/1")["actors"] == [
        {"address": "@(a/1)", "capabilities": ["draw", "plan"]}
    ]


@pytest.mark.parametrize(
    ("limit", "count", "has_more"),
    [
        (None, 100, True),
        (100, 100, True),
        (1_000, 100, True),
        (2, 2, True),
        (0, 1, True),
        (-7, 1, True),
        (2.9, 2, True),
    ],
)
def test_pages_hold_1_to_100_actors(limit: float | None, count: int, has_more: bool) -> None:
    host = crowd(sized(1_000), 101)

    payload = discover(host, "crowd/*", limit=limit)

    assert (len(payload["actors"]), payload["hasMore"]) == (count, has_more)


def test_has_more_is_honest_when_the_page_is_exactly_full() -> None:
    host = crowd(sized(1_000), 100)

    assert discover(host, "crowd/*", limit=100)["hasMore"] is False
    assert discover(host, "crowd/*", limit=99)["hasMore"] is True


@pytest.mark.parametrize(
    "payload", [None, {}, {"pattern": ""}, {"pattern": 5}, {"pattern": "x" * 257}]
)
def test_a_discovery_needs_a_pattern(payload: object) -> None:
    reply = MemoryShell().connect().ask("hub:discover", payload)

    assert reply["payload"]["code"] == "internal_error"


def test_the_list_shows_everything_but_the_renewal_token() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)", capabilities=["x"], metadata={"deep": {"er": [1.0, None]}})

    listed = peer.ask("hub:list_actors")["payload"]

    assert listed == {
        "actors": [
            {
                "actorAddress": "@(local/a)",
                "capabilities": ["x"],
                "metadata": {"deep": {"er": [1.0, None]}},
                "connectionId": peer.session.id,
                "registeredAt": shell.now,
                "expiresAt": shell.now + 300_000,
                "version": 1,
            }
        ],
        "total": 1,
        "offset": 0,
        "limit": 100,
        "hasMore": False,
    }


def test_pages_of_the_list_cover_everybody_once() -> None:
    host = crowd(sized(1_000), 90)
    seen: list[str] = []

    has_more = True
    while has_more:
        page = host.ask("hub:list_actors", {"offset": len(seen), "limit": 10})["payload"]
        assert (page["total"], len(page["actors"])) == (90, 10)
        seen += [actor["actorAddress"] for actor in page["actors"]]
        has_more = page["hasMore"]

    assert seen == [f"@(crowd/{number})" for number in range(90)]


@pytest.mark.parametrize(
    ("payload", "offset", "limit", "count"),
    [
        ({"offset": -3}, 0, 100, 5),
        ({"offset": 3}, 3, 100, 2),
        ({"offset": 99, "limit": 500}, 99, 100, 0),
        ({"limit": 0}, 0, 1, 1),
        ({"offset": 2**53, "limit": -1}, 2**53, 1, 0),
    ],
)
def test_pages_outside_the_list_are_empty_and_limits_are_clamped(
    payload: object, offset: int, limit: int, count: int
) -> None:
    page = crowd(sized(1_000), 5).ask("hub:list_actors", payload)["payload"]

    assert (page["offset"], page["limit"], len(page["actors"])) == (offset, limit, count)
