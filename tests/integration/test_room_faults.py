"""One fault, one greedy client or one foreign page in a running hub harms nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from signalhub.core.rooms.values import Accepted, Result, SendToRoom
from signalhub.core.sessions.outbound import Outbound
from signalhub.server.rooms.socket import RoomSocket
from tests.support.socket.guest import sealed
from tests.support.socket.http import PATIENCE_S, Answer
from tests.support.socket.rooms import (
    DAY,
    HOUR,
    INBOX,
    MESSAGE,
    OTHER_INBOX,
    ROOM,
    OpenHouse,
    accepted,
    default_inbox,
    exact_clock,
    fill,
    open_house,
    refused,
    wait_ms,
)
from tests.support.socket.stage import eventually

METADATA, QUORUM, PROPOSALS = "/v1/room/metadata", "/v1/room/quorum", "/v1/room/proposals"
EVIL = {"Origin": "https://evil.example"}
PAGE = {"Origin": "http://localhost:3000"}


class Faulty(Outbound):
    """What waits for a socket, broken."""

    def admits(self, size: int, unsent: int = 0) -> bool:
        raise RuntimeError(ROOM)


class Sender:
    """Somebody who waits for one answer."""

    def __init__(self) -> None:
        self.told: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def answer(self, result: Result, message_id: str) -> None:
        self.told.set_result(result)

    async def seq(self) -> int:
        """The position of the message, which must be accepted."""
        async with asyncio.timeout(PATIENCE_S):
            result = await self.told
        assert isinstance(result, Accepted), result
        return result.seq


def sockets(house: OpenHouse, room: str = ROOM) -> list[RoomSocket]:
    """The hub's ends of the sockets in a room, in the order they came."""
    rooms = house.hub.app.hub.rooms
    links = [guest.link for guest in rooms.directory.rooms[rooms.directory.names.room(room)].guests]
    found = [link for link in links if isinstance(link, RoomSocket)]
    assert found
    return found


def spoil(socket: RoomSocket) -> None:
    """From now on writing to this socket fails."""
    socket.outbound = Faulty(socket.bounds, 0)


@contextmanager
def without_connection(socket: RoomSocket) -> Iterator[None]:
    """The hub cannot even find out where to write."""
    connection = socket.connection
    del socket.connection
    try:
        yield
    finally:
        socket.connection = connection


def send_together(house: OpenHouse, *rooms: str) -> list[Sender]:
    """One message to each room, all in one commit."""
    app = house.hub.app
    senders = [Sender() for _ in rooms]
    sends = [
        SendToRoom(sender, room, None, "together", b"QUJD", 0)
        for sender, room in zip(senders, rooms, strict=True)
    ]

    assert app.runner.run(
        lambda now: [effect for one in sends for effect in app.hub.rooms.send(one, now)]
    )
    return senders


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


# Faults.


