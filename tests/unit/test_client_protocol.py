"""The client's conversation with its hub: hello, restoring, answers, heartbeats, goodbye."""

from __future__ import annotations

import pytest

from signalhub.client.protocol.effects import Answered, Arrived, Drop, Failed, Ready, Stop, Warned
from signalhub.client.protocol.protocol import FINAL_REASONS, LinkPhase
from signalhub.client.requests import ListActors, Register
from signalhub.wire.errors import GaveUp, OutcomeUnknown, Refused, Unavailable, UnknownActor
from tests.support.memory.client import ALICE, BOB, HUB, Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_hello_comes_from_a_temporary_address_and_carries_the_token(scene: Scene) -> None:
    scene.effects += scene.protocol.opened("secret", scene.now)

    hello = scene.sent_one("hub:connect")
    assert hello["from"].startswith("@(local/client-")
    assert hello["to"] == HUB
    assert hello["pattern"] == "ask"
    assert hello["payload"] is None
    assert hello["ttl"] == 5000
    assert hello["metadata"]["protocolVersion"] == "0.1.0"
    assert hello["metadata"]["authToken"] == "secret"
    assert hello["metadata"]["capabilities"]


def test_every_frame_has_the_eleven_members(scene: Scene) -> None:
    hello = scene.open()

    assert set(hello) == {
        "id", "from", "to", "type", "payload", "pattern",
        "correlationId", "timestamp", "metadata", "ttl", "signature",
    }  # fmt: skip


def test_two_connections_greet_from_different_addresses(scene: Scene) -> None:
    first = scene.open()
    scene.lose()
    second = scene.open()

    assert first["from"] != second["from"]


def test_it_is_ready_once_its_address_is_registered(scene: Scene) -> None:
    scene.welcome(scene.open())
    register = scene.sent_one("hub:register")
    assert register["from"] == ALICE
    assert register["payload"]["actorAddress"] == ALICE
    assert register["payload"]["capabilities"] == ["chat"]
    assert not scene.of(Ready)

    scene.hear("hub:registered", {"actorAddress": ALICE}, register)

    assert scene.of(Ready) == [Ready("s-1")]


def test_a_welcome_to_somebody_else_is_ignored(scene: Scene) -> None:
    scene.open()

    scene.hear("hub:connected", {"sessionId": "s-9"})

    assert scene.protocol.phase is LinkPhase.GREETING


@pytest.mark.parametrize("code", ["version_mismatch", "unauthorized", "registry_full"])
def test_a_refused_first_hello_ends_the_client_with_that_refusal(scene: Scene, code: str) -> None:
    scene.refuse(scene.open(), code, resolution="do this", retryable=code == "registry_full")

    error = scene.stop_error()
    assert isinstance(error, Refused)
    assert error.code == code
    assert error.resolution == "do this"


def test_a_refused_later_hello_gives_up_and_says_why(scene: Scene) -> None:
    scene.connect()
    scene.lose()

    scene.refuse(scene.open(), "unauthorized")

    assert isinstance(scene.stop_error(), GaveUp)
    assert "unauthorized" in str(scene.stop_error())


def test_a_later_refusal_that_may_pass_only_drops_the_link(scene: Scene) -> None:
    scene.connect()
    scene.lose()

    scene.refuse(scene.open(), "registry_full", retryable=True)

    assert not scene.of(Stop)
    assert "registry_full" in scene.of(Drop)[-1].reason


def test_a_silent_hub_is_dropped_after_five_seconds(scene: Scene) -> None:
    scene.open()

    scene.pass_time(4.9)
    assert not scene.of(Drop)
    scene.pass_time(0.1)

    assert "5 s" in scene.of(Drop)[-1].reason


def test_registrations_then_subscriptions_are_restored_in_their_order(scene: Scene) -> None:
    scene.connect()
    scene.subscribe("b")
    scene.subscribe("a/+")
    scene.membership.registered(Register("@(demo/second)", ["x"], {"k": 1}, 60.0))
    scene.lose()

    scene.welcome(scene.open())

    restoring = scene.sent()
    assert [each["type"] for each in restoring] == ["hub:register"] * 2 + ["hub:subscribe"] * 2
    assert restoring[1]["payload"] == {
        "actorAddress": "@(demo/second)",
        "capabilities": ["x"],
        "metadata": {"k": 1},
        "ttlSeconds": 60.0,
    }
    assert [each["payload"]["topic"] for each in restoring[2:]] == ["b", "a/+"]


