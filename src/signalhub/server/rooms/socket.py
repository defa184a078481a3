"""A socket in a room: passes frames to the core, and sends answers and messages as frames.

It uses the same write path as all connections, with separate limits. A socket with too many waiting
frames is closed, and its client continues from the inbox; dropping frames would leave a gap.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from signalhub.clock import Clock
from signalhub.core.effects import Effect
from signalhub.core.rooms import refusals
from signalhub.core.rooms.access import ANYBODY, Requester
from signalhub.core.rooms.values import Accepted, Guest, Result, RoomWelcome, SendToRoom
from signalhub.core.sessions.outbound import Outbound
from signalhub.server.rooms.answers import RATE_LIMITED, RETRY_AFTER_MS, is_retried
from signalhub.server.rooms.envelopes import (
    MESSAGE_ID,
    RoomEnvelope,
    new_message_id,
    read_envelope,
    read_members,
    room_name,
)
from signalhub.server.runner import HubRunner
from signalhub.server.sockets.connection import Connection
from signalhub.server.sockets.native import new_connection
from signalhub.server.sockets.pieces import WaitingFrame
from signalhub.server.sockets.writer import Writer
from signalhub.settings.model import OutboundSettings as Bounds
from signalhub.wire.errors import RoomCode, RoomError
from signalhub.wire.frames import CloseCode, text_header

BAD_FRAMES_MAX: Final = 10
EARLY_FRAMES_MAX: Final = 16
# Allowance for the members of a frame besides its ciphertext.
_FRAME_REST_BYTES: Final = 8 * 2**10

_MALFORMED = frozenset((RoomCode.BAD_FRAME, RoomCode.BAD_ENVELOPE))

_CODEC_ERRORS = (ValueError, RecursionError)


class _Ping(msgspec.Struct):
    action: Literal["ping"]
    # Raw, so that a number is echoed unchanged.
    t: msgspec.Raw = msgspec.Raw()


_decode_ping = msgspec.json.Decoder(_Ping).decode

_NOT_JSON = RoomError(RoomCode.BAD_FRAME, "A frame must be a JSON object.")
_NO_ACTION = RoomError(RoomCode.BAD_FRAME, "action must be send, ping or pong.")
_OTHER_NAMES = RoomError(
    RoomCode.BAD_ENVELOPE, "The room, tenant and pseudonym of a frame must be those of its socket."
)
_FAULT = refusals.broken()


class Visit(msgspec.Struct, frozen=True):
    """The room and pseudonym of a socket; ids are validated and canonical."""

    name: str  # The full name of the room.
    tenant: str | None
    room: str
    pseudonym: str
    inbox: str | None

    def covers(self, envelope: RoomEnvelope) -> bool:
        """Does the envelope match the room and pseudonym of the socket, as far as it names them?"""
        if envelope.pseudonym is not None and envelope.pseudonym != self.pseudonym:
            return False
        if envelope.room is None and envelope.tenant is None:
            return True
        tenant, room = envelope.tenant or self.tenant, envelope.room or self.room
        return self.name in (room_name(tenant, room), room_name(envelope.tenant, room))


class Terms:
    """What all sockets of rooms share."""

    def __init__(self, runner: HubRunner, clock: Clock) -> None:
        settings = runner.hub.settings
        self.runner = runner
        self.rooms = runner.hub.rooms
        self.ciphertext_bytes_max = settings.rooms.ciphertext_bytes_max
        base64_bytes = -(-self.ciphertext_bytes_max // 3) * 4
        self.frame_bytes_max = 2 * base64_bytes + _FRAME_REST_BYTES
        self.bounds = msgspec.structs.replace(
            settings.outbound, messages_max=settings.rooms.socket_queue
        )
        self.now_ms = clock.now_ms
        self._mono_s = clock.mono_s

    def mono_ms(self) -> int:
        """Return the monotonic time in milliseconds."""
        return round(self._mono_s() * 1000)


class RoomSocket:
    """A guest's socket: both the owner and the party of its connection."""

    __slots__ = (
        "_bad_frames",
        "_early",
        "_requester",
        "_terms",
        "_visit",
        "connection",
        "guest",
        "outbound",
        "sent",
    )

    # Appears in the log, so it must not identify the room.
    id = "room"
    slow_code = CloseCode.TRY_AGAIN_LATER

    def __init__(self, terms: Terms, visit: Visit, requester: Requester = ANYBODY) -> None:
        self._requester = requester
        self._terms = terms
        self._visit = visit
        self._bad_frames = 0
        # Frames received before the welcome was sent; `None` after that.
        self._early: list[bytes] | None = []
        self.outbound: Outbound | None = None
        self.sent = 0
        self.guest: Guest | None = None
        self.connection: Connection[RoomSocket]

    @property
    def writer(self) -> Writer:
        return self._terms.runner.writer

    @property
    def bounds(self) -> Bounds:
        return self._terms.bounds

    @property
    def frame_bytes_max(self) -> int:
        return self._terms.frame_bytes_max

    run_bytes_max = 0

    def received_run(self, connection: Connection[Any], run: object) -> bool:
        """Return `False`: rooms have no runs."""
        return False

    gather = received_run

    def handle_gathered(self) -> None:
        """Do nothing: rooms gather nothing."""

    def join(self) -> RoomError | None:
        """Enter the room, and create the connection for the upgrade; return the error if any."""
        terms, visit = self._terms, self._visit
        refusal: RoomError | None = None

        def enter(now: int) -> list[Effect]:
            nonlocal refusal
            try:
                self.guest, effects = terms.rooms.join(
                    self, visit.name, visit.inbox, visit.pseudonym, now, self._requester
                )
            except RoomError as error:
                refusal = error
                return []
            self.connection = new_connection(self, None)
            return effects

        if not terms.runner.run(enter):
            refusal = _FAULT
            if self.guest is not None:
                terms.runner.disconnected(self.connection)
        return refusal

    # Called by the connection.

    def opened(self, connection: Connection[Any]) -> RoomSocket:
        """Register the new connection."""
        self._terms.runner.arrived(connection)
        return self

    def is_welcome(self, connection: Connection[Any]) -> bool:
        """Return `True`: rooms have no hello."""
        return True

    def received(self, connection: Connection[Any], payload: bytes) -> None:
        """Handle a frame."""
        if self._early is not None:
            self._early.append(payload)
            if len(self._early) > EARLY_FRAMES_MAX:
                connection.close(CloseCode.POLICY_VIOLATION, "too many frames before the welcome")
            return
        try:
            members = read_members(payload)
        except _CODEC_ERRORS:
            self._refuse(_NOT_JSON)
            return
        action = members.get("action")
        if action == "send":
            self._send(members)
        elif action == "ping":
            self._ping(payload)
        elif action == "pong":
            self._bad_frames = 0
        else:
            self._refuse(_NO_ACTION)

    def unheard(self, connection: Connection[Any]) -> None:
        """Do nothing: nobody leaves a room by being silent."""

    def too_slow(self) -> None:
        """Count a socket that is closed because its client does not read."""
        self._terms.rooms.tally.slow_closed += 1

    def caught_up(self, connection: Connection[Any]) -> None:
        """Do nothing: no messages wait outside the connection."""

    def leaving(self, connection: Connection[Any], code: int | None = None) -> None:
        """Leave the room."""
        guest = self.guest
        if guest is not None:
            self._terms.runner.run(lambda now: self._terms.rooms.leave(guest, now))

    def disconnected(self, connection: Connection[Any]) -> None:
        """Remove the closed socket."""
        self._terms.runner.disconnected(connection)

    def _ping(self, payload: bytes) -> None:
        try:
            t = bytes(_decode_ping(payload).t)
        except _CODEC_ERRORS:
            self._refuse(_NOT_JSON)
            return
        self._bad_frames = 0
        self._say(b'{"action":"pong","t":%b}' % t if t else b'{"action":"pong"}')

    def _send(self, members: dict[str, object]) -> None:
        terms, visit = self._terms, self._visit
        try:
            envelope = read_envelope(members, terms.ciphertext_bytes_max)
            if not visit.covers(envelope):
                raise _OTHER_NAMES
        except RoomError as error:
            self._refuse(error, _readable(members.get("messageId")))
            return
        self._bad_frames = 0
        request = SendToRoom(
            self,
            visit.name,
            visit.inbox,
            envelope.message_id or new_message_id(),
            envelope.ciphertext,
            terms.mono_ms(),
            envelope.type,
            visit.pseudonym,
            envelope.proposal,
            self.guest,
            self._requester,
        )
        unwritten = self.writer.unwritten
        before = unwritten.added
        if not terms.runner.run(lambda now: terms.rooms.send(request, now)):
            self._say(_error(_FAULT, request.message_id))
        if unwritten.added != before:
            self.connection.has_added()

    def _refuse(self, error: RoomError, message_id: str = "") -> None:
        self._say(_error(error, message_id))
        if error.code in _MALFORMED:
            self._bad_frames += 1
            if self._bad_frames == BAD_FRAMES_MAX:
                self.connection.close(CloseCode.POLICY_VIOLATION, "too many malformed frames")

    # Called by the runner.

    def answer(self, result: Result, message_id: str) -> None:
        """Send the result of joining or sending."""
        match result:
            case Accepted():
                self._say(_ack(result))
            case RoomError():
                self._say(_error(result, message_id))
            case RoomWelcome():
                self._say(_welcome(result))
                self._hear_early()
            case _:
                raise AssertionError("a socket asks for nothing else")

    def _hear_early(self) -> None:
        early, self._early = self._early or [], None
        for payload in early:
            if not self.connection.is_closing:
                self.received(self.connection, payload)

    def park(self, header: bytes, frame: bytes) -> bool:
        """Queue a frame for a blocked client; `False` if the queue is full."""
        connection, outbound = self.connection, self.outbound
        assert outbound is not None
        if not outbound.admits(len(header) + len(frame), connection.unsent_bytes):
            return False
        connection.park(WaitingFrame((header, frame)))
        return True

    def _say(self, frame: bytes) -> None:
        connection = self.connection
        if connection.is_closing:
            return
        if self.outbound is None:
            connection.queue_reply(frame)
        elif not self.park(text_header(len(frame)), frame):
            self.writer.close_slow(connection)


