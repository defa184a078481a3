"""Asks: at least once, through the log.

An ask is written to the log first. An actor with a mailbox gets it through the mailbox: at once if
the actor is connected and nothing is queued before the ask, otherwise later. An actor without a
mailbox gets it now or never. The sender is told `delivered` once the bytes are written to the
socket, `queued` if the ask waits in a mailbox.

Messages that a session sends to the same recipient after an ask wait until the ask is on disk, to
keep the order. Messages to other recipients do not wait.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import Raw

from signalhub.core import refusals, requests
from signalhub.core.effects import (
    Append,
    AppendRun,
    Deliver,
    Effect,
    FanOut,
    Note,
    Reply,
    ReplyRuns,
)
from signalhub.core.messages.audience import Audience
from signalhub.core.messages.dedup import KnownAck, Status
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.streams.streams import Held, Mailbox, Topic
from signalhub.wire import envelope as wire
from signalhub.wire.entry import (
    Entry,
    Kind,
    MessageBody,
    Outcome,
    SettledBody,
    Settlement,
    decode_body,
    encode_body,
)
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Code, Refusal, unworded
from signalhub.wire.names import ADDRESS_CHARS_MAX

if TYPE_CHECKING:
    from signalhub.clock import Ids
    from signalhub.core.log_state import LogState
    from signalhub.core.messages.dedup import Dedup
    from signalhub.core.messages.publish import PublishReceipt, RunReceipt
    from signalhub.core.messages.runs import AskRun
    from signalhub.core.replies import Replies
    from signalhub.core.sessions.registry import Registry
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.dispatcher import Dispatcher
    from signalhub.counters import Tally
    from signalhub.settings.model import Settings


class AskReceipt(msgspec.Struct, eq=False):
    """An ask in progress: as it was decoded, or as the native part has read it."""

    asks: Asks
    session: Session
    run: AskRun | None
    decoded: Envelope | None
    body: MessageBody | None
    copy_id: bytes
    askers: list[Session]
    target: str
    received_at_ms: int
    expires_at: float | None
    key: bytes  # The key for de-duplication.
    mailbox: Mailbox | None
    seq: int = 0
    offset: int = -1
    entry: Entry | None = None
    # It may have been delivered before a restart.
    is_doubtful: bool = False
    # Messages of the same sender to the same recipient that wait until this ask is on disk.
    behind: list[Deliver | FanOut] | None = None
    order: int = 0

    @property
    def message(self) -> Envelope:
        """The request."""
        if self.decoded is None:
            assert self.run is not None
            self.decoded = wire.decode(self.run.messages()[0])
        return self.decoded

    @property
    def stored(self) -> MessageBody:
        """The body of its entry."""
        if self.body is None:
            assert self.entry is not None
            self.body = decode_body(MessageBody, self.entry.body)
        return self.body

    @property
    def listening(self) -> list[Session]:
        """The askers that are still connected."""
        return [asker for asker in self.askers if asker.state is SessionState.CONNECTED]

    def committed(self, offset: int, now: int) -> list[Effect]:
        """The ask is on disk."""
        return self.asks.committed([self], offset, now)

    def refused(self, refusal: Refusal, now: int) -> list[Effect]:
        """The log rejected the ask."""
        return self.asks.refused(self, refusal, now)


class _Blanks:
    """Copies of asks that the native part has read, and answers to them, without their frames."""

    __slots__ = ("addresses", "answered", "answers", "copied", "copies", "rests")

    def __init__(self) -> None:
        self.copies: list[Deliver] = []
        self.copied: list[AskReceipt] = []
        self.addresses: list[bytes] = []
        self.answers: list[ReplyRuns] = []
        self.answered: list[AskRun] = []
        self.rests: list[bytes] = []


class Orphan(msgspec.Struct, frozen=True):
    """An ask of an earlier process to an actor without a mailbox; its outcome is unknown."""

    offset: int
    at_ms: int
    copy_id: bytes


class FanReceipt(msgspec.Struct, eq=False):
    """A publish or broadcast in progress; `topic` is `None` for a broadcast.

    Dead letters have no sender: `message` is `None` and no session is told. A broadcast sent as ask
    is pending from its acceptance until its entry is on disk.
    """

    session: Session | None
    message: Envelope | None
    topic: str | None
    received_at_ms: int
    expires_at: float | None
    durable: Topic | None = None
    # The sessions to answer. The answer to a broadcast, or the beginning of that to a publish.
    askers: list[Session] = msgspec.field(default_factory=list)
    answer: bytes = b""
    key: bytes = b""  # The key for de-duplication.
    offset: int = -1


# Asks, durable publishes and broadcasts in progress, by sender and id.
Pending: TypeAlias = "dict[bytes, AskReceipt | PublishReceipt | RunReceipt | FanReceipt]"

DELIVERED: Final = "delivered"
QUEUED: Final = "queued"
_STATUS: Final[dict[Status, bytes]] = {DELIVERED: b"delivered", QUEUED: b"queued"}
_UNKNOWN_RESOLUTION: Final = (
    "Check the address with hub:discover, or wait until the actor registers."
)


class Asks:
    """Accepts asks and delivers them."""

    def __init__(
        self,
        pending: Pending,
        dedup: Dedup,
        registry: Registry,
        streams: Streams,
        dispatcher: Dispatcher,
        storage: LogState,
        replies: Replies,
        ids: Ids,
        settings: Settings,
        tally: Tally,
    ) -> None:
        self._pending = pending
        self._dedup = dedup
        self._registry = registry
        self._streams = streams
        self._dispatcher = dispatcher
        self._storage = storage
        self._replies = replies
        self._next_id = ids.next
        self._many_ids = ids.many
        self._settings = settings
        self._tally = tally
        self._asked = 0  # The number of asks ever sent to the log.
        # Settlements of asks to actors without a mailbox, written once per tick.
        self.loose: list[Settlement] = []
        # Asks of an earlier process whose outcome is unknown, by sender and id.
        self.orphans: dict[tuple[str, str], Orphan] = {}

    def accept(
        self,
        session: Session,
        message: Envelope,
        request: requests.SendRequest,
        target: str,
        key: bytes,
        expires_at: float | None,
        now: int,
    ) -> list[Effect]:
        """Write a new ask to the log, or refuse it if it has no possible recipient."""
        mailbox = self._streams.mailboxes.get(target)
        if mailbox is None:
            if self._registry.find(target, now) is None:
                return self._unknown(session, message, target, now)
        elif not mailbox.subscription.consumers:
            self.check_room(mailbox, 1, now)
        # An actor that is there can be reached without a log that is merely damaged.
        storage = self._storage
        is_unrecorded = mailbox is None and storage.fault is not None and storage.is_damaged
        if not is_unrecorded:
            storage.check()
        stored = MessageBody(
            message.id,
            self._next_id(),
            message.sender,
            request.type,
            bytes(request.data),
            bytes(message.metadata),
            message.ttl or None,
            expires_at,
        )
        receipt = AskReceipt(
            self,
            session,
            None,
            message,
            stored,
            stored.copy_id,
            [session],
            target,
            now,
            expires_at,
            key,
            mailbox,
        )
        self._pending[key] = receipt
        orphan = self.orphans.pop((message.sender, message.id), None) if self.orphans else None
        if orphan is not None:
            # An earlier process wrote it to the log; whether it was delivered is unknown.
            stored.copy_id = orphan.copy_id
            if mailbox is None:
                receipt.is_doubtful = True
                return receipt.committed(orphan.offset, now)
            # Its actor has got a mailbox since, which takes another entry.
            self.loose.append(Settlement(0, orphan.offset, Outcome.GONE, 0))
        if is_unrecorded:
            return self._unrecorded(receipt, now)
        return [self._append(receipt, encode_body(stored), now)]

    def accept_run(
        self, session: Session, run: AskRun, expires_at: int | None, now: int
    ) -> list[Effect] | None:
        """Write a new ask to the log, as `accept` does; `None` if it may need more.

        The caller has checked its sender and expiry, and charges nothing before.
        """
        storage, target = self._storage, run.to
        if storage.fault is not None or storage.is_behind():
            return None
        mailbox = self._streams.mailboxes.get(target)
        if mailbox is None:
            if self._registry.find(target, now) is None:
                return None
        elif not mailbox.subscription.consumers:
            # Whether it has room is known after looking for expired messages, which settles them.
            return None
        bucket = session.bucket
        if bucket.rate_s and bucket.left(now) < 1:
            return None
        key = run.key()
        if key in self._pending or self._dedup.find_by(key, now) is not None:
            return None
        if self.orphans and (run.sender, run.id) in self.orphans:
            return None
        if bucket.rate_s:
            bucket.take(now)
        copy_id = self._next_id()
        body = run.body(copy_id, expires_at)
        receipt = AskReceipt(
            self,
            session,
            run,
            None,
            None,
            copy_id,
            [session],
            target,
            now,
            expires_at,
            key,
            mailbox,
        )
        self._pending[key] = receipt
        return [self._append(receipt, body, now)]

    def _append(self, receipt: AskReceipt, body: bytes, now: int) -> AppendRun:
        # Nothing may fail between assigning a position and appending: that would leave a gap.
        mailbox, target, stream_epoch = receipt.mailbox, receipt.target, 0
        if mailbox is not None:
            receipt.seq = mailbox.assign()
            stream_epoch = mailbox.id
        receipt.session.asked(target, receipt)
        self._asked += 1
        receipt.order = self._asked
        receipt.entry = entry = Entry(Kind.MAIL, target, stream_epoch, receipt.seq, now, body)
        return AppendRun(entry, receipt.committed, receipt.refused, receipt=receipt)

    def _unknown(self, session: Session, message: Envelope, target: str, now: int) -> list[Effect]:
        if len(target) > ADDRESS_CHARS_MAX:
            raise refusals.structural(f"payload.to is longer than {ADDRESS_CHARS_MAX} characters")
        if self._registry.is_away(target, now):
            raise refusals.reconnecting(target)
        # Its mailbox may lie behind the damage.
        self._storage.check_known()
        return [self._unknown_actor(session, message, target, now)]

    def _unknown_actor(
        self,
        session: Session,
        message: Envelope,
        target: str,
        now: int,
        *,
        retryable: bool = False,
    ) -> Reply:
        """The one error that has a message type of its own."""
        self._tally.unknown_targets += 1
        self._tally.count_error(Code.UNKNOWN_ACTOR)
        payload = wire.encode(
            {
                "actorAddress": target,
                "code": Code.UNKNOWN_ACTOR,
                "message": f"The actor {target} is not registered with this hub.",
                "resolution": _UNKNOWN_RESOLUTION,
                "details": {"actorAddress": target},
                "retryable": retryable,
            }
        )
        trace = requests.trace_of(message)
        return self._replies.reply(session, message, "hub:unknown_actor", payload, now, trace)

    def waiting_in(self, mailbox: Mailbox, now: int) -> int:
        """How many messages wait in a mailbox, after settling the expired ones."""
        waiting = mailbox.waiting(now)
        if mailbox.subscription.settlements:
            self._dispatcher.wake(mailbox.subscription)
        return waiting

    def check_room(self, mailbox: Mailbox, count: int, now: int) -> None:
        """Refuse if the mailbox of an absent owner is full; an empty one accepts any size."""
        waiting = self.waiting_in(mailbox, now)
        limit, setting = self._settings.mailbox.limit, "mailbox.limit"
        if mailbox.is_host:
            limit, setting = self._settings.actors.mailbox_limit, "actors.mailbox_limit"
        if waiting and waiting + count > limit:
            self._tally.mailbox_full += 1
            raise refusals.mailbox_full(mailbox.name, waiting, limit, setting)

    # The order of messages behind an ask.

    def before_any(self, session: Session, audience: Audience) -> AskReceipt | None:
        """The latest ask to anyone in the audience that is not on disk yet, if there is one."""
        owners = {
            registration.session: ask
            for target, ask in session.unsynced.items()
            if (registration := self._registry.get(target)) is not None
        }
        found = [owners[one.session] for one in audience.recipients if one.session in owners]
        if session.barrier is not None:
            found.append(session.barrier)
        return max(found, key=lambda ask: ask.order, default=None)

    def committed(self, receipts: list[AskReceipt], offset: int, now: int) -> list[Effect]:
        """Asks are on disk, one after the other: deliver them."""
        effects: list[Effect] = []
        blanks = _Blanks()
        for at, receipt in enumerate(receipts, offset):
            receipt.offset = at
            try:
                if receipt.mailbox is None:
                    self._deliver(receipt, now, effects, blanks)
                elif not self._stored(receipt, receipt.mailbox, now, effects, blanks):
                    # Its mailbox does the rest.
                    continue
                receipt.session.synced(receipt)
                if receipt.behind is not None:
                    effects += release(receipt)
            except Exception as error:
                # The others must still be handled.
                effects.append(Note("a committed ask could not be handled", {}, unworded(error)))
        self._fill(blanks, now)
        return effects

    def _stored(
        self,
        receipt: AskReceipt,
        mailbox: Mailbox,
        now: int,
        effects: list[Effect],
        blanks: _Blanks,
    ) -> bool:
        """The ask is in a mailbox; `False` if it is answered after the next pass."""
        if mailbox.subscription.is_deleted:
            # The mailbox was deleted in the meantime.
            effects += self._gone(receipt, now)
            return True
        stored = receipt.stored
        held = Held(receipt.seq, receipt.offset, receipt.received_at_ms, stored, size_of(stored))
        self._streams.committed(mailbox, held)
        if receipt.expires_at is not None:
            mailbox.expires(receipt.seq, receipt.expires_at, receipt.offset)
        if mailbox.subscription.consumers:
            mailbox.arrived(receipt)
            self._dispatcher.wake(mailbox.subscription)
            return False
        self._queued(receipt, now, effects, blanks)
        return True

    def _deliver(
        self, receipt: AskReceipt, now: int, effects: list[Effect], blanks: _Blanks
    ) -> None:
        """Deliver to an actor without a mailbox."""
        registration = self._registry.find(receipt.target, now)
        if registration is None:
            effects += self._gone(receipt, now)
            return
        address_json, frame = registration.address_json, b""
        if receipt.run is None or receipt.is_doubtful:
            message, stored = receipt.message, receipt.stored
            frame = wire.forwarded(
                stored.copy_id,
                message,
                wire.encode(message.sender),
                address_json,
                stored.type,
                Raw(stored.data),
                self._replies.wall.shown(now),
                message.metadata,
                wire.REPEATED if receipt.is_doubtful else b"",
            )
        deliver = Deliver(
            registration.session,
            frame,
            receipt.session,
            receipt.target,
            receipt.expires_at,
            receipt,
        )
        effects.append(deliver)
        if not frame:
            blanks.copies.append(deliver)
            blanks.copied.append(receipt)
            blanks.addresses.append(address_json)

    def _fill(self, blanks: _Blanks, now: int) -> None:
        """Compose what is still blank, all of a kind in one call."""
        stamp_ms = self._replies.wall.shown(now)
        if blanks.copies:
            asks: list[Any] = [one.run for one in blanks.copied]
            ids = b"".join([one.copy_id for one in blanks.copied])
            frames = asks[0].copies(asks, ids, blanks.addresses, stamp_ms)
            for deliver, frame in zip(blanks.copies, frames, strict=True):
                deliver.frame = frame
        if blanks.answers:
            asks = blanks.answered
            ids = self._many_ids(len(asks))
            frames = iter(asks[0].answers(asks, ids, blanks.rests, stamp_ms))
            for some in blanks.answers:
                some.frames = list(islice(frames, len(some.sessions)))

    def _unrecorded(self, receipt: AskReceipt, now: int) -> list[Effect]:
        """Deliver an ask that the damaged log cannot record; its ack says so."""
        # Which ids were accepted before may lie behind the damage.
        receipt.is_doubtful = self._storage.gap is not None
        return self._delivered_singly(receipt, now)

    def _delivered_singly(self, receipt: AskReceipt, now: int) -> list[Effect]:
        effects: list[Effect] = []
        blanks = _Blanks()
        self._deliver(receipt, now, effects, blanks)
        self._fill(blanks, now)
        return effects

    def refused(self, receipt: AskReceipt, refusal: Refusal, now: int) -> list[Effect]:
        """The log rejected the ask: tell the sender, who may retry with the same id."""
        message = receipt.message
        if receipt.mailbox is None and isinstance(refusal, refusals.Damaged):
            return [*self._unrecorded(receipt, now), *release(receipt)]
        self._pending.pop(receipt.key, None)
        replies = [
            self._replies.refuse(asker, message, refusal, now) for asker in receipt.listening
        ]
        return [*replies, *release(receipt)]

    # Outcomes.

    def answer_fresh(self, mailbox: Mailbox, now: int) -> list[Effect]:
        """Answer the asks that the pass did not send: they wait in the mailbox."""
        effects: list[Effect] = []
        for receipt in mailbox.take_fresh():
            effects += self.queued(receipt, now)
            effects += release(receipt)
        return effects

    def queued(self, receipt: AskReceipt, now: int) -> list[Effect]:
        """Answer that the ask is queued, with the time of its acceptance."""
        effects: list[Effect] = []
        blanks = _Blanks()
        self._queued(receipt, now, effects, blanks)
        self._fill(blanks, now)
        return effects

    def _queued(
        self, receipt: AskReceipt, now: int, effects: list[Effect], blanks: _Blanks
    ) -> None:
        self._tally.queued_asks += 1
        self._accepted(receipt, receipt.received_at_ms, QUEUED, now, effects, blanks)

    def delivered(self, receipt: AskReceipt, now: int) -> list[Effect]:
        """The ask was written to the socket of a mailbox's owner."""
        self._tally.ask_latency.observe((now - receipt.received_at_ms) / 1000)
        effects: list[Effect] = []
        blanks = _Blanks()
        self._accepted(receipt, now, DELIVERED, now, effects, blanks)
        self._fill(blanks, now)
        return effects

    def _accepted(
        self,
        receipt: AskReceipt,
        at_ms: int,
        status: Status,
        now: int,
        effects: list[Effect],
        blanks: _Blanks,
    ) -> None:
        """Remember and answer an ask that is in a mailbox, or was until now."""
        stream = 0 if receipt.mailbox is None else receipt.mailbox.id
        ack = KnownAck(at_ms, status, seq=receipt.seq, stream=stream)
        self._pending.pop(receipt.key, None)
        self._dedup.remember_by(receipt.key, now, ack)
        self._answer(receipt, self._rest(ack), now, effects, blanks)

    def handed_over(self, receipts: list[AskReceipt], now: int) -> list[Effect]:
        """Settle asks to actors without a mailbox: they were written to their sockets."""
        effects: list[Effect] = []
        blanks = _Blanks()
        pending, loose = self._pending, self.loose
        keys: list[bytes] = []
        # How many were received when.
        received: dict[int, int] = {}
        for receipt in receipts:
            at_ms = receipt.received_at_ms
            received[at_ms] = received.get(at_ms, 0) + 1
            key, offset = receipt.key, receipt.offset
            keys.append(key)
            pending.pop(key, None)
            if offset >= 0:
                target = receipt.target
                loose.append(Settlement(0, offset, Outcome.WRITTEN, 1, 0, now, now, target))
        for at_ms, times in received.items():
            self._tally.ask_latency.observe((now - at_ms) / 1000, times)
        # Their acks have no positions.
        none = [0] * len(keys)
        self._dedup.remember_delivered(keys, now, now, none, none)
        rest = self._rest(KnownAck(now, DELIVERED))
        for receipt in receipts:
            self._answer(receipt, rest, now, effects, blanks)
        self._fill(blanks, now)
        return effects

    def _answer(
        self,
        receipt: AskReceipt,
        rest: bytes,
        now: int,
        effects: list[Effect],
        blanks: _Blanks,
    ) -> None:
        askers, run = receipt.askers, receipt.run
        if run is not None and len(askers) == 1:
            if receipt.session.state is SessionState.CONNECTED:
                if not effects or type(some := effects[-1]) is not ReplyRuns:
                    some = ReplyRuns([], [], [])
                    effects.append(some)
                    blanks.answers.append(some)
                some.sessions.append(receipt.session)
                some.counts.append(1)
                blanks.answered.append(run)
                blanks.rests.append(rest)
            return
        message = receipt.message
        for asker in askers:
            if asker.state is SessionState.CONNECTED:
                is_duplicate = asker is not receipt.session
                effects.append(self._ack(asker, message, rest, now, is_duplicate=is_duplicate))

    def delivery_ack(
        self,
        session: Session,
        message: Envelope,
        ack: KnownAck,
        now: int,
        *,
        is_duplicate: bool = False,
    ) -> Reply:
        """The answer to an ask, the first time and for every repeat."""
        return self._ack(session, message, self._rest(ack), now, is_duplicate=is_duplicate)

    def _ack(
        self, session: Session, message: Envelope, rest: bytes, now: int, *, is_duplicate: bool
    ) -> Reply:
        end = b',"duplicate":true}' if is_duplicate else b"}"
        payload = b'{"messageId":%b%b%b' % (wire.encode(message.id), rest, end)
        return self._replies.reply(session, message, "hub:delivery_ack", payload, now)

    def _rest(self, ack: KnownAck) -> bytes:
        """What an answer says about the outcome."""
        place = b""
        if ack.seq:
            epoch = wire.encode(self._streams.epoch_of(ack.stream))
            place = b',"epoch":%b,"seq":%d' % (epoch, ack.seq)
        return b',"deliveredAt":%d,"status":"%b"%b,"durability":"%b"' % (
            ack.at_ms,
            _STATUS[ack.status],
            place,
            self._storage.durability.encode(),
        )

    def undelivered(self, receipt: AskReceipt, now: int) -> list[Effect]:
        """The ask was not written: tell the sender, who may retry with the same id."""
        if receipt.expires_at is not None and receipt.expires_at < now:
            self._tally.expired_asks += 1
            self._settle(receipt, Outcome.EXPIRED)
            return self._withdraw(receipt, refusals.expired(receipt.message.ttl or 0), now)
        return self._gone(receipt, now)

    def _gone(self, receipt: AskReceipt, now: int) -> list[Effect]:
        """Refuse an ask whose recipient has left."""
        self._settle(receipt, Outcome.GONE)
        message = receipt.message
        self._pending.pop(receipt.key, None)
        return [
            self._unknown_actor(asker, message, receipt.target, now, retryable=True)
            for asker in receipt.listening
        ]

    def overflowed(self, receipt: AskReceipt, waiting: int, now: int) -> list[Effect]:
        """Refuse because the target's queue is full; the sender may retry later."""
        self._settle(receipt, Outcome.DROPPED)
        refusal = refusals.queue_full(receipt.target, waiting, self._settings.outbound)
        return self._withdraw(receipt, refusal, now)

    def _withdraw(self, receipt: AskReceipt, refusal: Refusal, now: int) -> list[Effect]:
        message = receipt.message
        self._pending.pop(receipt.key, None)
        return [self._replies.refuse(asker, message, refusal, now) for asker in receipt.listening]

    def _settle(self, receipt: AskReceipt, outcome: Outcome) -> None:
        """Note why an ask without a mailbox was not delivered; written at the end of the tick."""
        # Without an offset it is not in the log.
        if receipt.offset >= 0:
            target = receipt.target
            self.loose.append(Settlement(0, receipt.offset, outcome, 1, consumer=target))

    # Ticks and time.

    def write_settlements(self, now: int) -> list[Effect]:
        """Write the outcomes of asks without a mailbox since the last tick."""
        if not self.loose:
            return []
        deliveries, self.loose = self.loose, []
        body = encode_body(SettledBody("", 0, deliveries))
        # If the log has no room these are lost, which only an audit notices.
        return [Append(Entry(Kind.SETTLED, "", 0, 0, now, body))]

    def tick(self, now: int) -> None:
        """Give up orphans that are too old to be repeated."""
        oldest_ms = now - self._settings.dedup.window_s * 1000
        for key, orphan in list(self.orphans.items()):
            if orphan.at_ms < oldest_ms:
                del self.orphans[key]
                self.loose.append(Settlement(0, orphan.offset, Outcome.GONE, 0))

    def restore(self, sender: str, message_id: str, orphan: Orphan) -> None:
        """Add an ask of an earlier process whose outcome is unknown."""
        self.orphans[sender, message_id] = orphan

    def oldest(self, offset: int) -> int:
        """The offset of the oldest unanswered ask, `offset` at most."""
        pending = [one.offset for one in self._pending.values() if one.offset >= 0]
        orphans = (one.offset for one in self.orphans.values())
        return min([offset, *pending, *orphans])


def wait_behind(ask: AskReceipt, effect: Deliver | FanOut) -> list[Effect]:
    """Hold a message back until the ask before it is on disk."""
    if ask.behind is None:
        ask.behind = []
    ask.behind.append(effect)
    return []


def size_of(message: MessageBody) -> int:
    """The approximate size of a message in memory and on the wire."""
    return len(message.data) + len(message.metadata) + 256


def release(receipt: AskReceipt) -> list[Effect]:
    """Release the messages that waited behind the ask."""
    receipt.session.synced(receipt)
    behind, receipt.behind = receipt.behind, None
    return list(behind or ())
