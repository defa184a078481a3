"""Classes of actors by name, and what is said when they cannot be had."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from signalhub.cli.actors.host import _RepeatFilter, classes_of
from signalhub.cli.terminal.failures import Failure

SHOP = """
from signalhub.actors import Actor
class Order(Actor):
    class Item(Actor):
        pass
class Stock(Actor):
    pass
class Twin(Actor):
    kind = "order"
helper = 3
"""
FAULTY = {
    "faulty_key": (
        "from signalhub.actors import Actor\n"
        "class Order(Actor):\n"
        "    config_overrides = {'call_timout_ms': 5}\n"
    ),
    "faulty_syntax": "def (:\n",
    "faulty_import": "import not_there_at_all\n",
    "faulty_exit": "raise SystemExit(3)\n",
    "faulty_kind": "from signalhub.actors import Actor\nclass _1(Actor):\n    pass\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules, which is the current one."""
    known = set(sys.modules)
    (tmp_path / "little_shop.py").write_text(SHOP)
    for name, text in FAULTY.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.startswith(("little_shop", "faulty_")):
            del sys.modules[name]


def test_classes_are_found_in_the_current_folder() -> None:
    order, item, stock = classes_of(
        ["little_shop:Order", "little_shop:Order.Item", "little_shop:Stock"]
    )

    assert [one.kind for one in (order, item, stock)] == ["order", "item", "stock"]


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
def test_what_is_wrong_is_said_with_where(text: str, message: str, resolution: str) -> None:
    with pytest.raises(Failure) as caught:
        classes_of([text])

    assert caught.value.exit == 2
    assert message in caught.value.message
    assert resolution in caught.value.resolution


def test_two_classes_of_one_kind_are_refused() -> None:
    with pytest.raises(Failure, match="Order and Twin have the same kind order — give one"):
        classes_of(["little_shop:Order", "little_shop:Twin"])


def test_what_is_tried_again_and_again_is_logged_once() -> None:
    passes = _RepeatFilter().filter

    def record(message: str, *arguments: str) -> logging.LogRecord:
        return logging.LogRecord("x", logging.INFO, "", 0, message, arguments, None)

    first = record("no hub at %s yet: %s", "ws://x/ws", "nobody listens there")
    assert passes(first)
    assert first.getMessage() == "no hub yet: nobody listens there; retrying until it is available"
    assert not passes(record("Disconnected"))
    assert not passes(record("no hub at %s yet: %s", "ws://x/ws", "nobody listens there"))
    assert passes(record("Connected"))
    assert passes(record("Reconnecting failed"))
    assert not passes(record("Reconnecting failed"))
    assert passes(record("Connected"))
    assert passes(record("Reconnecting failed"))
