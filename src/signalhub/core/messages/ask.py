"""Asks: at least once, through the log.

An ask is written to the log before anything else happens to it. An actor with a mailbox gets it
through the mailbox: at once if it is there and nothing waits before it, else later. An actor
without one gets it now or not at all. The sender is told `delivered` when the bytes are the
kernel's, `queued` when they wait in a mailbox.

What a session sends to a recipient after an ask waits until the ask is on disk, so that the order
holds; other recipients do not wait.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Deliver, Effect, FanOut, Reply
from signalhub.core.messages.dedup import KnownAck, Status
from signalhub.core.messages.topics import Audience
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
    encode_body,
)
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Code, Refusal
from signalhub.wire.names import ADDRESS_CHARS_MAX

if TYPE_CHECKING:
    from signalhub.clock import Ids
    from signalhub.core.messages.dedup import Dedup
    from signalhub.core.replies import Replies
    from signalhub.core.sessions.registry import Registry
    from signalhub.core.storage import LogState
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.dispatcher import Dispatcher
    from signalhub.counters import Tally
    from signalhub.settings.model import Settings


class AskReceipt(msgspec.Struct, eq=False):
    """An ask on its way."""

    session: Session
    message: Envelope
    askers: list[Session]
    target: str
    received_at_ms: int
    expires_at: float | None
    stored: MessageBody
    key: bytes  # What it is known by while it is on its way, and after that.
    mailbox: Mailbox | None = None
    seq: int = 0
    offset: int = -1
    # It may have been delivered before a restart.
    is_doubtful: bool = False
    # What the same sender sent to the same recipient after it, while it was not on disk.
    behind: list[Deliver | FanOut] | None = None
    order: int = 0

    @property
    def listening(self) -> list[Session]:
        """The askers who are still there."""
        return [asker for asker in self.askers if asker.state is SessionState.CONNECTED]


class Orphan(msgspec.Struct, frozen=True):
    """An ask from before a restart, to an actor without a mailbox, whose fate is not known."""

    offset: int
    at_ms: int
    copy_id: bytes


class FanReceipt(msgspec.Struct, eq=False):
    """A publish or broadcast on its way; `topic` is `None` for a broadcast.

    Dead letters are published by nobody: there is no message, and no session to be told.
    """

    session: Session | None
    message: Envelope | None
    topic: str | None
    received_at_ms: int
    expires_at: float | None
    # Of a durable topic: whom to tell, and how the answer begins.
    durable: Topic | None = None
    askers: list[Session] = msgspec.field(default_factory=list)
    answer: bytes = b""


class PublishReceipt(msgspec.Struct, eq=False):
    """A durable publish on its way to the log."""

    message: Envelope | None
    askers: list[Session]
    topic: Topic
    seq: int
    stored: MessageBody
    at_ms: int
    size: int
    key: bytes = b""
    offset: int = -1


class Told(msgspec.Struct, eq=False):
    """A broadcast as ask: its sender hears how many got it, and hears the same if it asks again."""

    session: Session
    message: Envelope
    askers: list[Session]
    payload: bytes
    key: bytes
    offset: int = -1


# What is on its way, by sender and id.
Pending = dict[bytes, AskReceipt | PublishReceipt | Told]

DELIVERED: Final = "delivered"
QUEUED: Final = "queued"
_UNKNOWN_RESOLUTION: Final = (
    "Check the address with hub:discover, or wait until the actor registers."
)


class Asks:
    """Asks on their way to their recipients."""

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
        self._settings = settings
        self._tally = tally
        self._asked = 0  # How many asks were ever sent to the log.
        # Settlements of asks to actors without a mailbox, written once per turn.
        self.loose: list[Settlement] = []
        # Such asks from before a restart whose fate is not known, by sender and id.
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
        """An ask that was not accepted before: to the log with it, unless nobody could get it."""
        mailbox = self._streams.mailboxes.get(target)
        if mailbox is None:
            if self._registry.find(target, now) is None:
                return self._unknown(session, message, target, now)
        elif not mailbox.subscription.consumers:
            self.check_room(mailbox, 1, now)
        self._storage.check()
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
            session, message, [session], target, now, expires_at, stored, key, mailbox
        )
        self._pending[key] = receipt
        orphan = self.orphans.pop((message.sender, message.id), None)
        if orphan is not None and mailbox is None:
            # It is in the log from before a restart, and whether it was delivered nobody knows.
            receipt.is_doubtful = True
            stored.copy_id = orphan.copy_id
            return self._committed(receipt, orphan.offset, now)
        # Nothing may fail between a position and its entry: that would leave a hole.
        body = encode_body(stored)
        if mailbox is not None:
            receipt.seq = mailbox.assign()
        session.asked(target, receipt)
        self._asked += 1
        receipt.order = self._asked
        stream_epoch = 0 if mailbox is None else mailbox.id
        entry = Entry(Kind.MAIL, target, stream_epoch, receipt.seq, now, body)
        return [Append(entry, partial(self._committed, receipt), partial(self._refused, receipt))]

    def _unknown(self, session: Session, message: Envelope, target: str, now: int) -> list[Effect]:
        if len(target) > ADDRESS_CHARS_MAX:
            raise refusals.structural(f"payload.to is longer than {ADDRESS_CHARS_MAX} characters")
        if self._registry.is_away(target, now):
            raise refusals.reconnecting(target)
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
        """The one error both kinds of clients know by its own type."""
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
        """How many messages wait; what has expired meanwhile is settled, and that is written."""
        waiting = mailbox.waiting(now)
        if mailbox.subscription.settlements:
            self._dispatcher.wake(mailbox.subscription)
        return waiting

    def check_room(self, mailbox: Mailbox, count: int, now: int) -> None:
        """A mailbox whose owner is away takes only so much; an empty one takes what comes."""
        limit, setting = self._settings.mailbox.limit, "mailbox.limit"
        if mailbox.is_host:
            limit, setting = self._settings.actors.mailbox_limit, "actors.mailbox_limit"
        waiting = self.waiting_in(mailbox, now)
        if waiting and waiting + count > limit:
            self._tally.mailbox_full += 1
            raise refusals.mailbox_full(mailbox.name, waiting, limit, setting)

    # The order of what follows an ask.

    def before_any(self, session: Session, audience: Audience) -> AskReceipt | None:
        """The latest ask to anybody in an audience, if one is not on disk yet."""
        owners = {
            registration.session: ask
            for target, ask in session.unsynced.items()
            if (registration := self._registry.get(target)) is not None
        }
        found = [owners[one.session] for one in audience.recipients if one.session in owners]
        if session.barrier is not None:
            found.append(session.barrier)
        return max(found, key=lambda ask: ask.order, default=None)

    def _committed(self, receipt: AskReceipt, offset: int, now: int) -> list[Effect]:
        """The ask is on disk: deliver it."""
        receipt.offset = offset
        mailbox = receipt.mailbox
        if mailbox is None:
            return [*self._deliver(receipt, now), *release(receipt)]
        if mailbox.subscription.is_deleted:
            # Its owner has given the mailbox up meanwhile.
            return [*self._gone(receipt, now), *release(receipt)]
        stored = receipt.stored
        held = Held(receipt.seq, offset, receipt.received_at_ms, stored, size_of(stored))
        self._streams.committed(mailbox, held)
        if receipt.expires_at is not None:
            mailbox.expires(receipt.seq, receipt.expires_at, offset)
        if not mailbox.subscription.consumers:
            return [*self.queued(receipt, now), *release(receipt)]
        mailbox.arrived(receipt)
        self._dispatcher.wake(mailbox.subscription)
        return []

    def _deliver(self, receipt: AskReceipt, now: int) -> list[Effect]:
        """To an actor without a mailbox."""
        registration = self._registry.find(receipt.target, now)
        if registration is None:
            return self._gone(receipt, now)
        message, stored = receipt.message, receipt.stored
        metadata = message.metadata
        if receipt.is_doubtful:
            metadata = wire.with_delivery(metadata, {"attempt": 2, "redelivered": True})
        frame = wire.forwarded(
            stored.copy_id,
            message,
            registration.address_json,
            stored.type,
            Raw(stored.data),
            now,
            metadata,
        )
        session = registration.session
        deliver = Deliver(
            session, frame, receipt.session, receipt.target, receipt.expires_at, receipt
        )
        return [deliver]

    def _refused(self, receipt: AskReceipt, refusal: Refusal, now: int) -> list[Effect]:
        """The log did not take it: the sender may try again with the same id, or must be told."""
        message = receipt.message
        self._pending.pop(receipt.key, None)
        replies = [
            self._replies.refuse(asker, message, refusal, now) for asker in receipt.listening
        ]
        return [*replies, *release(receipt)]

    # What becomes of it then.

    def answer_fresh(self, mailbox: Mailbox, now: int) -> list[Effect]:
        """What the pass did not send waits in the mailbox."""
        effects: list[Effect] = []
        for receipt in mailbox.take_fresh():
            effects += self.queued(receipt, now)
            effects += release(receipt)
        return effects

    def queued(self, receipt: AskReceipt, now: int) -> list[Effect]:
        """It waits for its recipient; the time in the answer is that of its acceptance."""
        self._tally.queued_asks += 1
        return self._answer(receipt, _ack(receipt, receipt.received_at_ms, QUEUED), now)

    def delivered(self, receipt: AskReceipt, now: int) -> list[Effect]:
        """The recipient's bytes are the kernel's."""
        self._tally.ask_latency.observe((now - receipt.received_at_ms) / 1000)
        return self._answer(receipt, _ack(receipt, now, DELIVERED), now)

    def _answer(self, receipt: AskReceipt, ack: KnownAck, now: int) -> list[Effect]:
        message = receipt.message
        self._pending.pop(receipt.key, None)
        self._dedup.remember_by(receipt.key, now, ack)
        return [
            self.delivery_ack(asker, message, ack, now, is_duplicate=asker is not receipt.session)
            for asker in receipt.listening
        ]

    def delivery_ack(
        self,
        session: Session,
        message: Envelope,
        ack: KnownAck,
        now: int,
        *,
        is_duplicate: bool = False,
    ) -> Reply:
        """What the sender is told, the first time and every time after."""
        payload: dict[str, object] = {
            "messageId": message.id,
            "deliveredAt": ack.at_ms,
            "status": ack.status,
        }
        if ack.seq:
            payload["epoch"] = self._streams.epoch_of(ack.stream)
            payload["seq"] = ack.seq
        payload["durability"] = self._storage.durability
        if is_duplicate:
            payload["duplicate"] = True
        return self._replies.reply(session, message, "hub:delivery_ack", wire.encode(payload), now)

    def handed_over(self, receipt: AskReceipt, now: int) -> list[Effect]:
        """An ask to an actor without a mailbox has reached its socket, which settles it."""
        self._settle(receipt, Outcome.WRITTEN, now)
        return self.delivered(receipt, now)

    def undelivered(self, receipt: AskReceipt, now: int) -> list[Effect]:
        """The bytes never left: say so; the same id may be tried again."""
        if receipt.expires_at is not None and receipt.expires_at < now:
            self._tally.expired_asks += 1
            self._settle(receipt, Outcome.EXPIRED, now)
            return self._withdraw(receipt, refusals.expired(receipt.message.ttl or 0), now)
        return self._gone(receipt, now)

    def _gone(self, receipt: AskReceipt, now: int) -> list[Effect]:
        """Nobody is there any more."""
        self._settle(receipt, Outcome.GONE, now)
        message = receipt.message
        self._pending.pop(receipt.key, None)
        return [
            self._unknown_actor(asker, message, receipt.target, now, retryable=True)
            for asker in receipt.listening
        ]

    def overflowed(self, receipt: AskReceipt, waiting: int, now: int) -> list[Effect]:
        """Too much waits for the target already: refuse, so that the sender tries again later."""
        self._settle(receipt, Outcome.DROPPED, now)
        refusal = refusals.queue_full(receipt.target, waiting, self._settings.outbound)
        return self._withdraw(receipt, refusal, now)

    def _withdraw(self, receipt: AskReceipt, refusal: Refusal, now: int) -> list[Effect]:
        message = receipt.message
        self._pending.pop(receipt.key, None)
        return [self._replies.refuse(asker, message, refusal, now) for asker in receipt.listening]

    def _settle(self, receipt: AskReceipt, outcome: Outcome, now: int) -> None:
        """What became of an ask without a mailbox is written with the tick's others."""
        sent_at = now if outcome is Outcome.WRITTEN else 0
        self.loose.append(
            Settlement(0, receipt.offset, outcome, 1, 0, sent_at, sent_at, receipt.target)
        )

    # Turns and time.

    def write_settlements(self, now: int) -> list[Effect]:
        """What became of asks without a mailbox since the last turn."""
        if not self.loose:
            return []
        deliveries, self.loose = self.loose, []
        body = encode_body(SettledBody("", 0, deliveries))
        # The log may have no room: nobody waits for these, and only the audit will miss them.
        return [Append(Entry(Kind.SETTLED, "", 0, 0, now, body))]

    def tick(self, now: int) -> None:
        """Orphans that nobody asks for again any more are given up."""
        oldest_ms = now - self._settings.dedup.window_s * 1000
        for key, orphan in list(self.orphans.items()):
            if orphan.at_ms < oldest_ms:
                del self.orphans[key]
                self.loose.append(Settlement(0, orphan.offset, Outcome.GONE, 0))

    def oldest(self, offset: int) -> int:
        """Where the oldest unanswered one is, if it is before this."""
        pending = [one.offset for one in self._pending.values() if one.offset >= 0]
        orphans = (one.offset for one in self.orphans.values())
        return min([offset, *pending, *orphans])


def wait_behind(ask: AskReceipt, effect: Deliver | FanOut) -> list[Effect]:
    """It follows the ask, which is on its way to the disk."""
    if ask.behind is None:
        ask.behind = []
    ask.behind.append(effect)
    return []


def size_of(message: MessageBody) -> int:
    """About what it takes in memory and on the wire."""
    return len(message.data) + len(message.metadata) + 256


def release(receipt: AskReceipt) -> list[Effect]:
    """What waited behind the ask may go now."""
    receipt.session.synced(receipt)
    behind, receipt.behind = receipt.behind, None
    return list(behind or ())


def _ack(receipt: AskReceipt, at_ms: int, status: Status) -> KnownAck:
    stream = 0 if receipt.mailbox is None else receipt.mailbox.id
    return KnownAck(at_ms, status, seq=receipt.seq, stream=stream)
