"""Moving an actor to another host, with everything it has; `moves` has the steps.

The new host's side is in `take_over`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.actors import wire
from signalhub.actors.kernel.events import BatchRefused, DeliveryArrived, GiveAway, Moved, SendBatch
from signalhub.actors.move.moves import (
    Event,
    MoveRow,
    Part,
    Step,
    encoded_arrival,
    encoded_mark,
    read_mark,
    read_part,
)
from signalhub.actors.move.parcel import PARCEL_BYTES_MAX, Parcel, pack
from signalhub.actors.move.places import PlaceStatus
from signalhub.actors.wire import NotReadable

if TYPE_CHECKING:
    from signalhub.actors.kernel.kernel import Kernel

log = logging.getLogger("signalhub.actors")

PART_BYTES: Final = 384 * 1024
_PART_BYTES_MIN: Final = 256
_PAUSE_MS: Final = 2_000
# How often to look whether the new place still exists while nobody confirms the arrival.
LOOK_MS: Final = 30_000


class CannotMove(ValueError):
    """The move was not started; the text says why."""


class MoveTrip(msgspec.Struct):
    """A step of a move that waits for the hub's answer."""

    actor: str
    move_id: str
    step: Step
    # Sent over an earlier connection? Then its success does not count.
    is_outdated: bool = False

    def is_of(self, move: MoveRow) -> bool:
        return self.move_id == move.move_id and self.step == move.step


