"""Sessions that settle their mail themselves: acks, the window, and who may settle what."""

from __future__ import annotations

import pytest

from tests.support.socket.mailboxes import (
    SETTLING,
    ask,
    ask_all,
    attach,
    attempts_of,
    data_of,
    delivery_of,
    join_durable,
    keep_away,
    leave,
    place_of,
    seqs_of,
    settle,
    settled,
    take,
    take_until_asked,
)
from tests.support.socket.peer import HUB, Peer
from tests.support.socket.stage import InProcess, code_of, run_stage, until_gone

A, B = "@(local/a)", "@(local/b)"


async def settling_pair(stage: InProcess) -> tuple[Peer, Peer]:
    """A sender, and a durable actor that settles what it gets."""
    return await stage.connect(), await join_durable(stage, A, settles=True)


async def test_wire_acked_says_what_became_of_the_request(stage: InProcess) -> None:
    sender, target = await settling_pair(stage)
    await ask(sender, A)
    [copy] = await take(target, 1)

    reply = await target.ask("hub:ack", place_of(copy))

    assert reply["type"] == "hub:acked"
    assert reply["from"] == HUB
    assert reply["payload"] == {"floor": 1, "accepted": 1, "ignored": []}


async def test_wire_ack_as_a_tell_settles_without_an_answer(stage: InProcess) -> None:
    sender, target = await settling_pair(stage)
    await ask(sender, A)
    [copy] = await take(target, 1)

    target.send("hub:ack", place_of(copy))
    await target.nothing_more()

    await leave(target)
    _, registered = await attach(stage, A)
    assert registered["waiting"] == 0


async def test_wire_floor_is_the_last_of_an_unbroken_row(stage: InProcess) -> None:
    sender, target = await settling_pair(stage)
    await ask_all(sender, A, range(5))
    first, second, third, fourth, _ = await take(target, 5)

    assert (await settle(target, "hub:ack", third))["floor"] == 0
    assert (await settle(target, "hub:ack", first))["floor"] == 1
    assert (await settle(target, "hub:ack", fourth))["floor"] == 1
    assert (await settle(target, "hub:ack", second))["floor"] == 4


async def test_wire_ack_takes_many_at_once_and_names_what_it_ignored(stage: InProcess) -> None:
    sender, target = await settling_pair(stage)
    await ask_all(sender, A, range(4))
    epoch = delivery_of((await take(target, 4))[0])["epoch"]
    several = {"stream": A, "epoch": epoch, "seqs": [1, 3, 77]}

    reply = settled(await target.ask("hub:ack", several))

    assert reply == {"floor": 1, "accepted": 2, "ignored": [77]}
    again = settled(await target.ask("hub:ack", several | {"seqs": [3, 2, 1]}))
    assert again["floor"] == 3
    assert again["accepted"] == 1
    assert sorted(again["ignored"]) == [1, 3]


async def test_wire_ack_up_to_settles_everything_before(stage: InProcess) -> None:
    sender, target = await settling_pair(stage)
    await ask_all(sender, A, range(5))
    await take(target, 5)

    reply = settled(await target.ask("hub:ack", {"stream": A, "upTo": 4}))

    assert reply["floor"] == 4
    assert reply["accepted"] == 4
    await leave(target)
    back = await join_durable(stage, A, settles=True)
    assert data_of(await take_until_asked(back, sender)) == [4]


async def test_wire_ack_again_is_ignored(stage: InProcess) -> None:
    sender, target = await settling_pair(stage)
    await ask(sender, A)
    [copy] = await take(target, 1)
    await settle(target, "hub:ack", copy)

    again = await settle(target, "hub:ack", copy)

    assert again == {"floor": 1, "accepted": 0, "ignored": [1]}


async def test_wire_missing_epoch_means_the_current_one(stage: InProcess) -> None:
    sender, target = await settling_pair(stage)
    await ask(sender, A)
    await take(target, 1)

    assert settled(await target.ask("hub:ack", {"stream": A, "seq": 1}))["accepted"] == 1


async def test_wire_foreign_epoch_is_refused_with_the_current_one(stage: InProcess) -> None:
    sender, target = await settling_pair(stage)
    ack = await ask(sender, A)
    [copy] = await take(target, 1)

    for type, more in (
        ("hub:ack", {}),
        ("hub:nack", {}),
        ("hub:extend", {"ms": 1000}),
        ("hub:term", {}),
    ):
        reply = await target.ask(type, place_of(copy) | {"epoch": "another"} | more)
        assert code_of(reply) == "wrong_epoch"
        assert reply["payload"]["details"]["current"] == ack["epoch"]
    assert (await settle(target, "hub:ack", copy))["accepted"] == 1


