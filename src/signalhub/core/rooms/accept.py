"""How a message gets its position: known already? too fast? then to the log, then to everybody.

Nothing here waits, so what one inbox accepts has one order: in the log, in memory, on the sockets.
Repeats are recognised before anything can refuse them. A repeat of a message that is still on its
way is told its position when that is on disk, like the message itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core.effects import Announce, Answer, Append, Effect, Recall
from signalhub.core.messages.dedup import fingerprint
from signalhub.core.rooms import bind, proposals, refusals, values
from signalhub.core.rooms.inbox import STREAM_EPOCH, Inbox, Kept
from signalhub.core.rooms.read import guarded
from signalhub.core.rooms.room import Room, SlidingWindow
from signalhub.core.rooms.values import ABOUT_PROPOSALS, PROPOSAL, Accepted, Deposit, Send
from signalhub.wire.entry import Control, Entry, Kind, RoomMessage, encode_body
from signalhub.wire.errors import RoomError

if TYPE_CHECKING:
    from signalhub.core.rooms.rooms import Rooms
    from signalhub.wire.errors import Refusal

# So many messages may wait for one look-up on disk.
_QUEUE_MAX: Final = 1_000
# So many pseudonyms of one room are counted; the longest silent are forgotten first.
_MEMBERS_MAX: Final = 1_000


class Waiting(msgspec.Struct):
    """A message that waits until an id was looked up on disk: its own, or one before it."""

    request: Send | Deposit
    key: bytes


def send(rooms: Rooms, request: Send, now: int) -> list[Effect]:
    """A message for a room."""
    rooms.saw(request.mono_ms)
    request.at_ms = now
    return _attempt(rooms, request, now)


def deposit(rooms: Rooms, request: Deposit, now: int) -> list[Effect]:
    """A message for an inbox alone: nobody hears it, and the room's limit does not count it."""
    rooms.saw(request.mono_ms)
    return _attempt(rooms, request, now)


def _attempt(
    rooms: Rooms, request: Send | Deposit, now: int, looked_up: bytes | None = None
) -> list[Effect]:
    """Accept a message, or say why not; the id `looked_up` is known not to be on disk."""
    try:
        if isinstance(request, Send):
            return _send(rooms, request, now, looked_up)
        return _deposit(rooms, request, now, looked_up)
    except RoomError as error:
        return [Answer(request.caller, error, request.message_id)]


def _send(rooms: Rooms, request: Send, now: int, looked_up: bytes | None) -> list[Effect]:
    claimed = bind.claim(rooms, request.room, request.inbox)
    inbox = claimed.inbox
    key = fingerprint(claimed.inbox_name, request.message_id)
    if inbox is not None:
        answer = _known(rooms, inbox, request, key, now, looked_up)
        if answer is not None:
            return answer
    _check_storage(rooms)
    windows = _check_rates(rooms, claimed.room, request)
    _check_cap(rooms, inbox)
    if request.type in ABOUT_PROPOSALS:
        proposals.check(rooms, claimed.room, request, now)
    room, inbox, effects = bind.settle(rooms, claimed, now)
    windows = windows or _windows(rooms, room, request)
    rooms.dirty.add(room)
    rooms.busy.pop(room, None)
    rooms.busy[room] = request.mono_ms
    delivery = Delivery(rooms, inbox, room, request, key, windows)
    # What is deposited later is kept as long.
    inbox.retention_s = _retention_s(rooms, request.room, request.inbox)
    effects.append(delivery.append(now, inbox.retention_s or rooms.settings.retention_s))
    return effects


def _deposit(rooms: Rooms, request: Deposit, now: int, looked_up: bytes | None) -> list[Effect]:
    name = rooms.names.inbox(request.inbox)
    key = fingerprint(name, request.message_id)
    found = rooms.inboxes.get(name)
    if found is not None:
        answer = _known(rooms, found, request, key, now, looked_up)
        if answer is not None:
            return answer
    _check_storage(rooms)
    window = rooms.appends.of(name)
    wait_ms = window.wait_ms(request.mono_ms)
    if wait_ms:
        raise _limited(rooms, wait_ms)
    _check_cap(rooms, found)
    inbox = found or rooms.inbox(name)
    retention_s = _retention_s(rooms, "", request.inbox) or inbox.retention_s
    delivery = Delivery(rooms, inbox, None, request, key, [window])
    return [*rooms.marking(now), delivery.append(now, retention_s or rooms.settings.retention_s)]


# Repeats.


