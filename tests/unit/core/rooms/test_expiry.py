"""How long a message can be read: to the millisecond, as the settings say when it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from signalhub.wire.room_ids import default_inbox
from tests.support.memory.rooms import (
    INBOX,
    SECRET,
    bodies,
    deposit,
    fill,
    pages,
    read,
    reconfigured,
    room_shell,
    send,
    seqs,
    without_shelf,
)
from tests.support.memory.shell import MemoryShell


def kept_s(shell: MemoryShell, inbox: str = INBOX) -> list[float]:
    """How long the messages of an inbox are kept from now on."""
    return [(body.expires_ms - shell.now) / 1000 for body in bodies(shell, inbox)]


@pytest.mark.parametrize(
    ("timestamps", "lasts_s"),
    [("exact", 7 * 86_400), ("coarse", 7 * 86_400 - 2), ("none", 7 * 86_400 - 3_202)],
)
@pytest.mark.parametrize("buffer", [1, 500])
def test_a_message_can_be_read_for_a_week_to_the_millisecond(
    timestamps: str, lasts_s: int, buffer: int
) -> None:
    shell = room_shell(timestamps=timestamps, buffer=buffer)
    shell.clock.advance(2)
    fill(shell, 2)
    shell.clock.advance(lasts_s - 0.001)
    before = read(shell).page
    shell.clock.advance(0.001)
    after = read(shell).page

    assert (seqs(before), before.oldest) == ([1, 2], 1)
    assert (seqs(after), after.next_seq, after.oldest) == ([], 0, None)


def test_reading_begins_at_the_oldest_message_that_has_not_expired() -> None:
    shell = room_shell(retention_s=100.0, buffer=2)
    for number in range(1, 11):
        send(shell, f"m{number}")
        shell.clock.advance(20)

    page = read(shell, 1, 3).page

    assert (seqs(page), page.oldest) == ([7, 8, 9], 7)
    assert pages(shell, 2) == [7, 8, 9, 10]


@pytest.mark.parametrize("buffer", [1, 10, 2_000])
@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_a_long_stretch_of_expired_messages_is_not_the_end(buffer: int, limit: int) -> None:
    shell = room_shell(buffer=buffer, retention={"general": 60.0, INBOX: 1_000.0})
    deposit(shell, "first")
    fill(shell, 1_200)
    for number in range(3):
        deposit(shell, f"last{number}")
    shell.clock.advance(61)

    assert pages(shell, limit) == [1, 1_202, 1_203, 1_204]
    assert pages(shell, limit, 2) == [1_202, 1_203, 1_204]
    assert read(shell, 2).page.oldest == 1


def test_an_inbox_whose_messages_have_all_expired_counts_on() -> None:
    shell = room_shell(retention_s=60.0)
    fill(shell, 3)
    shell.clock.advance(60)

    assert send(shell, "m4").seq == 4
    assert (seqs(read(shell).page), read(shell).page.oldest) == ([4], 4)


def test_a_search_for_the_oldest_does_not_hide_what_comes_meanwhile() -> None:
    shell = room_shell(retention_s=60.0, buffer=1)
    fill(shell, 3)
    shell.clock.advance(60)
    shell.engine.is_readable = False
    caller = read(shell)
    fill(shell, 2, first=4)
    shell.engine.is_readable = True
    shell.settle()

    assert caller.page.next_seq in (0, 6)
    assert pages(shell, 10) == [4, 5]


def test_the_longest_matching_prefix_says_how_long() -> None:
    rules = {"gen": 100.0, "general": 200.0, "g": 300.0, "x": 400.0}
    shell = room_shell(retention=rules, retention_s=500.0)
    for room in ("general-1", "gentle", "great", "another"):
        send(shell, "a", room=room)

    found = [
        kept_s(shell, default_inbox(one)) for one in ("general-1", "gentle", "great", "another")
    ]

    assert found == [[200.0], [100.0], [300.0], [500.0]]


def test_the_name_of_the_inbox_counts_too() -> None:
    shell = room_shell(retention={SECRET: 100.0, "gen": 200.0, "dep": 300.0})
    send(shell, "a", inbox=SECRET)
    deposit(shell, "d", inbox="deposits")

    assert (kept_s(shell, SECRET), kept_s(shell, "deposits")) == ([100.0], [300.0])


@pytest.mark.parametrize("restart", [None, MemoryShell.restarted, without_shelf])
def test_what_is_deposited_is_kept_as_long_as_what_is_sent(
    restart: Callable[[MemoryShell], MemoryShell] | None,
) -> None:
    shell = room_shell(retention={"general": 100.0})
    send(shell, "a", inbox=SECRET)
    shell.save_snapshot()
    if restart is not None:
        shell = restart(shell)
    deposit(shell, "d", inbox=SECRET)

    assert kept_s(shell, SECRET) == [100.0, 100.0]


@pytest.mark.parametrize("has_snapshot", [True, False])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"retention_s": 1_000.0}, {"retention_s": 50.0}),
        ({"retention_s": 1_000.0, "retention": {"gen": 200.0}}, {"retention_s": 50.0}),
        ({"retention": {"gen": 200.0}}, {"retention": {"gen": 50.0}}),
    ],
)
def test_other_settings_hold_for_whatever_comes_next(
    has_snapshot: bool, before: dict[str, Any], after: dict[str, Any]
) -> None:
    shell = room_shell(**before)
    fill(shell, 1)
    if has_snapshot:
        shell.save_snapshot()
    again = reconfigured(shell, **after)
    fill(again, 1, first=2)
    deposit(again, "d")

    assert kept_s(again)[0] == kept_s(shell)[0]
    assert kept_s(again)[1:] == [50.0, 50.0]
