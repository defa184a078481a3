"""Mail that fails: nack, ack timeout, extend, term, back-off, and the dead letters at the end.

Delays are checked from below only, and a jitter of a fifth is allowed for.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.socket.mailboxes import (
    DEAD_MAILBOXES,
    ask,
    ask_all,
    attach,
    attempts_of,
    counters,
    data_of,
    dead_letter_of,
    delivery_of,
    hear_dead_letters,
    join_durable,
    leave,
    place_of,
    risen_by,
    settle,
    settled,
    take,
    take_until_asked,
)
from tests.support.socket.peer import Envelope, Peer
from tests.support.socket.stage import InProcess, run_stage, until_gone

A = "@(local/a)"
JITTER = 0.8
QUICK: dict[str, Any] = {"backoff_ms": 10, "backoff_cap_ms": 1000}


async def settling_pair(stage: InProcess) -> tuple[Peer, Peer]:
    """A sender, and a durable actor that settles what it gets."""
    return await stage.connect("@(local/sender)"), await join_durable(stage, A, settles=True)


async def nack(target: Peer, copy: Envelope, **more: Any) -> tuple[Envelope, float]:
    """Nack a copy and wait for the next one; how many milliseconds that took."""
    clock = asyncio.get_running_loop().time
    start = clock()
    await settle(target, "hub:nack", copy, **more)
    [again] = await take(target, 1)
    return again, (clock() - start) * 1000


async def test_wire_nacked_copy_comes_again_marked() -> None:
    async with run_stage(mailbox=QUICK) as stage:
        sender, target = await settling_pair(stage)
        await ask(sender, A, "again", metadata={"mine": 7})
        [first] = await take(target, 1)

        reply = await settle(target, "hub:nack", first, reason="busy")

        assert reply == {"floor": 0, "accepted": 1, "ignored": []}
        [second] = await take(target, 1)
        assert delivery_of(second) == delivery_of(first) | {"attempt": 2, "redelivered": True}
        assert second["id"] == first["id"]
        assert second["payload"] == "again"
        assert second["metadata"]["mine"] == 7
        assert second["metadata"]["originalMessageId"] == first["metadata"]["originalMessageId"]
        assert (await settle(target, "hub:ack", second))["floor"] == 1


async def test_wire_nacked_copy_does_not_hold_up_the_others() -> None:
    async with run_stage(mailbox={"backoff_ms": 60_000, "backoff_cap_ms": 60_000}) as stage:
        sender, target = await settling_pair(stage)
        await ask(sender, A, 0)
        [first] = await take(target, 1)
        await settle(target, "hub:nack", first)

        await ask_all(sender, A, range(1, 10))

        assert data_of(await take(target, 9)) == list(range(1, 10))


async def test_wire_nack_waits_at_least_for_the_delay_it_asks_for() -> None:
    async with run_stage(mailbox=QUICK) as stage:
        sender, target = await settling_pair(stage)
        await ask(sender, A)
        [first] = await take(target, 1)

        second, pause_ms = await nack(target, first, delayMs=400)

        assert pause_ms >= 400 * JITTER
        assert second["id"] == first["id"]


async def test_rd_s7_nack_waits_at_least_for_the_policy_though_it_asks_for_less() -> None:
    async with run_stage(mailbox={"backoff_ms": 300, "backoff_cap_ms": 1000}) as stage:
        sender, target = await settling_pair(stage)
        await ask(sender, A)
        [first] = await take(target, 1)

        second, pause_ms = await nack(target, first, delayMs=0)

        assert pause_ms >= 300 * JITTER
        assert second["id"] == first["id"]


async def test_rd_s7_pause_doubles_with_every_failure() -> None:
    mailbox = {"backoff_ms": 100, "backoff_cap_ms": 10_000, "max_deliveries": 9}
    async with run_stage(mailbox=mailbox) as stage:
        sender, target = await settling_pair(stage)
        await ask(sender, A)
        [copy] = await take(target, 1)

        for failures, least_ms in ((1, 100), (2, 200), (3, 400)):
            copy, pause_ms = await nack(target, copy)
            assert delivery_of(copy)["attempt"] == failures + 1
            assert pause_ms >= least_ms * JITTER


async def test_rd_s7_cap_bounds_what_a_client_may_ask_for() -> None:
    async with run_stage(mailbox={"backoff_ms": 10, "backoff_cap_ms": 50}) as stage:
        sender, target = await settling_pair(stage)
        await ask(sender, A)
        [first] = await take(target, 1)

        await settle(target, "hub:nack", first, delayMs=3_600_000)

        assert attempts_of(await take(target, 1)) == [2]


async def test_rd_s7_late_ack_of_a_copy_that_waits_to_be_retried_is_accepted() -> None:
    async with run_stage(mailbox={"backoff_ms": 60_000, "backoff_cap_ms": 60_000}) as stage:
        sender, target = await settling_pair(stage)
        await ask(sender, A)
        [copy] = await take(target, 1)
        await settle(target, "hub:nack", copy)

        late = await settle(target, "hub:ack", copy)

        assert late == {"floor": 1, "accepted": 1, "ignored": []}
        await leave(target)
        _, registered = await attach(stage, A)
        assert registered["waiting"] == 0


async def test_wire_copy_that_is_not_settled_in_time_comes_again_marked() -> None:
    async with run_stage(mailbox=QUICK | {"ack_timeout_ms": 100}) as stage:
        sender, target = await settling_pair(stage)
        clock = asyncio.get_running_loop().time
        start = clock()
        await ask(sender, A)

        first, second = await take(target, 2)

        assert clock() - start >= 0.1
        assert attempts_of([first, second]) == [1, 2]
        assert second["id"] == first["id"]
        assert (await settle(target, "hub:ack", second))["floor"] == 1


async def test_wire_ack_in_time_stops_the_clock() -> None:
    async with run_stage(mailbox=QUICK | {"ack_timeout_ms": 300}) as stage:
        sender, target = await settling_pair(stage)
        await ask(sender, A, "settled")
        [copy] = await take(target, 1)
        await settle(target, "hub:ack", copy)
        await ask(sender, A, "neglected")

        heard = await take(target, 3)

        assert data_of(heard) == ["neglected"] * 3


async def test_wire_extend_moves_the_deadline_of_the_copy_it_names_only() -> None:
    async with run_stage(mailbox=QUICK | {"ack_timeout_ms": 300}) as stage:
        sender, target = await settling_pair(stage)
        await ask_all(sender, A, ["extended", "neglected"])
        [extended, _] = await take(target, 2)

        reply = await settle(target, "hub:extend", extended, ms=60_000)

        assert reply == {"floor": 0, "accepted": 1, "ignored": []}
        heard = await take(target, 2)
        assert data_of(heard) == ["neglected"] * 2
        assert (await settle(target, "hub:ack", extended))["accepted"] == 1


async def test_wire_extend_may_bring_the_deadline_nearer() -> None:
    async with run_stage(mailbox=QUICK) as stage:
        sender, target = await settling_pair(stage)
        await ask(sender, A)
        [first] = await take(target, 1)

        await settle(target, "hub:extend", first, ms=20)

        assert attempts_of(await take(target, 1)) == [2]


async def test_r22_exhausted_mail_goes_to_the_dead_letters() -> None:
    async with run_stage(mailbox=QUICK | {"max_deliveries": 3}) as stage:
        letters = await hear_dead_letters(stage)
        sender, target = await settling_pair(stage)
        ack = await ask(sender, A, {"order": 7})

        for attempt in range(1, 4):
            copies = await take(target, 1)
            assert attempts_of(copies) == [attempt]
            await settle(target, "hub:nack", copies[0], reason=f"failure {attempt}")

        letter = await letters.receive("note")
        assert letter["payload"] == {"order": 7}
        facts = dead_letter_of(letter)
        assert A in (facts["topic"], facts["subscription"])
        assert (facts["epoch"], facts["seq"]) == (ack["epoch"], ack["seq"])
        assert facts["attempts"] == 3
        assert "failure 3" in facts["reason"]
        assert await take_until_asked(target, sender) == []
        await letters.nothing_more()


async def test_r22_six_failures_exhaust_a_message_by_default() -> None:
    async with run_stage(mailbox={"backoff_ms": 1, "backoff_cap_ms": 1}) as stage:
        letters = await hear_dead_letters(stage)
        sender, target = await settling_pair(stage)
        await ask(sender, A)

        for _ in range(6):
            [copy] = await take(target, 1)
            await settle(target, "hub:nack", copy)

        assert dead_letter_of(await letters.receive("note"))["attempts"] == 6
        await target.nothing_more()


async def test_r22_timeouts_exhaust_a_message_too() -> None:
    async with run_stage(mailbox=QUICK | {"ack_timeout_ms": 50, "max_deliveries": 2}) as stage:
        letters = await hear_dead_letters(stage)
        sender, target = await settling_pair(stage)
        await ask(sender, A)

        assert attempts_of(await take(target, 2)) == [1, 2]

        assert dead_letter_of(await letters.receive("note"))["attempts"] == 2
        await target.nothing_more()


async def test_r22_exhausted_mail_is_settled_and_later_mail_goes_on() -> None:
    async with run_stage(mailbox=QUICK | {"max_deliveries": 1, "window": 1}) as stage:
        letters = await hear_dead_letters(stage)
        sender, target = await settling_pair(stage)
        await ask_all(sender, A, range(3))

        for number in range(3):
            [copy] = await take(target, 1)
            assert copy["payload"] == number
            await settle(target, "hub:ack" if number == 1 else "hub:nack", copy)

        assert data_of(await take(letters, 2)) == [0, 2]
        await ask(sender, A, 3)
        [copy] = await take(target, 1)
        assert (await settle(target, "hub:ack", copy))["floor"] == 4


async def test_r22_term_goes_to_the_dead_letters_at_once(stage: InProcess) -> None:
    letters = await hear_dead_letters(stage)
    sender, target = await settling_pair(stage)
    await ask_all(sender, A, ["bad", "good"])
    bad, good = await take(target, 2)

    reply = await settle(target, "hub:term", bad, reason="cannot be read")

    assert reply == {"floor": 1, "accepted": 1, "ignored": []}
    letter = await letters.receive("note")
    assert letter["payload"] == "bad"
    facts = dead_letter_of(letter)
    assert facts["attempts"] == 1
    assert "cannot be read" in facts["reason"]
    assert (await settle(target, "hub:ack", good))["floor"] == 2


async def test_r22_dead_letters_of_mailboxes_are_a_durable_topic_like_any_other(
    stage: InProcess,
) -> None:
    letters = await hear_dead_letters(stage)
    sender, target = await settling_pair(stage)
    await ask_all(sender, A, range(3))
    for copy in await take(target, 3):
        await settle(target, "hub:term", copy)
    await take(letters, 3)
    auditor = await stage.join("@(local/auditor)")

    reply = await auditor.ask(
        "hub:subscribe",
        {
            "topic": DEAD_MAILBOXES,
            "subscription": "audit",
            "mode": "exclusive",
            "from": "earliest",
        },
    )

    assert reply["type"] == "hub:subscribed"
    assert reply["payload"]["head"] == 3
    assert data_of(await take(auditor, 3)) == [0, 1, 2]


async def test_rd_d13_reconnects_do_not_use_up_the_failures() -> None:
    async with run_stage(mailbox=QUICK | {"max_deliveries": 2}) as stage:
        letters = await hear_dead_letters(stage)
        sender, target = await settling_pair(stage)
        await ask(sender, A)
        for attempt in range(1, 11):
            assert attempts_of(await take(target, 1)) == [attempt]
            target.abort()
            await until_gone(sender, A)
            target = await join_durable(stage, A, settles=True)

        [copy] = await take(target, 1)
        await settle(target, "hub:nack", copy)
        [copy] = await take(target, 1)

        assert (await settle(target, "hub:ack", copy))["floor"] == 1
        await letters.nothing_more()


async def test_rd_s7_leaving_does_not_settle_or_fail_what_waits_to_be_retried() -> None:
    async with run_stage(mailbox={"backoff_ms": 60_000, "backoff_cap_ms": 60_000}) as stage:
        sender, target = await settling_pair(stage)
        await ask_all(sender, A, range(2))
        first, _ = await take(target, 2)
        await settle(target, "hub:nack", first)
        await leave(target)

        back = await join_durable(stage, A, settles=True)

        assert 1 in data_of(await take_until_asked(back, sender))
        reply = settled(await back.ask("hub:ack", {"stream": A, "seqs": [1, 2]}))
        assert reply == {"floor": 2, "accepted": 2, "ignored": []}


async def test_rd_failures_are_counted() -> None:
    async with run_stage(mailbox={"backoff_ms": 60_000, "backoff_cap_ms": 60_000}) as stage:
        sender, target = await settling_pair(stage)
        await ask_all(sender, A, range(17))
        copies = await take(target, 17)
        before = await counters(stage)

        for copy in copies:
            target.send("hub:nack", place_of(copy))
        await target.nothing_more()

        assert risen_by(17, before, await counters(stage))


async def test_rd_acks_of_what_is_not_in_flight_are_counted(stage: InProcess) -> None:
    _, target = await settling_pair(stage)
    before = await counters(stage)

    reply = settled(await target.ask("hub:ack", {"stream": A, "seqs": list(range(1, 18))}))

    assert reply["accepted"] == 0
    assert reply["ignored"] == list(range(1, 18))
    assert risen_by(17, before, await counters(stage))
