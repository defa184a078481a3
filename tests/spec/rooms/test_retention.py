"""How long messages, positions and ids are remembered, and what is said about when they came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.rooms import (
    DAY,
    HOUR,
    INBOX,
    ROOM,
    OpenHouse,
    accepted,
    default_inbox,
    exact_clock,
    fill,
    is_replay,
    open_house,
    page_of,
    stored,
)

DEFAULT = default_inbox(ROOM)
WEEK = 7 * DAY
# Without an archive the log alone serves what memory does not, as long as it is kept.
KEPT: dict[str, Any] = {"message_rate": 0, "log": {"retention_s": 100.0 * DAY}}


async def let_pass(clock: FakeClock, house: OpenHouse, seconds: float, restarts: bool) -> None:
    """Let time pass, while the hub runs or while it is away."""
    if restarts:
        await house.stop()
        clock.advance(seconds)
        await house.hub.start()
    else:
        clock.advance(seconds)


@pytest.mark.parametrize("buffer", [500, 2], ids=["memory", "log"])
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
async def test_message_is_readable_for_seven_days_and_not_longer(
    buffer: int, restarts: bool
) -> None:
    clock = exact_clock()
    async with open_house(clock, buffer=buffer, hub=KEPT) as house:
        for number in range(1, 11):
            await house.sent(f"m-{number}")
        clock.advance(HOUR)
        for number in range(11, 16):
            await house.sent(f"m-{number}")

        await let_pass(clock, house, WEEK - HOUR - 10, restarts)
        assert (await house.read(DEFAULT)).seqs == list(range(1, 16))

        await let_pass(clock, house, 20, restarts)
        page = await house.read(DEFAULT)
        assert page.seqs == list(range(11, 16))
        assert page.oldest == 11
        assert (await house.read(DEFAULT, 3, 2)).seqs == [11, 12]

        await let_pass(clock, house, HOUR, restarts)
        page = await house.read(DEFAULT)
        assert (page.messages, page.next_seq, page.oldest) == ([], 0, None)
        assert (await house.read(DEFAULT, 5)).next_seq == 5


async def test_sockets_are_not_told_of_positions_that_have_expired() -> None:
    clock = exact_clock()
    async with open_house(clock, retention_s=HOUR, hub=KEPT) as house:
        await fill(await house.join(), 5)
        clock.advance(2 * HOUR)

        welcome = (await house.join()).welcome

        assert welcome == {"action": "welcome", "lastSeq": 5, "oldestBufferedSeq": 6}


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
async def test_positions_go_on_though_everything_has_expired(restarts: bool) -> None:
    clock = exact_clock()
    async with open_house(clock, retention_s=HOUR, hub=KEPT) as house:
        for number in range(1, 4):
            await house.sent(f"m-{number}")
        await house.appended(INBOX, "a")

        for life in range(1, 4):
            await let_pass(clock, house, 10 * DAY, restarts)
            assert (await house.read(DEFAULT)).messages == []
            assert await house.sent(f"later-{life}") == 3 + life
            assert await house.appended(INBOX, f"later-{life}") == 1 + life
            assert (await house.read(DEFAULT)).seqs == [3 + life]


async def test_longest_prefix_of_room_or_inbox_decides() -> None:
    clock = exact_clock()
    overrides = {"day": DAY, "day-and-": HOUR, "day-and-night": 3.0 * DAY, "acme:": HOUR}
    async with open_house(clock, retention=overrides, hub=KEPT, retention_s=2 * DAY) as house:
        rooms = {
            "day": DAY,
            "day-x": DAY,
            "day-and-x": HOUR,
            "day-and-nights": 3 * DAY,
            "da": 2 * DAY,
            "other-day": 2 * DAY,
            "acme:general": HOUR,
        }
        for room in rooms:
            await house.sent("a", room)
        await house.appended("day-and-inbox", "a")
        await house.sent("a", "some-room", inbox="day-inbox")

        expected = {default_inbox(room): seconds for room, seconds in rooms.items()}
        expected |= {"day-and-inbox": HOUR, "day-inbox": DAY}
        passed = 0
        for moment in (HOUR - 10, HOUR + 10, DAY - 10, DAY + 10, 2 * DAY - 10, 2 * DAY + 10):
            clock.advance(moment - passed)
            passed = moment
            found = {one: bool((await house.read(one)).messages) for one in expected}
            assert found == {one: passed < seconds for one, seconds in expected.items()}


async def test_retention_is_decided_when_a_message_is_accepted(tmp_path: Path) -> None:
    clock = exact_clock()
    settings = KEPT | {"data": str(tmp_path)}
    async with open_house(clock, retention_s=HOUR, hub=settings) as house:
        await house.sent("short")
    async with open_house(clock, retention_s=DAY, hub=settings) as house:
        await house.sent("long")
    async with open_house(clock, retention_s=HOUR, hub=settings) as house:
        assert (await house.read(DEFAULT)).ids == ["short", "long"]
        await house.sent("short-again")

        clock.advance(2 * HOUR)
        assert (await house.read(DEFAULT)).ids == ["long"]
        clock.advance(DAY)
        assert (await house.read(DEFAULT)).ids == []


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
async def test_id_is_known_for_seven_days_and_not_longer(restarts: bool) -> None:
    clock = exact_clock()
    async with open_house(clock, retention_s=60, hub=KEPT) as house:
        await house.sent("a")
        await house.appended(INBOX, "b")

        await let_pass(clock, house, WEEK - 10, restarts)
        assert (await house.read(DEFAULT)).messages == []
        repeats = [await house.send("a"), await house.append(INBOX, "b")]
        assert all(is_replay(answer) for answer in repeats)
        assert (accepted(repeats[0]), stored(repeats[1])) == (1, 1)
        guest = await house.join()
        assert (await guest.submit("a"))["duplicate"] is True

        # A repeat does not prolong it.
        await let_pass(clock, house, 20, restarts)
        assert await house.sent("a") == 2
        assert await house.appended(INBOX, "b") == 2
        assert (await house.read(DEFAULT)).seqs == [2]


async def test_how_long_ids_are_known_is_a_setting() -> None:
    clock = exact_clock()
    async with open_house(clock, repeat_s=100, hub=KEPT) as house:
        await house.sent("a")
        clock.advance(90)
        assert is_replay(await house.send("a"))
        clock.advance(20)

        assert await house.sent("a") == 2

        # Clients tell the two apart no more; pages must not show one id twice all the same.
        assert len(page_of(await house.fetch(DEFAULT)).ids) == 1


@pytest.mark.parametrize(
    ("timestamps", "told"),
    [
        ("exact", ["2025-10-09T08:53:20.000Z", "2025-10-09T08:53:29.999Z"]),
        ("coarse", ["2025-10-09T08:53:20Z", "2025-10-09T08:53:25Z"]),
        ("none", [None, None]),
    ],
)
async def test_times_are_told_as_they_are_in_steps_or_not_at_all(
    timestamps: str, told: list[str | None]
) -> None:
    clock = exact_clock()
    async with open_house(clock, timestamps=timestamps) as house:
        await house.sent("a", inbox=INBOX)
        clock.advance(9.999)
        answer = await house.append(INBOX, "b")
        assert answer.json.get("storedAt") == told[1]
        repeat = await house.append(INBOX, "b")
        assert repeat.json.get("storedAt") in (told[1], None)

        for _ in range(2):
            messages = (await house.read(INBOX)).messages
            assert [message.get("createdAt") for message in messages] == told
            assert all(("createdAt" in message) is (told[0] is not None) for message in messages)
            await house.restart()


@pytest.mark.parametrize("timestamps", ["exact", "coarse", "none"])
async def test_retention_does_not_depend_on_what_is_told_about_time(timestamps: str) -> None:
    clock = exact_clock()
    async with open_house(clock, timestamps=timestamps, retention_s=DAY, hub=KEPT) as house:
        await house.sent("a")

        # Times may be kept as coarse as an hour.
        clock.advance(DAY - HOUR)
        assert (await house.read(DEFAULT)).ids == ["a"]
        clock.advance(HOUR + 1)
        assert (await house.read(DEFAULT)).ids == []
