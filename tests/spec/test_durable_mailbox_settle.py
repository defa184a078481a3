"""Sessions that settle their mail themselves: acks, the window, retries, and dead letters.

Delays are checked from below only, and a jitter of a fifth is allowed for.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.peer import HUB, code_of
from tests.support.socket import stage as sockets
from tests.support.socket.mailboxes import (
    DEAD_MAILBOXES,
    SETTLING,
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
    keep_away,
    leave,
    place_of,
    risen_by,
    seqs_of,
    settle,
    settled,
    settling_pair,
    take,
    take_until_asked,
)
from tests.support.stage import RunStage, Stage

A, B = "@(local/a)", "@(local/b)"
SETTLES = ["hub:ack", "hub:nack", "hub:extend", "hub:term"]
JITTER = 0.79
QUICK: dict[str, Any] = {"backoff_ms": 10, "backoff_cap_ms": 1000}
PATIENT: dict[str, Any] = {"backoff_ms": 60_000, "backoff_cap_ms": 60_000}


@pytest.mark.also_over_sockets
async def test_wire_acks_say_what_became_of_them(stage: Stage) -> None:
    sender, target = await settling_pair(stage)
    await ask_all(sender, A, range(9))
    copies = await take(target, 9)
    epoch = delivery_of(copies[0])["epoch"]

    reply = await target.ask("hub:ack", place_of(copies[0]))
    assert (reply["type"], reply["from"]) == ("hub:acked", HUB)
    assert reply["payload"] == {"floor": 1, "accepted": 1, "ignored": []}
    again = await settle(target, "hub:ack", copies[0])
    assert again == {"floor": 1, "accepted": 0, "ignored": [1]}
    # The floor is the last of an unbroken row.
    floors = [(await settle(target, "hub:ack", copies[seq - 1]))["floor"] for seq in (4, 2, 5, 3)]
    assert floors == [1, 2, 2, 5]
    # Without an epoch the current one is meant.
    several = {"stream": A, "seqs": [6, 8, 77]}
    assert settled(await target.ask("hub:ack", several)) == {
        "floor": 6,
        "accepted": 2,
        "ignored": [77],
    }
    mixed = settled(await target.ask("hub:ack", several | {"epoch": epoch, "seqs": [8, 7, 6]}))
    assert (mixed["floor"], mixed["accepted"], sorted(mixed["ignored"])) == (8, 1, [6, 8])
    # As a tell it settles without an answer.
    target.send("hub:ack", place_of(copies[8]))
    await target.nothing_more()
    await leave(target)
    assert (await attach(stage, A))[1]["waiting"] == 0


@pytest.mark.parametrize("type", SETTLES)
async def test_wire_settle_that_does_not_fit_settles_nothing(stage: Stage, type: str) -> None:
    sender, target = await settling_pair(stage)
    stranger = await join_durable(stage, B, settles=True)
    await ask(sender, A, "old")
    [old] = await take(target, 1)
    await target.ask("hub:unregister", {"actorAddress": A})
    await target.register(A, durable=True)
    ack = await ask(sender, A, "new")
    [copy] = await take(target, 1)

    # Of another epoch, invented or of the mailbox before this one.
    for foreign in (place_of(copy) | {"epoch": "another"}, place_of(old)):
        reply = await target.ask(type, foreign | {"ms": 1000})
        assert code_of(reply) == "wrong_epoch"
        assert reply["payload"]["details"]["current"] == ack["epoch"]
    # By somebody else, whatever name it gives.
    reply = await stranger.ask(type, place_of(copy) | {"ms": 1000}, sender=A)
    assert code_of(reply) == "not_a_consumer"
    for stream in ("@(no/body)", "no address", "", "\u0000", "x" * 10_000):
        reply = await target.ask(type, {"stream": stream, "seq": 1, "ms": 1000})
        assert code_of(reply) in {"not_a_consumer", "unknown_subscription", "internal_error"}
    await stranger.nothing_more()
    await target.nothing_more()
    assert (await settle(target, "hub:ack", copy))["accepted"] == 1


async def test_wire_nobody_settles_where_no_settling_session_is(stage: Stage) -> None:
    sender, stranger = await stage.connect(), await stage.connect(capabilities=SETTLING)
    await keep_away(stage, A)
    await ask(sender, A, "kept")
    assert code_of(await stranger.ask("hub:ack", {"stream": A, "seq": 1})) == "not_a_consumer"
    back = await join_durable(stage, A)
    assert data_of(await take(back, 1)) == ["kept"]

    # A plain address of a settling session has nothing to settle either.
    await stranger.register(B)
    assert (await ask(sender, B, "plain"))["status"] == "delivered"
    assert "delivery" not in (await stranger.receive("note"))["metadata"]
    reply = await stranger.ask("hub:ack", {"stream": B, "seq": 1})
    assert code_of(reply) in {"not_a_consumer", "unknown_subscription"}


@pytest.mark.also_over_sockets
async def test_r4_unsettled_copies_come_again_marked_after_a_reconnect(stage: Stage) -> None:
    sender, target = await settling_pair(stage)
    await ask_all(sender, A, range(4))
    first = await take(target, 4)
    await settle(target, "hub:ack", first[1])
    await leave(target)
    await ask(sender, A, 4)

    back, registered = await attach(stage, A, settles=True)

    assert registered["waiting"] == 4
    again = await take_until_asked(back, sender)
    assert data_of(again) == [0, 2, 3, 4]
    assert seqs_of(again) == [1, 3, 4, 5]
    assert attempts_of(again) == [2, 2, 2, 1]
    for before, after in zip([first[0], *first[2:]], again[:3], strict=True):
        assert after["id"] == before["id"]
        assert after["metadata"]["originalMessageId"] == before["metadata"]["originalMessageId"]


@pytest.mark.parametrize("settles", [True, False], ids=["settles", "does not settle"])
async def test_r4_address_taken_over_gives_unsettled_mail_to_the_new_session(
    stage: Stage, settles: bool
) -> None:
    sender, old = await settling_pair(stage)
    other = await join_durable(stage, B, settles=True)
    for address in (A, B):
        await ask_all(sender, address, range(3))
    first = await take(old, 3)
    await take(other, 3)

    new, registered = await attach(stage, A, settles=settles)
    await ask(sender, A, 3)

    assert (await old.receive("hub:disconnect"))["payload"]["reason"] == "duplicate_connection"
    assert await old.until_closed() == 1000
    assert registered["waiting"] == 3
    again = await take(new, 4)
    assert data_of(again) == [0, 1, 2, 3]
    assert attempts_of(again) == [2, 2, 2, 1]
    assert [message["id"] for message in again[:3]] == [message["id"] for message in first]
    if settles:
        assert (await settle(new, "hub:ack", again[3]))["floor"] == 0
        assert settled(await new.ask("hub:ack", {"stream": A, "seqs": [1, 2, 3]}))["floor"] == 4
    await leave(new, other)
    waiting = [(await attach(stage, address))[1]["waiting"] for address in (A, B)]
    assert waiting == [0, 3]


# The window.


async def test_r13_window_of_256_is_in_flight_and_no_more(stage: Stage) -> None:
    sender, target = await settling_pair(stage)

    acks = await ask_all(sender, A, range(300))

    assert [ack["status"] for ack in acks] == ["delivered"] * 256 + ["queued"] * 44
    assert seqs_of(await take(target, 256)) == list(range(1, 257))
    await target.nothing_more()
    assert settled(await target.ask("hub:ack", {"stream": A, "seq": 100}))["floor"] == 0
    assert seqs_of(await take(target, 1)) == [257]
    await target.nothing_more()
    # Acks in reverse do not stall what waits behind them.
    for seq in range(257, 0, -1):
        target.send("hub:ack", {"stream": A, "seq": seq})
    assert sorted(seqs_of(await take(target, 43))) == list(range(258, 301))


async def test_r14_settling_is_exempt_from_the_message_rate(run_stage: RunStage) -> None:
    async with run_stage(message_rate=0.001, message_burst=150) as stage:
        sender, target = await settling_pair(stage)
        await ask_all(sender, A, range(100))
        copies = await take(target, 100)

        for copy in copies:
            for type in ("hub:extend", "hub:nack", "hub:term", "hub:ack"):
                target.send(type, place_of(copy) | {"ms": 60_000, "delayMs": 60_000})

        reply = settled(await target.ask("hub:ack", {"stream": A, "seqs": list(range(1, 101))}))
        assert reply["floor"] == 100


# Retries.


async def test_wire_nacked_copy_comes_again_marked_and_holds_up_nobody(run_stage: RunStage) -> None:
    async with run_stage(mailbox=QUICK) as stage:
        sender, target = await settling_pair(stage)
        await ask(sender, A, "again", metadata={"mine": 7})
        [first] = await take(target, 1)

        reply = await settle(target, "hub:nack", first, reason="busy", delayMs=900)

        assert reply == {"floor": 0, "accepted": 1, "ignored": []}
        await ask_all(sender, A, range(1, 10))
        assert data_of(await take(target, 9)) == list(range(1, 10))
        [second] = await take(target, 1)
        assert delivery_of(second) == delivery_of(first) | {"attempt": 2, "redelivered": True}
        assert (second["id"], second["payload"]) == (first["id"], "again")
        assert second["metadata"]["mine"] == 7
        assert second["metadata"]["originalMessageId"] == first["metadata"]["originalMessageId"]
        assert (await settle(target, "hub:ack", second))["floor"] == 1


async def test_rd_s7_pause_after_a_failure_is_that_of_the_settings(run_stage: RunStage) -> None:
    mailbox = {"backoff_ms": 100, "backoff_cap_ms": 300, "max_deliveries": 9}
    async with run_stage(mailbox=mailbox) as stage:
        sender, target = await settling_pair(stage)
        await ask(sender, A)
        [copy] = await take(target, 1)

        for asked_ms, least_ms in ((0, 100), (0, 200), (0, 300), (3_600_000, 300)):
            began = stage.clock.now_ms()
            await settle(target, "hub:nack", copy, delayMs=asked_ms)
            [copy] = await take(target, 1)
            assert stage.clock.now_ms() - began >= least_ms * JITTER


async def test_wire_deadline_of_a_copy_is_kept_unless_it_is_settled_or_extended(
    run_stage: RunStage,
) -> None:
    async with run_stage(mailbox=QUICK | {"ack_timeout_ms": 300}) as stage:
        sender, target = await settling_pair(stage)
        began = stage.clock.now_ms()
        await ask_all(sender, A, ["settled", "extended", "neglected"])
        done, extended, neglected = await take(target, 3)

        await settle(target, "hub:ack", done)
        reply = await settle(target, "hub:extend", extended, ms=60_000)

        assert reply == {"floor": 1, "accepted": 1, "ignored": []}
        heard = await take(target, 2)
        assert stage.clock.now_ms() - began >= 300
        assert data_of(heard) == ["neglected"] * 2
        assert attempts_of(heard) == [2, 3]
        assert heard[0]["id"] == neglected["id"]
        # It may also be brought nearer.
        await settle(target, "hub:extend", heard[1], ms=60_000)
        await settle(target, "hub:extend", extended, ms=20)
        assert data_of(await take(target, 1)) == ["extended"]


async def test_an_extension_names_the_attempt_by_its_number(run_stage: RunStage) -> None:
    async with run_stage(mailbox=QUICK | {"ack_timeout_ms": 300}) as stage:
        sender, target = await settling_pair(stage)
        await ask(sender, A, "slow")
        [first] = await take(target, 1)
        [second] = await take(target, 1)

        stale = await settle(target, "hub:extend", first, attempt=1, ms=60_000)
        current = await settle(target, "hub:extend", second, attempt=2, ms=60_000)

        assert (stale["accepted"], stale["ignored"]) == (0, [1])
        assert (current["accepted"], current["ignored"]) == (1, [])


# Dead letters.


@pytest.mark.parametrize(("settings", "failures"), [({"max_deliveries": 3}, 3), ({}, 6)])
async def test_r22_exhausted_mail_goes_to_the_dead_letters_and_later_mail_goes_on(
    run_stage: RunStage, settings: dict[str, int], failures: int
) -> None:
    async with run_stage(mailbox=QUICK | {"window": 1} | settings) as stage:
        letters = await hear_dead_letters(stage)
        sender, target = await settling_pair(stage)
        ack = await ask(sender, A, {"order": 7})
        await ask(sender, A, "good")

        for attempt in range(1, failures + 1):
            [copy] = await take(target, 1)
            assert delivery_of(copy)["attempt"] == attempt
            await settle(target, "hub:nack", copy, reason=f"failure {attempt}")

        letter = await letters.receive("note")
        assert letter["payload"] == {"order": 7}
        facts = dead_letter_of(letter)
        assert A in (facts["topic"], facts["subscription"])
        assert (facts["epoch"], facts["seq"]) == (ack["epoch"], ack["seq"])
        assert facts["attempts"] == failures
        assert f"failure {failures}" in facts["reason"]
        [good] = await take(target, 1)
        assert good["payload"] == "good"
        assert (await settle(target, "hub:ack", good))["floor"] == 2
        await letters.nothing_more()


async def test_r22_term_goes_at_once_to_the_dead_letters_which_are_a_durable_topic(
    stage: Stage,
) -> None:
    letters = await hear_dead_letters(stage)
    sender, target = await settling_pair(stage)
    await ask_all(sender, A, ["bad", "worse", "good"])
    *bad, good = await take(target, 3)

    for floor, copy in enumerate(bad, 1):
        reply = await settle(target, "hub:term", copy, reason="cannot be read")
        assert reply == {"floor": floor, "accepted": 1, "ignored": []}
        letter = await letters.receive("note")
        assert letter["payload"] == copy["payload"]
        assert dead_letter_of(letter)["attempts"] == 1
        assert "cannot be read" in dead_letter_of(letter)["reason"]

    assert (await settle(target, "hub:ack", good))["floor"] == 3
    auditor = await stage.join("@(local/auditor)")
    audit = {"topic": DEAD_MAILBOXES, "subscription": "audit", "from": "earliest"}
    joined = await auditor.ask("hub:subscribe", audit)
    assert (joined["type"], joined["payload"]["head"]) == ("hub:subscribed", 2)
    assert data_of(await take(auditor, 2)) == ["bad", "worse"]


async def test_rd_failures_and_acks_of_what_is_not_in_flight_are_counted() -> None:
    async with sockets.run_stage(mailbox=PATIENT) as stage:
        sender, target = await settling_pair(stage)
        await ask_all(sender, A, range(17))
        copies = await take(target, 17)
        before = await counters(stage)

        for copy in copies:
            target.send("hub:nack", place_of(copy))
        await target.nothing_more()
        assert risen_by(17, before, await counters(stage))
        reply = settled(await target.ask("hub:ack", {"stream": A, "seqs": list(range(18, 49))}))

        assert (reply["accepted"], reply["ignored"]) == (0, list(range(18, 49)))
        assert risen_by(31, before, await counters(stage))
