"""One room: who is in it, how fast it may be filled, what it remembers beside its inbox."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from signalhub.core.effects import Answer, Dismiss, Effect
from signalhub.core.rooms import refusals
from signalhub.core.rooms.values import Guest, RoomWelcome
from signalhub.wire.entry import ProposalBody, RoomBlobBody

if TYPE_CHECKING:
    from signalhub.core.rooms.inbox import Inbox

TRY_AGAIN_LATER: Final = 1013
# So many pseudonyms of one room are counted; the longest silent are forgotten first.
_MEMBERS_MAX: Final = 1_000

# Who has not been seen for a window needs no record; beyond this many the longest unseen go first.
_WINDOWS_MAX: Final = 50_000
_SWEPT: Final = 1_000


class SlidingWindow:
    """The times of what was accepted within the last `window_ms`."""

    __slots__ = ("_limit", "_window_ms", "times")

    def __init__(self, limit: int, window_ms: int, times: Iterable[int] = ()) -> None:
        self._limit = limit
        self._window_ms = window_ms
        self.times = deque(times)

    def wait_ms(self, now: int) -> int:
        """How long until one more fits; 0 if it does."""
        times, oldest = self.times, now - self._window_ms
        while times and times[0] <= oldest:
            times.popleft()
        if len(times) < self._limit:
            return 0
        return max(1, times[0] + self._window_ms - now)

    def record(self, now: int) -> None:
        """One was accepted."""
        self.times.append(now)

    def take_back(self) -> None:
        """The newest one did not happen after all."""
        if self.times:
            self.times.pop()

    def take(self, now: int) -> int:
        """Record one if it fits; otherwise how long it has to wait."""
        wait_ms = self.wait_ms(now)
        if not wait_ms:
            self.times.append(now)
        return wait_ms


class Windows:
    """Windows by name, forgotten when nothing is in them."""

    def __init__(self, limit: int, window_ms: int) -> None:
        self._limit = limit
        self._window_ms = window_ms
        # The longest unused first.
        self._windows: OrderedDict[str, SlidingWindow] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def of(self, name: str) -> SlidingWindow:
        """The window of this name."""
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = SlidingWindow(self._limit, self._window_ms)
            if len(self._windows) > _WINDOWS_MAX:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(name)
        return window

    def sweep(self, now: int) -> None:
        """Forget some of those that are empty by now."""
        for _ in range(min(_SWEPT, len(self._windows))):
            name, window = next(iter(self._windows.items()))
            if window.times and window.times[-1] > now - self._window_ms:
                return
            del self._windows[name]


# No proposal can be called so: its id has no space.
BLOB_PREFIX: Final = "blob "


class Room:
    """What is known about one room."""

    __slots__ = (
        "accepts",
        "blobs",
        "defined_at",
        "guests",
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
        self.inbox: Inbox | None = None
        # Is the binding on disk? Until then it is in no snapshot.
        self.is_bound = False
        self.guests: dict[Guest, None] = {}
        # Those of them who wait until the binding is on disk.
        self.unwelcomed: list[Guest] = []
        # When messages were accepted, by the clock that never goes back; made with the first one.
        self.accepts: SlidingWindow | None = None
        # The same by the wall clock, from before a restart.
        self.saved_accepts: list[int] = []
        # Wall clock minus the other one.
        self.skew_ms = 0
        self.members: dict[str, SlidingWindow] | None = None
        self.proposals: dict[str, ProposalBody] = {}
        self.blobs: dict[str, RoomBlobBody] = {}
        # The versions of blobs, ahead of these while a new one is on its way.
        self.versions: dict[str, int] = {}
        # Proposals and blobs that something on its way to the log is about, and how much.
        self.in_flight: dict[str, int] = {}
        # An offset of the log from which on everything about it is found; below 0: nothing is.
        self.defined_at = -1

    @property
    def is_being_bound(self) -> bool:
        """Is its binding on its way to the log?"""
        return self.inbox is not None and not self.is_bound

    @property
    def is_blank(self) -> bool:
        """Would forgetting it lose nothing?"""
        return not (self.inbox or self.guests or self.proposals or self.blobs or self.versions)

    def bind(self, inbox: Inbox) -> None:
        """They belong together."""
        self.inbox = inbox
        inbox.room = self

    def unbind(self) -> None:
        """They do not after all: the log has refused it."""
        if self.inbox is not None:
            self.inbox.room = None
        self.inbox = None

    def defined(self, offset: int) -> None:
        """Something about it was written there."""
        if self.defined_at < 0:
            self.defined_at = offset

    def begun(self, what: str) -> None:
        """Something about a proposal or blob is on its way to the log."""
        self.in_flight[what] = self.in_flight.get(what, 0) + 1

    def settled(self, what: str) -> None:
        """It is on disk, or was refused."""
        self.in_flight[what] -= 1
        if not self.in_flight[what]:
            del self.in_flight[what]

    def proposals_in_flight(self) -> set[str]:
        """The proposals that something on its way is about."""
        return {what for what in self.in_flight if not what.startswith(BLOB_PREFIX)}

    # Who is in it.

    def enter(self, guest: Guest) -> bool:
        """A socket comes in; is it welcome at once, or when the binding is on disk?"""
        self.guests[guest] = None
        if self.is_being_bound:
            self.unwelcomed.append(guest)
            return False
        return True

    def leave(self, guest: Guest) -> bool:
        """A socket goes; `False` if it had before."""
        if guest not in self.guests:
            return False
        del self.guests[guest]
        return True

    def let_in(self, now: int) -> list[Effect]:
        """It is bound: those who waited for that are welcome."""
        return [Answer(guest.link, welcome(self.inbox, now)) for guest in self._take_unwelcomed()]

    def turn_away(self) -> list[Effect]:
        """It could not be bound: those who waited for that shall try again."""
        effects: list[Effect] = []
        for guest in self._take_unwelcomed():
            effects.append(Answer(guest.link, refusals.storage()))
            effects.append(Dismiss(guest, TRY_AGAIN_LATER, "the log takes nothing"))
        return effects

    def _take_unwelcomed(self) -> list[Guest]:
        waiting, self.unwelcomed = self.unwelcomed, []
        return [guest for guest in waiting if guest in self.guests]

    # How fast it may be filled.

    def member(self, pseudonym: str, limit: int, window_ms: int) -> SlidingWindow:
        """The limiter of one member."""
        if self.members is None:
            self.members = {}
        window = self.members.pop(pseudonym, None) or SlidingWindow(limit, window_ms)
        self.members[pseudonym] = window
        if len(self.members) > _MEMBERS_MAX:
            del self.members[next(iter(self.members))]
        return window

    def window(self, limit: int, window_ms: int, mono_ms: int, now: int) -> SlidingWindow:
        """Its limiter, with what is remembered from before a restart."""
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
        """When messages were accepted: no more exactly than times may be kept, and never early."""
        if self.accepts is None:
            times = self.saved_accepts + (self.inbox.saved_accepts if self.inbox else [])
        else:
            times = [at + self.skew_ms for at in self.accepts.times]
        return [-(-at // grid_ms) * grid_ms for at in times]

    def calm_down(self) -> None:
        """Nothing was accepted for so long that nothing is in its windows."""
        self.accepts = self.members = None


def welcome(inbox: Inbox | None, now: int) -> RoomWelcome:
    """Where an inbox stands, as far as it is known without reading the log."""
    if inbox is None:
        return RoomWelcome(0, 1)
    oldest = inbox.oldest
    if inbox.has_stale_oldest(now) and inbox.recent and inbox.recent_first <= oldest:
        alive = (seq for seq, kept in inbox.recent.items() if kept.expires_ms > now)
        oldest = next(alive, inbox.head + 1)
    return RoomWelcome(inbox.head, min(oldest, inbox.head + 1))
