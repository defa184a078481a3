"""The Python client against the cases that every client has to pass: `tests/vectors/client`."""

from __future__ import annotations

import pytest

from tests.support.vectors.client import play_client
from tests.support.vectors.functions import check_function
from tests.support.vectors.matching import cases
from tests.support.vectors.room import play_room

CLIENT = cases("client")
ROOM = cases("room")
FUNCTION = cases("function")


@pytest.mark.parametrize("name", CLIENT)
def test_a_client(name: str) -> None:
    play_client(CLIENT[name])


@pytest.mark.parametrize("name", ROOM)
def test_a_member_of_a_room(name: str) -> None:
    play_room(ROOM[name])


@pytest.mark.parametrize("name", FUNCTION)
def test_a_function(name: str) -> None:
    check_function(FUNCTION[name])
