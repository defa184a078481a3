"""The hub: frames go in, effects come out.

Rules that apply to all message types:

* before a session has connected, only `hub:connect` is served;
* every accepted frame renews the leases of its session;
* a structural error is answered whatever the pattern, and never ends the session;
* only a frame that is not JSON closes the socket.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Final

from signalhub.auth.denials import Denials
from signalhub.auth.session_tokens import SessionTokens
from signalhub.clock import Ids
from signalhub.core import refusals
from signalhub.core.effects import Append, Close, Deliver, DeliverRun, Effect, Note, Reply
from signalhub.core.erasure import Eraser, Erasures
from signalhub.core.jobs import JobList
from signalhub.core.limits.degradations import Degraded, near_capacity
from signalhub.core.limits.quotas import Quotas
from signalhub.core.limits.scans import Scans
from signalhub.core.limits.usage import Usage
from signalhub.core.log_state import LogState
from signalhub.core.messages.ask import AskReceipt, Asks, FanReceipt, Pending
from signalhub.core.messages.audience import Topics
from signalhub.core.messages.dedup import Dedup
from signalhub.core.messages.publish import Publisher, RunReceipt
from signalhub.core.messages.route import Router
from signalhub.core.messages.runs import PublishRun, Run
from signalhub.core.patterns.index import PatternIndex
from signalhub.core.patterns.join import PatternJoins
from signalhub.core.patterns.manage import PatternManagement
from signalhub.core.patterns.patterns import Patterns
from signalhub.core.placement import Placement, Placements
from signalhub.core.replay import Replayer, Replays
from signalhub.core.replies import Handler, Replies
from signalhub.core.rooms.recovery import RoomAnchors
from signalhub.core.rooms.rooms import Rooms
from signalhub.core.sessions.administer import Administration
from signalhub.core.sessions.control import Control, CounterWindow
from signalhub.core.sessions.logins import RefusedLogins
from signalhub.core.sessions.register import Directory
from signalhub.core.sessions.registry import Registry
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.sessions.sessions import Identities, Sessions
from signalhub.core.streams.catalog import Catalog
from signalhub.core.streams.dead_letters import DeadLetters
from signalhub.core.streams.mailboxes import Mailboxes
from signalhub.core.streams.recovery import Parts
from signalhub.core.streams.retention import Anchors, Pruning
from signalhub.core.streams.streams import Streams
from signalhub.core.subscriptions.blame import blame
from signalhub.core.subscriptions.dispatcher import Dispatcher, Passes
from signalhub.core.subscriptions.join import Subscriptions
from signalhub.core.subscriptions.manage import Management
from signalhub.core.subscriptions.settle import Settler
from signalhub.core.subscriptions.window import Attempt
from signalhub.core.wall_time import WallTime
from signalhub.counters import Tally
from signalhub.settings.model import Settings
from signalhub.wire import envelope as wire
from signalhub.wire.envelope import NotEnvelope, NotJson
from signalhub.wire.errors import Code, Refusal, unworded

if TYPE_CHECKING:
    from signalhub.auth.tokens import Authenticator, Claims

# Liveness and settling must not depend on how much else a session sends.
UNLIMITED: Final = frozenset(
    {
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

_CONNECTED = SessionState.CONNECTED
_RAW_PING_BYTES = len(wire.RAW_PING)
_TICK_MS = 1_000
# A tick this much too late means that the process was paused, or the machine suspended.
_OVERSLEPT_MS = 5_000

# Requests about what the log holds. A hub that could not read all of it cannot answer them, not
# even that something does not exist. Whether a topic is durable is a part of that.
ABOUT_THE_LOG: Final = frozenset(
    {
        *("hub:topic_create", "hub:topic_update", "hub:topic_info", "hub:topic_delete"),
        *("hub:list_topics", "hub:publish", "hub:replay", "hub:republish", "hub:erase"),
        *("hub:sub_info", "hub:sub_update", "hub:sub_pause", "hub:sub_resume", "hub:sub_delete"),
        "hub:sub_settle",
        *("hub:list_subs", "hub:seek", "hub:redrive", "hub:purge", "hub:place", "hub:move"),
        *(
            "hub:forget_place",
            "hub:limits",
            "hub:list_jobs",
            "hub:ack",
            "hub:nack",
            "hub:extend",
            "hub:term",
        ),
    }
)

# What the hub adds to a message that it passes on; together they stay within the limit.
HUB_FIELDS_BYTES: Final = 1_024
_FORWARDED: Final = frozenset({"hub:send", "hub:broadcast", "hub:publish"})


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
        self.tally = tally
        self._message_bytes_max = limit = settings.message_bytes_max
        self.forwarded_bytes_max = limit - min(HUB_FIELDS_BYTES, limit // 16)
        self._authenticator = authenticator
        self._ticked_ms = 0
        self._window = window = CounterWindow(tally)

        # State.
        self.storage = storage = LogState(settings.log.sync)
        self.wall = wall = WallTime()
        self.replies = replies = Replies(ids, tally, wall)
        self.quotas = quotas = Quotas(settings)
        self.scans = scans = Scans(replies, tally)
        # Requests for places, which do not wait for searches.
        self.placing = placing = Scans(replies, tally)
        self.registry = registry = Registry(
            settings.registry.limit, settings.registry.refuse_above, quotas
        )
        self.identities = identities = Identities()
        self.topics = topics = Topics(quotas, tally)
        self.dedup = dedup = Dedup(
            int(settings.dedup.window_s * 1000), settings.dedup.memory_bytes_max
        )
        self.pending: Pending = {}
        self.streams = streams = Streams(log_epoch, settings.log.cache_bytes, quotas)
        self.placements = placements = Placements(quotas)
        self.replays = replays = Replays()
        self.erasures = erasures = Erasures()
        self.logins = logins = RefusedLogins(tally)
        self.rooms = rooms = Rooms(
            settings.rooms, tally.rooms, storage, erasures, quotas, authenticator, logins, wall
        )

        # Behaviour; each object is given what it uses.
        self.dispatcher = dispatcher = Dispatcher(streams, wakes=settings.dispatch.wakes)
        index = PatternIndex()
        self.subscriptions = subscriptions = Subscriptions(
            streams, dispatcher, quotas, storage, replies, ids, settings, index
        )
        self.patterns = patterns = Patterns(
            index,
            streams,
            subscriptions,
            dispatcher,
            quotas,
            storage,
            settings,
        )
        self.asks = asks = Asks(
            self.pending,
            dedup,
            registry,
            streams,
            dispatcher,
            storage,
            replies,
            ids,
            settings,
            tally,
        )
        self.retention = retention = Pruning(streams, dispatcher, tally)
        self._publisher = publisher = Publisher(
            self.pending,
            dedup,
            topics,
            streams,
            dispatcher,
            patterns,
            retention,
            storage,
            replies,
            ids,
            settings,
            tally,
        )
        management = PatternManagement(
            patterns,
            subscriptions,
            Management(streams, subscriptions, dispatcher, scans, storage, replies),
            streams,
            dispatcher,
            scans,
            storage,
            replies,
        )
        catalog = Catalog(
            streams, subscriptions, dispatcher, storage, replies, quotas, scans, settings.topics
        )
        letters = DeadLetters(
            streams,
            catalog,
            publisher,
            dispatcher,
            erasures,
            storage,
            replies,
            ids,
            self.forwarded_bytes_max,
        )
        self._passes = Passes(
            dispatcher,
            asks,
            letters,
            retention,
            erasures,
            storage,
            replies,
            wall,
            settings.dispatch,
        )
        mailboxes = Mailboxes(
            streams,
            subscriptions,
            dispatcher,
            asks,
            registry,
            placements,
            storage,
            ids,
            settings,
            tally,
        )
        self.sessions = sessions = Sessions(
            identities, registry, topics, mailboxes.detach, quotas, replies, ids, settings, tally
        )
        self._directory = Directory(
            sessions,
            identities,
            registry,
            topics,
            streams,
            mailboxes,
            asks,
            quotas,
            scans,
            storage,
            replies,
            ids,
            settings,
            tally,
        )
        control = Control(
            sessions,
            identities,
            registry,
            topics,
            mailboxes,
            subscriptions,
            storage,
            replies,
            window,
            logins,
            settings,
            authenticator,
            session_tokens,
        )
        placement = Placement(
            placements,
            streams,
            registry,
            storage,
            replies,
            tally,
            quotas,
            placing,
            settings.actors,
        )
        self._router = Router(
            registry,
            topics,
            streams,
            dedup,
            self.pending,
            asks,
            publisher,
            catalog,
            subscriptions,
            PatternJoins(patterns, subscriptions, management),
            placement,
            storage,
            replies,
            ids,
            settings,
            tally,
        )
        self.replayer = Replayer(
            replays, streams, publisher, letters, asks, retention, erasures, storage, replies
        )
        eraser = Eraser(
            erasures,
            streams,
            mailboxes,
            registry,
            rooms,
            dispatcher,
            storage,
            replies,
            ids,
            replays.jobs,
        )
        anchored = (self.replayer, placement, RoomAnchors(rooms), patterns)
        self.anchors = Anchors(streams, dispatcher, anchored)
        self.parts = Parts(
            streams, mailboxes, asks, dedup, replays, placements, erasures, rooms, patterns
        )
        waiting_max = settings.outbound.total_bytes_max
        self.usage = Usage(quotas, sessions.__iter__, scans, storage, waiting_max)
        settler = Settler(streams, subscriptions, dispatcher, replies)
        self._run_handlers = self._router.run_handlers() | settler.run_handlers()
        self.handlers: Final[dict[str, Handler]] = {
            **control.handlers(),
            **Administration(sessions, replies).handlers(),
            **JobList(replays.jobs, replies).handlers(),
            **self._directory.handlers(),
            **placement.handlers(),
            **self._router.handlers(),
            **catalog.handlers(),
            **management.handlers(),
            **settler.handlers(),
            **self.replayer.handlers(),
            **letters.handlers(),
            **eraser.handlers(),
            **self.usage.handlers(),
        }

    # Events of a socket.

    def opened(
        self, link: object, now: int, source: str = "", *, has_socket: bool = True
    ) -> Session:
        """A socket was accepted from this network address, or requests come from it by HTTP."""
        return self.sessions.opened(link, now, source, has_socket=has_socket)

    def received(self, session: Session, frame: bytes, now: int) -> list[Effect]:
        """A message arrived; it is valid UTF-8 and within the frame limit."""
        self.tally.received += 1
        size = len(frame)
        if size == _RAW_PING_BYTES and frame == wire.RAW_PING:
            return [Reply(session, wire.RAW_PONG)]
        is_large = size > self.forwarded_bytes_max
        if is_large and size > self._message_bytes_max:
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
                if session.state is SessionState.CLOSED:
                    return []
                if type != "hub:connect":
                    raise refusals.hello_first()
            elif session.bucket.rate_s and type not in UNLIMITED:
                self.charge(session, now)
            session.last_seen_ms = now
            handler = self.handlers.get(type)
            if handler is None:
                raise refusals.unknown_type(type)
            if is_large and type in _FORWARDED:
                raise refusals.too_large(size, self.forwarded_bytes_max)
            if self.storage.gap is not None and type in ABOUT_THE_LOG:
                raise self.storage.gap
            return handler(session, message, now)
        except Refusal as refusal:
            return [self.replies.refuse(session, message, refusal, now)]

    def received_run(self, session: Session, run: Run, now: int) -> list[Effect] | None:
        """Messages of one read arrived; `None` if they have to be handled one by one."""
        if session.state is not _CONNECTED:
            return None
        if self.storage.gap is not None and run.KIND in ABOUT_THE_LOG:
            return None
        effects = self._run_handlers[run.KIND](session, run, now)
        if effects is not None:
            self.tally.received += run.count
        return effects

    def received_publishes(
        self, sessions: list[Session], runs: list[PublishRun], now: int
    ) -> tuple[int, list[Effect]]:
        """Publishes of several sessions arrived, in this order.

        Returns how many of the runs were handled, the first ones; the messages of the next one have
        to be handled one by one if there are none.
        """
        count, effects = self._router.publish_runs(sessions, runs, now)
        self.tally.received += sum([one.count for one in runs[:count]])
        return count, effects

    def singly(self, effect: DeliverRun) -> list[Deliver]:
        """The tells of a run to a session that does not take them all at once."""
        return self._router.singly(effect)

    def charge(self, session: Session, now: int) -> None:
        """Take one token for one message."""
        if not session.bucket.take(now):
            self.tally.rate_limited += 1
            retry_after_ms = max(1, session.bucket.retry_after_ms(now))
            raise refusals.rate_limited(session.bucket.rate_s, retry_after_ms)

    def closed(self, session: Session, now: int, code: int | None = None) -> list[Effect]:
        """A socket has closed or is about to, by its client with `code` if given. Idempotent."""
        if code is not None:
            blame(session, code, now)
        return self.sessions.closed(session, now)

    # Outcomes of effects.

    def handed_over(self, receipts: list[AskReceipt | Attempt], now: int) -> list[Effect]:
        """Asks or dispatched messages were written to their sockets."""
        effects: list[Effect] = []
        asks: list[AskReceipt] = []
        for receipt in receipts:
            if type(receipt) is AskReceipt:
                asks.append(receipt)
                continue
            assert isinstance(receipt, Attempt)
            if asks:
                effects += self.asks.handed_over(asks, now)
                asks = []
            effects += self._passes.handed_over(receipt, now)
        return effects + self.asks.handed_over(asks, now) if asks else effects

    def undelivered(self, receipt: AskReceipt | Attempt, now: int) -> list[Effect]:
        """The socket closed, or the message expired, before the message was written."""
        if isinstance(receipt, Attempt):
            return self._passes.lost(receipt, now)
        return self.asks.undelivered(receipt, now)

    def overflowed(self, receipt: AskReceipt, waiting: int, now: int) -> list[Effect]:
        """The target's queue is full, so the ask was not queued."""
        return self.asks.overflowed(receipt, waiting, now)

    def unblocked(self, session: Session) -> None:
        """The socket accepts messages again, so its consumers have room."""
        for consumer in session.consumers.values():
            consumer.wake(self.dispatcher)

    def hold(self, sender: Session, address: str, now: int) -> list[Effect]:
        """Ask a sender to hold its tells to one address."""
        return self.sessions.hold(sender, address, now)

    def resume(self, held: list[tuple[Session, str]], now: int) -> list[Effect]:
        """Tell held senders to resume."""
        return self.sessions.resume(held, now)

    def fanned_out(self, receipt: FanReceipt, queued: int, failed: int, now: int) -> list[Effect]:
        """The copies of a publish or broadcast are queued."""
        return self._router.fanned_out(receipt, queued, failed, now)

    # The log.

    def refused(
        self, appends: list[Append], refusal: Refusal, now: int, unknown: int = 0
    ) -> list[Effect]:
        """The log rejected all pending entries; the first `unknown` may be on disk nevertheless."""
        self.streams.take_back()
        doubt = refusals.outcome_unknown()
        ends = list(accumulate(one.entry.count for one in appends))
        self.tally.append_refused += ends[-1] if ends else 0
        # Undo in reverse order, but answer in the order of the requests.
        effects = [
            _undone(one, doubt if end <= unknown else refusal, now)
            for one, end in zip(reversed(appends), reversed(ends), strict=True)
        ]
        return [effect for some in reversed(effects) for effect in some]

    def committed_runs(
        self, receipts: list[RunReceipt | AskReceipt], offset: int, now: int
    ) -> list[Effect]:
        """Publishes and asks are on disk, the first of them at this offset."""
        effects: list[Effect] = []
        for kind, group in groupby(receipts, type):
            some: list[Any] = list(group)
            if kind is AskReceipt:
                effects += self.asks.committed(some, offset, now)
                offset += len(some)
            else:
                effects += self._publisher.committed_runs(some, offset, now)
                offset += sum([one.entry.count for one in some])
        return effects

    def dispatch(self, now: int) -> list[Effect]:
        """Run what is woken or due, and write settlements; called once per tick."""
        effects = self._passes.run(now)
        if self.scans.waiting:
            effects += self.scans.turn(now)
        if self._may_place:
            effects += self.placing.turn(now)
        if self.patterns.has_work:
            effects += self.patterns.turn(now)
        return effects + self.asks.write_settlements(now) if self.asks.loose else effects

    @property
    def next_dispatch_ms(self) -> float:
        """When to call `dispatch` if nothing else happens."""
        return 0 if self.has_woken else self.dispatcher.next_due_ms()

    @property
    def has_woken(self) -> bool:
        """Is there anything to dispatch or to write now?"""
        return bool(
            self.asks.loose
            or self.dispatcher.woken
            or self.dispatcher.serving
            or self.scans.waiting
            or self.patterns.has_work
            or self._may_place
        )

    @property
    def _may_place(self) -> bool:
        """Does a request for many places wait only for its turn?"""
        return bool(self.placing.waiting) and not self.placements.are_enough_coming

    def oldest_open(self, offset: int) -> int:
        """The offset of the oldest unanswered ask or unfinished erasure, `offset` at most."""
        return self.erasures.oldest(self.asks.oldest(offset))

    # Time and life cycle.

    def restore(self, rows: Iterable[tuple[str, int, int]]) -> None:
        """Restore registrations (address, version, expires_at_ms) after a restart."""
        for address, version, expires_at_ms in rows:
            self.registry.restore(address, version, expires_at_ms)

    def tick(self, now: int) -> list[Effect]:
        """Once a second: expire leases, tokens and dedup records, push heartbeats."""
        overslept_ms = now - self._ticked_ms - _TICK_MS
        if self._ticked_ms and overslept_ms > _OVERSLEPT_MS:
            self.dispatcher.overslept(overslept_ms, now)
        self._ticked_ms = now
        self._window.tick(now)
        self.dedup.sweep(now)
        self.asks.tick(now)
        rooms = self.rooms.tick(now)
        return [
            *self.storage.tick(),
            *rooms,
            *self.erasures.tick(now),
            *self.subscriptions.expire(now),
            *self.patterns.tick(now),
            *self.sessions.end_tokens(now),
            *self.logins.tick(now),
            *self._directory.tick(now),
            *self.sessions.push_heartbeats(now),
        ]

    def deny(self, denials: Denials, now: int) -> list[Effect]:
        """The denial list has changed: end the sessions of those on it."""
        authenticator = self._authenticator
        if authenticator is None:
            return []
        authenticator.use_denials(denials)
        wall_s = self.wall.shown(now) / 1000

        def is_denied(claims: Claims) -> bool:
            return authenticator.is_denied(claims, wall_s)

        return [
            *self.sessions.end_denied(is_denied, now),
            *self.rooms.end_matching(is_denied, "The token has been revoked."),
        ]

    @property
    def is_draining(self) -> bool:
        """Is the hub shutting down?"""
        return self.sessions.is_draining

    def drain(self, now: int) -> list[Effect]:
        """Tell every session that the hub is shutting down."""
        return [*self._directory.drain(), *self.sessions.drain(now), *self.rooms.drain()]

    def degradations(self) -> list[Degraded]:
        """Problems an operator should know about; empty if there are none."""
        found = []
        if self.registry.utilization > self.settings.registry.warn_above:
            found.append(Degraded.REGISTRY_NEAR_CAPACITY)
        warn_above = self.settings.limits.warn_above
        found += near_capacity(self.quotas, warn_above)
        if self.rooms.state.bytes > warn_above * self.settings.rooms.state_bytes_max:
            found.append(Degraded.ROOM_STATE_NEAR_CAPACITY)
        if self.dedup.is_shortened:
            found.append(Degraded.DEDUP_WINDOW_SHORTENED)
        return found + self.rooms.degradations()

    # Frames that cannot be served.

    def failed(self, session: Session, frame: bytes, now: int) -> list[Effect]:
        """An internal error occurred on this frame: tell the sender, keep the socket."""
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
        """Answer a frame that is not an envelope; it takes a token like any other."""
        if refusal.code != Code.MALFORMED_MESSAGE:
            try:
                self.charge(session, now)
            except Refusal as broke:
                refusal = broke
        return [self.replies.refuse_unread(session, refusal, now, sender, message_id)]


def _undone(append: Append, refusal: Refusal, now: int) -> list[Effect]:
    try:
        return append.refused(refusal, now)
    except Exception as error:
        # The other entries must still be taken back and answered.
        return [Note("a refused entry could not be handled", {}, unworded(error))]
