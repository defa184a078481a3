"""A hub, and somebody who prepares topics on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import signalhub
from signalhub import Client
from signalhub.testing import RunningHub, run_hub
from tests.support.process.command import SENDER


@pytest.fixture
async def hub() -> AsyncIterator[RunningHub]:
    async with run_hub() as running:
        yield running


@pytest.fixture
async def me(hub: RunningHub) -> AsyncIterator[Client]:
    async with signalhub.connect(hub.url, SENDER) as client:
        yield client
