"""The suite runs on the loop the hub runs on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from signalhub.server.port.listener import Listener
from tests.support.socket.echo import listen_and_echo

pytest.register_assert_rewrite("tests.support.socket.raw_peer")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def hub() -> AsyncIterator[Listener]:
    listener = await listen_and_echo()
    yield listener
    await listener.close()
