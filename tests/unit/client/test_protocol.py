"""The client's conversation with its hub: hello, restoring, answers, heartbeats, goodbye."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.client.protocol.effects import Answered, Arrived, Drop, Ready, Stop, Warned
from signalhub.client.protocol.protocol import FINAL_REASONS, LinkPhase
from signalhub.client.requests import ListActors, Register
from signalhub.wire.errors import GaveUp, OutcomeUnknown, Refused, Unavailable, UnknownActor
from tests.support.memory.client import ALICE, BOB, HUB, Scene

SECOND = "@(demo/second)"


@pytest.fixture
def scene() -> Scene:
    """A client that is not connected yet."""
    return Scene()


@pytest.fixture
def ready() -> Scene:
    scene = Scene()
    scene.connect(heartbeatInterval=20_000)
    return scene


def test_a_hello_comes_from_a_temporary_address_and_carries_the_token(scene: Scene) -> None:
    scene.effects += scene.protocol.opened("secret", scene.now)
    hello = scene.sent_one("hub:connect")
    scene.lose()

    assert hello["from"].startswith("@(local/client-")
    assert scene.open()["from"] != hello["from"]
    assert (hello["to"], hello["pattern"], hello["payload"], hello["ttl"]) == (
        HUB, "ask", None, 5000,
    )  # fmt: skip
    metadata = hello["metadata"]
    assert (metadata["protocolVersion"], metadata["authToken"]) == ("0.1.0", "secret")
    assert metadata["capabilities"] == ["send", "receive"]
    scene.lose()
    scene.membership.acknowledges = True
    assert scene.open()["metadata"]["capabilities"] == ["send", "receive", "ack"]


def test_it_is_ready_once_its_address_is_registered(scene: Scene) -> None:
    assert scene.protocol.welcome.durability is None
    scene.open()
    scene.hear("hub:connected", {"sessionId": "s-9"})
    assert scene.protocol.phase is LinkPhase.GREETING, "that was for somebody else"
    scene.lose()
    (register,) = scene.greet(capabilities={"durable": True, "durability": "fsync"})
    assert (register["type"], register["from"]) == ("hub:register", ALICE)
    assert register["payload"]["capabilities"] == ["chat"]
    assert not scene.of(Ready)

    scene.hear("hub:registered", {"actorAddress": ALICE}, register)

    assert scene.of(Ready) == [Ready("s-1")]
    assert scene.protocol.welcome.durability == "fsync"


@pytest.mark.parametrize("code", ["version_mismatch", "unauthorized", "registry_full"])
def test_a_refused_first_hello_ends_the_client_with_that_refusal(scene: Scene, code: str) -> None:
    scene.refuse(scene.open(), code, resolution="do this", retryable=code == "registry_full")

    error = scene.stop_error()
    assert isinstance(error, Refused)
    assert (error.code, error.resolution) == (code, "do this")


def test_a_refused_later_hello_ends_the_client_unless_it_may_pass(ready: Scene) -> None:
    ready.lose()
    ready.refuse(ready.open(), "registry_full", retryable=True)
    assert "registry_full" in ready.of(Drop)[-1].reason
    assert not ready.of(Stop)
    ready.lose()

    ready.refuse(ready.open(), "unauthorized")

    assert isinstance(ready.stop_error(), GaveUp)
    assert "unauthorized" in str(ready.stop_error())


@pytest.mark.parametrize("is_greeted", [False, True])
def test_a_silent_hub_is_dropped_after_five_seconds(scene: Scene, is_greeted: bool) -> None:
    if is_greeted:
        scene.greet()
    else:
        scene.open()

    scene.time(4.9)
    assert not scene.of(Drop)
    scene.time(0.1)

    assert "5 s" in scene.of(Drop)[-1].reason


def test_registrations_then_subscriptions_are_restored_before_anything_else(ready: Scene) -> None:
    for topic in ("b", "gone", "a/+"):
        ready.subscribe(topic)
    ready.membership.registered(Register("@(demo/left)", [], {}))
    ready.membership.registered(Register(SECOND, ["x"], {"k": 1}, 60.0))
    ready.membership.subscribed("@(demo/left)", "theirs")
    ready.membership.unsubscribed(ALICE, "gone")
    ready.membership.unregistered("@(demo/left)")
    ready.lose()
    ready.tell("waits")

    restoring = ready.greet()

    members = {"capabilities": ["x"], "metadata": {"k": 1}, "ttlSeconds": 60.0}
    assert [each["payload"].get("topic") for each in restoring] == [None, None, "b", "a/+"]
    assert restoring[0]["payload"]["actorAddress"] == ALICE
    assert restoring[1]["payload"] == {"actorAddress": SECOND} | members
    for request in restoring:
        assert ready.sent() == []
        kind = "hub:subscribed" if request["type"] == "hub:subscribe" else "hub:registered"
        ready.hear(kind, {}, request)
    ready.wrote("waits")


def test_a_subscription_that_cannot_be_restored_ends_the_client(ready: Scene) -> None:
    ready.subscribe("secret/#")
    ready.lose()
    register, subscribe = ready.greet()
    ready.hear("hub:registered", {}, register)

    ready.refuse(subscribe, "unauthorized")

    assert isinstance(ready.stop_error(), GaveUp)


def test_an_answer_is_matched_by_correlation_and_type(ready: Scene) -> None:
    request = ready.publish("x")
    published = ready.sent_one("hub:publish")

    ready.hear("hub:mystery", {}, published)
    ready.hear("hub:published", {"topic": "news"})
    ready.hear("item", "x", published, metadata={"topic": "news", "publication": True})
    assert not ready.is_done(request), "not even by the copy of our own publication"
    ready.hear("hub:published", {"topic": "news"}, published)

    assert ready.of(Answered) == [Answered(request.id, {"topic": "news"}, 1)]
    (arrived,) = ready.of(Arrived)
    assert (arrived.message.topic, arrived.message.payload) == ("news", "x")


@pytest.mark.parametrize(
    ("type", "code", "kind"),
    [
        ("hub:error", "message_expired", Refused),
        ("hub:unknown_actor", None, UnknownActor),
        ("hub:error", "unknown_actor", UnknownActor),
        ("hub:error", "timeout", OutcomeUnknown),
        ("hub:error", "storage_failed", OutcomeUnknown),
    ],
)
def test_a_refusal_is_the_error_it_stands_for_with_everything_the_hub_said(
    ready: Scene, type: str, code: str | None, kind: type[Exception]
) -> None:
    request = ready.ask()
    facts: dict[str, Any] = {"resolution": "hurry", "retryable": True, "details": {"ttl": 5}}

    payload = {"code": code, "message": "so it is"} | facts
    ready.hear(type, payload, ready.sent_one("hub:send"))

    error = ready.error_of(request)
    assert isinstance(error, kind)
    assert "so it is" in str(error)
    if isinstance(error, Refused):
        assert error.code == (code or type.removeprefix("hub:"))
        assert {name: getattr(error, name) for name in facts} == facts


def test_a_message_is_handed_over_with_all_its_members(ready: Scene) -> None:
    members: dict[str, Any] = {
        "id": "m-1",
        "metadata": {"traceId": "t", "originalMessageId": "orig"},
        "ttl": 500,
    }

    ready.hear("chat:line", {"text": "hi"}, **members | {"from": BOB})

    message = ready.of(Arrived)[0].message
    assert (message.sender, message.to, message.type) == (BOB, ALICE, "chat:line")
    assert (message.payload, message.topic, message.original_id) == ({"text": "hi"}, None, "orig")
    assert {name: getattr(message, name) for name in members} == members


def test_frames_that_are_not_messages_are_reported_and_newer_words_are_ignored(
    ready: Scene,
) -> None:
    broken = [b"", b"[]", b"null", b'{"type":1}', b'{"payload":{}}', b"\xff", b"[" * 100_000]
    for frame in (*broken, b'{"type":"pong"}', b'{"type":"hub:later","payload":7}'):
        ready.hear_raw(frame)

    assert len(ready.of(Warned)) == len(broken)
    assert [each.message.type for each in ready.of(Arrived)] == ["pong"]
    assert ready.protocol.phase is LinkPhase.READY


def test_answers_of_the_wrong_shape_do_no_harm(scene: Scene) -> None:
    (register,) = scene.greet(heartbeatInterval="soon", maxMessageSize=-5, capabilities=[1])
    scene.hear("hub:registered", None, register, metadata=None)

    scene.hear("hub:pause", "no object")
    scene.hear("hub:resume", ["no", "object"])
    scene.hear("hub:error", 5)
    scene.hear("hub:disconnect", None)

    assert scene.of(Ready)
    assert scene.of(Drop)


def test_a_heartbeat_is_sent_after_the_advertised_silence_and_must_be_answered(
    ready: Scene,
) -> None:
    for _ in range(3):
        ready.time(19.9)
        assert ready.sent() == []
        ready.time(0.1)
        beat = ready.sent_one("hub:heartbeat")
        assert (beat["pattern"], beat["payload"]) == ("tell", {"timestamp": beat["timestamp"]})
        ready.hear("hub:heartbeat_ack", {}, beat)
    ready.time(29.9)
    ready.hear("hub:heartbeat_ack", {}, {"id": "an older one"})
    ready.hear("hub:heartbeat_ack", {})
    assert not ready.of(Drop)

    ready.time(0.2)

    assert "heartbeat" in ready.of(Drop)[-1].reason


@pytest.mark.parametrize(("is_sending", "is_hearing"), [(True, True), (True, False), (False, True)])
def test_only_traffic_in_both_directions_replaces_heartbeats(
    ready: Scene, is_sending: bool, is_hearing: bool
) -> None:
    for _ in range(5):
        ready.time(9)
        if is_sending:
            ready.tell()
        if is_hearing:
            ready.hear("chat", None)

    has_beaten = "hub:heartbeat" in [each["type"] for each in ready.sent()]
    assert has_beaten is not (is_sending and is_hearing)


def test_a_link_is_not_dead_while_we_do_not_read_it(ready: Scene) -> None:
    ready.time(20)
    ready.read(False)

    ready.time(100)
    assert not ready.of(Drop)
    ready.read(True)
    ready.time(10)

    assert ready.of(Drop)


def test_a_short_lease_is_renewed_three_times_before_it_ends() -> None:
    scene = Scene(lease_s=30.0)
    scene.connect(heartbeatInterval=100_000)

    scene.time(10)

    scene.sent_one("hub:heartbeat")


@pytest.mark.parametrize(
    "reason", [*sorted(FINAL_REASONS), "server_shutdown", "shard_rebalancing", "something_new"]
)
def test_only_final_reasons_to_disconnect_end_the_client(ready: Scene, reason: str) -> None:
    ready.hear("hub:disconnect", {"reason": reason, "message": "so there"})

    if reason in FINAL_REASONS:
        assert isinstance(ready.stop_error(), GaveUp)
        assert f"{reason}: so there" in str(ready.stop_error())
        with pytest.raises(GaveUp, match=reason):
            ready.tell()
    else:
        assert not ready.of(Stop)
        assert reason in ready.of(Drop)[0].reason


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_goodbye_is_said_and_ends_with_its_answer_or_the_link(
    ready: Scene, is_answered: bool
) -> None:
    ready.leave()
    goodbye = ready.sent_one("hub:disconnect")
    assert (goodbye["pattern"], goodbye["ttl"]) == ("ask", 500)
    assert not ready.of(Stop)
    with pytest.raises(Unavailable, match="closed"):
        ready.tell()

    if is_answered:
        ready.hear("hub:disconnect", {"acknowledged": True}, goodbye)
    else:
        ready.lose()

    assert not isinstance(ready.stop_error(), GaveUp)


def test_leaving_without_a_connection_is_immediate(ready: Scene) -> None:
    ready.play("lose; tell x; leave; fails x Unavailable")

    assert len(ready.of(Stop)) == 1


def test_giving_up_fails_what_waits_and_leaves_open_what_was_sent(ready: Scene) -> None:
    ready.ask("asked")
    listed = ready.submit(ListActors(0, 10))
    ready.play("pause; tell told")

    ready.effects += ready.protocol.stop(GaveUp("the end"))

    ready.play("fails asked OutcomeUnknown; fails told GaveUp; failed 3")
    assert isinstance(ready.error_of(listed), GaveUp)


def test_a_message_above_the_advertised_size_is_refused_before_it_is_sent(scene: Scene) -> None:
    scene.connect(maxMessageSize=1000)

    with pytest.raises(Refused, match="at most 1000") as caught:
        scene.tell("x" * 1000)

    assert caught.value.code == "message_too_large"
    assert scene.sent() == []
