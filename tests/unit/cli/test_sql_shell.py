"""The shell of `signalhub sql`, without Spark: what counts as a statement, and how it goes on."""

from __future__ import annotations

import builtins
import io
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

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


MAIN = threading.main_thread().ident or 0


def waits_for_the_end() -> bool:
    """Does the main thread wait for the statement? Anywhere else Ctrl-C would end the tests."""
    frame: FrameType | None = sys._current_frames()[MAIN]
    names = []
    while frame is not None and frame.f_code.co_name != "_do":
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return set(names) == {"wait"}


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_ctrl_c_waits_until_the_statement_has_ended_and_says_in_one_word_what_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["SELECT slowly;", "SELECT 2;"])
    cancelled, asked_again = threading.Event(), threading.Event()
    attempts: list[int] = []
    happened: list[str] = []

    def read(prompt: str) -> str:
        if happened:
            asked_again.set()
        happened.append("prompt")
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    def answer(statement: str) -> None:
        if statement == "SELECT 2":
            raise Failure(Exit.USAGE, "query_wrong", "no such column")
        while not waits_for_the_end():
            cancelled.wait(0.01)
        signal.pthread_kill(MAIN, signal.SIGINT)
        cancelled.wait()
        # The statement ends some time after it was cancelled.
        if not asked_again.wait(0.2):
            happened.append("ended")
        raise RuntimeError("Job 11 cancelled as part of cancellation of all jobs")

    monkeypatch.setattr(sys, "stdin", _Terminal())
    monkeypatch.setattr(builtins, "input", read)

    def cancel() -> None:
        # Between two jobs of a statement there is nothing to cancel.
        attempts.append(1)
        if len(attempts) == 2:
            cancelled.set()

    # Commands that other tests have run here may have left another handler.
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        Shell(answer, lambda name: None, cancel, tmp_path / "history").run()
    finally:
        signal.signal(signal.SIGINT, earlier)

    assert happened == ["prompt", "ended", "prompt", "prompt"]
    assert capsys.readouterr().err.splitlines()[1:] == [
        "",
        "cancelled",
        "signalhub: no such column",
        "",
    ]
