"""What is printed: JSON lines, plain lines, and tables for people."""

from __future__ import annotations

import json
import sys

import pytest

from signalhub.cli.terminal.output import Output, OutputColumn, counted, shown
from signalhub.cli.terminal.progress import bar
from tests.support.process.terminal import Terminal

COLUMNS = (OutputColumn("address", style="cyan"), OutputColumn("capabilities"))
ROWS = [
    {"address": "@(demo/alice)", "capabilities": ["plan"], "version": 2},
    {"address": "@(demo/bob)", "capabilities": [], "version": 1},
]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


def test_a_json_row_is_one_object_with_every_member(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).table(COLUMNS, ROWS)

    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS


def test_in_a_pipe_a_row_is_its_columns_with_tabs_between(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output(as_json=False).table(COLUMNS, ROWS)

    assert capsys.readouterr().out == "@(demo/alice)\tplan\n@(demo/bob)\t\n"


def test_a_long_plain_line_is_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).fact({}, "x" * 500)

    assert capsys.readouterr().out == "x" * 500 + "\n"


def test_on_a_terminal_a_table_has_a_head_and_colour(terminal: Terminal) -> None:
    Output(as_json=False, stream=terminal).table(COLUMNS, ROWS)

    lines = terminal.getvalue().splitlines()
    assert any("address" in line and "capabilities" in line for line in lines)
    assert any("@(demo/alice)" in line and "plan" in line for line in lines)
    assert "\033[" in terminal.getvalue()


def test_no_color_is_respected(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    Output(as_json=False, stream=terminal).table(COLUMNS, ROWS)
    Output(as_json=False, stream=terminal).line({}, [("red", "red")])

    assert "\033[3" not in terminal.getvalue()
    assert "@(demo/alice)" in terminal.getvalue()


def test_an_empty_table_says_so_to_people_only(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    Output(as_json=False, stream=terminal).table(COLUMNS, [], if_empty="nobody is registered")
    assert "nobody is registered" in terminal.getvalue()

    Output(as_json=False).table(COLUMNS, [], if_empty="nobody is registered")
    assert capsys.readouterr().out == ""


def test_strangers_cannot_reach_the_terminal_or_its_markup(terminal: Terminal) -> None:
    Output(as_json=False, stream=terminal).line(
        {}, [(shown("\033]0;owned\a"), ""), (shown("[red]x[/red]"), "")]
    )
    Output(as_json=False, stream=terminal).table(
        COLUMNS, [{"address": "[bold]\033[2J", "capabilities": []}]
    )

    assert "\033]0" not in terminal.getvalue()
    assert "\033[2J" not in terminal.getvalue()
    assert "[red]x[/red]" in terminal.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain é ✓", "plain é ✓"),
        ("two\nlines", '"two\\nlines"'),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ("\x9b2J", '"\\u009b2J"'),
        ({"a": "\u202eevil"}, '{"a":"\\u202eevil"}'),
        (3, "3"),
        (("plan", "draw"), "plan, draw"),
        (("a", 1), '["a",1]'),
    ],
)
def test_a_value_is_shown_on_one_printable_line(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_sheet_is_one_object_or_a_row_for_each_property(
    capsys: pytest.CaptureFixture[str],
) -> None:
    facts = {"topic": "orders", "head": 2, "dead_letter": None}

    Output(as_json=True).sheet(facts)
    Output(as_json=False).sheet(facts)

    data, *lines = capsys.readouterr().out.splitlines()
    assert json.loads(data) == facts
    assert lines == ["topic\torders", "head\t2", "dead_letter\t"]


def test_a_json_row_needs_none_of_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).table(COLUMNS, [{"other": 1}])

    assert json.loads(capsys.readouterr().out) == {"other": 1}


@pytest.mark.parametrize(
    ("as_json", "total", "is_shown"), [(False, 10, True), (False, 0, False), (True, 10, False)]
)
def test_a_bar_is_for_people_who_have_to_wait(
    as_json: bool,
    total: int,
    is_shown: bool,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)

    with bar("publishing", Output(as_json, terminal)) as show:
        show(5, total)

    assert ("publishing" in terminal.getvalue()) is is_shown


def test_one_is_not_plural() -> None:
    assert [counted(count, "message") for count in (0, 1, 2)] == [
        "0 messages",
        "1 message",
        "2 messages",
    ]
