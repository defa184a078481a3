"""Posts to rooms that are taken before they become requests, with the real core behind them."""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import msgspec
import pytest

from signalhub import native
from signalhub.core.rooms.rooms import Rooms
from signalhub.server.port.door import Door
from signalhub.server.port.http import Routes
from signalhub.server.port.listener import Gatekeeper, Listener
from signalhub.server.rooms.api import Api
from signalhub.server.rooms.posts import Post
from signalhub.settings.model import RoomsSettings
from signalhub.wire.frames import CloseCode
from signalhub.wire.room_ids import Names
from tests.support.memory.doors import Nobody, Wire
from tests.support.memory.write_path import Stage

pytestmark = pytest.mark.skipif(
    not native.IS_ON, reason="without the native part all of them become requests"
)

# A header that makes a post unusual and changes nothing.
UNUSUAL = "X-Own: a"


class Hub:
    """One hub, its disk, and doors to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **rooms: Any) -> None:
        self.taken = 0
        made = Post.__init__

        def counted(post: Post, door: Door) -> None:
            self.taken += 1
            made(post, door)

        monkeypatch.setattr(Post, "__init__", counted)
        self.stage = Stage(rooms=RoomsSettings(**rooms))
        self.stage.hub.rooms.use(Names(b"a key"))
        routes = Routes()
        Api(self.stage.hub, self.stage.runner, self.stage.clock).add_to(routes)
        self.listener = Listener(self.stage.hub.settings, routes, cast(Gatekeeper, Nobody()))

    def client(self) -> Client:
        client = Client(self)
        # Names that were served before are known.
        client.receive(b"GET /v1/room/proposals HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.wire.sent = b""
        return client

    async def settle(self) -> None:
        """Let the disk and the loop do what there is to do."""
        for _ in range(3):
            self.stage.loop.run_dry()
            await asyncio.sleep(0)


class Client:
    """One connection."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.wire = Wire()
        self.door = Door(hub.listener)
        self.door.connection_made(cast(asyncio.Transport, self.wire))

    def receive(self, data: bytes) -> None:
        self.door.get_buffer(-1)[: len(data)] = data
        self.door.buffer_updated(len(data))

    def post(self, *headers: str, **members: object) -> None:
        self.receive(request(*headers, **members))

    async def answer(self, *headers: str, **members: object) -> bytes:
        """Post, and return the whole answer without its date."""
        before = len(self.wire.sent)
        self.post(*headers, **members)
        await self.hub.settle()
        found, dates = re.subn(rb"\r\nDate: [^\r]+GMT", b"", self.wire.sent[before:])
        assert dates == 1
        return found


def request(*headers: str, **members: object) -> bytes:
    message = {"roomId": "general", "messageId": "m1", "ciphertext": "QUJD"} | members
    body = msgspec.json.encode(message)
    lines = ["Host: localhost", "Content-Type: application/json", *headers]
    head = "\r\n".join(["POST /api/v1/message HTTP/1.1", *lines])
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def bodies(wire: Wire) -> list[bytes]:
    return [part.split(b"\r\n\r\n", 1)[1] for part in wire.sent.split(b"HTTP/1.1 ")[1:]]


async def test_a_taken_post_gets_the_bytes_that_any_other_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = Hub(monkeypatch)
    client = hub.client()

    taken = await client.answer()
    assert hub.taken == 1
    other = await client.answer(UNUSUAL, roomId="other")
    assert hub.taken == 1

    assert taken == other
    assert taken.endswith(b'{"messageId":"m1","seq":1}')


@pytest.mark.parametrize(
    ("headers", "members"),
    [
        ((), {}),
        ((), {"ciphertext": "QUJE"}),
        (("X-Inbox-ID: other",), {"messageId": "m2"}),
        (("X-Inbox-ID: a/b",), {"messageId": "m2"}),
    ],
    ids=["a repeat", "an id that was used", "another inbox", "no inbox"],
)
async def test_a_refused_or_repeated_post_gets_the_bytes_that_any_other_gets(
    monkeypatch: pytest.MonkeyPatch, headers: tuple[str, ...], members: dict[str, object]
) -> None:
    hub = Hub(monkeypatch)
    client = hub.client()
    await client.answer()

    taken = await client.answer(*headers, **members)
    assert hub.taken == 2
    other = await client.answer(UNUSUAL, *headers, **members)

    assert hub.taken == 2
    assert taken == other


async def test_the_rate_of_a_room_counts_taken_posts_and_others_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = Hub(monkeypatch, rate=3)
    client = hub.client()
    answers = [
        await client.answer(*([UNUSUAL] if number == 1 else []), messageId=f"m{number}")
        for number in range(4)
    ]

    assert [answer[9:12] for answer in answers] == [b"200", b"200", b"200", b"429"]
    assert b"Retry-After" in answers[3]


async def test_requests_behind_a_taken_post_wait_for_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = Hub(monkeypatch)
    client = hub.client()
    client.post()
    client.receive(request(messageId="m2") + request(messageId="m3"))
    assert client.wire.sent == b""

    await hub.settle()

    assert bodies(client.wire) == [b'{"messageId":"m%d","seq":%d}' % (n, n) for n in (1, 2, 3)]
    assert client.wire.is_reading


async def test_a_post_in_pieces_is_no_taken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    client = hub.client()
    whole = request()
    client.receive(whole[:50])
    client.receive(whole[50:])
    await hub.settle()

    assert len(bodies(client.wire)) == 1
    assert hub.taken == 0


async def test_a_host_that_is_not_served_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    client = hub.client()
    client.receive(request().replace(b"Host: localhost", b"Host: example.com"))

    assert client.wire.sent.startswith(b"HTTP/1.1 421 ")
    assert hub.taken == 0


async def test_a_door_that_closes_says_so_in_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    client = hub.client()
    client.post()
    client.door.close(CloseCode.GOING_AWAY, "server_shutdown")
    await hub.settle()

    assert b"Connection: close" in client.wire.sent
    assert client.wire.is_over


async def test_a_client_that_leaves_keeps_nobody_from_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = Hub(monkeypatch)
    leaving, staying = hub.client(), hub.client()
    leaving.post(messageId="m1")
    staying.post(messageId="m2")
    leaving.wire.abort()
    leaving.door.connection_lost(None)
    await hub.settle()

    assert leaving.wire.sent == b""
    assert bodies(staying.wire) == [b'{"messageId":"m2","seq":2}']


async def test_a_client_that_has_closed_its_side_gets_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = Hub(monkeypatch)
    client = hub.client()
    client.post()
    assert client.door.eof_received()
    await hub.settle()

    assert bodies(client.wire) == [b'{"messageId":"m1","seq":1}']
    assert client.wire.is_over


@pytest.mark.parametrize("call", ["identify", "send"])
async def test_a_fault_of_the_core_is_answered(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    client = hub.client()

    def fail(*given: object, **named: object) -> None:
        raise LookupError

    monkeypatch.setattr(Rooms, call, fail)
    taken = await client.answer()

    assert taken.startswith(b"HTTP/1.1 500 ")
    assert hub.taken == 1
    assert taken == await client.answer(UNUSUAL)
