"""Sending the outbox: one lane batch in flight per lane, in the order of the rows.

A lane waits for the receipt. Without one it sends the same rows again after a pause that doubles;
expired rows leave the lane. Rows whose destination has no known host wait in the lane `NOWHERE`
until the hub has said where it lives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.actors import wire
from signalhub.actors.kernel.events import (
    ActorPlace,
    BatchRefused,
    LocateActors,
    PlacesFound,
    PlacingFailed,
    Receipted,
    SendBatch,
)
from signalhub.actors.kernel.inbox import Item
from signalhub.actors.kernel.outbox import FROZEN, NOWHERE, Lane, Row
from signalhub.actors.move.places import PlaceStatus
from signalhub.pacing import grown, spread

if TYPE_CHECKING:
    from signalhub.actors.kernel.kernel import Kernel

log = logging.getLogger("signalhub.actors")

# The limit of one lane batch; the hub accepts a mebibyte, envelope included.
BATCH_BYTES_MAX: Final = 512 * 1024
LOCATE_MAX: Final = 1_000
_ASKED_MAX: Final = 4 * LOCATE_MAX
_TTL_MS_MIN: Final = 1_000
_JITTER: Final = 0.2


class Trip(msgspec.Struct):
    """A lane batch in flight."""

    lane: Lane
    rows: list[Row]
    sent_ms: int


class SendPause(msgspec.Struct):
    """The back-off of a lane, or of asking for places, after a failure."""

    attempts: int = 0
    until_ms: int = 0
    # One row at a time, because a lane batch was too large.
    is_single: bool = False


class BatchesUnderWay:
    """The lane batches in flight from this host, and its questions about places."""

    def __init__(self, kernel: Kernel, jitter: Callable[[], float]) -> None:
        self._kernel = kernel
        self._jitter = jitter
        self._trips: dict[str, Trip] = {}
        self._busy: set[Lane] = set()
        self._awake: set[Lane] = set()
        self._pauses: dict[Lane, SendPause] = {}
        # Lanes that got rows in this turn.
        self._longer: set[Lane] = set()
        # Actors the hub has been asked about, and those to ask about again.
        self._asked: dict[str, int] = {}
        # Ordered, because the same events must always ask the same questions.
        self._doubted: dict[str, None] = {}
        self._asking = SendPause()
        # Whether there is an actor the hub has not been asked about, and actors that no host serves
        # now.
        self._is_unlocated = False
        self._unplaced: dict[str, SendPause] = {}
        self._swept_ms = 0

    def load(self) -> None:
        """Forget lane batches in flight: their rows are still in the table."""
        self._trips.clear()
        self._busy.clear()
        self._pauses.clear()
        self._asked.clear()
        self._asking = SendPause()
        self._is_unlocated = True
        self._unplaced.clear()
        self._awake = set(self._kernel.outbox.load())
        # Arriving actors may be complete and wait only for the hub's confirmation.
        self._doubted = dict.fromkeys(
            address
            for status in (PlaceStatus.UNPLACED, PlaceStatus.ARRIVING)
            for address in self._kernel.places.with_status(status)
        )
        self._swept_ms = 0

    def connected(self) -> None:
        """Connected to the hub: end all pauses.

        The hub may have lost its data, so it is told which actors live here.
        """
        for pause in self._pauses.values():
            pause.until_ms = 0
        self._asking.until_ms = 0
        for pause in self._unplaced.values():
            pause.until_ms = 0
        self._doubted.update(dict.fromkeys(self._kernel.places.with_status(PlaceStatus.HERE)))
        self._is_unlocated = True

    def wake(self, lane: Lane) -> None:
        self._awake.add(lane)
        self._longer.add(lane)
        if lane[0] == NOWHERE:
            self._is_unlocated = True

    def wake_nowhere(self) -> None:
        """There are new rows whose destinations must be looked up."""
        self.wake((NOWHERE, True))
        self.wake((NOWHERE, False))

    def doubt(self, address: str) -> None:
        """Ask the hub where an actor lives, without waiting for a pause to end."""
        self._unplaced.pop(address, None)
        self._doubted[address] = None
        self._is_unlocated = True

    def doubt_later(self, address: str, now_ms: int) -> None:
        """Ask again after a pause that grows each time."""
        self._doubted[address] = None
        self._lengthen(self._unplaced.setdefault(address, SendPause()), now_ms)

    def lane_for(self, dest: str, *, is_ordered: bool) -> Lane:
        """The lane for messages to an actor; `NOWHERE` if its host is unknown."""
        if dest.startswith("@"):
            return dest, is_ordered
        own = self._kernel.places.own(dest)
        if own is not None and own.status in (PlaceStatus.HERE, PlaceStatus.ARRIVING):
            return self._kernel.places.host, is_ordered
        found = self._kernel.places.find(dest)
        return (NOWHERE if found is None else found.host), is_ordered

    def next_due_ms(self) -> int | None:
        """When a pause ends."""
        # A lane whose first rows were not sent continues at once.
        times = [
            self._pauses[lane].until_ms if lane in self._pauses else 0
            for lane in self._awake - self._busy
            if lane[0] not in (NOWHERE, FROZEN)
        ]
        if self._is_unlocated and len(self._asked) < _ASKED_MAX:
            times.append(self._asking.until_ms)
        times += [
            max(pause.until_ms, self._asking.until_ms)
            for one, pause in self._unplaced.items()
            if one not in self._asked
        ]
        if self._trips or self._asked:
            times.append(self._swept_ms + self._kernel.config.sweep_interval_ms)
        return min(times, default=None)

    # One turn.

    @property
    def is_held_up(self) -> bool:
        """Are there new rows behind a lane batch in flight?"""
        return not self._longer.isdisjoint(self._busy)

    def is_under_way(self, batch: str) -> bool:
        """Is it a lane batch in flight?"""
        return batch in self._trips

    def run(self, now_ms: int) -> None:
        self._longer.clear()
        self._sweep(now_ms)
        for lane in sorted(self._awake - self._busy):
            if lane[0] in (NOWHERE, FROZEN):
                continue
            pause = self._pauses.get(lane)
            if pause is None or pause.until_ms <= now_ms:
                self._start(lane, now_ms)
        self._locate(now_ms)

    def _sweep(self, now_ms: int) -> None:
        """A safety net: a lane batch without any answer counts as refused."""
        config = self._kernel.config
        if abs(now_ms - self._swept_ms) < config.sweep_interval_ms:
            return
        self._swept_ms = now_ms
        oldest_ms = now_ms - 2 * config.outbound_timeout_ms - config.sweep_interval_ms
        for batch, trip in list(self._trips.items()):
            if not oldest_ms <= trip.sent_ms <= now_ms:
                log.warning("a lane batch for %s got no answer", trip.lane[0])
                self.refused(BatchRefused(batch, "no answer"), now_ms)
        for address, asked_ms in list(self._asked.items()):
            if not oldest_ms <= asked_ms <= now_ms:
                del self._asked[address]
                self._is_unlocated = True
        for is_ordered in (True, False):
            # These are not sent, so their expiry is checked here.
            for row in self._kernel.outbox.head((NOWHERE, is_ordered), config.outbound_batch_size):
                self._is_over(row, now_ms)

    def _start(self, lane: Lane, now_ms: int) -> None:
        kernel = self._kernel
        pause = self._pauses.get(lane)
        limit = 1 if pause is not None and pause.is_single else kernel.config.outbound_batch_size
        rows = [row for row in kernel.outbox.head(lane, limit) if not self._is_over(row, now_ms)]
        if not rows:
            if not kernel.outbox.head(lane, 1):
                self._awake.discard(lane)
                self._pauses.pop(lane, None)
            return
        if lane[0] == kernel.places.host:
            self._come_home(rows, now_ms)
            return
        fences: dict[str, int] = {}
        chosen: list[Row] = []
        size = 0
        unknown: dict[str, str] = {}
        for row in rows:
            size += len(row.payload) + 1
            # Rows that never expire must not be in a lane batch that the hub drops at its expiry.
            if chosen and (size > BATCH_BYTES_MAX or row.is_ending != chosen[0].is_ending):
                break
            if not self._fence(row, lane, fences):
                unknown[row.dest] = NOWHERE
                continue
            chosen.append(row)
        if unknown:
            for new in kernel.outbox.rehost(lane[0], unknown):
                self.wake(new)
        if not chosen:
            return
        kernel.outbox.sending(lane, chosen)
        batch = _batch_id(chosen)
        self._trips[batch] = Trip(lane, chosen, now_ms)
        self._busy.add(lane)
        kernel.effects.append(self._send(batch, lane, chosen, fences, now_ms))

    def _send(
        self, batch: str, lane: Lane, rows: list[Row], fences: dict[str, int], now_ms: int
    ) -> SendBatch:
        ends = [row.expires_ms for row in rows if row.expires_ms is not None]
        ttl_ms = max(_TTL_MS_MIN, max(ends) - now_ms) if ends else None
        is_outside = rows[0].dest.startswith("@")
        data = wire.join(row.payload for row in rows)
        type = wire.RESULT if is_outside else wire.BATCH
        return SendBatch(batch, lane[0], type, data, fences, ttl_ms)

    def _fence(self, row: Row, lane: Lane, fences: dict[str, int]) -> bool:
        """Add the fences the hub must check; `False` if the destination's place is unknown."""
        places = self._kernel.places
        sender = places.token_of(row.actor)
        if sender is not None:
            fences[row.actor] = sender
        if row.dest.startswith("@"):
            return True
        found = places.find(row.dest)
        if found is None or found.host != lane[0]:
            return False
        fences[row.dest] = found.token
        return True

    def _is_over(self, row: Row, now_ms: int) -> bool:
        """Has the row expired? Its call then ends; results never expire."""
        if row.kind != "request" or row.actor == self._kernel.places.host:
            # The sender of a forwarded message already has its receipt.
            return False
        age_max = self._kernel.config.max_request_age_ms
        if row.expires_ms is None and row.since_ms + age_max <= now_ms:
            self._kernel.calls.undeliverable(row, f"no receipt within {age_max / 1000:.0f} s")
            return True
        if row.expires_ms is None or row.expires_ms > now_ms:
            return False
        # Its call has ended, by a timeout or by a result that arrived before the receipt.
        self._kernel.outbox.remove([row])
        return True

    def _come_home(self, rows: list[Row], now_ms: int) -> None:
        """The destination of these rows now lives here."""
        kernel = self._kernel
        kernel.outbox.remove(rows)
        for row in rows:
            item = Item(row.dest, row.kind, row.call_id, row.actor, row.payload)
            # A copy sent earlier may still arrive through the hub.
            kernel.arriving.take(item, kernel.arriving.latest_ms(now_ms) if row.attempts else 0)

    # Answers of the hub.

    def receipted(self, event: Receipted) -> None:
        trip = self._end(event.batch)
        if trip is None:
            self._kernel.moving.receipted(event.batch)
        else:
            self._kernel.outbox.remove(trip.rows)
            self._pauses.pop(trip.lane, None)

    def refused(self, event: BatchRefused, now_ms: int) -> None:
        trip = self._end(event.batch)
        if trip is None:
            self._kernel.moving.refused(event, now_ms)
            return
        kernel = self._kernel
        if event.is_final:
            kernel.outbox.remove(trip.rows)
            kernel.counters.gone += len(trip.rows)
            return
        if event.is_too_large:
            self._too_large(trip, now_ms)
            return
        if event.stale:
            strangers = {one: NOWHERE for one in event.stale if not kernel.places.is_here(one)}
            for address in event.stale:
                kernel.places.forget(address)
                if kernel.places.is_here(address):
                    self.doubt(address)
            for lane in kernel.outbox.rehost(trip.lane[0], strangers):
                self.wake(lane)
            if len(strangers) == len(event.stale):
                return
        pause = self._pauses.setdefault(trip.lane, SendPause())
        self._lengthen(pause, now_ms)
        log.debug("%s: %s", trip.lane[0], event.reason)

    def _too_large(self, trip: Trip, now_ms: int) -> None:
        if len(trip.rows) > 1:
            self._pauses.setdefault(trip.lane, SendPause()).is_single = True
            return
        (row,) = trip.rows
        own = self._kernel.places.own(row.actor)
        if own is not None and own.status in (PlaceStatus.LEAVING, PlaceStatus.GONE):
            # The row moves along and is refused there, too; nothing of the actor runs here.
            self._lengthen(self._pauses.setdefault(trip.lane, SendPause()), now_ms)
        else:
            self._kernel.calls.too_large(row)

    def _end(self, batch: str) -> Trip | None:
        trip = self._trips.pop(batch, None)
        if trip is not None:
            self._busy.discard(trip.lane)
        return trip

    def _lengthen(self, pause: SendPause, now_ms: int) -> None:
        config = self._kernel.config
        pause.attempts += 1
        wait_ms = grown(config.retry_base_ms, config.retry_cap_ms, pause.attempts - 1)
        pause.until_ms = now_ms + int(spread(wait_ms, _JITTER, self._jitter()))

    # Places.

    def _locate(self, now_ms: int) -> None:
        """Ask the hub about actors, a thousand at a time; those no host serves are asked later."""
        if self._asking.until_ms > now_ms or len(self._asked) >= _ASKED_MAX:
            return
        again = [one for one, pause in self._unplaced.items() if pause.until_ms <= now_ms]
        if not (self._is_unlocated or again):
            return
        doubted = (one for one in self._doubted if self._is_wanted(one, now_ms))
        wanted = dict.fromkeys(islice(doubted, LOCATE_MAX))
        if any(host == NOWHERE for host, _ in self._awake):
            known = len(self._asked) + len(self._unplaced)
            dests = self._kernel.outbox.dests(NOWHERE, LOCATE_MAX + known)
            wanted |= dict.fromkeys(one for one in dests if self._is_wanted(one, now_ms))
            if not dests:
                # The handler that made the call failed, or the call was withdrawn.
                self._awake = {lane for lane in self._awake if lane[0] != NOWHERE}
        for one in again:
            if one not in wanted and one not in self._asked:
                del self._unplaced[one]
        new = list(islice(wanted, LOCATE_MAX))
        self._is_unlocated = len(wanted) >= LOCATE_MAX
        if not new:
            return
        self._asked.update(dict.fromkeys(new, now_ms))
        claims = {one: token for one in new if (token := self._claim(one)) is not None}
        self._kernel.effects.append(LocateActors(new, claims))

    def _is_wanted(self, address: str, now_ms: int) -> bool:
        pause = self._unplaced.get(address)
        return address not in self._asked and (pause is None or pause.until_ms <= now_ms)

    def _claim(self, address: str) -> int | None:
        """The token of an actor that lives here, even if the hub does not know it."""
        own = self._kernel.places.own(address)
        if own is None or own.status not in (PlaceStatus.HERE, PlaceStatus.ARRIVING):
            return None
        # Parts are sent after the hub has changed the place, so it once knew this token.
        is_home = own.status is PlaceStatus.HERE or self._kernel.taking_over.is_complete(address)
        return own.token if is_home else None

    def placing_failed(self, event: PlacingFailed, now_ms: int) -> None:
        for address in event.actors:
            self._asked.pop(address, None)
        self._lengthen(self._asking, now_ms)
        self._is_unlocated = True

    def placed(self, event: PlacesFound, now_ms: int) -> None:
        """The hub has said where actors live."""
        kernel = self._kernel
        hosts: dict[str, str] = {}
        for place in event.places:
            self._asked.pop(place.actor, None)
            self._doubted.pop(place.actor, None)
            if place.host != kernel.places.host:
                self._elsewhere(place, now_ms)
            elif kernel.moving.is_packed(place.actor):
                # It will come back before it has arrived elsewhere: until then nothing is delivered
                # here, and waiting messages keep their senders and their order.
                self.doubt_later(place.actor, now_ms)
                continue
            else:
                kernel.arriving.lives_here(place, now_ms)
            hosts[place.actor] = place.host
            if place.actor not in self._doubted:
                self._unplaced.pop(place.actor, None)
        for lane in kernel.outbox.rehost(NOWHERE, hosts):
            self.wake(lane)
        if not any(kernel.outbox.dests(NOWHERE, 1)):
            self._awake = {lane for lane in self._awake if lane[0] != NOWHERE}
        self._asking = SendPause()
        new = [address for address in event.unplaced if address not in self._unplaced]
        for address in event.unplaced:
            self._asked.pop(address, None)
            self._lengthen(self._unplaced.setdefault(address, SendPause()), now_ms)
        if new:
            others = f" and {len(new) - 1} more" if len(new) > 1 else ""
            log.warning("no place for %s%s yet: %s", new[0], others, event.unplaced[new[0]])
        for address in event.forgotten:
            kernel.taking_over.forgotten(address)

    def _elsewhere(self, place: ActorPlace, now_ms: int) -> None:
        self._kernel.places.learn(place.actor, place.host, place.token)
        self._kernel.arriving.lives_elsewhere(place, now_ms)


def _batch_id(rows: list[Row]) -> str:
    """The id of a lane batch: equal only for equal rows, so that the hub recognizes a repeat."""
    digest = blake2b("".join(row.msg_id for row in rows).encode(), digest_size=8).hexdigest()
    return f"{rows[0].msg_id}-{len(rows)}-{digest}"
