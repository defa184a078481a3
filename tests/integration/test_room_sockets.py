"""Rooms on the hub's port with real sockets: upgrades, answers from the disk, and letting go.

One fault, one greedy client or one foreign page harms nobody else.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from signalhub.core.rooms.values import Accepted, Result, SendToRoom
from signalhub.core.sessions.outbound import Outbound
from signalhub.server.rooms.socket import RoomSocket
from tests.support.socket import frames
from tests.support.socket.frames import FrameReader
from tests.support.socket.guest import TurnedAway, sealed, send_frame
from tests.support.socket.http import JSON, PATIENCE_S, Answer, read_answer, request_bytes
from tests.support.socket.rooms import (
    DAY,
    HOUR,
    INBOX,
    MESSAGE,
    OTHER_INBOX,
    ROOM,
    House,
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

UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
IDS = {"X-Room-ID": ROOM, "X-Pseudonym-ID": "p-1"}
ENTER = request_bytes("GET", "/room", UPGRADE | IDS)


class Line:
    """A bare TCP connection to the hub."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = FrameReader()
        self._heard: list[Any] = []

    def write(self, *pieces: bytes) -> None:
        """All of it in one packet, if it fits."""
        self.writer.write(b"".join(pieces))

    async def answer(self) -> Answer:
        async with asyncio.timeout(PATIENCE_S):
            return await read_answer(self.reader)

    async def hear(self) -> Any:
        """The next frame, which is JSON."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._heard:
                data = await self.reader.read(2**16)
                assert data, "the hub hung up"
                self._heard += [json.loads(one.payload) for one in self._frames.feed(data)]
        return self._heard.pop(0)

    async def is_at_end(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read(1) == b""


@asynccontextmanager
async def dial(house: House) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    try:
        yield Line(reader, writer)
    finally:
        writer.transport.abort()


def post(message_id: str, room: str = ROOM) -> bytes:
    """A message as an HTTP request."""
    body = {"messageId": message_id, "roomId": room, "ciphertext": sealed(message_id)}
    return request_bytes("POST", MESSAGE, JSON, json.dumps(body).encode())


def spoken(frame: object) -> bytes:
    """A text frame of a client."""
    return frames.masked_frame(frames.TEXT, json.dumps(frame).encode())


async def test_socket_is_open_at_once_and_may_say_a_lot_with_its_upgrade() -> None:
    words = [send_frame(f"m-{number}", "A" * 2_000) for number in range(100)]
    async with open_house(hub={"hello_bytes_max": 4_096}) as house, dial(house) as line:
        line.write(ENTER, *map(spoken, words))

        assert (await line.answer()).status == 101
        assert (await line.hear())["action"] == "welcome"
        doors = house.hub.app._listener.doors
        assert not any(door.is_websocket for door in doors)
        heard = [await line.hear() for _ in range(200)]
        assert [one["seq"] for one in heard if one["action"] == "ack"] == list(range(1, 101))


async def test_upgrade_may_wait_behind_a_message_that_is_on_its_way_to_the_disk() -> None:
    async with open_house() as house, dial(house) as line:
        line.write(post("m-1"), ENTER, spoken({"action": "ping", "t": 1}))

        assert accepted(await line.answer()) == 1
        assert (await line.answer()).status == 101
        assert (await line.hear())["lastSeq"] == 1
        assert await line.hear() == {"action": "pong", "t": 1}


async def test_pipelined_messages_are_answered_in_order_though_the_client_half_closed() -> None:
    async with open_house() as house, dial(house) as line:
        line.write(*(post(f"m-{number}") for number in range(200)), ENTER)
        line.writer.write_eof()

        seqs = [accepted(await line.answer(), f"m-{number}") for number in range(200)]
        assert seqs == list(range(1, 201))
        assert (await line.answer()).status == 101
        async with asyncio.timeout(PATIENCE_S):
            await line.reader.read()
        await eventually(lambda: not house.hub.app.runner.connections)
        assert house.hub.app.hub.rooms.guests == 0, "its socket is not kept"


async def test_message_of_a_client_that_is_gone_is_kept_and_nobody_minds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_house() as house:
        guest = await house.join()
        async with dial(house) as line:
            line.write(post("m-1"))
            await line.writer.drain()
            await eventually(lambda: house.hub.app.hub.rooms.tally.sent == 1)
        for number in range(2, 40):
            async with dial(house) as line:
                line.write(post(f"m-{number}"))
                await line.writer.drain()
        await house.sent("m-40")
        told = [await guest.receive("message") for _ in range(2)]

        assert told[0]["messageId"] == "m-1"
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_hub_that_stops_answers_what_it_has_taken() -> None:
    async with open_house() as house, dial(house) as line:
        line.write(post("m-1"))
        rooms = house.hub.app.hub.rooms
        await eventually(lambda: bool(rooms.directory.inboxes))
        await house.stop()

        assert accepted(await line.answer()) == 1
        assert await line.is_at_end()


async def test_sockets_of_rooms_and_actors_share_the_rate_of_admission() -> None:
    async with open_house(hub={"connection_rate": 0.001, "connection_burst": 2}) as house:
        await house.join()
        async with dial(house) as line:
            line.write(request_bytes("GET", "/ws", UPGRADE))
            assert (await line.answer()).status == 101
        with pytest.raises(TurnedAway) as turned:
            await house.join()

        assert refused(turned.value.answer, 429) == "RATE_LIMIT_EXCEEDED"
        assert turned.value.answer.header("X-RateLimit-Limit") is not None


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