def test_what_was_given_up_is_not_restored(scene: Scene) -> None:
    scene.connect()
    scene.subscribe("a")
    scene.subscribe("b")
    scene.membership.unsubscribed(ALICE, "a")
    scene.lose()

    scene.welcome(scene.open())

    topics = [each["payload"].get("topic") for each in scene.sent()]
    assert topics == [None, "b"]


def test_an_address_given_up_takes_its_subscriptions_along(scene: Scene) -> None:
    scene.connect()
    scene.membership.registered(Register("@(demo/second)", [], {}))
    scene.membership.subscribed("@(demo/second)", "theirs")
    scene.membership.subscribed(ALICE, "ours")

    scene.membership.unregistered("@(demo/second)")
    scene.lose()
    scene.welcome(scene.open())

    subjects = [
        each["payload"].get("topic") or each["payload"]["actorAddress"] for each in scene.sent()
    ]
    assert subjects == [ALICE, "ours"]


def test_nothing_else_is_sent_before_everything_is_restored(scene: Scene) -> None:
    scene.connect()
    scene.subscribe("a")
    scene.lose()
    scene.tell("waits")
    scene.welcome(scene.open())
    register, subscribe = scene.sent()

    scene.hear("hub:registered", {}, register)
    assert scene.sent() == []
    scene.hear("hub:subscribed", {}, subscribe)

    assert scene.sent_data() == ["waits"]


def test_a_subscription_that_cannot_be_restored_ends_the_client(scene: Scene) -> None:
    scene.connect()
    scene.subscribe("secret/#")
    scene.lose()
    scene.welcome(scene.open())
    register, subscribe = scene.sent()
    scene.hear("hub:registered", {}, register)

    scene.refuse(subscribe, "unauthorized")

    assert isinstance(scene.stop_error(), GaveUp)


def test_an_answer_is_matched_by_correlation_and_type(scene: Scene) -> None:
    scene.connect()
    request = scene.ask("x")
    asked = scene.sent_one("hub:send")

    scene.hear("hub:mystery", {}, asked)
    scene.hear("hub:delivery_ack", {"messageId": "other"})
    assert not scene.is_done(request)
    scene.hear("hub:delivery_ack", {"messageId": asked["id"]}, asked)

    assert scene.of(Answered) == [Answered(request.id, {"messageId": asked["id"]}, 1)]


def test_a_fan_out_copy_that_carries_our_own_id_is_a_message_and_no_answer(scene: Scene) -> None:
    scene.connect()
    request = scene.publish("x")
    published = scene.sent_one("hub:publish")

    metadata = {"topic": "news", "publication": True}
    scene.hear("item", "x", published, metadata=metadata)

    assert not scene.is_done(request)
    (arrived,) = scene.of(Arrived)
    assert arrived.message.topic == "news"
    assert arrived.message.payload == "x"


@pytest.mark.parametrize("type", ["hub:unknown_actor", "hub:error"])
def test_an_ask_to_nobody_fails_as_unknown_actor(scene: Scene, type: str) -> None:
    scene.connect()
    request = scene.ask()

    payload = {"actorAddress": BOB, "message": "not registered"}
    if type == "hub:error":
        payload["code"] = "unknown_actor"
    scene.hear(type, payload, scene.sent_one("hub:send"))

    assert isinstance(scene.error_of(request), UnknownActor)
    assert scene.error_of(request).code == "unknown_actor"


def test_a_refusal_carries_everything_the_hub_said(scene: Scene) -> None:
    scene.connect()
    request = scene.ask()

    scene.refuse(
        scene.sent_one("hub:send"),
        "message_expired",
        resolution="be quicker",
        retryable=True,
        details={"ttl": 5},
    )

    error = scene.error_of(request)
    assert isinstance(error, Refused)
    assert (error.code, error.resolution, error.retryable, error.details) == (
        "message_expired", "be quicker", True, {"ttl": 5},
    )  # fmt: skip


@pytest.mark.parametrize("code", ["timeout", "storage_failed"])
def test_a_refusal_by_a_hub_that_does_not_know_is_an_unknown_outcome(
    scene: Scene, code: str
) -> None:
    scene.connect()
    request = scene.ask()

    scene.refuse(scene.sent_one("hub:send"), code)

    assert isinstance(scene.error_of(request), OutcomeUnknown)