async def test_wire_epoch_of_a_mailbox_that_was_dropped_is_foreign(stage: InProcess) -> None:
    sender, target = await settling_pair(stage)
    await ask(sender, A, "old")
    [old] = await take(target, 1)
    await target.ask("hub:unregister", {"actorAddress": A})
    await target.register(A, durable=True)
    ack = await ask(sender, A, "new")
    [new] = await take(target, 1)

    reply = await target.ask("hub:ack", place_of(old))

    assert code_of(reply) == "wrong_epoch"
    assert reply["payload"]["details"]["current"] == ack["epoch"]
    assert (await settle(target, "hub:ack", new))["accepted"] == 1


async def test_wire_unsettled_copies_come_again_marked_after_a_reconnect(
    stage: InProcess,
) -> None:
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
    kept = [first[0], first[2], first[3]]
    assert [message["id"] for message in again[:3]] == [message["id"] for message in kept]
    assert [message["metadata"]["originalMessageId"] for message in again[:3]] == [
        message["metadata"]["originalMessageId"] for message in kept
    ]


async def test_wire_attempts_count_on_with_every_reconnect(stage: InProcess) -> None:
    sender, target = await settling_pair(stage)
    await ask(sender, A)

    for attempt in range(1, 6):
        copies = await take(target, 1)
        assert attempts_of(copies) == [attempt]
        target.abort()
        await until_gone(sender, A)
        target = await join_durable(stage, A, settles=True)


async def test_r4_address_taken_over_with_unsettled_mail_gives_it_to_the_new_session(
    stage: InProcess,
) -> None:
    sender, old = await settling_pair(stage)
    await ask_all(sender, A, range(3))
    first = await take(old, 3)

    new, registered = await attach(stage, A, settles=True)
    await ask(sender, A, 3)

    assert (await old.receive("hub:disconnect"))["payload"]["reason"] == "duplicate_connection"
    assert await old.until_closed() == 1000
    assert registered["waiting"] == 3
    again = await take(new, 4)
    assert data_of(again) == [0, 1, 2, 3]
    assert attempts_of(again) == [2, 2, 2, 1]
    assert [message["id"] for message in again[:3]] == [message["id"] for message in first]
    assert (await settle(new, "hub:ack", again[3]))["floor"] == 0
    assert settled(await new.ask("hub:ack", {"stream": A, "seqs": [1, 2, 3]}))["floor"] == 4


async def test_r4_session_that_does_not_settle_takes_over_what_was_unsettled(
    stage: InProcess,
) -> None:
    sender, old = await settling_pair(stage)
    await ask_all(sender, A, range(3))
    await take(old, 3)

    new = await join_durable(stage, A)

    again = await take_until_asked(new, sender)
    assert data_of(again) == [0, 1, 2]
    assert attempts_of(again) == [2, 2, 2]
    await leave(new)
    _, registered = await attach(stage, A)
    assert registered["waiting"] == 0


async def test_r13_window_of_256_is_in_flight_and_no_more(stage: InProcess) -> None:
    sender, target = await settling_pair(stage)

    acks = await ask_all(sender, A, range(300))

    assert [ack["status"] for ack in acks] == ["delivered"] * 256 + ["queued"] * 44
    assert seqs_of(await take(target, 256)) == list(range(1, 257))
    await target.nothing_more()
    assert settled(await target.ask("hub:ack", {"stream": A, "seq": 100}))["floor"] == 0
    assert seqs_of(await take(target, 1)) == [257]
    await target.nothing_more()
    await target.ask("hub:ack", {"stream": A, "seqs": list(range(1, 258))})
    assert seqs_of(await take(target, 43)) == list(range(258, 301))


@pytest.mark.parametrize("window", [1, 7])
async def test_rd_s6_window_holds_while_a_backlog_is_worked_off(window: int) -> None:
    async with run_stage(mailbox={"window": window}, message_rate=0) as stage:
        sender = await stage.connect()
        await keep_away(stage, A)
        await ask_all(sender, A, range(50))
        target = await join_durable(stage, A, settles=True)
        heard = await take(target, window)

        for number in range(50):
            await target.nothing_more()
            await settle(target, "hub:ack", heard[number])
            if number + window < 50:
                heard += await take(target, 1)

        assert data_of(heard) == list(range(50))
        assert attempts_of(heard) == [1] * 50


