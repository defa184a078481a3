"""`signalhub actors`: classes by name, and one call in one view from what both sides know."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from signalhub.cli.actors.host import classes_of
from signalhub.cli.actors.tables import (
    alarm_row,
    call_row,
    merged,
    nested,
    operation_text,
    sheet_of,
    written_operation,
)
from signalhub.cli.terminal.failures import Failure

IMPORT = "from signalhub.actors import Actor\n"
MODULES = {
    "little_shop": IMPORT
    + "class Order(Actor):\n    class Item(Actor): pass\n"
    + "class Stock(Actor): pass\n"
    + 'class Twin(Actor):\n    kind = "order"\n'
    + "helper = 3\n",
    "faulty_key": f"{IMPORT}class Order(Actor):\n    config_overrides = {{'call_timout_ms': 5}}\n",
    "faulty_syntax": "def (:\n",
    "faulty_import": "import not_there_at_all\n",
    "faulty_exit": "raise SystemExit(3)\n",
    "faulty_kind": f"{IMPORT}class _1(Actor): pass\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules, which is the current one."""
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("folder")
def test_classes_are_found_in_the_current_folder() -> None:
    names = ["little_shop:Order", "little_shop:Order.Item", "little_shop:Stock"]

    assert [one.kind for one in classes_of(names)] == ["order", "item", "stock"]
    with pytest.raises(Failure, match="Order and Twin have the same kind order — give one"):
        classes_of(["little_shop:Order", "little_shop:Twin"])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("text", "message", "resolution"),
    [
        ("nothing:Order", "module nothing is neither in ", "run the command in its folder"),
        ("little_shop.x:Order", "module little_shop.x is neither in", "correct the name"),
        ("little_shop", "little_shop is a module, not a class", "little_shop:Order"),
        ("little_shop:Oder", "little_shop has no class Oder (loaded from", "little_shop:Stock"),
        ("little_shop:Oder", "/little_shop.py", ""),
        ("little_shop.Order", "module little_shop.Order is neither in ", "a colon between"),
        ("little_shop.Order", "", "the class: little_shop:Order"),
        ("nothing.Order", "module nothing is neither in ", "nothing:Order"),
        ("sys:Order", "sys has no class Order", "shop:Order"),
        ("little_shop:helper", "is not a subclass of Actor", "choose from little_shop:Order"),
        ("little_shop:Actor", "is not a subclass of Actor", "choose from"),
        ("json:JSONEncoder", "is not a subclass of Actor", "shop:Order"),
        (":Order", "invalid class", "shop:Order"),
        (".shop:Order", "invalid class", "shop:Order"),
        ("faulty_key:Order", "unknown key 'call_timout_ms'. Did you mean", "correct it there"),
        ("faulty_key:Order", "faulty_key.py, line 2)", ""),
        ("faulty_syntax:Order", "SyntaxError", "correct it there"),
        ("faulty_syntax:Order", "faulty_syntax.py, line 1)", ""),
        ("faulty_import:Order", "No module named 'not_there_at_all'", "correct it there"),
        ("faulty_exit:Order", "SystemExit: 3", "correct it there"),
        ("faulty_kind:Order", "cannot derive a kind from the class name '_1'", "correct it there"),
    ],
)
def test_a_class_that_cannot_be_loaded_is_refused_with_the_place(
    text: str, message: str, resolution: str
) -> None:
    with pytest.raises(Failure) as caught:
        classes_of([text])

    assert caught.value.exit == 2
    assert message in caught.value.message
    assert resolution in caught.value.resolution


CALL = "01M7J0XH11HVJDPJH52Y9PDARE"
LETTER = {"actor": "order/1", "id": "D", "error": "KeyError: 1", "deadMs": 1}


def caller(state: str) -> dict[str, Any]:
    return {"actor": "order/1", "target": "stock/x", "method": "reserve", "state": state}


def callee(state: str) -> dict[str, Any]:
    return {"actor": "stock/x", "state": state}


@pytest.mark.parametrize(
    ("caller_state", "callee_state", "state", "steps"),
    [
        ("stored", None, "stored", 1),
        ("offloaded", None, "offloaded", 1),
        ("sent", None, "sent", 2),
        ("accepted", None, "accepted", 3),
        ("sent", "waiting", "waiting", 3),
        ("accepted", "held", "held", 3),
        ("accepted", "retrying", "retrying", 3),
        ("accepted", "deferred", "deferred", 3),
        ("accepted", "answering", "answering", 4),
        ("accepted", "executed", "executed", 4),
        ("answered", "executed", "answered", 5),
        ("retrying", None, "retrying", 5),
        (None, "executed", "done", 6),
        (None, "deferred", "deferred", 3),
        ("dead", None, "dead", 0),
        ("dead", "executed", "dead", 4),
    ],
)
def test_what_both_sides_say_is_one_state(
    caller_state: str | None, callee_state: str | None, state: str, steps: int
) -> None:
    one: dict[str, Any] = {"dead": LETTER} if caller_state == "dead" else {}
    if caller_state not in (None, "dead"):
        one = {"caller": caller(f"{caller_state}")}
    other = {} if callee_state is None else {"callee": callee(callee_state)}

    for found in ({"a": one, "b": other}, {"a": one | other}):
        facts = merged(CALL, {name: known for name, known in found.items() if known}, 5)
        assert facts["state"] == state
        assert len(facts["path"]) == steps
        assert sheet_of(facts)["state"].startswith(f"{state}: ")


def test_of_two_hosts_that_know_a_moving_caller_the_further_one_counts() -> None:
    found = {"a": {"caller": caller("accepted")}, "b": {"caller": caller("answered")}}
    facts = merged(CALL, found, None)

    assert facts["caller"]["host"] == "b"
    assert "stored" not in sheet_of(facts)


def test_rows_are_written_as_people_would_write_them() -> None:
    text = '{"m":"remind","a":["tea",1],"k":{"now":true}}'
    assert operation_text(text) == 'remind("tea", 1, now=true)'
    assert operation_text("nothing of the kind") == "nothing of the kind"
    long = '{"m":"remind","a":["%s"],"k":{}}' % ("x" * 500)
    assert (len(operation_text(long)), len(written_operation(long))) == (80, 510)
    row = {"spec": '{"type":"interval","every_ms":1500}', "type": "interval", "dueMs": 2**62}
    row |= {"continuation": "", "status": "pending", "attempts": 2, "lastError": "E: x"}
    shown = alarm_row(row)
    assert (shown["rhythm"], shown["due"]) == ("every 1.5 s", str(2**62))
    assert shown["state"] == "pending after 2 failures: E: x"
    offloaded = call_row({"call": "x#y", "target": None, "method": "fetch", "deadlineMs": None})
    assert (offloaded["target"], offloaded["made"]) == ("(offloaded) fetch", "")


def test_programs_get_objects_and_not_the_text_of_objects() -> None:
    row = {"spec": '{"every_ms":1500}', "continuation": '{"m":"remind"}', "then": None}
    row |= {"outcome": "3", "context": '{"cut…', "error": '{"looks":"alike"}'}

    objects = {"spec": {"every_ms": 1500}, "continuation": {"m": "remind"}}
    assert nested(row) == {**row, **objects}
