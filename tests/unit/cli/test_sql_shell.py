"""The shell of `signalhub sql`, without Spark: what counts as a statement, and how it goes on."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from signalhub.cli.lake.shell import Shell, split
from signalhub.cli.terminal.failures import Exit, Failure


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT 1; SELECT\n2;\n", ["SELECT 1", "SELECT\n2"], "\n"),
        ("SELECT ';', \";\", `;`;", ["SELECT ';', \";\", `;`"], ""),
        (r"SELECT 'it\'s;';", [r"SELECT 'it\'s;'"], ""),
        ("SELECT 1 -- one; two\n;", ["SELECT 1 -- one; two"], ""),
        ("SELECT /* ; */ 1;", ["SELECT /* ; */ 1"], ""),
        ("SELECT 'open;", [], "SELECT 'open;"),
        ("-- nothing;\n;;", [], ""),
    ],
)
def test_a_statement_ends_with_a_semicolon_that_is_not_part_of_it(
    text: str, statements: list[str], rest: str
) -> None:
    assert split(text) == (statements, rest)


class Piped:
    """A shell that reads a text, and what it was asked."""

    def __init__(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        describe, cancel = (lambda name: self.asked.append(f"d {name}")), (lambda: None)
        self.exit = Shell(self._answer, describe, cancel, Path("unused")).run()

    def _answer(self, statement: str) -> None:
        self.asked.append(statement)
        if statement == "wrong":
            raise Failure(Exit.USAGE, "query_wrong", "no such\n  column", "correct it")
        if statement == "bug":
            raise RuntimeError("first line\nand the stack of Java")


def test_statements_from_a_pipe_are_run_one_after_another_even_without_a_last_semicolon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    piped = Piped("SELECT\n 1;\n\\d\n\\d entries;\nSELECT 2; SELECT 3\n", monkeypatch)

    assert piped.asked == ["SELECT\n 1", "d ", "d entries", "SELECT 2", "SELECT 3"]
    assert piped.exit == 0


def test_a_mistake_is_one_line_the_rest_is_run_and_the_exit_code_tells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped = Piped("bug; wrong;\nSELECT 2;\n\\q\nSELECT 3;\n", monkeypatch)

    assert piped.asked == ["bug", "wrong", "SELECT 2"]
    assert piped.exit == Exit.USAGE
    assert capsys.readouterr().err.splitlines() == [
        "signalhub: first line",
        "signalhub: no such column — correct it",
    ]
