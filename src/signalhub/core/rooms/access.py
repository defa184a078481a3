"""Who may use a room.

With authentication a request needs a token whose permission `rooms` covers the clear name of the
room, or the capability of the room: the id of its inbox. An id that follows from a name is none,
because everybody can compute it. A capability opens what exists; to create a room or an inbox, and
so to decide what its capability is, a token is needed. Otherwise a stranger could take a name
first, and read what those write who know only the name.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.auth.permissions import Allowance
from signalhub.core.rooms import refusals
from signalhub.wire.authority import source_of
from signalhub.wire.errors import Refusal, RoomError
from signalhub.wire.room_ids import CAPABILITY_CHARS

if TYPE_CHECKING:
    from signalhub.auth.tokens import Authenticator, Claims
    from signalhub.core.effects import Effect
    from signalhub.core.log_state import LogState
    from signalhub.core.rooms.directory import RoomDirectory
    from signalhub.core.sessions.logins import RefusedLogins
    from signalhub.core.wall_time import WallTime
    from signalhub.counters import RoomTally
    from signalhub.settings.model import RoomsSettings as RoomSettings

_MINUTE_MS: Final = 60_000
# Addresses that are counted separately; all others share one count.
_SOURCES_MAX: Final = 10_000
_OTHERS: Final = ""
_TOKENS_MAX: Final = 512


class Requester(msgspec.Struct, frozen=True):
    """Who makes a request: an address, and what its token says if it has one."""

    source: str = ""
    claims: Claims | None = None
    allowance: Allowance | None = None

    @property
    def key(self) -> str:
        """What limits are counted by: who the token was made for, or else the address."""
        return self.source if self.claims is None else f"token {self.claims.subject}"


# Whoever asks a hub that does not check.
ANYBODY: Final = Requester()


@lru_cache(maxsize=4_096)
def _stranger(address: str) -> Requester:
    """Whoever asks from this address without a token."""
    return Requester(source_of(address))


class _Verified(msgspec.Struct, frozen=True):
    """A token that was verified, and when."""

    claims: Claims
    allowance: Allowance
    at_s: float


class VerifiedTokens:
    """Remembers the tokens verified last, because checking a signature takes long.

    A token is remembered by its digest. What can change is checked every time: the denial list, the
    expiry, the key set, and the clock, which may have been set back to before the token was valid.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, _Verified] = {}  # The longest unused first.
        self._key_sets_used = 0

    def __len__(self) -> int:
        return len(self._known)

    def verified(self, token: str, authenticator: Authenticator, now_s: float) -> _Verified:
        """Return what a token says; raises `Refusal` for one that is not valid now."""
        if self._key_sets_used != authenticator.key_sets_used:
            self._known.clear()
            self._key_sets_used = authenticator.key_sets_used
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        found = self._known.pop(digest, None)
        if found is None or not _still_holds(found, authenticator, now_s):
            # A token that is refused now is not remembered; the refusal says why.
            claims = authenticator.verify(token, now_s)
            allowance = Allowance(claims.actor, claims.permissions, claims.subject)
            found = _Verified(claims, allowance, now_s)
            if len(self._known) >= _TOKENS_MAX:
                del self._known[next(iter(self._known))]
        self._known[digest] = found
        return found


def _still_holds(verified: _Verified, authenticator: Authenticator, now_s: float) -> bool:
    claims = verified.claims
    is_timely = verified.at_s <= now_s < claims.expires_at_s
    return is_timely and not authenticator.is_denied(claims, now_s)


