"""One hub process: start and shutdown.

Start: state, core, runner, port, then the pipeline beside the hub. Shutdown: close the port, notify
every session, flush the sockets, write the state. Registrations are kept across a planned restart,
so that senders are told to wait for actors that will reconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import secrets
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import picows
import uvloop

from signalhub import native
from signalhub.auth.denials import Denials
from signalhub.auth.session_tokens import SessionTokens
from signalhub.clock import Clock, Ids, SteadyClock, SystemClock, boot_s
from signalhub.core.hub import Hub
from signalhub.core.limits.degradations import Degraded
from signalhub.core.streams import recovery
from signalhub.core.streams.retention import Survey
from signalhub.core.subscriptions.manage import held_up
from signalhub.counters import Tally
from signalhub.engine.local import LocalEngine, Needs
from signalhub.locks import LockedFolder
from signalhub.log.errors import LogDamaged, LogFailed
from signalhub.pacing import Period, SharedBucket
from signalhub.server import startup
from signalhub.server.access import Access
from signalhub.server.admin.desk import Desk
from signalhub.server.callers import Callers
from signalhub.server.history.routes import HistoryDesk
from signalhub.server.losses import Losses
from signalhub.server.messages.api import MessagesApi
from signalhub.server.port import descriptors
from signalhub.server.port.door import Door, origin_allowed
from signalhub.server.port.http import HttpRequest, Response, Routes
from signalhub.server.port.listener import Listener, check_port, listen, too_many_connections
from signalhub.server.rooms.api import Api
from signalhub.server.rooms.upgrade import Gate
from signalhub.server.runner import HubRunner
from signalhub.server.sockets.native import new_connection
from signalhub.settings.model import Settings
from signalhub.state.clock_offset import ClockOffset
from signalhub.state.store import FILE, StateStore
from signalhub.wire import envelope as wire
from signalhub.wire.frames import CloseCode
from signalhub.wire.release import __version__
from signalhub.wire.room_ids import Names

if TYPE_CHECKING:
    from signalhub.server.credentials import Credentials
    from signalhub.server.lake import Lakeside
    from signalhub.server.metrics import Metrics

log = logging.getLogger("signalhub.server")

_SWEEP_S = 0.25
_TICK_S = 1.0
_SWITCH_S = 0.0001
# A snapshot is saved after either, so that a start has little of the log to read.
_CHECKPOINT_MS = 10_000
_CHECKPOINT_ENTRIES = 50_000
_RETENTION_MS = 60_000
_EXPIRY_MS = 60_000
# Subscriptions that are named if damage holds them up.
_HELD_UP_SHOWN_MAX = 10


class App:
    """A hub that can be started and stopped; also decides which connections are admitted."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        *,
        config: str | None = None,
        pipeline: Sequence[str] | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        """A pipeline beside the hub gets the file `config`; `pipeline` replaces its command.

        `sources` says where each setting is from.
        """
        self.settings = settings
        self._sources = sources or {}
        self._config = config
        self._pipeline_command = pipeline
        self._lakeside: Lakeside | None = None
        # Time in which the machine was suspended has passed, too.
        self._clock = SteadyClock(SystemClock(), boot_s) if clock is None else SteadyClock(clock)
        self._tally = Tally()
        self._authenticator = None
        if settings.auth.enabled:
            # A hub without authentication does not load its libraries.
            from signalhub.auth.tokens import Authenticator

            self._authenticator = Authenticator(settings.auth)
        self._credentials: Credentials | None = None
        self.hub = Hub(
            settings,
            ids=Ids(),
            authenticator=self._authenticator,
            session_tokens=SessionTokens(secrets.token_bytes(32)),
            tally=self._tally,
        )
        self._door_bucket = SharedBucket(
            settings.connection_rate, settings.connection_burst, self._clock.now_ms()
        )
        self._clock_offset: ClockOffset
        self._losses: Losses
        self._known_degradations: list[Degraded] = []
        self._known_store_errors = 0
        self._clean = Period(int(settings.registry.sweep_s * 1000))
        self._folder: LockedFolder
        self._store: StateStore
        self._engine: LocalEngine
        self._checkpointed = 0
        self._snapshot_before = 0
        self._known_segments = 0
        self._is_surveying = False
        self._checkpoint = Period(_CHECKPOINT_MS)
        self._retention = Period(_RETENTION_MS)
        self._expiry = Period(_EXPIRY_MS)
        self.runner: HubRunner
        self._listener: Listener
        self._access: Access
        self.desk: Desk | None = None
        self.history: HistoryDesk | None = None
        self.callers: Callers
        self._metrics: Metrics | None = None
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._listener.port

    async def start(self) -> None:
        """Open the state and the port."""
        loop = asyncio.get_running_loop()
        self._folder = LockedFolder(self.settings.data)
        try:
            await self._check()
            await self._open(loop)
        except BaseException:
            self._folder.abandon(startup.MADE)
            raise
        log.info("the hub is ready", extra={"port": self.port})

    async def _check(self) -> None:
        """Refuse what can be refused before anything is opened."""
        if self.settings.pipeline.run != "off":
            # Imported here, so that a hub without a lake does not load its libraries.
            from signalhub.server.lake import check_pipeline

            await check_pipeline(self.settings.pipeline, self._pipeline_command)
        if self._authenticator is not None:
            from signalhub.server.credentials import Credentials

            auth, denied = self.settings.auth, Path(self.settings.denial_list)
            self._credentials = Credentials(
                auth, denied, self._authenticator, self._deny, self._folder.path
            )
            self._credentials.read_files()
        await check_port(self.settings)

    async def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._store = StateStore(str(self._folder.path / FILE))
        try:
            await self._open_rest(loop)
        except BaseException:
            self._store.close()
            raise

    async def _open_rest(self, loop: asyncio.AbstractEventLoop) -> None:
        self._clock_offset = offset = ClockOffset(self._folder.path)
        self._clock.resume(ahead_ms=offset.saved_ms)
        rows = self._store.load(self._clock.now_ms())
        self.hub.restore((row.address, row.version, row.expires_at) for row in rows)
        self._losses = losses = Losses(self._folder.path, self._clock)
        self._engine = LocalEngine(
            self._folder.path / "log",
            self.settings.log,
            self._clock,
            loop,
            known=startup.known_head(self._folder.path, losses),
            on_loss=losses.note,
        )
        try:
            losses.log_is_there({info.epoch for info in self._engine.recovery.segments})
            self._clock.resume(ahead_ms=offset.saved_ms, newest_ms=self._engine.newest_ms)
            self.hub.wall.ahead_ms = self._clock.ahead_ms
            self._lakeside = await self._open_lakeside()
            now = self._clock.now_ms()
            past = startup.past_of(self._folder.path, self._engine.epoch)
            continued = startup.recover(self.hub, self._engine, self._store, now)
            if self._lakeside is not None:
                # The lake may have advanced since the snapshot.
                self.hub.rooms.archived_to(self._lakeside.archive.position)
            names = startup.room_names(self.hub, self._folder.path)
            self._checkpointed = self._snapshot_before = self._engine.head
            if self._engine.head > self._store.saved_offset:
                # So that ids that only the log held can be looked up.
                self._save_snapshot()
            self._run(loop, names)
            self.runner.perform(
                startup.enter_epoch(self.hub, self._engine, continued, past, now), now
            )
            if self._credentials is not None:
                await self._credentials.start(self._clock.now_ms())
            await self._listen(loop)
        except BaseException:
            if self._lakeside is not None:
                self._lakeside.close()
            self._engine.close()
            raise
        if self._lakeside is not None:
            self._lakeside.start()

    async def _open_lakeside(self) -> Lakeside | None:
        if self.settings.pipeline.run == "off":
            return None
        from signalhub.server.lake import open_lakeside

        return await open_lakeside(
            self.settings.pipeline,
            self._folder.path,
            self.hub,
            self._engine,
            self._clock,
            config=self._config,
            command=self._pipeline_command,
        )

    def _deny(self, denials: Denials) -> None:
        now = self._clock.now_ms()
        self.runner.handle_gathered()
        self.runner.perform(self.hub.deny(denials, now), now)

    def _run(self, loop: asyncio.AbstractEventLoop, names: Names) -> None:
        archive = None if self._lakeside is None else self._lakeside.archive
        self.runner = HubRunner(
            self.hub, self._store, self._engine, self._clock, loop, archive=archive
        )
        self._engine.report_to(self.runner)
        self.hub.rooms.use(names)

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tally.log = self._engine.log.tally
        self._access = Access(
            self.settings, self._authenticator, self.hub.logins, self.runner, self._clock
        )
        self.callers = Callers(self.hub, self.runner, self._clock, self._authenticator)
        routes = Routes()
        for path in ("/health", "/healthz", "/readyz"):
            routes.add(path, self._health, is_for_any_host=True)
        routes.add("/metrics", self._serve_metrics)
        described = None
        if self.settings.rooms.enabled:
            rooms = Api(self.hub, self.runner, self._clock)
            rooms.add_to(routes)
            described = rooms.description
            Gate(self.runner, self._clock).add_to(routes)
        if self.settings.ui.enabled:
            desk = self._open_desk()
            self.history = HistoryDesk(
                self.hub,
                self.runner,
                self._engine,
                desk,
                self._folder.path,
                self._lakeside,
                config=self._config,
                port=lambda: self.port,
            )
            desk.add_to(routes)
        messages = MessagesApi(self.hub, self.runner, self._clock, self.callers)
        messages.add_to(routes, described)
        self._listener = await listen(self.settings, routes, self)
        self.runner.writer.watch(self._listener.choking)
        self.hub.usage.sockets = self._listener.usage
        if self.desk is not None:
            self.desk.start()
        self._timers = [
            loop.call_later(_SWEEP_S, self._every, 0, _SWEEP_S, self.runner.writer.sweep),
            loop.call_later(_TICK_S, self._every, 1, _TICK_S, self._tick),
        ]

    def _open_desk(self) -> Desk:
        """The page for people and its API; other parts add their routes to `desk.api`."""
        self.desk = Desk(
            self.hub,
            self.runner,
            self._engine,
            self._clock,
            self.callers,
            self._authenticator,
            self._folder.path,
            self._lakeside,
            sockets=lambda: self._listener.usage(),
            details=lambda: (self._details(), self._storage()),
            sources=self._sources,
        )
        return self.desk

    async def stop(self) -> None:
        """Notify all sessions, flush the sockets, and write the state."""
        await self._listener.close()
        lakeside = self._lakeside
        # The pipeline stops slowly, so it is signalled first and awaited last.
        ending = None if lakeside is None else asyncio.create_task(lakeside.stop())
        if self.desk is not None:
            self.desk.stop()
        if self.history is not None:
            await self.history.stop()
        now = self._clock.now_ms()
        self.runner.handle_gathered()
        self.runner.perform(self.hub.drain(now), now)
        for door in self._listener.doors:
            door.close(CloseCode.GOING_AWAY, "server_shutdown")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.runner.wait_until_empty(), self.settings.drain_s)
        for connection in list(self.runner.connections):
            connection.abort()
        for timer in self._timers:
            timer.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.runner.wait_until_empty(), self.settings.drain_s)
        await self._close_log()
        self._clock_offset.save(self._clock.ahead_ms)
        if lakeside is not None and ending is not None:
            await ending
            lakeside.close()
        self._store.close()
        self._folder.close()
        log.info("the hub has stopped")

    async def _close_log(self) -> None:
        """Write the last acks and cursors to the log, then a snapshot."""
        self.runner.stop()
        now = self._clock.now_ms()
        self.runner.perform(self.hub.dispatch(now), now)
        self._engine.flush()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._engine.wait_until_written(), self.settings.drain_s)
        self._save_snapshot()
        self._engine.close()

    def _save_snapshot(self) -> None:
        """Save a snapshot; the next start reads the log from its offset."""
        if isinstance(self._engine.log.fault, LogDamaged):
            return
        self._checkpointed = offset = self._engine.reported
        is_whole = self._store.is_snapshot_broken
        snapshot = recovery.take_snapshot(self.hub.parts, offset, is_whole=is_whole)
        # Outcomes of earlier asks may come after the snapshot's offset in the log.
        seen_from = self.hub.oldest_open(self._snapshot_before)
        self._snapshot_before = offset
        window = startup.window_of(self.settings)
        self._store.save_snapshot(snapshot, self._engine.epoch, seen_from, window)

    # Admission.

    def admit(self, source: str) -> Response | None:
        """Admit a WebSocket; return the error response above the connection rate."""
        now = self._clock.now_ms()
        if not self._door_bucket.take(source, now):
            self._tally.connections_refused += 1
            retry_after_s = max(1, -(-self._door_bucket.retry_after_ms(now) // 1000))
            return too_many_connections(retry_after_s, int(self._door_bucket.rate_s))
        return None

    def accept(self, door: Door) -> picows.WSListener | Response:
        """Return the connection of an admitted actor."""
        return new_connection(self.runner, door)

    # Health, metrics and periodic work.

    def _degradations(self) -> list[Degraded]:
        found = self.hub.degradations()
        if self._listener.is_nearly_full:
            found.append(Degraded.SOCKETS_NEAR_CAPACITY)
        if self._engine.unwritten.is_much:
            found.append(Degraded.DISK_BEHIND)
        if self._store.errors > self._known_store_errors:
            found.append(Degraded.REGISTRY_NOT_WRITTEN)
        if self._losses.are_open:
            found.append(Degraded.LOG_ENTRIES_LOST)
        if self._engine.log.state != "open":
            found.append(Degraded(f"storage_{self._engine.log.state}"))
        found += [Degraded(f"retention_held_by_{who}") for who in self._engine.held.by]
        if self._lakeside is not None:
            found += self._lakeside.degradations(self._clock.now_ms())
        if self._credentials is not None:
            found += self._credentials.degradations(self._clock.now_ms())
        return found

    def _details(self) -> dict[str, object]:
        """What the degradations are about, for those who may know names."""
        held, lost = self._engine.held, self._losses.open
        return {
            **({"retention": held} if held.by else {}),
            **({"lost": lost} if lost else {}),
            **({"heldUp": self._held_up()} if self._engine.log.fault is not None else {}),
        }

    def _storage(self) -> dict[str, object] | None:
        """What is wrong with the log, if anything is."""
        fault = self._engine.log.fault
        return None if fault is None else _described(fault)

    def _held_up(self) -> list[dict[str, object]]:
        """The first of the subscriptions and mailboxes that damage keeps from delivering."""
        found: list[dict[str, object]] = []
        for one in self.hub.streams.readers():
            obstacle = one.backlog.obstacle
            if obstacle is None:
                continue
            who = {"stream": one.stream.name, "subscription": one.name}
            found.append(who | held_up(one, obstacle))
            if len(found) == _HELD_UP_SHOWN_MAX:
                break
        return found

    def _health(self, request: HttpRequest) -> Response:
        degradations = self._degradations()
        body: dict[str, object] = {"status": "degraded" if degradations else "ok"}
        if self._access.sees_details(request):
            body["service"] = "signal-hub"
            body["version"] = wire.PROTOCOL_VERSION
            body["release"] = __version__
            body["native"] = native.STATUS
            body["timestamp"] = self._clock.wall_ms()
            if storage := self._storage():
                body["storage"] = storage
            if details := self._details():
                body["details"] = details
        body["degradations"] = degradations
        status = 503 if self._engine.log.fault else 200
        headers = self._cors(request)
        return Response(status, wire.encode(body), "application/json", headers)

    def _cors(self, request: HttpRequest) -> dict[str, str]:
        """Let pages of allowed origins read an answer; their sockets are told nothing of a 503."""
        origin = request.headers.get("origin")
        if origin is None or not origin_allowed(origin, self.settings.origins):
            return {}
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}

    async def _serve_metrics(self, request: HttpRequest) -> Response:
        refusal = self._access.metrics_refusal(request)
        if refusal is not None:
            return refusal
        if self._metrics is None:
            # Loaded for the first scrape, in a thread, so that no message waits for it.
            await asyncio.to_thread(import_module, "signalhub.server.metrics")
            self._metrics = self._metrics or self._opened_metrics()
        await self._metrics.refresh()
        pieces: list[bytes] = []
        for piece in self._metrics.pieces():
            pieces.append(piece)
            # Let pending messages go first.
            await asyncio.sleep(0)
        return Response(200, b"".join(pieces), content_type=self._metrics.content_type)

    def _opened_metrics(self) -> Metrics:
        from signalhub.server.gauges import Gauges
        from signalhub.server.metrics import Metrics

        gauges = Gauges(
            self.hub,
            self.runner,
            self._store,
            self._engine,
            self._clock,
            self._listener,
            self._lakeside,
            self.desk,
        )
        return Metrics(gauges, subscriptions_max=self.settings.metrics_subscriptions_max)

    def _follow_clock(self) -> None:
        """Follow the wall clock slowly, and say so when it has jumped."""
        set_ms = self._clock.follow()
        ahead_ms = self._clock.ahead_ms
        self.hub.wall.ahead_ms = ahead_ms
        self._clock_offset.save(ahead_ms)
        if set_ms:
            facts = {"by_s": set_ms / 1000, "ahead_s": ahead_ms / 1000}
            log.warning("the wall clock was set; times in the log follow it slowly", extra=facts)

    def _tick(self) -> None:
        self._follow_clock()
        now = self._clock.now_ms()
        self.hub.rooms.messages.ids.saved(self._store.saved_offset)
        self.runner.handle_gathered()
        self.runner.perform([*self.hub.tick(now), *self._losses.tick(now)], now)
        self.callers.tick()
        grown = self._engine.head - self._checkpointed
        if grown >= _CHECKPOINT_ENTRIES or (grown and self._checkpoint.is_due(now)):
            self._save_snapshot()
        if self.hub.erasures.take_news():
            self._save_snapshot()
            self._store.shed()
        segments = self._engine.segments
        if self._retention.is_due(now) or segments != self._known_segments:
            self._known_segments = segments
            self._retain(now)
        if self._lakeside is not None:
            self._lakeside.tick(now, self._look_at_segments)
        if self._credentials is not None:
            self._credentials.tick(now)
        if self._expiry.is_due(now):
            self._engine.expire()
        if self._clean.is_due(now):
            self._known_store_errors = self._store.errors
            self._store.clean(now)
        degradations = self._degradations()
        if self.desk is not None:
            self.desk.tick(degradations, now)
        if degradations != self._known_degradations:
            self._known_degradations = degradations
            if degradations:
                facts = {"degradations": degradations, "details": self._details()}
                log.warning("the hub is degraded", extra=facts)
            else:
                log.info("the hub is healthy again")

    def _retain(self, now: int) -> None:
        """Apply retention. The log is cut only before the offset of a saved snapshot."""
        self.runner.handle_gathered()
        self.runner.perform(self.hub.retention.expire_topics(now), now)
        if self._engine.reported > self._checkpointed:
            self._save_snapshot()
        loop = asyncio.get_running_loop()
        self._store.make_safe(lambda saved: loop.call_soon_threadsafe(self._retain_saved, saved))

    def _retain_saved(self, saved: int) -> None:
        if self.hub.is_draining:
            return
        if not self._is_surveying:
            self._is_surveying = True
            self._look_on(self.hub.retention.survey(), saved)

    def _look_on(self, slices: Generator[None, None, Survey], saved: int) -> None:
        """Look at some more streams, and let others go first before the next ones."""
        try:
            next(slices)
        except StopIteration as end:
            self._is_surveying = False
            self._retain_surveyed(end.value, saved)
        except BaseException:
            self._is_surveying = False
            raise
        else:
            asyncio.get_running_loop().call_soon(self._look_on, slices, saved)

    def _retain_surveyed(self, survey: Survey, saved: int) -> None:
        if self.hub.is_draining:
            return
        now = self._clock.now_ms()
        archive = None if self._lakeside is None else self._lakeside.archive
        needs = Needs(
            unsettled=survey.unsettled,
            # With an archive, `landed` protects everything that cannot be read from it.
            needed=self.hub.rooms.needed_from(now) if archive is None else None,
            saved=saved,
            landed=None if archive is None else archive.landed,
            anchored=self.hub.anchors.anchored(survey),
            streams=survey.streams,
        )
        wait = archive.wait_for if archive is not None else lambda _: None
        self._engine.retain(needs, self._cut, self._anchor, wait)

    def _anchor(self, end: int) -> None:
        """Anchor: definitions before the coming cut are written to the log again."""
        now = self._clock.now_ms()
        self.runner.perform(self.hub.anchors.anchor(end, now), now)
        self._look_at_segments()

    def _look_at_segments(self) -> None:
        """Check at the next tick whether segments can be deleted."""
        self._known_segments = -1

    def _cut(self, firsts: dict[int, int]) -> None:
        if self.hub.is_draining:
            return
        now = self._clock.now_ms()
        self.runner.perform(self.hub.retention.cut(firsts, now), now)
        self.hub.rooms.messages.cut(self._engine.first)
        self._save_snapshot()

    def _every(self, slot: int, period_s: float, work: Callable[[], None]) -> None:
        """Run `work` periodically; a failure is logged and does not stop the timer."""
        loop = asyncio.get_running_loop()
        self._timers[slot] = loop.call_later(period_s, self._every, slot, period_s, work)
        try:
            work()
        except Exception:
            log.exception("a periodic task failed")


def _described(fault: LogFailed | LogDamaged) -> dict[str, object]:
    """What is wrong with the log, and what the operator can do."""
    if isinstance(fault, LogDamaged):
        return {
            "state": "damaged",
            "segment": fault.segment,
            "position": fault.position,
            "reason": fault.reason,
            "resolution": "Stop the hub, restore the segment from a backup, check with "
            "`signalhub log verify`, and start the hub again.",
        }
    return {
        "state": "failed",
        "reason": fault.reason,
        "resolution": "Check the disk and restart the hub, which keeps all that was acknowledged.",
    }


def serve(
    settings: Settings,
    announce: Callable[[int], None],
    config: str | None = None,
    sources: Mapping[str, str] | None = None,
) -> int:
    """Run a hub until SIGTERM or SIGINT; return the exit code of the process.

    `config` is the settings file, which is passed to the pipeline beside the hub; `sources` says
    where each setting is from, for those who look at them.
    """
    # Most objects are either long-lived or freed by reference counts, so collect less often.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    descriptors.raise_limit()
    # So that the commit thread gets the interpreter lock quickly while the loop is busy.
    sys.setswitchinterval(_SWITCH_S)
    return uvloop.run(_serve(settings, announce, config, sources))


async def _serve(
    settings: Settings,
    announce: Callable[[int], None],
    config: str | None,
    sources: Mapping[str, str] | None,
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    app = App(settings, config=config, sources=sources)
    await app.start()
    announce(app.port)
    await stop.wait()
    log.info("stopping")
    await app.stop()
    return 0
