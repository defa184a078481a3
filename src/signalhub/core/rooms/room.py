"""One room: who is in it, how fast it may be filled, what it remembers beside its inbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from signalhub.core.rooms.limiter import SlidingWindow
from signalhub.entry import Proposal, RoomBlob

if TYPE_CHECKING:
    from signalhub.core.rooms.inbox import Inbox
    from signalhub.core.rooms.requests import Guest

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
        self.proposals: dict[str, Proposal] = {}
        self.blobs: dict[str, RoomBlob] = {}
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
