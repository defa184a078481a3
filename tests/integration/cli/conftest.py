"""A hub, and somebody who prepares topics on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest

import signalhub
from signalhub import Client
from signalhub.testing import RunningHub, run_hub
from tests.support.process.command import SENDER, Run, command


@pytest.fixture
async def hub() -> AsyncIterator[RunningHub]:
    async with run_hub() as running:
        yield running


@pytest.fixture
async def me(hub: RunningHub) -> AsyncIterator[Client]:
    async with signalhub.connect(hub.url, SENDER) as client:
        yield client


@pytest.fixture
def run(hub: RunningHub) -> Run:
    """Runs a command against the hub."""
    return partial(command, hub.url)
