"""Sessions without sockets, for requests that come by HTTP.

A `Caller` sends the requests of the wire protocol to the core and gets the hub's answers, so that
permissions, quotas, rates and records are the same by any door. Each has a session that said hello
with the token of the request. Such sessions are in no list and in no discovery; they end with their
token, and when they were idle for a while.

An answer of an actor needs an address. A caller gets one that nobody can register, to which only
those can send who are asked, and those who may send to anybody.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from signalhub.auth.permissions import EVERYTHING, Allowance
from signalhub.core.messages.ask import AskReceipt
from signalhub.core.sessions.session import Session
from signalhub.core.subscriptions.window import Attempt
from signalhub.server import call_refusals
from signalhub.server.call_refusals import CallRefused as CallRefused
from signalhub.server.port.hosts import Proxies
from signalhub.server.port.http import HttpRequest
from signalhub.wire import envelope as wire
from signalhub.wire.envelope import ASK, NULL, PROTOCOL_VERSION, TELL
from signalhub.wire.errors import Code, Refusal, RoomCode
from signalhub.wire.frames import text_frames
from signalhub.wire.names import HUB_ADDRESS

if TYPE_CHECKING:
    from signalhub.auth.tokens import Authenticator
    from signalhub.clock import SteadyClock
    from signalhub.core.hub import Hub
    from signalhub.core.subscriptions.consumers import Consumer
    from signalhub.server.runner import HubRunner


# Who speaks if a hub without authentication is not told.
ANYBODY: Final = "@(http/client)"
CALLERS_MAX: Final = 4_096
IDLE_S: Final = 60.0
ANSWER_S: Final = 30.0
REPLIES_BYTES_MAX: Final = 2**23
# What Python needs for one of them.
_REPLY_BYTES: Final = 1_024
# How often a request looks whether whoever has it is still there.
_LOOK_S: Final = 0.5
_PAUSED_MAX: Final = 1_000
# A payload with more brackets may be nested too deeply for a message.
_BRACKETS_MAX: Final = 256


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A message of the hub, or of an actor through it."""

    id: str
    sender: str = msgspec.field(name="from")
    type: str
    to: str = ""
    payload: Raw = NULL
    metadata: Raw = NULL
    correlation_id: str | None = msgspec.field(name="correlationId", default=None)
    timestamp: float = 0


class _Reference(msgspec.Struct, gc=False):
    """What a reply refers to, in its metadata."""

    in_reply_to: str | None = msgspec.field(name="inReplyTo", default=None)


class _Reason(msgspec.Struct, gc=False):
    """The payload of `hub:pause` and `hub:resume`."""

    target: str | None = None


class Principal(msgspec.Struct, frozen=True):
    """Who sends a request, and what its token allows; without authentication everything."""

    token: str
    source: str
    allowance: Allowance
    address: str = ANYBODY


_decode_answer = msgspec.json.Decoder(Answer).decode
_decode_reference = msgspec.json.Decoder(_Reference).decode
_decode_reason = msgspec.json.Decoder(_Reason).decode

_ERRORS: Final = ("hub:error", "hub:unknown_actor")
_NO_METADATA: Final[dict[str, object]] = {}


@asynccontextmanager
async def _in_time(seconds: float, late: CallRefused) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise late from None


def _refers_to(answer: Answer) -> str | None:
    """The id of the request that a message replies to, if it is a reply."""
    try:
        return _decode_reference(answer.metadata).in_reply_to
    except (ValueError, RecursionError):
        return None


class CallerLink:
    """What the runner needs of a session's connection; frames for it are read here."""

    __slots__ = ("_closed", "_heard", "_runner", "is_closing", "session")

    unsent_bytes: Final = 0
    session: Session

    def __init__(
        self,
        runner: HubRunner,
        heard: Callable[[bytes], None],
        closed: Callable[[str], None],
    ) -> None:
        self._runner = runner
        self._heard = heard
        self._closed = closed
        self.is_closing = False

    def queue_message(self, frame: bytes, receipt: AskReceipt | Attempt | None = None) -> None:
        """A message has arrived."""
        self._heard(frame)
        if receipt is not None:
            self._runner.writer.hand_over(receipt)

    def queue_run(self, frames: bytes, count: int) -> None:
        """Several messages have arrived, complete with their headers."""
        for frame in text_frames(frames):
            self._heard(frame)

    def queue_reply(self, frame: bytes) -> None:
        """The hub has answered."""
        self._heard(frame)

    def queue_replies(self, frames: bytes, count: int) -> None:
        """The hub has answered several requests."""
        self.queue_run(frames, count)

    def has_added(self) -> None:
        """An entry was added to the log."""

    def give_way(self) -> None:
        """A request took long; the next one comes in another tick anyway."""

    def close(self, code: int, reason: str) -> None:
        """The session has ended."""
        self.is_closing = True
        self._closed(reason)


