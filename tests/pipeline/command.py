"""Commands run in this process, so that those that need Spark share its session."""

from __future__ import annotations

import json
import logging
import re
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from signalhub.cli import app

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def run(*arguments: str) -> int:
    """Run a command; its exit code."""
    # Some decide about signals and logging for as long as their process lives, which is ours here.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    root = logging.getLogger()
    logging_before = root.level, list(root.handlers)
    try:
        return app.run(list(arguments))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        root.level, root.handlers = logging_before


class Command:
    """Runs commands and keeps what they say."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str) -> Done:
        self._capture.readouterr()
        code = run(*arguments)
        out, err = self._capture.readouterr()
        return Done(code, out, err)


def run_guide(guide: str, **names: Any) -> dict[str, Any]:
    """Run the Python of a guide; the names it leaves behind."""
    text = (GUIDES / guide).read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    exec(block, names)
    return names
