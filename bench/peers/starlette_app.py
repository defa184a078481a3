"""The peer for rooms and inboxes: the same paths and frames, on Starlette, uvicorn and SQLite.

Written for speed within the framework: typed decoding, one writer thread, reads on the loop, no
middleware. It has no rate limits, capabilities, proposals or bounded queues for slow sockets, so
these cost it nothing.

`python -m bench.peers.starlette_app FOLDER each|group`
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from bench.peers import room_frames as frames
from bench.peers.sqlite_messages import Commits, Message, Messages

PAGE_MAX = 1_000
# The generator's clients do not answer pings.
PING_S = 600.0


@dataclass(slots=True)
class Room:
    """The sockets of one room, and stored messages that were not sent to them yet.

    One task sends, so that every socket gets the messages in order.
    """

    sockets: set[WebSocket] = field(default_factory=set)
    kept: asyncio.Queue[Message | None] = field(default_factory=asyncio.Queue)
    task: asyncio.Task[None] | None = None

    async def announce(self) -> None:
        while message := await self.kept.get():
            if message.seq and not message.is_repeat:
                frame = frames.heard(message)
                for socket in tuple(self.sockets):
                    await _tell(socket, frame)
            if isinstance(message.caller, WebSocket):
                await _tell(message.caller, frames.outcome(message))
            else:
                _resolve(message)


class Relay:
    """The application: rooms with their sockets, in front of the store."""

    def __init__(self, path: Path, commits: Commits) -> None:
        self._rooms: dict[str, Room] = {}
        self._messages = Messages(path, commits, self._committed)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/api/v1/message", self.post, methods=["POST"]),
                Route("/v1/inbox/messages", self.fetch, methods=["GET"]),
                WebSocketRoute("/room", self.join),
            ],
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._messages.start()
        try:
            yield
        finally:
            self._messages.stop()

    def _committed(self, batch: Sequence[Message]) -> None:
        for message in batch:
            if room := self._rooms.get(message.room):
                room.kept.put_nowait(message)
            else:
                _resolve(message)

    async def post(self, request: Request) -> Response:
        kind = request.headers.get("content-type", "")
        if kind.partition(";")[0] != "application/json":
            return _refusal(415, "UNSUPPORTED_MEDIA_TYPE", "send application/json")
        try:
            envelope = frames.read_envelope(await request.body())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _refusal(400, "BAD_ENVELOPE", str(error))
        done: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._messages.accept(
            Message(
                done,
                envelope.room_id,
                envelope.message_id or uuid.uuid4().hex,
                frames.as_base64url(envelope.ciphertext),
                envelope.type,
                envelope.pseudonym_id or "",
            )
        )
        message = await done
        if not message.seq:
            return _refusal(503, "UNAVAILABLE", "the message could not be kept")
        return _json(
            frames.Accepted(message.message_id, message.seq),
            {"Idempotent-Replay": "true"} if message.is_repeat else None,
        )

    async def fetch(self, request: Request) -> Response:
        inbox = request.headers.get("x-inbox-id", "")
        try:
            from_seq = int(request.query_params.get("fromSeq", "0"))
            limit = min(int(request.query_params.get("limit", "100")), PAGE_MAX)
        except ValueError:
            return _refusal(400, "BAD_REQUEST", "fromSeq and limit are whole numbers")
        if not inbox or from_seq < 0 or limit < 1:
            return _refusal(400, "BAD_REQUEST", "X-Inbox-ID, fromSeq or limit cannot be used")
        found = [frames.Stored(*row) for row in self._messages.page(inbox, from_seq, limit)]
        return _json(frames.Page(found, found[-1].seq + 1 if found else from_seq))

    async def join(self, socket: WebSocket) -> None:
        name = socket.headers.get("x-room-id", "")
        pseudonym = socket.headers.get("x-pseudonym-id", "")
        if not name or not pseudonym:
            await socket.close()
            return
        await socket.accept()
        head = self._messages.head(name)
        room = self._enter(name, socket)
        try:
            await socket.send_text(frames.text_of(frames.Welcome(head, 1)))
            while True:
                await self._take(socket, name, pseudonym, await socket.receive_text())
        except WebSocketDisconnect:
            pass
        finally:
            self._leave(name, room, socket)

    async def _take(self, socket: WebSocket, room: str, pseudonym: str, text: str) -> None:
        """Answer when the message is stored; the next frame is read in the meantime."""
        try:
            send = frames.read_send(text)
        except msgspec.DecodeError as error:
            await _tell(socket, frames.text_of(frames.Refused(str(error), "BAD_ENVELOPE")))
            return
        self._messages.accept(
            Message(
                socket,
                room,
                send.message_id or uuid.uuid4().hex,
                frames.as_base64url(send.ciphertext),
                send.type,
                pseudonym,
            )
        )

    def _enter(self, name: str, socket: WebSocket) -> Room:
        room = self._rooms.setdefault(name, Room())
        room.sockets.add(socket)
        if room.task is None:
            room.task = asyncio.create_task(room.announce())
        return room

    def _leave(self, name: str, room: Room, socket: WebSocket) -> None:
        room.sockets.discard(socket)
        if not room.sockets:
            room.kept.put_nowait(None)
            del self._rooms[name]


def _resolve(message: Message) -> None:
    """Wake the request that waits for the message, if it still does."""
    if isinstance(message.caller, asyncio.Future) and not message.caller.done():
        message.caller.set_result(message)


async def _tell(socket: WebSocket, text: str) -> None:
    try:
        await socket.send_text(text)
    except (WebSocketDisconnect, RuntimeError):
        return  # It is leaving; its own task removes it from the room.


def _json(body: msgspec.Struct, headers: dict[str, str] | None = None) -> Response:
    return Response(frames.encode(body), headers=headers, media_type="application/json")


def _refusal(status: int, code: str, text: str) -> Response:
    body = frames.encode({"error": text, "errorCode": code})
    return Response(body, status, media_type="application/json")


def main(folder: str, commits: Commits) -> None:
    uvicorn.run(
        Relay(Path(folder) / "messages.db", commits).app(),
        host="127.0.0.1",
        port=0,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        access_log=False,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        ws_per_message_deflate=False,
    )


if __name__ == "__main__":
    main(sys.argv[1], "group" if sys.argv[2] == "group" else "each")
