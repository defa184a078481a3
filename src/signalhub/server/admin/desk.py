"""The admin API of one hub, put together: its routes, the live socket and what they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from signalhub.server.admin.actors import Actors
from signalhub.server.admin.api import PREFIX, AdminApi
from signalhub.server.admin.facts import Condition, Facts, Warnings
from signalhub.server.admin.jobs import Jobs
from signalhub.server.admin.live import Live
from signalhub.server.admin.openapi import PATH, Description
from signalhub.server.admin.overview import Overview
from signalhub.server.admin.sampler import Sampler
from signalhub.server.admin.streams import Streams
from signalhub.server.admin.visitors import Visitors
from signalhub.server.web import Web

if TYPE_CHECKING:
    from signalhub.auth.tokens import Authenticator
    from signalhub.clock import SteadyClock
    from signalhub.core.hub import Hub
    from signalhub.core.limits.degradations import Degraded
    from signalhub.core.limits.usage import SocketUsage
    from signalhub.engine.local import LocalEngine
    from signalhub.server.callers import Callers
    from signalhub.server.lake import Lakeside
    from signalhub.server.port.http import Routes
    from signalhub.server.runner import HubRunner


class Desk:
    """Everything behind `/api/admin/v1`."""

    def __init__(
        self,
        hub: Hub,
        runner: HubRunner,
        engine: LocalEngine,
        clock: SteadyClock,
        callers: Callers,
        authenticator: Authenticator | None,
        data: Path,
        lakeside: Lakeside | None,
        *,
        sockets: Callable[[], SocketUsage],
        details: Callable[[], tuple[dict[str, object], dict[str, object] | None]],
        sources: Mapping[str, str],
    ) -> None:
        """`sockets` counts open ones; `details` says more of degradations and of a broken log.

        `sources` says where each setting is from.
        """
        visitors = Visitors(callers, hub.settings, authenticator)
        self.api = api = AdminApi(visitors, clock.now_ms, hub.wall.shown)
        self.sampler = sampler = Sampler(hub, runner, engine, clock, data, lakeside)
        self._condition = condition = Condition(hub.wall.shown)
        self._warnings = warnings = Warnings()
        facts = Facts(hub, engine, sampler, condition, warnings, details, data, lakeside, sources)
        overview = Overview(hub, engine, sampler, condition, sockets, lakeside)
        streams, actors = Streams(hub, sampler), Actors(hub)
        self.jobs = jobs = Jobs(hub, visitors, clock.now_ms)
        for part in (facts, overview, actors, streams, jobs):
            part.add_to(api)
        self.live = Live(api, hub, runner, sampler, facts, overview, streams, actors, jobs)

    def add_to(self, routes: Routes) -> None:
        """Register all paths; other parts have added theirs to `api` before."""
        Web().add_to(routes)
        self.api.add_to(routes)
        routes.add(f"{PREFIX}{PATH}", Description(self.api).answer, "GET")
        self.live.add_to(routes)

    def start(self) -> None:
        """The port is open."""
        self._warnings.open()
        self.sampler.start()

    def tick(self, degradations: Sequence[Degraded], now: int) -> None:
        """Once a second."""
        self._condition.note(degradations, now)
        self.sampler.tick(now)
        self.live.tick(now)

    def stop(self) -> None:
        """The hub stops."""
        self.live.stop()
        self.jobs.stop()
        self.sampler.stop()
        self._warnings.close()
