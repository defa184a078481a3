"""Facts about the hub and whoever asks: `/me`, `/settings`, `/health`, `/segments`, `/rooms` …"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from signalhub import native
from signalhub.core.limits.degradations import DESCRIPTIONS, Degraded
from signalhub.server.admin.answers import (
    Degradation,
    Features,
    HealthAnswer,
    HubFacts,
    MeAnswer,
    RefreshedAnswer,
    RoomsAnswer,
    RoomSizes,
    SegmentRow,
    SegmentsAnswer,
    SettingRow,
    SettingsAnswer,
    WarningRow,
    WarningsAnswer,
)
from signalhub.server.admin.api import AdminApi, AdminRefusal, Asked
from signalhub.server.admin.paging import slices
from signalhub.settings.load import Leaf, leaves
from signalhub.wire.envelope import PROTOCOL_VERSION
from signalhub.wire.release import __version__

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.engine.local import LocalEngine
    from signalhub.server.admin.sampler import Sampler
    from signalhub.server.admin.visitors import Visitor
    from signalhub.server.lake import Lakeside

WARNINGS_MAX: Final = 200
SEGMENTS_MAX: Final = 500
_TEXT_CHARS_MAX: Final = 500
_LEVELS: Final[dict[int, Literal["warning", "error", "critical"]]] = {
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}
# What only those who may see sessions see: who and where the clients are.
_OF_CLIENTS: Final = frozenset(("source", "peer", "identity", "operator"))
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Warnings(logging.Handler):
    """Keeps the last lines of the hub's log that somebody should read."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.kept: deque[WarningRow] = deque(maxlen=WARNINGS_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        facts = {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info and record.exc_info[0] is not None:
            facts["exception"] = record.exc_info[0].__name__
        self.kept.append(
            WarningRow(
                at=int(record.created * 1000),
                level=_LEVELS.get(record.levelno, "error"),
                logger=record.name,
                text=record.getMessage()[:_TEXT_CHARS_MAX],
                facts={name: str(value)[:_TEXT_CHARS_MAX] for name, value in facts.items()},
            )
        )

    def open(self) -> None:
        """Keep lines from now on."""
        logging.getLogger("signalhub").addHandler(self)

    def close(self) -> None:
        logging.getLogger("signalhub").removeHandler(self)
        super().close()


class Condition:
    """The degradations, and since when each of them has been there."""

    def __init__(self, shown: Callable[[int], int]) -> None:
        self._shown = shown
        self._since: dict[Degraded, int] = {}

    def note(self, degradations: Sequence[Degraded], now: int) -> None:
        """These are the degradations now; call it once a second."""
        self._since = {one: self._since.get(one, now) for one in degradations}

    def listed(self) -> list[Degradation]:
        """Each with what it means and what to do."""
        return [
            Degradation(
                code=one.value,
                since=self._shown(since),
                text=DESCRIPTIONS[one].meaning,
                todo=DESCRIPTIONS[one].remedy,
            )
            for one, since in self._since.items()
        ]


