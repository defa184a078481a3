"""What is printed: JSON lines, plain lines, and tables for people."""

from __future__ import annotations

import io
import json

import pytest

from signalhub.cli.output import Column, Output, shown

COLUMNS = (Column("address", style="cyan"), Column("capabilities"))
ROWS = [
    {"address": "@(demo/alice)", "capabilities": ["plan"], "version": 2},
    {"address": "@(demo/bob)", "capabilities": [], "version": 1},
]


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


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
