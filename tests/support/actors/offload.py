"""An actor that leaves work to others, and hosts in which that work ends when a test says so."""

from __future__ import annotations

import asyncio
from typing import Any

from signalhub.actors import remote
from signalhub.actors.api.outcome import of_value
from signalhub.actors.kernel.events import Effect, Offload, OffloadEnded
from tests.support.actors.scripted import Scripted, Stage, shown

ran: list[Any] = []


async def fetch(*args: Any) -> Any:
    await asyncio.sleep(0)
    ran.append(list(args))
    return ["fetched", *args]


async def fail() -> None:
    raise LookupError("nothing there")


async def give_up() -> None:
    """Wait for something that was cancelled."""
    waiting = asyncio.ensure_future(asyncio.sleep(60))
    waiting.cancel()
    await waiting


async def unsendable() -> object:
    return object()


class Fetcher(Scripted):
    @remote
    def fetch(self, *args: Any) -> str:
        return self.offload(fetch, *args, then=self.on_done)

    @remote
    def fetch_for(self, timeout: float) -> str:
        return self.offload(fetch, then=self.on_done, timeout=timeout)

    @remote
    def fail(self) -> None:
        self.offload(fail, then=self.note, catch=self.on_done)

    @remote
    def give_up(self) -> None:
        self.offload(give_up, then=self.note, catch=self.on_done)

    @remote
    def unsendable(self) -> None:
        self.offload(unsendable, then=self.on_done)

    def on_done(self, outcome: Any) -> None:
        self.state.put("got", shown(outcome))


class Unhurried(Stage):
    """Work outside is begun, and ends when the test says so."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.begun: list[Offload] = []
        super().__init__(*args, **kwargs)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Offload):
            self.begun.append(effect)
        else:
            super()._perform(effect)

    def end(self, work: Offload) -> None:
        value = of_value("ended", max_depth=5, max_bytes=100)
        self._events.append(OffloadEnded(work.actor, work.call_id, value))
        self.run()
