"""Sockets of rooms on the hand-turned write path."""

from __future__ import annotations

import json
from typing import Any

from picows import WSMsgType

from signalhub.core.rooms.access import ANYBODY, Requester
from signalhub.engine.port import Archive
from signalhub.server.rooms.socket import RoomSocket, Terms, Visit
from signalhub.settings.model import RoomsSettings
from signalhub.wire.frames import Opcode
from signalhub.wire.room_ids import Names
from tests.support.memory.write_path import End, Stage

ROOM = "general"


class Visitor(End):
    """Somebody in a room; the loop has not turned since the upgrade."""

    def __init__(
        self,
        stage: RoomStage,
        pseudonym: str,
        room: str = ROOM,
        inbox: str | None = None,
        requester: Requester = ANYBODY,
    ) -> None:
        visit = Visit(room, None, room, pseudonym, inbox)
        self.room_socket = RoomSocket(stage.terms, visit, requester)
        assert self.room_socket.join() is None
        self.connection = self.room_socket.connection
        super().__init__(stage, self.connection)

    def say(self, frame: object) -> None:
        """A frame: a value as JSON, or bytes as they are."""
        payload = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
        self.frame(WSMsgType.TEXT, payload)

    def send(self, message_id: str, ciphertext: str = "AAAA", **members: Any) -> None:
        """A message to the room."""
        self.say({"action": "send", "messageId": message_id, "ciphertext": ciphertext} | members)

    def frames(self) -> list[dict[str, Any]]:
        """All that has arrived."""
        texts = [data for code, data, _ in self.socket.taken.frames() if code == Opcode.TEXT]
        return [json.loads(text) for text in texts]

    def told(self, action: str) -> list[dict[str, Any]]:
        """The frames of one kind that have arrived."""
        return [frame for frame in self.frames() if frame["action"] == action]

    def heard(self) -> list[int]:
        """The positions of the messages that have arrived."""
        return [frame["seq"] for frame in self.told("message")]

    @property
    def close_code(self) -> int | None:
        """What the hub closed with, once that has arrived."""
        for opcode, payload, _ in self.socket.taken.frames():
            if opcode == Opcode.CLOSE:
                return int.from_bytes(payload[:2], "big")
        return None


class RoomStage(Stage):
    """A stage with rooms on it."""

    def __init__(
        self,
        archive: Archive | None = None,
        rooms: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            archive, rooms=RoomsSettings(**{"rate": 10_000} | (rooms or {})), **settings
        )
        self.hub.rooms.use(Names(b"a key of the tests"))
        self.terms = Terms(self.runner, self.clock)
        self.visitors: list[Visitor] = []

    def visit(self, pseudonym: str, room: str = ROOM, requester: Requester = ANYBODY) -> Visitor:
        """One more visitor, who has been welcomed."""
        visitor = Visitor(self, pseudonym, room, requester=requester)
        self.visitors.append(visitor)
        self.loop.run_dry()
        return visitor

    @property
    def present(self) -> int:
        """How many sockets are in rooms."""
        return sum(len(room.guests) for room in self.hub.rooms.directory.rooms.values())
