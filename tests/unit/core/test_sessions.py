"""Sessions: the hello, who a session is, and what ends it."""

from __future__ import annotations

import pytest

from signalhub.core.sessions.session import SessionState
from signalhub.settings.model import Settings
from signalhub.wire.envelope import RAW_PING
from tests.support.memory.shell import HELLO, MemoryShell, envelope

REQUESTS = [
    "hub:heartbeat",
    "hub:disconnect",
    "hub:refresh_token",
    "hub:queue_stats",
    "hub:metrics",
    "hub:register",
    "hub:unregister",
    "hub:renew",
    "hub:discover",
    "hub:list_actors",
    "hub:send",
    "hub:broadcast",
    "hub:publish",
    "hub:subscribe",
    "hub:unsubscribe",
    "app:anything",
]


def test_the_welcome_tells_the_client_what_it_needs_to_know() -> None:
    shell = MemoryShell(Settings(message_rate=50.0, message_burst=70))
    peer = shell.open()

    welcome = peer.hello("@(local/planner)", id="h1")

    assert welcome["type"] == "hub:connected"
    assert welcome["to"] == "@(local/planner)"
    assert welcome["correlationId"] == "h1"
    assert welcome["metadata"]["actorIdentity"] == "@(local/planner)"
    assert welcome["payload"] == {
        "sessionId": peer.session.id,
        "serverVersion": "0.1.0",
        "serverTime": shell.now,
        "maxMessageSize": 1_048_576,
        "heartbeatInterval": 100_000,
        "capabilities": {
            "maxActorsPerInstance": 50_000,
            "supportsBackpressure": True,
            "supportedContentTypes": ["application/json"],
            "messageRate": 50.0,
            "messageBurst": 70,
            "durable": True,
            "durability": "fsync",
        },
    }


def test_sessions_have_ids_of_their_own() -> None:
    shell = MemoryShell()

    ids = {shell.connect("@(local/same)").session.id for _ in range(10)}

    assert len(ids) == 10


@pytest.mark.parametrize("type", REQUESTS)
def test_nothing_but_the_hello_is_served_on_a_new_socket(type: str) -> None:
    shell = MemoryShell()
    peer = shell.open()

    reply = peer.ask(type, {"topic": "t", "type": "t", "pattern": "*", "actorAddress": "@(a/b)"})

    assert reply["type"] == "hub:error"
    assert reply["payload"]["code"] == "unauthorized"
    assert peer.closed is None
    assert peer.session.state is SessionState.CONNECTING
    assert len(shell.hub.registry) == 0


@pytest.mark.parametrize("version", ["0", "0.1.0", "0.9.7", "0.x"])
def test_any_version_of_the_same_major_is_welcome(version: str) -> None:
    peer = MemoryShell().open()

    assert peer.hello("@(a/b)", metadata=HELLO | {"protocolVersion": version})["type"] == (
        "hub:connected"
    )


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        (HELLO | {"protocolVersion": "1.0.0"}, "version_mismatch"),
        (HELLO | {"protocolVersion": ""}, "version_mismatch"),
        ({"capabilities": ["send"]}, "version_mismatch"),
        (HELLO | {"protocolVersion": None}, "version_mismatch"),
        (HELLO | {"protocolVersion": 0}, "internal_error"),
        (HELLO | {"capabilities": []}, "unauthorized"),
        (HELLO | {"capabilities": "send"}, "unauthorized"),
        ({"protocolVersion": "0.1.0"}, "unauthorized"),
        # The version is looked at first.
        ({"protocolVersion": "2"}, "version_mismatch"),
        (None, "internal_error"),
        ([], "internal_error"),
        ("0.1.0", "internal_error"),
    ],
)
def test_a_bad_hello_is_refused_and_may_be_repeated_on_the_same_socket(
    metadata: object, code: str
) -> None:
    peer = MemoryShell().open()

    refused = peer.hello("@(a/b)", metadata=metadata)
    welcome = peer.hello("@(a/b)")

    assert refused["payload"]["code"] == code
    assert peer.closed is None
    assert welcome["type"] == "hub:connected"


def test_a_version_mismatch_says_which_versions_would_do() -> None:
    peer = MemoryShell().open()

    refused = peer.hello("@(a/b)", metadata=HELLO | {"protocolVersion": "7.1"})

    assert refused["payload"]["details"] == {
        "clientVersion": "7.1",
        "serverVersion": "0.1.0",
        "supportedVersions": ["0.1.0"],
    }


def test_the_hello_is_answered_even_as_a_tell() -> None:
    peer = MemoryShell().open()

    (welcome,) = peer.tell("hub:connect", sender="@(a/b)", metadata=HELLO)

    assert welcome["type"] == "hub:connected"


def test_a_second_hello_keeps_the_session_and_resets_its_identity() -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/one)")
    peer.register("@(local/two)")

    welcome = peer.hello("@(local/three)")

    assert welcome["payload"]["sessionId"] == peer.session.id
    assert welcome["metadata"]["actorIdentity"] == "@(local/three)"
    assert shell.hub.registry.find("@(local/two)", shell.now) is not None


def test_a_failed_second_hello_leaves_the_session_connected() -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/one)")

    peer.hello("@(local/one)", metadata=HELLO | {"protocolVersion": "9"})

    assert peer.session.state is SessionState.CONNECTED
    assert peer.ask("hub:heartbeat")["type"] == "hub:heartbeat_ack"


