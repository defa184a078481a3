"""What several tests of rooms start from."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.socket.rooms import OpenHouse, open_house


@pytest.fixture
async def broken(caplog: pytest.LogCaptureFixture) -> AsyncIterator[OpenHouse]:
    """A hub whose disk is going to fail; it may say so in its log."""
    async with open_house() as house:
        yield house
    caplog.get_records("call").clear()