class Facts:
    """Answers what needs no search."""

    def __init__(
        self,
        hub: Hub,
        engine: LocalEngine,
        sampler: Sampler,
        condition: Condition,
        warnings: Warnings,
        details: Callable[[], tuple[dict[str, object], dict[str, object] | None]],
        data: Path,
        lakeside: Lakeside | None,
        sources: Mapping[str, str],
    ) -> None:
        """`details` returns what degradations are about, and what is wrong with the log."""
        self._hub = hub
        self._engine = engine
        self._sampler = sampler
        self._condition = condition
        self._warnings = warnings
        self._details = details
        self._lakeside = lakeside
        self._sources = sources
        name = f"{platform.node()}:{data.resolve()}"
        self._id = hashlib.sha256(name.encode()).hexdigest()[:12]

    def add_to(self, api: AdminApi) -> None:
        """Add the routes."""
        api.add("GET", "/me", self.show_me, answer=MeAnswer, needs=None)
        api.add("POST", "/session/refresh", self.refresh, answer=RefreshedAnswer, needs=None)
        api.add("GET", "/settings", self.settings, answer=SettingsAnswer, needs="settings")
        api.add("GET", "/health", self.health, answer=HealthAnswer)
        api.add("GET", "/segments", self.segments, answer=SegmentsAnswer)
        api.add("GET", "/warnings", self.warnings, answer=WarningsAnswer)
        api.add("GET", "/rooms", self.rooms, answer=RoomsAnswer)

    @property
    def log_epoch(self) -> int:
        """The epoch of the log."""
        return self._engine.epoch

    @property
    def log_head(self) -> int:
        """Where the log ends."""
        return self._engine.head

    # Who asks.

    def show_me(self, asked: Asked) -> MeAnswer:
        """Who asks, with which permissions, and which hub this is."""
        return self.me(asked.visitor, asked.now)

    def me(self, visitor: Visitor, now: int) -> MeAnswer:
        """The same for the live socket."""
        settings, shown = self._hub.settings, self._hub.wall.shown
        ui, is_open = settings.ui, not settings.auth.enabled
        return MeAnswer(
            principal=visitor.principal.address,
            subject=visitor.allowance.subject,
            role=visitor.role,
            operations=visitor.operations,
            expires_at=None if visitor.expires_ms is None else int(visitor.expires_ms),
            hub=HubFacts(
                id=self._id,
                version=__version__,
                protocol=PROTOCOL_VERSION,
                epoch=self._engine.epoch,
                started_at=shown(self._sampler.started_ms),
                label=ui.label,
                color=ui.color,
            ),
            features=Features(
                lake=self._lakeside is not None,
                rooms=settings.rooms.enabled,
                actors=self._hub.streams.has_hosts,
                try_it=ui.try_it == "on" or (ui.try_it == "auto" and is_open),
                demo=ui.demo,
                auth=not is_open,
            ),
            payload_bytes=ui.payload_bytes,
            server_time=shown(now),
        )

    async def refresh(self, asked: Asked) -> RefreshedAnswer:
        """Replace the token by one that lives longer, with the same permissions."""
        visitor = asked.visitor
        if visitor.expires_ms is None:
            raise AdminRefusal(
                409, "no_token", "This hub has no authentication, so there is no token to refresh."
            )
        token = visitor.principal.token.rpartition(" ")[-1]
        found = await asked.result("hub:refresh_token", {"token": token})
        return RefreshedAnswer(token=found["token"], expires_at=int(found["expiresAt"]))

    # The hub.

    def settings(self, asked: Asked) -> SettingsAnswer:
        """Every setting; secrets are hidden."""
        return SettingsAnswer(
            rows=[
                _setting(leaf, self._hub.settings, self._sources.get(leaf.path))
                for leaf in leaves().values()
            ]
        )

    def health(self, asked: Asked) -> HealthAnswer:
        """Degradations since when, with what to do."""
        degradations = self._condition.listed()
        details, storage = self._details()
        return HealthAnswer(
            status="degraded" if degradations else "ok",
            degradations=degradations,
            details=msgspec.to_builtins(details),
            storage=storage,
            release=__version__,
            protocol=PROTOCOL_VERSION,
            python=platform.python_version(),
            native=native.STATUS,
            epoch=self._engine.epoch,
            started_at=self._hub.wall.shown(self._sampler.started_ms),
            uptime_ms=asked.now - self._sampler.started_ms,
            pid=os.getpid(),
        )

    def segments(self, asked: Asked) -> SegmentsAnswer:
        """The newest segments of the log, the last one first."""
        log, settings, lake = self._engine.log, self._hub.settings.log, self._lakeside
        landed = None if lake is None else lake.position
        segments = log.segments
        rows = [
            SegmentRow(
                first=one.base,
                last=one.end - 1,
                epoch=one.epoch,
                bytes=one.bytes,
                sealed=one.is_sealed,
                chain=one.chain.hex() or None,
                landed=None if landed is None else one.end <= landed,
                created_at=self._hub.wall.shown(one.created_ms),
            )
            for one in segments[: -SEGMENTS_MAX - 1 : -1]
        ]
        return SegmentsAnswer(
            rows=rows,
            epoch=log.epoch,
            first=self._engine.first,
            head=log.head,
            durable_head=log.durable_head,
            bytes=sum(one.bytes for one in segments),
            retention_bytes=settings.retention_bytes,
            retention_s=settings.retention_s,
            landed=landed,
        )

    def warnings(self, asked: Asked) -> WarningsAnswer:
        """The last warnings and errors of the hub's own log, the newest first."""
        rows = [*self._warnings.kept][::-1]
        if not asked.may("admin", "sessions"):
            rows = [_without_clients(one) for one in rows]
        return WarningsAnswer(rows=rows)

    async def rooms(self, asked: Asked) -> RoomsAnswer:
        """Rooms and inboxes in numbers."""
        hub, newest = self._hub, self._sampler.ring.newest
        tally, rooms, settings = hub.tally.rooms, hub.rooms, hub.settings.rooms
        sizes = [0, 0, 0, 0]
        # Without sockets there is nothing to count, however many rooms there are.
        found = list(rooms.directory.rooms.values()) if rooms.guests else []
        async for part in slices(found):
            for room in part:
                count = len(room.guests)
                if count:
                    sizes[(count > 1) + (count > 5) + (count > 20)] += 1
        histogram = tally.accept_latency
        return RoomsAnswer(
            enabled=settings.enabled,
            rooms=len(rooms.directory.rooms),
            inboxes=len(rooms.directory.inboxes),
            sockets=rooms.guests,
            sent=tally.sent,
            appended=tally.appended,
            fetches=tally.fetches,
            refused=tally.refused,
            denied=tally.denied,
            limited=tally.limited,
            message_rate=newest.get("room_messages"),
            append_rate=newest.get("room_appends"),
            fetch_rate=newest.get("room_fetches"),
            accept_p50_ms=_quantile_ms(histogram, 0.5),
            accept_p99_ms=_quantile_ms(histogram, 0.99),
            buffer_bytes=rooms.messages.buffer.bytes,
            buffer_bytes_max=settings.buffer_bytes,
            state_bytes=rooms.state.bytes,
            state_bytes_max=settings.state_bytes_max,
            disk_bytes=rooms.messages.disk_bytes,
            disk_bytes_max=settings.disk_bytes_max,
            unarchived_most=rooms.messages.unarchived,
            proposals_expired=tally.proposals_expired,
            sizes=RoomSizes(one=sizes[0], few=sizes[1], many=sizes[2], more=sizes[3]),
        )


def _without_clients(row: WarningRow) -> WarningRow:
    facts = {name: value for name, value in row.facts.items() if name not in _OF_CLIENTS}
    return msgspec.structs.replace(row, facts=facts)


def _setting(leaf: Leaf, settings: object, source: str | None) -> SettingRow:
    value = settings
    for name in leaf.path.split("."):
        value = getattr(value, name)
    return SettingRow(
        name=leaf.path,
        value=_shown(leaf, value),
        default=_shown(leaf, leaf.default),
        changed=bool(value != leaf.default),
        source=source,
        text=leaf.about,
    )


def _shown(leaf: Leaf, value: Any) -> str:
    """A value as JSON; keys and secrets are hidden by their type."""
    if leaf.is_secret:
        return leaf.shown(value) if value else '""'
    return msgspec.json.encode(value, enc_hook=str).decode()


def _quantile_ms(histogram: Any, share: float) -> float | None:
    """The upper bound of a quantile of everything since the start, in milliseconds."""
    total = histogram.count
    if not total:
        return None
    below = 0
    for bound, count in zip((*histogram.bounds_s, None), histogram.counts, strict=True):
        below += count
        if below >= share * total:
            return float(1000 * (histogram.bounds_s[-1] if bound is None else bound))
    return None
