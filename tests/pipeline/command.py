"""Commands run in this process, so that those that need Spark share its session."""

from __future__ import annotations

import json
import signal
from typing import Any, NamedTuple

import pytest

from signalhub.cli import app


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def run(*arguments: str) -> int:
    """Run a command; its exit code."""
    # Some say what SIGTERM is to do for as long as their process lives, which is ours here.
    before = signal.getsignal(signal.SIGTERM)
    try:
        return app.run(list(arguments))
    finally:
        signal.signal(signal.SIGTERM, before)


class Command:
    """Runs commands and keeps what they say."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str) -> Done:
        self._capture.readouterr()
        code = run(*arguments)
        out, err = self._capture.readouterr()
        return Done(code, out, err)
