"""Deliveries from the hub: accepted once, and put into the inbox or held.

A request is remembered by its call id and the time at which the hub accepted it. It is forgotten
once the host has seen a delivery that the hub accepted `tombstone_ttl` later: mailboxes are read in
order, so no copy can arrive after that (docs/decisions/0011).
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
from signalhub.actors.kernel.events import ActorPlace, DeliveryArrived, SettleDelivery
from signalhub.actors.kernel.inbox import Item
from signalhub.actors.kernel.outbox import Row
from signalhub.actors.move.places import PlaceStatus
from signalhub.actors.store.schema import HELD_MS
from signalhub.actors.wire import ActorMessage, NotReadable
from signalhub.wire import names

if TYPE_CHECKING:
    from signalhub.actors.kernel.kernel import Kernel

log = logging.getLogger("signalhub.actors")

# An actor placed with this token is new.
FIRST_TOKEN: Final = 1
_PURGE_MAX: Final = 1_000
_UNREADABLE_MAX: Final = 1_000
_SEEN: Final = "seen_ms"
_REMEMBER: Final = "INSERT OR IGNORE INTO done (actor, call_id, accepted_ms) VALUES (?, ?, ?)"


class Arriving:
    """Takes deliveries into the store."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._seen_ms = 0
        self._written_ms = 0
        # Actors here that the hub has once reported to live elsewhere.
        self._contested: set[str] = set()

    def load(self) -> None:
        self._contested.clear()
        self._seen_ms = self._written_ms = self._kernel.store.get_meta(_SEEN) or 0

    def arrived(self, event: DeliveryArrived) -> None:
        """A lane batch or a step of a move from another host, or a call from outside."""
        kernel = self._kernel
        try:
            if event.type == wire.CALL:
                self._from_outside(event)
            elif not event.sender.startswith(wire.HOST_PREFIX):
                raise NotReadable(f"{event.sender} is not a host, but sent {event.type!r:.100}")
            elif event.type == wire.MOVE:
                kernel.moving.part_arrived(event)
            elif event.type == wire.MARK:
                kernel.moving.marked(event)
            elif event.type != wire.BATCH:
                # The hub lets only hosts send lane batches, and everybody else anything else.
                raise NotReadable(f"{event.sender} sent {event.type!r:.100}")
            else:
                batch = wire.split(event.data)
                for message, _ in batch:
                    _check_names(message)
                self._messages(batch, event.accepted_ms)
        except NotReadable as fault:
            # The sender uses another version or may not send this.
            log.error("from %s: %s", event.sender, fault)
            self._refuse(event, fault)
            self.set_aside(event, str(fault))
            return
        self._settle(event)

    def set_aside(self, event: DeliveryArrived, fault: str) -> None:
        """Store an unreadable delivery for inspection, so that it is not redelivered."""
        self._kernel.counters.unreadable += 1
        self._kernel.letters.bury("", "unreadable", "", event.data, fault, 1)
        # Anyone may send these, so their number is limited.
        self._kernel.store.execute(
            "DELETE FROM dead WHERE actor = '' AND dead_id <= (SELECT dead_id FROM dead"
            " WHERE actor = '' ORDER BY dead_id DESC LIMIT 1 OFFSET ?)",
            (_UNREADABLE_MAX,),
        )
        self._settle(event)

    def _settle(self, event: DeliveryArrived) -> None:
        self._seen_ms = max(self._seen_ms, event.accepted_ms)
        self._kernel.effects.append(SettleDelivery(event.delivery))

    def _refuse(self, event: DeliveryArrived, fault: NotReadable) -> None:
        """Send an error to the callers of unreadable requests, as far as they are known."""
        kernel = self._kernel
        error = RemoteError("Unreadable", str(fault))
        is_outside = event.type == wire.CALL
        is_batch = event.type == wire.BATCH and event.sender.startswith(wire.HOST_PREFIX)
        if not (is_outside or is_batch):
            return  # The sender may not send on behalf of actors.
        for outline in wire.outlines(event.data):
            caller = event.sender if is_outside else outline.sender
            if outline.kind != "request" or not _is_somebody(caller):
                continue
            body = msgspec.Raw(outcome.of_error(error))
            result = ActorMessage("result", outline.call, caller, body, outline.to)
            data = wire.encode(result)
            kernel.post(outline.to, caller, kernel.new_id(), "result", outline.call, data)

    def _messages(self, batch: list[tuple[ActorMessage, bytes]], accepted_ms: int) -> None:
        items = [
            Item(one.to, one.kind, one.call, one.sender, raw, message=one) for one, raw in batch
        ]
        are_new = self._are_new(items, accepted_ms)
        for item in items:
            self.take(item, accepted_ms, is_new=are_new)

    def _are_new(self, items: list[Item], accepted_ms: int) -> bool:
        """Record requests that all arrive for the first time; `False` leaves it to `take`."""
        requests = [
            (item.actor, item.call_id, accepted_ms)
            for item in items
            if item.kind == "request" and not self._kernel.moving.is_packed(item.actor)
        ]
        if len(requests) < 2 or not accepted_ms:
            return False
        store = self._kernel.store
        store.settle()
        before = store.connection.total_changes()
        store.begin()
        store.executemany(_REMEMBER, requests)
        if store.connection.total_changes() - before == len(requests):
            store.keep()
            return True
        store.undo()
        return False

    def _from_outside(self, event: DeliveryArrived) -> None:
        """A call from outside: answered at its real address, with its own ids."""
        batch = [message for message, _ in wire.split(event.data)]
        if any(message.kind != "request" for message in batch):
            raise NotReadable(f"{event.sender} is not an actor and can only make requests")
        for message in batch:
            _check_names(message)
        trusted: list[tuple[ActorMessage, bytes]] = []
        for message in batch:
            call_id = f"{event.sender}#{message.call}"
            # The hub has verified the address, and it is passed on to all further calls.
            rights = {"address": event.sender}
            context = CallContext(auth=rights, call_id=call_id, caller=event.sender).encode()
            made = ActorMessage(
                "request",
                call_id,
                message.to,
                message.body,
                event.sender,
                msgspec.Raw(context),
                message.wants,
            )
            trusted.append((made, wire.encode(made)))
        self._messages(trusted, event.accepted_ms)

    def take(self, item: Item, accepted_ms: int, *, is_new: bool = False) -> None:
        """Accept a message unless it is a copy.

        `accepted_ms` is 0 for messages within this host, which cannot be repeated; `is_new` says
        that this one was compared with the others already.
        """
        kernel = self._kernel
        if kernel.moving.is_packed(item.actor):
            self._send_on(item.actor, item.kind, item.call_id, item.payload)
            return
        is_checked = is_new or not accepted_ms or item.kind != "request"
        if not is_checked and not self._is_new(item, accepted_ms):
            kernel.counters.duplicates += 1
            return
        own = kernel.places.own(item.actor)
        if own is not None and own.status is PlaceStatus.HERE:
            kernel.inbox.put(item)
            return
        kernel.inbox.store(item, HELD_MS)
        if own is None or own.status is PlaceStatus.GONE:
            self._wonder(item.actor)

    def _is_new(self, item: Item, accepted_ms: int) -> bool:
        store = self._kernel.store
        store.execute(_REMEMBER, (item.actor, item.call_id, accepted_ms))
        return bool(store.connection.changes())

    def _wonder(self, address: str) -> None:
        """A message has arrived for an actor that may live elsewhere."""
        own = self._kernel.places.own(address)
        # Its former token distinguishes late parts and answers from new ones.
        self._kernel.places.put(address, 0 if own is None else own.token, PlaceStatus.UNPLACED)
        self._kernel.dispatch.doubt(address)

    # Answers of the hub about places.

    def lives_here(self, place: ActorPlace, now_ms: int) -> None:
        """The hub places an actor here: a new actor starts, an existing one is arriving."""
        kernel = self._kernel
        own = kernel.places.own(place.actor)
        status = None if own is None else own.status
        if status is PlaceStatus.LEAVING:
            return
        is_anew = place.is_fresh and (own is None or own.token < place.token)
        if status is PlaceStatus.ARRIVING and not is_anew:
            kernel.taking_over.confirmed(place, now_ms)
            return
        kernel.places.forget(place.actor)
        if own is not None and status is not PlaceStatus.HERE and own.token >= place.token:
            log.error(
                "the hub places %s here although it has moved to another host; its messages are "
                "held until the hub's answer changes",
                place.actor,
            )
            kernel.places.put(place.actor, own.token, PlaceStatus.GONE)
            return
        if status is not PlaceStatus.HERE and place.token > FIRST_TOKEN:
            if not is_anew:
                kernel.places.put(place.actor, place.token, PlaceStatus.ARRIVING)
                return
            kernel.taking_over.start_empty(place.actor)
        self._contested.discard(place.actor)
        if own is None or status is not PlaceStatus.HERE or own.token != place.token:
            kernel.places.put(place.actor, place.token, PlaceStatus.HERE)
        kernel.inbox.release(place.actor)

    def lives_elsewhere(self, place: ActorPlace, now_ms: int) -> None:
        """Forward its messages to its new host. If it lived here, it no longer runs."""
        kernel = self._kernel
        own = kernel.places.own(place.actor)
        if own is None or own.status is PlaceStatus.LEAVING:
            return
        if own.status is PlaceStatus.ARRIVING:
            if place.token <= own.token:
                # Asked before the move; later messages wait for another answer.
                kernel.dispatch.doubt_later(place.actor, now_ms)
                return
            # It was moving here and has been moved elsewhere.
            kernel.taking_over.give_up(place.actor)
        if own.status is PlaceStatus.HERE:
            if place.token < own.token and place.actor not in self._contested:
                # The answer may be outdated: ask once more.
                self._contested.add(place.actor)
                kernel.dispatch.doubt_later(place.actor, now_ms)
                return
            self._contested.discard(place.actor)
            log.error("%s now lives in %s; its rows here are inactive", place.actor, place.host)
            # Its next move has the token after this one, even if the hub has lost its data.
            kernel.places.put(place.actor, place.token, PlaceStatus.GONE)
            # Messages that arrived in this turn must not run either.
            kernel.inbox.flush()
            kernel.inbox.hold(place.actor)
            kernel.outbox.freeze(place.actor)
            kernel.instances.forget(place.actor)
            return
        kernel.places.put(place.actor, own.token, PlaceStatus.GONE)
        rows = kernel.store.execute(
            "DELETE FROM inbox WHERE actor = ? RETURNING arrival_id, kind, call_id, payload",
            (place.actor,),
        ).fetchall()
        # Not accepted here: if the actor arrives later, forwarded ones must not count as copies.
        kernel.store.execute("DELETE FROM done WHERE actor = ?", (place.actor,))
        found: list[Any] = sorted(rows)
        for _, kind, call_id, payload in found:
            self._send_on(place.actor, kind, call_id, payload)

    def _send_on(self, actor: str, kind: str, call_id: str, payload: bytes) -> None:
        """Forward a message to the actor's host, which knows whether it is a copy.

        The host is its sender, because the original sender may move with all its rows.
        """
        kernel = self._kernel
        # It counts as sent, because copies of it may arrive in any case.
        row = Row(kernel.places.host, actor, kernel.new_id(), kind, call_id, payload, attempts=1)
        kernel.post_row(row, is_ordered=True)

    # Tombstones.

    def latest_ms(self, now_ms: int) -> int:
        """At least as late as anything the hub has accepted so far, by the hub's time.

        The times of hub and host may differ, if only one of them has seen the wall clock being set.
        """
        return max(self._seen_ms, now_ms)

    def write(self) -> None:
        """Record, at the end of a turn, how far the mailbox was read."""
        if self._seen_ms > self._written_ms:
            self._kernel.store.put_meta(_SEEN, self._seen_ms)
            self._written_ms = self._seen_ms

    def purge(self) -> int:
        """Forget requests whose copies can no longer arrive; returns how many."""
        store = self._kernel.store
        oldest_ms = self._seen_ms - self._kernel.config.tombstone_ttl_ms
        store.execute(
            "DELETE FROM done WHERE row_id IN (SELECT row_id FROM done ORDER BY row_id LIMIT ?)"
            " AND accepted_ms < ?",
            (_PURGE_MAX, oldest_ms),
        )
        return store.connection.changes()


def _check_names(message: ActorMessage) -> None:
    """Check sender and target of a message; raises `NotReadable`."""
    try:
        parse_ref(message.to)
    except ValueError as error:
        raise NotReadable(f"invalid target: {error}") from error
    if message.sender and not _is_somebody(message.sender):
        raise NotReadable(f"invalid sender {message.sender!r:.100}")


def _is_somebody(address: str) -> bool:
    """Can an answer be sent to this address?"""
    if address.startswith("@"):
        return names.is_address(address)
    try:
        parse_ref(address)
    except ValueError:
        return False
    return True