def test_a_message_is_handed_over_with_all_its_members(scene: Scene) -> None:
    scene.connect()

    metadata = {"traceId": "t", "originalMessageId": "orig"}
    scene.hear("chat:line", {"text": "hi"}, id="m-1", sender=BOB, metadata=metadata, ttl=500)

    message = scene.of(Arrived)[0].message
    assert (message.id, message.sender, message.to, message.type) == (
        "m-1",
        BOB,
        ALICE,
        "chat:line",
    )
    assert message.payload == {"text": "hi"}
    assert message.metadata == metadata
    assert message.original_id == "orig"
    assert message.ttl == 500
    assert message.topic is None


@pytest.mark.parametrize(
    "frame", [b"", b"[]", b"null", b'{"type":1}', b'{"payload":{}}', b"{", b"[" * 100_000]
)
def test_a_frame_that_is_no_message_is_reported_and_survived(scene: Scene, frame: bytes) -> None:
    scene.connect()

    scene.hear_raw(frame)

    assert len(scene.of(Warned)) == 1
    assert scene.protocol.phase is LinkPhase.READY


@pytest.mark.parametrize("frame", [b'{"type":"pong"}', b'{"type":"hub:later","payload":7}'])
def test_words_of_newer_hubs_are_ignored(scene: Scene, frame: bytes) -> None:
    scene.connect()
    scene.effects.clear()

    scene.hear_raw(frame)

    assert not [e for e in scene.effects if not isinstance(e, Arrived)]


def test_answers_of_the_wrong_shape_do_no_harm(scene: Scene) -> None:
    scene.welcome(scene.open(), heartbeatInterval="soon", maxMessageSize=-5, capabilities=[1])
    register = scene.sent_one("hub:register")
    scene.hear("hub:registered", None, register, metadata=None)

    scene.hear("hub:pause", "no object")
    scene.hear("hub:resume", ["no", "object"])
    scene.hear("hub:error", 5)
    scene.hear("hub:disconnect", None)

    assert scene.of(Ready)
    assert scene.of(Drop)


def test_heartbeat_is_sent_when_the_link_was_silent_for_the_advertised_interval(
    scene: Scene,
) -> None:
    scene.connect(heartbeatInterval=20_000)

    scene.pass_time(19.9)
    assert scene.sent() == []
    scene.pass_time(0.2)

    beat = scene.sent_one("hub:heartbeat")
    assert beat["pattern"] == "tell"
    assert beat["payload"] == {"timestamp": beat["timestamp"]}


def test_heartbeat_is_skipped_while_traffic_flows_both_ways(scene: Scene) -> None:
    scene.connect(heartbeatInterval=20_000)

    for _ in range(10):
        scene.pass_time(10)
        scene.tell()
        scene.hear("chat", None)

    assert [each["type"] for each in scene.sent()] == ["hub:send"] * 10


@pytest.mark.parametrize("is_sending", [True, False])
def test_traffic_in_one_direction_alone_does_not_replace_heartbeats(
    scene: Scene, is_sending: bool
) -> None:
    scene.connect(heartbeatInterval=20_000)

    for _ in range(5):
        scene.pass_time(9)
        if is_sending:
            scene.tell()
        else:
            scene.hear("chat", None)

    assert "hub:heartbeat" in [each["type"] for each in scene.sent()]


def test_link_is_dead_without_an_answer_ten_seconds_after_the_heartbeat(scene: Scene) -> None:
    scene.connect(heartbeatInterval=20_000)

    scene.pass_time(29.9)
    assert not scene.of(Drop)
    scene.pass_time(0.2)

    assert "heartbeat" in scene.of(Drop)[-1].reason


def test_only_the_answer_to_the_last_heartbeat_counts(scene: Scene) -> None:
    scene.connect(heartbeatInterval=20_000)
    scene.pass_time(20)
    scene.sent_one("hub:heartbeat")

    scene.hear("hub:heartbeat_ack", {}, {"id": "an older one"})
    scene.hear("hub:heartbeat_ack", {})
    scene.pass_time(10)

    assert scene.of(Drop)


def test_answered_heartbeats_keep_the_link_alive_for_ever(scene: Scene) -> None:
    scene.connect(heartbeatInterval=20_000)

    for _ in range(50):
        scene.pass_time(20)
        scene.hear("hub:heartbeat_ack", {}, scene.sent_one("hub:heartbeat"))

    assert not scene.of(Drop)


