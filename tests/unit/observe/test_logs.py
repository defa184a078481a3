"""Log lines: JSON for machines, one line for people, facts in both."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from signalhub.observe import logs
from signalhub.settings.model import Secret
from tests.support.process.terminal import Terminal

OURS = logging.getLogger("signalhub.server")


@pytest.fixture(autouse=True)
def quiet_afterwards() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger(logs.ROOT)
    handlers, root_level, own_level = list(root.handlers), root.level, own.level
    yield
    root.handlers[:] = handlers
    # Not just the attributes: loggers remember which levels are enabled.
    root.setLevel(root_level)
    own.setLevel(own_level)


def logged(format: logs.Format, stream: io.StringIO, message: str, **facts: Any) -> str:
    logs.configure("info", format, stream)
    OURS.error(message, extra=facts)
    return stream.getvalue()


def test_a_line_is_one_json_object_or_for_people_at_a_terminal() -> None:
    line = json.loads(logged("auto", io.StringIO(), "The hub listens.", port=8787))
    text = logged("auto", Terminal(), "Registry is filling.", used="90 %")

    assert (line["message"], line["port"]) == ("The hub listens.", 8787)
    assert (line["level"], line["logger"]) == ("error", "signalhub.server")
    assert line["time"].endswith("Z")
    assert "Registry is filling." in text
    assert "used='90 %'" in text
    assert not text.startswith("{")


def test_colour_is_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033[" in logged("human", Terminal(), "No.")
    monkeypatch.setenv("NO_COLOR", "1")

    assert "\033[" not in logged("human", Terminal(), "No.") + logged("human", io.StringIO(), "No.")


def test_the_level_is_for_our_lines_and_others_are_shown_from_warnings_on() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure("error", "json", first)
    logs.configure("debug", "json", second)

    OURS.debug("ours")
    logging.getLogger("asyncio").info("theirs")
    logging.getLogger("asyncio").warning("their warning")

    messages = [json.loads(line)["message"] for line in second.getvalue().splitlines()]
    assert messages == ["ours", "their warning"]
    assert first.getvalue() == ""
    logs.configure("error", "json", first)
    OURS.warning("quiet")
    assert first.getvalue() == ""


@pytest.mark.parametrize("format", ["json", "human"])
def test_a_line_holds_exceptions_and_facts_of_any_type_but_no_secrets(format: logs.Format) -> None:
    stream = io.StringIO()
    logs.configure("info", format, stream)

    try:
        raise ValueError("no such thing")
    except ValueError:
        facts = {"key": Secret("hunter2hunter2hunter2"), "place": complex(1, 2)}
        OURS.exception("It failed.", extra=facts)

    assert "It failed." in stream.getvalue()
    assert "ValueError: no such thing" in stream.getvalue()
    assert "1+2j" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


def test_a_fact_cannot_break_the_line_or_pose_as_a_fixed_member() -> None:
    facts = {"actor": "@(a/b)\n\033[2J forged", "level": "none"}

    people = logged("human", io.StringIO(), "A line.", **facts)
    machines = logged("json", io.StringIO(), "A line.", **facts)

    assert people.count("\n") == 1
    assert "\033" not in people
    assert json.loads(machines)["level"] == "error"
