"""When exactly a failed message is tried again, and what its dead letter waits for."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.core.subscriptions import send
from tests.support.memory.shell import MemoryShell, Message
from tests.support.memory.topics import NAMED, publish, subscribe, topic_of


class Scene:
    """One topic with one message, one writer, one consumer of one subscription."""

    def __init__(self, **options: Any) -> None:
        self.shell = MemoryShell()
        self.writer = self.shell.connect("@(a/writer)")
        self.reader = self.shell.connect("@(a/reader)")
        publish(self.writer)
        self.name = subscribe(self.reader, **{"heartbeatMs": 0} | options)

    def copies(self) -> int:
        return sum(one["type"] == "news" for one in self.reader.received)

    def settle(self, type: str, seq: int = 1, **more: Any) -> Message:
        return self.reader.ask(type, {"subscriptionId": self.name, "seq": seq, **more})

    def wait_for_copy(self, ms_max: int) -> int:
        """How long it takes until another copy comes."""
        before, began = self.copies(), self.shell.now
        while self.copies() == before:
            assert self.shell.now - began <= ms_max, "no copy came"
            self.shell.advance(1)
        return self.shell.now - began

    def info(self) -> Message:
        payload: Message = self.writer.ask("hub:sub_info", NAMED)["payload"]
        return payload


def test_pauses_double_and_are_spread_by_a_fifth_at_most() -> None:
    scene = Scene(backoffMs=100, backoffCapMs=60_000, maxDeliveries=10)

    for attempt in range(6):
        scene.settle("hub:nack")
        policy = 100 * 2**attempt
        assert 0.8 * policy - 1 <= scene.wait_for_copy(10_000) <= 1.2 * policy + 1


def test_what_failed_together_is_not_tried_together() -> None:
    scene = Scene(backoffMs=1_000)
    for _ in range(49):
        publish(scene.writer)
    for seq in range(1, 51):
        scene.settle("hub:nack", seq)

    before = scene.copies()
    came_at = set()
    for _ in range(1_300):
        scene.shell.advance(1)
        if scene.copies() > before:
            before = scene.copies()
            came_at.add(scene.shell.now)

    assert before == 100
    assert len(came_at) > 25
    assert max(came_at) - min(came_at) > 200


def test_pauses_that_are_asked_for_are_exact_and_within_policy_and_cap() -> None:
    scene = Scene(backoffMs=100, backoffCapMs=300, maxDeliveries=10)

    pauses = []
    for delay_ms in (200, 0, 0, 0, 60_000):
        scene.settle("hub:nack", delayMs=delay_ms)
        pauses.append(scene.wait_for_copy(1_000))

    assert (pauses[0], pauses[-1]) == (200, 300)
    assert 160 <= pauses[1] <= 240
    assert max(pauses) <= 300


def test_an_ack_of_something_unknown_and_a_dropped_message_are_counted() -> None:
    scene = Scene(maxDeliveries=2, backoffMs=1, poison="drop")

    scene.settle("hub:ack", 99)
    for _ in range(2):
        scene.settle("hub:nack")
        scene.shell.advance(100)

    stats = scene.shell.hub.streams.topics["t"].subscriptions["s"].stats
    assert (stats.ignored, stats.dropped, stats.exhausted) == (1, 1, 1)


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


def test_dead_letters_have_no_dead_letters_though_somebody_asks_for_them() -> None:
    scene = Scene(maxDeliveries=1, poison="dead_letter")
    scene.settle("hub:nack")
    scene.shell.advance(100)
    name = subscribe(scene.reader, "t.dlq", "d", maxDeliveries=1, poison="dead_letter")

    scene.reader.ask("hub:nack", {"subscriptionId": name, "seq": 1})
    scene.shell.advance(60_000)

    assert set(scene.shell.hub.streams.topics) == {"t", "t.dlq"}
    shown = scene.writer.ask("hub:sub_info", {"topic": "t.dlq", "subscription": "d"})["payload"]
    assert (shown["lag"], shown["blocked"]) == (1, True)


def test_a_message_becomes_one_dead_letter_though_a_pass_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(poison="dead_letter")

    def fail(*_: object, **options: object) -> bool:
        raise RuntimeError("a fault of the hub")

    with monkeypatch.context() as faulty:
        faulty.setattr(send, "run", fail)
        with pytest.raises(RuntimeError):
            scene.settle("hub:term")
    scene.wait_for_copy(2_000)
    scene.settle("hub:term")

    assert topic_of(scene.shell, "t.dlq").head == 1
    assert scene.info()["floor"] == 1
