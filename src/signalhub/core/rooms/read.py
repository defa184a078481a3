"""Read a page of an inbox: from memory, then the log, then the archive.

Memory is read first, and its newest position is the upper bound of the page. So a message that is
evicted during the read is not missed, and a message accepted during the read cannot move the cursor
past another one. The cursor never skips messages that could not be read: a page ends before them,
and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from signalhub.core.effects import Answer, Consult, Effect, Fetch, FindTime, Note
from signalhub.core.rooms import refusals
from signalhub.core.rooms.inbox import STREAM_EPOCH, Inbox, KeptMessage, Messages
from signalhub.core.rooms.room import Windows
from signalhub.core.rooms.values import Archived, Page, Read, Times
from signalhub.wire.entry import Range, StoredEntry
from signalhub.wire.errors import RoomCode, RoomError, unworded

if TYPE_CHECKING:
    from signalhub.core.log_state import LogState
    from signalhub.core.rooms.directory import RoomDirectory
    from signalhub.counters import RoomTally
    from signalhub.settings.model import RoomsSettings as RoomSettings

T = TypeVar("T")
Then = Callable[[T, int], list[Effect]]


def guarded(caller: object, then: Then[T], message_id: str = "") -> Then[T]:
    """Wrap `then` so that the caller is answered if it raises."""

    def run(found: T, now: int) -> list[Effect]:
        try:
            return then(found, now)
        except Exception as error:
            # The text of the exception may contain an id, so it is not logged.
            note = Note("a request to a room could not be finished", {}, unworded(error))
            return [Answer(caller, refusals.broken(), message_id), note]

    return run


# The search for the oldest message reads 1, 2, 4, … entries per step, up to these limits.
_STEP_MAX: Final = 512
_STEP_BYTES: Final = 4 * 2**20


_MINUTE_MS: Final = 60_000


class Pages:
    """Serves pages of inboxes."""

    def __init__(
        self,
        settings: RoomSettings,
        tally: RoomTally,
        times: Times,
        directory: RoomDirectory,
        messages: Messages,
        storage: LogState,
    ) -> None:
        self.settings = settings
        self.tally = tally
        self.times = times
        self.directory = directory
        self.messages = messages
        self._storage = storage
        self._fetches = Windows(settings.fetch_rate, _MINUTE_MS)

    def read(self, request: Read, now: int) -> list[Effect]:
        """Answer with a page, immediately if it is in memory; the requester may read it."""
        name = self.directory.names.inbox(request.inbox)
        wait_ms = self._fetches.of(f"{name} {request.requester.key}").take(request.mono_ms)
        if wait_ms:
            self.tally.limited += 1
            return [Answer(request.caller, refusals.limited(wait_ms))]
        self.tally.fetches += 1
        inbox = self.directory.inboxes.get(name)
        if inbox is None or not inbox.head:
            return [Answer(request.caller, self._empty(request))]
        reading = PageRead(self, inbox, request)
        if inbox.has_stale_oldest(now):
            return OldestSearch(self, inbox, reading).begin(now)
        return reading.begin(now)

    def unreadable(self) -> RoomError:
        """Return why the log could not be read just now."""
        return refusals.damaged() if self._storage.is_damaged else refusals.unreadable()

    def _empty(self, request: Read) -> Page:
        """Return the page of an inbox without messages; it may have had some that are lost."""
        floor = self.directory.floor
        skipped = [(1, floor)] if floor and request.from_seq <= floor else []
        return Page([], request.from_seq, None, skipped=skipped)

    def tick(self, mono_ms: int) -> None:
        """Drop the rate windows of inboxes that were not read recently."""
        self._fetches.sweep(mono_ms)


class PageRead:
    """The read of one page.

    Every position from `_start` to `_covered` has been examined: it was found, has expired, was
    deleted, or is in `_gap`, which only the archive can fill. `_obstacle` is why the log could not
    be read behind it.
    """

    __slots__ = (
        "_covered",
        "_cursor",
        "_found",
        "_gap",
        "_high",
        "_inbox",
        "_memory_first",
        "_obstacle",
        "_pages",
        "_request",
        "_start",
    )

    def __init__(self, pages: Pages, inbox: Inbox, request: Read) -> None:
        self._pages = pages
        self._inbox = inbox
        self._request = request
        self._cursor = request.from_seq
        self._found: dict[int, KeptMessage] = {}
        self._gap: tuple[int, int] | None = None
        self._obstacle: RoomError | None = None
        self._high = self._start = self._covered = self._memory_first = 0

    def begin(self, now: int) -> list[Effect]:
        """Read memory, then the log and the archive if necessary."""
        page = self._whole_from_memory(now)
        if page is not None:
            return [Answer(self._request.caller, page)]
        while True:
            if not self._take_memory():
                return self._read_log(self._start)
            if self._pages.settings.always_query_store and self._start <= self._high:
                return self._consult(self._start, self._high)
            page = self._page(now)
            if page is not None:
                return [Answer(self._request.caller, page)]
            self._cursor = self._covered + 1

    def begin_behind(self, oldest: int, now: int) -> list[Effect]:
        """Read although the oldest message is unknown, if the page begins behind `oldest`."""
        if self._cursor > oldest:
            return self.begin(now)
        return self.fail(self._pages.unreadable())

    def guard(self, then: Then[T]) -> Then[T]:
        """Wrap a continuation so that the caller is answered if it raises."""
        return guarded(self._request.caller, then)

    def fail(self, error: RoomError) -> list[Effect]:
        """Answer with an error."""
        return [Answer(self._request.caller, error)]

    def _whole_from_memory(self, now: int) -> Page | None:
        """Return the page if it is in memory and nothing in it has expired: the fast path."""
        pages, inbox, limit = self._pages, self._inbox, self._request.limit
        start, recent = max(self._cursor, inbox.oldest, 1), inbox.recent
        last = min(inbox.head, start + limit - 1)
        # An id can occur twice only if messages are kept for longer than their ids.
        may_repeat = inbox.retention_max_s > pages.settings.repeat_s
        if start not in recent or may_repeat or pages.settings.always_query_store:
            return None
        texts, bytes_max = inbox.texts, pages.settings.page_bytes_max
        if texts.has_expired(recent, now):
            kept = map(recent.__getitem__, range(start, last + 1))
            messages = [one.json for one in kept if one.expires_ms > now]
            if len(messages) <= last - start:
                return None
        else:
            messages = texts.between(start, last)
        is_short = len(messages) * texts.longest <= bytes_max
        if not is_short and sum(map(len, messages)) > bytes_max:
            return None
        pages.tally.fetched += len(messages)
        skipped = self._skipped(last + 1, inbox.head)
        return Page(messages, last + 1, self._oldest(), skipped=skipped)

    def _take_memory(self) -> bool:
        """Take what memory holds of the page; return whether that includes its start."""
        inbox, recent = self._inbox, self._inbox.recent
        self._high = high = inbox.head
        self._start = start = max(self._cursor, inbox.oldest, 1)
        self._memory_first = memory_first = inbox.recent_first if recent else high + 1
        first = max(start, memory_first)
        last = min(high, first + self._request.limit - 1)
        self._found = {seq: recent[seq] for seq in range(first, last + 1)}
        self._gap = self._obstacle = None
        self._covered = max(last, start - 1)
        return first == start

    def _read_log(self, from_seq: int) -> list[Effect]:
        """Read messages older than memory, until the page is full or memory is reached."""
        pages, inbox, memory_first = self._pages, self._inbox, self._memory_first
        pages.tally.log_reads += 1
        # The page may be full before memory is reached.
        left = self._start + self._request.limit - from_seq
        count_max = min(left, memory_first - from_seq)
        bytes_max = pages.settings.page_bytes_max

        def then(found: list[StoredEntry] | None, now: int) -> list[Effect]:
            if found is None:
                self._obstacle = pages.unreadable()
                if from_seq == self._start:
                    return self.fail(self._obstacle)
                self._covered = from_seq - 1
                return self._complete(now)
            older = [one for one in found if one.seq < memory_first]
            for one in older:
                kept = self._pages.messages.kept_of(one)
                if kept is not None:
                    self._found[one.seq] = kept
            first = older[0].seq if older else memory_first
            if first > from_seq:
                self._gone(from_seq, first - 1)
            next_seq = older[-1].seq + 1 if older else memory_first
            if next_seq < memory_first:
                if next_seq < self._start + self._request.limit and self._size() < bytes_max:
                    return self._read_log(next_seq)
                self._covered = next_seq - 1
            return self._complete(now)

        guard = self.guard(then)
        return [Fetch(inbox.name, STREAM_EPOCH, from_seq, count_max, bytes_max, guard)]

    def _gone(self, first: int, last: int) -> None:
        """Note positions that are not in the log: a gap for the archive, or lost without one."""
        inbox = self._inbox
        if self._pages.messages.archived is not None:
            self._gap = (first if self._gap is None else self._gap[0], last)
        elif first <= inbox.oldest <= last:
            inbox.advance_oldest(last + 1, 0)

    def _size(self) -> int:
        return sum(len(one.json) for seq, one in self._found.items() if seq < self._memory_first)

    def _complete(self, now: int) -> list[Effect]:
        """Finish after reading memory and log."""
        if self._pages.settings.always_query_store:
            return self._consult(self._start, self._high)
        if self._gap is not None:
            return self._consult(*self._gap)
        return self._answer(now)

    def _consult(self, first: int, last: int) -> list[Effect]:
        pages, request = self._pages, self._request
        pages.tally.archive_reads += 1

        def then(found: list[Archived] | None, now: int) -> list[Effect]:
            if found is not None:
                self._merge([one for one in found if first <= one.seq <= self._high])
            elif self._gap is not None:
                return self._without_archive(now)
            return self._answer(now)

        guard = self.guard(then)
        return [Consult(self._inbox.name, first, last, request.limit, guard)]

    def _merge(self, archived: list[Archived]) -> None:
        """Merge messages of the archive, which win; of two with one id, keep the lower position."""
        stored: dict[str, Archived] = {}
        for one in sorted(archived, key=lambda one: one.seq):
            stored.setdefault(one.message_id, one)
        mine = [one for one in self._found.values() if one.message_id not in stored]
        self._found = {one.seq: one for one in mine}
        for one in stored.values():
            item = self._pages.messages.page_item(
                one.seq, one.message_id, one.ciphertext, one.created_ms
            )
            self._found[one.seq] = KeptMessage(one.seq, one.message_id, one.expires_ms, item)
        if len(archived) >= self._request.limit and self._gap is not None:
            # The archive may hold more after these.
            self._covered = min(self._covered, max(one.seq for one in archived))

    def _answer(self, now: int) -> list[Effect]:
        page = self._page(now)
        if page is None:
            self._cursor = self._covered + 1
            return self.begin(now)
        if page.reason is not None and self._obstacle is not None:
            return self._partial(page, self._obstacle)
        return [Answer(self._request.caller, page)]

    def _without_archive(self, now: int) -> list[Effect]:
        """Answer with what there is of a page with a gap: the cursor does not advance."""
        messages, _, _ = self._choose(now)
        # A position that could not be read was not skipped.
        page = Page(messages, self._request.from_seq, self._oldest(), RoomCode.UNAVAILABLE)
        return self._partial(page, refusals.archive_unreachable())

    def _partial(self, page: Page, error: RoomError) -> list[Effect]:
        """Answer with a partial page, or with the error instead."""
        self._pages.tally.partial += 1
        if self._pages.settings.strict_store:
            return self.fail(error)
        return [Answer(self._request.caller, page)]

    def _page(self, now: int) -> Page | None:
        """Return the page; `None` if this range is empty but not the last one.

        Clients take an empty page for the end of the inbox.
        """
        messages, next_seq, is_full = self._choose(now)
        if not messages and self._covered < self._high:
            return None
        self._pages.tally.fetched += len(messages)
        end = next_seq if messages else self._high + 1
        obstacle = None if is_full else self._obstacle
        reason = None if obstacle is None else RoomCode(obstacle.code)
        return Page(messages, next_seq, self._oldest(), reason, self._skipped(end, self._high))

    def _choose(self, now: int) -> tuple[list[bytes], int, bool]:
        """Select the messages of the page; return the start of the next one, and if it is full."""
        messages: list[bytes] = []
        size, next_seq = 0, self._request.from_seq
        seen: set[str] = set()
        for seq in sorted(self._found):
            one = self._found[seq]
            # An id that was reused after the dedup window stands for its first message.
            if one.expires_ms <= now or seq > self._covered or one.message_id in seen:
                continue
            if seq <= self._inbox.erased_to:
                # Erased during the read.
                continue
            size += len(one.json)
            is_large = messages and size > self._pages.settings.page_bytes_max
            if is_large or len(messages) == self._request.limit:
                return messages, next_seq, True
            seen.add(one.message_id)
            messages.append(one.json)
            next_seq = seq + 1
        return messages, next_seq, len(messages) == self._request.limit

    def _skipped(self, end: int, head: int) -> list[Range]:
        """Return what was skipped up to the end of the page; the last page tells all."""
        floor = self._pages.directory.floor
        if not floor:
            return []
        to_seq = end - 1 if end <= head else max(head, floor)
        return self._inbox.skipped_in(self._request.from_seq, to_seq, floor)

    def _oldest(self) -> int | None:
        return None if self._inbox.oldest > self._inbox.head else self._inbox.oldest


class OldestSearch:
    """Searches for the oldest readable message, then starts the read.

    Everything older than the longest retention has expired, so the search starts after that and
    skips messages with a shorter retention.
    """

    __slots__ = ("_high", "_inbox", "_pages", "_reading", "_step_count")

    def __init__(self, pages: Pages, inbox: Inbox, reading: PageRead) -> None:
        self._pages = pages
        self._inbox = inbox
        self._reading = reading
        # Messages accepted after the start of the search are ignored.
        self._high = inbox.head
        self._step_count = 1

    def begin(self, now: int) -> list[Effect]:
        inbox = self._inbox
        if inbox.recent and inbox.recent_first <= inbox.oldest:
            return self._in_memory(inbox.oldest, now)
        expired_ms = now - inbox.retention_max_s * 1000 - self._pages.times.grid_ms

        def then(seq: int | None, now: int) -> list[Effect]:
            if seq is None:
                # What was found before the failure has expired, but the page may begin behind it.
                return self._reading.begin_behind(inbox.oldest, now)
            first = max(seq, inbox.oldest) if seq else self._high + 1
            if self._pages.messages.archived is not None and first > inbox.oldest:
                return self._ask_archive(inbox.oldest, first - 1)
            return self._step(first, now)

        return [FindTime(inbox.name, STREAM_EPOCH, expired_ms, self._reading.guard(then))]

    def _in_memory(self, from_seq: int, now: int) -> list[Effect]:
        """Finish with the oldest readable message in memory from a position on."""
        recent = self._inbox.recent
        first = max(from_seq, self._memory_first())
        for seq in range(first, self._high + 1):
            if recent[seq].expires_ms > now:
                return self._end(seq, recent[seq].expires_ms, now)
        return self._end(self._high + 1, 0, now)

    def _ask_archive(self, first: int, last: int) -> list[Effect]:
        """Search the archive for messages that are no longer in the log."""

        def then(found: list[Archived] | None, now: int) -> list[Effect]:
            if found is None:
                # The archive is unreachable, so `oldest` must not advance.
                return self._reading.begin(now)
            if found:
                oldest = min(found, key=lambda one: one.seq)
                return self._end(oldest.seq, oldest.expires_ms, now)
            return self._step(last + 1, now)

        guard = self._reading.guard(then)
        return [Consult(self._inbox.name, first, last, 1, guard)]

    def _step(self, from_seq: int, now: int) -> list[Effect]:
        inbox = self._inbox
        if from_seq > self._high:
            return self._end(self._high + 1, 0, now)

        def then(found: list[StoredEntry] | None, now: int) -> list[Effect]:
            if found is None:
                # Everything before this position has expired.
                return self._end(from_seq, 0, now)
            first = found[0].seq if found else self._memory_first()
            if first > from_seq and self._pages.messages.archived is not None:
                return self._ask_archive(from_seq, first - 1)
            if not found:
                return self._in_memory(from_seq, now)
            for one in found:
                kept = self._pages.messages.kept_of(one)
                if kept is not None and kept.expires_ms > now:
                    return self._end(one.seq, kept.expires_ms, now)
            return self._step(found[-1].seq + 1, now)

        guard = self._reading.guard(then)
        count, self._step_count = self._step_count, min(2 * self._step_count, _STEP_MAX)
        return [Fetch(inbox.name, STREAM_EPOCH, from_seq, count, _STEP_BYTES, guard)]

    def _memory_first(self) -> int:
        inbox = self._inbox
        return inbox.recent_first if inbox.recent else self._high + 1

    def _end(self, seq: int, expires_ms: int, now: int) -> list[Effect]:
        self._inbox.advance_oldest(seq, expires_ms)
        self._pages.directory.dirty.add(self._inbox)
        return self._reading.begin(now)
