"""`signalhub sql` without a query: statements from a terminal or a pipe, one after another."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from signalhub.cli.terminal.failures import Exit, Failure, report
from signalhub.cli.terminal.sentences import say

PROMPT: Final = "signalhub> "
CONTINUED: Final = "       ... "
HELP: Final = (
    "End a statement with ;  \\d lists the tables, \\d NAME the columns of one, \\q ends."
    " Ctrl-C cancels a statement."
)
HISTORY_LINES_MAX: Final = 1_000
_CANCEL_AGAIN_S: Final = 0.5
_WORDS_TO_END: Final = ("\\q", "quit", "exit")
# Texts, names and comments, in which a semicolon does not end a statement; or a semicolon.
_TOKEN: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*\n|/\*.*?\*/|(?P<end>;)|(?P<open>['"`]|/\*|--)|.""",
    re.DOTALL,
)
_COMMENTS: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


def split(text: str) -> tuple[list[str], str]:
    """Return the complete statements of a text, and the rest."""
    statements: list[str] = []
    begin = 0
    for found in _TOKEN.finditer(text):
        if found["open"]:
            break
        if found["end"]:
            statements.append(text[begin : found.start()].strip())
            begin = found.end()
    return [one for one in statements if _has_content(one)], text[begin:]


def _has_content(text: str) -> bool:
    return bool(_COMMENTS.sub("", text).strip())


class Shell:
    """Reads statements and has them answered, with one session for all of them."""

    def __init__(
        self,
        answer: Callable[[str], None],
        describe: Callable[[str], None],
        cancel: Callable[[], object],
        history: Path,
    ) -> None:
        """`answer` runs a statement, `describe` shows the tables or one of them.

        `cancel` is called from another thread, to end the running statement with an error.
        """
        self._answer = answer
        self._describe = describe
        self._cancel = cancel
        self._history = history
        self._exit = Exit.DONE
        self._is_cancelled = False

    def run(self) -> int:
        """Work until the input ends; return the exit code, which is 0 on a terminal."""
        if not sys.stdin.isatty():
            self._take(sys.stdin)
            return self._exit
        say(HELP)
        with _remembered(self._history):
            self._converse()
        return Exit.DONE

    def _converse(self) -> None:
        rest = ""
        while True:
            try:
                line = input(CONTINUED if rest.strip() else PROMPT)
            except KeyboardInterrupt:
                print(file=sys.stderr)
                rest = ""
                continue
            except EOFError:
                print(file=sys.stderr)
                return
            done = self._line(rest, line + "\n")
            if done is None:
                return
            rest = done

    def _take(self, lines: Iterator[str]) -> None:
        rest = ""
        for line in lines:
            done = self._line(rest, line)
            if done is None:
                return
            rest = done
        if _has_content(rest):
            self._do(rest.strip())

    def _line(self, rest: str, line: str) -> str | None:
        """Take one more line; return what is not complete yet, or `None` at the end."""
        words = line.split()
        if not rest.strip() and words and (words[0] in _WORDS_TO_END or words[0][0] == "\\"):
            word = words[0].rstrip(";")
            if word in _WORDS_TO_END:
                return None
            self._command(word, " ".join(words[1:]).rstrip(";"))
            return ""
        statements, rest = split(rest + line)
        for one in statements:
            self._do(one)
        return rest if _has_content(rest) else ""

    def _command(self, word: str, argument: str) -> None:
        if word == "\\d":
            self._guarded(lambda: self._describe(argument))
        else:
            say(HELP)

    def _do(self, statement: str) -> None:
        """Run a statement in a thread: Ctrl-C must not interrupt a call of Java."""
        # A thread whose join() was interrupted counts as ended, so an event tells when it has.
        ended = threading.Event()
        self._is_cancelled = False

        def work() -> None:
            try:
                self._guarded(lambda: self._answer(statement))
            finally:
                ended.set()

        threading.Thread(target=work, daemon=True).start()
        while not ended.is_set():
            try:
                if self._is_cancelled:
                    # A statement has several jobs, and perhaps none at the moment.
                    with contextlib.suppress(Exception):
                        self._cancel()
                ended.wait(_CANCEL_AGAIN_S if self._is_cancelled else None)
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
                if not self._is_cancelled:
                    print(file=sys.stderr)
                self._is_cancelled = True

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            if self._is_cancelled:
                # Whatever Spark says about its jobs.
                say("cancelled")
            else:
                self._report(error)
        sys.stdout.flush()

    def _report(self, error: Exception) -> None:
        if isinstance(error, Failure):
            self._exit = error.exit
            one_line = " ".join(error.message.split())
            report(Failure(error.exit, error.code, one_line, error.resolution), as_json=False)
        else:
            self._exit = Exit.FAILED
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            report(Failure(Exit.FAILED, "query_failed", text), as_json=False)


@contextlib.contextmanager
def _remembered(path: Path) -> Iterator[None]:
    """Edit lines, with those of earlier sessions; where that is impossible, without."""
    try:
        import readline
    except ImportError:
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES_MAX)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            # Queries may name people.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            readline.write_history_file(path)
