"""A page of an inbox: memory first, then the log, then the archive.

Memory is read first and its newest position caps the page. So a message that leaves memory while
the others are read is not missed, and one that is accepted meanwhile cannot let the cursor jump
over another. What could not be read is never passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from signalhub.core.effects import Answer, Consult, Effect, Fetch, FindTime
from signalhub.core.rooms import denials, rendering
from signalhub.core.rooms.inbox import STREAM_EPOCH, Inbox, Kept
from signalhub.core.rooms.requests import Archived, Page, Read
from signalhub.entry import RoomMessage, Stored, decode_body
from signalhub.errors import RoomError

if TYPE_CHECKING:
    from signalhub.core.rooms.rooms import Rooms

# The oldest message is looked for in steps of so many, of so many bytes.
_STEP: Final = 500
_STEP_BYTES: Final = 4 * 2**20


def read(rooms: Rooms, request: Read, now: int) -> list[Effect]:
    """Answer with a page, at once if memory holds it."""
    rooms.saw(request.mono_ms)
    name = rooms.names.inbox(request.inbox)
    wait_ms = rooms.fetches.of(name).take(request.mono_ms)
    if wait_ms:
        rooms.tally.limited += 1
        return [Answer(request.caller, denials.limited(wait_ms))]
    rooms.tally.fetches += 1
    inbox = rooms.inboxes.get(name)
    if inbox is None or not inbox.head:
        return [Answer(request.caller, Page([], request.from_seq, None))]
    reading = Reading(rooms, inbox, request)
    if inbox.has_stale_oldest(now):
        return OldestSearch(rooms, inbox, reading).begin(now)
    return reading.begin(now)


class Reading:
    """One page in the making."""

    __slots__ = ("_cursor", "_found", "_high", "_inbox", "_request", "_rooms", "_start")

    def __init__(self, rooms: Rooms, inbox: Inbox, request: Read) -> None:
        self._rooms = rooms
        self._inbox = inbox
        self._request = request
        self._found: dict[int, Kept] = {}
        self._high = inbox.head
        self._cursor = request.from_seq
        self._start = 0

    def begin(self, now: int) -> list[Effect]:
        """Take the snapshot of memory; then look further if it does not hold the page."""
        inbox, request = self._inbox, self._request
        self._high = inbox.head
        self._start = start = max(self._cursor, inbox.oldest, 1)
        self._found = {}
        first = inbox.recent_first if inbox.recent else self._high + 1
        end = min(self._high, max(start, first) + request.limit - 1)
        recent = inbox.recent
        for seq in range(max(start, first), end + 1):
            self._found[seq] = recent[seq]
        if start > self._high or start >= first:
            if self._rooms.settings.always_query_store and start <= self._high:
                return self._consult(start, self._high)
            return self._answer(now)
        return self._read_log(start, first)

    def fail(self, error: RoomError) -> list[Effect]:
        """Nothing can be said."""
        return [Answer(self._request.caller, error)]

    def _read_log(self, from_seq: int, memory_first: int) -> list[Effect]:
        """Read what is older than memory, until the page is full or memory is reached."""
        rooms, inbox, request = self._rooms, self._inbox, self._request
        rooms.tally.log_reads += 1
        room_left = min(request.limit, memory_first - from_seq)
        bytes_max = rooms.settings.page_bytes_max

        def then(found: list[Stored] | None, now: int) -> list[Effect]:
            if found is None:
                return self.fail(denials.unreadable())
            some = [one for one in found if one.seq < memory_first]
            for one in some:
                if not one.is_erased:
                    self._found[one.seq] = kept_of(one)
            if not some:
                return self._gap(from_seq, memory_first - 1, now)
            if some[0].seq > from_seq:
                return self._gap(from_seq, some[0].seq - 1, now)
            next_seq = some[-1].seq + 1
            is_cut_short = len(some) == len(found) < room_left and self._size() < bytes_max
            if is_cut_short and next_seq < memory_first:
                return self._read_log(next_seq, memory_first)
            if next_seq < memory_first:
                # Memory begins further on; what lies between is the next page's.
                self._cut(next_seq - 1)
            if rooms.settings.always_query_store:
                return self._consult(self._start, self._high)
            return self._answer(now)

        return [Fetch(inbox.name, STREAM_EPOCH, from_seq, room_left, bytes_max, then)]

    def _gap(self, first: int, last: int, now: int) -> list[Effect]:
        """The log no longer holds these: the archive does, or nobody."""
        if self._rooms.archived is not None:
            return self._consult(first, last)
        return self._answer(now)

    def _consult(self, first: int, last: int) -> list[Effect]:
        rooms, request = self._rooms, self._request
        rooms.tally.archive_reads += 1

        def then(found: list[Archived] | None, now: int) -> list[Effect]:
            if found is None:
                return self._without_archive(now)
            self._merge([one for one in found if first <= one.seq <= self._high])
            return self._answer(now)

        return [Consult(self._inbox.name, first, last, request.limit, then)]

    def _without_archive(self, now: int) -> list[Effect]:
        """The archive is away: what memory and log hold is enough, or the page is partial."""
        if all(seq in self._found for seq in range(self._start, self._last_wanted() + 1)):
            return self._answer(now)
        self._rooms.tally.partial += 1
        if self._rooms.settings.strict_store:
            return self.fail(denials.archive_away())
        return self._answer(now, is_partial=True)

    def _last_wanted(self) -> int:
        return min(self._start + self._request.limit - 1, self._high)

    def _merge(self, archived: list[Archived]) -> None:
        """The archive's word counts, and of two words the one with the lower position."""
        stored: dict[str, Archived] = {}
        for one in sorted(archived, key=lambda one: one.seq):
            stored.setdefault(one.message_id, one)
        mine = [one for one in self._found.values() if one.message_id not in stored]
        self._found = {one.seq: one for one in mine}
        for one in stored.values():
            alike = rendering.members(one.seq, one.message_id, one.ciphertext)
            item = rendering.page_item(alike, one.created_ms)
            self._found[one.seq] = Kept(one.seq, one.message_id, one.expires_ms, item)

    def _cut(self, last: int) -> None:
        self._found = {seq: one for seq, one in self._found.items() if seq <= last}

    def _size(self) -> int:
        return sum(len(one.json) for one in self._found.values())

    def _answer(self, now: int, *, is_partial: bool = False) -> list[Effect]:
        rooms, inbox, request = self._rooms, self._inbox, self._request
        messages: list[bytes] = []
        size, next_seq = 0, request.from_seq
        for seq in sorted(self._found):
            one = self._found[seq]
            if one.expires_ms <= now:
                continue
            size += len(one.json)
            if len(messages) == request.limit or (messages and size > self._bytes_max):
                break
            messages.append(one.json)
            next_seq = seq + 1
        last = max(self._found, default=self._high)
        if not messages and not is_partial and last < self._high:
            # All of these have expired, but there are more, and an empty page would say "the end".
            self._cursor = last + 1
            return self.begin(now)
        rooms.tally.fetched += len(messages)
        oldest = None if inbox.oldest > inbox.head else inbox.oldest
        page = Page(messages, request.from_seq if is_partial else next_seq, oldest, is_partial)
        return [Answer(request.caller, page)]

    @property
    def _bytes_max(self) -> int:
        return self._rooms.settings.page_bytes_max


