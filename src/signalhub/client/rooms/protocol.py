"""One member of a room, without I/O.

States: *down* (no socket), *joining* (a socket, no welcome yet), *joined*, *stopped*. Events are
methods that take the time and return effects. Kept across lost sockets: the position of the reader,
and every message to send until it is answered or expired. After each welcome, the outbox writes
what is pending, and the reader's gap up to the welcome's position is fetched while live messages
are held. Not handled here: when to reconnect, and HTTP.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec

from signalhub.client.protocol.effects import Drop, Failed, Reported, SendFrame, Stop, Warned
from signalhub.client.protocol.events import MessagesDeleted, PositionsSkipped, RoomRewound
from signalhub.client.protocol.incoming import Heartbeat
from signalhub.client.protocol.pending import end_for
from signalhub.client.rooms.answers import (
    Gap,
    InboxPage,
    Missed,
    RecentIds,
    RoomMessage,
    Sent,
    gaps_of,
    limited,
    retry_after_s,
)
from signalhub.client.rooms.outbox import Outgoing, RoomOutbox
from signalhub.pacing import retry_wait_s
from signalhub.wire.base64url import decoded
from signalhub.wire.errors import (
    ClientError,
    GaveUp,
    OutcomeUnknown,
    Refused,
    RoomCode,
    Unavailable,
)
from signalhub.wire.frames import CloseCode

READY_MAX = 1_000
READY_BYTES_MAX = 16 * 2**20
HELD_MAX = 1_000
HELD_BYTES_MAX = 16 * 2**20
MISSED_MAX = 1_000
# All members share the limit of fetches of an inbox, so a live reader spreads its fetches.
PAUSE_S = 1.0
PARTIAL_S = 1.0


class CatchUp:
    """Puts live messages and pages of the inbox in order, each message once.

    Invariant: everything up to `_queued` was returned, is ready, or is deleted.
    """

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
        self._fetching: int | None = None  # `_target` when the page was requested.
        self._attempts = 0
        self._not_before_s = 0.0

    @property
    def last_seq(self) -> int:
        """Everything up to here was returned, or is deleted."""
        return self._ready[0].seq - 1 if self._ready else self._queued

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def take(self) -> RoomMessage | None:
        """Return the next message. From the first call on, the program counts as reading."""
        self._is_wanted = True
        if not self._ready:
            return None
        message = self._ready.popleft()
        self._ready_bytes -= len(message.ciphertext)
        self._move_held()
        return message

    def welcomed(self, last_seq: int, next_seq: int = 0) -> bool:
        """A socket joined at this last position; `False` if we had read beyond it.

        A hub that has lost messages we have read says where it continues: above what we know.
        """
        self._is_open = True
        if not self._is_positioned:
            self._is_positioned = True
            self._queued = last_seq
        self._target = max(self._target, last_seq)
        if last_seq >= self._queued or next_seq > self._queued:
            return True
        # The hub has lost messages we have read, and new ones have taken their positions.
        self.rewound += 1
        self._queued, self._target = 0, last_seq
        self._drop_held()
        return False

    def lost(self) -> None:
        """The socket is lost."""
        self._is_open = False

    def heard(self, message: RoomMessage) -> None:
        """Add a live message, or one of ours that was accepted."""
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
        """Return the position to fetch a page from now, if one is needed."""
        if not self._needs_page or now_s < self._not_before_s:
            return None
        self._fetching = self._target
        return self._queued + 1

    def fetched(self, asked: int, page: InboxPage, now_s: float) -> list[Gap]:
        """Add a fetched page; return the positions that turned out to be deleted or lost."""
        assert self._fetching is not None
        target, self._fetching = self._fetching, None
        if asked > self._queued + 1:
            return []  # It was requested before a rewind.
        messages = page.contiguous
        if page.is_partial and not messages:
            self._retry(PARTIAL_S, now_s)
            return []
        self._attempts = 0
        # An empty page means that everything known at the time of the request is deleted.
        first = messages[0].seq if messages else target + 1
        last = messages[-1].seq if messages else target
        gaps = gaps_of(page.skipped, Missed(self._queued + 1, first - 1), last)
        for gap in gaps:
            self._miss(gap)
        self._queued = max(self._queued, first - 1)
        for message in messages:
            if message.seq > self._queued:
                self._push(message)
        self._move_held()
        if self._queued >= self._target:
            self._not_before_s = now_s + PAUSE_S
        return gaps

    def not_fetched(self, retry_after_s: float, now_s: float) -> None:
        """The page could not be fetched; try again later."""
        self._fetching = None
        self._retry(retry_after_s, now_s)

    @property
    def wake_at_s(self) -> float | None:
        """When to call `next_fetch` again."""
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

    def _miss(self, gap: Gap) -> None:
        follows = bool(self.missed) and self.missed[-1].last == gap.first - 1
        first_of_all = self.missed.pop().first if follows else gap.first
        self.missed.append(Missed(first_of_all, gap.last))

    def _push(self, message: RoomMessage) -> None:
        self._queued = message.seq
        if self._ids.is_new(message.message_id):
            self._ready.append(message)
            self._ready_bytes += len(message.ciphertext)

    def _move_held(self) -> None:
        """Move held messages on that have no gap before them."""
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


HEARTBEAT_S = 30.0
WELCOME_S = 10.0
SENDS_MAX = 1_000


class MemberPhase(Enum):
    """The state of a member."""

    DOWN = "down"
    JOINING = "joining"
    JOINED = "joined"
    STOPPED = "stopped"


class Joined(msgspec.Struct, frozen=True):
    """The member has joined."""


class FetchPage(msgspec.Struct, frozen=True):
    """Fetch a page of the inbox from this position on; at most one at a time."""

    from_seq: int


class MessageAccepted(msgspec.Struct, frozen=True):
    """A message of ours was accepted."""

    id: str
    sent: Sent


class Readable(msgspec.Struct, frozen=True):
    """There are messages to take."""


Effect = (
    SendFrame
    | FetchPage
    | MessageAccepted
    | Failed
    | Joined
    | Readable
    | Drop
    | Stop
    | Reported
    | Warned
)


class _Frame(msgspec.Struct, rename="camel"):
    """Any frame from the hub on a room's socket; unknown members are ignored."""

    action: str
    seq: int = 0
    last_seq: int = 0
    next_seq: int = 0
    message_id: str = ""
    ciphertext: str = ""
    type: str | None = None
    pseudonym_id: str | None = None
    duplicate: bool = False
    error: str = ""
    error_code: str = ""
    retry_after_ms: float | None = None
    t: Any = msgspec.UNSET


