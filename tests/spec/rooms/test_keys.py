"""The key that hashes names, how many names there may be, and clocks that go backwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from signalhub.wire.errors import SettingsError
from tests.support.socket.rooms import (
    HOUR,
    INBOX,
    OTHER_INBOX,
    ROOM,
    default_inbox,
    exact_clock,
    is_replay,
    open_house,
    refused,
)

DEFAULT = default_inbox(ROOM)


async def test_hub_refuses_to_start_with_a_key_that_does_not_fit_its_data(tmp_path: Path) -> None:
    hub = {"data": str(tmp_path)}
    async with open_house(hub=hub, secret="the right one, long enough") as house:
        await house.sent("a", inbox=INBOX)

    for secret in ("another one, long enough", ""):
        with pytest.raises(SettingsError) as refusal:
            async with open_house(hub=hub, secret=secret):
                pass
        assert "the right one" not in str(refusal.value)
    async with open_house(hub=hub, secret="the right one, long enough") as house:
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


async def test_number_of_rooms_is_limited_and_those_there_are_go_on() -> None:
    async with open_house(limit=4) as house:
        for number in range(10):
            await house.read(f"never-heard-of-{number}")
        await house.sent("a", "one")
        await house.sent("a", "two", inbox=INBOX)

        assert refused(await house.send("a", "three"), 503) == "UNAVAILABLE"
        assert refused(await house.append(OTHER_INBOX, "a"), 503) == "UNAVAILABLE"

        assert await house.sent("b", "one") == 2
        assert await house.sent("b", "two") == 2
        assert (await house.read(INBOX)).ids == ["a", "b"]


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("seconds", [10, 10 * HOUR])
async def test_wall_clock_that_is_set_back_breaks_nothing(restarts: bool, seconds: int) -> None:
    clock = exact_clock()
    async with open_house(clock) as house:
        guest = await house.join()
        await guest.accepted("a")
        await house.appended(DEFAULT, "b")

        if restarts:
            await house.stop()
        clock.jump(-seconds)
        if restarts:
            await house.hub.start()

        assert (await house.read(DEFAULT)).ids == ["a", "b"]
        assert await house.sent("c") == 3
        for message_id in ("a", "c"):
            assert is_replay(await house.send(message_id))
        assert is_replay(await house.append(DEFAULT, "b"))
        assert (await house.read(DEFAULT)).ids == ["a", "b", "c"]
        clock.jump(seconds)
        assert (await house.read(DEFAULT)).ids == ["a", "b", "c"]
        assert is_replay(await house.send("c"))
