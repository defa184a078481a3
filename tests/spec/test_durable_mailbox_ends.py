"""Rulings 7, 9, 12 and 19: how long mailboxes and what is in them last, and what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.mailboxes import (
    ask,
    ask_all,
    attach,
    counters,
    data_of,
    join_durable,
    keep_away,
    leave,
    risen_by,
    seqs_of,
    take,
    take_until_asked,
)
from tests.support.socket.peer import PATIENCE_S
from tests.support.socket.stage import InProcess, addresses, code_of, run_stage

A = "@(local/a)"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def timed(clock: FakeClock) -> AsyncIterator[InProcess]:
    """A hub whose clock the test turns."""
    async with run_stage(clock, message_rate=0) as stage:
        yield stage


async def test_r9_registering_again_without_durable_keeps_the_mailbox(stage: InProcess) -> None:
    sender = await stage.connect()
    await keep_away(stage, A)
    await ask(sender, A, "kept")

    target = await stage.connect()
    registered = await target.register(A)

    assert registered["payload"]["durable"] is True
    assert registered["payload"]["waiting"] == 1
    assert data_of(await take(target, 1)) == ["kept"]
    await leave(target)
    assert (await ask(sender, A))["seq"] == 2


async def test_r9_explicit_false_drops_the_mailbox_and_counts_what_was_in_it(
    stage: InProcess,
) -> None:
    sender = await stage.connect()
    await keep_away(stage, A)
    await ask_all(sender, A, range(17))
    before = await counters(stage)

    target, registered = await attach(stage, A, durable=False)

    assert not registered["durable"]
    assert not registered["waiting"]
    await target.nothing_more()
    assert risen_by(17, before, await counters(stage))
    ack = await ask(sender, A, "live")
    assert "seq" not in ack
    assert data_of(await take(target, 1)) == ["live"]
    await leave(target)
    assert (await sender.ask_actor(A, "note"))["type"] == "hub:unknown_actor"


async def test_r9_unregister_drops_the_mailbox_and_counts_what_was_in_it(
    stage: InProcess,
) -> None:
    sender, target = await stage.connect(), await join_durable(stage, A, settles=True)
    await ask_all(sender, A, range(17))
    await take(target, 17)
    before = await counters(stage)

    reply = await target.ask("hub:unregister", {"actorAddress": A})

    assert reply["type"] == "hub:unregistered"
    assert risen_by(17, before, await counters(stage))
    assert (await sender.ask_actor(A, "note"))["type"] == "hub:unknown_actor"
    assert await addresses(sender, includeAway=True) == []
    back, registered = await attach(stage, A)
    assert registered["waiting"] == 0
    await back.nothing_more()


@pytest.mark.parametrize("how", ["unregister", "false"])
async def test_r19_mailbox_made_again_has_another_epoch(stage: InProcess, how: str) -> None:
    sender, target = await stage.connect(), await join_durable(stage, A)
    first = await ask(sender, A)
    if how == "unregister":
        await target.ask("hub:unregister", {"actorAddress": A})
    else:
        await target.register(A, durable=False)

    await target.register(A, durable=True)
    second = await ask(sender, A)

    assert second["epoch"] != first["epoch"]
    assert second["seq"] == 1


async def test_r9_actor_that_becomes_durable_later_has_a_mailbox_from_then_on(
    stage: InProcess,
) -> None:
    sender, target = await stage.connect(), await stage.join(A)
    assert "seq" not in await ask(sender, A)

    registered = await target.register(A, durable=True)

    assert registered["payload"]["durable"] is True
    assert (await ask(sender, A))["seq"] == 1
    await leave(target)
    assert (await ask(sender, A))["status"] == "queued"


async def test_r8_mailbox_does_not_end_with_the_lease(timed: InProcess, clock: FakeClock) -> None:
    sender = await timed.connect()
    await keep_away(timed, A)
    await timed.hub.stop()
    await timed.hub.start()

    clock.advance(4000)

    sender = await timed.connect()
    assert (await ask(sender, A, "kept"))["status"] == "queued"
    back = await join_durable(timed, A)
    assert data_of(await take(back, 1)) == ["kept"]


async def test_r7_durable_actor_hidden_by_its_lease_misses_nothing(
    timed: InProcess, clock: FakeClock
) -> None:
    sender, target = await timed.connect(), await join_durable(timed, A)
    clock.advance(301)

    ack = await ask(sender, A, "kept")
    await target.ask("hub:heartbeat")

    assert ack["seq"] == 1
    assert data_of(await take(target, 1)) == ["kept"]


@pytest.mark.parametrize("idle_s", [3600, None], ids=["an hour", "the default of seven days"])
async def test_r9_mailbox_is_kept_for_its_idle_time_and_no_longer(idle_s: int | None) -> None:
    clock = FakeClock()
    mailbox = {} if idle_s is None else {"idle_s": idle_s}
    length_s = idle_s or 7 * 86_400
    settings: dict[str, Any] = {
        "mailbox": mailbox,
        "registry": {"sweep_s": 0.02},
        "message_rate": 0,
    }
    async with run_stage(clock, **settings) as stage:
        sender = await stage.connect()
        await keep_away(stage, A)
        await ask(sender, A, "kept")
        clock.advance(length_s - 60)
        target = await join_durable(stage, A)
        assert data_of(await take(target, 1)) == ["kept"]
        await ask(sender, A)
        await leave(target)
        clock.advance(length_s - 60)
        assert await addresses(sender, includeAway=True) == [A]

        clock.advance(120)

        async with asyncio.timeout(PATIENCE_S):
            while await addresses(sender, includeAway=True):
                pass
        assert (await sender.ask_actor(A, "note"))["type"] == "hub:unknown_actor"


async def test_r12_what_expires_while_it_waits_is_dropped_counted_and_stops_nobody(
    timed: InProcess, clock: FakeClock
) -> None:
    sender = await timed.connect()
    await keep_away(timed, A)
    await ask(sender, A, "no lifetime")
    await ask_all(sender, A, ["short"] * 17, ttl=1000)
    await ask(sender, A, "long", ttl=60_000)
    clock.advance(2)
    before = await counters(timed)

    target, registered = await attach(timed, A)

    assert registered["waiting"] == 2
    heard = await take_until_asked(target, sender)
    assert data_of(heard) == ["no lifetime", "long"]
    assert seqs_of(heard) == [1, 19]
    assert risen_by(17, before, await counters(timed))


async def test_r12_what_has_expired_already_is_refused_for_an_away_actor_too(
    timed: InProcess, clock: FakeClock
) -> None:
    sender = await timed.connect()
    await keep_away(timed, A)

    reply = await sender.ask_actor(A, "note", ttl=1000, timestamp=clock.now_ms() - 1001)

    assert code_of(reply) == "message_expired"
    assert reply["payload"]["retryable"] is False
    assert (await ask(sender, A))["seq"] == 1


async def test_r12_unsettled_copy_that_expires_is_not_sent_again(
    timed: InProcess, clock: FakeClock
) -> None:
    sender, target = await timed.connect(), await join_durable(timed, A, settles=True)
    await ask(sender, A, "short", ttl=1000)
    await ask(sender, A, "long")
    await take(target, 2)
    await leave(target)
    clock.advance(2)

    back, registered = await attach(timed, A, settles=True)

    assert registered["waiting"] == 1
    assert data_of(await take_until_asked(back, sender)) == ["long"]


async def test_r12_lifetimes_go_on_while_the_hub_is_down(
    timed: InProcess, clock: FakeClock
) -> None:
    sender = await timed.connect()
    await keep_away(timed, A)
    await ask(sender, A, "short", ttl=1000)
    await ask(sender, A, "long", ttl=60_000)
    await timed.hub.stop()
    clock.advance(2)
    await timed.hub.start()

    target, registered = await attach(timed, A)

    assert registered["waiting"] == 1
    assert data_of(await take_until_asked(target, await timed.connect())) == ["long"]
