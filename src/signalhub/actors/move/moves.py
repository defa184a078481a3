"""The moves of actors from and to this host: their steps, their parts, the messages about them.

A move has two sides, and each host keeps a row for its own. A row holds the step the move has come
to; what to do next follows from the step alone, so that after a crash it is done again.

The old host, *leaving*:

- `asked`: the actor is stopped, and the hub is asked to change its place.
- `placed`: the hub accepts nothing more for it here; the host sends a mark to its own mailbox.
- `drained`: the mark came back, so everything accepted before is here; the rows are sent in parts.
  While the arrival is not confirmed, the hub is asked from time to time whether the place it has
  granted still exists: if an operator had it forgotten, nobody will ever confirm.

The new host, *arriving*:

- `parts`: parts are collected until they are complete and the hub confirms the place.
- `arrived`: the rows are taken over; the old host is told.

`TRANSITIONS` lists every event of a move and the next step. Repeated and late messages are not in
it: their recipient checks the step first. Cutting the parts again under another id does not change
the step.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec

from signalhub.actors import wire
from signalhub.actors.api.names import parse_ref
from signalhub.actors.store.store import HostStore
from signalhub.actors.wire import NotReadable

Direction = Literal["leaving", "arriving"]
Step = Literal["asked", "placed", "drained", "parts", "arrived"]
Event = Literal[
    "granted",  # The hub has changed the place.
    "refused",  # The hub has not, and will not: the actor stays.
    "marked",  # The mark was delivered.
    "confirmed",  # The new host has everything: the actor has left.
    "taken_over",  # The rows are in our tables.
    "told",  # The hub has stored the confirmation for the old host.
    "moved_on",  # The hub has given the actor to a third host.
    "forgotten",  # The place that the actor was moving to was forgotten.
]
FIRST_STEPS: Final[dict[Direction, Step]] = {"leaving": "asked", "arriving": "parts"}
TRANSITIONS: Final[dict[tuple[Direction, Step], dict[Event, Step | None]]] = {
    ("leaving", "asked"): {"granted": "placed", "refused": None},
    ("leaving", "placed"): {"marked": "drained"},
    ("leaving", "drained"): {"confirmed": None, "forgotten": None},
    ("arriving", "parts"): {"taken_over": "arrived", "moved_on": None, "forgotten": None},
    ("arriving", "arrived"): {"told": None, "moved_on": None},
}
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class MoveRow(msgspec.Struct):
    """A row of the table `moves`."""

    actor: str
    direction: Direction
    peer: str
    step: Step
    token: int
    move_id: str


class Part(msgspec.Struct):
    """A part of a moving actor or, without a body, the confirmation of its arrival."""

    v: int
    move: str
    actor: str
    token: Count = 0
    number: Count = 0
    count: Count = 0
    body: str = ""


class Mark(msgspec.Struct):
    """The message a host sends to itself."""

    move: str


_decode_part = msgspec.json.Decoder(Part).decode
_decode_mark = msgspec.json.Decoder(Mark).decode


def read_part(data: bytes) -> tuple[Part, bytes]:
    """A part and its body; raises `NotReadable`."""
    try:
        part = _decode_part(data)
        if part.v != wire.ENVELOPE_VERSION:
            raise NotReadable(f"unknown version {part.v} of a move")
        parse_ref(part.actor)
        return part, b64decode(part.body, validate=True)
    except (ValueError, RecursionError) as error:
        raise NotReadable(f"unreadable part of a move: {error}") from error


def read_mark(data: bytes) -> str:
    """The id of the move a mark is for; raises `NotReadable`."""
    try:
        return _decode_mark(data).move
    except (ValueError, RecursionError) as error:
        raise NotReadable(f"unreadable mark: {error}") from error


def encoded_mark(move: MoveRow) -> bytes:
    return msgspec.json.encode(Mark(move.move_id))


def encoded_arrival(move_id: str, actor: str, token: int) -> bytes:
    """The confirmation that an actor has arrived."""
    return msgspec.json.encode(Part(wire.ENVELOPE_VERSION, move_id, actor, token))


class Moves:
    """Moves in progress from and to this host."""

    def __init__(self, store: HostStore) -> None:
        self._execute = store.execute
        self._moves: dict[str, MoveRow] = {}
        # Why moves failed, for operators.
        self.failures: dict[str, str] = {}

    def load(self) -> None:
        rows = self._execute("SELECT actor, direction, peer, step, token, move_id FROM moves")
        self._moves = {str(row[0]): MoveRow(*row) for row in rows}

    def all(self) -> list[MoveRow]:
        return list(self._moves.values())

    def find(self, actor: str) -> MoveRow | None:
        return self._moves.get(actor)

    def put(self, move: MoveRow) -> None:
        self._moves[move.actor] = move
        self._execute(
            "INSERT OR REPLACE INTO moves VALUES (?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(move)
        )

    def begin(
        self, actor: str, direction: Direction, peer: str, token: int, move_id: str
    ) -> MoveRow:
        """A move in its first step."""
        move = MoveRow(actor, direction, peer, FIRST_STEPS[direction], token, move_id)
        self.put(move)
        return move

    def advance(self, move: MoveRow, event: Event) -> None:
        """Something has happened to a move: store its next step, or delete it at its end."""
        steps = TRANSITIONS[move.direction, move.step]
        assert event in steps, f"{event}, of a move that is {move.direction}, {move.step}"
        step = steps[event]
        if step is not None:
            move.step = step
            self.put(move)
            return
        del self._moves[move.actor]
        self._execute("DELETE FROM moves WHERE actor = ?", (move.actor,))
        self.drop_parts(move.actor)

    # Parts.

    def cut(self, move: MoveRow, data: bytes, part_bytes: int) -> None:
        """Store a parcel in parts of that size."""
        for number, at in enumerate(range(0, len(data), part_bytes)):
            self.put_part(move.actor, move.move_id, number, data[at : at + part_bytes])

    def put_part(self, actor: str, move_id: str, number: int, body: bytes) -> None:
        self._execute(
            "INSERT OR IGNORE INTO parts VALUES (?, ?, ?, ?)", (actor, move_id, number, body)
        )

    def drop_parts(self, actor: str) -> None:
        self._execute("DELETE FROM parts WHERE actor = ?", (actor,))

    def bodies(self, move: MoveRow) -> list[bytes]:
        """The parts received so far, in order."""
        rows: Iterable[tuple[Any, ...]] = self._execute(
            "SELECT body FROM parts WHERE actor = ? AND move_id = ? ORDER BY number",
            (move.actor, move.move_id),
        )
        return [bytes(row[0]) for row in rows]

    def count(self, actor: str, move_id: str) -> int:
        found: int = self._execute(
            "SELECT count(*) FROM parts WHERE actor = ? AND move_id = ?", (actor, move_id)
        ).get
        return found

    def size(self, actor: str, move_id: str) -> int:
        """The bytes of the parts received so far."""
        found: int = self._execute(
            "SELECT coalesce(sum(length(body)), 0) FROM parts WHERE actor = ? AND move_id = ?",
            (actor, move_id),
        ).get
        return found

    def encoded_part(self, move: MoveRow, number: int) -> bytes | None:
        """A part as it is sent; `None` after the last one."""
        body = self._execute(
            "SELECT body FROM parts WHERE actor = ? AND move_id = ? AND number = ?",
            (move.actor, move.move_id, number),
        ).get
        if body is None:
            return None
        part = Part(
            wire.ENVELOPE_VERSION,
            move.move_id,
            move.actor,
            move.token,
            number,
            self.count(move.actor, move.move_id),
            b64encode(body).decode(),
        )
        return msgspec.json.encode(part)

    def shown(self) -> list[dict[str, Any]]:
        """Moves in readable form."""
        return [msgspec.structs.asdict(move) for move in self._moves.values()]
