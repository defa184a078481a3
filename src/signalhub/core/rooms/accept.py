"""Accept messages: detect repeats, apply rate limits, assign a position, append to the log.

Nothing here waits, so an inbox has one order in the log, in memory and on the sockets. Repeats are
detected before any check that could refuse them. A repeat of a message that is still being written
is answered when the message is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core.effects import (
    Announce,
    Answer,
    AppendMessage,
    Effect,
    Note,
    Recall,
)
from signalhub.core.messages.dedup import Recalled, fingerprint
from signalhub.core.rooms import refusals, values
from signalhub.core.rooms.inbox import STREAM_EPOCH, Inbox, KeptMessage, Messages, size_in_log
from signalhub.core.rooms.read import guarded
from signalhub.core.rooms.room import Room, SlidingWindow, Windows
from signalhub.core.rooms.values import (
    ABOUT_PROPOSALS,
    PROPOSAL,
    Accepted,
    Deposit,
    SendToRoom,
    Times,
)
from signalhub.wire.entry import Entry, Kind, RoomEffect, RoomMessageBody, encode_body
from signalhub.wire.errors import RoomError, unworded
from signalhub.wire.room_ids import is_other_content

if TYPE_CHECKING:
    from signalhub.core.log_state import LogState
    from signalhub.core.rooms.directory import RoomDirectory
    from signalhub.core.rooms.state import RoomStates
    from signalhub.counters import RoomTally
    from signalhub.settings.model import RoomsSettings as RoomSettings
    from signalhub.wire.errors import Refusal

_MINUTE_MS: Final = 60_000
# Limit of messages per inbox that wait for a look-up on disk.
_QUEUE_MAX: Final = 1_000
_ROOM_MESSAGE: Final = Kind.ROOM_MESSAGE


class WaitingMessage(msgspec.Struct):
    """A message that waits for the look-up of its id, or of an earlier message's id, on disk."""

    request: SendToRoom | Deposit
    key: bytes


