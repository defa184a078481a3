"""The hub is killed between an action of somebody and its answer: both are there, or neither."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from signalhub.log.disk import SystemDisk
from signalhub.log.reader import Reader
from signalhub.testing import HubProcess, spawn_hub
from signalhub.wire.entry import Kind, OperatedBody, SubscriptionDefinitionBody, decode_body
from tests.support.socket.desk import ADMIN, BILLING
from tests.support.socket.http import HungUp, Web
from tests.support.volume import volume

KILLS = volume(2, 1_000)
# As long as a few actions take.
LATEST_S = 0.02


def actions(data: Path) -> tuple[list[int], int]:
    """The windows that were set, in order, and how many actions are on record."""
    windows, recorded = [], 0
    for one in Reader.of_folder(SystemDisk(data / "log")).scan(0):
        if one.kind == Kind.SUBSCRIPTION_CREATED:
            windows.append(decode_body(SubscriptionDefinitionBody, one.body).window)
        elif one.kind == Kind.OPERATED:
            body = decode_body(OperatedBody, one.body)
            recorded += body.request == "hub:sub_update"
    # The first one made the subscription.
    return windows[1:], recorded


async def act(hub: HubProcess, number: int, begun: asyncio.Event) -> int:
    """Set one window after another until the hub is gone; the last one that was answered."""
    web = Web(hub.port)
    answered = 0
    with suppress(HungUp, OSError):
        for window in range(number, 10_000):
            answer = await web.post(f"{ADMIN}{BILLING}/set", {"window": window})
            if answer.status == 200:
                answered = window
                begun.set()
    web.close()
    return answered


@pytest.mark.timeout(60 + 5 * KILLS)
async def test_an_action_is_done_and_on_record_or_neither() -> None:
    chance = random.Random(7)
    settings: dict[str, Any] = {"log": {"retention_s": 10.0**9}, "dispatch": {"idle_expiry_s": 0}}
    async with spawn_hub(**settings) as hub:
        web = Web(hub.port)
        assert (await web.request("PUT", f"{ADMIN}/topics/orders")).status == 200
        web.close()
        await subscribed(hub)
        for _ in range(KILLS):
            windows, _ = actions(hub.data)
            begun = asyncio.Event()
            acting = asyncio.create_task(act(hub, 1 + len(windows), begun))
            if not windows:
                await asyncio.wait_for(begun.wait(), 20)
            await asyncio.sleep(chance.random() * LATEST_S)
            await hub.kill()
            answered = await acting
            await hub.start()

            windows, recorded = actions(hub.data)
            assert recorded == len(windows)
            assert windows == sorted(set(windows))
            assert not answered or answered in windows
        assert windows


async def subscribed(hub: HubProcess) -> None:
    """Somebody has made the subscription, and has left."""
    import signalhub

    async with signalhub.connect(hub.url, "@(demo/alice)") as me, me.consume("orders", "billing"):
        pass
