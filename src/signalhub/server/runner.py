"""Passes events to the hub and performs its effects.

Messages for a connection are queued on it and written at the end of the tick. If the connection is
blocked, they wait in a bounded queue; beyond its limits they are dropped and counted. A frame for a
room is queued on each of its sockets; a socket whose queue is full is closed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, assert_never

from signalhub.clock import SteadyClock
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
from signalhub.core.messages.audience import Audience
from signalhub.core.messages.dedup import Recalled
from signalhub.core.messages.publish import RunReceipt
from signalhub.core.messages.runs import PublishRun, Run
from signalhub.core.rooms.values import Archived
from signalhub.core.sessions.registry import Recipient, Registration
from signalhub.core.sessions.session import Session, SessionState
from signalhub.engine.port import Archive, Engine
from signalhub.server.sockets.connection import Connection, Party
from signalhub.server.sockets.fan_out import FanBatch
from signalhub.server.sockets.ledger import SHARED_BYTES
from signalhub.server.sockets.pieces import WaitingFrame
from signalhub.server.sockets.writer import Writer
from signalhub.state.store import RegistrationRow, StateStore
from signalhub.wire.errors import Refusal, unworded
from signalhub.wire.frames import CloseCode, text_frames, text_header

if TYPE_CHECKING:
    from signalhub.core.rooms.accept import PendingMessage
    from signalhub.server.rooms.socket import RoomSocket

R = TypeVar("R")

log = logging.getLogger("signalhub.server")

# Reads whose publishes are handled together.
_GATHERED_MAX = 256


class HubRunner:
    """Performs all effects; owns the connections of actors."""

    slow_code = CloseCode.POLICY_VIOLATION

    def __init__(
        self,
        hub: Hub,
        store: StateStore,
        engine: Engine,
        clock: SteadyClock,
        loop: asyncio.AbstractEventLoop,
        archive: Archive | None = None,
    ) -> None:
        self.hub = hub
        self._engine = engine
        hub.storage.is_behind = engine.unwritten.is_behind
        self._archive = archive
        self._loop = loop
        self._mono_s = clock.mono_s
        self._dispatch_timer: asyncio.TimerHandle | None = None
        self._dispatch_at_ms = math.inf
        self.writer = Writer(
            hub, clock, loop, self.perform, self._ending_tick, self._close_fans, engine.unwritten
        )
        self.connections: set[Connection[Party]] = set()
        self.frame_bytes_max = hub.settings.frame_bytes_max
        self.run_bytes_max = hub.forwarded_bytes_max
        self.bounds = hub.settings.outbound
        self._fanout_batch = hub.settings.fanout_batch
        self._tally = hub.tally
        self._receive = hub.received
        self._receive_run = hub.received_run
        self._store = store
        self._now_ms = clock.now_ms
        # Fan-out batches that can take more publishes to the same audience.
        self._open_fans: dict[Audience, FanBatch] = {}
        # Publishes that are handled together, and where each run comes from.
        self._gathered: list[PublishRun] = []
        self._gathered_from: list[Connection[Session]] = []
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._is_stopped = False

    # Events of connections.

    def opened(self, connection: Connection[Session]) -> Session:
        """Open a session for an upgraded socket."""
        self.arrived(connection)
        return self.hub.opened(connection, self._now_ms(), connection.source)

    def is_welcome(self, connection: Connection[Session]) -> bool:
        """Did the hub accept the connection's hello?"""
        return connection.session.state is SessionState.CONNECTED

    def received(self, connection: Connection[Session], payload: bytes) -> None:
        """Handle a message from a client."""
        if self._gathered:
            self.handle_gathered()
        now = self.writer.tick_ms or self.writer.begin_tick()
        try:
            effects = self._receive(connection.session, payload, now)
        except Exception:
            log.exception("a message could not be handled")
            effects = self.hub.failed(connection.session, payload, now)
        for effect in effects:
            if type(effect) is Deliver:
                self._deliver(effect, now)
            elif isinstance(effect, Append):
                self._engine.append(effect)
                connection.has_added()
            else:
                self._perform_one(effect, now)

    def received_run(self, connection: Connection[Session], run: Run) -> bool:
        """Handle messages of one read; `False` if they have to be handled one by one."""
        if self._gathered:
            self.handle_gathered()
        now = self.writer.tick_ms or self.writer.begin_tick()
        try:
            effects = self._receive_run(connection.session, run, now)
        except Exception:
            log.exception("a run could not be handled")
            return False
        if effects is None:
            return False
        for effect in effects:
            if type(effect) is DeliverRun:
                self._deliver_run(effect, now)
            elif type(effect) is AppendRun:
                self._engine.append(effect)
                connection.has_added()
            else:
                self._perform_one(effect, now)
        return True

    def gather(self, connection: Connection[Session], run: PublishRun) -> bool:
        """Handle publishes together with those that follow, before anything else happens."""
        if not self.writer.tick_ms:
            self.writer.begin_tick()
        self._gathered.append(run)
        self._gathered_from.append(connection)
        if len(self._gathered) == _GATHERED_MAX:
            self.handle_gathered()
        return True

    def handle_gathered(self) -> None:
        """Handle what was gathered: before anything else that may depend on it."""
        connections, self._gathered_from = self._gathered_from, []
        runs, self._gathered = self._gathered, []
        sessions = [one.session for one in connections]
        now = self.writer.tick_ms or self.writer.begin_tick()
        while runs:
            try:
                count, effects = self.hub.received_publishes(sessions, runs, now)
            except Exception:
                log.exception("publishes could not be handled")
                count, effects = 0, []
            for effect in effects:
                try:
                    if type(effect) is AppendRun:
                        self._engine.append(effect)
                    else:
                        self._perform_one(effect, now)
                except Exception:
                    log.exception("publishes could not be handled")
            for connection in connections[:count]:
                connection.has_added()
            if not count:
                try:
                    connections[0].handle_singly(runs[0])
                except Exception:
                    log.exception("publishes could not be handled")
                    connections[0].abort()
                count = 1
            connections, sessions, runs = connections[count:], sessions[count:], runs[count:]

    def leaving(self, connection: Connection[Session], code: int | None = None) -> None:
        """End the session: the peer is closing or has disconnected."""
        if self._gathered:
            self.handle_gathered()
        now = self._now_ms()
        self.perform(self.hub.closed(connection.session, now, code), now)

    def unheard(self, connection: Connection[Session]) -> None:
        """Do not take it for silent."""
        connection.session.unheard(self._now_ms())

    def too_slow(self) -> None:
        """Count a connection that is closed because it does not read."""
        self._tally.slow_closed += 1

    def caught_up(self, connection: Connection[Session]) -> None:
        """The connection accepts frames again: resume its subscriptions."""
        if self._gathered:
            self.handle_gathered()
        if connection.session.consumers:
            self.hub.unblocked(connection.session)
            if not self.writer.tick_ms:
                self.writer.begin_tick()

    def arrived(self, connection: Connection[Party]) -> None:
        """Add a socket of an actor or a room."""
        self.connections.add(connection)
        self._is_empty.clear()

    def disconnected(self, connection: Connection[Party]) -> None:
        """Remove a closed socket, and notify its owner."""
        self.connections.discard(connection)
        if not self.connections:
            self._is_empty.set()
        connection.owner.leaving(connection)
        self.writer.abandon(connection)

    async def wait_until_empty(self) -> None:
        """Wait until all connections are closed."""
        await self._is_empty.wait()

    # Requests from HTTP and rooms.

    def run(self, step: Callable[[int], list[Effect]]) -> bool:
        """Call the core and perform its effects; `False` if that raised."""
        if self._gathered:
            self.handle_gathered()
        now = self.writer.tick_ms or self.writer.begin_tick()
        try:
            self.perform(step(now), now)
        except Exception as error:
            log.error("a request could not be handled", exc_info=unworded(error))
            return False
        return True

    # Effects.

    def perform(self, effects: list[Effect], now: int) -> None:
        """Perform effects in order."""
        for effect in effects:
            kind = type(effect)
            if kind is ReplyRuns:
                self._reply_runs(effect)  # type: ignore[arg-type]
            elif kind is AppendMessage or kind is Append:
                self._append(effect)  # type: ignore[arg-type]
            elif kind is Answer:
                self._answer(effect)  # type: ignore[arg-type]
            else:
                self._perform_one(effect, now)
        if not self.writer.tick_ms and self.hub.has_woken:
            self.writer.begin_tick()

    def _perform_one(self, effect: Effect, now: int) -> None:
        match effect:
            case Reply():
                self._reply(effect)
            case ReplyRuns():
                self._reply_runs(effect)
            case Deliver():
                self._deliver(effect, now)
            case DeliverRun():
                self._deliver_run(effect, now)
            case FanOut():
                self._fan_out(effect, now)
            case Append():
                self._append(effect)
            case Dispatch():
                self._dispatch(effect, now)
            case DispatchRun():
                self._dispatch_run(effect)
            case Announce():
                self._announce(effect)
            case Answer():
                self._answer(effect)
            case Close(session=session, code=code, reason=reason):
                _connection(session).close(code, reason)
            case Dismiss(guest=guest, code=code, reason=reason):
                room_socket: RoomSocket = guest.link  # type: ignore[assignment]
                room_socket.connection.close(code, reason)
            case Persist(registration=registration):
                self._store.persist(_row(registration))
            case Forget(addresses=addresses):
                self._store.forget(addresses)
            case Fetch(then=go_on):
                self._engine.fetch(effect, self._told(go_on))
            case FindTime(then=go_on_from):
                self._engine.find_time(effect, self._told(go_on_from))
            case Locate(then=found):
                self._engine.locate(effect, self._told(found))
            case EraseEntries(then=erased):
                self._engine.erase(effect, self._told(erased))
            case Recall():
                self._recall(effect)
            case Consult():
                self._consult(effect, now)
            case GiveWay(session=session):
                _connection(session).give_way()
            case Note(text=text, facts=facts, error=error):
                log.warning(text, extra=facts, exc_info=error)
            case _:
                assert_never(effect)

    def _append(self, effect: Append) -> None:
        self._engine.append(effect)
        if not self.writer.tick_ms:
            self.writer.begin_tick()

    def _deliver(self, effect: Deliver, now: int) -> None:
        session = effect.session
        connection: Connection[Session] = session.link  # type: ignore[assignment]
        if session.outbound is not None or connection.is_closing:
            self._park_message(connection, effect, now)
            return
        self._tally.deliveries += 1
        connection.queue_message(effect.frame, effect.receipt)

    def _deliver_run(self, effect: DeliverRun, now: int) -> None:
        session = effect.session
        connection: Connection[Session] = session.link  # type: ignore[assignment]
        if session.outbound is not None or connection.is_closing:
            for one in self.hub.singly(effect):
                self._park_message(connection, one, now)
            return
        count = effect.run.count
        self._tally.deliveries += count
        connection.queue_run(effect.frames, count)

    def _reply(self, effect: Reply) -> None:
        connection = _connection(effect.session)
        frame = effect.frame
        if connection.is_closing:
            return
        if connection.session.outbound is not None:
            self._park(connection, WaitingFrame((text_header(len(frame)), frame)))
        else:
            connection.queue_reply(frame)

    def _reply_runs(self, effect: ReplyRuns, *, now: bool = False) -> None:
        """Queue replies, or write them `now`, which costs less if nothing else is written."""
        for session, frames, count in zip(
            effect.sessions, effect.frames, effect.counts, strict=True
        ):
            connection: Connection[Session] = session.link  # type: ignore[assignment]
            if connection.is_closing:
                continue
            if session.outbound is not None:
                self._park_all(connection, frames)
            elif now:
                self.writer.write_replies(connection, frames, count)
            else:
                connection.queue_replies(frames, count)

    def _park_all(self, connection: Connection[Session], frames: bytes) -> None:
        """Queue frames for a blocked connection, until they are too many and it is closed."""
        for frame in text_frames(frames):
            if connection.session.outbound is None:
                return
            self._park(connection, WaitingFrame((text_header(len(frame)), frame)))

    def _park_message(self, connection: Connection[Session], effect: Deliver, now: int) -> None:
        """Queue a message for a blocked target; report it as undelivered if that is impossible."""
        outbound, receipt = connection.session.outbound, effect.receipt
        if outbound is None or connection.is_closing:
            if receipt is not None:
                self.perform(self.hub.undelivered(receipt, now), now)
            else:
                self._tally.dropped_tells += 1
            return
        one = WaitingFrame(
            (text_header(len(effect.frame)), effect.frame),
            effect.expires_at,
            receipt,
            receipt is None,
        )
        if not outbound.admits(one.size, connection.unsent_bytes):
            if receipt is not None:
                self.perform(self.hub.overflowed(receipt, outbound.messages, now), now)
            else:
                self._tally.dropped_tells += 1
            return
        self._tally.deliveries += 1
        self._park(connection, one)
        if outbound.pause(effect.sender, effect.address, connection.unsent_bytes):
            self.perform(self.hub.hold(effect.sender, effect.address, now), now)

    def _park(self, connection: Connection[Session], one: WaitingFrame) -> None:
        connection.park(one)
        outbound = connection.session.outbound
        assert outbound is not None
        if outbound.is_overrun:
            self.writer.close_slow(connection)

    # Commits, and dispatch to subscriptions.

    def committed(self, appends: list[Append], first: int) -> None:
        """Continue after a commit of entries."""
        if self._gathered:
            self.handle_gathered()
        # So that the disk does not wait until all are answered.
        self._engine.hasten()
        now = self.writer.tick_ms or self.writer.begin_tick()
        # First, so that a fault below keeps nobody waiting; they go on later.
        self.writer.log_went_on()
        offset = first
        runs: list[AppendRun] = []
        messages: list[PendingMessage] = []
        for append in appends:
            kind = type(append)
            if messages and kind is not AppendMessage:
                offset += self._committed_messages(messages, offset, now)
                messages = []
            if kind is AppendRun:
                runs.append(append)  # type: ignore[arg-type]
                continue
            if runs:
                offset += self._committed_runs(runs, offset, now)
                runs = []
            if kind is AppendMessage:
                messages.append(append.message)  # type: ignore[attr-defined]
                continue
            try:
                for effect in append.committed(offset, now):
                    if type(effect) is Answer:
                        self._answer(effect)
                    else:
                        self._perform_one(effect, now)
            except Exception as error:
                # The other entries of the commit must still be handled.
                log.error("a committed entry could not be handled", exc_info=unworded(error))
            offset += append.entry.count
        if runs:
            offset += self._committed_runs(runs, offset, now)
        if messages:
            offset += self._committed_messages(messages, offset, now)
        self._tally.appended += offset - first

    def _committed_runs(self, runs: list[AppendRun], offset: int, now: int) -> int:
        """Continue after a commit of runs and asks; return how many entries they are."""
        receipts = [one.receipt for one in runs]
        effects: list[Effect] = []
        # Copies of asks may go to the same connections, and all of it blocks them or nothing does.
        are_publishes = all(type(one) is RunReceipt for one in receipts)
        try:
            effects = self.hub.committed_runs(receipts, offset, now)
        except Exception as error:
            log.error("committed entries could not be handled", exc_info=unworded(error))
        for effect in effects:
            try:
                if type(effect) is ReplyRuns:
                    self._reply_runs(effect, now=are_publishes)
                elif type(effect) is Deliver:
                    self._deliver(effect, now)
                else:
                    self._perform_one(effect, now)
            except Exception as error:
                # What follows from the other entries must still happen.
                log.error("a committed entry could not be handled", exc_info=unworded(error))
        return sum([one.entry.count for one in runs])

    def _committed_messages(self, messages: list[PendingMessage], offset: int, now: int) -> int:
        """Continue after a commit of messages for inboxes; return how many they are."""
        effects: list[Effect] = []
        try:
            effects = self.hub.rooms.committed(messages, offset, now)
        except Exception as error:
            log.error("committed messages could not be handled", exc_info=unworded(error))
        for effect in effects:
            if type(effect) is Answer:
                self._answer(effect)
                continue
            try:
                self._perform_one(effect, now)
            except Exception as error:
                log.error("a committed entry could not be handled", exc_info=unworded(error))
        return len(messages)

    def refused(
        self, appends: list[Append], refusal: Refusal, *, is_final: bool, unknown: int = 0
    ) -> None:
        """Continue after the log refused entries.

        `is_final` if it stays read-only; the first `unknown` entries may have been written.
        """
        # What is gathered comes later: its positions would be taken back.
        now = self.writer.tick_ms or self.writer.begin_tick()
        if is_final:
            self.hub.storage.stop(refusal)
        self.writer.log_went_on()
        self.perform(self.hub.refused(appends, refusal, now, unknown), now)

    def damaged(self, refusal: Refusal) -> None:
        """A read has found damage, so that the log accepts nothing more."""
        if self.hub.storage.fault is None:
            self.hub.storage.stop(refusal)

    def _ending_tick(self, now: int) -> None:
        """Before the tick's writes: dispatch to woken subscriptions, flush entries to the log."""
        hub = self.hub
        try:
            if self._gathered:
                self.handle_gathered()
            if hub.next_dispatch_ms <= now:
                for effect in hub.dispatch(now):
                    self._perform_one(effect, now)
        finally:
            # A fault in the dispatch must not hold back what others have sent.
            self._engine.flush()
            self._plan_dispatch(now)

    def _plan_dispatch(self, now: int) -> None:
        due_ms = self.hub.next_dispatch_ms
        if due_ms >= self._dispatch_at_ms or due_ms == math.inf:
            return
        if self._dispatch_timer is not None:
            self._dispatch_timer.cancel()
        self._dispatch_at_ms = due_ms
        delay_s = max(0.0, due_ms - now) / 1000
        self._dispatch_timer = self._loop.call_later(delay_s, self._dispatch_due)

    def _dispatch_due(self) -> None:
        self._dispatch_timer = None
        self._dispatch_at_ms = math.inf
        if not self.writer.tick_ms:
            self.writer.begin_tick()

    def stop(self) -> None:
        """Cancel the timer, and ignore later results."""
        if self._dispatch_timer is not None:
            self._dispatch_timer.cancel()
        self._dispatch_at_ms = -math.inf
        self._is_stopped = True

    def _dispatch(self, effect: Dispatch, now: int) -> None:
        connection = _connection(effect.session)
        frame, receipt = effect.frame, effect.receipt
        if connection.is_closing:
            if receipt is not None:
                self.perform(self.hub.undelivered(receipt, now), now)
            return
        self._tally.deliveries += 1
        if connection.session.outbound is not None:
            self._park(connection, WaitingFrame((text_header(len(frame)), frame), None, receipt))
        elif receipt is not None:
            connection.queue_message(frame, receipt)
        else:
            connection.queue_reply(frame)

    def _dispatch_run(self, effect: DispatchRun) -> None:
        connection = _connection(effect.session)
        if connection.is_closing:
            return
        self._tally.deliveries += effect.count
        if connection.session.outbound is None:
            connection.queue_replies(effect.frames, effect.count)
            return
        self._park_all(connection, effect.frames)

    def _told(self, then: Callable[[R, int], list[Effect]]) -> Callable[[R], None]:
        """Return the callback that passes a result of the engine to the core."""

        def tell(result: R) -> None:
            if not self._is_stopped:
                self.run(lambda now: then(result, now))

        return tell

    # Rooms.

    def _answer(self, effect: Answer) -> None:
        try:
            effect.caller.answer(effect.result, effect.message_id)  # type: ignore[attr-defined]
        except Exception as error:
            # Do not fail other requests of the same commit.
            log.error("a request could not be answered", exc_info=unworded(error))

    def _announce(self, effect: Announce) -> None:
        frame = effect.frame
        header = text_header(len(frame))
        listening: list[Connection[Party]] = []
        crowded: list[Connection[Party]] = []
        for guest in effect.guests:
            if guest is effect.but:
                continue
            room_socket: RoomSocket = guest.link  # type: ignore[assignment]
            connection = room_socket.connection
            if connection.is_closing:
                continue
            try:
                if room_socket.outbound is None:
                    connection.queue_announcement(header, frame)
                    listening.append(connection)
                elif not room_socket.park(header, frame):
                    crowded.append(connection)
            except Exception as error:
                # The other sockets still receive it; this client can fetch it after reconnecting.
                log.error("a socket could not be written to", exc_info=unworded(error))
                connection.abort()
        self.writer.mark_all(listening, len(listening), self._fanout_batch, len(frame), None)
        for slow in crowded:
            self.writer.close_slow(slow)

    def _recall(self, effect: Recall) -> None:
        def report(found: list[Recalled] | None) -> None:
            if not self._is_stopped:
                self.run(lambda now: effect.then(found, now))

        def done(found: list[Recalled] | None) -> None:
            self._loop.call_soon_threadsafe(report, found)

        self._store.recall(effect.keys, effect.oldest_ms, done)

    def _consult(self, effect: Consult, now: int) -> None:
        def done(found: list[Archived] | None) -> None:
            if not self._is_stopped:
                self.run(lambda now: effect.then(found, now))

        if self._archive is None:
            self.perform(effect.then([], now), now)
        else:
            self._archive.consult(effect, done)

    # Fan-outs.

    def _fan_out(self, effect: FanOut, now: int) -> None:
        batch = self._open_fans.get(effect.audience)
        if batch is not None and batch.takes(effect.head, effect.tail):
            batch.add(effect.head, effect.tail)
            connections = batch.enlist_again()
        else:
            batch = FanBatch()
            batch.add(effect.head, effect.tail)
            connections = batch.enlist(effect.audience.recipients)
            if connections and effect.receipt.topic is not None:
                self._open_fans[effect.audience] = batch
        size = len(effect.head) + len(effect.tail)
        broadcast = effect.receipt if effect.receipt.topic is None else None
        self.writer.mark_all(connections, batch.joined, effect.chunk, size, broadcast)
        failed = sum(not self._park_copy(one, effect) for one in batch.blocked)
        queued = batch.joined + len(batch.blocked) - failed
        self._tally.deliveries += queued
        self.perform(self.hub.fanned_out(effect.receipt, queued, failed, now), now)

    def _close_fans(self) -> None:
        """After a flush: drop closed batches, so that their payloads are freed."""
        if self._open_fans:
            self._open_fans = {key: one for key, one in self._open_fans.items() if one.is_open}

    def _park_copy(self, recipient: Recipient, effect: FanOut) -> bool:
        """Queue one copy for a blocked recipient; `False` if it is dropped."""
        connection = _connection(recipient.session)
        outbound = recipient.session.outbound
        pieces: tuple[bytes, ...] = (effect.head, recipient.address_json, effect.tail)
        size = sum(map(len, pieces))
        if connection.is_closing:
            self._tally.dropped_tells += 1
            return False
        assert outbound is not None
        if not outbound.admits(size, connection.unsent_bytes):
            self._tally.dropped_tells += 1
            return False
        if size < SHARED_BYTES:
            pieces = (b"".join((text_header(size), *pieces)),)
        else:
            pieces = (text_header(size), *pieces)
        self._park(connection, WaitingFrame(pieces, effect.receipt.expires_at, is_tell=True))
        return True


def _connection(session: Session) -> Connection[Session]:
    # Or that of a session without a socket, a `CallerLink`, which has what is used here.
    connection: Connection[Session] = session.link  # type: ignore[assignment]
    return connection


def _row(registration: Registration) -> RegistrationRow:
    return RegistrationRow(
        address=registration.address,
        capabilities=list(registration.capabilities),
        metadata_json=registration.metadata,
        registered_at=registration.registered_at_ms,
        expires_at=registration.expires_at_ms(),
        lease_ms=registration.lease_ms,
        version=registration.version,
    )
