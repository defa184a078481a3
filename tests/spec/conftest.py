"""The specification, rule by rule, on the loop the hub runs on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import uvloop

from tests.support.socket.stage import InProcess, run_stage


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def stage() -> AsyncIterator[InProcess]:
    """A hub with the default settings."""
    async with run_stage() as stage:
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