class Access:
    """Decides about requests, and counts the refused ones."""

    def __init__(
        self,
        settings: RoomSettings,
        tally: RoomTally,
        directory: RoomDirectory,
        authenticator: Authenticator | None,
        logins: RefusedLogins,
        storage: LogState,
        wall: WallTime,
    ) -> None:
        self._is_blind = settings.mode == "blind"
        self._is_required = settings.require_capability is True
        self._tally = tally
        self._directory = directory
        self._authenticator = None if settings.public else authenticator
        self._logins = logins
        self._storage = storage
        self._wall = wall
        self._attempts = RefusedAttempts(settings.refused_rate)
        self._tokens = VerifiedTokens()
        # Lines for the log, written once a second.
        self._notes: list[Effect] = []

    def identify(
        self, token: str | None, address: str, now: int, mono_ms: int, *, has_inbox: bool
    ) -> Requester:
        """Return who asks; raises `RoomError` for an invalid token, or if nothing is presented."""
        stranger = _stranger(address)
        if self._authenticator is None:
            return stranger
        source = stranger.source
        if token is None:
            if not has_inbox and not self._is_blind:
                raise self._refused(source, refusals.unauthorized(), mono_ms)
            return stranger
        now_s = self._wall.shown(now) / 1000
        try:
            verified = self._tokens.verified(token, self._authenticator, now_s)
        except Refusal as refusal:
            self._notes += self._logins.refused(address, "rooms", refusal.message, now)
            raise self._refused(source, refusals.bad_token(refusal.message), mono_ms) from None
        return Requester(source, verified.claims, verified.allowance)

    def take_notes(self) -> list[Effect]:
        """What is to be logged about refused tokens since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def check_room(
        self, requester: Requester, room_name: str, inbox_id: str | None, mono_ms: int
    ) -> None:
        """Raise `RoomError` unless the requester may use the room."""
        if self._authenticator is None or self._opens(room_name, inbox_id):
            return
        is_capability = inbox_id is not None and self._room_behind(inbox_id) is None
        if is_capability:
            self.check_known()
        self._check_token(requester, room_name, mono_ms)
        if self._is_required and not is_capability:
            raise self._refused(requester.source, refusals.capability_missing(), mono_ms)

    def check_inbox(
        self, requester: Requester, inbox_id: str, mono_ms: int, *, is_writing: bool
    ) -> None:
        """Raise `RoomError` unless the requester may use the inbox.

        Reading an inbox that does not exist looks like reading an empty one.
        """
        if self._authenticator is None:
            return
        room_name = self._room_behind(inbox_id)
        if room_name is None:
            is_known = self._directory.names.inbox(inbox_id) in self._directory.inboxes
            if is_known or not is_writing:
                return
            self.check_known()
            self._check_token(requester, inbox_id, mono_ms)
            return
        self._check_token(requester, room_name, mono_ms)
        if self._is_required:
            raise self._refused(requester.source, refusals.capability_missing(), mono_ms)

    def check_known(self) -> None:
        """Raise `RoomError` if what is asked for could lie behind damage of the log."""
        if self._storage.gap is not None:
            raise refusals.damaged()

    def _check_token(self, requester: Requester, room_name: str, mono_ms: int) -> None:
        if requester.allowance is None:
            raise self._refused(requester.source, refusals.unauthorized(), mono_ms)
        if not requester.allowance.may_use_room(room_name):
            raise self._refused(requester.source, refusals.forbidden(), mono_ms)

    def _opens(self, room_name: str, inbox_id: str | None) -> bool:
        """Is this the capability of the room?"""
        directory = self._directory
        if self._is_blind and inbox_id is None:
            inbox_id = room_name
        if inbox_id is None or self._room_behind(inbox_id) is not None:
            return False
        room = directory.rooms.get(directory.names.room(room_name))
        name = directory.names.inbox(inbox_id)
        if room is None or room.inbox is None:
            # On a blind hub, an inbox that was only appended to has no room yet.
            return self._is_blind and inbox_id == room_name and name in directory.inboxes
        return hmac.compare_digest(room.inbox.name, name)

    def _room_behind(self, inbox_id: str) -> str | None:
        """Return the room whose name everybody can compute this id from; `None` if there is none.

        A blind hub uses ids as names, so there an id is secret only if it is long enough.
        """
        if self._is_blind and len(inbox_id) != CAPABILITY_CHARS:
            return self._directory.owner_of(inbox_id) or inbox_id
        return self._directory.owner_of(inbox_id)

    def _refused(self, source: str, error: RoomError, mono_ms: int) -> RoomError:
        """Count a refusal; return the error to answer with."""
        self._tally.denied += 1
        wait_ms = self._attempts.count(source, mono_ms)
        return refusals.limited(wait_ms) if wait_ms else error


class RefusedAttempts:
    """Counts refused requests by address, minute by minute, in bounded memory."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._began_ms = -_MINUTE_MS
        self._counts: dict[str, int] = {}

    def count(self, source: str, mono_ms: int) -> int:
        """Count one; return how long its source should wait, 0 while it is below the limit."""
        if mono_ms >= self._began_ms + _MINUTE_MS:
            self._began_ms = mono_ms
            self._counts.clear()
        counts = self._counts
        if source not in counts and len(counts) >= _SOURCES_MAX:
            source = _OTHERS
        counts[source] = count = counts.get(source, 0) + 1
        return 0 if count <= self._rate else max(1, self._began_ms + _MINUTE_MS - mono_ms)
