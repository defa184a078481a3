"""One room: its sockets, its rate limits, its proposals and blobs."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from signalhub.core.effects import Answer, Dismiss, Effect
from signalhub.core.limits.quotas import NOBODY
from signalhub.core.rooms.values import Guest, RoomWelcome
from signalhub.wire.entry import ProposalBody, RoomBlobBody
from signalhub.wire.frames import CloseCode

if TYPE_CHECKING:
    from signalhub.core.rooms.inbox import Inbox
    from signalhub.wire.errors import RoomError

# Limit of pseudonyms with a rate window per room; the least recently used is dropped first.
_MEMBERS_MAX: Final = 1_000

# Limit of windows; beyond it the least recently used is dropped. A sweep checks at most `_SWEPT`.
_WINDOWS_MAX: Final = 50_000
_SWEPT: Final = 1_000


class SlidingWindow:
    """Rate limit: at most `limit` events within the last `window_ms`."""

    __slots__ = ("_limit", "_window_ms", "times")

    def __init__(self, limit: int, window_ms: int, times: Iterable[int] = ()) -> None:
        self._limit = limit
        self._window_ms = window_ms
        self.times = deque(times)

    def wait_ms(self, now: int) -> int:
        """Return how long to wait for the next event; 0 if it is allowed now."""
        times, oldest = self.times, now - self._window_ms
        while times and times[0] <= oldest:
            times.popleft()
        if len(times) < self._limit:
            return 0
        return max(1, times[0] + self._window_ms - now)

    def record(self, now: int) -> None:
        """Record an event."""
        self.times.append(now)

    def take_back(self) -> None:
        """Remove the newest event."""
        if self.times:
            self.times.pop()

    def take(self, now: int) -> int:
        """Record an event and return 0 if it is allowed; otherwise return how long to wait."""
        wait_ms = self.wait_ms(now)
        if not wait_ms:
            self.times.append(now)
        return wait_ms


class Windows:
    """Rate windows by name; empty ones are dropped."""

    def __init__(self, limit: int, window_ms: int) -> None:
        self._limit = limit
        self._window_ms = window_ms
        # Least recently used first.
        self._windows: OrderedDict[str, SlidingWindow] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def of(self, name: str) -> SlidingWindow:
        """Return the window of this name."""
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = SlidingWindow(self._limit, self._window_ms)
            if len(self._windows) > _WINDOWS_MAX:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(name)
        return window

    def sweep(self, now: int) -> None:
        """Drop some of the windows that have become empty."""
        for _ in range(min(_SWEPT, len(self._windows))):
            name, window = next(iter(self._windows.items()))
            if window.times and window.times[-1] > now - self._window_ms:
                return
            del self._windows[name]


# Cannot collide with the id of a proposal, which contains no space.
BLOB_PREFIX: Final = "blob "


class Room:
    """The state of one room."""

    __slots__ = (
        "accepts",
        "blobs",
        "defined_at",
        "guests",
        "holder",
        "in_flight",
        "inbox",
        "is_bound",
        "members",
        "name",
        "proposals",
        "saved_accepts",
        "skew_ms",
        "unwelcomed",
        "versions",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        # Whose quota it counts for.
        self.holder = NOBODY
        self.inbox: Inbox | None = None
        # Is the binding committed? Until then snapshots do not include it.
        self.is_bound = False
        self.guests: dict[Guest, None] = {}
        # Sockets that wait for the commit of the binding.
        self.unwelcomed: list[Guest] = []
        # When messages were accepted, by the monotonic clock; created with the first one.
        self.accepts: SlidingWindow | None = None
        # The same from before a restart, by the wall clock.
        self.saved_accepts: list[int] = []
        # Wall clock minus monotonic clock.
        self.skew_ms = 0
        self.members: dict[str, SlidingWindow] | None = None
        self.proposals: dict[str, ProposalBody] = {}
        self.blobs: dict[str, RoomBlobBody] = {}
        # The latest version of each blob, including one that is still being written.
        self.versions: dict[str, int] = {}
        # Number of entries being written about each proposal and blob.
        self.in_flight: dict[str, int] = {}
        # The log holds everything about the room from this offset on; negative: holds nothing.
        self.defined_at = -1

    @property
    def is_being_bound(self) -> bool:
        """Is the binding being written?"""
        return self.inbox is not None and not self.is_bound

    @property
    def is_blank(self) -> bool:
        """Does it hold no state?"""
        return not (self.inbox or self.guests or self.proposals or self.blobs or self.versions)

    def bind(self, inbox: Inbox) -> None:
        """Bind the room and the inbox to each other."""
        self.inbox = inbox
        inbox.room = self

    def unbind(self) -> None:
        """Undo a binding that the log refused."""
        if self.inbox is not None:
            self.inbox.room = None
        self.inbox = None

    def defined(self, offset: int) -> None:
        """Record the offset of the first entry about the room."""
        if self.defined_at < 0:
            self.defined_at = offset

    def begun(self, what: str) -> None:
        """Count an entry about a proposal or blob that is being written."""
        self.in_flight[what] = self.in_flight.get(what, 0) + 1

    def settled(self, what: str) -> None:
        """The entry was committed or refused."""
        self.in_flight[what] -= 1
        if not self.in_flight[what]:
            del self.in_flight[what]

    def proposals_in_flight(self) -> set[str]:
        """Return the ids of proposals with entries that are being written."""
        return {what for what in self.in_flight if not what.startswith(BLOB_PREFIX)}

    # Sockets.

    def enter(self, guest: Guest) -> bool:
        """Add a socket; `False` if its welcome has to wait for the commit of the binding."""
        self.guests[guest] = None
        if self.is_being_bound:
            self.unwelcomed.append(guest)
            return False
        return True

    def leave(self, guest: Guest) -> bool:
        """Remove a socket; `False` if it had left before."""
        if guest not in self.guests:
            return False
        del self.guests[guest]
        return True

    def let_in(self, floor: int, now: int) -> list[Effect]:
        """Welcome the waiting sockets: the binding is committed."""
        waiting = self._take_unwelcomed()
        return [Answer(guest.link, welcome(self.inbox, floor, now)) for guest in waiting]

    def turn_away(self, error: RoomError) -> list[Effect]:
        """Close the waiting sockets: the binding was refused."""
        code, reason = CloseCode.TRY_AGAIN_LATER, "the log cannot be written to"
        effects: list[Effect] = []
        for guest in self._take_unwelcomed():
            effects += [Answer(guest.link, error), Dismiss(guest, code, reason)]
        return effects

    def _take_unwelcomed(self) -> list[Guest]:
        waiting, self.unwelcomed = self.unwelcomed, []
        return [guest for guest in waiting if guest in self.guests]

    # Rate limits.

    def member(self, pseudonym: str, limit: int, window_ms: int) -> SlidingWindow:
        """Return the rate window of one member."""
        if self.members is None:
            self.members = {}
        window = self.members.pop(pseudonym, None) or SlidingWindow(limit, window_ms)
        self.members[pseudonym] = window
        if len(self.members) > _MEMBERS_MAX:
            del self.members[next(iter(self.members))]
        return window

    def window(self, limit: int, window_ms: int, mono_ms: int, now: int) -> SlidingWindow:
        """Return the room's rate window, including times from before a restart."""
        self.skew_ms = now - mono_ms
        if self.accepts is None:
            saved = self.saved_accepts
            if self.inbox is not None:
                saved = saved + self.inbox.saved_accepts
                self.inbox.saved_accepts = []
            times = sorted(min(at, now) - self.skew_ms for at in saved)
            self.accepts = SlidingWindow(limit, window_ms, times)
            self.saved_accepts = []
        return self.accepts

    def accepts_to_save(self, grid_ms: int) -> list[int]:
        """Return the acceptance times for a snapshot, rounded up to the grid."""
        if self.accepts is None:
            times = self.saved_accepts + (self.inbox.saved_accepts if self.inbox else [])
        else:
            times = [at + self.skew_ms for at in self.accepts.times]
        return [-(-at // grid_ms) * grid_ms for at in times]

    def calm_down(self) -> None:
        """Drop the rate windows, which are empty by now."""
        self.accepts = self.members = None


def welcome(inbox: Inbox | None, floor: int, now: int) -> RoomWelcome:
    """Return the head and the oldest position of an inbox, without reading the log."""
    next_seq = floor + 1 if floor > (0 if inbox is None else inbox.head) else 0
    if inbox is None:
        return RoomWelcome(0, 1, next_seq)
    oldest = inbox.oldest
    if inbox.has_stale_oldest(now) and inbox.recent and inbox.recent_first <= oldest:
        alive = (seq for seq, kept in inbox.recent.items() if kept.expires_ms > now)
        oldest = next(alive, inbox.head + 1)
    return RoomWelcome(inbox.head, min(oldest, inbox.head + 1), next_seq)
