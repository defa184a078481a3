"""Failed attempts: how long until the next one, and what happens after the last."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.memory.shell import SETTLING_HELLO, MemoryShell, Message, Peer


class Scene:
    """One topic, one writer, one consumer of one subscription."""

    def __init__(self, **options: Any) -> None:
        self.shell = MemoryShell()
        self.writer = self.shell.connect("@(a/writer)")
        self.reader = self.shell.connect("@(a/reader)")
        self.publish()
        payload = {"topic": "t", "subscription": "s", "from": "earliest", "heartbeatMs": 0}
        reply = self.reader.ask("hub:subscribe", payload | options)
        self.name: str = reply["payload"]["subscriptionId"]

    def publish(self, **more: Any) -> None:
        payload = {"topic": "t", "type": "news", "data": 1, "durable": True} | more
        assert self.writer.ask("hub:publish", payload)["type"] == "hub:published"

    def copies(self, topic: str = "t") -> list[Message]:
        heard = [one["metadata"] for one in self.reader.received if one["type"] == "news"]
        return [one["delivery"] for one in heard if one["topic"] == topic]

    def settle(self, type: str, seq: int = 1, **more: Any) -> Message:
        return self.reader.ask(type, {"subscriptionId": self.name, "seq": seq, **more})

    def wait_for_copy(self, ms_max: int) -> int:
        """How long it takes until another copy comes."""
        before, began = len(self.copies()), self.shell.now
        while len(self.copies()) == before:
            assert self.shell.now - began <= ms_max, "no copy came"
            self.shell.advance(1)
        return self.shell.now - began

    def info(self) -> Message:
        reply = self.writer.ask("hub:sub_info", {"topic": "t", "subscription": "s"})
        payload: Message = reply["payload"]
        return payload


def test_pauses_double_and_are_spread_by_a_fifth_at_most() -> None:
    scene = Scene(backoffMs=100, backoffCapMs=60_000, maxDeliveries=10)

    pauses = []
    for _ in range(6):
        scene.settle("hub:nack")
        pauses.append(scene.wait_for_copy(10_000))

    for attempt, pause in enumerate(pauses):
        policy = 100 * 2**attempt
        assert 0.8 * policy - 1 <= pause <= 1.2 * policy + 1


def test_what_failed_together_is_not_tried_together() -> None:
    scene = Scene(backoffMs=1_000)
    for _ in range(49):
        scene.publish()
    for seq in range(1, 51):
        scene.settle("hub:nack", seq)

    before = len(scene.copies())
    came_at = set()
    for _ in range(1_300):
        scene.shell.advance(1)
        if len(scene.copies()) > before:
            before = len(scene.copies())
            came_at.add(scene.shell.now)

    assert before == 100
    assert len(came_at) > 25
    assert max(came_at) - min(came_at) > 200


def test_pauses_never_exceed_the_cap_whoever_asks_for_them() -> None:
    scene = Scene(backoffMs=100, backoffCapMs=300, maxDeliveries=10)

    pauses = []
    for delay_ms in (0, 0, 0, 0, 60_000):
        scene.settle("hub:nack", delayMs=delay_ms)
        pauses.append(scene.wait_for_copy(1_000))

    assert max(pauses) <= 300
    assert pauses[-1] == 300


def test_a_longer_pause_than_the_policys_can_be_asked_for() -> None:
    scene = Scene(backoffMs=100)

    scene.settle("hub:nack", delayMs=5_000)

    assert scene.wait_for_copy(6_000) == 5_000


def test_a_pause_of_zero_is_still_the_policys() -> None:
    scene = Scene(backoffMs=1_000)

    scene.settle("hub:nack", delayMs=0)

    assert scene.wait_for_copy(2_000) >= 800


def test_silence_is_a_failure_after_the_timeout() -> None:
    scene = Scene(ackTimeoutMs=500, backoffMs=100)

    pause = scene.wait_for_copy(1_000)

    assert 580 <= pause <= 621
    assert [one["attempt"] for one in scene.copies()] == [1, 2]


def test_who_says_that_it_takes_longer_gets_longer() -> None:
    scene = Scene(ackTimeoutMs=500, backoffMs=100)

    scene.shell.advance(400)
    scene.settle("hub:extend", ms=2_000)
    scene.shell.advance(1_999)

    assert len(scene.copies()) == 1
    assert scene.info()["inFlight"] == 1
    scene.shell.advance(1)
    assert scene.info()["waitingRetry"] == 1


def test_a_late_ack_counts_while_it_waits_to_be_sent_again() -> None:
    scene = Scene(ackTimeoutMs=500, backoffMs=1_000)
    scene.shell.advance(600)

    reply = scene.settle("hub:ack")
    scene.shell.advance(60_000)

    assert reply["payload"] == {"floor": 1, "accepted": 1, "ignored": []}
    assert len(scene.copies()) == 1


def test_an_ack_of_something_unknown_is_ignored_and_counted() -> None:
    scene = Scene()

    reply = scene.settle("hub:ack", 99)

    assert reply["payload"] == {"floor": 0, "accepted": 0, "ignored": [99]}
    stats = scene.shell.hub.streams.topics["t"].subscriptions["s"].stats
    assert stats.ignored == 1


def test_disconnects_cost_no_attempts() -> None:
    scene = Scene(maxDeliveries=1, poison="drop")

    for _ in range(10):
        scene.reader.drop()
        scene.reader = scene.shell.connect("@(a/reader)")
        scene.reader.ask("hub:subscribe", {"topic": "t", "subscription": "s"})

    (copy,) = scene.copies()
    assert copy["attempt"] == 11
    assert scene.info()["lag"] == 1


def test_failures_are_known_across_a_restart() -> None:
    scene = Scene(maxDeliveries=3, poison="drop", backoffMs=10)
    for _ in range(2):
        scene.settle("hub:nack")
        scene.wait_for_copy(100)

    scene.shell = scene.shell.restarted()
    scene.writer = scene.shell.connect("@(a/writer)")
    scene.reader = scene.shell.connect("@(a/reader)")
    reply = scene.reader.ask("hub:subscribe", {"topic": "t", "subscription": "s"})
    scene.name = reply["payload"]["subscriptionId"]
    scene.settle("hub:nack")

    assert scene.copies()[0]["attempt"] >= 3
    assert scene.info()["lag"] == 0


# Poison.


def fail(scene: Scene, times: int, seq: int = 1) -> None:
    for _ in range(times):
        scene.settle("hub:nack", seq, reason="too hot")
        scene.shell.advance(100)


def test_blocked_by_a_poisoned_message_nothing_new_is_sent() -> None:
    scene = Scene(maxDeliveries=2, backoffMs=1)
    fail(scene, 2)

    scene.publish()
    scene.shell.advance(60_000)

    assert [one["seq"] for one in scene.copies()] == [1, 1]
    assert scene.info()["blocked"] is True
    scene.settle("hub:ack")
    assert [one["seq"] for one in scene.copies()] == [1, 1, 2]


def test_a_blocked_key_stops_no_other() -> None:
    scene = Scene(mode="key-shared", maxDeliveries=1, backoffMs=1)
    fail(scene, 1)

    scene.publish(key="other")
    scene.publish()

    assert [one["seq"] for one in scene.copies()] == [1, 2]
    assert scene.info()["blocked"] is False


def test_a_dropped_message_is_settled_and_counted() -> None:
    scene = Scene(maxDeliveries=2, backoffMs=1, poison="drop")

    fail(scene, 2)

    stats = scene.shell.hub.streams.topics["t"].subscriptions["s"].stats
    assert (scene.info()["floor"], stats.dropped, stats.exhausted) == (1, 1, 1)


def test_a_dead_letter_says_what_happened() -> None:
    scene = Scene(maxDeliveries=2, backoffMs=1, poison="dead_letter", consumer="me")
    began = scene.shell.now

    fail(scene, 2)
    scene.reader.ask("hub:subscribe", {"topic": "t.dlq", "subscription": "d", "from": "earliest"})

    metadata = scene.reader.received[-1]["metadata"]
    epoch = scene.shell.hub.streams.topics["t"].epoch
    assert metadata["deadLetter"] == {
        "topic": "t",
        "subscription": "s",
        "epoch": epoch,
        "seq": 1,
        "attempts": 2,
        "reason": "too hot",
        "firstFailure": began,
        "lastFailure": began + 100,
        "consumers": ["me"],
    }
    assert scene.info()["deadLettered"] == 1


def test_a_message_is_settled_only_when_its_dead_letter_is_on_disk() -> None:
    scene = Scene(maxDeliveries=1, poison="dead_letter")
    scene.shell.engine.is_prompt = False

    scene.reader.tell("hub:nack", {"subscriptionId": scene.name, "seq": 1})
    before = scene.info()
    scene.shell.engine.commit()
    scene.shell.settle()

    assert (before["floor"], before["deadLettered"]) == (0, 0)
    assert (scene.info()["floor"], scene.info()["deadLettered"]) == (1, 1)


def test_without_room_for_the_dead_letter_the_message_stays() -> None:
    scene = Scene(maxDeliveries=1, poison="dead_letter")
    scene.shell.engine.is_full = True

    scene.reader.tell("hub:nack", {"subscriptionId": scene.name, "seq": 1})
    scene.shell.advance(5_000)
    full = scene.info()
    scene.shell.engine.is_full = False
    scene.shell.advance(5_000)

    assert (full["floor"], full["deadLettered"]) == (0, 0)
    assert (scene.info()["floor"], scene.info()["deadLettered"]) == (1, 1)


@pytest.mark.parametrize(("poison", "letters"), [("block", 0), ("drop", 0), ("dead_letter", 1)])
def test_a_terminated_message_is_always_settled(poison: str, letters: int) -> None:
    scene = Scene(poison=poison)

    scene.settle("hub:term", reason="nonsense")

    assert scene.info()["floor"] == 1
    assert scene.info()["deadLettered"] == letters
    assert not scene.info()["blocked"]


def test_dead_letters_have_no_dead_letters() -> None:
    scene = Scene(maxDeliveries=1, poison="dead_letter")
    fail(scene, 1)
    payload = {"topic": "t.dlq", "subscription": "d", "maxDeliveries": 1, "poison": "dead_letter"}
    reply = scene.reader.ask("hub:subscribe", payload)
    name = reply["payload"]["subscriptionId"]

    scene.reader.ask("hub:nack", {"subscriptionId": name, "seq": 1})
    scene.shell.advance(60_000)

    assert set(scene.shell.hub.streams.topics) == {"t", "t.dlq"}
    shown = scene.writer.ask("hub:sub_info", {"topic": "t.dlq", "subscription": "d"})["payload"]
    assert (shown["lag"], shown["blocked"]) == (1, True)


def test_another_policy_applies_at_once_to_what_is_blocked() -> None:
    scene = Scene(maxDeliveries=1)
    fail(scene, 1)
    blocked = scene.info()["blocked"]

    payload = {"topic": "t", "subscription": "s", "poison": "drop"}
    scene.writer.ask("hub:sub_update", payload)

    assert blocked is True
    assert scene.info()["lag"] == 0


def test_mail_nobody_could_handle_goes_to_the_dead_letters_of_mailboxes() -> None:
    shell = MemoryShell()
    sender = shell.connect("@(a/sender)")
    actor: Peer = shell.connect("@(a/actor)", metadata=SETTLING_HELLO)
    actor.register(durable=True)
    sender.send("@(a/actor)", "x", pattern="ask")

    for _ in range(6):
        actor.ask("hub:nack", {"stream": "@(a/actor)", "seq": 1, "reason": "no"})
        shell.advance(60_000)

    topic = shell.hub.streams.topics["dead.mailboxes"]
    assert topic.head == 1
    assert len(actor.heard()) == 6
    assert shell.hub.streams.mailboxes["@(a/actor)"].waiting(shell.now) == 0
