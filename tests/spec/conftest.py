"""The specification, rule by rule, on the loop the hub runs on.

A test speaks to a hub in memory, in `make soak` to one over sockets. One with the mark
`also_over_sockets` always does both; one that is about sockets, HTTP, files or processes asks for
`socket_stage` or calls `run_stage` of `tests/support/socket/stage.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import uvloop

from signalhub.testing import FakeClock
from tests.support.memory import stage as memory
from tests.support.socket import stage as sockets
from tests.support.socket.tokens import AUTH
from tests.support.stage import RunStage, Stage
from tests.support.volume import IS_SOAK


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "also_over_sockets: not only in memory")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("also_over_sockets") is None or IS_SOAK:
        return
    (name,) = {"run_stage", "run_mortal"} & {*metafunc.fixturenames}
    metafunc.parametrize(name, [False, True], ids=["memory", "sockets"], indirect=True)


@pytest.fixture
def run_stage(request: pytest.FixtureRequest) -> RunStage:
    """A hub with settings of the test's own."""
    return sockets.run_stage if getattr(request, "param", IS_SOAK) else memory.run_stage


@pytest.fixture
def run_mortal(request: pytest.FixtureRequest) -> RunStage:
    """One that can be killed: over sockets it has a process of its own, and no clock but that."""
    return spawned if getattr(request, "param", IS_SOAK) else memory.run_stage


def spawned(
    clock: FakeClock | None = None, **settings: Any
) -> AbstractAsyncContextManager[sockets.Spawned]:
    assert clock is None, "another process has a clock of its own"
    return sockets.spawn_stage(**settings)


@pytest.fixture
async def stage(run_stage: RunStage) -> AsyncIterator[Stage]:
    """A hub with the default settings."""
    async with run_stage() as stage:
        yield stage


@pytest.fixture
async def mortal(run_mortal: RunStage) -> AsyncIterator[Stage]:
    """A hub with the default settings that can be killed."""
    async with run_mortal() as stage:
        yield stage


@pytest.fixture
def clock() -> FakeClock:
    """The clock of `timed` and `guarded`, which only the test moves."""
    return FakeClock()


@pytest.fixture
async def timed(run_stage: RunStage, clock: FakeClock) -> AsyncIterator[Stage]:
    """A hub without a rate limit on the test's clock."""
    async with run_stage(clock, message_rate=0) as stage:
        yield stage


@pytest.fixture
async def guarded(run_stage: RunStage, clock: FakeClock) -> AsyncIterator[Stage]:
    """A hub that asks for tokens, on the test's clock."""
    async with run_stage(clock, auth=AUTH) as stage:
        yield stage


@pytest.fixture
async def socket_stage() -> AsyncIterator[sockets.InProcess]:
    """The same with real sockets."""
    async with sockets.run_stage() as stage:
        yield stage


@pytest.fixture(autouse=True)
def no_fault_of_the_hub(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever clients send, the hub must never have to log an error of its own."""
    yield
    faults = [
        record
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR and record.name.startswith(("signalhub", "asyncio"))
    ]
    assert not faults, [record.getMessage() for record in faults]
