"""The wall clock of a hub with a disk is set while it runs, and it is restarted."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.stage import run_stage

DAY_S = 86_400
GIVEN: dict[str, Any] = {"topic": "t", "type": "news", "data": 1, "durable": True}


@pytest.mark.parametrize("step_s", [2 * DAY_S, -2 * DAY_S])
async def test_ids_and_registrations_outlive_a_step_and_a_restart(step_s: int) -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        first = await stage.join("@(a/writer)")
        published = await first.ask("hub:publish", GIVEN, id="once")
        clock.jump(step_s)
        beat = await first.ask("hub:heartbeat", None)
        assert beat["payload"]["serverTime"] == clock.now_ms()

        await stage.restart()
        sender = await stage.join("@(a/sender)")
        away = await sender.ask_actor("@(a/writer)", "news")
        writer = await stage.connect("@(a/writer)")
        again = await writer.ask("hub:publish", GIVEN, id="once")

        assert away["payload"]["code"] == "actor_reconnecting"
        assert again["payload"]["duplicate"] is True
        assert again["payload"]["seq"] == published["payload"]["seq"]
        health = await stage.health()
        assert health["timestamp"] == clock.now_ms()