async def test_rd_d5_acks_in_reverse_do_not_stall_what_waits_behind_them() -> None:
    async with run_stage(mailbox={"window": 10}) as stage:
        sender, target = await settling_pair(stage)
        await ask_all(sender, A, range(30))
        heard = await take(target, 10)

        for copy in reversed(heard):
            target.send("hub:ack", place_of(copy))

        assert seqs_of(await take(target, 10)) == list(range(11, 21))


async def test_wire_settling_one_mailbox_leaves_the_others_alone(stage: InProcess) -> None:
    sender, target = await settling_pair(stage)
    await target.register(B, durable=True)
    for address in (A, B):
        await ask(sender, address)
    copies = await take(target, 2)

    await settle(target, "hub:ack", copies[0])
    await leave(target)

    waiting = [(await attach(stage, address))[1]["waiting"] for address in (A, B)]
    assert waiting == [0, 1]


@pytest.mark.parametrize("type", ["hub:ack", "hub:nack", "hub:extend", "hub:term"])
async def test_wire_only_the_session_that_has_the_mailbox_may_settle(
    stage: InProcess, type: str
) -> None:
    sender, target = await settling_pair(stage)
    stranger = await join_durable(stage, B, settles=True)
    await ask(sender, A)
    [copy] = await take(target, 1)

    reply = await stranger.ask(type, place_of(copy) | {"ms": 1000}, sender=A)

    assert code_of(reply) == "not_a_consumer"
    await stranger.nothing_more()
    await target.nothing_more()
    assert (await settle(target, "hub:ack", copy))["accepted"] == 1


async def test_wire_nobody_settles_a_mailbox_whose_actor_is_away(stage: InProcess) -> None:
    sender, stranger = await stage.connect(), await stage.connect(capabilities=SETTLING)
    await keep_away(stage, A)
    await ask(sender, A, "kept")

    reply = await stranger.ask("hub:ack", {"stream": A, "seq": 1})

    assert code_of(reply) == "not_a_consumer"
    back = await join_durable(stage, A)
    assert data_of(await take(back, 1)) == ["kept"]


@pytest.mark.parametrize("stream", ["@(no/body)", "no address", "", "\u0000", "x" * 10_000])
async def test_wire_unknown_stream_is_refused(stage: InProcess, stream: str) -> None:
    sender, target = await settling_pair(stage)
    await ask(sender, A)
    [copy] = await take(target, 1)

    reply = await target.ask("hub:ack", {"stream": stream, "seq": 1})

    assert code_of(reply) in {"not_a_consumer", "unknown_subscription", "internal_error"}
    assert (await settle(target, "hub:ack", copy))["accepted"] == 1


async def test_wire_plain_address_of_a_settling_session_has_nothing_to_settle(
    stage: InProcess,
) -> None:
    sender, target = await stage.connect(), await stage.connect(capabilities=SETTLING)
    await target.register(A)

    ack = await ask(sender, A, "plain")

    assert ack["status"] == "delivered"
    assert "delivery" not in (await target.receive("note"))["metadata"]
    reply = await target.ask("hub:ack", {"stream": A, "seq": 1})
    assert code_of(reply) in {"not_a_consumer", "unknown_subscription"}


async def test_r14_settling_is_exempt_from_the_message_rate() -> None:
    async with run_stage(message_rate=0.001, message_burst=150) as stage:
        sender, target = await settling_pair(stage)
        await ask_all(sender, A, range(100))
        copies = await take(target, 100)

        for copy in copies:
            for type in ("hub:extend", "hub:nack", "hub:term", "hub:ack"):
                target.send(type, place_of(copy) | {"ms": 60_000, "delayMs": 60_000})

        reply = settled(await target.ask("hub:ack", {"stream": A, "seqs": list(range(1, 101))}))
        assert reply["floor"] == 100


async def test_wire_clients_that_settle_and_clients_that_do_not_live_side_by_side(
    stage: InProcess,
) -> None:
    sender = await stage.connect()
    careful = await join_durable(stage, A, settles=True)
    simple = await join_durable(stage, B)
    for address in (A, B):
        await ask_all(sender, address, range(3))
    await take(careful, 3)
    await take(simple, 3)
    await leave(careful, simple)

    waiting = [(await attach(stage, address))[1]["waiting"] for address in (A, B)]

    assert waiting == [3, 0]
