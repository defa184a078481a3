"""A room: send to everybody in it, and read everything that is sent, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from signalhub.client.closing import Closing
from signalhub.client.room_arguments import (
    Type,
    checked_ciphertext,
    checked_kind,
    checked_room_message_id,
    encoded,
)
from signalhub.client.room_message import Missed, RoomMessage, Sent
from signalhub.client.room_runner import RoomRunner

TIMEOUT_S = 30.0


class Room(Closing):
    """A member's place in a room, which mends itself.

    Iterating yields every message of the room's inbox after the position it was opened with, own
    ones included, in order and each once: first what was missed, then what comes. It ends when the
    room is closed and raises `GaveUp` when the client has given up.
    """

    def __init__(self, pseudonym: str, runner: RoomRunner, left: Callable[[Room], None]) -> None:
        self.pseudonym = pseudonym
        self._runner = runner
        self._left = left

    def __repr__(self) -> str:
        return f"<Room at {self._runner.url}, {self._runner.protocol.phase.value}>"

    @property
    def is_joined(self) -> bool:
        """Is it connected right now?"""
        return self._runner.is_joined

    @property
    def last_seq(self) -> int:
        """The position of the last message handed out: keep it, and pass it as `since` next time.

        What was gone before it could be read counts as handed out.
        """
        return self._runner.protocol.reading.last_seq

    @property
    def missed(self) -> tuple[Missed, ...]:
        """Positions that were gone before they could be read, oldest first.

        They had expired; or the room has another inbox than the one named when it was opened.
        """
        return tuple(self._runner.protocol.reading.missed)

    @property
    def rewound(self) -> int:
        """How often the hub came back with fewer messages than it had, as after a lost disk.

        Then everything it still has is read again, without those messages that are remembered.
        """
        return self._runner.protocol.reading.rewound

    async def send(
        self,
        ciphertext: bytes,
        *,
        message_id: str | None = None,
        type: Type = "mls_app",
        proposal_id: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Sent:
        """Send a message and wait until it is on the hub's disk.

        Until then it is repeated under its one id: over new connections, and after the wait that a
        busy or limiting hub asks for.

        Args:
            ciphertext: What only the members can read; the hub sees these bytes.
            message_id: An id of your own. Sent again, even by another run of the program, the
                message gets the same position and is not stored twice.
            type: What kind of message it is to the room; the hub keeps track of proposals.
            proposal_id: The proposal that it makes, approves, rejects or commits.
            timeout_s: How long to try.

        Raises:
            Refused: The hub said no; with `retryable` the room took more than its rate all the
                time.
            Unavailable: It was never sent, or the hub could not take it.
            OutcomeUnknown: It was sent, and no answer came: repeat it under the same id.
        """
        kind = checked_kind(type, proposal_id)
        data = checked_ciphertext(ciphertext)
        members = {"ciphertext": encoded(data), "type": kind}
        if proposal_id is not None:
            members["proposalId"] = proposal_id
        own = checked_room_message_id(message_id)
        return await self._runner.send(own, data, members, timeout_s)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RoomMessage:
        return await self._runner.next()

    async def close(self) -> None:
        """Leave the room. Harmless when repeated."""
        await self._runner.close()
        self._left(self)
