"""Moving an actor from one host to another, with everything it has.

The old host: `asked` (the actor stands still, the hub is to give its place away) → `placed`
(nothing more is accepted for it here; a mark is sent through the own mailbox) → `drained` (the
mark came back, so all that was accepted before is here; the rows go in parts) → the new host says
that it has arrived, and the rows are deleted. The new host: parts gather; when they are complete
and the hub confirms the place, all rows are taken over in one transaction, before whatever came for
the actor meanwhile.

Every step is a row of `moves`; what it takes to get on is derived from that row, so a crash only
repeats it.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from signalhub.actors import message as wire
from signalhub.actors.effects import GiveAway, Send
from signalhub.actors.events import Arrived, Moved, Place, Refused
from signalhub.actors.message import NotReadable
from signalhub.actors.naming import parse_ref
from signalhub.actors.outbox import NOWHERE
from signalhub.actors.parcel import Parcel, pack, unpack
from signalhub.actors.places import Status
from signalhub.actors.schema import VERSION
from signalhub.actors.store import STORAGE_ERRORS, StorageFailed

if TYPE_CHECKING:
    from signalhub.actors.kernel import Kernel

log = logging.getLogger("signalhub.actors")

PART_BYTES: Final = 384 * 1024
_PART_BYTES_MIN: Final = 256
_PAUSE_MS: Final = 2_000
# Instead of the id of a batch: the hub has the mark and will deliver it.
_AWAITED: Final = "awaited-"

Step = Literal["asked", "placed", "drained", "parts", "arrived"]


class Move(msgspec.Struct):
    """A row of the table `moves`."""

    actor: str
    direction: Literal["leaving", "arriving"]
    peer: str
    step: Step
    token: int
    move_id: str


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Part(msgspec.Struct):
    """A piece of an actor on its way, or, without a body, word that it has arrived."""

    v: int
    move: str
    actor: str
    token: Count = 0
    number: Count = 0
    count: Count = 0
    body: str = ""


class Mark(msgspec.Struct):
    """What a host sends itself."""

    move: str


class CannotMove(ValueError):
    """The move was not begun; the text says why."""


_decode_part = msgspec.json.Decoder(Part).decode
_decode_mark = msgspec.json.Decoder(Mark).decode


class Moving:
    """Moves under way from and to this host."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._execute = kernel.store.execute
        self._moves: dict[str, Move] = {}
        # Moves whose next step is under way, by the batch or the request that takes it.
        self._trips: dict[str, str] = {}
        self._next_part: dict[str, int] = {}
        self._paused_until_ms: dict[str, int] = {}
        # Why moves did not happen, for whoever asks.
        self.failures: dict[str, str] = {}

    def load(self) -> None:
        self.reread()
        self._trips.clear()
        self._next_part.clear()
        self._paused_until_ms.clear()

    def reread(self) -> None:
        """Which moves there are, as the table has it."""
        rows = self._execute("SELECT actor, direction, peer, step, token, move_id FROM moves")
        self._moves = {str(row[0]): Move(*row) for row in rows}

    def connected(self) -> None:
        """The hub may have lost what it was sent: all steps are taken again.

        What is under way is answered in any case, and goes on then.
        """
        under_way = [trip for trip in self._trips if not trip.startswith(_AWAITED)]
        self._trips = {trip: self._trips[trip] for trip in under_way}
        self._next_part.clear()
        self._paused_until_ms.clear()

    def give_up(self, actor: str) -> None:
        """An actor that was on its way here has gone elsewhere."""
        self._execute("DELETE FROM parts WHERE actor = ?", (actor,))
        self._end(actor)

    def find(self, actor: str) -> Move | None:
        return self._moves.get(actor)

    def next_due_ms(self) -> int | None:
        waiting = set(self._moves) - set(self._trips.values())
        return min(
            (self._paused_until_ms[one] for one in waiting if one in self._paused_until_ms),
            default=None,
        )

    # The old host.

    def begin(self, actor: str, to: str) -> Move:
        """Stop the actor and start its move; raises `CannotMove`."""
        kernel = self._kernel
        token = kernel.places.token_of(actor)
        if actor in self._moves:
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
        self.failures.pop(actor, None)
        kernel.places.put(actor, token, Status.LEAVING)
        # What this turn has brought for it must not run any more, either.
        kernel.inbox.flush(kernel.now_ms)
        kernel.inbox.hold(actor)
        kernel.outbox.freeze(actor)
        kernel.instances.forget(actor)
        move = Move(actor, "leaving", to, "asked", token, kernel.new_id())
        self._put(move)
        return move

    def send_again(self, actor: str, to: str) -> Move:
        """Whoever replaces a host that is lost has not got what that one took; `CannotMove`."""
        move = self._moves.get(actor)
        if move is None or move.direction != "leaving" or move.peer != to or move.step != "drained":
            raise CannotMove(f"{actor} has not been sent to {to} yet; there is nothing to repeat")
        self._cut_anew(move, self._bodies(move))
        return move

    def moved(self, event: Moved, now_ms: int) -> None:
        """The hub's answer to giving the place away."""
        move = self._moves.get(event.actor)
        self._trips.pop(f"give-{event.actor}", None)
        if move is None or move.step != "asked":
            return
        if event.token is not None:
            move.step, move.token = "placed", event.token
            self._put(move)
        elif event.is_final:
            self._stay(move, event.reason)
        else:
            self._paused_until_ms[move.actor] = now_ms + _PAUSE_MS

    def _stay(self, move: Move, reason: str) -> None:
        """The hub does not give the place away: the actor goes on here."""
        kernel = self._kernel
        log.error("%s stays here: %s", move.actor, reason)
        self.failures[move.actor] = reason
        kernel.places.put(move.actor, move.token, Status.HERE)
        kernel.inbox.release(move.actor)
        self._thaw(move.actor)
        kernel.calls.load()
        kernel.recovery.adopt(move.actor)
        # What the hub refused may mean that it sees the place otherwise.
        kernel.dispatch.doubt(move.actor)
        self._end(move.actor)

    def _thaw(self, actor: str) -> None:
        for lane in self._kernel.outbox.thaw(actor):
            self._kernel.dispatch.wake(lane)

    def marked(self, event: Arrived) -> None:
        """The mark came out of the mailbox: everything before it is here."""
        try:
            mark = _decode_mark(event.data)
        except msgspec.MsgspecError as error:
            raise NotReadable(f"a mark that cannot be read: {error}") from error
        if event.sender != self._kernel.places.host:
            raise NotReadable(f"{event.sender} sent a mark; only a host itself does")
        for move in self._moves.values():
            if move.move_id == mark.move and move.step == "placed":
                move.step = "drained"
                self._put(move)
                self._pack(move)
                return

    def is_packed(self, actor: str) -> bool:
        """Is it too late for a message to go along with an actor that leaves?"""
        move = self._moves.get(actor)
        return move is not None and move.direction == "leaving" and move.step == "drained"

    def _pack(self, move: Move) -> None:
        """Store the parts, once: whatever is sent again after a crash has to be the same."""
        data = pack(Parcel.collect(self._kernel.store, move.actor, self._kernel.ids.last))
        self._cut(move, data, PART_BYTES)

    def _cut(self, move: Move, data: bytes, part_bytes: int) -> None:
        for number, at in enumerate(range(0, len(data), part_bytes)):
            self._execute(
                "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?)",
                (move.actor, move.move_id, number, data[at : at + part_bytes]),
            )

    def _cut_smaller(self, move: Move) -> bool:
        """The hub takes less than was thought: can there be smaller parts, and are there now?"""
        bodies = self._bodies(move)
        part_bytes = len(bodies[0]) // 2
        if part_bytes < _PART_BYTES_MIN:
            return False
        self._cut_anew(move, bodies, part_bytes)
        return True

    def _cut_anew(self, move: Move, bodies: list[bytes], part_bytes: int | None = None) -> None:
        """Under another id: neither the hub nor the new host may take these for the old parts."""
        self._execute("DELETE FROM parts WHERE actor = ?", (move.actor,))
        self._next_part.pop(move.actor, None)
        move.move_id = self._kernel.new_id()
        self._put(move)
        self._cut(move, b"".join(bodies), part_bytes or len(bodies[0]))

    def _bodies(self, move: Move) -> list[bytes]:
        rows: Iterable[tuple[Any, ...]] = self._execute(
            "SELECT body FROM parts WHERE actor = ? AND move_id = ? ORDER BY number",
            (move.actor, move.move_id),
        )
        return [bytes(row[0]) for row in rows]

    def _arrived(self, part: Part, sender: str) -> None:
        """The new host has everything."""
        move = self._moves.get(part.actor)
        if move is None or move.direction != "leaving" or move.step != "drained":
            return
        # Not by its id: the parcel may have been cut anew since.
        if move.token != part.token or move.peer != sender:
            return
        kernel = self._kernel
        Parcel.delete(kernel.store, move.actor)
        kernel.places.put(move.actor, move.token, Status.GONE)
        kernel.places.learn(move.actor, move.peer, move.token)
        for lane in kernel.outbox.rehost(NOWHERE, {move.actor: move.peer}):
            kernel.dispatch.wake(lane)
        kernel.inbox.recount()
        self._end(move.actor)

    # The new host.

    def part_arrived(self, event: Arrived) -> None:
        """A part of an actor, or word that one has arrived; raises `NotReadable`."""
        try:
            part = _decode_part(event.data)
            if part.v != wire.ENVELOPE_VERSION:
                raise NotReadable(f"a move of version {part.v}")
            parse_ref(part.actor)
            body = b64decode(part.body, validate=True)
        except (msgspec.MsgspecError, ValueError) as error:
            raise NotReadable(f"a part of a move that cannot be read: {error}") from error
        if not part.count:
            self._arrived(part, event.sender)
            return
        self._store_part(part, body, event.sender)

    def _store_part(self, part: Part, body: bytes, peer: str) -> None:
        kernel = self._kernel
        own = kernel.places.own(part.actor)
        if self._was_taken_over(part):
            # Whoever sent the part has not heard of it.
            self._tell_arrived(part, peer)
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
        move = self._moves.get(part.actor)
        if move is not None and (move.direction == "leaving" or move.step == "arrived"):
            return
        if move is not None and move.token == part.token and move.move_id > part.move:
            return  # Its parcel has been cut anew since.
        if move is None or move.move_id != part.move:
            self._put(Move(part.actor, "arriving", peer, "parts", part.token, part.move))
            self._execute("DELETE FROM parts WHERE actor = ?", (part.actor,))
        if own is None or own.status is not Status.ARRIVING:
            kernel.places.put(part.actor, part.token, Status.ARRIVING)
            kernel.inbox.hold(part.actor)
        self._execute(
            "INSERT OR IGNORE INTO parts VALUES (?, ?, ?, ?)",
            (part.actor, part.move, part.number, body),
        )
        stored = self._execute(
            "SELECT count(*) FROM parts WHERE actor = ? AND move_id = ?", (part.actor, part.move)
        ).get
        if stored == part.count:
            # Only the hub's word makes an actor live here.
            kernel.dispatch.doubt(part.actor)

    def _was_taken_over(self, part: Part) -> bool:
        """Only this very move: its sender deletes the actor when it hears so."""
        found = self._execute(
            "SELECT 1 FROM done WHERE actor = ? AND call_id = ?", (part.actor, _memory(part.move))
        )
        return found.get is not None

    def _tell_arrived(self, part: Part, peer: str) -> None:
        """Once more; should that get lost, the next copy of a part makes up for it."""
        data = _encoded_arrival(part.move, part.actor, part.token)
        send = Send(f"told-{self._kernel.new_id()}", peer, wire.MOVE, data, {})
        self._kernel.effects.append(send)

    def is_complete(self, actor: str) -> bool:
        """Is everything here of an actor that is arriving?"""
        move = self._moves.get(actor)
        if move is None or move.step != "parts":
            return False
        try:
            unpack(b"".join(self._bodies(move)))
        except msgspec.DecodeError:
            return False
        return True

    def confirmed(self, place: Place, now_ms: int) -> None:
        """The hub says that an arriving actor lives here: take it over if it is complete."""
        move = self._moves.get(place.actor)
        if move is None or move.step != "parts" or place.token != move.token:
            if move is not None and place.token < move.token:
                # The question was asked before the move, and its answer must not be the last.
                self._kernel.dispatch.doubt_later(place.actor, now_ms)
            return
        try:
            parcel = unpack(b"".join(self._bodies(move)))
        except msgspec.ValidationError as error:
            self._cannot_take_over(move, f"it cannot be read here: {error}")
            return
        except msgspec.DecodeError:
            return  # Not complete.
        if parcel.actor != move.actor or parcel.version != VERSION:
            text = f"it is {parcel.actor} as of version {parcel.version} of the tables"
            self._cannot_take_over(move, f"{text}; here they have version {VERSION}")
            return
        self._kernel.store.begin()
        try:
            self._take_over(move, parcel, now_ms)
            self._kernel.store.keep()
        except (*STORAGE_ERRORS, StorageFailed):
            raise
        except Exception as error:
            log.exception("%s cannot be taken over", move.actor)
            self._kernel.store.undo()
            self._kernel.forget_undone()
            self._cannot_take_over(self._moves[move.actor], repr(error))

    def _cannot_take_over(self, move: Move, reason: str) -> None:
        """Its parts are kept: it may be the host that has to be mended. A restart tries again."""
        log.error("%s has arrived and cannot live here: %s", move.actor, reason)
        self.failures[move.actor] = reason

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
        self._execute("DELETE FROM parts WHERE actor = ?", (move.actor,))
        kernel.places.put(move.actor, move.token, Status.HERE)
        kernel.inbox.release(move.actor)
        self._thaw(move.actor)
        kernel.adopted(move.actor)
        self._keep_stranded(stranded, now_ms)
        move.step = "arrived"
        self._put(move)
        self.failures.pop(move.actor, None)
        log.info("%s lives here now", move.actor)

    def _keep_stranded(self, stranded: Parcel, now_ms: int) -> None:
        """Rows of an earlier life here, which ended without a move, are kept as evidence."""
        if not stranded.is_empty:
            text = "what the actor had here when it was made anew in another host"
            data = pack(stranded)
            self._kernel.letters.bury(stranded.actor, "stranded", "", data, text, 0, now_ms)

    # Getting on.

    def run(self, now_ms: int) -> None:
        """Take the next step of every move that is not waiting for an answer."""
        for move in list(self._moves.values()):
            if move.actor in self._trips.values():
                continue
            if self._paused_until_ms.get(move.actor, 0) > now_ms:
                continue
            self._step(move)

    def _step(self, move: Move) -> None:
        kernel = self._kernel
        if move.step == "asked":
            self._trips[f"give-{move.actor}"] = move.actor
            kernel.effects.append(GiveAway(move.actor, move.token, move.peer))
        elif move.step == "placed":
            data = msgspec.json.encode(Mark(move.move_id))
            self._send(move, f"mark-{move.move_id}", kernel.places.host, wire.MARK, data)
        elif move.step == "drained":
            self._send_part(move)
        elif move.step == "arrived":
            data = _encoded_arrival(move.move_id, move.actor, move.token)
            self._send(move, f"arrived-{move.move_id}", move.peer, wire.MOVE, data)

    def _send_part(self, move: Move) -> None:
        number = self._next_part.get(move.actor, 0)
        rows = "FROM parts WHERE actor = ? AND move_id = ?"
        key = (move.actor, move.move_id)
        body = self._execute(f"SELECT body {rows} AND number = ?", (*key, number)).get
        if body is None:
            return  # All are with the hub; the new host will say when it has them.
        part = Part(
            wire.ENVELOPE_VERSION,
            move.move_id,
            move.actor,
            move.token,
            number,
            self._execute(f"SELECT count(*) {rows}", key).get,
            b64encode(body).decode(),
        )
        data = msgspec.json.encode(part)
        self._send(move, f"part-{move.move_id}-{number}", move.peer, wire.MOVE, data)

    def _send(self, move: Move, batch: str, to: str, type: str, data: bytes) -> None:
        self._trips[batch] = move.actor
        self._kernel.effects.append(Send(batch, to, type, data, {}))

    def receipted(self, batch: str) -> None:
        """The hub has something; if that was a step of a move, the next may follow."""
        actor = self._trips.pop(batch, None)
        move = None if actor is None else self._moves.get(actor)
        if move is None:
            return
        self._paused_until_ms.pop(move.actor, None)
        if batch.startswith("part-"):
            self._next_part[move.actor] = self._next_part.get(move.actor, 0) + 1
        elif batch.startswith("mark-"):
            # It comes by itself; only a new connection sends another.
            self._trips[f"{_AWAITED}{move.move_id}"] = move.actor
        elif batch.startswith("arrived-"):
            self._end(move.actor)

    def refused(self, event: Refused, now_ms: int) -> None:
        """The hub does not take something; if that was a step of a move, it is tried again."""
        actor = self._trips.pop(event.batch, None)
        move = None if actor is None else self._moves.get(actor)
        if move is None:
            return
        if event.is_too_large and move.step == "drained":
            if self._cut_smaller(move):
                return
            self.failures[move.actor] = event.reason
        log.debug("the move of %s: %s", move.actor, event.reason)
        self._paused_until_ms[move.actor] = now_ms + _PAUSE_MS

    def _put(self, move: Move) -> None:
        self._moves[move.actor] = move
        self._trips = {trip: actor for trip, actor in self._trips.items() if actor != move.actor}
        self._execute(
            "INSERT OR REPLACE INTO moves VALUES (?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(move)
        )

    def _end(self, actor: str) -> None:
        self._moves.pop(actor, None)
        self._next_part.pop(actor, None)
        self._paused_until_ms.pop(actor, None)
        self._trips = {trip: one for trip, one in self._trips.items() if one != actor}
        self._execute("DELETE FROM moves WHERE actor = ?", (actor,))
        self._execute("DELETE FROM parts WHERE actor = ?", (actor,))

    def shown(self) -> list[dict[str, Any]]:
        """Moves as people read them."""
        return [msgspec.structs.asdict(move) for move in self._moves.values()]


def _memory(move_id: str) -> str:
    """Under which id a move is remembered that has ended here; no call has such a one."""
    return f"move {move_id}"


def _encoded_arrival(move_id: str, actor: str, token: int) -> bytes:
    return msgspec.json.encode(Part(wire.ENVELOPE_VERSION, move_id, actor, token))
