"""Expired messages of rooms leave the log although their segment stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from signalhub.engine.upkeep import CONTROL_LINGER_MS, LINGER_MS, Expirer
from signalhub.log.commit import UpkeepThread
from signalhub.log.log import Log
from signalhub.log.reader import Reader
from signalhub.log.verify import verify
from signalhub.testing import FaultyDisk
from signalhub.wire.entry import Entry, Kind, RoomEffect, RoomMessageBody, encode_body
from tests.support.memory.log import NOW_MS, do_upkeep, entry, open_log

MINUTE_MS = 60_000


class Scene:
    """A log with room messages, and the thread that keeps it in order."""

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.log: Log = open_log(self.disk)
        self._seq = 0
        self.forgotten: list[int] = []

    def say(self, lives_ms: int, control: RoomEffect | None = None) -> int:
        """A message of a room; its offset."""
        self._seq += 1
        body = RoomMessageBody(f"m{self._seq}", b"q83v", NOW_MS, NOW_MS + lives_ms, control=control)
        name = "inbox.1.abc"
        message = Entry(Kind.ROOM_MESSAGE, name, 1, self._seq, NOW_MS, encode_body(body))
        return self.log.append([message, entry(self._seq)])

    def roll(self) -> None:
        """Finish the segment and begin another one."""
        self.log.roll_soon()
        self.log.append([entry(1, "other")])
        do_upkeep(self.log)

    def start(self) -> None:
        self.upkeep = UpkeepThread(self.log)
        self._expirer = Expirer(self.log, self.upkeep, self._forget)

    def _forget(self, bases: list[int], done: Callable[[], None]) -> None:
        self.forgotten += bases
        done()

    def look(self, after_ms: int) -> None:
        """The hub looks at a later time, and is done."""
        done = threading.Event()
        self._expirer.look(NOW_MS + after_ms)
        self.upkeep.run(done.set)
        assert done.wait(10), "it never comes to an end"

    def erased(self) -> list[int]:
        return [one.offset for one in Reader(self.log).scan(0) if one.is_erased]


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.upkeep.close()
    assert verify(scene.disk).is_sound


def test_a_segment_in_which_everything_has_expired_is_rewritten_at_once(scene: Scene) -> None:
    offsets = [scene.say(MINUTE_MS), scene.say(2 * MINUTE_MS)]
    scene.roll()
    scene.start()

    scene.look(2 * MINUTE_MS)

    assert scene.erased() == offsets
    assert scene.forgotten == [0]


def test_what_has_not_expired_stays_until_it_has(scene: Scene) -> None:
    offsets = [scene.say(MINUTE_MS), scene.say(3 * LINGER_MS)]
    scene.roll()
    scene.start()

    scene.look(2 * MINUTE_MS)
    assert scene.erased() == [], "others of the segment may expire soon"
    scene.look(LINGER_MS + MINUTE_MS)
    assert scene.erased() == offsets[:1]
    scene.look(4 * LINGER_MS)
    assert scene.erased() == offsets


def test_one_segment_at_a_time_and_a_full_disk_only_postpones_it(scene: Scene) -> None:
    offsets = []
    for _ in range(3):
        offsets.append(scene.say(MINUTE_MS))
        scene.roll()
    scene.start()

    scene.disk.capacity_bytes = 0
    scene.look(2 * MINUTE_MS)
    assert scene.erased() == []
    scene.disk.capacity_bytes = None
    for count in (1, 2, 3):
        scene.look(3 * MINUTE_MS)
        assert scene.erased() == offsets[:count]


def test_the_active_segment_is_left_alone(scene: Scene) -> None:
    scene.say(MINUTE_MS)
    scene.start()

    scene.look(2 * LINGER_MS)

    assert scene.erased() == []


def test_a_segment_without_rooms_is_not_even_read(scene: Scene) -> None:
    scene.log.append([entry(1)])
    scene.roll()
    scene.say(MINUTE_MS)
    scene.roll()
    scene.start()
    reads = len(scene.disk.trace)

    scene.look(0)
    scene.look(0)
    seen = [step.name for step in list(scene.disk.trace)[reads:] if step.operation == "read"]

    first = scene.log.segments[0].name
    assert 0 < seen.count(first) <= 3


def test_messages_that_proposals_are_made_from_stay_until_these_are_gone(scene: Scene) -> None:
    about = RoomEffect("room.1.x", "mls_proposal", "p")
    offset = scene.say(MINUTE_MS, about)
    scene.roll()
    scene.start()

    scene.look(2 * LINGER_MS)
    assert scene.erased() == []

    scene.look(CONTROL_LINGER_MS + 2 * LINGER_MS)
    assert scene.erased() == [offset]
