"""Requests between actors in the client's protocol: each ends once, whatever the link does."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.client.protocol.effects import (
    Arrived,
    Concluded,
    Dismissed,
    Failed,
    Replied,
    SendFrame,
)
from signalhub.client.protocol.exchanges import LOOK_PAUSE_MAX_S
from signalhub.client.protocol.frame import Request
from signalhub.client.protocol.replies import KEPT_MAX, KEPT_S
from signalhub.client.requests import Ask, Broadcast, Publish, Tell
from signalhub.wire.errors import (
    ClientError,
    NoReply,
    OutcomeUnknown,
    Refused,
    Unavailable,
    UnknownActor,
)
from tests.support.memory.client import ALICE, BOB, Scene

CAROL = "@(demo/carol)"
TIMEOUT_S = 5.0


class Exchanging(Scene):
    """A client that is connected, and requests of its own and of others."""

    def __init__(self, *, is_open: bool = True) -> None:
        super().__init__()
        self.metadata = {"sessionToken": "t"} if is_open else {}
        self.reconnect()

    def reconnect(self) -> None:
        self.sent()
        hello = self.open()
        facts = {"sessionId": "s-1", "capabilities": {}}
        self.hear("hub:connected", facts, hello, metadata=self.metadata)
        self.hear("hub:registered", {"actorAddress": ALICE}, self.sent_one("hub:register"))

    def request(self, payload: Any = None, to: str = BOB, timeout_s: float = TIMEOUT_S) -> Request:
        return self._asked(Ask(to, "price:get", payload), to, 1, timeout_s)

    def request_many(self, most: int = 100, *, topic: str | None = None) -> Request:
        if topic is None:
            return self._asked(Broadcast("price:get", None, True), "", most, TIMEOUT_S)
        return self._asked(Publish(topic, "price:get", None), "", most, TIMEOUT_S)

    def _asked(self, payload: Any, to: str, most: int, timeout_s: float) -> Request:
        request = self.protocol.frames.request(
            payload, self.now.wall_ms, timeout_s=timeout_s, ttl_ms=timeout_s * 1000
        )
        self.effects += self.protocol.submit_request(request, to, most, timeout_s, self.now)
        return request

    def hand_over(self, request: Request, **facts: Any) -> None:
        self.hear("hub:delivery_ack", {"status": "delivered"} | facts, {"id": request.id})

    def reply(self, request: Request, payload: Any = None, sender: str = BOB, **more: Any) -> None:
        metadata = {"inReplyTo": request.id} | more
        self.hear("price:get.reply", payload, sender=sender, metadata=metadata)

    def hear(self, type: str, payload: Any = None, request: Any = None, **members: Any) -> None:
        if "sender" in members:
            members["from"] = members.pop("sender")
        super().hear(type, payload, request, **members)

    def asked(self, payload: Any = None, *, id: str = "r-1", **members: Any) -> None:
        """Bob sends a request."""
        metadata = {"expectsReply": True, "originalMessageId": id}
        self.hear("time", payload, sender=BOB, metadata=metadata | members.pop("metadata", {}))

    def found(self, *addresses: str) -> None:
        """The hub answers the look for a recipient."""
        (look,) = [one for one in self.sent() if one["type"] == "hub:discover"]
        self.hear("hub:discovered", {"actors": [{"address": one} for one in addresses]}, look)

    def replies(self) -> list[Any]:
        return [effect.message.payload for effect in self.of(Replied)]

    def ends(self, request: Request) -> list[object]:
        """How often, and how, a request has ended."""
        return [
            effect
            for effect in self.effects
            if (isinstance(effect, Replied) and effect.is_last and effect.id == request.id)
            or (isinstance(effect, Failed | Concluded) and effect.id == request.id)
        ]

    def check_ended(self, request: Request, kind: type[ClientError], word: str = "") -> None:
        (end,) = self.ends(request)
        assert isinstance(end, Failed)
        assert type(end.error) is kind
        assert word in str(end.error)


def test_a_request_is_an_ask_and_its_reply_ends_it() -> None:
    scene = Exchanging()
    request = scene.request({"sku": 7})
    frame = scene.sent_one("hub:send")
    scene.hand_over(request)
    assert not scene.ends(request)

    scene.reply(request, {"eur": 12})

    assert (frame["pattern"], frame["ttl"]) == ("ask", TIMEOUT_S * 1000)
    assert scene.replies() == [{"eur": 12}]
    assert len(scene.ends(request)) == 1
    assert scene.protocol.wake_at_s(0.0) is not None


def test_a_reply_may_overtake_the_answer_of_the_hub() -> None:
    scene = Exchanging()
    request = scene.request()

    scene.reply(request, 1)
    scene.hand_over(request)
    scene.time(TIMEOUT_S)

    assert len(scene.ends(request)) == 1


def test_only_the_actor_that_was_asked_can_reply() -> None:
    scene = Exchanging()
    request = scene.request()

    scene.reply(request, "forged", sender=CAROL)

    assert not scene.ends(request)
    assert scene.of(Arrived)[0].message.payload == "forged"


def test_a_late_reply_is_counted_and_dropped() -> None:
    scene = Exchanging()
    request = scene.request()
    scene.hand_over(request, seq=1)
    scene.time(TIMEOUT_S)
    scene.check_ended(request, NoReply, "no reply within 5 s")

    scene.reply(request, "late")

    assert scene.protocol.exchanges.late_replies == 1
    assert [one.message.payload for one in scene.of(Dismissed)] == ["late"]
    assert not scene.of(Arrived)


def test_a_reply_to_a_request_of_another_run_is_an_ordinary_message() -> None:
    scene = Exchanging()

    scene.hear("price:get.reply", 1, sender=BOB, metadata={"inReplyTo": "earlier"})

    (arrived,) = scene.of(Arrived)
    assert arrived.message.in_reply_to == "earlier"


@pytest.mark.parametrize("code", ["message_expired", "queue_full", "unauthorized"])
def test_a_refusal_ends_the_request_at_once(code: str) -> None:
    scene = Exchanging()
    request = scene.request()

    scene.refuse({"id": request.id}, code, retryable=True)

    scene.check_ended(request, Refused, code)


def test_an_unknown_actor_ends_the_request_at_once() -> None:
    scene = Exchanging()
    request = scene.request()

    scene.hear("hub:unknown_actor", {"code": "unknown_actor"}, {"id": request.id})

    scene.check_ended(request, UnknownActor)


def test_a_recipient_that_is_about_to_return_is_waited_for() -> None:
    scene = Exchanging()
    request = scene.request()
    scene.sent()

    scene.refuse({"id": request.id}, "actor_reconnecting", retryable=True)
    scene.time(1)

    assert not scene.ends(request)
    assert scene.sent_one("hub:send")["id"] == request.id


def test_a_recipient_that_has_left_ends_the_request() -> None:
    scene = Exchanging()
    request = scene.request(timeout_s=60)
    scene.hand_over(request)
    scene.sent()
    scene.time(0.25)
    scene.found(BOB)
    assert not scene.ends(request)

    scene.time(0.5)
    scene.found()

    scene.check_ended(request, NoReply, "has left")
    assert scene.of(Failed)[0].error.code == "recipient_left"


def test_requests_to_one_recipient_share_the_looks_for_it() -> None:
    scene = Exchanging()
    for _ in range(50):
        scene.hand_over(scene.request(timeout_s=60))
    scene.sent()

    looks = 0
    for _ in range(20):
        scene.time(LOOK_PAUSE_MAX_S)
        for frame in scene.sent():
            looks += 1
            scene.hear("hub:discovered", {"actors": [{"address": BOB}]}, frame)

    assert looks <= 21
    assert not scene.of(Failed)


def test_a_recipient_with_a_mailbox_is_not_looked_for() -> None:
    scene = Exchanging()
    request = scene.request()
    scene.hand_over(request, seq=4, status="queued")
    scene.sent()

    scene.time(TIMEOUT_S - 1)

    assert scene.sent() == []
    assert not scene.ends(request)


def test_nobody_is_believed_to_have_left_whom_the_token_may_not_see() -> None:
    scene = Exchanging(is_open=False)
    request = scene.request()
    scene.hand_over(request)
    scene.sent()
    scene.time(0.25)

    scene.found()

    assert not scene.ends(request)


def test_nobody_is_believed_to_have_left_because_the_hub_was_restarted() -> None:
    scene = Exchanging()
    request = scene.request(timeout_s=60)
    scene.hand_over(request)
    scene.lose()
    scene.reconnect()

    scene.time(1)
    scene.found()
    assert not scene.ends(request)
    scene.reply(request, "after all")

    assert scene.replies() == ["after all"]


def test_a_look_that_is_refused_is_the_last_one() -> None:
    scene = Exchanging()
    scene.hand_over(scene.request(timeout_s=60))
    scene.sent()
    scene.time(0.25)
    scene.refuse(scene.sent_one("hub:discover"), "unauthorized")

    scene.time(30)

    assert scene.sent() == []
    assert not scene.of(Failed)


def test_a_request_is_repeated_with_its_id_over_a_new_link() -> None:
    scene = Exchanging()
    request = scene.request()
    scene.lose()
    scene.sent()
    scene.reconnect()

    assert request.frame in [effect.frame for effect in scene.of(SendFrame)[2:]]
    scene.hand_over(request, duplicate=True)
    scene.reply(request, 1)

    assert len(scene.ends(request)) == 1


@pytest.mark.parametrize(("is_sent", "kind"), [(True, OutcomeUnknown), (False, Unavailable)])
def test_time_is_up_before_the_hub_has_answered(is_sent: bool, kind: type[ClientError]) -> None:
    scene = Exchanging()
    if not is_sent:
        scene.lose()
    request = scene.request()

    scene.time(TIMEOUT_S)

    scene.check_ended(request, kind, "no answer")


def test_closing_ends_requests_that_were_handed_over() -> None:
    scene = Exchanging()
    request = scene.request()
    scene.hand_over(request)

    scene.leave()

    scene.check_ended(request, NoReply, "was closed")


def test_a_request_that_nobody_waits_for_leaves_nothing_behind() -> None:
    scene = Exchanging()
    request = scene.request()

    scene.protocol.forget(request.id)
    scene.time(TIMEOUT_S)

    assert not scene.ends(request)
    assert not scene.protocol.is_pending(request.id)


def test_a_request_to_many_ends_when_all_have_replied() -> None:
    scene = Exchanging()
    request = scene.request_many()
    scene.hear("hub:broadcast_ack", {"deliveredCount": 1, "queuedCount": 1}, {"id": request.id})

    scene.reply(request, 1, sender=BOB)
    scene.reply(request, "again", sender=BOB)
    assert not scene.ends(request)
    scene.reply(request, 2, sender=CAROL)

    assert scene.replies() == [1, 2]
    assert len(scene.ends(request)) == 1
    assert scene.protocol.exchanges.late_replies == 1


def test_a_request_to_many_ends_with_the_most_replies_that_are_wanted() -> None:
    scene = Exchanging()
    request = scene.request_many(1)

    scene.reply(request, 1, sender=BOB)
    scene.reply(request, 2, sender=CAROL)

    assert scene.replies() == [1]


def test_a_request_to_nobody_ends_at_once_and_one_to_many_when_time_is_up() -> None:
    scene = Exchanging()
    to_nobody, durable = scene.request_many(topic="news"), scene.request_many(topic="orders")
    scene.hear("hub:published", {"subscriberCount": 0}, {"id": to_nobody.id})
    # Who reads a durable topic, and when, the hub does not say.
    scene.hear("hub:published", {"subscriberCount": 0, "seq": 3}, {"id": durable.id})
    assert (len(scene.ends(to_nobody)), len(scene.ends(durable))) == (1, 0)

    scene.time(TIMEOUT_S)

    assert scene.ends(durable) == [Concluded(durable.id)]


def test_a_lost_answer_does_not_matter_to_a_request_that_has_replies() -> None:
    scene = Exchanging()
    request = scene.request_many(topic="news")
    scene.reply(request, 1)

    scene.lose()
    assert not scene.ends(request)
    scene.time(TIMEOUT_S)

    assert scene.ends(request) == [Concluded(request.id)]


def test_a_repeated_request_reaches_the_program_once_while_it_is_remembered() -> None:
    scene = Exchanging()
    for _ in range(3):
        scene.asked()
    assert len(scene.of(Arrived)) == 1

    scene.clock.advance(KEPT_S)
    scene.asked()

    assert len(scene.of(Arrived)) == 2


def test_a_repeated_request_that_was_answered_gets_the_same_reply() -> None:
    scene = Exchanging()
    scene.asked()
    message = scene.of(Arrived)[0].message
    reply = scene.protocol.frames.request(Tell(BOB, "time.reply", 12), scene.now.wall_ms)
    scene.protocol.replies.answered(message, reply)

    scene.asked()

    assert scene.sent_one("hub:send")["id"] == reply.id
    assert len(scene.of(Arrived)) == 1


def test_a_copy_that_the_program_left_unsettled_reaches_it_again() -> None:
    scene = Exchanging()
    scene.membership.acknowledges = True
    for attempt in (1, 2):
        delivery = {"stream": ALICE, "epoch": "e", "seq": 1, "attempt": attempt}
        scene.asked(metadata={"delivery": delivery})

    assert len(scene.of(Arrived)) == 2


@pytest.mark.parametrize("mark", ["replay", "deadLetter", "original"])
def test_what_was_delivered_before_expects_no_reply(mark: str) -> None:
    scene = Exchanging()

    scene.asked(metadata={mark: {}})

    assert not scene.of(Arrived)[0].message.expects_reply


def test_requests_to_many_are_known_by_their_id() -> None:
    scene = Exchanging()
    sent = {"sender": BOB, "correlationId": "request-1"}
    scene.hear("time", None, metadata={"broadcast": True}, **sent)
    scene.hear("time", None, metadata={"topic": "t", "publication": True}, **sent)
    headers = {"headers": {"expectsReply": "request-2"}}
    durable = {"topic": "t", "publication": True} | headers
    scene.hear("time", None, sender=BOB, metadata=durable)
    scene.hear("time", None, sender=BOB, metadata={"broadcast": True}, correlationId="news")
    # A member of a message to one actor means nothing.
    scene.hear("time", None, sender=BOB, metadata=headers)

    ids = [effect.message.request_id for effect in scene.of(Arrived)]
    assert ids == ["request-1", "request-2", None, None]


def test_what_is_remembered_of_others_is_limited() -> None:
    scene = Exchanging()
    reply = scene.protocol.frames.request(Tell(BOB, "time.reply", "x" * 2**20), 0)
    for number in range(6):
        scene.asked(id=f"r-{number}")
        scene.protocol.replies.answered(scene.of(Arrived)[-1].message, reply)

    kept = [scene.protocol.replies.reply_to(one.message) is not None for one in scene.of(Arrived)]
    assert kept == [False] * 3 + [True] * 3
    for number in range(KEPT_MAX):
        scene.asked(id=f"s-{number}")
    assert scene.protocol.replies.reply_to(scene.of(Arrived)[5].message) is None
