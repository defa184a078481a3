"""A server that echoes, for every test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from signalhub.server.port.listener import Listener
from tests.support.socket.echo import listen_and_echo

pytest.register_assert_rewrite("tests.support.socket.raw_peer")


@pytest.fixture
async def hub() -> AsyncIterator[Listener]:
    listener = await listen_and_echo()
    yield listener
    await listener.close()
