"""What is to be erased from the log and may not be read meanwhile.

A request hides what it is about at once. Which entries that are is found by reading the log; their
offsets are then written to it, and hidden again after a restart. What is pending stays until the
segments are written anew, however often that has to be tried.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

import msgspec

from signalhub.core.effects import Effect, Erase
from signalhub.core.ranges import Ranges
from signalhub.core.streams import Held, blank, held_of
from signalhub.entry import Erased, Kind, Message, Stored
from signalhub.errors import Refusal

RETRY_MS: Final = 60_000
# Entries with something of an actor or a room in them.
CONTENT: Final = frozenset((Kind.MAIL, Kind.PUBLISHED, Kind.BROADCAST, Kind.ROOM_MESSAGE))

Then = Callable[[int | Refusal, int], list[Effect]]


class Pending(msgspec.Struct, eq=False):
    """An ERASED entry whose offsets may still hold something."""

    body: Erased
    offset: float = inf
    """Where it is in the log; unknown while it is on its way there."""
    is_claimed: bool = False
    """Somebody is at it."""


class Erasures:
    """What is hidden, and what is still to be done."""

    def __init__(self) -> None:
        # Messages of these senders are hidden before these offsets, by who wants that.
        self._actors: dict[str, dict[object, float]] = {}
        self._offsets = Ranges()
        self._pending: list[Pending] = []
        self._retry_at_ms = 0
        # Something was erased, and what is kept beside the log is to forget it, too.
        self.has_news = False

    # Hiding.

    def hide(self, actor: str, by: object, before: float = inf) -> None:
        """Nothing this actor sent before an offset is shown any more."""
        self._actors.setdefault(actor, {})[by] = before

    def show(self, actor: str, by: object) -> None:
        """Nothing of it is left that had to be hidden, or it could not even be begun."""
        wishes = self._actors.get(actor, {})
        wishes.pop(by, None)
        if not wishes:
            self._actors.pop(actor, None)

    def hides(self, offset: int) -> bool:
        """May an entry not be shown, whatever it holds?"""
        return offset in self._offsets

    def hides_message(self, message: Message, offset: int) -> bool:
        """May a message not be shown, because of who sent it or could not be reached by it?"""
        if not self._actors:
            return False
        names = (message.sender, message.dead.topic if message.dead is not None else "")
        return any(offset < max(self._actors[one].values()) for one in names if one in self._actors)

    def held_of(self, stored: Stored) -> Held:
        """A message as it was read from the log; blank if it may not be shown."""
        held = held_of(stored)
        if self.hides(stored.offset) or self.hides_message(held.message, stored.offset):
            blank(held)
        return held

    # Doing.

    def oldest(self, offset: int) -> int:
        """Where the oldest pending one is written, if that is before an offset."""
        return int(min([offset, *(one.offset for one in self._pending)]))

    def add(self, body: Erased, offset: float = inf) -> Pending:
        """One more is written to the log, or on its way there: its offsets are hidden."""
        pending = Pending(body, offset, is_claimed=offset == inf)
        self._pending.append(pending)
        self._hide(pending)
        return pending

    def remove(self, some: list[Pending]) -> None:
        """These are done, and the log itself hides them now; or they could not be written."""
        self._pending = [one for one in self._pending if one not in some]
        self._offsets = Ranges()
        for one in self._pending:
            self._hide(one)

    def _hide(self, pending: Pending) -> None:
        for first, last in pending.body.ranges:
            for offset in range(first, last + 1):
                self._offsets.add(offset)

    def erase(self, some: list[Pending], then: Then) -> Erase:
        """Have the segments written anew; what cannot be done now is tried again later."""
        for one in some:
            one.is_claimed = True

        def done(result: int | Refusal, now: int) -> list[Effect]:
            if isinstance(result, Refusal):
                self._retry_at_ms = now + RETRY_MS
                for one in some:
                    one.is_claimed = False
            else:
                self.remove(some)
                self.has_news = True
            return then(result, now)

        return Erase([one.body for one in some], done)

    def tick(self, now: int) -> list[Effect]:
        """Finish what an earlier process, or a full disk, has left."""
        left = [one for one in self._pending if not one.is_claimed]
        if not left or now < self._retry_at_ms:
            return []
        return [self.erase(left, lambda result, now: [])]
