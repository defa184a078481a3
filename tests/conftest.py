"""What holds for every test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop
from hypothesis import HealthCheck, settings

# A busy machine must not fail a good test; what takes too long is caught by the timeout.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The hub runs on uvloop; the client's users mostly do not."""
    if "client" in item.path.name:
        return {"asyncio": asyncio.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}