def test_link_is_not_dead_while_we_do_not_read_it(scene: Scene) -> None:
    scene.connect(heartbeatInterval=20_000)
    scene.pass_time(20)
    scene.protocol.reading(False, scene.now)

    scene.pass_time(100)
    assert not scene.of(Drop)
    scene.protocol.reading(True, scene.now)
    scene.pass_time(10)

    assert scene.of(Drop)


def test_a_short_lease_is_renewed_three_times_before_it_ends() -> None:
    scene = Scene(lease_s=30.0)
    scene.connect(heartbeatInterval=100_000)

    scene.pass_time(10)

    scene.sent_one("hub:heartbeat")


@pytest.mark.parametrize("reason", sorted(FINAL_REASONS))
def test_final_reasons_end_the_client(scene: Scene, reason: str) -> None:
    scene.connect()

    scene.hear("hub:disconnect", {"reason": reason, "message": "so there"})

    assert isinstance(scene.stop_error(), GaveUp)
    assert reason in str(scene.stop_error())
    assert "so there" in str(scene.stop_error())


@pytest.mark.parametrize("reason", ["server_shutdown", "shard_rebalancing", "something_new"])
def test_other_reasons_only_drop_the_link(scene: Scene, reason: str) -> None:
    scene.connect()

    scene.hear("hub:disconnect", {"reason": reason})

    assert not scene.of(Stop)
    assert reason in scene.of(Drop)[0].reason


def test_goodbye_is_said_and_answered(scene: Scene) -> None:
    scene.connect()

    scene.effects += scene.protocol.leave(scene.now)
    goodbye = scene.sent_one("hub:disconnect")
    assert not scene.of(Stop)
    scene.hear("hub:disconnect", {"acknowledged": True}, goodbye)

    assert goodbye["pattern"] == "ask"
    assert not isinstance(scene.stop_error(), GaveUp)


def test_a_link_lost_during_goodbye_ends_the_client_all_the_same(scene: Scene) -> None:
    scene.connect()
    scene.effects += scene.protocol.leave(scene.now)

    scene.lose()

    assert len(scene.of(Stop)) == 1


def test_leaving_without_a_connection_is_immediate(scene: Scene) -> None:
    scene.connect()
    scene.lose()
    request = scene.tell()

    scene.effects += scene.protocol.leave(scene.now)

    assert len(scene.of(Stop)) == 1
    assert isinstance(scene.error_of(request), Unavailable)


def test_nothing_can_be_submitted_after_the_end(scene: Scene) -> None:
    scene.connect()
    scene.hear("hub:disconnect", {"reason": "duplicate_connection"})

    with pytest.raises(GaveUp, match="duplicate_connection"):
        scene.tell()


def test_nothing_can_be_submitted_after_leaving(scene: Scene) -> None:
    scene.connect()
    scene.effects += scene.protocol.leave(scene.now)

    with pytest.raises(Unavailable, match="closed"):
        scene.tell()


def test_giving_up_fails_what_waits_and_leaves_open_what_was_sent(scene: Scene) -> None:
    scene.connect()
    asked = scene.ask()
    listed = scene.submit(ListActors(0, 10))
    scene.hear("hub:pause", {})
    told = scene.tell()

    scene.effects += scene.protocol.stop(GaveUp("the end"))

    assert isinstance(scene.error_of(asked), OutcomeUnknown)
    assert isinstance(scene.error_of(listed), GaveUp)
    assert isinstance(scene.error_of(told), GaveUp)
    assert len(scene.of(Failed)) == 3


def test_a_message_above_the_advertised_size_is_refused_before_it_is_sent(scene: Scene) -> None:
    scene.connect(maxMessageSize=1000)

    with pytest.raises(Refused, match="at most 1000") as caught:
        scene.tell("x" * 1000)

    assert caught.value.code == "message_too_large"
    assert scene.sent() == []


def test_a_forgotten_request_is_neither_repeated_nor_answered(scene: Scene) -> None:
    scene.connect()
    request = scene.ask(timeout_s=1, attempts=3)
    asked = scene.sent_one("hub:send")

    scene.protocol.forget(request.id)
    scene.hear("hub:delivery_ack", {}, asked)
    scene.pass_time(50)

    assert scene.sent() == []
    assert not scene.is_done(request)
