"""The client's side of the wire protocol: no sockets, no tasks, no clock.

States: DOWN (no link) → GREETING (`hub:connect` is sent) → RESTORING (registrations, then
subscriptions and consumers, in the order they were first made) → READY, and back to DOWN when the
link is lost. LEAVING: our goodbye is sent; STOPPED is final.

Events are methods that take the time and return effects. The state consists of unfinished requests,
what to restore, pauses, the pending heartbeat, and tells that may still be refused because of their
rate. Not handled here: when to reconnect (`transport.reconnect`), and which handler gets a message
(`arrivals`).

Rules: a request ends exactly once; one that was written and not answered fails as `OutcomeUnknown`,
one that was never written as `Unavailable`; an ask is repeated with the same id. A consumer that
cannot join again ends alone; any other refusal while restoring ends the client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import suppress
from enum import Enum

from signalhub.client.message import Message
from signalhub.client.protocol.effects import (
    Answered,
    Arrived,
    ConsumerEnded,
    Dismissed,
    Drop,
    Effect,
    Failed,
    Instant,
    Ready,
    Replied,
    Reported,
    SendFrame,
    Stop,
    Warned,
)
from signalhub.client.protocol.events import MessageRefused
from signalhub.client.protocol.exchanges import Exchanges
from signalhub.client.protocol.frame import FrameWriter, Request
from signalhub.client.protocol.incoming import (
    ANSWER_S,
    HEARTBEAT_S,
    REFUSAL_TYPES,
    Heartbeat,
    Incoming,
    Welcome,
    decode,
    message_of,
    refusal_event_of,
    refusal_of,
    retry_after_s,
    text_in,
    welcome_of,
)
from signalhub.client.protocol.pending import (
    RETRY_PAUSE_S,
    Deadlines,
    Flow,
    Pending,
    Recent,
    end_for,
)
from signalhub.client.protocol.replies import Arrival, Replies
from signalhub.client.protocol.restore import Membership, Seat
from signalhub.client.requests import Beat, Disconnect, Discover, Register
from signalhub.wire.errors import ClientError, Code, GaveUp, Refused, Unavailable

HELLO_S = 5.0
GOODBYE_TTL_MS = 500
WAITING_MAX = 1_000
WAIT_S = 60.0
RATE_LIMITED_S = 1.0
REFUSAL_PAUSE_MAX_S = 5.0

# After one of these, the hub would end the next connection as well.
FINAL_REASONS = frozenset({"duplicate_connection", "unauthorized", "version_mismatch"})

_WAITED_OUT = frozenset(
    {Code.RATE_LIMITED, Code.ACTOR_RECONNECTING, Code.QUEUE_FULL, Code.STORAGE_FULL}
)
# A request that waits for its reply ends at once if its recipient cannot take it now.
_WAITED_OUT_BY_REQUESTS = _WAITED_OUT - {Code.QUEUE_FULL}
_NEARLY_S = 1e-6


class LinkPhase(Enum):
    """The state of the connection."""

    DOWN = "down"
    GREETING = "greeting"
    RESTORING = "restoring"
    READY = "ready"
    LEAVING = "leaving"
    STOPPED = "stopped"


class Protocol:
    """One client's conversation with its hub, over any number of links."""

    def __init__(
        self,
        frames: FrameWriter,
        membership: Membership,
        now: Instant,
        encoded_types: Collection[str] = (),
    ) -> None:
        """The payloads of messages of `encoded_types` are not decoded."""
        self.frames = frames
        self._encoded_types = frozenset(encoded_types)
        self.membership = membership
        self.phase = LinkPhase.DOWN
        self.session_id = ""
        self.welcome = Welcome()
        self._was_ready = False
        self._end: ClientError | None = None
        self._orders = 0
        self._to_restore = 0
        self._hello_id = ""
        self._phase_end_s = 0.0
        self._heartbeat = Heartbeat(HEARTBEAT_S, now.mono_s)
        self._flow = Flow(now.mono_s)
        self._pending: dict[str, Pending] = {}
        self._replays: dict[str, Pending] = {}
        self._deadlines = Deadlines[Pending]()
        self._recent = Recent()
        self.exchanges = Exchanges()
        self.replies = Replies()

    def is_pending(self, message_id: str) -> bool:
        return message_id in self._pending

    def submit(
        self,
        request: Request,
        now: Instant,
        then: Callable[[], None] | None = None,
        seat: Seat | None = None,
    ) -> list[Effect]:
        """Accept a request; `then` is called when the hub grants it, with `seat` for a consumer.

        Raises errors that can be known immediately: `Unavailable`, `Refused` for its size,
        `ValueError` if a request with this id is already pending.
        """
        if self._end is not None:
            raise end_for(self._end)
        if len(request.frame) > self.welcome.message_bytes_max:
            raise Refused(
                Code.MESSAGE_TOO_LARGE,
                f"{request.subject} has {len(request.frame)} bytes, the hub takes at most "
                f"{self.welcome.message_bytes_max}",
                resolution="send less, or a reference to it, or raise message_bytes_max",
            )
        if self.phase is not LinkPhase.READY and self._flow.waiting >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX} requests are already waiting for a connection")
        if request.id in self._pending:
            raise ValueError(
                f"{request.subject}: a request with the id {request.id} is already pending"
            )
        pending = self._add(request, now, then=then, seat=seat)
        effects = self._pump(now)
        if request.id in self._pending:
            wait_s = request.timeout_s if request.answer else WAIT_S
            self._deadlines.set(pending, now.mono_s + wait_s)
        return effects

    def submit_request(
        self, request: Request, to: str, replies_max: int, timeout_s: float, now: Instant
    ) -> list[Effect]:
        """Accept a request that waits for replies: of the actor `to`, or of many without it.

        It raises what `submit` does; what it then ends with are effects.
        """
        self.exchanges.open(request, to, replies_max, timeout_s, now.mono_s)
        try:
            return self.submit(request, now)
        except BaseException:
            self.exchanges.forget(request.id)
            raise

    def forget(self, message_id: str) -> None:
        """Forget a request whose caller no longer waits: do not repeat it, ignore its answer."""
        self.exchanges.forget(message_id)
        pending = self._pending.get(message_id)
        if pending is not None:
            self._finish(pending)

    def opened(self, token: str | None, now: Instant) -> list[Effect]:
        """Greet the hub over a new link."""
        assert self.phase is LinkPhase.DOWN, f"a link opened while {self.phase}"
        self.phase = LinkPhase.GREETING
        self._phase_end_s = now.mono_s + HELLO_S
        hello = self.membership.hello(self.frames, token, now.wall_ms)
        self._hello_id = hello.id
        return [SendFrame(hello.frame)]

    def lost(self, reason: str, now: Instant) -> list[Effect]:
        """The link is lost: repeatable requests wait for the next one."""
        if self._end is not None:
            return self.stop(self._end)
        self.phase = LinkPhase.DOWN
        self.session_id = ""
        self._to_restore = 0
        self._recent.clear()
        self._flow.closed(now.mono_s)
        effects: list[Effect] = []
        again: list[Pending] = []
        for pending in list(self._pending.values()):
            if pending.is_restoring or self.exchanges.is_look(pending.request.id):
                self._finish(pending)
            elif pending.is_waiting or pending.is_resting:
                continue
            elif pending.request.is_repeatable:
                pending.collected.clear()
                again.append(pending)
            else:
                cause = f"the connection was lost before the hub answered ({reason})"
                effects += self._fail(pending, pending.outcome(cause))
        self._flow.put_back(again)
        self.exchanges.lost(now.mono_s)
        return effects

    def received(self, frame: bytes, now: Instant) -> list[Effect]:
        """Handle a frame from the hub."""
        incoming = decode(frame, self._encoded_types)
        if incoming is None:
            return [Warned("Ignored a frame that is not a message", {"bytes": len(frame)})]
        self._heartbeat.heard(now.mono_s)
        if not incoming.is_from_hub:
            return self._arrived(incoming, now)
        match incoming.type:
            case "hub:connected":
                return self._connected(incoming, now)
            case "hub:disconnect":
                return self._disconnected(incoming)
            case "hub:pause" | "hub:resume":
                return self._steered(incoming, now)
            case "hub:heartbeat_ack":
                self._heartbeat.answered(incoming.correlation_id)
                self._flow.unread.answered(incoming.correlation_id)
                return [*self._answered(incoming, now), *self._pump(now)]
            case "hub:unsubscribed" if incoming.correlation_id is None:
                return self._unseated(incoming)
            case refusal if refusal in REFUSAL_TYPES:
                return self._refused(incoming, now)
        return self._answered(incoming, now)

    def congested(self, is_congested: bool, now: Instant) -> list[Effect]:
        """The link's buffer is full, or has room again."""
        self._flow.is_congested = is_congested
        return self._pump(now)

    def reading(self, is_reading: bool, now: Instant) -> list[Effect]:
        """The application is too slow and the link is not read, or is read again."""
        self._heartbeat.reading(is_reading, now.mono_s)
        self._flow.is_reading = is_reading
        return self._pump(now)

    def tick(self, now: Instant) -> list[Effect]:
        """Handle everything that is due."""
        if (
            self.phase in (LinkPhase.GREETING, LinkPhase.RESTORING)
            and now.mono_s >= self._phase_end_s
        ):
            return [Drop(f"the hub did not answer within {HELLO_S:g} s of connecting")]
        effects: list[Effect] = []
        if self.phase is LinkPhase.READY:
            if self._heartbeat.is_dead(now.mono_s):
                return [Drop(f"the hub did not answer a heartbeat within {ANSWER_S:g} s")]
            if self._heartbeat.is_due(now.mono_s):
                beat = self.frames.request(Beat(now.wall_ms), now.wall_ms)
                self._heartbeat.beat(beat.id, now.mono_s)
                effects.append(self._sent(beat.frame, now))
            self._look_for_recipients(now)
        effects += self._end_exchanges(now)
        for pending in self._deadlines.due(now.mono_s):
            effects += self._due(pending, now)
        return effects + self._pump(now)

    def wake_at_s(self, now_s: float) -> float | None:
        """When `tick` must be called even if there is no event."""
        is_ready = self.phase is LinkPhase.READY
        moments = [
            self._deadlines.next_s,
            self._flow.wake_at_s(now_s),
            self.exchanges.wake_at_s(is_ready=is_ready),
        ]
        if self.phase in (LinkPhase.GREETING, LinkPhase.RESTORING):
            moments.append(self._phase_end_s)
        elif self.phase is LinkPhase.READY:
            moments.append(self._heartbeat.wake_at_s)
        return min((moment for moment in moments if moment is not None), default=None)

    def leave(self, now: Instant) -> list[Effect]:
        """Say goodbye; a `Stop` follows once the hub has answered or the link is lost."""
        closed = Unavailable("the client was closed")
        if self.phase is not LinkPhase.READY:
            return self.stop(closed)
        self.phase = LinkPhase.LEAVING
        self._end = closed
        goodbye = self.frames.request(Disconnect(), now.wall_ms, ttl_ms=GOODBYE_TTL_MS)
        return [*self._fail_all(closed), SendFrame(goodbye.frame)]

    def stop(self, error: ClientError) -> list[Effect]:
        """Give up for good and fail everything that is pending."""
        if self.phase is LinkPhase.STOPPED:
            return []
        self.phase = LinkPhase.STOPPED
        self._end = error
        return [*self._fail_all(error), Stop(error)]

    def _connected(self, incoming: Incoming, now: Instant) -> list[Effect]:
        if self.phase is not LinkPhase.GREETING or incoming.correlation_id != self._hello_id:
            return []
        self.welcome = welcome = welcome_of(incoming)
        self.phase = LinkPhase.RESTORING
        self.session_id = welcome.session_id
        self._heartbeat = Heartbeat(welcome.heartbeat_s, now.mono_s)
        self._flow.greeted(welcome.message_rate, welcome.message_burst, now.mono_s)
        requests = self.membership.requests(self.frames, now.wall_ms)
        self._to_restore = len(requests)
        for request, seat in requests:
            self._add(request, now, seat=seat, is_restoring=True)
        return self._restored(now)

    def _restored(self, now: Instant) -> list[Effect]:
        """Continue restoring; become ready after the last step."""
        self._phase_end_s = now.mono_s + HELLO_S
        if self._to_restore:
            return self._pump(now)
        self.phase = LinkPhase.READY
        self._was_ready = True
        self._flow.opened()
        self._renew_in_time()
        return [Ready(self.session_id), *self._pump(now)]

    def _renew_in_time(self) -> None:
        """A lease shorter than the hub's heartbeat interval needs more frequent heartbeats."""
        lease_s = self.membership.lease_s
        self._heartbeat.interval_s = min(self.welcome.heartbeat_s, (lease_s or math.inf) / 3)

    def _disconnected(self, incoming: Incoming) -> list[Effect]:
        if self._end is not None:
            return self.stop(self._end)
        reason = text_in(incoming.payload, "reason") or "no_reason_given"
        detail = text_in(incoming.payload, "message") or "no details given"
        text = f"the hub ended the connection: {reason}: {detail}"
        if reason not in FINAL_REASONS:
            return [Drop(text)]
        return self.stop(GaveUp(text) if self._was_ready else Refused(reason, detail))

    def _steered(self, incoming: Incoming, now: Instant) -> list[Effect]:
        target = text_in(incoming.payload, "target")
        if incoming.type == "hub:pause":
            self._flow.pause(target, now.mono_s)
            return []
        self._flow.resume(target)
        return self._pump(now)

    def _arrived(self, incoming: Incoming, now: Instant) -> list[Effect]:
        message = message_of(incoming)
        if message.metadata.get("replay") is not True:
            effects = self.exchanges.replied(message)
            if effects is not None:
                for effect in effects:
                    if isinstance(effect, Replied) and effect.is_last:
                        # A reply may overtake the answer of the hub.
                        self._withdraw(effect.id)
                return effects
            if message.request_id is not None:
                return self._requested(message, now)
            return [Arrived(message)]
        # The rest of a replay whose caller no longer waits is ignored.
        if (pending := self._replays.get(message.topic or "")) is not None:
            pending.collected.append(message)
        return []

    def _requested(self, message: Message, now: Instant) -> list[Effect]:
        """Hand a request to the program, unless it has it already."""
        arrival = self.replies.arrived(message, now.mono_s)
        if arrival is Arrival.NEW:
            return [Arrived(message)]
        if arrival is Arrival.OPEN and self._is_settled_by_program(message):
            return [Arrived(message)]
        effects: list[Effect] = []
        reply = self.replies.reply_to(message)
        if reply is not None and reply.id not in self._pending and self._end is None:
            with suppress(ClientError):
                effects += self.submit(reply, now)
        return effects if arrival is Arrival.OPEN else [*effects, Dismissed(message)]

    def _is_settled_by_program(self, message: Message) -> bool:
        delivery = message.delivery
        if delivery is None or delivery.subscription is None:
            return delivery is not None and self.membership.acknowledges
        seat = self.membership.seat_of(message.topic, delivery.subscription)
        return seat is not None and not seat.is_auto_acked

    def _look_for_recipients(self, now: Instant) -> None:
        for watch in self.exchanges.to_look_for(now.mono_s):
            look = self.frames.request(Discover(watch.address, 1), now.wall_ms)
            self.exchanges.looking(watch, look.id)
            pending = self._add(look, now)
            self._deadlines.set(pending, now.mono_s + look.timeout_s)

    def _end_exchanges(self, now: Instant) -> list[Effect]:
        """End the requests whose time is over."""
        effects: list[Effect] = []
        for exchange, ends in self.exchanges.due(now.mono_s):
            pending = self._pending.get(exchange.id)
            if ends or pending is None:
                effects += ends
            else:
                cause = f"no answer in {exchange.timeout_s:g} s"
                effects.append(Failed(exchange.id, pending.outcome(cause)))
            self._withdraw(exchange.id)
        return effects

    def _withdraw(self, message_id: str) -> None:
        pending = self._pending.get(message_id)
        if pending is not None:
            self._finish(pending)

    def _unseated(self, incoming: Incoming) -> list[Effect]:
        """The hub has ended one of our durable subscriptions."""
        seat = self.membership.seat_named(incoming.facts)
        if seat is None:
            return []
        self.membership.left(seat)
        return [seat.withdrawn(text_in(incoming.facts, "reason") or "no_reason_given")]

    def _answered(self, incoming: Incoming, now: Instant) -> list[Effect]:
        pending = self._pending.get(incoming.correlation_id or "")
        # Unknown types, and answers to requests that were forgotten, are ignored.
        if pending is None or not pending.request.is_answered_by(incoming.type):
            return []
        self._finish(pending)
        if incoming.type == Register.ANSWER:
            self.membership.granted(incoming.facts)
        effects = [] if pending.seat is None else pending.seat.taken(incoming.facts)
        if pending.is_restoring:
            self._to_restore -= 1
            return effects + self._restored(now)
        if pending.then is not None:
            pending.then()
            self._renew_in_time()
        message_id = pending.request.id
        if message_id in self.exchanges:
            # Without authentication every actor can be seen.
            is_seen = self.welcome.session_token is not None
            return self.exchanges.handed_over(
                message_id, incoming.facts, is_seen=is_seen, now_s=now.mono_s
            )
        if self.exchanges.is_look(message_id):
            return self.exchanges.looked(message_id, incoming.facts, now.mono_s)
        messages = tuple(pending.collected)
        answered = Answered(pending.request.id, incoming.payload, pending.sends, messages)
        return [*effects, answered]

    def _refused(self, incoming: Incoming, now: Instant) -> list[Effect]:
        error = refusal_of(incoming)
        message_id = incoming.correlation_id or ""
        if message_id == self._hello_id and self.phase is LinkPhase.GREETING:
            return self._turned_away(error)
        pending = self._pending.get(message_id)
        if pending is None:
            self._flow.unread.answered(message_id)
            tell = self._recent.pop(message_id)
            return [*self._refused_tell(tell, error, incoming, now), *self._pump(now)]
        pending.unanswered = max(0, pending.unanswered - 1)
        pending.refusal = error
        is_request = message_id in self.exchanges
        if error.code in (_WAITED_OUT_BY_REQUESTS if is_request else _WAITED_OUT):
            return self._wait_out(pending, error, incoming, now)
        if pending.request.answer is None and pending.sends:
            # A repeated tell; its caller has already returned.
            self._finish(pending)
            return [Reported(refusal_event_of(incoming, pending.request.subject))]
        if not pending.is_restoring:
            return self._fail(pending, error)
        if pending.seat is None:
            return self._turned_away(error)
        self._finish(pending)
        self._to_restore -= 1
        self.membership.left(pending.seat)
        return [ConsumerEnded(pending.seat.key, error), *self._restored(now)]

    def _wait_out(
        self, pending: Pending, error: ClientError, incoming: Incoming, now: Instant
    ) -> list[Effect]:
        """The hub will accept the request later: repeat it then, if there is time."""
        if pending.is_waiting or pending.is_resting:
            return []
        pending.refusals += 1
        if error.code == Code.RATE_LIMITED:
            self._slow_down(pending, incoming, now)
            return []
        wait_s = retry_after_s(incoming)
        if wait_s is None:
            wait_s = min(RETRY_PAUSE_S * pending.refusals, REFUSAL_PAUSE_MAX_S)
        if now.mono_s + wait_s >= pending.end_s:
            return self._fail(pending, error)
        pending.is_resting = True
        self._deadlines.set(pending, now.mono_s + wait_s)
        return []

    def _refused_tell(
        self, tell: Pending | None, error: ClientError, incoming: Incoming, now: Instant
    ) -> list[Effect]:
        if tell is None:
            return [Reported(refusal_event_of(incoming))]
        if error.code != Code.RATE_LIMITED:
            return [Reported(refusal_event_of(incoming, tell.request.subject))]
        tell.since_s = now.mono_s
        self._pending[tell.request.id] = tell
        self._slow_down(tell, incoming, now)
        self._deadlines.set(tell, now.mono_s + WAIT_S)
        return []

    def _slow_down(self, pending: Pending, incoming: Incoming, now: Instant) -> None:
        """Our rate was too high: send nothing as long as the hub says, then repeat this."""
        self._flow.hold(now.mono_s + (retry_after_s(incoming) or RATE_LIMITED_S))
        self._flow.put_back([pending])

    def _turned_away(self, error: ClientError) -> list[Effect]:
        """The hub refused the connection, or a part of what is restored."""
        if not self._was_ready:
            return self.stop(error)
        if not isinstance(error, Refused) or error.retryable:
            return [Drop(str(error))]
        return self.stop(GaveUp(f"the hub refused to restore this client: {error}"))

    def _due(self, pending: Pending, now: Instant) -> list[Effect]:
        request = pending.request
        if request.answer is None:
            return self._waited(pending, now)
        if pending.is_resting:
            pending.is_resting = False
            due_s = min(now.mono_s + request.timeout_s, pending.end_s)
            self._deadlines.set(pending, due_s)
            self._flow.put_back([pending])
            return []
        if pending.attempt >= request.attempts or now.mono_s >= pending.end_s - _NEARLY_S:
            age_s = now.mono_s - pending.since_s
            return self._fail(pending, pending.outcome(f"no answer in {age_s:.3g} s"))
        rest_s = RETRY_PAUSE_S * pending.attempt
        pending.attempt += 1
        if pending.is_waiting:
            self._deadlines.set(pending, now.mono_s + rest_s + request.timeout_s)
        else:
            pending.is_resting = True
            self._deadlines.set(pending, now.mono_s + rest_s)
        return []

    def _waited(self, tell: Pending, now: Instant) -> list[Effect]:
        """Fail a tell that was held back for too long; waiting for its turn does not count."""
        stalled_s = self._flow.stalled_since_s(tell)
        end_s = max(tell.since_s, now.mono_s if stalled_s is None else stalled_s) + WAIT_S
        if now.mono_s < end_s - _NEARLY_S:
            self._deadlines.set(tell, end_s)
            return []
        cause = (
            "the hub has paused it" if self.phase is LinkPhase.READY else "there is no connection"
        )
        text = f"{tell.request.subject} was not sent: {cause} for {WAIT_S:g} s"
        return self._fail(tell, Unavailable(text))

    def _add(
        self,
        request: Request,
        now: Instant,
        *,
        then: Callable[[], None] | None = None,
        seat: Seat | None = None,
        is_restoring: bool = False,
    ) -> Pending:
        self._orders += 1
        pending = Pending(
            request, self._orders, now.mono_s, then=then, seat=seat, is_restoring=is_restoring
        )
        self._pending[request.id] = pending
        if request.collects is not None:
            self._replays[request.collects] = pending
        self._flow.add(pending)
        return pending

    def _pump(self, now: Instant) -> list[Effect]:
        """Write all requests that can be written."""
        effects: list[Effect] = []
        while True:
            if self._flow.unread.is_mark_due:
                beat = self.frames.request(Beat(now.wall_ms), now.wall_ms)
                self._flow.unread.mark(beat.id)
                effects.append(self._sent(beat.frame, now))
            pending = self._flow.take(now.mono_s)
            if pending is None:
                return effects
            pending.sends += 1
            pending.unanswered += 1
            effects.append(self._sent(pending.request.frame, now))
            if pending.request.answer is None:
                self._finish(pending)
                self._recent.add(pending)
                if pending.sends == 1:
                    effects.append(Answered(pending.request.id, None, 1))

    def _sent(self, frame: bytes, now: Instant) -> SendFrame:
        self._heartbeat.sent(now.mono_s)
        return SendFrame(frame)

    def _finish(self, pending: Pending) -> None:
        del self._pending[pending.request.id]
        if pending.request.collects is not None:
            self._replays.pop(pending.request.collects, None)
        self._deadlines.clear(pending)
        self._flow.withdraw(pending)

    def _fail(self, pending: Pending, error: ClientError) -> list[Effect]:
        self._finish(pending)
        if pending.request.answer is None and pending.sends:
            # Its caller has already returned, because it was written once; only a warning is
            # possible.
            return [Reported(MessageRefused(error.code, pending.request.subject))]
        message_id = pending.request.id
        if message_id in self.exchanges:
            return self.exchanges.failed(message_id, error)
        if self.exchanges.is_look(message_id):
            is_final = isinstance(error, Refused) and not error.retryable
            self.exchanges.not_looked(message_id, is_final=is_final)
            return []
        return [Failed(message_id, error)]

    def _fail_all(self, error: ClientError) -> list[Effect]:
        effects: list[Effect] = []
        for pending in list(self._pending.values()):
            if pending.is_restoring:
                self._finish(pending)
            else:
                effects += self._fail(pending, pending.ended(error))
        return effects + self.exchanges.stop(str(error))
