"""The real hub in the test's own event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from signalhub.clock import Clock, SystemClock
from signalhub.settings.model import Settings

if TYPE_CHECKING:
    from signalhub.server.app import App


class RunningHub:
    """A hub that can be stopped and started again on the same port and data."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.port = settings.port
        self._app: App | None = None

    @property
    def app(self) -> App:
        """The application, while it runs."""
        assert self._app is not None, "the hub is stopped"
        return self._app

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start, or start again on the port it had."""
        from signalhub.server.app import App

        assert self._app is None, "the hub is already running"
        app = App(msgspec.structs.replace(self.settings, port=self.port), self.clock)
        await app.start()
        self._app = app
        self.port = app.port

    async def stop(self) -> None:
        """Stop if running; the data stay."""
        app, self._app = self._app, None
        if app is not None:
            await app.stop()


@asynccontextmanager
async def run_hub(clock: Clock | None = None, **settings: Any) -> AsyncIterator[RunningHub]:
    """Run a hub on a free port of the loopback, with a temporary data folder.

    Settings are passed by name, groups as mappings or structs: `run_hub(message_rate=0,
    registry={"limit": 10})`.
    """
    with TemporaryDirectory(prefix="signalhub-") as folder:
        chosen: Mapping[str, Any] = {"port": 0, "data": folder, "drain_s": 1.0} | settings
        hub = RunningHub(msgspec.convert(chosen, Settings), clock or SystemClock())
        await hub.start()
        try:
            yield hub
        finally:
            await hub.stop()
