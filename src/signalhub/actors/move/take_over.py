"""The new host of a moving actor: collect its parts, then take over all rows at once.

That happens in one transaction, when the parts are complete and the hub has confirmed the place,
before messages that arrived for the actor meanwhile. A parcel that cannot be taken over is kept.
One that contains more than the rows and tables of its actor is refused: it becomes a dead letter.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from signalhub.actors import wire
from signalhub.actors.kernel.events import ActorPlace, SendBatch
from signalhub.actors.move.moves import MoveRow, Part, encoded_arrival
from signalhub.actors.move.parcel import (
    PARCEL_BYTES_MAX,
    REFUSED,
    Parcel,
    ParcelRefused,
    pack,
    unpack,
)
from signalhub.actors.move.places import PlaceStatus
from signalhub.actors.store.schema import VERSION

if TYPE_CHECKING:
    from signalhub.actors.kernel.kernel import Kernel

log = logging.getLogger("signalhub.actors")


class TakingOver:
    """Actors on their way to this host."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.parcel_bytes_max = PARCEL_BYTES_MAX

    def take_in(self, part: Part, body: bytes, peer: str) -> None:
        """A part of an actor that moves here."""
        kernel = self._kernel
        own = kernel.places.own(part.actor)
        if self._has_ended(part):
            # The sender of the part has not got the confirmation.
            self._tell_again(part, peer)
            return
        known = (PlaceStatus.HERE, PlaceStatus.GONE, PlaceStatus.UNPLACED)
        if own is not None and own.status in known and own.token >= part.token:
            return  # A late copy from an earlier move.
        if own is not None and own.status is PlaceStatus.HERE:
            # Only the hub decides that an actor no longer lives here.
            kernel.dispatch.doubt(part.actor)
            return
        if own is not None and own.status is PlaceStatus.ARRIVING and own.token > part.token:
            return  # A late copy from an earlier move; a later one is in progress.
        move = kernel.moves.find(part.actor)
        if move is not None and (move.direction == "leaving" or move.step == "arrived"):
            return
        if move is not None and move.token == part.token and move.move_id > part.move:
            return  # Its parcel has been cut again since.
        if move is None or move.move_id != part.move:
            kernel.moves.begin(part.actor, "arriving", peer, part.token, part.move)
            kernel.moves.drop_parts(part.actor)
        if own is None or own.status is not PlaceStatus.ARRIVING:
            kernel.places.put(part.actor, part.token, PlaceStatus.ARRIVING)
            kernel.inbox.hold(part.actor)
        size = kernel.moves.size(part.actor, part.move) + len(body)
        if size > self.parcel_bytes_max:
            reason = f"the parcel is larger than {self.parcel_bytes_max} bytes"
            move = kernel.moves.find(part.actor)
            assert move is not None
            self._refuse(move, reason)
            return
        kernel.moves.put_part(part.actor, part.move, part.number, body)
        if kernel.moves.count(part.actor, part.move) == part.count:
            # Only the hub decides that an actor lives here.
            kernel.dispatch.doubt(part.actor)

    def _has_ended(self, part: Part) -> bool:
        """Has exactly this move ended? Its sender deletes the actor when told so."""
        found = self._kernel.store.execute(
            "SELECT 1 FROM done WHERE actor = ? AND call_id = ?", (part.actor, _memory(part.move))
        )
        return found.get is not None

    def _tell_again(self, part: Part, peer: str) -> None:
        """Confirm again; if this is lost, the next copy of a part repeats it."""
        data = encoded_arrival(part.move, part.actor, part.token)
        send = SendBatch(f"told-{self._kernel.new_id()}", peer, wire.MOVE, data, {})
        self._kernel.effects.append(send)

    def is_complete(self, actor: str) -> bool:
        """Are all parts of an arriving actor here?"""
        move = self._kernel.moves.find(actor)
        if move is None or move.step != "parts":
            return False
        try:
            unpack(b"".join(self._kernel.moves.bodies(move)))
        except msgspec.DecodeError:
            return False
        return True

    def give_up(self, actor: str) -> None:
        """An actor that was moving here was moved elsewhere."""
        move = self._kernel.moves.find(actor)
        if move is not None:
            self._kernel.moves.advance(move, "moved_on")

    def forgotten(self, actor: str) -> None:
        """The place that an actor was moving to was forgotten; its old host keeps its rows."""
        kernel = self._kernel
        move, own = kernel.moves.find(actor), kernel.places.own(actor)
        if move is None or own is None or move.step != "parts":
            return
        reason = "its place was forgotten before it had arrived"
        log.error("%s does not move here: %s", actor, reason)
        kernel.moves.failures[actor] = reason
        kernel.moves.advance(move, "forgotten")
        kernel.places.put(actor, own.token, PlaceStatus.GONE)
        if kernel.store.execute("SELECT 1 FROM inbox WHERE actor = ? LIMIT 1", (actor,)).get:
            # What waits for it goes where it lives next.
            kernel.places.put(actor, own.token, PlaceStatus.UNPLACED)
            kernel.dispatch.doubt(actor)

    def confirmed(self, place: ActorPlace, now_ms: int) -> None:
        """The hub confirms that an arriving actor lives here: take it over if complete."""
        move = self._kernel.moves.find(place.actor)
        if move is None or move.step != "parts" or place.token != move.token:
            if move is not None and place.token < move.token:
                # The question was asked before the move; ask again.
                self._kernel.dispatch.doubt_later(place.actor, now_ms)
            return
        try:
            parcel = unpack(b"".join(self._kernel.moves.bodies(move)))
        except msgspec.ValidationError as error:
            self._failed(move, f"its rows cannot be read: {error}")
            return
        except msgspec.DecodeError:
            return  # Not complete.
        if parcel.version != VERSION:
            text = f"the parcel has version {parcel.version} of the tables"
            self._failed(move, f"{text}; this host has version {VERSION}")
            return
        fault = self._kernel.attempt(lambda: self._take_over(move, parcel, now_ms))
        if isinstance(fault, ParcelRefused):
            self._refuse(move, str(fault))
        elif fault is not None:
            self._failed(move, repr(fault))

    def _refuse(self, move: MoveRow, reason: str) -> None:
        """Keep the parcel as a dead letter, one per actor; the old host still has the actor."""
        kernel = self._kernel
        log.error("the parcel of %s from %s is refused: %s", move.actor, move.peer, reason)
        kernel.moves.failures[move.actor] = f"refused: {reason}"
        kernel.store.execute(
            "DELETE FROM dead WHERE actor = ? AND origin = ?", (move.actor, REFUSED)
        )
        data = b"".join(kernel.moves.bodies(move))
        text = f"parcel from {move.peer} refused: {reason}"
        kernel.letters.bury(move.actor, REFUSED, move.move_id, data, text, 1)
        kernel.moves.drop_parts(move.actor)

    def _failed(self, move: MoveRow, reason: str) -> None:
        """Keep the parts: the fault may be in this host. A restart tries again."""
        log.error("%s has arrived but cannot be taken over: %s", move.actor, reason)
        self._kernel.moves.failures[move.actor] = reason

    def _take_over(self, move: MoveRow, parcel: Parcel, now_ms: int) -> None:
        kernel = self._kernel
        parcel.check(move.actor, kernel.time.wall_ms)
        kernel.ids.overtake(parcel.last_id)
        held = Parcel.take_inbox(kernel.store, move.actor)
        stranded = Parcel.collect(kernel.store, move.actor, kernel.ids.last, kernel.time)
        remembered = Parcel.done_of(kernel.store, move.actor)
        Parcel.delete(kernel.store, move.actor)
        kernel.calls.forget_known()
        parcel.insert(kernel.store, kernel.new_id, kernel.time)
        # Messages that arrived meanwhile may be copies of ones the actor accepted before.
        taken = {call_id for _, call_id, _ in parcel.done}
        for row in held:
            if row[2] != "request" or row[3] not in taken:
                Parcel.put_inbox(kernel.store, row, kernel.new_id())
        Parcel.put_done(kernel.store, remembered)
        accepted_ms = kernel.arriving.latest_ms(now_ms)
        Parcel.put_done(kernel.store, [[move.actor, _memory(move.move_id), accepted_ms]])
        kernel.moves.drop_parts(move.actor)
        kernel.places.put(move.actor, move.token, PlaceStatus.HERE)
        kernel.inbox.release(move.actor)
        kernel.moving.thaw(move.actor)
        kernel.adopted(move.actor)
        self._keep_stranded(stranded)
        kernel.moves.advance(move, "taken_over")
        kernel.moves.failures.pop(move.actor, None)
        log.info("%s now lives here", move.actor)

    def start_empty(self, actor: str) -> None:
        """The place of the actor was forgotten: it starts here without what is left of it."""
        kernel = self._kernel
        self.give_up(actor)
        held = Parcel.take_inbox(kernel.store, actor)
        stranded = Parcel.collect(kernel.store, actor, kernel.ids.last, kernel.time)
        if not stranded.is_empty:
            remembered = Parcel.done_of(kernel.store, actor)
            Parcel.delete(kernel.store, actor)
            kernel.calls.forget_known()
            Parcel.put_done(kernel.store, remembered)
            kernel.calls.load()
            self._keep_stranded(stranded)
        for row in held:
            Parcel.put_inbox(kernel.store, row, kernel.new_id())

    def _keep_stranded(self, stranded: Parcel) -> None:
        """Keep rows of an earlier stay, which ended without a move, as a dead letter."""
        if not stranded.is_empty:
            text = "rows left here when the actor was created again in another host"
            data = pack(stranded)
            self._kernel.letters.bury(stranded.actor, "stranded", "", data, text, 0)


def _memory(move_id: str) -> str:
    """The id under which a finished move is remembered; no call has such an id."""
    return f"move {move_id}"