def _known(
    rooms: Rooms,
    inbox: Inbox,
    request: Send | Deposit,
    key: bytes,
    now: int,
    looked_up: bytes | None,
) -> list[Effect] | None:
    """The answer to a message that was accepted before; `None` to a fresh one."""
    pending = inbox.pending.get(request.message_id)
    if pending is not None:
        pending.repeats.append(request)
        rooms.tally.repeats += 1
        rooms.tally.conflicts += pending.request.ciphertext != request.ciphertext
        return []
    ack = rooms.ids.find(key, now)
    if ack is not None:
        kept = inbox.recent.get(ack.seq)
        if kept is not None and b'"ciphertext":"%b"' % request.ciphertext not in kept.json:
            rooms.tally.conflicts += 1
        return _repeat(rooms, request, ack.seq, rooms.shown(ack.at_ms))
    if key == looked_up:
        return None
    seq = rooms.ids.find_unsaved(key)
    if seq:
        return _repeat(rooms, request, seq, None)
    if inbox.queue is not None:
        if len(inbox.queue) >= _QUEUE_MAX:
            raise refusals.busy()
        inbox.queue.append(Waiting(request, key))
        return []
    if not rooms.ids.may_be_on_disk(inbox.since_ms, now):
        return None
    inbox.queue = deque([Waiting(request, key)])
    return [_recall(rooms, inbox, now)]


def _repeat(
    rooms: Rooms, request: Send | Deposit, seq: int, created_ms: int | None
) -> list[Effect]:
    rooms.tally.repeats += 1
    accepted = Accepted(request.message_id, seq, True, created_ms)
    return [Answer(request.caller, accepted, request.message_id)]


def _recall(rooms: Rooms, inbox: Inbox, now: int) -> Recall:
    """Look up the ids of all who wait; whoever comes meanwhile waits for the next time."""
    assert inbox.queue
    keys = [one.key for one in inbox.queue]
    rooms.tally.recalls += len(keys)

    def then(seqs: list[int] | None, now: int) -> list[Effect]:
        queue, inbox.queue = inbox.queue, None
        assert queue
        effects: list[Effect] = []
        for at, key in enumerate(keys):
            request = queue.popleft().request
            recalled = guarded(request.caller, _recalled(rooms, request, key), request.message_id)
            effects += recalled(None if seqs is None else seqs[at], now)
        if queue:
            # Those who came meanwhile.
            inbox.queue = queue
            effects.append(_recall(rooms, inbox, now))
        return effects

    return Recall(keys, rooms.ids.oldest_ms(now), then)


def _recalled(
    rooms: Rooms, request: Send | Deposit, key: bytes
) -> Callable[[int | None, int], list[Effect]]:
    """What to do with a message once its id was looked up."""

    def then(seq: int | None, now: int) -> list[Effect]:
        if seq is None:
            return [Answer(request.caller, refusals.unreadable(), request.message_id)]
        if seq:
            return _repeat(rooms, request, seq, None)
        return _attempt(rooms, request, now, key)

    return then


# What may refuse a fresh message.


def _check_storage(rooms: Rooms) -> None:
    if rooms.hub.storage.fault is not None:
        rooms.tally.refused += 1
        raise refusals.storage()


def _limited(rooms: Rooms, wait_ms: int) -> RoomError:
    rooms.tally.limited += 1
    return refusals.limited(wait_ms)


def _check_rates(rooms: Rooms, room: Room | None, request: Send) -> list[SlidingWindow] | None:
    """The windows a message has to be recorded in; `None` if its room is not made yet."""
    if room is None:
        return None
    windows = _windows(rooms, room, request)
    for window in windows:
        wait_ms = window.wait_ms(request.mono_ms)
        if wait_ms:
            raise _limited(rooms, wait_ms)
    return windows


def _windows(rooms: Rooms, room: Room, request: Send) -> list[SlidingWindow]:
    settings = rooms.settings
    window_ms = int(settings.rate_window_s * 1000)
    # Both clocks as the message found them, though it may have waited for the disk since.
    windows = [room.window(settings.rate, window_ms, request.mono_ms, request.at_ms)]
    if settings.pseudonym_rate and request.pseudonym:
        if room.members is None:
            room.members = {}
        member = room.members.pop(request.pseudonym, None)
        member = member or SlidingWindow(settings.pseudonym_rate, window_ms)
        room.members[request.pseudonym] = member
        if len(room.members) > _MEMBERS_MAX:
            del room.members[next(iter(room.members))]
        windows.append(member)
    return windows


def _check_cap(rooms: Rooms, inbox: Inbox | None) -> None:
    if rooms.archived is None or inbox is None:
        return
    settings = rooms.settings
    if (
        inbox.unarchived_count >= settings.unarchived_max
        or inbox.unarchived_bytes >= settings.unarchived_bytes_max
    ):
        rooms.tally.refused += 1
        rooms.tally.over_cap += 1
        raise refusals.over_cap()


def _retention_s(rooms: Rooms, room_name: str, inbox_id: str | None) -> float | None:
    """How long a message is kept, if a prefix of one of its names says so."""
    best, found = -1, None
    for prefix, retention_s in rooms.settings.retention.items():
        is_match = room_name.startswith(prefix) or (inbox_id or "").startswith(prefix)
        if is_match and len(prefix) > best:
            best, found = len(prefix), retention_s
    return found


