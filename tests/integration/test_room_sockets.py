"""Rooms on the hub's port with real sockets: upgrades, answers from the disk, and letting go."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.socket import frames
from tests.support.socket.frames import FrameReader
from tests.support.socket.guest import TurnedAway, sealed, send_frame
from tests.support.socket.http import JSON, PATIENCE_S, Answer, read_answer, request_bytes
from tests.support.socket.rooms import (
    INBOX,
    MESSAGE,
    OTHER_INBOX,
    ROOM,
    House,
    accepted,
    open_house,
    refused,
)
from tests.support.socket.stage import SMALL_BUFFER, eventually

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


@pytest.mark.parametrize(
    ("method", "changed", "status", "code"),
    [
        ("POST", {}, 400, "BAD_REQUEST"),
        ("GET", {"Sec-WebSocket-Version": "8"}, 426, "UPGRADE_REQUIRED"),
        ("POST", {"Upgrade": "h2c"}, 426, "UPGRADE_REQUIRED"),
        ("GET", {"X-Room-ID": "a..b"}, 400, "BAD_REQUEST"),
        ("GET", {"X-Inbox-ID": OTHER_INBOX}, 409, "CONFLICT"),
    ],
)
@pytest.mark.parametrize("path", ["/room", "/ws/tenant/general"])
async def test_every_refusal_has_the_body_of_rooms(
    path: str, method: str, changed: dict[str, str], status: int, code: str
) -> None:
    async with open_house() as house, dial(house) as line:
        await house.join(inbox=INBOX)
        await house.join("tenant:general", inbox="another")
        line.write(request_bytes(method, path, UPGRADE | IDS | changed))
        answer = await line.answer()

        assert refused(answer, status) == code
        assert (answer.header("Upgrade") == "websocket") == (status == 426)
        assert ROOM not in answer.body.decode()


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


async def test_sockets_that_go_in_every_way_leave_nothing_behind() -> None:
    async with open_house() as house:
        app = house.hub.app
        for _ in range(3):
            polite, rude = await house.join(), await house.join()
            await polite.leave()
            rude.abort()
        async with dial(house) as line:
            line.write(ENTER)
        await eventually(lambda: not app.runner.connections)

        assert app.hub.rooms.guests == 0
        assert not app.hub.rooms.directory.rooms
        assert not app.runner.writer._blocked
        assert not any(door.is_websocket for door in app._listener.doors)


async def test_slow_socket_is_closed_and_its_memory_is_given_back() -> None:
    large = "A" * 40_000
    async with open_house(rate=100_000, socket_queue=10, hub={"drain_s": 0.2}) as house:
        slow = await house.join("loud", receive_bytes=SMALL_BUFFER)
        quick = await house.join("loud", "quick")
        app = house.hub.app
        sent = 0
        while app.hub.rooms.guests == 2:
            sent += 1
            assert await quick.submit(f"m-{sent}", large)
        assert app.hub.tally.rooms.slow_closed == 1
        # Nobody reads the close frame, so the socket is dropped after its grace.
        await eventually(lambda: len(app.runner.connections) == 1)

        assert app.runner.writer.depth() == 0
        assert [one["seq"] for one in await quick.messages(sent)] == list(range(1, sent + 1))
        assert await slow.until_closed() in (1013, None)


async def test_nothing_that_is_logged_names_anybody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    names = ("room-of-somebody", "somebody", INBOX, "message-of-somebody", "tenant-of-somebody")
    room, pseudonym, inbox, message, tenant = names
    async with open_house(rate=3, hub={"drain_s": 0.2}) as house:
        guest = await house.join(room, pseudonym, inbox)
        other = await house.enter(f"/ws/{tenant}/{room}?pseudonym={pseudonym}")
        for one in (guest, other):
            for number in range(5):
                await one.submit(f"{message}{number}")
            one.say({"action": "send", "messageId": message, "roomId": room})
            await one.reply()
            for _ in range(10):
                one.say(room)
            assert await one.until_closed() == 1008
        with pytest.raises(TurnedAway):
            await house.join(room, pseudonym, OTHER_INBOX)
        with pytest.raises(TurnedAway):
            await house.enter(f"/ws/{tenant}/{room}?pseudonym=")
    logged = caplog.text + str([one.__dict__ for one in caplog.records])

    assert not [name for name in names if name in logged]
