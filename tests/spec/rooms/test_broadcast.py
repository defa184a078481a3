"""Many senders, many listeners, one order; and sockets that do not keep up with it."""

from __future__ import annotations

import asyncio

from tests.support.socket.guest import Guest, sealed
from tests.support.socket.http import Web
from tests.support.socket.mailboxes import held_disk
from tests.support.socket.peer import Closed
from tests.support.socket.rooms import (
    ROOM,
    OpenHouse,
    accepted,
    default_inbox,
    exact_clock,
    open_house,
    page_of,
    refused,
)
from tests.support.socket.stage import SMALL_BUFFER

DEFAULT = default_inbox(ROOM)
SENDERS, EACH = 50, 20
LARGE = "A" * 64_000
# Enough for every buffer between the hub and a reader that does not read.
MANY = 250


async def post_some(house: OpenHouse, web: Web, sender: int) -> dict[str, int]:
    """One sender's messages over HTTP; where they landed."""
    ids = [f"s-{sender}-{number}" for number in range(EACH)]
    return {one: accepted(await house.send(one, web=web), one) for one in ids}


async def submit_some(guest: Guest, sender: int) -> dict[str, int]:
    """The same over a socket, half of them without waiting in between."""
    ids = [f"s-{sender}-{number}" for number in range(EACH)]
    landed = {one: await guest.accepted(one) for one in ids[: EACH // 2]}
    for one in ids[EACH // 2 :]:
        guest.send(one)
    acks = [await guest.reply() for _ in ids[EACH // 2 :]]
    return landed | {ack["messageId"]: ack["seq"] for ack in acks}


async def test_fifty_senders_share_one_sequence_without_gaps_that_all_sockets_hear_in_order() -> (
    None
):
    async with open_house(rate=100_000) as house:
        listeners = [await house.join(pseudonym=f"l-{number}") for number in range(4)]
        guests = [await house.join(pseudonym=f"s-{n}") for n in range(SENDERS // 2)]
        webs = [house.another_web() for _ in range(SENDERS - len(guests))]

        async with asyncio.TaskGroup() as group:
            hearing = [group.create_task(one.messages(SENDERS * EACH)) for one in listeners]
            sending = [
                group.create_task(submit_some(guest, n)) for n, guest in enumerate(guests)
            ] + [
                group.create_task(post_some(house, web, n))
                for n, web in enumerate(webs, start=len(guests))
            ]

        landed = {one: seq for task in sending for one, seq in task.result().items()}
        assert sorted(landed.values()) == list(range(1, SENDERS * EACH + 1))
        for heard in (task.result() for task in hearing):
            assert [told["seq"] for told in heard] == list(range(1, SENDERS * EACH + 1))
            assert {told["messageId"]: told["seq"] for told in heard} == landed
        kept = await house.read_all(DEFAULT)
        assert {one["messageId"]: one["seq"] for one in kept} == landed
        for sender in range(SENDERS):
            mine = [landed[f"s-{sender}-{number}"] for number in range(EACH)]
            assert mine == sorted(mine)


async def drain(guest: Guest) -> tuple[list[int], int | None]:
    """What a socket had been sent before it was closed, and with which code."""
    seqs: list[int] = []
    try:
        while True:
            seqs.append((await guest.receive("message"))["seq"])
    except Closed as closed:
        return seqs, closed.code


async def test_socket_that_does_not_keep_up_is_closed_and_nobody_else_notices() -> None:
    # On a clock that stands still nobody loses patience with the slow one before it reads again.
    async with open_house(exact_clock(), rate=100_000, socket_queue=20) as house:
        slow = await house.join(pseudonym="slow", receive_bytes=SMALL_BUFFER)
        quick, sender = await house.join(pseudonym="quick"), await house.join("side-room")
        hearing = asyncio.create_task(quick.messages(MANY))

        for number in range(1, MANY + 1):
            assert await house.sent(f"m-{number}", ciphertext=LARGE) == number
            assert await sender.accepted(f"m-{number}") == number

        assert [told["seq"] for told in await hearing] == list(range(1, MANY + 1))
        await quick.nothing_more()
        seqs, code = await drain(slow)
        assert code == 1013
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) < MANY
        # What it missed is in the inbox.
        assert (await house.read(DEFAULT, len(seqs) + 1, 1)).seqs == [len(seqs) + 1]


async def test_socket_that_takes_nothing_is_closed_after_ten_seconds() -> None:
    clock = exact_clock()
    settings = {"message_rate": 0, "outbound": {"bytes_max": 2**28}}
    async with open_house(clock, rate=100_000, socket_queue=100_000, hub=settings) as house:
        stuck = await house.join(pseudonym="stuck", receive_bytes=SMALL_BUFFER)
        for number in range(1, MANY + 1):
            await house.sent(f"m-{number}", ciphertext=LARGE)

        # The hub looks four times a second, on the loop that sleeps here.
        await asyncio.sleep(0.6)
        clock.advance(11)
        await asyncio.sleep(0.6)

        seqs, code = await drain(stuck)
        assert code == 1013
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) < MANY


async def test_sockets_that_die_in_the_middle_of_a_broadcast_disturb_nobody() -> None:
    async with open_house(rate=100_000) as house:
        survivor = await house.join()
        victims = [await house.join(pseudonym=f"v-{number}") for number in range(20)]

        for number, victim in enumerate(victims, start=1):
            survivor.send(f"m-{number}", LARGE)
            victim.abort()

        acks = [await survivor.reply() for _ in victims]
        assert [ack["seq"] for ack in acks] == list(range(1, 21))
        assert len(await survivor.messages(20)) == 20


async def test_nobody_is_told_before_the_message_is_on_disk() -> None:
    async with open_house() as house:
        guest = await house.join()
        assert await house.sent("before") == 1
        await guest.receive("message")
        webs = [house.another_web() for _ in range(3)]
        with held_disk() as disk:
            disk.hold()
            sending = asyncio.create_task(house.send("a", web=webs[0]))
            await disk.wait()
            repeating = asyncio.create_task(house.send("a", web=webs[1]))
            fetching = asyncio.create_task(house.fetch(DEFAULT, web=webs[2]))
            await guest.nothing_more()
            assert not sending.done()
            assert not repeating.done()
            was_read = fetching.done() and page_of(fetching.result()).ids
            assert was_read in (False, ["before"])
            disk.release()

            answers = [await sending, await repeating]

        assert [accepted(answer, "a") for answer in answers] == [2, 2]
        assert (await guest.receive("message"))["seq"] == 2
        await guest.nothing_more()
        assert page_of(await fetching).ids in (["before"], ["before", "a"])
        assert (await house.read(DEFAULT)).ids == ["before", "a"]


async def test_message_is_refused_where_the_disk_has_failed(broken: OpenHouse) -> None:
    guest = await broken.join()
    assert await broken.sent("kept") == 1
    await guest.receive("message")
    with held_disk() as disk:
        disk.hold()
        sending = asyncio.create_task(broken.send("unknown", web=broken.another_web()))
        await disk.wait()
        disk.break_down()
        disk.release()
        assert refused(await sending, 503) == "UNAVAILABLE"

    assert refused(await broken.send("later"), 503) == "UNAVAILABLE"
    assert refused(await broken.append(DEFAULT, "later"), 503) == "UNAVAILABLE"
    told = await guest.submit("later", sealed("later"))
    assert (told["errorCode"], told["messageId"]) == ("UNAVAILABLE", "later")
    await guest.nothing_more()
    await broken.restart()
    assert accepted(await broken.send("unknown"), "unknown") == 2
    assert (await broken.read(DEFAULT)).ids == ["kept", "unknown"]
