"""Moving an actor from one host to another, with everything it has.

The old host: `asked` (the actor stands still, the hub is to give its place away) → `placed`
(nothing more is accepted for it here; a mark is sent through the own mailbox) → `drained` (the
mark came back, so all that was accepted before is here; the rows go in parts) → the new host says
that it has arrived, and the rows are deleted. What the new host does is in `taking_over`.

Every step is a row of `moves`; what it takes to get on is derived from that row, so a crash only
repeats it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.actors import wire
from signalhub.actors.kernel.events import Arrived, GiveAway, Moved, Refused, Send
from signalhub.actors.move.moves import (
    Move,
    Part,
    Step,
    encoded_arrival,
    encoded_mark,
    read_mark,
    read_part,
)
from signalhub.actors.move.parcel import Parcel, pack
from signalhub.actors.move.places import Status
from signalhub.actors.wire import NotReadable

if TYPE_CHECKING:
    from signalhub.actors.kernel.kernel import Kernel

log = logging.getLogger("signalhub.actors")

PART_BYTES: Final = 384 * 1024
_PART_BYTES_MIN: Final = 256
_PAUSE_MS: Final = 2_000


class CannotMove(ValueError):
    """The move was not begun; the text says why."""


class Trip(msgspec.Struct):
    """A step of a move that the hub has been asked to take."""

    actor: str
    move_id: str
    step: Step
    # Is it from an earlier connection? Then its success is none that counts.
    is_outdated: bool = False

    def is_of(self, move: Move) -> bool:
        return self.move_id == move.move_id and self.step == move.step


class Moving:
    """What hosts do to get moves on, and all that the old host does."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._moves = kernel.moves
        # By the batch, or what stands for one.
        self._trips: dict[str, Trip] = {}
        self._next_part: dict[str, int] = {}
        self._paused_until_ms: dict[str, int] = {}
        # Moves whose mark the hub has: it comes by itself.
        self._marked: set[str] = set()

    def load(self) -> None:
        """Forget what was under way."""
        self._trips.clear()
        self._next_part.clear()
        self._paused_until_ms.clear()
        self._marked.clear()

    def connected(self) -> None:
        """The hub may have lost what it was sent: all steps are taken again.

        What is under way is answered in any case; the same may not be sent before.
        """
        for trip in self._trips.values():
            trip.is_outdated = True
        self._next_part.clear()
        self._paused_until_ms.clear()
        self._marked.clear()

    def next_due_ms(self) -> int | None:
        return min(
            (
                self._paused_until_ms[move.actor]
                for move in self._moves.all()
                if move.actor in self._paused_until_ms and not self._is_under_way(move)
            ),
            default=None,
        )

    # The old host.

    def begin(self, actor: str, to: str) -> Move:
        """Stop the actor and start its move; raises `CannotMove`."""
        kernel = self._kernel
        token = kernel.places.token_of(actor)
        if self._moves.find(actor) is not None:
            raise CannotMove(f"{actor} is on its way already")
        if token is None:
            raise CannotMove(f"{actor} does not live in {kernel.places.host}")
        if to == kernel.places.host:
            raise CannotMove(f"{actor} lives in {to} already")
        try:
            pack(Parcel.collect(kernel.store, actor, kernel.ids.last))
        except (ValueError, TypeError, msgspec.MsgspecError) as error:
            # Better now than when its place is given away.
            raise CannotMove(f"what {actor} has stored cannot be sent: {error}") from error
        self._moves.failures.pop(actor, None)
        kernel.places.put(actor, token, Status.LEAVING)
        # What this turn has brought for it must not run any more, either.
        kernel.inbox.flush(kernel.now_ms)
        kernel.inbox.hold(actor)
        kernel.outbox.freeze(actor)
        kernel.instances.forget(actor)
        move = Move(actor, "leaving", to, "asked", token, kernel.new_id())
        self._moves.put(move)
        return move

    def send_again(self, actor: str, to: str) -> Move:
        """Whoever replaces a host that is lost has not got what that one took; `CannotMove`."""
        move = self._moves.find(actor)
        if move is None or not self.is_packed(actor) or move.peer != to:
            raise CannotMove(f"{actor} has not been sent to {to} yet; there is nothing to repeat")
        self._cut_anew(move, self._moves.bodies(move))
        return move

    def moved(self, event: Moved, now_ms: int) -> None:
        """The hub's answer to giving the place away."""
        move = self._moves.find(event.actor)
        self._trips.pop(_giving(event.actor), None)
        if move is None or move.step != "asked":
            return
        if event.token is not None:
            move.step, move.token = "placed", event.token
            self._moves.put(move)
        elif event.is_final:
            self._stay(move, event.reason)
        else:
            self._paused_until_ms[move.actor] = now_ms + _PAUSE_MS

    def _stay(self, move: Move, reason: str) -> None:
        """The hub does not give the place away: the actor goes on here."""
        kernel = self._kernel
        log.error("%s stays here: %s", move.actor, reason)
        self._moves.failures[move.actor] = reason
        kernel.places.put(move.actor, move.token, Status.HERE)
        kernel.inbox.release(move.actor)
        self.thaw(move.actor)
        kernel.calls.load()
        kernel.recovery.adopt(move.actor)
        # What the hub refused may mean that it sees the place otherwise.
        kernel.dispatch.doubt(move.actor)
        self._end(move)

    def thaw(self, actor: str) -> None:
        """The rows of an actor that lives here may leave again."""
        for lane in self._kernel.outbox.thaw(actor):
            self._kernel.dispatch.wake(lane)

    def marked(self, event: Arrived) -> None:
        """The mark came out of the mailbox: everything before it is here."""
        move_id = read_mark(event.data)
        if event.sender != self._kernel.places.host:
            raise NotReadable(f"{event.sender} sent a mark; only a host itself does")
        for move in self._moves.all():
            if move.move_id == move_id and move.step == "placed":
                move.step = "drained"
                self._moves.put(move)
                # Once: what is sent again after a crash has to be the same.
                data = pack(Parcel.collect(self._kernel.store, move.actor, self._kernel.ids.last))
                self._moves.cut(move, data, PART_BYTES)
                return

    def is_packed(self, actor: str) -> bool:
        """Is it too late for a message to go along with an actor that leaves?"""
        move = self._moves.find(actor)
        return move is not None and move.direction == "leaving" and move.step == "drained"

    def _cut_smaller(self, move: Move) -> bool:
        """The hub takes less than was thought: can there be smaller parts, and are there now?"""
        bodies = self._moves.bodies(move)
        part_bytes = len(bodies[0]) // 2
        if part_bytes < _PART_BYTES_MIN:
            return False
        self._cut_anew(move, bodies, part_bytes)
        return True

    def _cut_anew(self, move: Move, bodies: list[bytes], part_bytes: int | None = None) -> None:
        """Under another id: neither the hub nor the new host may take these for the old parts."""
        self._moves.drop_parts(move.actor)
        self._next_part.pop(move.actor, None)
        move.move_id = self._kernel.new_id()
        self._moves.put(move)
        self._moves.cut(move, b"".join(bodies), part_bytes or len(bodies[0]))

    def part_arrived(self, event: Arrived) -> None:
        """A part of an actor, or word that one has arrived; raises `NotReadable`."""
        part, body = read_part(event.data)
        if part.count:
            self._kernel.taking_over.take_in(part, body, event.sender)
        else:
            self._arrived(part, event.sender)

    def _arrived(self, part: Part, sender: str) -> None:
        """The new host has everything."""
        move = self._moves.find(part.actor)
        if move is None or not self.is_packed(part.actor):
            return
        # Not by its id: the parcel may have been cut anew since.
        if move.token != part.token or move.peer != sender:
            return
        kernel = self._kernel
        Parcel.delete(kernel.store, move.actor)
        kernel.places.put(move.actor, move.token, Status.GONE)
        kernel.places.learn(move.actor, move.peer, move.token)
        kernel.inbox.recount()
        kernel.dispatch.doubt(move.actor)
        self._end(move)

    # Getting on.

    def run(self, now_ms: int) -> None:
        """Take the next step of every move that is not waiting for an answer."""
        for move in self._moves.all():
            if self._paused_until_ms.get(move.actor, 0) <= now_ms and not self._is_under_way(move):
                self._step(move)

    def _is_under_way(self, move: Move) -> bool:
        is_awaited = move.step == "placed" and move.move_id in self._marked
        return is_awaited or any(trip.is_of(move) for trip in self._trips.values())

    def _step(self, move: Move) -> None:
        host = self._kernel.places.host
        match move.step:
            case "asked":
                self._trips[_giving(move.actor)] = Trip(move.actor, move.move_id, move.step)
                self._kernel.effects.append(GiveAway(move.actor, move.token, move.peer))
            case "placed":
                self._send(move, f"mark-{move.move_id}", host, wire.MARK, encoded_mark(move))
            case "drained":
                number = self._next_part.get(move.actor, 0)
                part = self._moves.encoded_part(move, number)
                # Without one, all are with the hub; the new host will say when it has them.
                if part is not None:
                    batch = f"part-{move.move_id}-{number}"
                    self._send(move, batch, move.peer, wire.MOVE, part)
            case "arrived":
                data = encoded_arrival(move.move_id, move.actor, move.token)
                self._send(move, f"arrived-{move.move_id}", move.peer, wire.MOVE, data)

    def _send(self, move: Move, batch: str, to: str, type: str, data: bytes) -> None:
        self._trips[batch] = Trip(move.actor, move.move_id, move.step)
        self._kernel.effects.append(Send(batch, to, type, data, {}))

    def receipted(self, batch: str) -> None:
        """The hub has something; if that was a step of a move, the next may follow."""
        move, trip = self._back(batch)
        if move is None or trip is None or trip.is_outdated:
            return
        self._paused_until_ms.pop(move.actor, None)
        if move.step == "drained":
            self._next_part[move.actor] = self._next_part.get(move.actor, 0) + 1
        elif move.step == "placed":
            self._marked.add(move.move_id)
        elif move.step == "arrived":
            self._end(move)

    def refused(self, event: Refused, now_ms: int) -> None:
        """The hub does not take something; if that was a step of a move, it is tried again."""
        move, _ = self._back(event.batch)
        if move is None:
            return
        if event.is_too_large and move.step == "drained":
            if self._cut_smaller(move):
                return
            self._moves.failures[move.actor] = event.reason
        log.debug("the move of %s: %s", move.actor, event.reason)
        self._paused_until_ms[move.actor] = now_ms + _PAUSE_MS

    def _back(self, batch: str) -> tuple[Move | None, Trip | None]:
        """The trip of a batch, and its move, if that has not got on meanwhile."""
        trip = self._trips.pop(batch, None)
        move = None if trip is None else self._moves.find(trip.actor)
        return (move if move is not None and trip is not None and trip.is_of(move) else None), trip

    def _end(self, move: Move) -> None:
        self._moves.end(move.actor)
        self._next_part.pop(move.actor, None)
        self._paused_until_ms.pop(move.actor, None)
        self._marked.discard(move.move_id)


def _giving(actor: str) -> str:
    """What stands for a batch while the hub is asked to give a place away."""
    return f"give-{actor}"
