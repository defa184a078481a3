"""The new host of an actor that moves: parts gather, then all rows are taken over at once.

That happens when they are complete and the hub has confirmed the place, in one transaction, and
before whatever came for the actor meanwhile. A parcel that cannot be taken over is kept.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from signalhub.actors import wire
from signalhub.actors.kernel.events import Place, Send
from signalhub.actors.move.moves import Move, Part, encoded_arrival
from signalhub.actors.move.parcel import Parcel, pack, unpack
from signalhub.actors.move.places import Status
from signalhub.actors.store.schema import VERSION

if TYPE_CHECKING:
    from signalhub.actors.kernel.kernel import Kernel

log = logging.getLogger("signalhub.actors")


class TakingOver:
    """Actors on their way to this host."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def take_in(self, part: Part, body: bytes, peer: str) -> None:
        """A part of an actor that is to live here."""
        kernel = self._kernel
        own = kernel.places.own(part.actor)
        if self._has_ended(part):
            # Whoever sent the part has not heard of it.
            self._tell_again(part, peer)
            return
        known = (Status.HERE, Status.GONE, Status.UNPLACED)
        if own is not None and own.status in known and own.token >= part.token:
            return  # A late copy from an earlier move.
        if own is not None and own.status is Status.HERE:
            # Only the hub's word ends the life of an actor here.
            kernel.dispatch.doubt(part.actor)
            return
        if own is not None and own.status is Status.ARRIVING and own.token > part.token:
            return  # A late copy from an earlier move; a later one is under way.
        move = kernel.moves.find(part.actor)
        if move is not None and (move.direction == "leaving" or move.step == "arrived"):
            return
        if move is not None and move.token == part.token and move.move_id > part.move:
            return  # Its parcel has been cut anew since.
        if move is None or move.move_id != part.move:
            kernel.moves.put(Move(part.actor, "arriving", peer, "parts", part.token, part.move))
            kernel.moves.drop_parts(part.actor)
        if own is None or own.status is not Status.ARRIVING:
            kernel.places.put(part.actor, part.token, Status.ARRIVING)
            kernel.inbox.hold(part.actor)
        kernel.moves.put_part(part.actor, part.move, part.number, body)
        if kernel.moves.count(part.actor, part.move) == part.count:
            # Only the hub's word makes an actor live here.
            kernel.dispatch.doubt(part.actor)

    def _has_ended(self, part: Part) -> bool:
        """Only this very move: its sender deletes the actor when it hears so."""
        found = self._kernel.store.execute(
            "SELECT 1 FROM done WHERE actor = ? AND call_id = ?", (part.actor, _memory(part.move))
        )
        return found.get is not None

    def _tell_again(self, part: Part, peer: str) -> None:
        """Should that get lost, the next copy of a part makes up for it."""
        data = encoded_arrival(part.move, part.actor, part.token)
        send = Send(f"told-{self._kernel.new_id()}", peer, wire.MOVE, data, {})
        self._kernel.effects.append(send)

    def is_complete(self, actor: str) -> bool:
        """Is everything here of an actor that is arriving?"""
        move = self._kernel.moves.find(actor)
        if move is None or move.step != "parts":
            return False
        try:
            unpack(b"".join(self._kernel.moves.bodies(move)))
        except msgspec.DecodeError:
            return False
        return True

    def give_up(self, actor: str) -> None:
        """An actor that was on its way here has gone elsewhere."""
        self._kernel.moves.end(actor)

    def confirmed(self, place: Place, now_ms: int) -> None:
        """The hub says that an arriving actor lives here: take it over if it is complete."""
        move = self._kernel.moves.find(place.actor)
        if move is None or move.step != "parts" or place.token != move.token:
            if move is not None and place.token < move.token:
                # The question was asked before the move, and its answer must not be the last.
                self._kernel.dispatch.doubt_later(place.actor, now_ms)
            return
        try:
            parcel = unpack(b"".join(self._kernel.moves.bodies(move)))
        except msgspec.ValidationError as error:
            self._failed(move, f"it cannot be read here: {error}")
            return
        except msgspec.DecodeError:
            return  # Not complete.
        if parcel.actor != move.actor or parcel.version != VERSION:
            text = f"it is {parcel.actor} as of version {parcel.version} of the tables"
            self._failed(move, f"{text}; here they have version {VERSION}")
            return
        fault = self._kernel.attempt(lambda: self._take_over(move, parcel, now_ms))
        if fault is not None:
            self._failed(move, repr(fault))

    def _failed(self, move: Move, reason: str) -> None:
        """Its parts are kept: it may be the host that has to be mended. A restart tries again."""
        log.error("%s has arrived and cannot live here: %s", move.actor, reason)
        self._kernel.moves.failures[move.actor] = reason

    def _take_over(self, move: Move, parcel: Parcel, now_ms: int) -> None:
        kernel = self._kernel
        kernel.ids.overtake(parcel.last_id)
        held = Parcel.take_inbox(kernel.store, move.actor)
        stranded = Parcel.collect(kernel.store, move.actor, kernel.ids.last)
        remembered = Parcel.done_of(kernel.store, move.actor)
        Parcel.delete(kernel.store, move.actor)
        parcel.insert(kernel.store, kernel.new_id)
        # What came here meanwhile may be a copy of what the actor has taken before.
        taken = {call_id for _, call_id, _ in parcel.done}
        for row in held:
            if row[2] != "request" or row[3] not in taken:
                Parcel.put_inbox(kernel.store, row, kernel.new_id())
        Parcel.put_done(kernel.store, remembered)
        Parcel.put_done(kernel.store, [[move.actor, _memory(move.move_id), now_ms]])
        kernel.moves.drop_parts(move.actor)
        kernel.places.put(move.actor, move.token, Status.HERE)
        kernel.inbox.release(move.actor)
        kernel.moving.thaw(move.actor)
        kernel.adopted(move.actor)
        self._keep_stranded(stranded, now_ms)
        move.step = "arrived"
        kernel.moves.put(move)
        kernel.moves.failures.pop(move.actor, None)
        log.info("%s lives here now", move.actor)

    def _keep_stranded(self, stranded: Parcel, now_ms: int) -> None:
        """Rows of an earlier life here, which ended without a move, are kept as evidence."""
        if not stranded.is_empty:
            text = "what the actor had here when it was made anew in another host"
            data = pack(stranded)
            self._kernel.letters.bury(stranded.actor, "stranded", "", data, text, 0, now_ms)


def _memory(move_id: str) -> str:
    """Under which id a move is remembered that has ended here; no call has such a one."""
    return f"move {move_id}"
