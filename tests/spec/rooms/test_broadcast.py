"""Many senders, many listeners, one order; slow sockets; and disks that are slow or fail."""

from __future__ import annotations

import asyncio

from tests.support.socket.disk import held_disk
from tests.support.socket.guest import Guest
from tests.support.socket.http import Web
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
TOTAL = SENDERS * EACH
LARGE = "A" * 64_000
# Enough for every buffer between the hub and a reader that does not read.
MANY = 250


async def post_some(house: OpenHouse, web: Web, sender: int) -> dict[str, int]:
    """One sender's messages over HTTP, and their positions."""
    ids = [f"s-{sender}-{number}" for number in range(EACH)]
    return {one: accepted(await house.send(one, web=web), one) for one in ids}


async def submit_some(guest: Guest, sender: int) -> dict[str, int]:
    """The same over a socket, half of them without waiting in between."""
    ids = [f"s-{sender}-{number}" for number in range(EACH)]
    positions = {one: await guest.accepted(one) for one in ids[: EACH // 2]}
    for one in ids[EACH // 2 :]:
        guest.send(one)
    acks = [await guest.reply() for _ in ids[EACH // 2 :]]
    return positions | {ack["messageId"]: ack["seq"] for ack in acks}


async def test_fifty_senders_share_one_sequence_that_all_sockets_hear_in_order() -> None:
    async with open_house(rate=100_000) as house:
        listeners = [await house.join(pseudonym=f"l-{number}") for number in range(4)]
        guests = [await house.join(pseudonym=f"s-{n}") for n in range(SENDERS // 2)]
        victims = [await house.join(pseudonym=f"v-{n}") for n in range(20)]

        async with asyncio.TaskGroup() as group:
            hearing = [group.create_task(one.messages(TOTAL)) for one in listeners]
            sending = [group.create_task(submit_some(guest, n)) for n, guest in enumerate(guests)]
            sending += [
                group.create_task(post_some(house, house.another_web(), n))
                for n in range(len(guests), SENDERS)
            ]
            # Sockets that die in the middle disturb nobody.
            for victim in victims:
                await victim.receive("message")
                victim.abort()

        positions = {one: seq for task in sending for one, seq in task.result().items()}
        assert sorted(positions.values()) == list(range(1, TOTAL + 1))
        for heard in (task.result() for task in hearing):
            assert [told["seq"] for told in heard] == list(range(1, TOTAL + 1))
            assert {told["messageId"]: told["seq"] for told in heard} == positions
        kept = await house.read_all(DEFAULT)
        assert {one["messageId"]: one["seq"] for one in kept} == positions
        for sender in range(SENDERS):
            mine = [positions[f"s-{sender}-{number}"] for number in range(EACH)]
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
    # On a clock that stands still the slow one is not closed for its silence before.
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
            joining = asyncio.create_task(house.join(pseudonym="p-2"))
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
        # A socket that came meanwhile hears all that its welcome did not count.
        late = await joining
        last = late.welcome["lastSeq"]
        await house.sent("b")
        assert [told["seq"] for told in await late.messages(3 - last)] == [2, 3][last - 1 :]


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
        assert refused(await sending, 500) == "outcome_unknown"

    assert refused(await broken.send("later"), 503) == "UNAVAILABLE"
    assert refused(await broken.append(DEFAULT, "later"), 503) == "UNAVAILABLE"
    told = await guest.submit("later")
    assert (told["errorCode"], told["messageId"]) == ("UNAVAILABLE", "later")
    await guest.nothing_more()
    await broken.restart()
    assert accepted(await broken.send("unknown"), "unknown") == 2
    assert (await broken.read(DEFAULT)).ids == ["kept", "unknown"]
