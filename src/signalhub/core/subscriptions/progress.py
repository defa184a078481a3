"""Settlements and cursors: what subscriptions write to the log about their progress.

Settlements are applied in memory first and written later: a crash in between causes redeliveries
and loses nothing. If the log has no room, they are written later.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from signalhub import native
from signalhub.core.effects import Append, Effect
from signalhub.core.replies import DeferredAnswer
from signalhub.core.subscriptions.subscription import Settled, Subscription
from signalhub.core.subscriptions.window import Acked
from signalhub.wire.entry import (
    CursorBody,
    Kind,
    Outcome,
    SettledBody,
    Settlement,
    encode_body,
)
from signalhub.wire.errors import Refusal

if TYPE_CHECKING:
    from signalhub.core.subscriptions.dispatcher import Dispatcher


if native.IS_ON:
    from signalhub_native import acked_body

RESERVE: Final = 4_096

# The answer to a settlement, and its payload; the floor in it is on disk when it is sent.
Waiter = tuple[DeferredAnswer, dict[str, object]]


def answer_all(waiters: list[Waiter], offset: int, now: int) -> list[Effect]:
    """The settlements are on disk: answer."""
    return [one for answer, _ in waiters for one in answer.committed(offset, now)]


def refuse_all(waiters: list[Waiter], refusal: Refusal, now: int) -> list[Effect]:
    """The log rejected the settlements."""
    return [one for answer, _ in waiters for one in answer.refused(refusal, now)]


def has_unwritten(subscription: Subscription) -> bool:
    """Are there settlements that are not on disk yet?"""
    return bool(subscription.settlements or subscription.outdated or subscription.writing)


def is_progress_unwritten(subscription: Subscription) -> bool:
    """Is there any progress that is not on disk yet?"""
    is_cursor_unwritten = subscription.is_cursor_dirty or subscription.writing_cursors
    return bool(is_cursor_unwritten or has_unwritten(subscription))


def write_settlements(dispatcher: Dispatcher, subscription: Subscription, now: int) -> list[Append]:
    """Write the settlements since the last call, one entry per generation."""
    outdated, subscription.outdated = subscription.outdated, []
    settlements, subscription.settlements = subscription.settlements, []
    every = [*outdated, (subscription.position.generation, settlements)]
    return [_write(dispatcher, subscription, *one, now) for one in every if one[1]]


def _write(
    dispatcher: Dispatcher,
    subscription: Subscription,
    generation: int,
    settlements: list[Settled],
    now: int,
) -> Append:
    body = body_of(subscription.definition.name, generation, settlements)
    written = subscription.stream.entry_of(Kind.SETTLED, body, now)
    subscription.writing += 1
    return Append(
        written,
        partial(_written, subscription, settlements),
        partial(_not_written, dispatcher, subscription, generation, settlements),
    )


def body_of(subscription: str, generation: int, settlements: list[Settled]) -> bytes:
    """The body of their entry."""
    if native.IS_ON and all(type(one) is Acked for one in settlements):
        return acked_body(subscription, generation, settlements)  # type: ignore[arg-type]
    return encode_body(SettledBody(subscription, generation, each(settlements)))


def each(settlements: list[Settled]) -> list[Settlement]:
    """One settlement for each delivery."""
    every: list[Settlement] = []
    for one in settlements:
        if type(one) is Settlement:
            every.append(one)
        else:
            assert type(one) is Acked
            every += one.settlements()
    return every


def _written(
    subscription: Subscription, settlements: list[Settled], offset: int, now: int
) -> list[Effect]:
    stats = subscription.stats
    subscription.writing -= 1
    for one in settlements:
        if type(one) is Acked:
            stats.settled += len(one.offsets)
            continue
        assert type(one) is Settlement
        if one.outcome != Outcome.FAILED and one.outcome != Outcome.HANDED_OVER:
            stats.settled += 1
            stats.dropped += one.outcome == Outcome.DROPPED
    return []


def _not_written(
    dispatcher: Dispatcher,
    subscription: Subscription,
    generation: int,
    settlements: list[Settled],
    refusal: Refusal,
    now: int,
) -> list[Effect]:
    subscription.writing -= 1
    if subscription.position.generation == generation:
        subscription.settlements[:0] = settlements
    else:
        subscription.outdated.append((generation, settlements))
    dispatcher.retry(subscription, now)
    return []


def cursor(subscription: Subscription) -> CursorBody:
    """The position, including changes that are being written to the log.

    A cursor must not undo an earlier pending one; if the log rejects one, it rejects both.
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


def write_cursor(
    dispatcher: Dispatcher, subscription: Subscription, now: int, *, is_reservation: bool = False
) -> Append:
    """Write the position; a reservation also raises the position up to which it may send."""
    if is_reservation:
        subscription.reserving = subscription.next_seq - 1 + RESERVE
    body = cursor(subscription)
    subscription.is_cursor_dirty = False
    subscription.writing_cursors += 1
    subscription.cursor_at_ms = now
    subscription.settled_since_cursor = 0
    written = subscription.stream.entry(Kind.CURSOR, body, now)
    reserved = body.reserved if is_reservation else 0
    return Append(
        written,
        partial(_cursor_written, dispatcher, subscription, reserved),
        partial(_cursor_not_written, dispatcher, subscription, is_reservation),
    )


def _cursor_written(
    dispatcher: Dispatcher, subscription: Subscription, reserved: int, offset: int, now: int
) -> list[Effect]:
    """`reserved` is 0 unless the cursor was written to reserve more."""
    subscription.stats.cursors += 1
    subscription.writing_cursors -= 1
    subscription.given_back = 0
    if reserved:
        subscription.reserving = 0
        subscription.touch()
        subscription.position.reserved = reserved
        dispatcher.wake(subscription)
    return []


def _cursor_not_written(
    dispatcher: Dispatcher,
    subscription: Subscription,
    is_reservation: bool,
    refusal: Refusal,
    now: int,
) -> list[Effect]:
    subscription.writing_cursors -= 1
    if is_reservation:
        subscription.reserving = 0
    if refusal.retryable:
        # Nothing was written, so the earlier reservation is still valid for new consumers.
        position = subscription.position
        position.reserved = max(position.reserved, subscription.given_back)
    elif (
        is_reservation
        and subscription.is_behind
        and subscription.next_seq > subscription.position.reserved
    ):
        # Nothing may be sent that could not be marked as a repeat afterwards.
        subscription.backlog.obstacle = refusal
    subscription.given_back = 0
    subscription.changed()
    dispatcher.retry(subscription, now)
    return []
