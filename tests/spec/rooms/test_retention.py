"""How long messages, positions and ids are kept, what is told of times, and the key of names."""

from __future__ import annotations

from pathlib import Path

import pytest

from signalhub.testing import FakeClock
from signalhub.wire.errors import SettingsError
from tests.support.socket.rooms import (
    DAY,
    HOUR,
    INBOX,
    KEPT,
    ROOM,
    OpenHouse,
    default_inbox,
    exact_clock,
    is_replay,
    open_house,
    refused,
)
from tests.support.socket.stage import eventually

DEFAULT = default_inbox(ROOM)
WEEK = 7 * DAY
running_or_not = pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])


async def let_pass(clock: FakeClock, house: OpenHouse, seconds: float, restarts: bool) -> None:
    """Let time pass, while the hub runs or while it is away."""
    if restarts:
        await house.stop()
        clock.advance(seconds)
        await house.hub.start()
    else:
        clock.advance(seconds)


@pytest.mark.parametrize("buffer", [500, 2], ids=["memory", "log"])
@running_or_not
async def test_message_is_readable_for_seven_days_and_positions_go_on(
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
        for from_seq, limit, seqs in [(0, 100, range(11, 16)), (3, 2, range(11, 13))]:
            page = await house.read(DEFAULT, from_seq, limit)
            assert (page.seqs, page.oldest) == (list(seqs), 11)

        await let_pass(clock, house, HOUR, restarts)
        page = await house.read(DEFAULT, 5)
        assert (page.messages, page.next_seq, page.oldest) == ([], 5, None)
        assert (await house.join()).welcome["lastSeq"] == 15
        await let_pass(clock, house, 10 * DAY, restarts)
        assert await house.sent("later") == 16
        assert (await house.read(DEFAULT)).seqs == [16]


@running_or_not
async def test_wall_clock_that_is_set_back_breaks_nothing(restarts: bool) -> None:
    clock = exact_clock()
    async with open_house(clock, limit=3) as house:
        await house.sent("a")
        await house.appended(DEFAULT, "b")
        clock.jump(-10 * HOUR)
        await let_pass(clock, house, 0, restarts)

        assert (await house.read(DEFAULT)).ids == ["a", "b"]
        assert await house.sent("c") == 3
        for seconds in (0, 10 * HOUR):
            clock.jump(seconds)
            assert all([is_replay(await house.send(one)) for one in ("a", "b", "c")])
            assert (await house.read(DEFAULT)).ids == ["a", "b", "c"]
        # No more rooms and inboxes than allowed.
        assert refused(await house.send("a", "another"), 503) == "UNAVAILABLE"


# The key of names.


async def test_hub_refuses_to_start_with_a_key_that_does_not_fit_its_data(tmp_path: Path) -> None:
    hub = {"data": str(tmp_path)}
    right = "the right one, long enough"
    async with open_house(hub=hub, secret=right) as house:
        await house.sent("a", inbox=INBOX)

    for secret in ("another one, long enough", ""):
        with pytest.raises(SettingsError) as refusal:
            async with open_house(hub=hub, secret=secret):
                pass
        assert "the right one" not in str(refusal.value)
    async with open_house(hub=hub, secret=right) as house:
        assert (await house.read(INBOX)).ids == ["a"]


def key_in(folder: Path) -> Path:
    (key,) = [path for path in folder.rglob("*") if "key" in path.name]
    return key


async def test_hub_without_a_key_makes_one_that_nobody_else_may_read(tmp_path: Path) -> None:
    hub = {"data": str(tmp_path)}
    async with open_house(hub=hub) as house:
        await house.sent("a")
    key = key_in(tmp_path)
    secret = key.read_bytes()
    assert key.stat().st_mode & 0o077 == 0
    async with open_house(hub=hub) as house:
        assert (await house.read(DEFAULT)).ids == ["a"]
    assert key.read_bytes() == secret

    key.unlink()

    with pytest.raises(SettingsError):
        async with open_house(hub=hub):
            pass


async def test_log_that_rooms_keep_too_large_is_told_by_name() -> None:
    small = {"log": {"segment_bytes": 2**16, "retention_bytes": 2**18}}
    async with open_house(exact_clock(), hub=small) as house:
        app = house.hub.app
        for number in range(10):
            await house.sent(f"m-{number}", ciphertext="A" * 60_000)
        assert app.hub.degradations() == []
        app._retain(house.hub.clock.now_ms())

        await eventually(lambda: app._degradations() == ["retention_held_by_rooms"])

        body = (await house.web.get("/health")).json
        assert body["degradations"] == ["retention_held_by_rooms"]
