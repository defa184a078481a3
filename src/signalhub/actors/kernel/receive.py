"""What the hub delivers: taken once, put into the mailbox of its actor, or held for now.

A request is remembered by its call id together with the time the hub accepted the copy it came in.
The memory of it ends when the host has seen a delivery that the hub accepted a whole
`tombstone_ttl` later: mailboxes are read in order, so no repeat can come any more
(docs/decisions/0011).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from signalhub.actors import wire
from signalhub.actors.api import outcome
from signalhub.actors.api.config import CallContext
from signalhub.actors.api.errors import RemoteError
from signalhub.actors.api.names import parse_ref
from signalhub.actors.kernel.events import Arrived, Place, Settle
from signalhub.actors.kernel.inbox import Item
from signalhub.actors.kernel.outbox import Row
from signalhub.actors.move.places import Status
from signalhub.actors.store.schema import HELD_MS
from signalhub.actors.wire import Message, NotReadable
from signalhub.wire import names

if TYPE_CHECKING:
    from signalhub.actors.kernel.kernel import Kernel

log = logging.getLogger("signalhub.actors")

# An actor placed with this token has never lived anywhere.
FIRST_TOKEN: Final = 1
_PURGE_MAX: Final = 1_000
_UNREADABLE_MAX: Final = 1_000
_SEEN: Final = "seen_ms"


class Arriving:
    """The way in."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._seen_ms = 0
        self._written_ms = 0
        # Actors here of which the hub has said once that they live elsewhere.
        self._contested: set[str] = set()

    def load(self) -> None:
        self._contested.clear()
        self._seen_ms = self._written_ms = self._kernel.store.get_meta(_SEEN) or 0

    def arrived(self, event: Arrived, now_ms: int) -> None:
        """A batch of another host, or a call from outside."""
        kernel = self._kernel
        try:
            if event.type == wire.CALL:
                self._from_outside(event, now_ms)
            elif not event.sender.startswith(wire.HOST_PREFIX):
                raise NotReadable(f"{event.sender} is no host, and sent {event.type!r:.100}")
            elif event.type == wire.MOVE:
                kernel.moving.part_arrived(event)
            elif event.type == wire.MARK:
                kernel.moving.marked(event)
            else:
                batch = wire.split(event.data)
                for message, _ in batch:
                    _check_names(message)
                for message, raw in batch:
                    self._message(message, raw, event.accepted_ms, now_ms)
        except NotReadable as fault:
            # Whoever sent it speaks another version, or is nobody we listen to.
            log.error("from %s: %s", event.sender, fault)
            self._refuse(event, fault)
            self.set_aside(event, str(fault), now_ms)
            return
        self._settle(event)

    def set_aside(self, event: Arrived, fault: str, now_ms: int) -> None:
        """What cannot be taken in is kept as evidence, and does not come again."""
        self._kernel.counters.unreadable += 1
        self._kernel.letters.bury("", "unreadable", "", event.data, fault, 1, now_ms)
        # Anybody may send such, so not all of it can be kept.
        self._kernel.store.execute(
            "DELETE FROM dead WHERE actor = '' AND dead_id <= (SELECT dead_id FROM dead"
            " WHERE actor = '' ORDER BY dead_id DESC LIMIT 1 OFFSET ?)",
            (_UNREADABLE_MAX,),
        )
        self._settle(event)

    def _settle(self, event: Arrived) -> None:
        self._seen_ms = max(self._seen_ms, event.accepted_ms)
        self._kernel.effects.append(Settle(event.delivery))

    def _refuse(self, event: Arrived, fault: NotReadable) -> None:
        """Whoever waits for what cannot be read is told so, as far as that can be made out."""
        kernel = self._kernel
        error = RemoteError("Unreadable", str(fault))
        is_outside = event.type == wire.CALL
        if not (is_outside or event.sender.startswith(wire.HOST_PREFIX)):
            return  # Whoever is neither speaks for nobody.
        for outline in wire.outlines(event.data):
            caller = event.sender if is_outside else outline.sender
            if outline.kind != "request" or not _is_somebody(caller):
                continue
            body = msgspec.Raw(outcome.of_error(error))
            result = Message("result", outline.call, caller, body, outline.to)
            data = wire.encode(result)
            kernel.post(outline.to, caller, kernel.new_id(), "result", outline.call, data)

    def _message(self, message: Message, raw: bytes, accepted_ms: int, now_ms: int) -> None:
        item = Item(message.to, message.kind, message.call, message.sender, raw)
        self.take(item, accepted_ms, now_ms)

    def _from_outside(self, event: Arrived, now_ms: int) -> None:
        """Whoever is outside is answered at the address it really has, under ids of its own."""
        batch = [message for message, _ in wire.split(event.data)]
        if any(message.kind != "request" for message in batch):
            raise NotReadable(f"{event.sender} is no actor and can only make requests")
        for message in batch:
            _check_names(message)
        for message in batch:
            call_id = f"{event.sender}#{message.call}"
            # The hub vouches for the address, and it stays with all calls that follow from this.
            rights = {"address": event.sender}
            context = CallContext(auth=rights, call_id=call_id, caller=event.sender).encode()
            trusted = Message(
                "request",
                call_id,
                message.to,
                message.body,
                event.sender,
                msgspec.Raw(context),
                message.wants,
            )
            self._message(trusted, wire.encode(trusted), event.accepted_ms, now_ms)

    def take(self, item: Item, accepted_ms: int, now_ms: int) -> None:
        """Put it where it belongs, unless it has been here before.

        `accepted_ms` is 0 for what never left this host, and so cannot be repeated.
        """
        kernel = self._kernel
        if kernel.moving.is_packed(item.actor):
            self._send_on(item.actor, item.kind, item.call_id, item.payload)
            return
        if item.kind == "request" and accepted_ms and not self._is_new(item, accepted_ms):
            kernel.counters.duplicates += 1
            return
        own = kernel.places.own(item.actor)
        if own is not None and own.status is Status.HERE:
            kernel.inbox.put(item, now_ms)
            return
        kernel.inbox.store(item, now_ms, HELD_MS)
        if own is None or own.status is Status.GONE:
            self._wonder(item.actor)

    def _is_new(self, item: Item, accepted_ms: int) -> bool:
        store = self._kernel.store
        store.execute(
            "INSERT OR IGNORE INTO done (actor, call_id, accepted_ms) VALUES (?, ?, ?)",
            (item.actor, item.call_id, accepted_ms),
        )
        return bool(store.connection.changes())

    def _wonder(self, address: str) -> None:
        """Something is here for an actor that may live elsewhere."""
        own = self._kernel.places.own(address)
        # The token it had here tells late parts and answers from new ones.
        self._kernel.places.put(address, 0 if own is None else own.token, Status.UNPLACED)
        self._kernel.dispatch.doubt(address)

    # What the hub says about places.

    def lives_here(self, place: Place, now_ms: int) -> None:
        """The hub places an actor here: a new one starts, one that has lived is on its way."""
        kernel = self._kernel
        own = kernel.places.own(place.actor)
        status = None if own is None else own.status
        if status is Status.LEAVING:
            return
        if status is Status.ARRIVING:
            kernel.taking_over.confirmed(place, now_ms)
            return
        kernel.places.forget(place.actor)
        if own is not None and status is not Status.HERE and own.token >= place.token:
            log.error(
                "the hub places %s here as if it had not left for another host; what comes for it "
                "is kept until the hub knows better",
                place.actor,
            )
            kernel.places.put(place.actor, own.token, Status.GONE)
            return
        if status is not Status.HERE and place.token > FIRST_TOKEN:
            kernel.places.put(place.actor, place.token, Status.ARRIVING)
            return
        self._contested.discard(place.actor)
        if own is None or status is not Status.HERE or own.token != place.token:
            kernel.places.put(place.actor, place.token, Status.HERE)
        kernel.inbox.release(place.actor)

    def lives_elsewhere(self, place: Place, now_ms: int) -> None:
        """Send on what came here for it. If it lived here, it does no longer: it stands still."""
        kernel = self._kernel
        own = kernel.places.own(place.actor)
        if own is None or own.status is Status.LEAVING:
            return
        if own.status is Status.ARRIVING:
            if place.token <= own.token:
                # Asked before the move; what has arrived since waits for another answer.
                kernel.dispatch.doubt_later(place.actor, now_ms)
                return
            # It was on its way here and is somewhere else by now.
            kernel.taking_over.give_up(place.actor)
        if own.status is Status.HERE:
            if place.token < own.token and place.actor not in self._contested:
                # The answer may be older than what is known here: ask once more.
                self._contested.add(place.actor)
                kernel.dispatch.doubt_later(place.actor, now_ms)
                return
            self._contested.discard(place.actor)
            log.error("%s lives in %s by now; its rows here stand still", place.actor, place.host)
            # Its next move has the token after this one, whatever a hub knew that lost its memory.
            kernel.places.put(place.actor, place.token, Status.GONE)
            # What this turn has brought for it must not run any more, either.
            kernel.inbox.flush(now_ms)
            kernel.inbox.hold(place.actor)
            kernel.outbox.freeze(place.actor)
            kernel.instances.forget(place.actor)
            return
        kernel.places.put(place.actor, own.token, Status.GONE)
        rows = kernel.store.execute(
            "DELETE FROM inbox WHERE actor = ? RETURNING arrival_id, kind, call_id, payload",
            (place.actor,),
        ).fetchall()
        # It was not taken here: if the actor comes, what was sent on must not count as a copy.
        kernel.store.execute("DELETE FROM done WHERE actor = ?", (place.actor,))
        found: list[Any] = sorted(rows)
        for _, kind, call_id, payload in found:
            self._send_on(place.actor, kind, call_id, payload)

    def _send_on(self, actor: str, kind: str, call_id: str, payload: bytes) -> None:
        """To where the actor lives by now; whether it is a copy is known there.

        It goes in the name of the host: whoever sent it may leave, with all rows in its own name.
        """
        kernel = self._kernel
        # It counts as sent, because copies of it may come however it goes on.
        row = Row(kernel.places.host, actor, kernel.new_id(), kind, call_id, payload, attempts=1)
        kernel.post_row(row, is_ordered=True)

    # Tombstones.

    def write(self) -> None:
        """At the end of a turn: how far the mailbox was read."""
        if self._seen_ms > self._written_ms:
            self._kernel.store.put_meta(_SEEN, self._seen_ms)
            self._written_ms = self._seen_ms

    def purge(self) -> int:
        """Forget requests no copy of which can come any more; returns how many."""
        store = self._kernel.store
        oldest_ms = self._seen_ms - self._kernel.config.tombstone_ttl_ms
        store.execute(
            "DELETE FROM done WHERE row_id IN (SELECT row_id FROM done ORDER BY row_id LIMIT ?)"
            " AND accepted_ms < ?",
            (_PURGE_MAX, oldest_ms),
        )
        return store.connection.changes()


def _check_names(message: Message) -> None:
    """Messages go from somebody, who may be answered, to an actor; raises `NotReadable`."""
    try:
        parse_ref(message.to)
    except ValueError as error:
        raise NotReadable(f"a message to nobody: {error}") from error
    if message.sender and not _is_somebody(message.sender):
        raise NotReadable(f"a message from nobody: {message.sender!r:.100} is no address")


def _is_somebody(address: str) -> bool:
    """Can an answer be sent there?"""
    if address.startswith("@"):
        return names.is_address(address)
    try:
        parse_ref(address)
    except ValueError:
        return False
    return True
