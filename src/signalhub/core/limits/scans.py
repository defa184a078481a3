"""Requests that search everything there is, answered in slices.

A scan examines a bounded number of things per turn of the loop, so that others are served in
between; what it finds may therefore have changed a little since it began. Scans of one session wait
for each other, sessions take turns, and one scan is finished before the next begins, because each
keeps a list of what it still has to examine. A long scan is charged like several messages.

Requests for places of actors are divided in the same way, apart from the others: messages wait for
them. They make effects on the way, and each begins at once, so that a small one never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from signalhub.core import refusals
from signalhub.core.effects import Effect, Note
from signalhub.core.sessions.session import Session, SessionState
from signalhub.wire import envelope as wire
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Refusal, unworded

if TYPE_CHECKING:
    from signalhub.core.replies import Replies
    from signalhub.counters import Tally

T = TypeVar("T")

# Things examined per turn; one takes up to two microseconds.
SLICE: Final = 500
# Things examined between two looks at what is left of a slice.
_STEP: Final = 50
# Scans of one session that may wait.
WAITING_MAX: Final = 8
# Things examined for one token of the session's rate.
_PER_TOKEN: Final = 1_000

# Yields how much it has examined, and returns the type and the payload of the answer, or effects.
Steps = Generator[int, None, tuple[str, dict[str, object]] | list[Effect]]


class Scan(msgspec.Struct, eq=False):
    """A request that is being answered."""

    session: Session
    message: Envelope
    steps: Steps
    # Effects of its steps that have not been taken yet; the steps add to it.
    made: list[Effect] = []


class Scans:
    """Runs scans, a slice per turn."""

    def __init__(self, replies: Replies, tally: Tally) -> None:
        self._replies = replies
        self._tally = tally
        self._left = SLICE
        # The number of the turn that is being taken, and when it began.
        self.turns = 0
        self.now = 0
        # By session, in the order of their turns; the first scan of the first one is running.
        self.waiting: dict[Session, deque[Scan]] = {}

    def run(
        self, session: Session, message: Envelope, steps: Steps, now: int, *, size: int
    ) -> list[Effect]:
        """Begin a scan of about `size` things; it is answered now if this turn has room for it."""
        wait_ms = session.bucket.take_many(size // _PER_TOKEN, now)
        if wait_ms:
            self._tally.rate_limited += 1
            raise refusals.rate_limited(session.bucket.rate_s, wait_ms)
        queue = self.waiting.get(session)
        if queue is not None and len(queue) >= WAITING_MAX:
            raise refusals.too_many_scans(WAITING_MAX)
        scan = Scan(session, message, steps)
        effects: list[Effect] = []
        if self.waiting or not self._advance(scan, now, effects):
            self._wait(scan)
        return effects

    def begin(
        self, session: Session, message: Envelope, steps: Steps, made: list[Effect], now: int
    ) -> list[Effect]:
        """Take the first slice at once, whatever else waits; `made` gets the effects of steps."""
        self._left = SLICE
        self.turns += 1
        scan = Scan(session, message, steps, made)
        effects: list[Effect] = []
        if self._advance(scan, now, effects):
            return effects
        if len(self.waiting.get(session, ())) >= WAITING_MAX:
            refusal = refusals.too_many_scans(WAITING_MAX)
            return [*effects, self._replies.refuse(session, message, refusal, now)]
        self._wait(scan)
        return effects

    def _wait(self, scan: Scan) -> None:
        self.waiting.setdefault(scan.session, deque()).append(scan)

    def turn(self, now: int) -> list[Effect]:
        """Examine the next slice."""
        self._left = SLICE
        self.turns += 1
        effects: list[Effect] = []
        while self.waiting and self._left > 0:
            session, queue = next(iter(self.waiting.items()))
            if not self._advance(queue[0], now, effects):
                break
            queue.popleft()
            del self.waiting[session]
            if queue and session.state is SessionState.CONNECTED:
                # The others first.
                self.waiting[session] = queue
        return effects

    def _advance(self, scan: Scan, now: int, effects: list[Effect]) -> bool:
        """Examine what this turn allows, and add what follows from it; `False` if more is left."""
        session, message = scan.session, scan.message
        if session.state is not SessionState.CONNECTED:
            return True
        self.now = now
        answer: list[Effect] | None = None
        try:
            while self._left > 0:
                self._left -= next(scan.steps)
        except StopIteration as end:
            answer = end.value
            if not isinstance(answer, list):
                type, payload = end.value
                answer = [self._replies.reply(session, message, type, wire.encode(payload), now)]
        except Refusal as refusal:
            answer = [self._replies.refuse(session, message, refusal, now)]
        except Exception as error:
            # It must end, or it would fail again in every turn.
            note = Note("a search could not be finished", {}, unworded(error))
            answer = [note, self._replies.refuse(session, message, refusals.failed(), now)]
        effects += scan.made
        scan.made.clear()
        effects += answer or ()
        return answer is not None


def steps_of(things: Iterable[T], cost: int = 1) -> Iterator[tuple[list[T], int]]:
    """Divide things into parts small enough for a slice, each with what it costs to examine."""
    length = max(1, _STEP // cost)
    part: list[T] = []
    for thing in things:
        part.append(thing)
        if len(part) == length:
            yield part, length * cost
            part = []
    yield part, len(part) * cost