class Acceptance:
    """Accepts messages for rooms and inboxes."""

    def __init__(
        self,
        settings: RoomSettings,
        tally: RoomTally,
        times: Times,
        directory: RoomDirectory,
        messages: Messages,
        state: RoomStates,
        storage: LogState,
    ) -> None:
        self.settings = settings
        self.tally = tally
        self.times = times
        self.directory = directory
        self.messages = messages
        self.state = state
        self._storage = storage
        self._window_ms = int(settings.rate_window_s * 1000)
        self._appends = Windows(settings.append_rate, _MINUTE_MS)
        # Rooms with non-empty rate windows and the time of their last message, oldest first.
        self._busy: dict[Room, int] = {}
        # Ids whose outcome is unknown since the log failed: one batch at most.
        self.doubtful: set[bytes] = set()

    def send(self, request: SendToRoom, now: int) -> list[Effect]:
        """Accept a message for a room."""
        request.at_ms = now
        try:
            return self._send(request, now, None)
        except RoomError as error:
            return [Answer(request.caller, error, request.message_id)]

    def deposit(self, request: Deposit, now: int) -> list[Effect]:
        """Accept a message for an inbox only: not announced, not counted by the room's limit."""
        return self._attempt(request, now)

    def committed(self, messages: list[PendingMessage], first: int, now: int) -> list[Effect]:
        """Messages are on disk, the first of them at this offset."""
        effects: list[Effect] = []
        ids = self.messages.ids
        known: dict[bytes, Recalled] = {}
        began_ms = messages[0].began_ms
        for offset, message in enumerate(messages, first):
            if message.began_ms != began_ms:
                ids.remember_all(known, began_ms, self.times.floored(began_ms))
                known, began_ms = {}, message.began_ms
            try:
                message.follow(offset, now, effects)
            except Exception as error:
                # The others must still be handled.
                told = Note("a committed message could not be handled", {}, unworded(error))
                effects.append(told)
            known[message.key] = Recalled(message.seq, message.digest)
        ids.remember_all(known, began_ms, self.times.floored(began_ms))
        return effects

    def tick(self, mono_ms: int) -> None:
        """Drop the rate windows of rooms and inboxes without recent messages."""
        self._appends.sweep(mono_ms)
        silent_ms = mono_ms - self._window_ms
        # Taken together: finding the first of a dict means to go past all that were deleted.
        silent = list(takewhile(lambda room: self._busy[room] <= silent_ms, self._busy))
        for room in silent:
            del self._busy[room]
            if room.inbox is not None and room.inbox.queue is not None:
                # Its queued messages have not been counted yet, so keep its windows.
                self._busy[room] = mono_ms
                continue
            room.calm_down()
            if self.directory.rooms.get(room.name) is room:
                self.directory.dirty.add(room)

    def _attempt(
        self, request: SendToRoom | Deposit, now: int, looked_up: bytes | None = None
    ) -> list[Effect]:
        """Accept a message or answer with an error; the id `looked_up` is not on disk."""
        try:
            if isinstance(request, SendToRoom):
                return self._send(request, now, looked_up)
            return self._deposit(request, now, looked_up)
        except RoomError as error:
            return [Answer(request.caller, error, request.message_id)]

    def _send(self, request: SendToRoom, now: int, looked_up: bytes | None) -> list[Effect]:
        directory = self.directory
        claimed = directory.claim(request.room, request.inbox)
        inbox = claimed.inbox
        key = fingerprint(claimed.inbox_name, request.message_id)
        if inbox is not None:
            answer = self._known(inbox, request, key, now, looked_up)
            if answer is not None:
                return answer
        self._check_log(key)
        windows = None
        if claimed.room is not None:
            windows = self._windows(claimed.room, request)
            for window in windows:
                wait_ms = window.wait_ms(request.mono_ms)
                if wait_ms:
                    raise self._limited(wait_ms)
        if self.messages.archived is not None:
            self._check_cap(inbox)
        if request.type in ABOUT_PROPOSALS:
            self.state.check(claimed.room, request, now)
        room, inbox, effects = directory.bind(claimed, request.requester, now)
        windows = windows or self._windows(room, request)
        directory.dirty.add(room)
        self._busy.pop(room, None)
        self._busy[room] = request.mono_ms
        delivery = PendingMessage(self, inbox, room, request, key, windows)
        # Later deposits are kept for the same time.
        inbox.retention_s = retention_s = self._retention_s(request.room, request.inbox)
        effects.append(delivery.append(now, retention_s or self.settings.retention_s))
        return effects

    def _deposit(self, request: Deposit, now: int, looked_up: bytes | None) -> list[Effect]:
        directory = self.directory
        name = directory.names.inbox(request.inbox)
        key = fingerprint(name, request.message_id)
        found = directory.inboxes.get(name)
        if found is not None:
            answer = self._known(found, request, key, now, looked_up)
            if answer is not None:
                return answer
        self._check_log(key)
        window = self._appends.of(f"{name} {request.requester.key}")
        wait_ms = window.wait_ms(request.mono_ms)
        if wait_ms:
            raise self._limited(wait_ms)
        if self.messages.archived is not None:
            self._check_cap(found)
        inbox = found or directory.inbox(name, request.requester)
        retention_s = self._retention_s("", request.inbox) or inbox.retention_s
        delivery = PendingMessage(self, inbox, None, request, key, [window])
        append = delivery.append(now, retention_s or self.settings.retention_s)
        return [*directory.mark_key(now), append]

    # Repeats.

    def _known(
        self,
        inbox: Inbox,
        request: SendToRoom | Deposit,
        key: bytes,
        now: int,
        looked_up: bytes | None,
    ) -> list[Effect] | None:
        """Answer a repeat, or queue the message for a look-up; `None` if it is new."""
        ids = self.messages.ids
        pending = inbox.pending.get(request.message_id)
        if pending is not None:
            if is_other_content(pending.digest, self.digest_of(request)):
                raise self._conflict()
            pending.repeats.append(request)
            self.tally.repeats += 1
            return []
        ack = ids.find(key, now)
        if ack is not None:
            known = Recalled(ack.seq, ack.stream)
            return self._repeat(request, known, self.times.shown(ack.at_ms))
        if key == looked_up or (ids.is_whole and inbox.queue is None):
            return None
        unsaved = ids.find_unsaved(key)
        if unsaved is not None:
            return self._repeat(request, unsaved, None)
        if inbox.queue is not None:
            if len(inbox.queue) >= _QUEUE_MAX:
                raise refusals.busy()
            inbox.queue.append(WaitingMessage(request, key))
            return []
        if not ids.may_be_on_disk(inbox.since_ms, now):
            return None
        inbox.queue = deque([WaitingMessage(request, key)])
        return [self._recall(inbox, now)]

    def digest_of(self, request: SendToRoom | Deposit) -> int:
        """Return a digest of what makes a message this one: its ciphertext and its sender."""
        pseudonym = request.pseudonym if isinstance(request, SendToRoom) else ""
        return self.directory.names.content(pseudonym, request.ciphertext)

    def _conflict(self) -> RoomError:
        self.tally.conflicts += 1
        return refusals.reused_id()

    def _repeat(
        self, request: SendToRoom | Deposit, known: Recalled, created_ms: int | None
    ) -> list[Effect]:
        """Answer a repeat; raises `RoomError` if it has other content than the first message."""
        if known.digest and is_other_content(known.digest, self.digest_of(request)):
            raise self._conflict()
        self.tally.repeats += 1
        accepted = Accepted(request.message_id, known.seq, True, created_ms)
        return [Answer(request.caller, accepted, request.message_id)]

    def _recall(self, inbox: Inbox, now: int) -> Recall:
        """Look up the ids of all queued messages; later arrivals wait for the next look-up."""
        assert inbox.queue
        keys = [one.key for one in inbox.queue]
        self.tally.recalls += len(keys)

        def then(found: list[Recalled] | None, now: int) -> list[Effect]:
            queue, inbox.queue = inbox.queue, None
            assert queue
            effects: list[Effect] = []
            for at, key in enumerate(keys):
                request = queue.popleft().request
                recalled = guarded(request.caller, self._recalled(request, key), request.message_id)
                effects += recalled(None if found is None else found[at], now)
            if queue:
                # These arrived during the look-up.
                inbox.queue = queue
                effects.append(self._recall(inbox, now))
            return effects

        return Recall(keys, self.messages.ids.oldest_ms(now), then)

    def _recalled(
        self, request: SendToRoom | Deposit, key: bytes
    ) -> Callable[[Recalled | None, int], list[Effect]]:
        """Return the continuation for a message whose id was looked up."""

        def then(known: Recalled | None, now: int) -> list[Effect]:
            if known is None:
                return [Answer(request.caller, refusals.unreadable(), request.message_id)]
            if not known.seq:
                return self._attempt(request, now, key)
            try:
                return self._repeat(request, known, None)
            except RoomError as error:
                return [Answer(request.caller, error, request.message_id)]

        return then

    # Checks of new messages.

    def _check_log(self, key: bytes) -> None:
        """Raise unless the log has room for one more message."""
        if self._storage.fault is not None:
            self.tally.refused += 1
            raise refusals.outcome_unknown() if key in self.doubtful else refusals.storage()
        if self._storage.is_behind():
            self.tally.refused += 1
            raise refusals.disk_behind()
        if self.messages.is_disk_full:
            self.tally.refused += 1
            self.tally.disk_full += 1
            raise refusals.disk_full()

    def _limited(self, wait_ms: int) -> RoomError:
        self.tally.limited += 1
        return refusals.limited(wait_ms)

    def _windows(self, room: Room, request: SendToRoom) -> list[SlidingWindow]:
        """Return the rate windows to record a message in."""
        settings, window_ms = self.settings, self._window_ms
        # The times at which the message arrived; it may have waited for a look-up since.
        windows = [room.window(settings.rate, window_ms, request.mono_ms, request.at_ms)]
        if settings.pseudonym_rate and request.pseudonym:
            windows.append(room.member(request.pseudonym, settings.pseudonym_rate, window_ms))
        return windows

    def _check_cap(self, inbox: Inbox | None) -> None:
        if inbox is None:
            return
        settings = self.settings
        if (
            inbox.unarchived_count >= settings.unarchived_max
            or inbox.unarchived_bytes >= settings.unarchived_bytes_max
        ):
            self.tally.refused += 1
            self.tally.over_cap += 1
            raise refusals.over_cap()

    def _retention_s(self, room_name: str, inbox_id: str | None) -> float | None:
        """Return the retention of the longest matching prefix of either name, if there is one."""
        if not self.settings.retention:
            return None
        best, found = -1, None
        for prefix, retention_s in self.settings.retention.items():
            is_match = room_name.startswith(prefix) or (inbox_id or "").startswith(prefix)
            if is_match and len(prefix) > best:
                best, found = len(prefix), retention_s
        return found


