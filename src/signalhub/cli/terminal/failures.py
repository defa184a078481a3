"""How a command fails: a stable exit code, and a message that says what to do.

With `--json` a failure is one JSON object on standard error, otherwise text.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import Annotated

import msgspec
from cyclopts import Parameter

from signalhub.cli.terminal.sentences import clause, continued, say


class Exit(IntEnum):
    """The exit codes of every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    UNKNOWN = 4
    BUSY = 5
    INTERRUPTED = 130


EXIT_CODES = {
    Exit.DONE: "done",
    Exit.FAILED: "refused or failed",
    Exit.USAGE: "invalid usage or settings",
    Exit.UNREACHABLE: "the hub cannot be reached",
    Exit.UNKNOWN: "outcome unknown: no answer in time, or the hub's log failed",
    Exit.BUSY: "another pipeline is running",
    Exit.INTERRUPTED: "stopped with Ctrl-C",
}


class Failure(Exception):
    """A command failed; `resolution` says what the user can do about it."""

    def __init__(
        self,
        exit: Exit,
        code: str,
        message: str,
        resolution: str = "",
        *,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.exit = exit
        self.code = code
        self.message = message
        self.resolution = resolution
        self.facts = facts or {}  # Members added to the JSON object.

    def __str__(self) -> str:
        if not self.resolution:
            return self.message
        # A resolution for several mistakes is a line of its own.
        if "\n" in self.message:
            return f"{self.message}\n{self.resolution}"
        return f"{clause(self.message)} — {continued(self.resolution)}"


def usage(message: str, resolution: str = "") -> Failure:
    return Failure(Exit.USAGE, "usage", message, resolution)


def split_advice(error: Exception) -> tuple[str, str]:
    """The message of an error, and its advice: our errors give it after a semicolon."""
    message, _, advice = str(error).partition("; ")
    return message, advice


def report(failure: Failure, *, as_json: bool) -> None:
    """Print a failure on standard error."""
    if as_json:
        line = {
            "error": failure.code,
            "message": failure.message,
            "resolution": failure.resolution,
            **failure.facts,
        }
        print(msgspec.json.encode(line).decode(), file=sys.stderr, flush=True)
    else:
        # A message may quote the hub, and a terminal would obey control characters.
        lines = (_printable(line) for line in str(failure).splitlines())
        say("\n".join(lines), prefix="signalhub: ")


def _printable(line: str) -> str:
    return "".join(letter if letter.isprintable() else "�" for letter in line)


Yes = Annotated[
    bool,
    Parameter(name="--yes", negative=(), show_default=False, help="Do not ask for confirmation."),
]


def must_ask(yes: bool) -> bool:
    """Whether `confirm` would ask, for commands that have to find out first what to ask."""
    from signalhub.cli.terminal import contexts

    return not yes or contexts.production() is not None


def confirm(action: str, *, yes: bool) -> None:
    """Ask the user whether to continue; `action` completes "refusing to …".

    In a context that is marked as production the answer is its name, and `--yes` is not enough.
    """
    from signalhub.cli.terminal import contexts

    name = contexts.production()
    if name is not None:
        _confirm_by_name(action, name)
        return
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage(f"refusing to {action} without confirmation: not a terminal", "use --yes")
    print(f"About to {action}. Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failure(
            Exit.FAILED, "not_confirmed", "cancelled, nothing was changed", "answer y to continue"
        )


def _confirm_by_name(action: str, name: str) -> None:
    if not sys.stdin.isatty():
        raise usage(
            f"refusing to {action}: {name} is in production, and this is not a terminal",
            "confirm it at a terminal, or name the hub with --url and --token-file",
        )
    question = f"About to {action} in production. Type {name} to continue: "
    print(question, end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != name:
        raise Failure(
            Exit.FAILED,
            "not_confirmed",
            "cancelled, nothing was changed",
            f"type the name of the context, {name}, to continue",
        )
