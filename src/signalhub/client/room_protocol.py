"""One member of a room, without any I/O.

States: *down* (no socket), *joining* (a socket, no welcome yet), *joined*, *stopped*. Events are
methods that take the time and return effects. Remembered through losses: the position of the
reader, and every message to send until it is answered or too late. After each welcome the outbox
writes what waits, and the reader's gap up to the welcome's position is fetched while live messages
are held. Deliberately not handled here: when to reconnect, and everything about HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec

from signalhub.client.effects import Drop, Failed, Send, Stop, Warned
from signalhub.client.heartbeat import Heartbeat
from signalhub.client.room_answers import limited, retry_after_s
from signalhub.client.room_arguments import decoded
from signalhub.client.room_catchup import CatchUp
from signalhub.client.room_message import InboxPage, RoomMessage, Sent
from signalhub.client.room_outbox import Outbox, Outgoing
from signalhub.errors import (
    ClientError,
    GaveUp,
    OutcomeUnknown,
    Refused,
    RoomCode,
    Unavailable,
)
from signalhub.websocket import CloseCode

HEARTBEAT_S = 30.0
WELCOME_S = 10.0
SENDS_MAX = 1_000


class Phase(Enum):
    """How far a member is into its room."""

    DOWN = "down"
    JOINING = "joining"
    JOINED = "joined"
    STOPPED = "stopped"


class Joined(msgspec.Struct, frozen=True):
    """We are in the room."""


class Fetch(msgspec.Struct, frozen=True):
    """Get a page of the inbox from this position on; at most one is wanted at a time."""

    from_seq: int


class Accepted(msgspec.Struct, frozen=True):
    """A message of ours is in the room."""

    id: str
    sent: Sent


class Readable(msgspec.Struct, frozen=True):
    """There is something to take."""


Effect = Send | Fetch | Accepted | Failed | Joined | Readable | Drop | Stop | Warned


class _Frame(msgspec.Struct, rename="camel"):
    """Whatever a hub says on a room's socket; members that do not belong are left out."""

    action: str
    seq: int = 0
    last_seq: int = 0
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
    """Join, read in order, send until answered."""

    def __init__(self, pseudonym: str, since: int | None, random: Callable[[], float]) -> None:
        self.phase = Phase.DOWN
        self.reading = CatchUp(since, random)
        self._pseudonym = pseudonym
        self._outbox = Outbox(random)
        self._heartbeat: Heartbeat | None = None
        self._pings = 0
        self._welcome_by_s = 0.0
        self._unread_bytes: int | None = None  # A frame that the hub hung up on had so many.
        self._has_joined = False
        self._has_warned = False
        self._end: ClientError | None = None

    def opened(self, now_s: float) -> list[Effect]:
        """A socket is open; the hub speaks first."""
        assert self.phase is Phase.DOWN
        self.phase = Phase.JOINING
        self._heartbeat = Heartbeat(HEARTBEAT_S, now_s)
        self._welcome_by_s = now_s + WELCOME_S
        return []

    def received(self, text: bytes, now_s: float) -> list[Effect]:
        """A frame has arrived."""
        if self._heartbeat is None or self.phase is Phase.STOPPED:
            return []
        self._heartbeat.heard(now_s)
        try:
            frame = _decode(text)
            effects = self._understood(frame, now_s)
        except (msgspec.MsgspecError, ValueError):
            return self._warned("The hub sent a frame that cannot be read")
        return effects + self._pump(now_s)

    def lost(self, close_code: int | None) -> list[Effect]:
        """The socket is gone."""
        effects: list[Effect] = []
        if close_code == CloseCode.TOO_BIG and (largest := self._outbox.too_big()) is not None:
            self._unread_bytes = len(largest.frame)
            effects.append(Failed(largest.message_id, _too_large()))
        self._outbox.lost()
        self.reading.lost()
        self._heartbeat = None
        if self.phase is not Phase.STOPPED:
            self.phase = Phase.DOWN
        return effects

    def submit(
        self,
        message_id: str,
        ciphertext: bytes,
        members: dict[str, str],
        deadline_s: float,
        now_s: float,
    ) -> list[Effect]:
        """Send a message; `members` are those of its frame."""
        if self._end is not None:
            return [Failed(message_id, self._end)]
        if message_id in self._outbox:
            raise ValueError("a message with this id is on its way already")
        if len(self._outbox) >= SENDS_MAX:
            text = f"{SENDS_MAX} messages to this room wait already"
            return [Failed(message_id, Unavailable(text))]
        frame = _encode({"action": "send", "messageId": message_id, **members})
        if self._unread_bytes is not None and len(frame) >= self._unread_bytes:
            # It would only cost us the connection again.
            return [Failed(message_id, _too_large())]
        outgoing = Outgoing(message_id, frame, ciphertext, members["type"], deadline_s)
        self._outbox.submit(outgoing)
        return self._pump(now_s)

    def forget(self, message_id: str) -> None:
        """Nobody waits for the fate of a message any more."""
        self._outbox.forget(message_id)

    def take(self, now_s: float) -> tuple[RoomMessage | None, list[Effect]]:
        """The next message, if there is one."""
        message = self.reading.take()
        return message, self._fetches(now_s)

    def fetched(self, from_seq: int, page: InboxPage, now_s: float) -> list[Effect]:
        """The page that a `Fetch` asked for."""
        missed = self.reading.fetched(from_seq, page, now_s)
        effects = self._readable()
        if missed is not None:
            facts = {"first": missed.first, "last": missed.last}
            effects.append(Warned("Messages were gone before they could be read", facts))
        return effects + self._fetches(now_s)

    def not_fetched(
        self, error: ClientError, retry_after_s: float | None, now_s: float
    ) -> list[Effect]:
        """A `Fetch` failed, for now or for good."""
        if retry_after_s is None:
            return self.stop(GaveUp(f"the inbox of the room cannot be read: {error}"))
        self.reading.not_fetched(retry_after_s, now_s)
        return []

    def congested(self, is_congested: bool, now_s: float) -> list[Effect]:
        """The socket takes no more for now, or takes again."""
        self._outbox.congested(is_congested)
        return self._pump(now_s)

    def tick(self, now_s: float) -> list[Effect]:
        """Time has passed."""
        effects: list[Effect] = [
            Failed(message_id, error) for message_id, error in self._outbox.expired(now_s)
        ]
        if self.phase is Phase.JOINING and now_s >= self._welcome_by_s:
            return [*effects, Drop(f"no welcome within {WELCOME_S:g} s")]
        heartbeat = self._heartbeat
        if heartbeat is not None and heartbeat.is_dead(now_s):
            return [*effects, Drop("the hub does not answer pings")]
        if heartbeat is not None and heartbeat.is_due(now_s):
            self._pings += 1
            heartbeat.beat(str(self._pings), now_s)
            heartbeat.sent(now_s)
            effects.append(Send(_encode({"action": "ping", "t": self._pings})))
        return effects + self._pump(now_s)

    def wake_at_s(self) -> float | None:
        """When `tick` has something to do."""
        moments = [
            self._outbox.wake_at_s,
            self.reading.wake_at_s,
            self._heartbeat.wake_at_s if self._heartbeat is not None else None,
            self._welcome_by_s if self.phase is Phase.JOINING else None,
        ]
        return min((moment for moment in moments if moment is not None), default=None)

    def stop(self, error: ClientError) -> list[Effect]:
        """It is over, for this reason."""
        if self.phase is Phase.STOPPED:
            return []
        self.phase = Phase.STOPPED
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
                return [Send(_encode(_Pong(t=frame.t)))]
            case "pong" if self._heartbeat is not None:
                self._heartbeat.answered(str(frame.t))
        return []

    def _welcomed(self, frame: _Frame) -> list[Effect]:
        if self.phase is not Phase.JOINING:
            return []
        self.phase = Phase.JOINED
        self._has_joined = True
        self._outbox.opened()
        if self.reading.welcomed(frame.last_seq):
            return [Joined()]
        facts = {"last": frame.last_seq}
        return [Joined(), Warned("The room ends before what was read", facts)]

    def _acked(self, frame: _Frame) -> list[Effect]:
        outgoing = self._outbox.accepted(frame.message_id)
        if outgoing is None:
            return []
        sent = Sent(message_id=frame.message_id, seq=frame.seq, is_repeat=frame.duplicate)
        effects: list[Effect] = [Accepted(frame.message_id, sent)]
        if frame.duplicate:
            return effects
        # A hub may not echo what we say; then this is the only time we hear of it.
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
        if self.phase is Phase.JOINING:
            return self._turned_away(error, is_final=wait_s is None)
        if frame.message_id not in self._outbox:
            return self._warned("The hub refused a frame", code=frame.error_code)
        final = self._outbox.refused(frame.message_id, error, wait_s, now_s)
        return [] if final is None else [Failed(frame.message_id, final)]

    def _turned_away(self, error: ClientError, *, is_final: bool) -> list[Effect]:
        """The hub found out only after the handshake that it cannot let us in."""
        if not is_final:
            return [Drop(str(error))]
        return self.stop(GaveUp(f"not let in again: {error}") if self._has_joined else error)

    def _pump(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = [Send(frame) for frame in self._outbox.due(now_s)]
        if effects and self._heartbeat is not None:
            self._heartbeat.sent(now_s)
        return effects + self._fetches(now_s)

    def _fetches(self, now_s: float) -> list[Effect]:
        from_seq = self.reading.next_fetch(now_s)
        return [] if from_seq is None else [Fetch(from_seq)]

    def _readable(self) -> list[Effect]:
        return [Readable()] if self.reading.has_ready else []

    def _warned(self, sentence: str, **facts: str) -> list[Effect]:
        """Say it once: what a hub does wrong it mostly does often."""
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
    """What an error frame says about a message, and when to send it again."""
    wait_s = retry_after_s(frame.retry_after_ms)
    match frame.error_code:
        case RoomCode.RATE_LIMIT_EXCEEDED:
            return limited(frame.error, wait_s), wait_s
        case RoomCode.UNAVAILABLE:
            return Unavailable(frame.error or "the hub cannot take messages now"), wait_s
        case RoomCode.INTERNAL_ERROR:
            return OutcomeUnknown(frame.error or "the hub failed"), wait_s
        case code:
            return Refused(code or RoomCode.BAD_FRAME, frame.error or "the hub said no"), None
