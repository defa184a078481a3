"""The wall clock of a running host is set, and the host is restarted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from signalhub.actors import Actor, Token, op, remote
from signalhub.testing import run_hub
from tests.support.actors.hosts import UNLIMITED, Shifting, World, until

DAY_S = 86_400


class Waiter(Actor):
    """Waits for answers and for times."""

    @remote
    def wait(self, noon_ms: int) -> None:
        self.call("waiter/silent", "keep_silent", then=self.hear, timeout=3_600)
        self.alarms.schedule(3_600, self.hear, "delayed")
        noon = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=noon_ms)
        self.alarms.schedule(noon, self.hear, "dated")

    @remote
    def keep_silent(self) -> Token:
        return self.defer()

    def hear(self, what: Any) -> None:
        self.state.put("heard", [*self.heard(), what if isinstance(what, str) else "timeout"])

    @remote
    def heard(self) -> list[str]:
        found: list[str] = self.state.get("heard", [])
        return found


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with run_hub(**UNLIMITED, data=str(tmp_path / "hub")) as hub:
        yield World(hub, tmp_path)


async def test_only_what_was_set_for_a_time_of_day_follows_the_wall_clock(world: World) -> None:
    heard = partial(world.ask, "waiter/1", op(Waiter.heard))
    clock = Shifting()
    async with world.host("waiters", Waiter, clock=clock) as host:
        await world.ask("waiter/1", op(Waiter.wait, clock.now_ms() + DAY_S * 1000))
        clock.jump(-2 * DAY_S)
        # Nothing tells the host; it looks by itself.
        await until(lambda: host.kernel.time.ahead_ms < -DAY_S * 1000)
        assert await heard() == []
    async with world.host("waiters", Waiter, clock=clock):
        assert await heard() == []
        clock.jump(4 * DAY_S)
        await until(heard, ["dated"])
    async with world.host("waiters", Waiter, clock=clock) as host:
        assert await heard() == ["dated"]
        clock.advance(3_590, host)
        assert await heard() == ["dated"]
        clock.advance(20, host)
        await until(lambda: _sorted(heard), ["dated", "delayed", "timeout"])


async def _sorted(heard: Any) -> list[str]:
    return sorted(await heard())