class Delivery:
    """A message on its way to the log, and everybody who wants to know."""

    __slots__ = (
        "_began_ms",
        "_body",
        "_inbox",
        "_key",
        "_room",
        "_rooms",
        "_windows",
        "repeats",
        "request",
        "seq",
    )

    _body: RoomMessage

    def __init__(
        self,
        rooms: Rooms,
        inbox: Inbox,
        room: Room | None,
        request: Send | Deposit,
        key: bytes,
        windows: list[SlidingWindow],
    ) -> None:
        for window in windows:
            window.record(request.mono_ms)
        self._windows = windows
        self._key = key
        self._rooms = rooms
        self._inbox = inbox
        self._room = room
        self._began_ms = 0
        self.request = request
        self.repeats: list[Send | Deposit] = []
        self.seq = inbox.assign()
        inbox.pending[request.message_id] = self

    def append(self, now: int, retention_s: float) -> Append:
        """The entry that makes it true."""
        rooms, inbox, request = self._rooms, self._inbox, self.request
        self._began_ms = now
        at_ms = rooms.floored(now)
        if not inbox.since_ms:
            inbox.since_ms = at_ms
        inbox.retention_max_s = max(inbox.retention_max_s, retention_s)
        self._body = RoomMessage(
            request.message_id,
            request.ciphertext,
            rooms.shown(at_ms),
            at_ms + int(retention_s * 1000),
            self._room is None,
            self._control(),
        )
        body = encode_body(self._body)
        entry = Entry(Kind.ROOM_MESSAGE, inbox.name, STREAM_EPOCH, self.seq, at_ms, body)
        return Append(entry, self.committed, self.refused)

    def _control(self) -> Control | None:
        request = self.request
        if self._room is None or not isinstance(request, Send):
            return None
        if request.type not in ABOUT_PROPOSALS:
            return None
        self._room.begun(request.proposal)
        # Who made a proposal is part of it; who else spoke about it is not remembered.
        proposer = request.pseudonym if request.type == PROPOSAL else ""
        return Control(self._room.name, request.type, request.proposal, proposer)

    def committed(self, offset: int, now: int) -> list[Effect]:
        rooms, inbox, body, room = self._rooms, self._inbox, self._body, self._room
        request, seq = self.request, self.seq
        del inbox.pending[request.message_id]
        at_ms = remember(rooms, inbox, body, self._key, seq, offset, self._began_ms)
        alike = values.members(seq, body.message_id, body.ciphertext)
        item = values.page_item(alike, body.created_ms, is_exact=rooms.is_exact)
        rooms.buffer.keep(inbox, Kept(seq, body.message_id, body.expires_ms, item))
        effects: list[Effect] = []
        if room is not None and isinstance(request, Send):
            if body.control is not None:
                room.settled(body.control.proposal)
                proposals.follow(rooms, room, body, at_ms)
            rooms.tally.sent += 1
            if room.guests:
                effects.append(self._announce(room, request, alike))
        else:
            rooms.tally.appended += 1
        rooms.tally.accept_latency.observe((now - self._began_ms) / 1000)
        accepted = Accepted(body.message_id, seq, False, rooms.shown(at_ms))
        effects.append(Answer(request.caller, accepted, body.message_id))
        if self.repeats:
            again = Accepted(body.message_id, seq, True, rooms.shown(at_ms))
            effects += [Answer(one.caller, again, body.message_id) for one in self.repeats]
        return effects

    def _announce(self, room: Room, request: Send, alike: bytes) -> Announce:
        rooms = self._rooms
        but = None if rooms.settings.echo_to_sender else request.guest
        rooms.tally.announced += len(room.guests) - (but is not None)
        return Announce(tuple(room.guests), values.live_frame(alike, request), but)

    def refused(self, refusal: Refusal, now: int) -> list[Effect]:
        """It did not happen: the position is free again, and so is its place in the window."""
        rooms, inbox, room = self._rooms, self._inbox, self._room
        inbox.pending.pop(self.request.message_id, None)
        inbox.take_back(self.seq)
        if inbox.head == 0 and self.seq == 1:
            inbox.since_ms = 0
        for window in self._windows:
            window.take_back()
        if room is not None and self._body.control is not None:
            room.settled(self._body.control.proposal)
        rooms.forget_blank(inbox)
        rooms.tally.refused += 1 + len(self.repeats)
        error = refusals.storage()
        return [Answer(one.caller, error, one.message_id) for one in (self.request, *self.repeats)]


def remember(
    rooms: Rooms,
    inbox: Inbox,
    body: RoomMessage,
    key: bytes,
    seq: int,
    offset: int,
    now: int,
) -> int:
    """A message is on disk: its position counts and its id is known. The time of its entry."""
    inbox.committed(seq, offset, body.expires_ms)
    rooms.dirty.add(inbox)
    rooms.pins.add(offset, body.expires_ms)
    at_ms = rooms.floored(now)
    rooms.ids.remember(key, seq, now, at_ms)
    if rooms.archived is not None and offset >= rooms.archived:
        inbox.count_unarchived(offset, len(body.ciphertext))
        rooms.waiting.add(inbox)
    return at_ms