def test_the_last_registered_address_is_the_identity() -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/temporary)")

    peer.register("@(local/one)")
    peer.register("@(local/two)")

    assert peer.session.identity == "@(local/two)"
    assert shell.hub.identities.get("@(local/temporary)") == []
    assert shell.hub.identities.get("@(local/one)") == []
    assert shell.hub.identities.get("@(local/two)") == [peer.session]


def test_a_session_that_leaves_its_address_goes_by_the_one_before() -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/temporary)")
    peer.register("@(local/one)")
    peer.register("@(local/two)")

    names = []
    for address in ("@(local/two)", "@(local/one)"):
        peer.tell("hub:unregister", {"actorAddress": address})
        names.append(peer.session.identity)
    shell.join("@(local/two)")

    assert names == ["@(local/one)", "@(local/temporary)"]
    assert peer.closed is None


def test_leaving_another_address_than_its_name_leaves_the_name_alone() -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/temporary)")
    peer.register("@(local/one)")
    peer.register("@(local/two)")
    peer.register("@(local/one)")

    peer.tell("hub:unregister", {"actorAddress": "@(local/two)"})

    assert peer.session.identity == "@(local/one)"


def test_a_shared_name_is_kept_as_long_as_anybody_goes_by_it() -> None:
    shell = MemoryShell()
    first, second, third = (shell.connect("@(local/same)") for _ in range(3))

    second.drop()
    sharing = shell.hub.identities.get("@(local/same)")
    first.hello("@(local/other)")
    third.drop()

    assert sharing == [first.session, third.session]
    assert shell.hub.identities.get("@(local/same)") == []
    assert len(shell.hub.identities) == 1


def test_one_session_may_serve_many_addresses() -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/host)")
    for name in ("a", "b", "c"):
        peer.register(f"@(local/{name})")
    sender = shell.connect("@(local/sender)")
    peer.take()

    for name in ("c", "a", "b"):
        sender.send(f"@(local/{name})", name)

    assert [(one["to"], one["payload"]) for one in peer.heard()] == [
        ("@(local/c)", "c"),
        ("@(local/a)", "a"),
        ("@(local/b)", "b"),
    ]


@pytest.mark.parametrize(
    ("payload", "echoed"),
    [
        ({"timestamp": 12345}, 12345),
        ({"timestamp": 1.5}, 1.5),
        (None, 777),
        ({}, 777),
        ([1], 777),
    ],
)
def test_a_heartbeat_is_answered_with_its_time_and_ours(payload: object, echoed: object) -> None:
    shell = MemoryShell()
    peer = shell.connect()

    (reply,) = peer.tell("hub:heartbeat", payload, timestamp=777)

    assert reply["type"] == "hub:heartbeat_ack"
    assert reply["payload"] == {"timestamp": echoed, "serverTime": shell.now}


def test_a_raw_ping_is_answered_before_the_hello_and_is_no_sign_of_life() -> None:
    shell = MemoryShell()
    peer = shell.open()
    peer.write(RAW_PING)
    peer.hello("@(local/a)")
    peer.register(ttlSeconds=10)
    shell.clock.advance(9)
    peer.write(RAW_PING)
    shell.clock.advance(1)

    assert [message["type"] for message in peer.received].count("pong") == 2
    assert shell.hub.registry.find("@(local/a)", shell.now) is None


@pytest.mark.parametrize("frame", [b'{"type": "ping"}', b'{"type":"pung"}'])
def test_what_merely_looks_like_a_ping_is_none(frame: bytes) -> None:
    peer = MemoryShell().connect()

    peer.write(frame)

    assert peer.received[-1]["payload"]["code"] == "internal_error"


def test_disconnect_is_acknowledged_before_the_socket_closes() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")

    reply = peer.ask("hub:disconnect")

    assert reply["type"] == "hub:disconnect"
    assert reply["payload"] == {
        "acknowledged": True,
        "sessionId": peer.session.id,
        "cleanedUp": True,
    }
    assert peer.received[-1] is reply
    assert peer.closed == (1000, "client requested")
    assert len(shell.hub.registry) == 0
    assert shell.rows == {}


def test_a_closed_session_is_deaf() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    peer.ask("hub:disconnect")
    seen = len(peer.received)

    peer.write(envelope("hub:register", {"actorAddress": "@(local/a)", "capabilities": []}))

    assert len(peer.received) == seen
    assert len(shell.hub.registry) == 0


def test_cleaning_up_twice_is_harmless() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")

    peer.drop()
    peer.drop()

    assert shell.tally.connections_opened == shell.tally.connections_closed == 1
    assert len(shell.hub.identities) == 0
    assert shell.written == [("persist", "@(local/a)"), ("forget", "@(local/a)")]


def test_a_dropped_socket_takes_its_registrations_and_subscriptions_along() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    peer.register("@(local/b)")
    peer.ask("hub:subscribe", {"topic": "prices"})
    other = shell.join("@(local/other)")

    peer.drop()

    found = other.ask("hub:discover", {"pattern": "*"})["payload"]["actors"]
    published = other.ask("hub:publish", {"topic": "prices", "type": "t"})
    assert [actor["address"] for actor in found] == ["@(local/other)"]
    assert published["payload"]["subscriberCount"] == 0
    assert shell.hub.topics.audience("prices").recipients == []
    assert shell.rows.keys() == {"@(local/other)"}
