"""One call in one view, from what the hosts on both sides know."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.cli.actors.tables import (
    alarm_row,
    call_row,
    merged,
    nested,
    operation_text,
    sheet_of,
    written_operation,
)

CALL = "01M7J0XH11HVJDPJH52Y9PDARE"


def caller(state: str) -> dict[str, Any]:
    return {"actor": "order/1", "target": "stock/x", "method": "reserve", "state": state}


def callee(state: str) -> dict[str, Any]:
    return {"actor": "stock/x", "state": state}


LETTER = {"actor": "order/1", "id": "D", "error": "KeyError: 1", "deadMs": 1}


@pytest.mark.parametrize(
    ("found", "state", "steps"),
    [
        ({"a": {"caller": caller("stored")}}, "stored", 1),
        ({"a": {"caller": caller("offloaded")}}, "offloaded", 1),
        ({"a": {"caller": caller("sent")}}, "sent", 2),
        ({"a": {"caller": caller("accepted")}}, "accepted", 3),
        ({"a": {"caller": caller("sent")}, "b": {"callee": callee("waiting")}}, "waiting", 3),
        ({"a": {"caller": caller("accepted")}, "b": {"callee": callee("held")}}, "held", 3),
        ({"a": {"caller": caller("accepted")}, "b": {"callee": callee("retrying")}}, "retrying", 3),
        ({"a": {"caller": caller("accepted")}, "b": {"callee": callee("deferred")}}, "deferred", 3),
        (
            {"a": {"caller": caller("accepted")}, "b": {"callee": callee("answering")}},
            "answering",
            4,
        ),
        ({"a": {"caller": caller("accepted")}, "b": {"callee": callee("executed")}}, "executed", 4),
        ({"a": {"caller": caller("answered")}, "b": {"callee": callee("executed")}}, "answered", 5),
        ({"a": {"caller": caller("retrying")}}, "retrying", 5),
        ({"b": {"callee": callee("executed")}}, "done", 6),
        ({"b": {"callee": callee("deferred")}}, "deferred", 3),
        ({"a": {"caller": caller("accepted"), "callee": callee("deferred")}}, "deferred", 3),
        ({"a": {"dead": LETTER}}, "dead", 0),
        ({"a": {"dead": LETTER}, "b": {"callee": callee("executed")}}, "dead", 4),
    ],
)
def test_what_both_sides_say_is_one_state(found: Any, state: str, steps: int) -> None:
    facts = merged(CALL, found, 5)

    assert facts["state"] == state
    assert len(facts["path"]) == steps
    assert sheet_of(facts)["state"].startswith(f"{state}: ")


def test_of_two_hosts_that_know_a_moving_caller_the_further_one_counts() -> None:
    found = {"a": {"caller": caller("accepted")}, "b": {"caller": caller("answered")}}

    facts = merged(CALL, found, None)

    assert facts["caller"]["host"] == "b"
    assert "stored" not in sheet_of(facts)


def test_rows_are_written_as_people_would_write_them() -> None:
    assert operation_text('{"m":"remind","a":["tea",1],"k":{"now":true}}') == (
        'remind("tea", 1, now=true)'
    )
    assert operation_text("nothing of the kind") == "nothing of the kind"
    assert len(operation_text('{"m":"remind","a":["%s"],"k":{}}' % ("x" * 500))) == 80
    row = {"spec": '{"type":"interval","every_ms":1500}', "type": "interval", "dueMs": 2**62}
    row |= {"continuation": "", "status": "pending", "attempts": 2, "lastError": "E: x"}
    shown = alarm_row(row)
    assert shown["rhythm"] == "every 1.5 s"
    assert shown["state"] == "pending after 2 failures: E: x"
    assert shown["due"] == str(2**62)
    offloaded = {"call": "x#y", "target": None, "method": "fetch", "deadlineMs": None}
    assert call_row(offloaded)["target"] == "(offloaded) fetch"
    assert call_row(offloaded)["made"] == ""


def test_for_one_letter_a_continuation_is_written_in_full() -> None:
    assert len(written_operation('{"m":"remind","a":["%s"],"k":{}}' % ("x" * 500))) == 510


def test_programs_get_objects_and_not_the_text_of_objects() -> None:
    row = {"spec": '{"every_ms":1500}', "continuation": '{"m":"remind"}', "then": None}
    row |= {"outcome": "3", "context": '{"cut…', "error": '{"looks":"alike"}'}

    assert nested(row) == {
        **row,
        "spec": {"every_ms": 1500},
        "continuation": {"m": "remind"},
    }
