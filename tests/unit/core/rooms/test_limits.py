"""The sliding window to the millisecond, and the limits of rooms, members and inboxes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from signalhub.core.rooms.access import RefusedAttempts
from signalhub.core.rooms.room import Room, SlidingWindow, Windows
from signalhub.core.rooms.values import Blob, Read
from signalhub.core.streams.recovery import take_snapshot
from signalhub.wire.errors import RoomCode, RoomError
from tests.support.memory.rooms import (
    ROOM,
    SECRET,
    Caller,
    Restart,
    mono_ms,
    restarts,
    room_shell,
    unreachable,
)

LIMITED = RoomCode.RATE_LIMIT_EXCEEDED


def test_a_full_window_says_to_the_millisecond_when_the_next_one_fits() -> None:
    window = SlidingWindow(500, 5_000)
    assert [window.take(at_ms) for at_ms in range(1_000, 1_500)] == [0] * 500

    # A refusal is not recorded, and looking takes nothing.
    assert all(window.take(at_ms) > 0 for at_ms in range(1_500, 4_153))
    waits = [window.take(at_ms) for at_ms in (1_500, 4_153, 5_998, 5_999)]
    assert waits == [4_500, 1_847, 2, 1]
    assert window.wait_ms(6_000) == 0
    assert [window.take(6_000), window.take(6_000), window.take(6_001)] == [0, 1, 0]
    # Times restored after a restart may lie where the clock has not been yet.
    restored = SlidingWindow(1, 5_000, [10_000])
    assert [restored.wait_ms(10_000), restored.wait_ms(14_999)] == [5_000, 1]


def test_only_the_newest_can_be_taken_back() -> None:
    window = SlidingWindow(2, 5_000, [1_000])
    window.record(1_001)
    window.take_back()
    assert (window.wait_ms(1_002), list(window.times)) == (0, [1_000])

    # It has left the window.
    window.wait_ms(9_000)
    window.take_back()
    assert list(window.times) == []


class Walked(dict[Room, int]):
    """Rooms that count how often they are gone through from the first one on."""

    walks = 0

    def __iter__(self) -> Iterator[Room]:
        self.walks += 1
        return super().__iter__()

    def items(self) -> Any:
        self.walks += 1
        return super().items()


def test_rooms_that_fall_silent_are_gone_through_once_however_many_they_are() -> None:
    shell = room_shell()
    busy = shell.rooms._acceptance._busy = Walked()
    for number in range(50):
        shell.send(f"m{number}", room=f"room-{number}")
    rooms = list(busy)

    busy.walks = 0
    shell.rooms._acceptance.tick(mono_ms(shell) + 4_999)
    assert (list(busy), busy.walks) == (rooms, 2)
    busy.walks = 0
    shell.rooms._acceptance.tick(mono_ms(shell) + 5_000)

    assert (len(busy), busy.walks) == (0, 1)
    assert all(room.accepts is None for room in rooms)


def test_windows_count_each_name_for_itself_and_empty_ones_are_forgotten() -> None:
    windows = Windows(1, 60_000)
    assert [windows.of(name).take(0) for name in ("a", "b", "a")] == [0, 0, 60_000]
    windows.of("c").take(30_000)
    windows.of("unused")

    windows.sweep(59_999)
    before = len(windows)
    windows.sweep(60_000)

    assert (before, len(windows)) == (4, 2)
    assert windows.of("c").take(60_000) == 30_000
    for number in range(2_500):
        windows.of(str(number)).take(60_000)
    left = []
    for _ in range(3):
        windows.sweep(200_000)
        left.append(len(windows))
    assert left == [1_502, 502, 0]


# Rooms, members and inboxes.


def test_sockets_and_requests_share_the_rate_of_their_room_alone() -> None:
    shell = room_shell(rate=2)
    visitor = shell.enter(inbox=SECRET)
    shell.say(visitor, "a")
    shell.send("b")
    # A room stays full when everybody has left it.
    shell.leave(visitor)

    assert shell.send("c", inbox=SECRET).code == LIMITED
    assert shell.send("a", room="two").seq == 1


def test_a_pseudonym_may_not_use_up_the_room() -> None:
    shell = room_shell(rate=4, pseudonym_rate=2)
    for message_id in ("a", "b"):
        shell.send(message_id, pseudonym="loud")

    # What its own limit refuses does not count for the room.
    for _ in range(5):
        assert shell.send("c", pseudonym="loud").error.retry_after_ms == 5_000
    assert shell.send("c", pseudonym="quiet").seq == 3
    assert shell.send("d").seq == 4
    assert shell.send("e").code == LIMITED


def test_the_state_of_a_room_is_read_as_often_as_the_setting_says() -> None:
    shell = room_shell(state_rate=3)
    rooms, at_ms = shell.rooms, 1_000_000
    for _ in range(3):
        rooms.look(ROOM, None, at_ms)

    with pytest.raises(RoomError) as limited:
        rooms.look(ROOM, None, at_ms + 10_000)

    assert (limited.value.code, limited.value.retry_after_ms) == (LIMITED, 50_000)
    rooms.look("other", None, at_ms + 10_000)
    rooms.look(ROOM, None, at_ms + 60_000)


def test_room_pseudonym_and_inbox_get_their_share_back_when_the_log_refuses() -> None:
    shell = room_shell(rate=5, pseudonym_rate=2, append_rate=2)
    shell.send("a", pseudonym="p")
    shell.deposit("d")
    shell.hold()
    for message_id in ("b", "c", "d", "e"):
        shell.send(message_id, pseudonym="p" if message_id == "b" else "")
    shell.deposit("f")
    shell.refuse()

    assert (shell.send("b", pseudonym="p").seq, shell.deposit("f").seq) == (3, 4)
    assert shell.send("x", pseudonym="p").code == LIMITED
    assert shell.deposit("g").code == LIMITED
    assert [shell.send(name).seq for name in ("c", "h", "i")] == [5, 6, 7]
    assert shell.send("x").code == LIMITED


# Clocks and restarts.


@pytest.mark.parametrize("jump_s", [-86_400, -3, 3, 86_400])
def test_a_room_does_not_care_about_the_wall_clock(jump_s: int) -> None:
    shell = room_shell(rate=2)
    shell.fill(2)
    shell.advance(1_000)

    shell.clock.jump(jump_s)

    assert shell.send("c").error.retry_after_ms == 4_000
    shell.clock.advance(4)
    assert shell.send("c").seq == 3


@pytest.mark.parametrize("timestamps", ["exact", "coarse", "none"])
@restarts
def test_a_room_that_was_full_is_full_after_a_restart(timestamps: str, restart: Restart) -> None:
    shell = room_shell(rate=3, timestamps=timestamps)
    shell.advance(1_234)
    shell.fill(3)
    shell.advance(1_000)
    shell.save_snapshot()

    shell = restart(shell)

    error = shell.send("x").error
    assert error.code == LIMITED
    assert error.retry_after_ms is not None
    assert 4_000 <= error.retry_after_ms <= 5_000
    shell.advance(error.retry_after_ms)
    assert shell.send("x").seq == 4


@pytest.mark.parametrize("saved", [0, 1, 3])
def test_a_room_that_was_full_is_full_after_several_restarts(saved: int) -> None:
    shell = room_shell(rate=3, timestamps="exact")
    shell.fill(saved)
    shell.save_snapshot()
    shell.fill(3 - saved, first=saved + 1)
    assert shell.restarted().send("x").code == LIMITED
    for _ in range(2):
        shell = shell.restarted()
        shell.save_snapshot()

    assert shell.restarted().send("x").code == LIMITED


def test_a_restart_from_a_log_that_was_cut_lets_nobody_in_too_soon() -> None:
    """The binding of the room is then written behind the messages."""
    shell = room_shell(rate=3)
    shell.fill(3)
    first = next(one.offset for one in shell.engine.entries if one.seq)
    shell.perform(shell.hub.anchors.anchor(first, shell.now))
    shell.engine.cut(first)

    again = shell.restarted_from_log()
    again.save_snapshot()

    assert again.restarted().send("x").code == LIMITED
    assert again.room().inbox is not None
    assert again.send("x").code == LIMITED


def test_times_from_the_future_are_taken_for_now_after_a_restart() -> None:
    shell = room_shell(rate=1)
    shell.send("a")
    shell.save_snapshot()

    shell.clock.jump(-3_600)
    again = shell.restarted()

    assert again.send("b").error.retry_after_ms == 5_000
    again.advance(5_000)
    assert again.send("b").seq == 2


def test_appends_do_not_count_for_the_room_after_a_restart_either() -> None:
    shell = room_shell(rate=2)
    shell.send("a")
    for number in range(5):
        shell.deposit(f"d{number}")

    again = shell.restarted_from_log()

    assert again.send("b").seq == 7
    assert again.send("c").code == LIMITED


# The disk.

LARGE = b"A" * 1_000
# What a message of that size takes: its id, and what surrounds it.
LARGE_BYTES = 1_128 + 2


@restarts
def test_rooms_take_no_more_disk_than_they_may_until_messages_expire(restart: Restart) -> None:
    shell = room_shell(disk_bytes_max=3 * LARGE_BYTES, retention_s=100.0)
    for number in range(3):
        assert shell.send(f"m{number}", LARGE, room=f"room{number}").accepted
    shell.save_snapshot()

    for one in (shell, restart(shell)):
        refused = [one.send("m9", room="room9"), one.deposit("m9", inbox=SECRET)]
        assert {caller.code for caller in refused} == {RoomCode.UNAVAILABLE}
        assert all("rooms.disk_bytes_max" in caller.error.text for caller in refused)
        assert one.hub.degradations() == ["rooms_disk_full"]
        assert (one.counts.disk_full, one.rooms.messages.disk_bytes) == (2, 3 * LARGE_BYTES)
        # A repeat takes nothing.
        assert one.send("m0", LARGE, room="room0").accepted.is_repeat
    shell.clock.advance(106)
    shell.perform(shell.rooms.tick(shell.now))
    assert shell.hub.degradations() == []
    assert shell.send("m9", room="room9").seq == 1


def test_what_is_being_written_counts_and_what_was_refused_does_not() -> None:
    shell = room_shell(disk_bytes_max=2 * LARGE_BYTES)
    shell.hold()
    for number in range(2):
        shell.send(f"m{number}", LARGE)
    assert shell.send("m2").code == RoomCode.UNAVAILABLE
    shell.refuse()

    assert (shell.rooms.messages.pending_bytes, shell.rooms.messages.disk_bytes) == (0, 0)
    assert shell.send("m2").seq == 1


BLOB_BYTES = 128 + len("metadata") + 1_000


@restarts
def test_blobs_take_disk_until_retention_deletes_them(restart: Restart) -> None:
    shell = room_shell(disk_bytes_max=3 * BLOB_BYTES)
    for _ in range(3):
        assert isinstance(shell.put_blob(LARGE).result, Blob)
    shell.save_snapshot()

    for one in (shell, restart(shell)):
        refused = [one.put_blob(LARGE), one.send("m1")]
        assert {caller.code for caller in refused} == {RoomCode.UNAVAILABLE}
        assert all("rooms.disk_bytes_max" in caller.error.text for caller in refused)
        assert one.hub.degradations() == ["rooms_disk_full"]
        assert one.rooms.messages.disk_bytes == 3 * BLOB_BYTES
        assert one.blob().version == 3
    for one in (shell, restart(shell)):
        one.rooms.messages.cut(one.engine.head)
        one.perform(one.rooms.tick(one.now))
        assert one.hub.degradations() == []
    assert shell.put_blob(LARGE).result == Blob(4)


def test_a_blob_that_is_being_written_counts_and_a_refused_one_does_not() -> None:
    shell = room_shell(disk_bytes_max=2 * BLOB_BYTES)
    shell.hold()
    for name in ("a", "b"):
        shell.put_blob(LARGE * 2, name=name)
    assert shell.put_blob(b"x", name="c").code == RoomCode.UNAVAILABLE
    shell.refuse()

    assert (shell.rooms.messages.pending_bytes, shell.rooms.messages.disk_bytes) == (0, 0)
    assert shell.put_blob(b"x", name="c").result == Blob(1)


def test_what_is_archived_takes_no_disk() -> None:
    shell = room_shell(disk_bytes_max=10 * LARGE_BYTES)
    shell.use_archive(unreachable)
    for number in range(10):
        shell.send(f"m{number}", LARGE)
    assert shell.hub.degradations() == ["rooms_disk_full"]
    shell.rooms.archived_to(shell.engine.head)
    shell.perform(shell.rooms.tick(shell.now))

    assert shell.hub.degradations() == []
    assert shell.send("more").accepted


def test_ids_do_not_pile_up_while_no_snapshot_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("signalhub.core.rooms.inbox._UNSAVED_MAX", 100)
    shell, ids = room_shell(repeat_s=1_000.0), None
    for number in range(1_000):
        shell.send(f"m{number}")
        if number % 30 == 0:
            # It is taken, and gets nowhere.
            take_snapshot(shell.hub.parts, shell.engine.head)
    ids = shell.rooms.messages.ids

    held = len(ids.unsaved) + sum(len(keys) for _, keys in ids._saving)
    assert held <= 100
    assert held + ids.dropped == 1_000
    assert shell.hub.degradations() == ["room_ids_dropped"]
    assert shell.send("m0").accepted.is_repeat
    shell.save_snapshot()
    shell.clock.advance(1_010)
    shell.perform(shell.rooms.tick(shell.now))
    assert shell.hub.degradations() == []
    assert (ids._unsaved_count, ids._saving) == (0, [])


# Who asks.


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_limits_count_a_network_whose_addresses_one_client_chooses(
    one: str, other: str, is_same: bool
) -> None:
    shell = room_shell(fetch_rate=1)
    requesters = [
        shell.rooms.identify(None, source, shell.now, mono_ms(shell), has_inbox=True)
        for source in (one, other)
    ]

    codes = []
    for requester in requesters:
        caller = Caller()
        request = Read(caller, SECRET, 0, 10, mono_ms(shell), requester)
        shell.perform(shell.rooms.read(request, shell.now))
        codes.append(isinstance(caller.result, RoomError))
    assert codes == [False, is_same]


def test_refused_requests_are_counted_in_bounded_memory() -> None:
    attempts = RefusedAttempts(2)
    assert [attempts.count("a", 0) for _ in range(3)] == [0, 0, 60_000]
    for number in range(20_000):
        attempts.count(str(number), 1_000)
    assert len(attempts._counts) <= 10_001
    # All further ones share a count until the next minute.
    assert attempts.count("one more", 2_000) == 58_000
    assert attempts.count("a", 60_000) == 0