class OldestSearch:
    """Looks for the oldest message that can still be read, then lets a reading begin.

    What was accepted longer ago than the longest retention has expired, so the search begins
    behind that; what is kept for a shorter time is stepped over.
    """

    __slots__ = ("_high", "_inbox", "_reading", "_rooms")

    def __init__(self, rooms: Rooms, inbox: Inbox, reading: Reading) -> None:
        self._rooms = rooms
        self._inbox = inbox
        self._reading = reading
        # Messages accepted from now on are none of this search's business.
        self._high = inbox.head

    def begin(self, now: int) -> list[Effect]:
        inbox = self._inbox
        if inbox.recent and inbox.recent_first <= inbox.oldest:
            return self._in_memory(now)
        expired_ms = now - inbox.retention_max_s * 1000 - self._rooms.grid_ms

        def then(seq: int | None, now: int) -> list[Effect]:
            if seq is None:
                return self._reading.fail(denials.unreadable())
            first = max(seq, inbox.oldest) if seq else self._high + 1
            if self._rooms.archived is not None and first > inbox.oldest:
                return self._ask_archive(first)
            return self._step(first, now)

        return [FindTime(inbox.name, STREAM_EPOCH, expired_ms, then)]

    def _in_memory(self, now: int) -> list[Effect]:
        inbox = self._inbox
        for seq in range(inbox.oldest, self._high + 1):
            if inbox.recent[seq].expires_ms > now:
                return self._end(seq, inbox.recent[seq].expires_ms, now)
        return self._end(self._high + 1, 0, now)

    def _ask_archive(self, local_first: int) -> list[Effect]:
        """Something older than the log holds may be in the archive."""
        inbox = self._inbox

        def then(found: list[Archived] | None, now: int) -> list[Effect]:
            if found is None:
                # Nobody knows, so nothing is passed over.
                return self._reading.begin(now)
            if found:
                oldest = min(found, key=lambda one: one.seq)
                return self._end(oldest.seq, oldest.expires_ms, now)
            return self._step(local_first, now)

        return [Consult(inbox.name, inbox.oldest, local_first - 1, 1, then)]

    def _step(self, from_seq: int, now: int) -> list[Effect]:
        inbox = self._inbox
        if from_seq > self._high:
            return self._end(self._high + 1, 0, now)

        def then(found: list[Stored] | None, now: int) -> list[Effect]:
            if found is None:
                return self._reading.fail(denials.unreadable())
            for one in found:
                if not one.is_erased:
                    kept = kept_of(one)
                    if kept.expires_ms > now:
                        return self._end(one.seq, kept.expires_ms, now)
            return self._step(found[-1].seq + 1 if found else self._high + 1, now)

        return [Fetch(inbox.name, STREAM_EPOCH, from_seq, _STEP, _STEP_BYTES, then)]

    def _end(self, seq: int, expires_ms: int, now: int) -> list[Effect]:
        self._inbox.advance_oldest(seq, expires_ms)
        self._rooms.dirty.add(self._inbox)
        return self._reading.begin(now)


def kept_of(stored: Stored) -> Kept:
    """A message as it was read from the log."""
    body = decode_body(RoomMessage, stored.body)
    alike = rendering.members(stored.seq, body.message_id, body.ciphertext)
    item = rendering.page_item(alike, body.created_ms)
    return Kept(stored.seq, body.message_id, body.expires_ms, item)
