"""All rooms and inboxes of the shard: the face the server uses, and the parts behind it.

A message goes one way: `accept` gives it a position and hands it to the log; once it is committed
it is kept in memory, handed to the sockets of its room, and its sender is told. `read` serves pages
from memory, the log and the archive, in this order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from signalhub.core.effects import Answer, Dismiss, Effect
from signalhub.core.rooms import refusals
from signalhub.core.rooms.accept import Acceptance
from signalhub.core.rooms.directory import RoomDirectory
from signalhub.core.rooms.inbox import Inbox, Messages
from signalhub.core.rooms.read import Pages
from signalhub.core.rooms.room import Windows, welcome
from signalhub.core.rooms.state import RoomStates, every_proposal, find_blob, find_proposal
from signalhub.core.rooms.values import Blob, Deposit, Guest, PutBlob, Read, SendToRoom, Times

if TYPE_CHECKING:
    from signalhub.core.erasure import Erasures
    from signalhub.core.storage import LogState
    from signalhub.counters import RoomTally
    from signalhub.settings.model import RoomsSettings as RoomSettings
    from signalhub.wire.entry import ProposalBody
    from signalhub.wire.room_ids import Names

_MINUTE_MS: Final = 60_000
RESTARTING: Final = 1012
_SET_BACK_MS: Final = 5_000


class Rooms:
    """Everything about rooms and inboxes. Not thread-safe; the hub's loop owns it."""

    def __init__(
        self, settings: RoomSettings, tally: RoomTally, storage: LogState, erasures: Erasures
    ) -> None:
        self.settings = settings
        self.tally = tally
        self.times = times = Times(settings.timestamps)
        self.directory = directory = RoomDirectory(settings, times, storage)
        self.messages = messages = Messages(settings, times, erasures, directory.dirty)
        self.state = state = RoomStates(settings, tally, times, directory, storage)
        self._acceptance = Acceptance(settings, tally, times, directory, messages, state, storage)
        self._pages = Pages(settings, tally, times, directory, messages)
        self._looks = Windows(settings.state_rate, _MINUTE_MS)
        # Sockets in all rooms.
        self.guests = 0
        # The clock that never goes back, as the last request brought it.
        self._mono_ms = 0
        self._ticked_ms = 0

    def use(self, names: Names) -> None:
        """Serve with this key from now on."""
        self.directory.names = names

    # Requests.

    def send(self, request: SendToRoom, now: int) -> list[Effect]:
        """A message for a room."""
        self._mono_ms = request.mono_ms
        return self._acceptance.send(request, now)

    def deposit(self, request: Deposit, now: int) -> list[Effect]:
        """A message for an inbox alone."""
        self._mono_ms = request.mono_ms
        return self._acceptance.deposit(request, now)

    def read(self, request: Read, now: int) -> list[Effect]:
        """A page of an inbox."""
        self._mono_ms = request.mono_ms
        return self._pages.read(request, now)

    def put_blob(self, request: PutBlob, now: int) -> list[Effect]:
        """A new version of a blob."""
        return self.state.put(request, now)

    def look(self, room: str, mono_ms: int) -> None:
        """Somebody asks what a room remembers; raises `RoomError` if that is too often."""
        self._mono_ms = mono_ms
        wait_ms = self._looks.of(self.directory.names.room(room)).take(mono_ms)
        if wait_ms:
            self.tally.limited += 1
            raise refusals.limited(wait_ms)

    def blob(self, room: str, inbox: str | None, name: str, now: int) -> Blob:
        """A blob as it is; raises `RoomError`."""
        return find_blob(self.directory.find(room, inbox), name)

    def proposals(self, room: str, inbox: str | None, now: int) -> list[ProposalBody]:
        """What a room remembers of proposals, oldest first; raises `RoomError`."""
        return every_proposal(self.directory.find(room, inbox), now)

    def proposal(self, room: str, inbox: str | None, proposal_id: str, now: int) -> ProposalBody:
        """One of them; raises `RoomError`."""
        return find_proposal(self.directory.find(room, inbox), proposal_id, now)

    # Sockets.

    def join(
        self, link: object, room_name: str, inbox_id: str | None, pseudonym: str, now: int
    ) -> tuple[Guest, list[Effect]]:
        """A socket enters a room and is welcomed; raises `RoomError`, and then it has not."""
        directory = self.directory
        room, effects = directory.open(room_name, inbox_id, now)
        guest = Guest(link, room, pseudonym)
        self.guests += 1
        self.tally.joined += 1
        if not room.enter(guest):
            return guest, effects
        inbox = room.inbox or directory.inboxes.get(directory.default_inbox(room_name))
        return guest, [Answer(link, welcome(inbox, now))]

    def leave(self, guest: Guest, now: int) -> list[Effect]:
        """A socket is gone. Harmless when repeated."""
        if guest.room.leave(guest):
            self.guests -= 1
            self.tally.left += 1
            self.directory.forget_blank(guest.room)
        return []

    # Time and life cycle.

    def tick(self, now: int) -> list[Effect]:
        """Once a second: alarms, and letting go of what nobody will ask for."""
        if now < self._ticked_ms - _SET_BACK_MS:
            self._clock_was_set_back()
        self._ticked_ms = now
        self.messages.ids.sweep(now)
        self.messages.buffer.expire(now)
        self._looks.sweep(self._mono_ms)
        self._pages.tick(self._mono_ms)
        self._acceptance.tick(self._mono_ms)
        return self.state.tick(now)

    def _clock_was_set_back(self) -> None:
        for inbox in self.directory.inboxes.values():
            inbox.seek_oldest()
            self.directory.dirty.add(inbox)

    def drain(self) -> list[Effect]:
        """The hub stops: everybody is told to come back."""
        return [
            Dismiss(guest, RESTARTING, "the hub is restarting")
            for room in self.directory.rooms.values()
            for guest in room.guests
        ]

    def archived_to(self, offset: int) -> None:
        """The archive has everything before this offset."""
        self.messages.archived_to(offset)

    def needed_from(self, now: int) -> int | None:
        """The oldest offset that holds a message somebody may still fetch; `None` if none does."""
        needed, archived = self.messages.pins.needed_from(now), self.messages.archived
        return needed if needed is None or archived is None else max(needed, archived)

    def erase(self, inbox: Inbox, through: int) -> None:
        """Nothing of an inbox up to a position is read again, nor what its room made of it."""
        self.messages.erase(inbox, through)
        room = inbox.room
        if room is not None:
            for proposal in list(room.proposals.values()):
                self.state.drop(room, proposal)
