"""Durations, sizes, times and topic positions as users type them: `7d`, `1G`, `seq:5`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from signalhub.cli.terminal.failures import usage

TopicPosition = Literal["earliest", "latest"] | int | datetime | Mapping[str, int]

_SECONDS: Final = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_BYTES: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_NUMBERED: Final = re.compile(r"(?:(seq|last):)?(\d{1,15})")
_POSITIONS: Final = "earliest, latest, seq:5, last:10 or time:2026-01-31T12:00Z"


def seconds(text: str) -> float:
    """A duration: seconds, or a number with its unit."""
    amount = _amount(text, _SECONDS)
    if amount is None:
        raise usage(f"invalid duration {text!r}", "try 250ms, 30s, 5m, 12h or 7d")
    return amount


def byte_count(text: str) -> int:
    """A size: bytes, or a number with its unit, each 1024 times the one before."""
    # `1G`, `1GB` and `1GiB` mean the same.
    amount = _amount(re.sub(r"(?i)i?b$", "", text).upper(), _BYTES)
    if amount is None:
        raise usage(f"invalid size {text!r}", "try 500K, 64M or 1G")
    return int(amount)


def moment(text: str) -> datetime:
    """An ISO 8601 time, in the local zone unless it names one."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise usage(
            f"invalid time {text!r}", "try 2026-01-31T12:00Z or 2026-01-31T12:00+01:00"
        ) from None


def option(read: Callable[[str], object], help: str, **more: Any) -> Parameter:
    """A parameter that is parsed by one of the functions above."""

    def convert(_: object, tokens: Sequence[Any]) -> object:
        return read(tokens[0].value)

    metavar = _METAVARS[read]
    return Parameter(help=help, converter=convert, metavar=metavar, show_default=False, **more)


_METAVARS: Final[Mapping[Callable[[str], object], str]] = {
    seconds: "DURATION",
    byte_count: "SIZE",
    moment: "TIME",
}

PositionText = Annotated[str, Parameter(name="POSITION", help=f"{_POSITIONS}.")]


def position(text: str) -> TopicPosition:
    """A position in a topic."""
    found = position_or_none(text)
    if found is None:
        raise usage(f"invalid position {text!r}", f"try {_POSITIONS}")
    return found


def position_or_none(text: str) -> TopicPosition | None:
    """A position in a topic; `None` if the text is something else."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.startswith("time:"):
        return moment(text.removeprefix("time:"))
    numbered = _NUMBERED.fullmatch(text)
    if numbered is None or int(numbered[2]) < 1:
        return None
    return {numbered[1] or "seq": int(numbered[2])}


def shown_duration(duration_s: float | None) -> str:
    """A duration in the largest unit that divides it."""
    if duration_s is None:
        return ""
    for unit in ("d", "h", "m", "s"):
        amount = duration_s / _SECONDS[unit]
        if amount >= 1 and amount == int(amount):
            return f"{int(amount)}{unit}"
    return f"{duration_s:g}s"


def shown_size(count: int | None) -> str:
    """A size with its unit, rounded."""
    if count is None:
        return ""
    for unit in ("T", "G", "M", "K"):
        if count >= _BYTES[unit]:
            return f"{count / _BYTES[unit]:.3g}{unit}"
    return str(count)


def shown_time(ms: float | None) -> str:
    """Milliseconds since the epoch as a local time; empty for none."""
    if not ms:
        return ""
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(ms)


def _amount(text: str, units: Mapping[str, float]) -> float | None:
    found = _QUANTITY.fullmatch(text.strip())
    unit = None if found is None else units.get(found[2])
    if found is None or unit is None:
        return None
    amount = float(found[1]) * unit
    return amount if math.isfinite(amount) else None
