"""What holds for every test."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from signalhub import native

# A busy machine must not fail a good test; what takes too long is caught by the timeout.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The hub runs on uvloop; the client's users mostly do not."""
    if "client" in item.path.name or "client" in item.path.parent.name:
        return {"asyncio": asyncio.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay until the end; the garbage collector need not look."""
    gc.collect()
    gc.freeze()


# The only test of the pipeline that starts its own Spark sessions, all in other processes.
_KILL = "tests/pipeline/test_kill.py"
# The other files of tests/pipeline share two Spark sessions. These need about half of the time.
_FIRST_SESSION = frozenset(
    f"tests/pipeline/test_{name}.py"
    for name in ("audit", "backup", "erase", "shape", "shape_deliveries")
)


class SharedScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Every test is given out alone, except those that share something expensive.

    Those of the pipeline share two Spark sessions, each in one worker. They begin first, because
    they take longest; one session would take as long as all other tests together. Those of the
    source tree share what they have parsed.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path.startswith("tests/pipeline/") and path != _KILL:
            return "tests/pipeline, first" if path in _FIRST_SESSION else "tests/pipeline, second"
        return path if path == "tests/test_tidy.py" else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedScheduling:
    return SharedScheduling(config, log)


@pytest.fixture
def picows_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are those of picows, even if the native part is installed."""
    monkeypatch.setattr(native, "IS_ON", False)
