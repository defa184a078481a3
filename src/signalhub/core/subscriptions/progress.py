"""What subscriptions write about their progress, and what happens once it is on disk.

Settlements are applied in memory at once and written after that: a crash in between delivers again
and loses nothing. If the log has no room they stay to be written later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from signalhub.core.effects import Append, Appending, Effect
from signalhub.core.sessions.session import Session, State
from signalhub.core.subscriptions.subscription import RESERVE, Subscription
from signalhub.wire import envelope as wire
from signalhub.wire.entry import (
    Body,
    Cursor,
    Entry,
    Kind,
    Outcome,
    Settled,
    Settlement,
    encode_body,
)
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Refusal

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.core.streams.streams import Stream


class Unwatched(msgspec.Struct, frozen=True):
    """Nobody waits for it."""

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        return []

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        return []


UNWATCHED = Unwatched()


class Kept(msgspec.Struct):
    """An entry nobody waits for, which is written later if the log has no room now."""

    entry: Entry

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        return []

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        if refusal.retryable:
            hub.unwritten.append(self.entry)
        return []


class Once:
    """Something to do when an entry is on disk, or when it is refused."""

    __slots__ = ("_done", "_refused")

    def __init__(
        self,
        done: Callable[[int], list[Effect]] = lambda now: [],
        *,
        refused: Callable[[int], None] = lambda now: None,
    ) -> None:
        self._done = done
        self._refused = refused

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        return self._done(now)

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        self._refused(now)
        return []


class Answer:
    """Answer a request once its entry is on disk, or say why it is not."""

    __slots__ = ("_message", "_payload", "_session", "_type")

    def __init__(self, session: Session, message: Envelope, type: str, payload: object) -> None:
        self._session = session
        self._message = message
        self._type = type
        self._payload = payload

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        if self._session.state is not State.CONNECTED:
            return []
        payload = self._payload() if callable(self._payload) else self._payload
        return [hub.reply(self._session, self._message, self._type, wire.encode(payload), now)]

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        if self._session.state is not State.CONNECTED:
            return []
        return [hub.refuse(self._session, self._message, refusal, now)]


class SettledAnswer(Answer):
    """The answer to a settlement; its floor is one that is on disk when it comes."""

    __slots__ = ("_facts",)

    def __init__(
        self, session: Session, message: Envelope, type: str, accepted: int, ignored: list[int]
    ) -> None:
        self._facts: dict[str, object] = {"floor": 0, "accepted": accepted, "ignored": ignored}
        super().__init__(session, message, type, self._facts)

    def stand_at(self, floor: int) -> None:
        """Everything up to here is settled on disk when the answer comes."""
        self._facts["floor"] = floor


class Waited(msgspec.Struct):
    """An entry with its own receipt, and others who wait for everything up to it."""

    receipt: Appending
    waiters: list[Appending]

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        effects = self.receipt.committed(hub, offset, now)
        for waiter in self.waiters:
            effects += waiter.committed(hub, offset, now)
        return effects

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        effects = self.receipt.refused(hub, refusal, now)
        for waiter in self.waiters:
            effects += waiter.refused(hub, refusal, now)
        return effects


def entry(kind: Kind, stream: Stream, body: Body, now: int) -> Entry:
    """An entry about a stream that is none of its messages."""
    return Entry(kind, stream.name, stream.id, 0, now, encode_body(body))


def has_unwritten(subscription: Subscription) -> bool:
    """Was something settled that is not on disk yet?"""
    return bool(subscription.settlements or subscription.outdated or subscription.writing)


def is_progress_unwritten(subscription: Subscription) -> bool:
    """Is there progress that the log does not have, be it on its way there?"""
    is_cursor_unwritten = subscription.is_cursor_dirty or subscription.writing_cursors
    return bool(is_cursor_unwritten or has_unwritten(subscription))


def write_settlements(subscription: Subscription, now: int) -> list[Append]:
    """Everything settled since the last time, as one entry per generation."""
    outdated, subscription.outdated = subscription.outdated, []
    settlements, subscription.settlements = subscription.settlements, []
    every = [*outdated, (subscription.position.generation, settlements)]
    return [_write(subscription, *one, now) for one in every if one[1]]


def _write(
    subscription: Subscription, generation: int, settlements: list[Settlement], now: int
) -> Append:
    body = Settled(subscription.name, generation, settlements)
    written = entry(Kind.SETTLED, subscription.stream, body, now)
    subscription.writing += 1
    return Append(written, SettlementsWritten(subscription, body))


class SettlementsWritten(msgspec.Struct):
    """Settlements on their way to the log."""

    subscription: Subscription
    body: Settled

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        stats = self.subscription.stats
        self.subscription.writing -= 1
        for one in self.body.deliveries:
            if one.outcome != Outcome.FAILED and one.outcome != Outcome.HANDED_OVER:
                stats.settled += 1
                stats.dropped += one.outcome == Outcome.DROPPED
        return []

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        subscription, body = self.subscription, self.body
        subscription.writing -= 1
        if subscription.position.generation == body.generation:
            subscription.settlements[:0] = body.deliveries
        else:
            subscription.outdated.append((body.generation, body.deliveries))
        hub.dispatcher.retry(subscription, now)
        return []


def cursor(subscription: Subscription) -> Cursor:
    """Where it stands, or will stand when what is on its way to the log is there.

    A later cursor must not take back what an earlier one, still on its way, says. If the log
    refuses, it refuses both.
    """
    position = subscription.position
    body = position.cursor(subscription.name)
    body.reserved = max(body.reserved, subscription.reserving)
    if subscription.pausing is not None:
        body.is_paused = subscription.pausing
    if subscription.seeking is not None:
        body.floor, body.generation = subscription.seeking
        body.above, body.parked, body.failures = [], {}, {}
    return body


def write_cursor(subscription: Subscription, now: int) -> Append:
    """Where it stands, and how far it may send."""
    is_reservation = subscription.wants_reserve
    if is_reservation:
        subscription.reserving = subscription.next_seq - 1 + RESERVE
    body = cursor(subscription)
    subscription.is_cursor_dirty = False
    subscription.writing_cursors += 1
    subscription.cursor_at_ms = now
    subscription.settled_since_cursor = 0
    written = entry(Kind.CURSOR, subscription.stream, body, now)
    return Append(written, CursorWritten(subscription, body, is_reservation))


class CursorWritten(msgspec.Struct):
    """A cursor on its way to the log."""

    subscription: Subscription
    body: Cursor
    is_reservation: bool

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        subscription, position = self.subscription, self.subscription.position
        subscription.stats.cursors += 1
        subscription.writing_cursors -= 1
        subscription.given_back = 0
        if self.is_reservation:
            subscription.reserving = 0
            subscription.is_dirty = True
            position.reserved = self.body.reserved
            hub.dispatcher.wake(subscription)
        return []

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        subscription = self.subscription
        subscription.writing_cursors -= 1
        if self.is_reservation:
            subscription.reserving = 0
        if refusal.retryable:
            # It did not happen, so what was reserved before still is: whoever comes is served.
            position = subscription.position
            position.reserved = max(position.reserved, subscription.given_back)
        subscription.given_back = 0
        subscription.changed()
        hub.dispatcher.retry(subscription, now)
        return []
