"""Log lines: JSON for machines, one line for people, facts in both."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from signalhub.observe import logs
from signalhub.settings.model import Secret


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def quiet_afterwards() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger(logs.ROOT)
    before = (list(root.handlers), root.level, own.level)
    yield
    root.handlers[:], root.level, own.level = before


def test_away_from_a_terminal_a_line_is_one_json_object_with_its_facts() -> None:
    stream = io.StringIO()
    logs.configure("info", "auto", stream)

    logging.getLogger("signalhub.server").info("The hub listens.", extra={"port": 8787})

    line = json.loads(stream.getvalue())
    assert line["message"] == "The hub listens."
    assert (line["level"], line["logger"], line["port"]) == ("info", "signalhub.server", 8787)
    assert line["time"].endswith("Z")


def test_on_a_terminal_a_line_is_for_people() -> None:
    stream = Terminal()
    logs.configure("info", "auto", stream)

    logging.getLogger("signalhub.server").warning("Registry is filling.", extra={"used": "90 %"})

    assert "Registry is filling." in stream.getvalue()
    assert "used='90 %'" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_colour_is_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain, piped = Terminal(), Terminal(), io.StringIO()

    logs.configure("info", "human", coloured)
    logging.getLogger(logs.ROOT).error("No.")
    monkeypatch.setenv("NO_COLOR", "1")
    logs.configure("info", "human", plain)
    logging.getLogger(logs.ROOT).error("No.")
    logs.configure("info", "human", piped)
    logging.getLogger(logs.ROOT).error("No.")

    assert "\033[" in coloured.getvalue()
    assert "\033[" not in plain.getvalue() + piped.getvalue()


def test_the_level_is_for_our_lines_and_others_speak_from_warnings_on() -> None:
    stream = io.StringIO()
    logs.configure("debug", "json", stream)

    logging.getLogger("signalhub.core").debug("ours")
    logging.getLogger("asyncio").info("theirs")
    logging.getLogger("asyncio").warning("their warning")

    messages = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert messages == ["ours", "their warning"]


def test_configuring_again_replaces_the_earlier_choice() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure("info", "json", first)
    logs.configure("error", "json", second)

    logging.getLogger(logs.ROOT).warning("Quiet.")
    logging.getLogger(logs.ROOT).error("Loud.")

    assert first.getvalue() == ""
    assert json.loads(second.getvalue())["message"] == "Loud."


@pytest.mark.parametrize("format", ["json", "human"])
def test_an_exception_is_part_of_the_line(format: logs.Format) -> None:
    stream = io.StringIO()
    logs.configure("info", format, stream)

    try:
        raise ValueError("no such thing")
    except ValueError:
        logging.getLogger(logs.ROOT).exception("It failed.")

    assert "It failed." in stream.getvalue()
    assert "ValueError: no such thing" in stream.getvalue()


@pytest.mark.parametrize("format", ["json", "human"])
def test_facts_of_any_type_are_shown_and_secrets_are_not(format: logs.Format) -> None:
    stream = io.StringIO()
    logs.configure("info", format, stream)

    facts = {"key": Secret("hunter2hunter2hunter2"), "place": complex(1, 2)}
    logging.getLogger(logs.ROOT).info("A line.", extra=facts)

    assert "hunter2" not in stream.getvalue()
    assert "1+2j" in stream.getvalue()


def test_a_fact_cannot_break_the_line_or_pose_as_a_fixed_member() -> None:
    people, machines = io.StringIO(), io.StringIO()
    facts = {"actor": "@(a/b)\n\033[2J forged", "level": "none"}

    logs.configure("info", "human", people)
    logging.getLogger(logs.ROOT).info("A line.", extra=facts)
    logs.configure("info", "json", machines)
    logging.getLogger(logs.ROOT).info("A line.", extra=facts)

    assert people.getvalue().count("\n") == 1
    assert "\033" not in people.getvalue()
    assert json.loads(machines.getvalue())["level"] == "info"
