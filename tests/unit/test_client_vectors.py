"""The Python client against the cases that every client has to pass: `tests/vectors/client`."""

from __future__ import annotations

import pytest

from tests.support.vectors.client import play_client
from tests.support.vectors.matching import cases

CLIENT = cases("client")


@pytest.mark.parametrize("name", CLIENT)
def test_a_client(name: str) -> None:
    play_client(CLIENT[name])