class _Pong(msgspec.Struct):
    action: str = "pong"
    t: Any = msgspec.UNSET


_decode = msgspec.json.Decoder(_Frame).decode
_encode = msgspec.json.Encoder().encode


class RoomProtocol:
    """Joins a room, reads in order, and sends until answered."""

    def __init__(self, pseudonym: str, since: int | None, random: Callable[[], float]) -> None:
        self.phase = MemberPhase.DOWN
        self.reading = CatchUp(since, random)
        self._pseudonym = pseudonym
        self._outbox = RoomOutbox(random)
        self._heartbeat: Heartbeat | None = None
        self._pings = 0
        self._welcome_by_s = 0.0
        self._unread_bytes: int | None = None  # Size of a frame the hub closed the socket for.
        self._has_joined = False
        self._has_warned = False
        self._end: ClientError | None = None

    def opened(self, now_s: float) -> list[Effect]:
        """A socket is open; the hub speaks first."""
        assert self.phase is MemberPhase.DOWN
        self.phase = MemberPhase.JOINING
        self._heartbeat = Heartbeat(HEARTBEAT_S, now_s)
        self._welcome_by_s = now_s + WELCOME_S
        return []

    def received(self, text: bytes, now_s: float) -> list[Effect]:
        """Handle a frame from the hub."""
        if self._heartbeat is None or self.phase is MemberPhase.STOPPED:
            return []
        self._heartbeat.heard(now_s)
        try:
            frame = _decode(text)
            effects = self._understood(frame, now_s)
        except (msgspec.MsgspecError, ValueError):
            return self._warned("The hub sent a frame that cannot be read")
        return effects + self._pump(now_s)

    def lost(self, close_code: int | None) -> list[Effect]:
        """The socket is lost."""
        effects: list[Effect] = []
        if close_code == CloseCode.TOO_BIG and (largest := self._outbox.too_big()) is not None:
            self._unread_bytes = len(largest.frame)
            effects.append(Failed(largest.message_id, _too_large()))
        self._outbox.lost()
        self.reading.lost()
        self._heartbeat = None
        if self.phase is not MemberPhase.STOPPED:
            self.phase = MemberPhase.DOWN
        return effects

    def submit(
        self,
        message_id: str,
        ciphertext: bytes,
        members: dict[str, str],
        deadline_s: float,
        now_s: float,
    ) -> list[Effect]:
        """Send a message; `members` are added to its frame."""
        if self._end is not None:
            return [Failed(message_id, end_for(self._end))]
        if message_id in self._outbox:
            raise ValueError("a message with this id is already being sent")
        if len(self._outbox) >= SENDS_MAX:
            text = f"{SENDS_MAX} messages to this room are already waiting"
            return [Failed(message_id, Unavailable(text))]
        frame = _encode({"action": "send", "messageId": message_id, **members})
        if self._unread_bytes is not None and len(frame) >= self._unread_bytes:
            # The hub would close the connection again.
            return [Failed(message_id, _too_large())]
        outgoing = Outgoing(message_id, frame, ciphertext, members["type"], deadline_s)
        self._outbox.submit(outgoing)
        return self._pump(now_s)

    def forget(self, message_id: str) -> None:
        """Forget a message whose caller no longer waits."""
        self._outbox.forget(message_id)

    def take(self, now_s: float) -> tuple[RoomMessage | None, list[Effect]]:
        """Return the next message, if there is one."""
        message = self.reading.take()
        return message, self._fetches(now_s)

    def fetched(self, from_seq: int, page: InboxPage, now_s: float) -> list[Effect]:
        """Handle the page that a `FetchPage` requested."""
        gaps = self.reading.fetched(from_seq, page, now_s)
        effects = self._readable()
        for gap in gaps:
            event = PositionsSkipped if gap.is_skipped else MessagesDeleted
            effects.append(Reported(event(gap.first, gap.last)))
        return effects + self._fetches(now_s)

    def not_fetched(
        self, error: ClientError, retry_after_s: float | None, now_s: float
    ) -> list[Effect]:
        """A `FetchPage` failed, temporarily or for good."""
        if retry_after_s is None:
            return self.stop(GaveUp(f"the inbox of the room cannot be read: {error}"))
        self.reading.not_fetched(retry_after_s, now_s)
        return []

    def congested(self, is_congested: bool, now_s: float) -> list[Effect]:
        """The socket's buffer is full, or has room again."""
        self._outbox.congested(is_congested)
        return self._pump(now_s)

    def tick(self, now_s: float) -> list[Effect]:
        """Handle everything that is due."""
        effects: list[Effect] = [
            Failed(message_id, error) for message_id, error in self._outbox.expired(now_s)
        ]
        if self.phase is MemberPhase.JOINING and now_s >= self._welcome_by_s:
            return [*effects, Drop(f"no welcome within {WELCOME_S:g} s")]
        heartbeat = self._heartbeat
        if heartbeat is not None and heartbeat.is_dead(now_s):
            return [*effects, Drop("the hub does not answer pings")]
        if heartbeat is not None and heartbeat.is_due(now_s):
            self._pings += 1
            heartbeat.beat(str(self._pings), now_s)
            heartbeat.sent(now_s)
            effects.append(SendFrame(_encode({"action": "ping", "t": self._pings})))
        return effects + self._pump(now_s)

    def wake_at_s(self) -> float | None:
        """When `tick` has something to do."""
        moments = [
            self._outbox.wake_at_s,
            self.reading.wake_at_s,
            self._heartbeat.wake_at_s if self._heartbeat is not None else None,
            self._welcome_by_s if self.phase is MemberPhase.JOINING else None,
        ]
        return min((moment for moment in moments if moment is not None), default=None)

    def stop(self, error: ClientError) -> list[Effect]:
        """Stop for this reason."""
        if self.phase is MemberPhase.STOPPED:
            return []
        self.phase = MemberPhase.STOPPED
        self._end = error
        self._heartbeat = None
        self.reading.lost()
        ended = [Failed(message_id, why) for message_id, why in self._outbox.end(error)]
        return [*ended, Stop(error)]

    def _understood(self, frame: _Frame, now_s: float) -> list[Effect]:
        match frame.action:
            case "message":
                self.reading.heard(_message_of(frame))
                return self._readable()
            case "ack":
                return self._acked(frame)
            case "error":
                return self._refused(frame, now_s)
            case "welcome":
                return self._welcomed(frame)
            case "ping":
                return [SendFrame(_encode(_Pong(t=frame.t)))]
            case "pong" if self._heartbeat is not None:
                self._heartbeat.answered(str(frame.t))
        return []

    def _welcomed(self, frame: _Frame) -> list[Effect]:
        if self.phase is not MemberPhase.JOINING:
            return []
        self.phase = MemberPhase.JOINED
        self._has_joined = True
        self._outbox.opened()
        if self.reading.welcomed(frame.last_seq, frame.next_seq):
            return [Joined()]
        return [Joined(), Reported(RoomRewound(frame.last_seq))]

    def _acked(self, frame: _Frame) -> list[Effect]:
        outgoing = self._outbox.accepted(frame.message_id)
        if outgoing is None:
            return []
        sent = Sent(message_id=frame.message_id, seq=frame.seq, is_repeat=frame.duplicate)
        effects: list[Effect] = [MessageAccepted(frame.message_id, sent)]
        if frame.duplicate:
            return effects
        # The hub may not echo our own messages, so this is the only notice of it.
        own = RoomMessage(
            seq=frame.seq,
            message_id=frame.message_id,
            ciphertext=outgoing.ciphertext,
            type=outgoing.type,
            pseudonym=self._pseudonym,
        )
        self.reading.heard(own)
        return effects + self._readable()

    def _refused(self, frame: _Frame, now_s: float) -> list[Effect]:
        error, wait_s = _error_of(frame)
        if self.phase is MemberPhase.JOINING:
            return self._turned_away(error, is_final=wait_s is None)
        if frame.message_id not in self._outbox:
            return self._warned("The hub refused a frame", code=frame.error_code)
        final = self._outbox.refused(frame.message_id, error, wait_s, now_s)
        return [] if final is None else [Failed(frame.message_id, final)]

    def _turned_away(self, error: ClientError, *, is_final: bool) -> list[Effect]:
        """The hub refused us only after the handshake."""
        if not is_final:
            return [Drop(str(error))]
        return self.stop(
            GaveUp(f"refused when reconnecting: {error}") if self._has_joined else error
        )

    def _pump(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = [SendFrame(frame) for frame in self._outbox.due(now_s)]
        if effects and self._heartbeat is not None:
            self._heartbeat.sent(now_s)
        return effects + self._fetches(now_s)

    def _fetches(self, now_s: float) -> list[Effect]:
        from_seq = self.reading.next_fetch(now_s)
        return [] if from_seq is None else [FetchPage(from_seq)]

    def _readable(self) -> list[Effect]:
        return [Readable()] if self.reading.has_ready else []

    def _warned(self, sentence: str, **facts: str) -> list[Effect]:
        """Warn once: a hub that does something wrong tends to repeat it."""
        if self._has_warned:
            return []
        self._has_warned = True
        return [Warned(sentence, dict(facts))]


def _message_of(frame: _Frame) -> RoomMessage:
    if frame.seq < 1 or not frame.message_id:
        raise ValueError("a message has a position and an id")
    return RoomMessage(
        seq=frame.seq,
        message_id=frame.message_id,
        ciphertext=decoded(frame.ciphertext),
        type=frame.type,
        pseudonym=frame.pseudonym_id,
    )


def _too_large() -> Refused:
    return Refused(RoomCode.TOO_LARGE, "the message is larger than the hub reads")


def _error_of(frame: _Frame) -> tuple[ClientError, float | None]:
    """Return the error that an error frame reports for a message, and when to retry."""
    wait_s = retry_after_s(frame.retry_after_ms)
    match frame.error_code:
        case RoomCode.RATE_LIMIT_EXCEEDED:
            return limited(frame.error, wait_s), wait_s
        case RoomCode.UNAVAILABLE | RoomCode.STORAGE_FAILED:
            refused = Unavailable(frame.error or "the hub cannot take messages now")
            refused.is_answered = True
            return refused, wait_s
        case RoomCode.INTERNAL_ERROR | RoomCode.OUTCOME_UNKNOWN:
            return OutcomeUnknown(frame.error or "the hub failed"), wait_s
        case code:
            return Refused(
                code or RoomCode.BAD_FRAME, frame.error or "the hub gave no reason"
            ), None
