"""In order, nothing twice, nothing left out: the reading half of a room.

Live messages arrive by the socket, but not all: what was written while we were away, what was put
into the inbox directly, and what we had no place for must be fetched. So every live message that
does not follow the last one is held until the positions before it were fetched.

* `ready`   what its reader can take, in order;
* `held`    live messages behind a gap; too many of them are dropped, and fetched later;
* `target`  the last position known to exist; while it is not reached, pages are fetched.

Pages are fetched only for a reader who asks: whoever only sends costs the inbox nothing. Nothing
here is about connections; positions stay valid through any number of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable

from signalhub.client.retrying import retry_wait_s
from signalhub.client.room_message import InboxPage, Missed, RecentIds, RoomMessage

READY_MAX = 1_000
READY_BYTES_MAX = 16 * 2**20
HELD_MAX = 1_000
HELD_BYTES_MAX = 16 * 2**20
MISSED_MAX = 1_000
# All members share the fetches of an inbox, so a live reader spreads its own.
PAUSE_S = 1.0
PARTIAL_S = 1.0


class CatchUp:
    """Invariant: everything up to `_queued` was handed over, is ready, or is gone for good."""

    def __init__(self, since: int | None, random: Callable[[], float]) -> None:
        self.missed: deque[Missed] = deque(maxlen=MISSED_MAX)
        self.rewound = 0
        self._random = random
        self._is_positioned = since is not None
        self._queued = since or 0
        self._target = 0
        self._ready: deque[RoomMessage] = deque()
        self._ready_bytes = 0
        self._held: list[RoomMessage] = []
        self._held_bytes = 0
        self._ids = RecentIds()
        self._is_open = False
        self._is_wanted = False
        self._fetching: int | None = None  # The target when the page under way was asked for.
        self._attempts = 0
        self._not_before_s = 0.0

    @property
    def last_seq(self) -> int:
        """Everything up to here was handed over, or is gone."""
        return self._ready[0].seq - 1 if self._ready else self._queued

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def take(self) -> RoomMessage | None:
        """The next message for the reader, who from now on is known to want them."""
        self._is_wanted = True
        if not self._ready:
            return None
        message = self._ready.popleft()
        self._ready_bytes -= len(message.ciphertext)
        self._move_held()
        return message

    def welcomed(self, last_seq: int) -> bool:
        """A socket is in the room, whose last position is this; is that where we thought?"""
        self._is_open = True
        if not self._is_positioned:
            self._is_positioned = True
            self._queued = last_seq
        self._target = max(self._target, last_seq)
        if last_seq >= self._queued:
            return True
        # The hub has lost what we have seen. What came instead has positions we took for known.
        self.rewound += 1
        self._queued, self._target = 0, last_seq
        self._drop_held()
        return False

    def lost(self) -> None:
        """The socket is gone."""
        self._is_open = False

    def heard(self, message: RoomMessage) -> None:
        """A live message, or one of ours that was accepted."""
        if message.seq <= self._queued or not self._is_positioned:
            return
        if not self._held and message.seq == self._queued + 1 and not self._is_full:
            self._push(message)
            return
        index = bisect_left(self._held, message.seq, key=lambda one: one.seq)
        if index < len(self._held) and self._held[index].seq == message.seq:
            return
        self._held.insert(index, message)
        self._held_bytes += len(message.ciphertext)
        self._move_held()
        if len(self._held) > HELD_MAX or self._held_bytes > HELD_BYTES_MAX:
            self._target = max(self._target, self._held[-1].seq)
            self._drop_held()

    def next_fetch(self, now_s: float) -> int | None:
        """The position to fetch a page from now, if one is needed; it is then under way."""
        if not self._needs_page or now_s < self._not_before_s:
            return None
        self._fetching = self._target
        return self._queued + 1

    def fetched(self, asked: int, page: InboxPage, now_s: float) -> Missed | None:
        """The page asked for has come; what turned out just now to be gone."""
        assert self._fetching is not None
        target, self._fetching = self._fetching, None
        if asked > self._queued + 1:
            return None  # Asked before a rewind.
        if page.is_partial:
            self._retry(PARTIAL_S, now_s)
            return None
        self._attempts = 0
        # With nothing left to read, all that was known when we asked is gone.
        first = page.messages[0].seq if page.messages else target + 1
        missed = self._skip_to(first)
        for message in page.messages:
            if message.seq > self._queued:
                self._push(message)
        self._move_held()
        if self._queued >= self._target:
            self._not_before_s = now_s + PAUSE_S
        return missed

    def not_fetched(self, retry_after_s: float, now_s: float) -> None:
        """There was no page this time."""
        self._fetching = None
        self._retry(retry_after_s, now_s)

    @property
    def wake_at_s(self) -> float | None:
        """When to ask `next_fetch` again."""
        return self._not_before_s if self._needs_page else None

    @property
    def _needs_page(self) -> bool:
        has_place = len(self._ready) < READY_MAX // 2 and self._ready_bytes < READY_BYTES_MAX
        is_behind = self._queued < self._target
        is_due = self._is_open and self._is_wanted and self._fetching is None
        return is_behind and has_place and is_due

    @property
    def _is_full(self) -> bool:
        return len(self._ready) >= READY_MAX or self._ready_bytes >= READY_BYTES_MAX

    def _retry(self, retry_after_s: float, now_s: float) -> None:
        self._attempts += 1
        self._not_before_s = now_s + retry_wait_s(retry_after_s, self._attempts, self._random)

    def _skip_to(self, first: int) -> Missed | None:
        if first <= self._queued + 1:
            return None
        missed = Missed(self._queued + 1, first - 1)
        self._queued = first - 1
        follows = bool(self.missed) and self.missed[-1].last == missed.first - 1
        first_of_all = self.missed.pop().first if follows else missed.first
        self.missed.append(Missed(first_of_all, missed.last))
        return missed

    def _push(self, message: RoomMessage) -> None:
        self._queued = message.seq
        if self._ids.is_new(message.message_id):
            self._ready.append(message)
            self._ready_bytes += len(message.ciphertext)

    def _move_held(self) -> None:
        """Let held messages follow that have nothing missing before them."""
        used = 0
        for message in self._held:
            if message.seq > self._queued:
                if message.seq != self._queued + 1 or self._is_full:
                    break
                self._push(message)
            used += 1
            self._held_bytes -= len(message.ciphertext)
        del self._held[:used]
        if self._held:
            self._target = max(self._target, self._held[0].seq - 1)

    def _drop_held(self) -> None:
        self._held.clear()
        self._held_bytes = 0
