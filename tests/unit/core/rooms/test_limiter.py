"""The sliding window to the millisecond, and the limits of rooms, members and inboxes."""

from __future__ import annotations

import pytest

from signalhub.core import refusals
from signalhub.core.rooms.room import SlidingWindow, Windows
from signalhub.settings.model import RoomsSettings, Settings
from signalhub.wire.errors import RoomCode
from tests.support.memory.rooms import (
    SECRET,
    deposit,
    fill,
    join,
    leave,
    read,
    room_of,
    room_shell,
    say,
    send,
    without_shelf,
)
from tests.support.memory.shell import MemoryShell

LIMITED = RoomCode.RATE_LIMIT_EXCEEDED


def full_window() -> SlidingWindow:
    """500 accepted, one in every millisecond from 1000 on."""
    window = SlidingWindow(500, 5_000)
    assert [window.take(at_ms) for at_ms in range(1_000, 1_500)] == [0] * 500
    return window


@pytest.mark.parametrize(
    ("at_ms", "wait_ms"), [(1_500, 4_500), (4_153, 1_847), (5_998, 2), (5_999, 1)]
)
def test_a_full_window_says_to_the_millisecond_when_the_next_one_fits(
    at_ms: int, wait_ms: int
) -> None:
    assert full_window().take(at_ms) == wait_ms


def test_a_window_has_room_for_exactly_one_when_its_first_one_leaves() -> None:
    window = full_window()

    assert [window.take(6_000), window.take(6_000), window.take(6_001)] == [0, 1, 0]


def test_refusals_are_not_counted() -> None:
    window = full_window()
    for at_ms in range(1_500, 6_000):
        assert window.take(at_ms) > 0

    assert window.take(6_000) == 0


def test_the_wait_is_never_zero_for_one_that_does_not_fit() -> None:
    """Times restored after a restart may lie where the clock has not been yet."""
    window = SlidingWindow(1, 5_000, [10_000])

    assert window.wait_ms(10_000) == 5_000
    assert window.wait_ms(14_999) == 1


def test_looking_takes_nothing() -> None:
    window = SlidingWindow(1, 5_000)

    assert [window.wait_ms(0), window.wait_ms(0), window.take(0), window.wait_ms(0)] == [
        *(0, 0, 0),
        5_000,
    ]


def test_what_did_not_happen_makes_room_at_once() -> None:
    window = SlidingWindow(2, 5_000, [1_000])
    window.record(1_001)

    window.take_back()

    assert (window.wait_ms(1_002), list(window.times)) == (0, [1_000])


def test_nothing_can_be_taken_back_that_has_left_the_window() -> None:
    window = SlidingWindow(1, 5_000)
    window.record(0)
    window.wait_ms(9_000)

    window.take_back()

    assert list(window.times) == []


def test_windows_count_each_name_for_itself() -> None:
    windows = Windows(1, 60_000)

    waits = [windows.of(name).take(0) for name in ("a", "b", "a")]

    assert waits == [0, 0, 60_000]


def test_empty_windows_are_forgotten_and_full_ones_are_not() -> None:
    windows = Windows(1, 60_000)
    windows.of("a").take(0)
    windows.of("b").take(30_000)
    windows.of("unused")

    windows.sweep(59_999)
    before = len(windows)
    windows.sweep(60_000)

    assert (before, len(windows)) == (3, 2)
    assert windows.of("b").take(60_000) == 30_000


def test_many_windows_are_forgotten_bit_by_bit() -> None:
    windows = Windows(1, 60_000)
    for number in range(2_500):
        windows.of(str(number)).take(0)

    left = []
    for _ in range(3):
        windows.sweep(60_000)
        left.append(len(windows))

    assert left == [1_500, 500, 0]


# Rooms.


def test_a_room_takes_its_rate_and_tells_the_next_one_how_long_to_wait() -> None:
    shell = MemoryShell()
    fill(shell, 500)
    shell.advance(3_153)

    error = send(shell, "late").error

    assert (error.code, error.text) == (LIMITED, "Rate limit exceeded")
    assert error.retry_after_ms == 1_847
    assert shell.tally.rooms.limited == 1


def test_a_refused_message_uses_up_no_position() -> None:
    shell = room_shell(rate=2)
    fill(shell, 2)
    send(shell, "refused")
    shell.advance(5_000)

    assert send(shell, "refused").accepted.seq == 3