class Moving:
    """Advances moves, and does the old host's part of them."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._moves = kernel.moves
        # By the id of the `SendBatch` or of the request.
        self._trips: dict[str, MoveTrip] = {}
        self._next_part: dict[str, int] = {}
        self._paused_until_ms: dict[str, int] = {}
        # Moves whose mark the hub has stored: it will be delivered.
        self._marked: set[str] = set()
        # Actors of which the hub has all parts.
        self._sent: set[str] = set()

    def load(self) -> None:
        """Forget steps in flight."""
        self._trips.clear()
        self._next_part.clear()
        self._paused_until_ms.clear()
        self._marked.clear()
        self._sent.clear()

    def connected(self) -> None:
        """The hub may have lost what it was sent: repeat all steps.

        Steps in flight get an answer in any case; they may not be sent again before that.
        """
        for trip in self._trips.values():
            trip.is_outdated = True
        self._next_part.clear()
        self._paused_until_ms.clear()
        self._marked.clear()
        self._sent.clear()

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

    def begin(self, actor: str, to: str) -> MoveRow:
        """Stop the actor and start its move; raises `CannotMove`."""
        kernel = self._kernel
        token = kernel.places.token_of(actor)
        if self._moves.find(actor) is not None:
            raise CannotMove(f"{actor} is already moving")
        if token is None:
            raise CannotMove(f"{actor} does not live in {kernel.places.host}")
        if to == kernel.places.host:
            raise CannotMove(f"{actor} already lives in {to}")
        try:
            size = len(pack(Parcel.collect(kernel.store, actor, kernel.ids.last, kernel.time)))
        except (ValueError, TypeError, msgspec.MsgspecError) as error:
            # Fail now rather than after its place has changed.
            raise CannotMove(f"the rows of {actor} cannot be sent: {error}") from error
        if size > PARCEL_BYTES_MAX:
            raise CannotMove(f"{actor} has {size} bytes; at most {PARCEL_BYTES_MAX} can be moved")
        self._moves.failures.pop(actor, None)
        kernel.places.put(actor, token, PlaceStatus.LEAVING)
        # Messages that arrived in this turn must not run either.
        kernel.inbox.flush()
        kernel.inbox.hold(actor)
        kernel.outbox.freeze(actor)
        kernel.instances.forget(actor)
        return self._moves.begin(actor, "leaving", to, token, kernel.new_id())

    def send_again(self, actor: str, to: str) -> MoveRow:
        """Send the parts again, to a host that replaces a lost one; raises `CannotMove`."""
        move = self._moves.find(actor)
        if move is None or not self.is_packed(actor) or move.peer != to:
            raise CannotMove(f"{actor} has not been sent to {to}; there is nothing to send again")
        self._cut_anew(move, self._moves.bodies(move))
        return move

    def moved(self, event: Moved, now_ms: int) -> None:
        """The hub's answer to the change of place."""
        move = self._moves.find(event.actor)
        self._trips.pop(_giving(event.actor), None)
        if event.is_forgotten and self.is_packed(event.actor):
            assert move is not None
            self._forgotten(move)
        if move is None or move.step != "asked":
            return
        if event.token is not None:
            move.token = event.token
            self._moves.advance(move, "granted")
        elif event.is_final:
            self._stay(move, event.reason)
        else:
            self._retry_later(move, event.reason, now_ms)

    def _stay(self, move: MoveRow, reason: str) -> None:
        """The hub refused to change the place: the actor continues here."""
        kernel = self._kernel
        log.error("%s is not moved: %s", move.actor, reason)
        self._moves.failures[move.actor] = reason
        kernel.places.put(move.actor, move.token, PlaceStatus.HERE)
        kernel.inbox.release(move.actor)
        self.thaw(move.actor)
        kernel.calls.load()
        kernel.recovery.adopt(move.actor)
        # The refusal may mean that the hub has another place for it.
        kernel.dispatch.doubt(move.actor)
        self._end(move, "refused")

    def _forgotten(self, move: MoveRow) -> None:
        """The new place was forgotten: keep what the actor had as a dead letter.

        It cannot go on here: the new host may have taken it over before that.
        """
        kernel = self._kernel
        reason = f"its place was forgotten during its move to {move.peer}"
        log.error("%s is not moved: %s; its rows are a dead letter", move.actor, reason)
        self._moves.failures[move.actor] = reason
        data = b"".join(self._moves.bodies(move))
        # It may be placed here anew, and copies of what it has executed may still come.
        remembered = Parcel.done_of(kernel.store, move.actor)
        Parcel.delete(kernel.store, move.actor)
        kernel.calls.forget_known()
        Parcel.put_done(kernel.store, remembered)
        kernel.letters.bury(move.actor, "stranded", "", data, reason, 0)
        kernel.places.put(move.actor, move.token, PlaceStatus.GONE)
        kernel.inbox.recount()
        kernel.calls.load()
        self._end(move, "forgotten")

    def thaw(self, actor: str) -> None:
        """Send the rows of an actor that lives here again."""
        for lane in self._kernel.outbox.thaw(actor):
            self._kernel.dispatch.wake(lane)

    def marked(self, event: DeliveryArrived) -> None:
        """The mark was delivered: everything before it is here."""
        move_id = read_mark(event.data)
        if event.sender != self._kernel.places.host:
            raise NotReadable(f"{event.sender} sent a mark; only the host itself may")
        for move in self._moves.all():
            if move.move_id == move_id and move.step == "placed":
                self._moves.advance(move, "marked")
                # Once, because after a crash the same bytes must be sent again.
                kernel = self._kernel
                parcel = Parcel.collect(kernel.store, move.actor, kernel.ids.last, kernel.time)
                self._moves.cut(move, pack(parcel), PART_BYTES)
                return

    def is_packed(self, actor: str) -> bool:
        """Is it too late for a message to move along with a leaving actor?"""
        move = self._moves.find(actor)
        return move is not None and move.direction == "leaving" and move.step == "drained"

    def _cut_smaller(self, move: MoveRow) -> bool:
        """The hub's limit is lower than expected: make smaller parts; returns whether it could."""
        bodies = self._moves.bodies(move)
        part_bytes = len(bodies[0]) // 2
        if part_bytes < _PART_BYTES_MIN:
            return False
        self._cut_anew(move, bodies, part_bytes)
        return True

    def _cut_anew(self, move: MoveRow, bodies: list[bytes], part_bytes: int | None = None) -> None:
        """Cut into parts under a new id, so that they are not mistaken for the old ones."""
        self._moves.drop_parts(move.actor)
        self._next_part.pop(move.actor, None)
        self._sent.discard(move.actor)
        self._paused_until_ms.pop(move.actor, None)
        move.move_id = self._kernel.new_id()
        self._moves.put(move)
        self._moves.cut(move, b"".join(bodies), part_bytes or len(bodies[0]))

    def part_arrived(self, event: DeliveryArrived) -> None:
        """A part of an actor, or the confirmation of an arrival; raises `NotReadable`."""
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
        # Not by its id: the parcel may have been cut again.
        if move.token != part.token or move.peer != sender:
            return
        kernel = self._kernel
        Parcel.delete(kernel.store, move.actor)
        kernel.calls.forget_known()
        kernel.places.put(move.actor, move.token, PlaceStatus.GONE)
        kernel.places.learn(move.actor, move.peer, move.token)
        kernel.inbox.recount()
        kernel.dispatch.doubt(move.actor)
        self._end(move, "confirmed")

    # Progress.

    def run(self, now_ms: int) -> None:
        """Take the next step of every move that does not wait for an answer."""
        for move in self._moves.all():
            if self._paused_until_ms.get(move.actor, 0) <= now_ms and not self._is_under_way(move):
                self._step(move, now_ms)

    def _is_under_way(self, move: MoveRow) -> bool:
        is_awaited = move.step == "placed" and move.move_id in self._marked
        return is_awaited or any(trip.is_of(move) for trip in self._trips.values())

    def _step(self, move: MoveRow, now_ms: int) -> None:
        host = self._kernel.places.host
        match move.step:
            case "asked":
                self._give_away(move, move.token)
            case "placed":
                self._send(move, f"mark-{move.move_id}", host, wire.MARK, encoded_mark(move))
            case "drained":
                number = self._next_part.get(move.actor, 0)
                part = self._moves.encoded_part(move, number)
                if part is not None:
                    batch = f"part-{move.move_id}-{number}"
                    self._send(move, batch, move.peer, wire.MOVE, part)
                    return
                # The hub has all parts; the new host confirms when it has them.
                self._paused_until_ms[move.actor] = now_ms + LOOK_MS
                if move.actor in self._sent:
                    # Asked again, the hub says whether the place is still the one it granted.
                    self._give_away(move, move.token - 1)
                self._sent.add(move.actor)
            case "arrived":
                data = encoded_arrival(move.move_id, move.actor, move.token)
                self._send(move, f"arrived-{move.move_id}", move.peer, wire.MOVE, data)

    def _give_away(self, move: MoveRow, token: int) -> None:
        self._trips[_giving(move.actor)] = MoveTrip(move.actor, move.move_id, move.step)
        self._kernel.effects.append(GiveAway(move.actor, token, move.peer))

    def _send(self, move: MoveRow, batch: str, to: str, type: str, data: bytes) -> None:
        self._trips[batch] = MoveTrip(move.actor, move.move_id, move.step)
        self._kernel.effects.append(SendBatch(batch, to, type, data, {}))

    def receipted(self, batch: str) -> None:
        """The hub has stored what was sent; if it was a step of a move, continue the move."""
        move, trip = self._back(batch)
        if move is None or trip is None or trip.is_outdated:
            return
        self._paused_until_ms.pop(move.actor, None)
        if move.step == "drained":
            self._next_part[move.actor] = self._next_part.get(move.actor, 0) + 1
        elif move.step == "placed":
            self._marked.add(move.move_id)
        elif move.step == "arrived":
            self._end(move, "told")

    def refused(self, event: BatchRefused, now_ms: int) -> None:
        """The hub refused what was sent; if it was a step of a move, retry it."""
        move, _ = self._back(event.batch)
        if move is None:
            return
        if event.is_too_large and move.step == "drained":
            if self._cut_smaller(move):
                return
            self._moves.failures[move.actor] = event.reason
        self._retry_later(move, event.reason, now_ms)

    def _retry_later(self, move: MoveRow, reason: str, now_ms: int) -> None:
        log.debug("the move of %s: %s", move.actor, reason)
        self._paused_until_ms[move.actor] = now_ms + _PAUSE_MS

    def _back(self, batch: str) -> tuple[MoveRow | None, MoveTrip | None]:
        """The trip with this id and its move, unless the move has advanced meanwhile."""
        trip = self._trips.pop(batch, None)
        move = None if trip is None else self._moves.find(trip.actor)
        return (move if move is not None and trip is not None and trip.is_of(move) else None), trip

    def _end(self, move: MoveRow, event: Event) -> None:
        self._moves.advance(move, event)
        self._next_part.pop(move.actor, None)
        self._paused_until_ms.pop(move.actor, None)
        self._marked.discard(move.move_id)
        self._sent.discard(move.actor)


def _giving(actor: str) -> str:
    """The id used for a request to change a place."""
    return f"give-{actor}"
