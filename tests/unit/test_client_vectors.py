"""The Python client against the cases that every client has to pass: `tests/vectors/client`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from signalhub import Client, Consumer
from tests.support.vectors.client import play_client
from tests.support.vectors.functions import check_function
from tests.support.vectors.matching import cases
from tests.support.vectors.room import play_room

ABILITIES = {
    "stop_reading",
    *(["requests"] if hasattr(Client, "request") else []),
    *(["patterns"] if hasattr(Consumer, "losses") else []),
}
# The client registers again instead of renewing; settling for others is for operators.
NEVER_SENT = ("hub:renew", "hub:sub_settle")
CLIENT = cases("client")
ROOM = cases("room")
FUNCTION = cases("function")


@pytest.mark.parametrize("name", CLIENT)
def test_a_client(name: str) -> None:
    if lacking := {*CLIENT[name].get("needs", ())} - ABILITIES:
        pytest.skip(f"needs {', '.join(lacking)}")
    play_client(CLIENT[name])


@pytest.mark.parametrize("name", ROOM)
def test_a_member_of_a_room(name: str) -> None:
    play_room(ROOM[name])


@pytest.mark.parametrize("name", FUNCTION)
def test_a_function(name: str) -> None:
    check_function(FUNCTION[name])


def test_every_example_of_the_protocol_page_is_composed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    examples = [json.loads(block.split("```")[0]) for block in page.split("```json\n")[1:]]
    composed = {
        f"examples: the example {one['id']} {one['type']}"
        for one in examples
        if one["type"] not in NEVER_SENT and "pattern" not in (one["payload"] or {})
    }

    assert composed - CLIENT.keys() == set()


def test_a_case_that_does_not_hold_is_noticed_at_its_step() -> None:
    told = {"call": ["tell", "@(demo/bob)", "note", 1], "as": "t"}
    greeting = [{"open": {}}, {"restore": {}}, told]

    for wrong in (
        {"sent": {"type": "hub:send", "payload": {"data": 2}}},
        {"sent": "nothing"},
        {"failed": "t", "kind": "Refused"},
        {"event": "stopped"},
    ):
        with pytest.raises(AssertionError, match="at step 4"):
            play_client({"name": "wrong", "steps": [*greeting, wrong]})
    with pytest.raises(AssertionError, match="not looked at"):
        play_client({"name": "unlooked", "steps": greeting})