@pytest.mark.parametrize("spoiled", [0, 1, 2])
async def test_a_socket_that_cannot_be_written_to_strands_no_other_of_its_room(
    spoiled: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house() as house:
        guests = [await house.join(pseudonym=f"p-{number}") for number in range(3)]
        spoil(sockets(house)[spoiled])

        assert await house.sent("m-1") == 1

        broken = guests.pop(spoiled)
        for guest in guests:
            assert (await guest.receive("message"))["messageId"] == "m-1"
        assert await broken.until_closed() is None
        assert await house.sent("m-2") == 2
        assert [(await guest.receive("message"))["seq"] for guest in guests] == [2, 2]
        assert (await house.join(pseudonym="back")).welcome["lastSeq"] == 2
    assert errors(caplog) == ["a socket could not be written to"]
    assert ROOM not in caplog.text


async def test_a_fault_in_one_room_strands_nobody_whose_message_is_committed_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_house() as house:
        await house.join("first")
        listener = await house.join("second")
        await house.sent("before", "second")
        with without_connection(sockets(house, "first")[0]):
            _, sender, last = send_together(house, "first", "second", "third")

            assert (await sender.seq(), await last.seq()) == (2, 1)
        heard = [one["messageId"] for one in await listener.messages(2)]
        assert heard == ["before", "together"]
        # Also the message whose sender was not told is there, and everybody goes on.
        assert (await house.read(default_inbox("first"))).ids == ["together"]
        assert await house.sent("after", "first") == 2
        assert await house.sent("after", "second") == 3
    assert errors(caplog) == ["a committed entry could not be handled"]


async def test_the_log_is_not_cut_before_the_snapshot_that_replaces_it_is_synced() -> None:
    clock = exact_clock()
    log = {"segment_bytes": 2**16, "retention_s": HOUR}
    async with open_house(clock, retention_s=HOUR, hub={"log": log}) as house:
        store, folder = house.hub.app._store, Path(house.hub.settings.data)
        # Somebody who looks at the file as it was keeps what is newer from being moved into it.
        rival = apsw.Connection(str(folder / "state.db"))
        rival.execute("begin")
        assert rival.execute("select count(*) from snapshot").get is not None
        store._connection.set_busy_timeout(1)
        guest = await house.join()
        for first in range(1, 60, 20):
            # Each of them in a segment of its own, however many are written at once.
            await fill(guest, 20, first, ciphertext="A" * 4_000)
        oldest = min((folder / "log").glob("*.log"))

        clock.advance(DAY)
        await eventually(lambda: store.errors > 0)
        assert oldest.exists()

        rival.close()
        clock.advance(DAY)
        await eventually(lambda: not oldest.exists())
        assert await house.sent("m-61") == 61


# What one room may ask for and keep.


async def test_requests_for_the_state_of_one_room_are_limited_and_those_of_others_are_not() -> None:
    clock = exact_clock()
    async with open_house(clock, state_rate=4) as house:
        mine, other = {"X-Room-ID": ROOM}, {"X-Room-ID": "other"}
        assert (await house.web.put(METADATA, b"x", mine)).status == 204
        assert (await house.web.get(METADATA, mine)).status == 200
        assert (await house.web.get(PROPOSALS, mine)).status == 200
        assert (await house.web.get(f"{PROPOSALS}/none", mine)).status == 404

        for answer in (
            await house.web.get(METADATA, mine),
            await house.web.get(PROPOSALS, mine),
            await house.web.get(f"{PROPOSALS}/none", mine),
            await house.web.put(METADATA, b"y", mine),
            await house.web.put(QUORUM, b"y", mine),
        ):
            assert wait_ms(answer) == 60_000

        assert (await house.web.put(METADATA, b"x", other)).status == 204
        assert (await house.web.get(METADATA, other)).status == 200
        assert await house.sent("m-1") == 1
        clock.advance(60)
        assert (await house.web.get(METADATA, mine)).body == b"x"


# Bindings and names.


async def test_a_blob_written_with_an_inbox_binds_its_room_for_ever() -> None:
    async with open_house() as house:
        mine = {"X-Room-ID": ROOM, "X-Inbox-ID": INBOX}
        theirs = mine | {"X-Inbox-ID": OTHER_INBOX}
        assert (await house.web.put(METADATA, b"blob", mine)).status == 204

        for _ in range(2):
            for answer in (
                await house.web.put(METADATA, b"other", theirs),
                await house.web.get(METADATA, theirs),
                await house.send("m", inbox=OTHER_INBOX),
            ):
                assert refused(answer, 409) == "CONFLICT"
            assert (await house.web.get(METADATA, mine)).body == b"blob"
            await house.restart()

        assert await house.sent("m-1") == 1
        assert (await house.read(INBOX)).ids == ["m-1"]
        elsewhere = {"X-Room-ID": "elsewhere", "X-Inbox-ID": INBOX}
        assert refused(await house.web.put(METADATA, b"x", elsewhere), 409) == "CONFLICT"


# Pages of others.


async def test_a_request_of_a_foreign_page_is_refused_and_not_carried_out() -> None:
    async with open_house() as house:
        body = {"messageId": "m-1", "ciphertext": sealed("m-1")}
        room = {"X-Room-ID": ROOM}

        answers: list[Answer] = [
            await house.web.post(MESSAGE, body, room | EVIL),
            await house.web.post("/v1/inbox/append", body, {"X-Inbox-ID": INBOX} | EVIL),
            await house.web.put(METADATA, b"x", room | EVIL),
            await house.web.get(METADATA, room | EVIL),
        ]

        assert [answer.status for answer in answers] == [403] * 4
        assert (await house.read(default_inbox())).messages == []
        assert (await house.read(INBOX)).messages == []
        assert (await house.web.get(METADATA, room)).status == 404
        assert accepted(await house.web.post(MESSAGE, body, room | PAGE), "m-1") == 1