def test_sockets_and_requests_share_the_rate_of_a_room() -> None:
    shell = room_shell(rate=2)
    visitor = join(shell)
    say(shell, visitor, "a")
    send(shell, "b")

    assert send(shell, "c").code == LIMITED


def test_rooms_do_not_share_their_rates() -> None:
    shell = room_shell(rate=1)
    send(shell, "a", room="one")

    assert send(shell, "a", room="two").seq == 1


def test_a_pseudonym_may_not_use_up_the_room() -> None:
    shell = room_shell(rate=10, pseudonym_rate=2)
    for message_id in ("a", "b"):
        send(shell, message_id, pseudonym="loud")

    assert send(shell, "c", pseudonym="loud").error.retry_after_ms == 5_000
    assert send(shell, "c", pseudonym="quiet").seq == 3
    assert send(shell, "d").seq == 4


def test_what_the_pseudonym_limit_refuses_does_not_count_for_the_room() -> None:
    shell = room_shell(rate=3, pseudonym_rate=1)
    for message_id in ("a", "b", "c", "d"):
        send(shell, message_id, pseudonym="loud")

    assert [send(shell, one, pseudonym=one).seq for one in ("e", "f")] == [2, 3]


def test_an_inbox_takes_120_appends_a_minute_past_the_limit_of_its_room() -> None:
    shell = MemoryShell(Settings(rooms=RoomsSettings(rate=1)))
    send(shell, "room")
    taken = [deposit(shell, f"d{number}").seq for number in range(120)]
    shell.advance(59_999)

    error = deposit(shell, "late").error
    shell.advance(1)

    assert taken == list(range(2, 122))
    assert (error.code, error.retry_after_ms) == (LIMITED, 1)
    assert deposit(shell, "late").seq == 122


def test_an_inbox_is_read_60_times_a_minute_whether_it_exists_or_not() -> None:
    shell = MemoryShell()
    for inbox in ("known", "unknown"):
        if inbox == "known":
            deposit(shell, "d", inbox=inbox)
        pages = [read(shell, inbox=inbox).page for _ in range(60)]

        error = read(shell, inbox=inbox).error

        assert len(pages) == 60
        assert (error.code, error.retry_after_ms) == (LIMITED, 60_000)
    assert read(shell, inbox="another").page.messages == []


# The log refuses.


def refuse_all(shell: MemoryShell) -> None:
    """Nothing that is on its way gets to the disk; what comes next does."""
    shell.engine.refuse(refusals.storage_full())
    shell.engine.is_prompt = True


def test_the_room_gets_its_share_back_when_the_log_refuses() -> None:
    shell = room_shell(rate=3)
    fill(shell, 1)
    shell.engine.is_prompt = False
    for message_id in ("a", "b"):
        send(shell, message_id)
    refuse_all(shell)

    assert [send(shell, one).seq for one in ("a", "b")] == [2, 3]
    assert send(shell, "c").code == LIMITED


def test_the_pseudonym_gets_its_share_back_when_the_log_refuses() -> None:
    shell = room_shell(pseudonym_rate=2)
    send(shell, "a", pseudonym="p")
    shell.engine.is_prompt = False
    send(shell, "b", pseudonym="p")
    refuse_all(shell)

    assert send(shell, "b", pseudonym="p").seq == 2
    assert send(shell, "c", pseudonym="p").code == LIMITED


def test_the_inbox_gets_its_share_back_when_the_log_refuses() -> None:
    shell = room_shell(append_rate=2)
    deposit(shell, "a")
    shell.engine.is_prompt = False
    deposit(shell, "b")
    refuse_all(shell)

    assert deposit(shell, "b").seq == 2
    assert deposit(shell, "c").code == LIMITED


# Clocks and restarts.


@pytest.mark.parametrize("jump_s", [-86_400, -3, 3, 86_400])
def test_a_room_does_not_care_about_the_wall_clock(jump_s: int) -> None:
    shell = room_shell(rate=2)
    fill(shell, 2)
    shell.advance(1_000)

    shell.clock.jump(jump_s)

    assert send(shell, "c").error.retry_after_ms == 4_000
    shell.clock.advance(4)
    assert send(shell, "c").seq == 3