def _readable(message_id: object) -> str:
    """Return the message id for an error frame, even an invalid one unless it is too long."""
    chars_max = MESSAGE_ID.form.chars_max
    return message_id if type(message_id) is str and len(message_id) <= chars_max else ""


def _welcome(welcome: RoomWelcome) -> bytes:
    members = b'"lastSeq":%d,"oldestBufferedSeq":%d' % (welcome.last_seq, welcome.oldest_seq)
    if welcome.next_seq:
        members += b',"nextSeq":%d' % welcome.next_seq
    return b'{"action":"welcome",%b}' % members


def _ack(accepted: Accepted) -> bytes:
    # Valid ids need no escaping in JSON.
    ending = b',"duplicate":true}' if accepted.is_repeat else b"}"
    message_id = accepted.message_id.encode()
    return b'{"action":"ack","messageId":"%b","seq":%d%b' % (message_id, accepted.seq, ending)


def _error(error: RoomError, message_id: str = "") -> bytes:
    is_rate = error.code == RoomCode.RATE_LIMIT_EXCEEDED
    frame: dict[str, object] = {
        "action": "error",
        "error": RATE_LIMITED if is_rate else error.text,
        "errorCode": str(error.code),
    }
    if message_id:
        frame["messageId"] = message_id
    if is_retried(error.code):
        frame["retryAfterMs"] = error.retry_after_ms or RETRY_AFTER_MS
    return msgspec.json.encode(frame)
