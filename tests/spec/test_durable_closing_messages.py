"""Messages that close the socket of whoever gets them: they are given up, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.peer import Peer
from tests.support.socket.mailboxes import (
    ask_all,
    attempts_of,
    data_of,
    dead_letter_of,
    hear_dead_letters,
    join_durable,
    settle,
    settling_pair,
    take,
)
from tests.support.stage import RunStage, Stage

A = "@(local/a)"
LARGE = "x" * 50_000
QUICK: dict[str, Any] = {"backoff_ms": 1, "backoff_cap_ms": 1, "max_deliveries": 3}
TOO_BIG, UNREADABLE, GOING_AWAY, FAILED = 1009, 1007, 1001, 1011


async def close_and_return(stage: Stage, peer: Peer, code: int) -> Peer:
    """A client that closes its socket and reconnects."""
    peer.close(code)
    await peer.until_closed()
    return await join_durable(stage, A, settles=True)


@pytest.mark.also_over_sockets
async def test_a_message_that_is_too_big_for_its_reader_ends_as_a_dead_letter(
    run_stage: RunStage,
) -> None:
    async with run_stage(mailbox=QUICK) as stage:
        letters = await hear_dead_letters(stage)
        sender, target = await settling_pair(stage)
        await ask_all(sender, A, ["before", LARGE, "after"])

        for _ in range(QUICK["max_deliveries"]):
            while LARGE not in data_of(await take(target, 1)):
                pass
            target = await close_and_return(stage, target, TOO_BIG)

        letter = await letters.receive("note")
        assert letter["payload"] == LARGE
        assert dead_letter_of(letter)["attempts"] == QUICK["max_deliveries"]
        assert "1009" in dead_letter_of(letter)["reason"]
        rest = await take(target, 2)
        assert sorted(data_of(rest)) == ["after", "before"]
        for copy in rest:
            assert (await settle(target, "hub:ack", copy))["accepted"] == 1
        await letters.nothing_more()


async def test_the_only_message_of_a_reader_that_cannot_read_it_is_given_up(
    run_stage: RunStage,
) -> None:
    async with run_stage(mailbox=QUICK) as stage:
        letters = await hear_dead_letters(stage)
        sender, target = await settling_pair(stage)
        await ask_all(sender, A, ["odd"])

        for _ in range(QUICK["max_deliveries"]):
            await take(target, 1)
            target = await close_and_return(stage, target, UNREADABLE)

        assert (await letters.receive("note"))["payload"] == "odd"


@pytest.mark.parametrize(
    ("code", "messages"), [(1000, 1), (GOING_AWAY, 1), (FAILED, 1), (UNREADABLE, 2)]
)
async def test_other_disconnects_count_against_nothing(
    run_stage: RunStage, code: int, messages: int
) -> None:
    async with run_stage(mailbox=QUICK) as stage:
        letters = await hear_dead_letters(stage)
        sender, target = await settling_pair(stage)
        await ask_all(sender, A, range(messages))

        for attempt in range(1, 3 * QUICK["max_deliveries"]):
            copies = await take(target, messages)
            assert data_of(copies) == [*range(messages)]
            assert attempts_of(copies) == [attempt] * messages
            target = await close_and_return(stage, target, code)
        target.abort()
        target = await join_durable(stage, A, settles=True)
        assert data_of(await take(target, messages)) == [*range(messages)]
        await letters.nothing_more()
