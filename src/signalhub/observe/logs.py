"""Log lines: human-readable on a terminal, JSON otherwise.

A message is a constant sentence; its facts are passed in `extra` and appear as `key=value` or as
members of the JSON object. Logs go to standard error; standard output is for the program's results.
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

import msgspec

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "human", "json"]

ROOT = "signalhub"

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


def configure(level: Level, format: Format, stream: TextIO | None = None) -> None:
    """Send the log lines of the whole process to `stream`, by default standard error.

    Other packages log warnings and errors only. Another call replaces the configuration.
    """
    target = sys.stderr if stream is None else stream
    handler = _Handler(target)
    handler.setFormatter(_formatter(format, target))
    root = logging.getLogger()
    for earlier in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level.upper())


class _Handler(logging.StreamHandler[TextIO]):
    """Identifies the handler installed by `configure`."""


def _formatter(format: Format, stream: TextIO) -> logging.Formatter:
    is_terminal = stream.isatty()
    if format == "human" or (format == "auto" and is_terminal):
        return HumanFormatter(colour=is_terminal and not os.environ.get("NO_COLOR"))
    return JsonFormatter()


def _facts(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _OWN}


class JsonFormatter(logging.Formatter):
    """One JSON object per line; the four fixed members come first."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((key, value) for key, value in _facts(record).items() if key not in line)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class HumanFormatter(logging.Formatter):
    """Time, level, message and facts on one line."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        level = self._paint(f"{record.levelname.lower():<7}", _COLOURS.get(record.levelname, ""))
        facts = "".join(f" {key}={_short(value)}" for key, value in _facts(record).items())
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        line = f"{clock} {level} {record.getMessage()}{self._paint(facts, '2')}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line

    def _paint(self, text: str, colour: str) -> str:
        return f"\033[{colour}m{text}\033[0m" if self._colour and colour and text else text


def _short(value: object) -> str:
    """Return a plain word unchanged; quote anything else, which escapes control characters."""
    text = str(value)
    return text if text.isprintable() and text and " " not in text else repr(text)


def _utc(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
