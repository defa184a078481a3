"""A shell without sockets: it performs the hub's effects in memory, on a clock turned by hand.

A peer reads at once unless it is stalled; then what is sent to it waits, receipts included, until
it reads on or its socket is dropped. Every frame that reaches a peer must be a complete envelope.

Every event ends as a tick of the real runner does: bytes that have left are reported, what is woken
or due is dispatched, and what was appended goes to the log, which commits at once unless its
`is_prompt` is taken away. A pass that fails is an error of the test.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count, groupby
from typing import Any, TypeVar, assert_never

import msgspec

from signalhub.auth.session_tokens import SessionTokens
from signalhub.auth.tokens import Authenticator
from signalhub.clock import Ids, SteadyClock
from signalhub.core.effects import (
    Announce,
    Answer,
    Append,
    AppendMessage,
    AppendRun,
    Close,
    Consult,
    Deliver,
    DeliverRun,
    Dismiss,
    Dispatch,
    DispatchRun,
    Effect,
    EraseEntries,
    FanOut,
    Fetch,
    FindTime,
    Forget,
    GiveWay,
    Locate,
    Note,
    Persist,
    Recall,
    Reply,
    ReplyRuns,
)
from signalhub.core.hub import Hub
from signalhub.core.messages.ask import AskReceipt
from signalhub.core.rooms.values import Archived
from signalhub.core.sessions import outbound
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.streams.recovery import take_snapshot
from signalhub.core.subscriptions.window import Attempt
from signalhub.counters import Tally
from signalhub.settings.model import Settings
from signalhub.testing import FakeClock
from signalhub.wire.envelope import RAW_PONG
from signalhub.wire.errors import Refusal
from signalhub.wire.frames import text_frames
from signalhub.wire.names import HUB_ADDRESS
from signalhub.wire.room_ids import Names
from tests.support.memory.engine import MemoryEngine, Shelf, restart
from tests.support.peer import Envelope

Message = dict[str, Any]
# The receiver of the report that bytes have left.
Waiter = AskReceipt | Attempt
Shell = TypeVar("Shell", bound="MemoryShell")

TURNS_MAX = 10_000

MEMBERS = Envelope.__annotations__.keys()
HELLO = {"protocolVersion": "0.1.0", "capabilities": ["send", "receive"]}
SETTLING_HELLO = {"protocolVersion": "0.1.0", "capabilities": ["send", "receive", "ack"]}


class CountedIds(Ids):
    """Ids that are the same in every run, the secret ones too."""

    def __init__(self) -> None:
        super().__init__("0" * 20)
        self._secrets = count(1)

    def secret(self) -> str:
        return f"secret-{next(self._secrets)}"


class Row(msgspec.Struct, frozen=True):
    """A registration as the durable tier holds it."""

    address: str
    version: int
    expires_at_ms: int


def envelope(type: str, payload: object = None, **members: object) -> bytes:
    """A complete message to the hub; any of the eleven members can be given, `from` as `sender`."""
    message: dict[str, object] = {
        "id": "m",
        "from": members.pop("sender", "@(local/somebody)"),
        "to": HUB_ADDRESS,
        "type": type,
        "payload": payload,
        "pattern": "ask",
        "correlationId": None,
        "timestamp": 0,
        "metadata": {},
        "ttl": None,
        "signature": None,
    }
    assert members.keys() <= message.keys(), f"an envelope has no {members.keys() - message.keys()}"
    return msgspec.json.encode(message | members)


class Peer:
    """The far end of one socket."""

    def __init__(self, shell: MemoryShell) -> None:
        self.session: Session = shell.hub.opened(self, shell.now)
        self.address = self.session.address
        self.received: list[Message] = []
        self.closed: tuple[int, str] | None = None
        self.waiting: deque[tuple[bytes, Waiter | None]] = deque()
        self.is_stalled = False
        self._shell = shell
        self._taken = 0

    @property
    def can_be_written(self) -> bool:
        """Is the socket still open?"""
        return self.closed is None

    def write(self, frame: bytes) -> None:
        """Send bytes to the hub, whatever they are."""
        self._shell.receive(self, frame)

    def request(self, type: str, payload: object = None, **members: Any) -> list[Message]:
        """Send a message, by default an ask from this peer's address; the replies to it."""
        members.setdefault("id", self._shell.next_id())
        members.setdefault("sender", self.address)
        members.setdefault("timestamp", self._shell.clock.now_ms())
        before = len(self.received)
        self.write(envelope(type, payload, **members))
        return [
            message
            for message in self.received[before:]
            if message["correlationId"] == members["id"] and message["from"] == HUB_ADDRESS
        ]

    def ask(self, type: str, payload: object = None, **members: Any) -> Message:
        """Send an ask; the one reply to it."""
        (reply,) = self.request(type, payload, **members)
        return reply

    def tell(self, type: str, payload: object = None, **members: Any) -> list[Message]:
        """Send a tell; the replies to it, which most have none of."""
        return self.request(type, payload, pattern="tell", **members)

    def hello(self, address: str, **members: Any) -> Message:
        """Say `hub:connect` and speak as `address` from now on."""
        self.address = address
        return self.ask("hub:connect", metadata=members.pop("metadata", HELLO), **members)

    def register(self, address: str | None = None, **payload: Any) -> Message:
        """Register an address, by default this peer's own; the reply."""
        address = address or self.address
        payload = {"actorAddress": address, "capabilities": []} | payload
        return self.ask("hub:register", payload, sender=address)

    def send(self, to: str, data: object = None, **members: Any) -> list[Message]:
        """Send data to another actor, by default as a tell; the replies."""
        members.setdefault("pattern", "tell")
        return self.request("hub:send", {"to": to, "type": "news", "data": data}, **members)

    def hear(self, frame: bytes) -> None:
        """A frame of the hub has arrived."""
        self.received.append(decoded(frame))

    def take(self) -> list[Message]:
        """What has arrived since the last call."""
        fresh = self.received[self._taken :]
        self._taken = len(self.received)
        return fresh

    def heard(self) -> list[Message]:
        """The messages of actors among what has arrived since the last call."""
        return [message for message in self.take() if not message["type"].startswith("hub:")]

    def stall(self) -> None:
        """Stop reading."""
        self.is_stalled = True

    def block(self) -> None:
        """Stop reading, and the hub knows it: the socket has taken all it can."""
        self.is_stalled = True
        bounds = self._shell.hub.settings.outbound
        self.session.outbound = outbound.Outbound(bounds, self._shell.now)

    def read_on(self) -> None:
        """Read all that waited and go on reading."""
        self.is_stalled = False
        if self.session.outbound is not None:
            self.session.outbound = None
            self._shell.hub.unblocked(self.session)
        waiting, self.waiting = self.waiting, deque()
        for frame, receipt in waiting:
            self._shell.hand_over(self, frame, receipt)
        self._shell.settle()

    def drop(self) -> None:
        """The socket is gone, without a goodbye."""
        if self.closed is None:
            self.closed = (1006, "")
        self._shell.dropped(self)


