"""Programs that settle while the hub is killed: what they have settled is theirs no more."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from signalhub import Client, Message, Reconnect, StaleDelivery
from signalhub.testing import spawn_hub
from tests.support.socket.clients import ALICE, BOB, connect, take
from tests.support.volume import volume

KILLS = volume(4, 200)
EACH = 8
SOON = Reconnect(first_jitter_s=0.02, base_s=0.02, cap_s=0.1)


async def settle_all(messages: list[Message]) -> None:
    """Some with an answer, which may say that the copy is stale, some without."""
    waited = [one.ack(wait=True) for one in messages[::2]]
    for one in messages[1::2]:
        await one.ack()
    for outcome in await asyncio.gather(*waited, return_exceptions=True):
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, StaleDelivery)
        else:
            assert outcome is not None
            assert outcome.accepted == 1


async def send(client: Client, cycle: int) -> None:
    for number in range(EACH):
        name = f"{cycle}-{number}"
        await client.publish("orders", "order", name, durable=True, message_id=f"p-{name}")
        await client.ask(BOB, "task", name, message_id=f"a-{name}")


@pytest.mark.timeout(volume(120, 1_800))
async def test_what_was_taken_before_a_kill_and_settled_after_it_is_not_handed_out_again() -> None:
    async with (
        spawn_hub(message_rate=0, mailbox={"limit": 10_000}) as hub,
        connect(hub.url, ALICE, reconnect=SOON) as alice,
        connect(hub.url, BOB, durable=True, acknowledge=True, reconnect=SOON) as bob,
    ):
        await alice.create_topic("orders")
        async with alice.consume("orders", "billing") as orders:
            handed: Counter[str] = Counter()
            for cycle in range(KILLS):
                await send(alice, cycle)
                taken = [*await take(orders, EACH), *await take(bob, EACH)]
                handed.update(f"{one.topic} {one.payload}" for one in taken)
                await hub.kill()
                # Before, while and after the clients connect again.
                settling = asyncio.create_task(settle_all(taken[: EACH // 2]))
                await asyncio.sleep(0.01 * (cycle % 3))
                await hub.start()
                await settle_all(taken[EACH // 2 :])
                await settling
            await send(alice, KILLS)
            last = [*await take(orders, EACH), *await take(bob, EACH)]
            handed.update(f"{one.topic} {one.payload}" for one in last)
            for one in last:
                with suppress(StaleDelivery):
                    await one.ack(wait=True)

            assert {name: count for name, count in handed.items() if count > 1} == {}
            assert len(handed) == 2 * EACH * (KILLS + 1)
            assert (await alice.subscription("orders", "billing")).lag == 0
