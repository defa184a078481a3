"""All rooms and inboxes of the shard: the interface for the server.

`accept` assigns a position to a message and appends it to the log; after the commit it is buffered
in memory, announced to the sockets of its room, and acknowledged to its sender. `read` serves pages
from memory, the log and the archive, in this order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from signalhub.core.effects import Answer, Dismiss, Effect
from signalhub.core.limits.degradations import Degraded
from signalhub.core.rooms import refusals
from signalhub.core.rooms.accept import Acceptance
from signalhub.core.rooms.access import ANYBODY, Access, Requester
from signalhub.core.rooms.directory import RoomDirectory
from signalhub.core.rooms.floor import EntriesLost, floor_after
from signalhub.core.rooms.inbox import Inbox, Messages
from signalhub.core.rooms.read import Pages
from signalhub.core.rooms.room import Windows, welcome
from signalhub.core.rooms.state import RoomStates, every_proposal, find_blob, find_proposal
from signalhub.core.rooms.values import Blob, Deposit, Guest, PutBlob, Read, SendToRoom, Times
from signalhub.wire.errors import RoomError
from signalhub.wire.frames import CloseCode

if TYPE_CHECKING:
    from signalhub.auth.tokens import Authenticator, Claims
    from signalhub.core.erasure import Erasures
    from signalhub.core.limits.quotas import Quotas
    from signalhub.core.log_state import LogState
    from signalhub.core.rooms.accept import PendingMessage
    from signalhub.core.sessions.logins import RefusedLogins
    from signalhub.core.wall_time import WallTime
    from signalhub.counters import RoomTally
    from signalhub.settings.model import RoomsSettings as RoomSettings
    from signalhub.wire.entry import ProposalBody
    from signalhub.wire.room_ids import Names

_MINUTE_MS: Final = 60_000


class Rooms:
    """Handles requests and sockets of rooms. Not thread-safe; used on the hub's loop."""

    def __init__(
        self,
        settings: RoomSettings,
        tally: RoomTally,
        storage: LogState,
        erasures: Erasures,
        quotas: Quotas,
        authenticator: Authenticator | None,
        logins: RefusedLogins,
        wall: WallTime,
    ) -> None:
        self.settings = settings
        self.tally = tally
        self.times = times = Times(settings.timestamps)
        self.directory = directory = RoomDirectory(settings, times, storage, quotas)
        self._wall = wall
        self.access = Access(settings, tally, directory, authenticator, logins, storage, wall)
        self.messages = messages = Messages(settings, times, erasures, directory.dirty)
        self.state = state = RoomStates(settings, tally, times, directory, messages, storage)
        self._acceptance = Acceptance(settings, tally, times, directory, messages, state, storage)
        self._pages = Pages(settings, tally, times, directory, messages, storage)
        self._looks = Windows(settings.state_rate, _MINUTE_MS)
        # Number of sockets in all rooms.
        self.guests = 0
        # When the tokens of sockets end, for those that were opened with one.
        self._token_ends_ms: dict[Guest, float] = {}
        self._next_token_end_ms = math.inf
        # The monotonic clock at the last request.
        self._mono_ms = 0

    def use(self, names: Names) -> None:
        """Set the key that hashes names."""
        self.directory.names = names

    # Requests.

    def identify(
        self, token: str | None, source: str, now: int, mono_ms: int, *, has_inbox: bool
    ) -> Requester:
        """Return who makes a request; raises `RoomError` for an invalid token."""
        self._mono_ms = mono_ms
        return self.access.identify(token, source, now, mono_ms, has_inbox=has_inbox)

    def send(self, request: SendToRoom, now: int) -> list[Effect]:
        """Accept a message for a room. A socket was checked when it entered the room."""
        self._mono_ms = request.mono_ms
        if request.guest is None:
            try:
                self.access.check_room(
                    request.requester, request.room, request.inbox, request.mono_ms
                )
            except RoomError as error:
                return [Answer(request.caller, error, request.message_id)]
        return self._acceptance.send(request, now)

    def deposit(self, request: Deposit, now: int) -> list[Effect]:
        """Accept a message for an inbox only."""
        self._mono_ms = request.mono_ms
        try:
            self.access.check_inbox(
                request.requester, request.inbox, request.mono_ms, is_writing=True
            )
        except RoomError as error:
            return [Answer(request.caller, error, request.message_id)]
        return self._acceptance.deposit(request, now)

    def committed(self, messages: list[PendingMessage], first: int, now: int) -> list[Effect]:
        """Messages are on disk, the first of them at this offset."""
        return self._acceptance.committed(messages, first, now)

    def read(self, request: Read, now: int) -> list[Effect]:
        """Read a page of an inbox."""
        self._mono_ms = request.mono_ms
        try:
            self.access.check_inbox(
                request.requester, request.inbox, request.mono_ms, is_writing=False
            )
            self.access.check_known()
        except RoomError as error:
            return [Answer(request.caller, error)]
        return self._pages.read(request, now)

    def put_blob(self, request: PutBlob, now: int) -> list[Effect]:
        """Write a new version of a blob."""
        try:
            # Its version is not known either.
            self.access.check_known()
        except RoomError as error:
            return [Answer(request.caller, error)]
        return self.state.put(request, now)

    def look(
        self, room: str, inbox: str | None, mono_ms: int, requester: Requester = ANYBODY
    ) -> None:
        """Check and count a request for blobs or proposals; raises `RoomError`.

        Only what is permitted counts, so that nobody uses up what others may ask.
        """
        self._mono_ms = mono_ms
        self.access.check_room(requester, room, inbox, mono_ms)
        self.directory.find(room, inbox)
        name = self.directory.names.room(room)
        wait_ms = self._looks.of(f"{name} {requester.key}").take(mono_ms)
        if wait_ms:
            self.tally.limited += 1
            raise refusals.limited(wait_ms)

    def blob(self, room: str, inbox: str | None, name: str, now: int) -> Blob:
        """Return a blob; raises `RoomError`."""
        self.access.check_known()
        return find_blob(self.directory.find(room, inbox), name)

    def proposals(self, room: str, inbox: str | None, now: int) -> list[ProposalBody]:
        """Return the proposals of a room, oldest first; raises `RoomError`."""
        self.access.check_known()
        return every_proposal(self.directory.find(room, inbox), now)

    def proposal(self, room: str, inbox: str | None, proposal_id: str, now: int) -> ProposalBody:
        """Return one proposal; raises `RoomError`."""
        self.access.check_known()
        return find_proposal(self.directory.find(room, inbox), proposal_id, now)

    # Sockets.

    def join(
        self,
        link: object,
        room_name: str,
        inbox_id: str | None,
        pseudonym: str,
        now: int,
        requester: Requester = ANYBODY,
    ) -> tuple[Guest, list[Effect]]:
        """Add a socket to a room and welcome it; raises `RoomError` if it cannot enter."""
        directory = self.directory
        self.access.check_room(requester, room_name, inbox_id, self._mono_ms)
        self.access.check_known()
        room, effects = directory.open(room_name, inbox_id, requester, now)
        guest = Guest(link, room, pseudonym, requester)
        if requester.claims is not None:
            # A jump of the wall clock does not end it: what is left of its time is fixed here.
            ends_ms = self._wall.own(requester.claims.expires_at_s * 1000)
            self._token_ends_ms[guest] = ends_ms
            self._next_token_end_ms = min(self._next_token_end_ms, ends_ms)
        self.guests += 1
        self.tally.joined += 1
        if not room.enter(guest):
            return guest, effects
        inbox = room.inbox or directory.inboxes.get(directory.default_inbox(room_name))
        return guest, [Answer(link, welcome(inbox, directory.floor, now))]

    def leave(self, guest: Guest, now: int) -> list[Effect]:
        """Remove a socket. May be called more than once."""
        if guest.room.leave(guest):
            self.guests -= 1
            self._token_ends_ms.pop(guest, None)
            self.tally.left += 1
            self.directory.forget_blank(guest.room)
        return []

    def end_matching(self, is_ended: Callable[[Claims], bool], reason: str) -> list[Effect]:
        """Close the sockets whose token matches; `reason` is a sentence for their clients."""
        found = [(guest, guest.requester.claims) for guest in self._token_ends_ms]
        ended = [guest for guest, claims in found if claims is not None and is_ended(claims)]
        return self._turn_out(ended, reason)

    def _turn_out(self, ended: list[Guest], reason: str) -> list[Effect]:
        effects: list[Effect] = []
        for guest in ended:
            del self._token_ends_ms[guest]
            effects.append(Answer(guest.link, refusals.bad_token(reason)))
            effects.append(Dismiss(guest, CloseCode.POLICY_VIOLATION, "unauthorized"))
        return effects

    def _end_tokens(self, now: int) -> list[Effect]:
        if now < self._next_token_end_ms:
            return []
        ended = [guest for guest, ends_ms in self._token_ends_ms.items() if ends_ms <= now]
        effects = self._turn_out(ended, "The token has expired.")
        self._next_token_end_ms = min(self._token_ends_ms.values(), default=math.inf)
        return effects

    # Lifecycle.

    def enter_epoch(self, epoch: int, loss: EntriesLost | None, now: int) -> list[Effect]:
        """The log is in this epoch, after a loss if one is given; call this after `use`."""
        directory = self.directory
        floor = directory.floor
        if loss is not None:
            heads = (one.head for one in directory.inboxes.values())
            versions = (one for room in directory.rooms.values() for one in room.versions.values())
            floor = floor_after(loss, epoch, max([floor, *heads, *versions]))
        return directory.enter_epoch(epoch, floor, now)

    def tick(self, now: int) -> list[Effect]:
        """Run once a second: handle alarms, and remove expired state."""
        self.messages.ids.sweep(now)
        self.messages.buffer.expire(now)
        self.messages.measure(now)
        self._looks.sweep(self._mono_ms)
        self._pages.tick(self._mono_ms)
        self._acceptance.tick(self._mono_ms)
        return [
            *self.access.take_notes(),
            *self._end_tokens(now),
            *self.directory.tick(now),
            *self.state.tick(now),
        ]

    def drain(self) -> list[Effect]:
        """Close all sockets before the hub stops; clients reconnect."""
        return [
            Dismiss(guest, CloseCode.RESTARTING, "the hub is restarting")
            for room in self.directory.rooms.values()
            for guest in room.guests
        ]

    def degradations(self) -> list[Degraded]:
        """Return what an operator should know about rooms."""
        found = []
        if self.messages.is_disk_full:
            found.append(Degraded.ROOMS_DISK_FULL)
        if self.messages.ids.is_dropping:
            found.append(Degraded.ROOM_IDS_DROPPED)
        return found

    def archived_to(self, offset: int) -> None:
        """Everything before this offset is archived."""
        self.messages.archived_to(offset)

    def needed_from(self, now: int) -> int | None:
        """Return the oldest offset with a message that can still be fetched, if any."""
        needed, archived = self.messages.pins.needed_from(now), self.messages.archived
        return needed if needed is None or archived is None else max(needed, archived)

    def erase(self, inbox: Inbox, through: int) -> None:
        """Erase an inbox up to a position, and the proposals of its room."""
        self.messages.erase(inbox, through)
        room = inbox.room
        if room is not None:
            for proposal in list(room.proposals.values()):
                self.state.drop(room, proposal)