class Expectation:
    """Waits for a message of an actor."""

    __slots__ = ("fits", "found", "sender")

    def __init__(
        self, sender: str, fits: Callable[[Answer], bool], found: asyncio.Future[Answer]
    ) -> None:
        self.sender = sender
        self.fits = fits
        self.found = found


class Caller:
    """Sends requests on a session without a socket."""

    def __init__(self, callers: Callers, principal: Principal, address: str) -> None:
        self._callers = callers
        self.address = address
        self.principal = principal
        self.allowance = principal.allowance
        # Requests without an answer, by id.
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._at_once: dict[str, Callable[[Answer], None]] = {}
        # Get what is neither an answer nor sent by an actor; `True` if it was for them.
        self.listeners: list[Callable[[Answer], bool]] = []
        # Called when its session has ended.
        self.on_end: list[Callable[[], object]] = []
        self._paused: dict[str, None] = {}
        self._uses = 0
        self.used_at_s = callers.mono_s()
        self.end_reason = ""
        self._link = CallerLink(callers.runner, self._heard, self._closed)
        self._sender = address or principal.address
        self.session = callers.hub.opened(
            self._link, callers.now_ms(), principal.source, has_socket=False
        )
        self._link.session = self.session

    @property
    def is_over(self) -> bool:
        """Has its session ended?"""
        return self._link.is_closing or self.session.is_over

    def check_open(self) -> None:
        """Raise `CallRefused` if its session has ended."""
        if self.is_over:
            raise call_refusals.ended(self.end_reason or "idle")

    @property
    def is_idle(self) -> bool:
        """May it end without anybody noticing?"""
        consumers = self.session.consumers.values()
        return not (self._uses or self._waiting or any(one.flights for one in consumers))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Do not end it meanwhile."""
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
            self.used_at_s = self._callers.mono_s()

    @property
    def reply_address(self) -> str:
        """Where actors answer; made when it is first used."""
        if self.session.internal_address is None:
            self._callers.admit(self, f"@(http/{secrets.token_hex(16)})")
        assert self.session.internal_address is not None
        return self.session.internal_address

    def new_id(self) -> str:
        """An id for a message."""
        return self._callers.next_id()

    async def call(
        self,
        type: str,
        payload: object,
        *,
        metadata: object = None,
        message_id: str | None = None,
        sender: str | None = None,
        ttl_ms: float | None = None,
        timeout_s: float = ANSWER_S,
        at_once: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """Send a request and return the hub's answer; raises `CallRefused`.

        `at_once` sees the answer before anything that follows from the request happens.
        """
        if message_id is None:
            message_id = self._callers.next_id()
        with self.in_use():
            async with _in_time(timeout_s, call_refusals.unanswered()):
                while (earlier := self._waiting.get(message_id)) is not None:
                    # A repeat is answered after the first one, so that no answer is mistaken.
                    await asyncio.wait((earlier,))
                future = asyncio.get_running_loop().create_future()
                self._waiting[message_id] = future
                if at_once is not None:
                    self._at_once[message_id] = at_once
                try:
                    self._send(type, payload, metadata, message_id, sender, ttl_ms, ASK)
                    answer: Answer = await future
                    return answer
                finally:
                    self._waiting.pop(message_id, None)
                    self._at_once.pop(message_id, None)

    def tell(
        self,
        to: str,
        type: str,
        data: object,
        *,
        metadata: object = None,
        message_id: str | None = None,
        sender: str | None = None,
        ttl_ms: float | None = None,
    ) -> None:
        """Send a tell, to which the hub answers only if it refuses it; raises `CallRefused`."""
        if to in self._paused:
            raise CallRefused(
                429,
                Code.QUEUE_FULL,
                f"The queue of messages for {to} is full.",
                "Try again later with the same id.",
                details={"actorAddress": to},
                retryable=True,
            )
        if message_id is None or message_id in self._waiting:
            message_id = self._callers.next_id()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[message_id] = future
        try:
            payload = {"to": to, "type": type, "data": data}
            self._send("hub:send", payload, metadata, message_id, sender, ttl_ms, TELL)
        finally:
            self._waiting.pop(message_id, None)
            self.used_at_s = self._callers.mono_s()
        if future.done():
            future.result()
        else:
            future.cancel()

    async def request(
        self,
        to: str,
        type: str,
        data: object,
        *,
        timeout_s: float,
        message_id: str | None = None,
    ) -> Answer:
        """Ask an actor and return its reply, which may be a failure; raises `CallRefused`.

        It ends at once if the message cannot be delivered, or if the actor disconnects. A repeat
        with the same id gets the same reply, as long as that is remembered.
        """
        replies = self._callers.replies
        if message_id is None:
            message_id = self._callers.next_id()
            is_own = False
        else:
            is_own = True
            known = replies.find(self.reply_address, message_id)
            if known is not None:
                return known

        def is_reply(answer: Answer) -> bool:
            return _refers_to(answer) == message_id

        ask = {"to": to, "type": type, "data": data}
        ttl_ms = max(1, round(timeout_s * 1000))
        metadata = {"expectsReply": True}
        with self.in_use(), self.expects(to, is_reply) as reply:
            async with _in_time(timeout_s, call_refusals.no_reply(to, timeout_s)):
                try:
                    await self.call(
                        "hub:send",
                        ask,
                        metadata=metadata,
                        message_id=message_id,
                        sender=self.reply_address,
                        ttl_ms=ttl_ms,
                        timeout_s=timeout_s + ANSWER_S,
                    )
                except CallRefused as refusal:
                    if refusal.code == Code.MESSAGE_EXPIRED:
                        raise call_refusals.no_reply(to, timeout_s) from None
                    raise
                answer = await self._reply(to, reply)
                if is_own:
                    replies.remember(self.reply_address, message_id, answer)
                return answer

    async def _reply(self, to: str, reply: asyncio.Future[Answer]) -> Answer:
        """Wait for the reply as long as somebody can send it."""
        hub = self._callers.hub
        registration = hub.registry.get(to)
        # Whoever has a mailbox gets the request again after a reconnect.
        is_durable = to in hub.streams.mailboxes
        while True:
            done, _ = await asyncio.wait((reply,), timeout=_LOOK_S)
            if done:
                return reply.result()
            self.check_open()
            if is_durable:
                continue
            if registration is None or registration.session.is_over:
                raise CallRefused(
                    502,
                    call_refusals.RECIPIENT_LEFT,
                    f"{to} has disconnected without a reply.",
                    "It is unknown what it did; try again when it is back.",
                    details={"actorAddress": to},
                )

    @contextmanager
    def expects(
        self, sender: str, fits: Callable[[Answer], bool]
    ) -> Iterator[asyncio.Future[Answer]]:
        """Wait for a message of `sender` to `reply_address`, which may then send one.

        With `address` given to `Callers.caller` that is the reply address.
        """
        found: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        expectation = Expectation(sender, fits, found)
        address = self.reply_address
        self.session.awaits(sender)
        self._callers.expect(address, expectation)
        try:
            yield found
        finally:
            self._callers.expect_no_more(address, expectation)
            self.session.awaits_no_more(sender)
            found.cancel()

    def leave(self, consumer: Consumer) -> None:
        """Stop consuming a subscription."""
        leave = self._callers.hub.subscriptions.leave
        self._callers.runner.run(lambda now: leave(consumer, "left", now, is_told=False))

    def end(self) -> None:
        """End the session; what it consumes is delivered to others."""
        self._link.is_closing = True
        now = self._callers.now_ms()
        self._callers.runner.run(lambda _: self._callers.hub.closed(self.session, now))
        self._closed("idle")

    # What the hub writes.

    def greet(self) -> None:
        """Say hello; raises `CallRefused` if the hub does not want it."""
        refusals: list[CallRefused] = []

        def answered(answer: Answer) -> bool:
            if answer.type in _ERRORS:
                refusals.append(call_refusals.refused(answer.payload))
            return True

        self.listeners.append(answered)
        metadata = {
            "protocolVersion": PROTOCOL_VERSION,
            "capabilities": ["send"],
            "authToken": self.principal.token,
        }
        self._send(
            "hub:connect",
            None,
            metadata,
            self._callers.next_id(),
            self.principal.address,
            None,
            ASK,
        )
        self.listeners.remove(answered)
        if refusals:
            raise refusals[0]

    def _send(
        self,
        type: str,
        payload: object,
        metadata: object,
        message_id: str,
        sender: str | None,
        ttl_ms: float | None,
        pattern: str,
    ) -> None:
        self.check_open()
        frame = wire.encode(
            {
                "id": message_id,
                "from": sender or self._sender,
                "to": HUB_ADDRESS,
                "type": type,
                "payload": payload,
                "pattern": pattern,
                "correlationId": None,
                "timestamp": self._callers.wall_ms(),
                "metadata": _NO_METADATA if metadata is None else metadata,
                "ttl": ttl_ms,
                "signature": None,
            }
        )
        if frame.count(b"[") + frame.count(b"{") > _BRACKETS_MAX:
            # A text that is not JSON would end the session.
            try:
                wire.decode(frame)
            except (wire.NotJson, wire.NotEnvelope):
                raise call_refusals.too_deep() from None
        self._callers.runner.received(self._link, frame)  # type: ignore[arg-type]

    def _heard(self, frame: bytes) -> None:
        answer = _decode_answer(frame)
        if answer.sender != HUB_ADDRESS and answer.to == self.session.internal_address:
            self._callers.arrived(answer)
            return
        request_id = answer.correlation_id
        # A copy of a publish refers to the publish, as the answer to it does.
        is_answer = answer.sender == HUB_ADDRESS and request_id is not None
        if not is_answer or request_id not in self._waiting:
            self._noted(answer)
            return
        future = self._waiting[request_id]
        if future.done():
            return
        if answer.type in _ERRORS:
            future.set_exception(call_refusals.refused(answer.payload))
            return
        if request_id in self._at_once:
            self._at_once[request_id](answer)
        future.set_result(answer)

    def _noted(self, answer: Answer) -> None:
        """The hub, or a subscription, says something that was not asked for."""
        if answer.type == "hub:pause":
            target = _decode_reason(answer.payload).target
            if target is not None and len(self._paused) < _PAUSED_MAX:
                self._paused[target] = None
        elif answer.type == "hub:resume":
            target = _decode_reason(answer.payload).target
            if target is not None:
                self._paused.pop(target, None)
        else:
            for listener in self.listeners:
                if listener(answer):
                    return

    def _closed(self, reason: str) -> None:
        self.end_reason = reason
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(call_refusals.ended(reason))
        on_end, self.on_end = self.on_end, []
        for done in on_end:
            done()
        self._callers.ended(self)


class Replies:
    """The last replies to requests whose ids were chosen by callers, in bounded memory."""

    def __init__(self, bytes_max: int = REPLIES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._known: dict[tuple[str, str], Answer] = {}
        self._bytes = 0

    def find(self, address: str, message_id: str) -> Answer | None:
        """The reply to a request that was sent from an address."""
        return self._known.get((address, message_id))

    def remember(self, address: str, message_id: str, answer: Answer) -> None:
        """Keep a reply; the oldest ones make room."""
        key = (address, message_id)
        if key in self._known:
            return
        self._known[key] = answer
        self._bytes += _size_of(answer)
        while self._bytes > self._bytes_max:
            self._bytes -= _size_of(self._known.pop(next(iter(self._known))))


def _size_of(answer: Answer) -> int:
    return len(answer.payload) + len(answer.metadata) + _REPLY_BYTES


class Callers:
    """The sessions of those who come by HTTP, each kept for its next request."""

    def __init__(
        self,
        hub: Hub,
        runner: HubRunner,
        clock: SteadyClock,
        authenticator: Authenticator | None,
    ) -> None:
        self.hub = hub
        self.runner = runner
        self.now_ms = clock.now_ms
        self.wall_ms = clock.wall_ms
        self.mono_s = clock.mono_s
        self._authenticator = authenticator
        self._proxies = Proxies(hub.settings)
        # The one that was used last is the last.
        self._callers: dict[tuple[str, str, str, str], Caller] = {}
        self._expected: dict[str, list[Expectation]] = {}
        self.replies = Replies()

    def __len__(self) -> int:
        return len(self._callers)

    def principal(self, request: HttpRequest) -> Principal:
        """Who sends the request; raises `CallRefused` with 401 if its token is no good."""
        source = self._proxies.client_of(request)
        if self._authenticator is None:
            return Principal("", source, EVERYTHING)
        token = request.headers.get("authorization", "")
        if not token:
            raise CallRefused(
                401,
                Code.UNAUTHORIZED,
                "This needs a token.",
                "Send it as Authorization: Bearer.",
            )
        try:
            claims = self._authenticator.verify(token, self.wall_ms() / 1000)
        except Refusal as refusal:
            text, door = refusal.message, request.path
            self.runner.run(lambda now: self.hub.logins.refused(source, door, text, now))
            raise CallRefused(401, refusal.code, text, refusal.resolution) from None
        allowance = Allowance(claims.actor, claims.permissions, claims.subject)
        return Principal(token, source, allowance, claims.actor)

    def caller(self, principal: Principal, *, address: str = "") -> Caller:
        """The caller for requests of a principal; raises `CallRefused`.

        With an internal `address` it speaks as that, and gets answers there.
        """
        key = _key_of(principal, address)
        found = self._callers.pop(key, None)
        if found is None or found.is_over:
            found = self._opened(principal, address)
        found.used_at_s = self.mono_s()
        self._callers[key] = found
        return found

    def _opened(self, principal: Principal, address: str) -> Caller:
        if self.hub.is_draining:
            raise call_refusals.ended("server_shutdown")
        if len(self._callers) >= CALLERS_MAX and not self._make_room(""):
            raise CallRefused(
                503,
                RoomCode.UNAVAILABLE,
                f"{CALLERS_MAX} others use the hub by HTTP at the moment, which is the limit.",
                "Try again later.",
                retryable=True,
            )
        try:
            return self._greeted(principal, address)
        except CallRefused as refusal:
            # The sessions of its earlier tokens may be why it may have no more of them.
            subject = principal.allowance.subject
            if refusal.code != Code.LIMIT_EXCEEDED or not self._make_room(subject):
                raise
        return self._greeted(principal, address)

    def _greeted(self, principal: Principal, address: str) -> Caller:
        caller = Caller(self, principal, address)
        try:
            caller.greet()
            if address:
                self.admit(caller, address)
        except CallRefused:
            caller.end()
            raise
        # The token decides again, at the same time as the session.
        caller.allowance = caller.session.allowance
        return caller

    def _make_room(self, subject: str) -> bool:
        """End the caller that was idle longest, of this subject if one is given."""
        for caller in self._callers.values():
            if caller.is_idle and subject in ("", caller.allowance.subject):
                caller.end()
                return True
        return False

    def admit(self, caller: Caller, address: str) -> None:
        """Let a caller get messages at an internal address."""
        self.hub.registry.admit(caller.session, address, self.now_ms())

    def tick(self) -> None:
        """Once a second: end those that were idle for a while."""
        latest_s = self.mono_s() - IDLE_S
        for caller in list(self._callers.values()):
            if caller.used_at_s > latest_s:
                # The others were used later.
                break
            if caller.is_idle:
                caller.end()

    def ended(self, caller: Caller) -> None:
        """The session of a caller has ended."""
        key = _key_of(caller.principal, caller.address)
        if self._callers.get(key) is caller:
            del self._callers[key]

    def next_id(self) -> str:
        """A new id of a message."""
        return self.hub.ids.next().decode()

    # Answers of actors.

    def expect(self, address: str, expectation: Expectation) -> None:
        """Wait for a message to an internal address."""
        self._expected.setdefault(address, []).append(expectation)

    def expect_no_more(self, address: str, expectation: Expectation) -> None:
        """Stop waiting for it."""
        left = self._expected[address]
        left.remove(expectation)
        if not left:
            del self._expected[address]

    def arrived(self, answer: Answer) -> None:
        """A message to an internal address, which sessions may share: it is for whom it fits."""
        for one in self._expected.get(answer.to, ()):
            if one.sender == answer.sender and not one.found.done() and one.fits(answer):
                one.found.set_result(answer)


def _key_of(principal: Principal, address: str) -> tuple[str, str, str, str]:
    """What tells callers apart; without authentication also as whom they speak."""
    return (principal.token, principal.source, principal.address, address)