class MemoryShell:
    """Sockets, disk and time of a hub, all in memory."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        clock: FakeClock | None = None,
        authenticator: Authenticator | None = None,
        engine: MemoryEngine | None = None,
        ids: Ids | None = None,
        shelf: Shelf | None = None,
        archived: int | None = None,
        ahead_ms: int = 0,
    ) -> None:
        self.clock = clock or FakeClock()
        self.steady = SteadyClock(self.clock)
        self.steady.resume(ahead_ms=ahead_ms, newest_ms=0 if engine is None else engine.newest_ms)
        self.tally = Tally()
        self.engine = engine or MemoryEngine()
        self.engine.report_to(self)
        self._authenticator = authenticator
        self.hub = Hub(
            settings or Settings(),
            ids=ids or CountedIds(),
            authenticator=authenticator,
            session_tokens=SessionTokens(b"a secret of the tests"),
            tally=self.tally,
            log_epoch=self.engine.epoch,
        )
        self.hub.rooms.messages.archived = archived
        self.peers: list[Peer] = []
        self.rows: dict[str, Row] = {}
        self.shelf = shelf or Shelf()
        self._snapshot_before = self.engine.head
        self.written: list[tuple[str, str]] = []
        self.notes: list[Note] = []
        self.gave_way: list[Session] = []
        # What the archive answers; `None` stands for one that cannot be reached.
        self.archive: Callable[[Consult], list[Archived] | None] = lambda consult: []
        self._handed_over: deque[Waiter] = deque()
        self._ids: Iterator[str] = map("m{}".format, count(1))
        restart(self.hub, self.engine, self.shelf, self.now)
        self.hub.rooms.use(Names(b"a key of the tests"))

    @property
    def now(self) -> int:
        """The hub's own time; it learns how far the wall clock is ahead, as in every tick."""
        now = self.steady.now_ms()
        self.hub.wall.ahead_ms = self.clock.now_ms() - now
        return now

    def next_id(self) -> str:
        return next(self._ids)

    # What happens outside.

    def open(self) -> Peer:
        """A socket that has said nothing yet."""
        peer = Peer(self)
        self.peers.append(peer)
        return peer

    def connect(self, address: str = "@(local/somebody)", **members: Any) -> Peer:
        """A connected peer."""
        peer = self.open()
        reply = peer.hello(address, **members)
        assert reply["type"] == "hub:connected", reply
        return peer

    def join(self, address: str, **payload: Any) -> Peer:
        """A peer with a registered address and nothing left to read."""
        peer = self.connect(address)
        reply = peer.register(**payload)
        assert reply["type"] == "hub:registered", reply
        peer.take()
        return peer

    def receive(self, peer: Peer, frame: bytes) -> None:
        """A frame of the peer arrived."""
        self.perform(self.hub.received(peer.session, frame, self.now))

    def dropped(self, peer: Peer) -> None:
        """The socket of the peer is gone."""
        code = None if peer.closed is None else peer.closed[0]
        self.perform(self.hub.closed(peer.session, self.now, code))
        self._abandon(peer)

    def pass_time(self, seconds: int) -> None:
        """Let time go by, with the hub's tick in every second of it."""
        for _ in range(seconds):
            self.advance(1_000)
            self.tick()

    def advance(self, ms: int) -> None:
        """Let time go by, with everything that falls due in it."""
        until = self.now + ms
        for _ in range(TURNS_MAX):
            due_ms = self.hub.next_dispatch_ms
            if due_ms > until:
                break
            self.clock.advance(max(0, math.ceil(due_ms) - self.now) / 1000)
            self.settle()
        else:
            raise AssertionError("something is always due")
        self.clock.advance(max(0, until - self.now) / 1000)

    def tick(self) -> None:
        """The hub's regular work, at this moment."""
        self.steady.follow()
        self.perform(self.hub.tick(self.now))

    # Stopping and starting.

    def save_snapshot(self) -> None:
        """Where the next start begins to read the log."""
        offset, epoch = self.engine.head, self.engine.epoch
        seen_from = self.hub.oldest_open(self._snapshot_before)
        self._snapshot_before = offset
        self.shelf.save_snapshot(take_snapshot(self.hub.parts, offset), epoch, seen_from)
        for stream in self.hub.streams.every():
            changed = [one.name for one in stream.readers() if one.is_dirty and one.making is None]
            is_missed = stream.is_made and (stream.is_dirty or changed)
            assert not is_missed, f"a change of {stream.name} is not in the snapshot: {changed}"
        self.hub.rooms.messages.ids.saved(offset)

    def restarted(self: Shell, written: int = 0) -> Shell:
        """Another hub after a crash: the rows, the shelf and what was committed are still there.

        Of the entries that were not committed, `written` had reached the disk. All sockets are
        gone.
        """
        successor = type(self)(
            self.hub.settings,
            clock=self.clock,
            authenticator=self._authenticator,
            engine=self.engine.crashed(written),
            ids=self.hub.ids,
            shelf=self.shelf.copy(),
            archived=self.hub.rooms.messages.archived,
            ahead_ms=self.steady.ahead_ms,
        )
        successor.rows = dict(self.rows)
        successor._ids = self._ids
        successor.hub.restore(
            (row.address, row.version, row.expires_at_ms) for row in self.rows.values()
        )
        for peer in self.peers:
            peer.closed = peer.closed or (1006, "")
        return successor

    # What the log says.

    def committed(self, appends: list[Append], first: int) -> None:
        """Entries are safe; the first one has the offset `first`."""
        offset = first
        for kind, group in groupby(appends, type):
            some = list(group)
            if kind is AppendRun:
                receipts = [one.receipt for one in some if isinstance(one, AppendRun)]
                self._carry_out(self.hub.committed_runs(receipts, offset, self.now))
                offset += sum(one.entry.count for one in some)
                continue
            if kind is AppendMessage:
                messages = [one.message for one in some if isinstance(one, AppendMessage)]
                self._carry_out(self.hub.rooms.committed(messages, offset, self.now))
                offset += len(messages)
                continue
            for append in some:
                self._carry_out(append.committed(offset, self.now))
                offset += append.entry.count
        self.tally.appended += offset - first

    def refused(
        self, appends: list[Append], refusal: Refusal, *, is_final: bool, unknown: int = 0
    ) -> None:
        """The log refused entries; the first `unknown` of them may have been written."""
        if is_final:
            self.hub.storage.stop(refusal)
        self._carry_out(self.hub.refused(appends, refusal, self.now, unknown))

    def damaged(self, refusal: Refusal) -> None:
        """A read has found damage."""
        self.hub.storage.stop(refusal)

    # What the hub wants.

    def perform(self, effects: Iterable[Effect]) -> None:
        """Carry out effects in order, and what follows from them."""
        self._carry_out(effects)
        self.settle()

    def settle(self) -> None:
        """Take turns until nothing is left to do at this moment."""
        for _ in range(TURNS_MAX):
            if not self._turn():
                return
        raise AssertionError("the hub never comes to rest")

    def _turn(self) -> bool:
        """One turn of the loop; `False` if nothing happened in it."""
        has_moved = bool(self._handed_over)
        while self._handed_over:
            receipts = [*self._handed_over]
            self._handed_over.clear()
            self._carry_out(self.hub.handed_over(receipts, self.now))
        if self.hub.next_dispatch_ms <= self.now:
            has_moved = True
            self._carry_out(self.hub.dispatch(self.now))
        self.engine.flush()
        if self.engine.is_prompt:
            has_moved |= self.engine.commit()
        if self.engine.is_readable:
            has_moved |= self.engine.read()
        return has_moved

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._perform_one(effect)

    def _perform_one(self, effect: Effect) -> None:
        match effect:
            case Reply(session=session, frame=frame):
                self.write(_peer(session), frame, None)
            case ReplyRuns(sessions=sessions, frames=all_frames):
                for session, frames in zip(sessions, all_frames, strict=True):
                    for frame in text_frames(frames):
                        self.write(_peer(session), frame, None)
            case Deliver():
                self.deliver(effect)
            case DeliverRun():
                for one in self.hub.singly(effect):
                    self.deliver(one)
            case FanOut():
                self._fan_out(effect)
            case Close(session=session, code=code, reason=reason):
                self.close(_peer(session), code, reason)
            case Persist(registration=registration):
                address = registration.address
                self.rows[address] = Row(
                    address, registration.version, registration.expires_at_ms()
                )
                self.written.append(("persist", address))
            case Forget(addresses=addresses):
                for address in addresses:
                    self.rows.pop(address, None)
                    self.written.append(("forget", address))
            case Append():
                self.engine.append(effect)
            case Dispatch(session=session, frame=frame, receipt=receipt):
                self._send(_peer(session), frame, receipt)
            case DispatchRun(session=session, frames=frames, count=count):
                every = list(text_frames(frames))
                assert len(every) == count
                for frame in every:
                    self._send(_peer(session), frame, None)
            case Fetch(then=handle):
                self.engine.fetch(effect, lambda found: self._carry_out(handle(found, self.now)))
            case FindTime(then=go_on):
                self.engine.find_time(effect, lambda seq: self._carry_out(go_on(seq, self.now)))
            case Locate(then=located):
                self.engine.locate(effect, lambda found: self._carry_out(located(found, self.now)))
            case EraseEntries(then=erased):
                self.engine.erase(effect, lambda result: self._carry_out(erased(result, self.now)))
            case Answer(caller=caller, result=result, message_id=message_id):
                caller.answer(result, message_id)  # type: ignore[attr-defined]
            case Announce(guests=guests, frame=frame, but=but):
                for guest in guests:
                    if guest is not but:
                        guest.link.hear(frame)  # type: ignore[attr-defined]
            case Dismiss(guest=guest, code=code, reason=reason):
                guest.link.close(code, reason)  # type: ignore[attr-defined]
            case Recall():
                self._recall(effect)
            case Consult(then=consulted):
                self.engine.later(
                    lambda: self._carry_out(consulted(self.archive(effect), self.now))
                )
            case GiveWay():
                self.gave_way.append(effect.session)
            case Note():
                self.notes.append(effect)
                if effect.error is not None:
                    raise effect.error
            case _:
                assert_never(effect)

    def _recall(self, effect: Recall) -> None:
        def look() -> None:
            found = [self.shelf.recall(key, effect.oldest_ms) for key in effect.keys]
            self._carry_out(effect.then(found, self.now))

        self.engine.later(look)

    def deliver(self, effect: Deliver) -> None:
        """One actor's message to another."""
        self._send(_peer(effect.session), effect.frame, effect.receipt)

    def _send(self, peer: Peer, frame: bytes, receipt: Waiter | None) -> None:
        if peer.can_be_written:
            self.tally.deliveries += 1
            self.write(peer, frame, receipt)
        elif receipt is not None:
            self._carry_out(self.hub.undelivered(receipt, self.now))

    def _fan_out(self, effect: FanOut) -> None:
        failed = 0
        for recipient in effect.audience.recipients:
            peer = _peer(recipient.session)
            failed += not peer.can_be_written
            self.write(peer, effect.head + recipient.address_json + effect.tail, None)
        queued = len(effect.audience.recipients) - failed
        self.tally.deliveries += queued
        self._carry_out(self.hub.fanned_out(effect.receipt, queued, failed, self.now))

    def write(self, peer: Peer, frame: bytes, receipt: Waiter | None) -> None:
        """A frame for the peer, which waits if the peer does not read."""
        if not peer.can_be_written:
            return
        if peer.is_stalled:
            peer.waiting.append((frame, receipt))
        else:
            self.hand_over(peer, frame, receipt)

    def hand_over(self, peer: Peer, frame: bytes, receipt: Waiter | None) -> None:
        """The bytes reach the peer; its receipt is reported in the next turn."""
        peer.session.sent += 1
        self.tally.sent += 1
        peer.hear(frame)
        if receipt is not None:
            self._handed_over.append(receipt)

    def close(self, peer: Peer, code: int, reason: str) -> None:
        """The hub is done with the peer."""
        # A socket that cannot be flushed takes what waits for it along.
        peer.closed = (code, reason)
        assert peer.session.state is SessionState.CLOSED, (
            "the hub closes sessions before their sockets"
        )
        self._abandon(peer)

    def _abandon(self, peer: Peer) -> None:
        waiting, peer.waiting = peer.waiting, deque()
        peer.session.outbound = None
        for _, receipt in waiting:
            if receipt is not None:
                self.perform(self.hub.undelivered(receipt, self.now))


def decoded(frame: bytes) -> Message:
    """A frame of the hub, which must hold all eleven members; a raw pong becomes a message too."""
    if frame == RAW_PONG:
        return dict.fromkeys(MEMBERS) | {"type": "pong"}
    message: Message = msgspec.json.decode(frame)
    assert message.keys() == MEMBERS, f"not the eleven members: {frame!r}"
    assert isinstance(message["metadata"], dict)
    assert isinstance(message["timestamp"], int)
    assert message["pattern"] == "tell"
    return message


def _peer(session: Session) -> Peer:
    peer = session.link
    assert isinstance(peer, Peer)
    return peer
