"""The hub: every frame goes in here, every effect comes out.

Rules kept here, for all message types alike:

* nothing but `hub:connect` is served before a session has said hello;
* every accepted frame renews the leases of its session;
* a structural error is answered whatever the pattern, and never ends the session;
* only frames that are not JSON at all cost the sender its socket.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from signalhub.auth.tokens import Authenticator, SessionTokens
from signalhub.clock import Ids
from signalhub.core import erasure, placement, refusals, replay
from signalhub.core.effects import Append, Close, Effect, Forget, Persist, Reply
from signalhub.core.erasure import Erasures
from signalhub.core.messages import ask, route
from signalhub.core.messages.ask import FanReceipt, Orphan, PublishReceipt, Receipt
from signalhub.core.messages.dedup import Dedup
from signalhub.core.messages.topics import Topics
from signalhub.core.placement import Placements
from signalhub.core.replay import Replays
from signalhub.core.replies import Replies
from signalhub.core.rooms.rooms import Rooms
from signalhub.core.sessions import control, register
from signalhub.core.sessions.registry import Registration, Registry
from signalhub.core.sessions.session import Session, State
from signalhub.core.storage import Storage
from signalhub.core.streams import dead_letters, mailboxes, topics
from signalhub.core.streams.streams import Streams
from signalhub.core.subscriptions import manage, settle
from signalhub.core.subscriptions.dispatcher import Dispatcher
from signalhub.core.subscriptions.window import Attempt
from signalhub.counters import Tally
from signalhub.pacing import Period, TokenBucket
from signalhub.settings.model import Settings
from signalhub.wire import envelope as wire
from signalhub.wire.entry import Entry, Kind, Outcome, Settled, Settlement, encode_body
from signalhub.wire.envelope import Envelope, NotEnvelope, NotJson
from signalhub.wire.errors import Code, Refusal

Handler = Callable[["Hub", Session, Envelope, int], list[Effect]]

HANDLERS: Final[dict[str, Handler]] = {
    "hub:connect": control.connect,
    "hub:heartbeat": control.heartbeat,
    "hub:disconnect": control.disconnect,
    "hub:refresh_token": control.refresh_token,
    "hub:queue_stats": control.queue_stats,
    "hub:metrics": control.metrics,
    "hub:register": register.register,
    "hub:unregister": register.unregister,
    "hub:renew": register.renew,
    "hub:discover": register.discover,
    "hub:list_actors": register.list_actors,
    "hub:place": placement.place,
    "hub:move": placement.move,
    "hub:send": route.send,
    "hub:broadcast": route.broadcast,
    "hub:publish": route.publish,
    "hub:subscribe": route.subscribe,
    "hub:unsubscribe": route.unsubscribe,
    "hub:topic_create": topics.create,
    "hub:topic_update": topics.update,
    "hub:topic_info": topics.info,
    "hub:topic_delete": topics.delete,
    "hub:list_topics": topics.list_topics,
    "hub:sub_info": manage.info,
    "hub:sub_update": manage.update,
    "hub:sub_pause": manage.pause,
    "hub:sub_resume": manage.resume,
    "hub:sub_delete": manage.delete,
    "hub:list_subs": manage.list_subscriptions,
    "hub:seek": manage.seek,
    "hub:ack": settle.ack,
    "hub:nack": settle.nack,
    "hub:extend": settle.extend,
    "hub:term": settle.term,
    "hub:credit": settle.credit,
    "hub:replay": replay.replay,
    "hub:redrive": dead_letters.redrive,
    "hub:purge": dead_letters.purge,
    "hub:republish": replay.republish,
    "hub:erase": erasure.erase,
}
# Liveness and settling must not depend on how much else a session sends.
UNLIMITED: Final = frozenset(
    {
        "hub:connect",
        "hub:heartbeat",
        "hub:renew",
        "hub:disconnect",
        "hub:ack",
        "hub:nack",
        "hub:extend",
        "hub:term",
        "hub:credit",
    }
)


_CONNECTED = State.CONNECTED
_RAW_PING_BYTES = len(wire.RAW_PING)
_SWEEP_MS_MIN = 5_000
_TICK_MS = 1_000
# A tick that comes so much too early or too late by the wall clock means that the clock was set.
_JUMP_MS = 5_000


class Hub:
    """One shard's state. Not thread-safe; one loop owns it."""

    def __init__(
        self,
        settings: Settings,
        *,
        ids: Ids,
        authenticator: Authenticator | None,
        session_tokens: SessionTokens,
        tally: Tally,
        log_epoch: int = 1,
    ) -> None:
        self.settings = settings
        self.ids = ids
        self.authenticator = authenticator
        self.session_tokens = session_tokens
        self.tally = tally
        self.replies = Replies(ids, tally)
        self.storage = Storage(settings.log.sync)
        # A dict, because goodbyes and heartbeats go out in the same order in every run.
        self.sessions: dict[Session, None] = {}
        self.identities = control.Identities()
        self.registry = Registry(settings.registry.limit, settings.registry.refuse_above)
        self.topics = Topics()
        self.dedup = Dedup(int(settings.dedup.window_s * 1000), settings.dedup.memory_bytes_max)
        self.asks: dict[bytes, Receipt | PublishReceipt | route.Told] = {}
        self.asked = 0  # How many asks were ever sent to the log.
        self.streams = Streams(log_epoch, settings.log.cache_bytes)
        self.dispatcher = Dispatcher(self)
        self.erasures = Erasures()
        self.rooms = Rooms(settings.rooms, tally.rooms, self.storage, self.erasures)
        self.replays = Replays()
        self.placements = Placements()
        # Settlements of asks to actors without a mailbox, written once per turn.
        self.loose: list[Settlement] = []
        # Such asks from before a restart whose fate is not known, by sender and id: their offset
        # and when they were accepted.
        self.orphans: dict[tuple[str, str], Orphan] = {}
        self.window = control.Window(tally)
        self.is_draining = False
        self._message_bytes_max = settings.message_bytes_max
        self._ticked_ms = 0
        self._token_ends_ms: dict[Session, float] = {}
        self._next_token_end_ms = math.inf
        self._to_sweep: list[Registration] = []
        self._slice = 1
        self._sweep = Period(self._sweep_ms())
        self._push = Period(int(settings.heartbeat_push_s * 1000))

    # Events of a socket.

    def opened(self, link: object, now: int) -> Session:
        """A socket was accepted."""
        settings = self.settings
        bucket = TokenBucket(settings.message_rate, settings.message_burst, now)
        session = Session(f"session-{self.ids.secret()}", link, bucket, now)
        self.sessions[session] = None
        self.tally.connections_opened += 1
        return session

    def received(self, session: Session, frame: bytes, now: int) -> list[Effect]:
        """A message arrived; it is valid UTF-8 and within the frame limit."""
        self.tally.received += 1
        size = len(frame)
        if size == _RAW_PING_BYTES and frame == wire.RAW_PING:
            return [Reply(session, wire.RAW_PONG)]
        if size > self._message_bytes_max:
            refusal = refusals.too_large(size, self._message_bytes_max)
            sender, message_id = wire.peek(frame)
            return self._refuse_unread(session, refusal, now, sender=sender, message_id=message_id)
        try:
            message = wire.decode(frame)
        except NotJson as fault:
            effects = self._refuse_unread(session, refusals.malformed(str(fault)), now)
            return [*effects, *self.closed(session, now), Close(session, 1011, "not JSON")]
        except NotEnvelope as fault:
            return self._refuse_unread(
                session,
                refusals.structural(str(fault)),
                now,
                sender=fault.sender,
                message_id=fault.message_id,
            )
        try:
            type = message.type
            if session.state is not _CONNECTED:
                if session.state is State.CLOSED:
                    return []
                if type != "hub:connect":
                    raise refusals.hello_first()
            if session.bucket.rate_s and type not in UNLIMITED:
                self._charge(session, now)
            session.last_seen_ms = now
            handler = HANDLERS.get(type)
            if handler is None:
                raise refusals.unknown_type(type)
            return handler(self, session, message, now)
        except Refusal as refusal:
            return [self.replies.refuse(session, message, refusal, now)]

    def _charge(self, session: Session, now: int) -> None:
        """One token for one message."""
        if not session.bucket.take(now):
            self.tally.rate_limited += 1
            retry_after_ms = max(1, session.bucket.retry_after_ms(now))
            raise refusals.rate_limited(session.bucket.rate_s, retry_after_ms)

    def closed(self, session: Session, now: int) -> list[Effect]:
        """A socket is gone, or about to be. Harmless when repeated."""
        if session.state is State.CLOSED:
            return []
        session.state = State.CLOSED
        self.sessions.pop(session, None)
        self.identities.remove(session)
        self.topics.leave(session)
        self._token_ends_ms.pop(session, None)
        self.tally.connections_closed += 1
        for consumer in list(session.consumers.values()):
            mailboxes.detach(self, consumer, now)
        addresses = list(session.registrations)
        for address in addresses:
            self.registry.remove(address)
        # After a planned stop the durable tier still expects the actors back.
        return [Forget(addresses)] if addresses and not self.is_draining else []

    # What became of the effects.

    def handed_over(self, receipt: Receipt | Attempt, now: int) -> list[Effect]:
        """The bytes of an ask, or of a dispatched message, are the kernel's."""
        if isinstance(receipt, Attempt):
            return ask.attempt_handed_over(self, receipt, now)
        return ask.handed_over(self, receipt, now)

    def undelivered(self, receipt: Receipt | Attempt, now: int) -> list[Effect]:
        """The target's socket went away, or the message expired, before the bytes could leave."""
        if isinstance(receipt, Attempt):
            return ask.attempt_lost(self, receipt, now)
        return ask.undelivered(self, receipt, now)

    def overflowed(self, receipt: Receipt, waiting: int, now: int) -> list[Effect]:
        """The target reads so slowly that the ask could not even wait."""
        return ask.overflowed(self, receipt, waiting, now)

    def unblocked(self, session: Session) -> None:
        """The socket takes messages again, so its consumers have room."""
        for consumer in session.consumers.values():
            self.dispatcher.wake(consumer.subscription)

    def hold(self, sender: Session, address: str, now: int) -> list[Effect]:
        """Ask a sender to hold its tells to one address."""
        self.tally.paused += 1
        payload = wire.encode({"reason": "outbound_queue_full", "target": address})
        return [self.replies.notice(sender, "hub:pause", payload, now)]

    def resume(self, held: list[tuple[Session, str]], now: int) -> list[Effect]:
        """Let held senders go on."""
        self.tally.resumed += len(held)
        return [
            self.replies.notice(sender, "hub:resume", wire.encode({"target": address}), now)
            for sender, address in held
            if sender.state is State.CONNECTED
        ]

    def fanned_out(self, receipt: FanReceipt, queued: int, failed: int, now: int) -> list[Effect]:
        """The copies of a publish or broadcast are queued."""
        return route.fanned_out(self, receipt, queued, failed, now)

    # The log.

    def refused(self, appends: list[Append], refusal: Refusal, now: int) -> list[Effect]:
        """The log took none of these, which is everything that was on its way."""
        self.streams.take_back()
        self.tally.append_refused += len(appends)
        # What was done last is undone first; the answers come in the order of the requests.
        effects = [append.refused(refusal, now) for append in reversed(appends)]
        return [effect for some in reversed(effects) for effect in some]

    def dispatch(self, now: int) -> list[Effect]:
        """Once per turn of the loop: run what is woken or due, write what was settled."""
        effects = self.dispatcher.run(now)
        if self.loose:
            deliveries, self.loose = self.loose, []
            body = encode_body(Settled("", 0, deliveries))
            entry = Entry(Kind.SETTLED, "", 0, 0, now, body)
            # The log may have no room: nobody waits for these, and only the audit will miss them.
            effects.append(Append(entry))
        return effects

    @property
    def next_dispatch_ms(self) -> float:
        """When `dispatch` has to be called if nothing else happens."""
        return 0 if self.loose else self.dispatcher.next_due_ms()

    @property
    def has_woken(self) -> bool:
        """Is there something to dispatch or to write right now?"""
        return bool(self.loose or self.dispatcher.woken)

    def oldest_open(self, offset: int) -> int:
        """Where the oldest unanswered ask or unfinished erasure is, if it is before this."""
        asked = [one.offset for one in self.asks.values() if one.offset >= 0]
        orphans = (one.offset for one in self.orphans.values())
        return self.erasures.oldest(min([offset, *asked, *orphans]))

    def count_subscriptions(self) -> int:
        """Durable ones, mailboxes excepted."""
        return sum(len(topic.subscriptions) for topic in self.streams.topics.values())

    # Time and life cycle.

    def restore(self, rows: Iterable[tuple[str, int, int]]) -> None:
        """Remember (address, version, expires_at_ms) from before a restart."""
        for address, version, expires_at_ms in rows:
            self.registry.restore(address, version, expires_at_ms)

    def watch_token(self, session: Session) -> None:
        """End the session when its token does, unless it is refreshed by then."""
        if session.claims is None:
            return
        ends_ms = session.claims.expires_at_s * 1000
        self._token_ends_ms[session] = ends_ms
        self._next_token_end_ms = min(self._next_token_end_ms, ends_ms)

    def tick(self, now: int) -> list[Effect]:
        """Once a second: leases, tokens, the dedup window, pushed heartbeats."""
        jumped_ms = now - self._ticked_ms - _TICK_MS
        if self._ticked_ms and abs(jumped_ms) > _JUMP_MS:
            self.dispatcher.clock_jumped(jumped_ms, now)
        self._ticked_ms = now
        self.window.tick(now)
        self.dedup.sweep(now)
        self._give_up_orphans(now)
        rooms = self.rooms.tick(now)
        effects = self.storage.tick() + rooms + self.erasures.tick(now) + self._end_tokens(now)
        if not self._to_sweep and self._sweep.is_due(now):
            self._to_sweep = list(self.registry)
            self._slice = -(-len(self._to_sweep) * 1000 // self._sweep.period_ms)
            self._sweep.period_ms = self._sweep_ms()
            gone = self.registry.expire_away(now)
            if gone:
                effects.append(Forget(gone))
            effects.extend(mailboxes.expire(self, now))
        effects.extend(self._persist_renewed(now))
        if self.settings.heartbeat_push_s and self._push.is_due(now):
            payload = control.heartbeat_payload(b"%d" % now, now)
            effects.extend(
                self.replies.notice(session, "hub:heartbeat_ack", payload, now)
                for session in self.sessions
                if session.state is State.CONNECTED
            )
        return effects

    def _give_up_orphans(self, now: int) -> None:
        oldest_ms = now - self.settings.dedup.window_s * 1000
        for key, orphan in list(self.orphans.items()):
            if orphan.at_ms < oldest_ms:
                del self.orphans[key]
                self.loose.append(Settlement(0, orphan.offset, Outcome.GONE, 0))

    def _sweep_ms(self) -> int:
        """Often enough that the durable tier never thinks a living actor's lease has ended."""
        at_most = int(self.settings.registry.sweep_s * 1000)
        return max(_SWEEP_MS_MIN, min(at_most, self.registry.lease_ms_min // 3))

    def _persist_renewed(self, now: int) -> list[Effect]:
        """A slice of the registry: what was renewed by more than a third of its lease is written.

        Slices keep a full registry from holding up the loop.
        """
        effects: list[Effect] = []
        for registration in islice(self._to_sweep, self._slice):
            # It may have been removed or replaced since the sweep began.
            if self.registry.get(registration.address) is not registration:
                continue
            until = registration.expires_at_ms()
            if until - registration.persisted_until_ms >= registration.lease_ms / 3:
                registration.note_persisted()
                effects.append(Persist(registration))
        del self._to_sweep[: self._slice]
        return effects

    def _end_tokens(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        if now < self._next_token_end_ms:
            return effects
        ended = [session for session, ends_ms in self._token_ends_ms.items() if ends_ms <= now]
        for session in ended:
            text = "The token has expired."
            effects.extend(self.dismiss(session, "unauthorized", text, 1008, now))
        self._next_token_end_ms = min(self._token_ends_ms.values(), default=math.inf)
        return effects

    def drain(self, now: int) -> list[Effect]:
        """Say goodbye to everybody before a planned stop."""
        self.is_draining = True
        effects: list[Effect] = [
            Persist(registration)
            for registration in self.registry
            if registration.has_changed_since_persisted()
        ]
        for session in list(self.sessions):
            effects.extend(
                self.dismiss(session, "server_shutdown", "The hub is stopping.", 1001, now)
            )
        return effects + self.rooms.drain()

    def dismiss(
        self, session: Session, reason: str, text: str, code: int, now: int
    ) -> list[Effect]:
        """Tell a session why it must go, clean up after it and close it."""
        payload = wire.encode({"reason": reason, "message": text})
        notice = self.replies.notice(session, "hub:disconnect", payload, now)
        return [notice, *self.closed(session, now), Close(session, code, reason)]

    def degradations(self) -> list[str]:
        """What an operator should know about; empty when all is well."""
        found = []
        if self.registry.utilization > self.settings.registry.warn_above:
            found.append("registry_near_capacity")
        if self.dedup.is_shortened:
            found.append("dedup_window_shortened")
        return found

    def failed(self, session: Session, frame: bytes, now: int) -> list[Effect]:
        """The hub itself stumbled over this frame; tell the sender, keep the socket."""
        try:
            message = wire.decode(frame)
        except (NotJson, NotEnvelope):
            return self._refuse_unread(session, refusals.failed(), now)
        return [self.replies.refuse(session, message, refusals.failed(), now)]

    def _refuse_unread(
        self,
        session: Session,
        refusal: Refusal,
        now: int,
        *,
        sender: str | None = None,
        message_id: str | None = None,
    ) -> list[Effect]:
        """Answer a frame that could not be read as an envelope; it costs a token all the same."""
        if refusal.code != Code.MALFORMED_MESSAGE:
            try:
                self._charge(session, now)
            except Refusal as broke:
                refusal = broke
        return [self.replies.refuse_unread(session, refusal, now, sender, message_id)]
