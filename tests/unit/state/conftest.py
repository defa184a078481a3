"""A store in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from signalhub.state.store import StateStore
from tests.support.memory.rival import Rival


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "state.db"


@pytest.fixture
def store(path: Path) -> Iterator[StateStore]:
    opened = StateStore(path)
    yield opened
    opened.close()


@pytest.fixture
def rival(store: StateStore, path: Path) -> Iterator[Rival]:
    opened = Rival(path)
    yield opened
    opened.close()