@pytest.mark.parametrize("timestamps", ["exact", "coarse", "none"])
@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_room_that_was_full_is_full_after_a_restart(timestamps: str, has_snapshot: bool) -> None:
    shell = room_shell(rate=3, timestamps=timestamps)
    shell.advance(1_234)
    fill(shell, 3)
    shell.advance(1_000)

    if has_snapshot:
        shell.save_snapshot()
        shell = shell.restarted()
    else:
        shell = without_shelf(shell)

    error = send(shell, "x").error
    assert error.code == LIMITED
    assert error.retry_after_ms is not None
    assert 4_000 <= error.retry_after_ms <= 5_000
    shell.advance(error.retry_after_ms)
    assert send(shell, "x").seq == 4


def test_a_snapshot_with_exact_times_restores_the_window_to_the_millisecond() -> None:
    shell = room_shell(rate=2, timestamps="exact")
    fill(shell, 1)
    shell.advance(700)
    fill(shell, 1, first=2)
    shell.save_snapshot()
    shell.advance(300)

    again = shell.restarted()

    assert send(again, "x").error.retry_after_ms == 4_000
    again.advance(4_000)
    assert send(again, "x").seq == 3
    assert send(again, "y").error.retry_after_ms == 700


def test_what_came_after_the_snapshot_counts_too() -> None:
    shell = room_shell(rate=3, timestamps="exact")
    fill(shell, 2)
    shell.save_snapshot()
    fill(shell, 1, first=3)

    assert send(shell.restarted(), "x").code == LIMITED


@pytest.mark.parametrize("saved", [0, 1, 3])
def test_a_room_that_was_full_is_full_after_two_restarts(saved: int) -> None:
    shell = room_shell(rate=3, timestamps="exact")
    fill(shell, saved)
    shell.save_snapshot()
    fill(shell, 3 - saved, first=saved + 1)
    for _ in range(2):
        shell = shell.restarted()
        shell.save_snapshot()

    assert send(shell.restarted(), "x").code == LIMITED


def test_a_room_that_was_full_is_full_after_two_restarts_from_a_log_that_was_cut() -> None:
    shell = room_shell(rate=3)
    fill(shell, 3)
    first = next(one.offset for one in shell.engine.entries if one.seq)
    shell.perform(shell.hub.anchors.anchor(first, shell.now))
    shell.engine.cut(first)
    shell = without_shelf(shell)
    shell.save_snapshot()

    assert send(shell.restarted(), "x").code == LIMITED


def test_what_was_accepted_long_before_a_restart_does_not_count() -> None:
    shell = room_shell(rate=2)
    fill(shell, 2)
    shell.save_snapshot()
    shell.advance(10_000)

    assert [send(one, "x").seq for one in (shell.restarted(), without_shelf(shell))] == [3, 3]


def test_times_from_the_future_are_taken_for_now_after_a_restart() -> None:
    shell = room_shell(rate=1)
    send(shell, "a")
    shell.save_snapshot()

    shell.clock.jump(-3_600)
    again = shell.restarted()

    assert send(again, "b").error.retry_after_ms == 5_000
    again.advance(5_000)
    assert send(again, "b").seq == 2


def test_appends_do_not_count_for_the_room_after_a_restart_either() -> None:
    shell = room_shell(rate=2)
    send(shell, "a")
    for number in range(5):
        deposit(shell, f"d{number}")

    again = without_shelf(shell)

    assert send(again, "b").seq == 7
    assert send(again, "c").code == LIMITED


def test_a_restart_from_a_log_that_was_cut_lets_nobody_in_too_soon() -> None:
    """The binding of the room is then written behind the messages."""
    shell = room_shell(rate=3)
    fill(shell, 3)
    first = next(one.offset for one in shell.engine.entries if one.seq)
    shell.perform(shell.hub.anchors.anchor(first, shell.now))
    shell.engine.cut(first)

    again = without_shelf(shell)

    assert room_of(again).inbox is not None
    assert send(again, "x").code == LIMITED


def test_a_room_stays_full_when_everybody_has_left_it() -> None:
    shell = room_shell(rate=1)
    visitor = join(shell, inbox=SECRET)
    say(shell, visitor, "a")
    leave(shell, visitor)

    assert send(shell, "b", inbox=SECRET).code == LIMITED