class PendingMessage:
    """A message that is being written to the log, and the requests to answer after that."""

    __slots__ = (
        "_acceptance",
        "_body",
        "_inbox",
        "_room",
        "_size",
        "_windows",
        "began_ms",
        "digest",
        "key",
        "repeats",
        "request",
        "seq",
    )

    _body: RoomMessageBody

    def __init__(
        self,
        acceptance: Acceptance,
        inbox: Inbox,
        room: Room | None,
        request: SendToRoom | Deposit,
        key: bytes,
        windows: list[SlidingWindow],
    ) -> None:
        for window in windows:
            window.record(request.mono_ms)
        self._windows = windows
        self.key = key
        self._acceptance = acceptance
        self._inbox = inbox
        self._room = room
        self.began_ms = 0
        self.digest = acceptance.digest_of(request)
        self.request = request
        self.repeats: list[SendToRoom | Deposit] = []
        self._size = size = size_in_log(request.message_id, request.ciphertext)
        acceptance.messages.pending_bytes += size
        self.seq = inbox.assign(acceptance.directory.floor)
        inbox.pending[request.message_id] = self

    def append(self, now: int, retention_s: float) -> AppendMessage:
        """Return the effect that writes the message."""
        times, inbox, request = self._acceptance.times, self._inbox, self.request
        self.began_ms = now
        at_ms = times.floored(now)
        if not inbox.since_ms:
            inbox.since_ms = at_ms
        inbox.retention_max_s = max(inbox.retention_max_s, retention_s)
        self._body = RoomMessageBody(
            request.message_id,
            request.ciphertext,
            times.shown(at_ms),
            at_ms + int(retention_s * 1000),
            self._room is None,
            self._control() if self._room is not None else None,
            self.digest,
        )
        body = encode_body(self._body)
        entry = Entry(_ROOM_MESSAGE, inbox.name, STREAM_EPOCH, self.seq, at_ms, body)
        return AppendMessage(entry, self.committed, self.refused, message=self)

    def _control(self) -> RoomEffect | None:
        request = self.request
        if self._room is None or not isinstance(request, SendToRoom):
            return None
        if request.type not in ABOUT_PROPOSALS:
            return None
        self._room.begun(request.proposal)
        # The proposer is part of a proposal; senders of approvals and rejections are not stored.
        proposer = request.pseudonym if request.type == PROPOSAL else ""
        return RoomEffect(self._room.name, request.type, request.proposal, proposer)

    def committed(self, offset: int, now: int) -> list[Effect]:
        return self._acceptance.committed([self], offset, now)

    def follow(self, offset: int, now: int, effects: list[Effect]) -> None:
        """The message is on disk: add what follows from that to the effects; its id comes after."""
        acceptance, inbox, body, room = self._acceptance, self._inbox, self._body, self._room
        messages, tally, times = acceptance.messages, acceptance.tally, acceptance.times
        request, seq, message_id = self.request, self.seq, body.message_id
        del inbox.pending[message_id]
        messages.pending_bytes -= self._size
        at_ms = messages.record(inbox, body, seq, offset, self.began_ms)
        item = values.page_item(
            seq, message_id, body.ciphertext, body.created_ms, is_exact=times.is_exact
        )
        messages.buffer.keep(inbox, KeptMessage(seq, message_id, body.expires_ms, item))
        if room is not None and isinstance(request, SendToRoom):
            if body.control is not None:
                room.settled(body.control.proposal)
                acceptance.state.follow(room, body, at_ms)
            tally.sent += 1
            if room.guests:
                effects.append(self._announce(room, request))
        else:
            tally.appended += 1
        tally.accept_latency.observe((now - self.began_ms) / 1000)
        shown_ms = times.shown(at_ms)
        accepted = Accepted(message_id, seq, False, shown_ms)
        effects.append(Answer(request.caller, accepted, message_id))
        if self.repeats:
            again = Accepted(message_id, seq, True, shown_ms)
            effects += [Answer(one.caller, again, message_id) for one in self.repeats]

    def _announce(self, room: Room, request: SendToRoom) -> Announce:
        but = None if self._acceptance.settings.echo_to_sender else request.guest
        self._acceptance.tally.announced += len(room.guests) - (but in room.guests)
        return Announce(tuple(room.guests), values.live_frame(self.seq, request), but)

    def refused(self, refusal: Refusal, now: int) -> list[Effect]:
        """The log refused the message: release its position and its slot in the rate windows."""
        inbox, room = self._inbox, self._room
        inbox.pending.pop(self.request.message_id, None)
        self._acceptance.messages.pending_bytes -= self._size
        inbox.take_back(self.seq)
        if not inbox.head and not inbox.pending:
            inbox.since_ms = 0
        for window in self._windows:
            window.take_back()
        if room is not None and self._body.control is not None:
            room.settled(self._body.control.proposal)
        self._acceptance.directory.forget_blank(inbox)
        self._acceptance.tally.refused += 1 + len(self.repeats)
        if refusal.is_unknown:
            self._acceptance.doubtful.add(self.key)
        error = refusals.not_stored(refusal)
        return [Answer(one.caller, error, one.message_id) for one in (self.request, *self.repeats)]
