"""Spans, sizes, moments and places in a topic, as users type them: `7d`, `1G`, `seq:5`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from signalhub.cli.terminal.failures import usage

Place = Literal["earliest", "latest"] | int | datetime | Mapping[str, int]

_SECONDS: Final = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_BYTES: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_NUMBERED: Final = re.compile(r"(?:(seq|last):)?(\d{1,15})")
_PLACES: Final = "earliest, latest, seq:5, last:10 or time:2026-01-31T12:00Z"


def seconds(text: str) -> float:
    """A span of time: seconds, or a number with its unit."""
    amount = _amount(text, _SECONDS)
    if amount is None:
        raise usage(f"{text!r} is no span of time", "write it like 250ms, 30s, 5m, 12h or 7d")
    return amount


def byte_count(text: str) -> int:
    """A size: bytes, or a number with its unit, each 1024 times the one before."""
    # `1G`, `1GB` and `1GiB` all mean the same.
    amount = _amount(re.sub(r"(?i)i?b$", "", text).upper(), _BYTES)
    if amount is None:
        raise usage(f"{text!r} is no size", "write it like 500K, 64M or 1G")
    return int(amount)


def moment(text: str) -> datetime:
    """An ISO 8601 time; without a zone it is one of this machine's."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise usage(
            f"{text!r} is no moment", "write it like 2026-01-31T12:00Z or 2026-01-31T12:00+01:00"
        ) from None


def option(read: Callable[[str], object], help: str, **more: Any) -> Parameter:
    """A parameter that is read by one of the functions above."""

    def convert(_: object, tokens: Sequence[Any]) -> object:
        return read(tokens[0].value)

    metavar = _METAVARS[read]
    return Parameter(help=help, converter=convert, metavar=metavar, show_default=False, **more)


_METAVARS: Final[Mapping[Callable[[str], object], str]] = {
    seconds: "SPAN",
    byte_count: "SIZE",
    moment: "TIME",
}

PlaceText = Annotated[str, Parameter(name="PLACE", help=f"Where to: {_PLACES}.")]


def place(text: str) -> Place:
    """A place in a topic."""
    found = place_or_none(text)
    if found is None:
        raise usage(f"{text!r} is no place in a topic", f"write {_PLACES}")
    return found


def place_or_none(text: str) -> Place | None:
    """A place in a topic; `None` for what is something else."""
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


def shown_span(span_s: float | None) -> str:
    """A span in the largest unit that does not hide anything."""
    if span_s is None:
        return ""
    for unit in ("d", "h", "m", "s"):
        amount = span_s / _SECONDS[unit]
        if amount >= 1 and amount == int(amount):
            return f"{int(amount)}{unit}"
    return f"{span_s:g}s"


def shown_size(count: int | None) -> str:
    """A size with its unit, rounded."""
    if count is None:
        return ""
    for unit in ("T", "G", "M", "K"):
        if count >= _BYTES[unit]:
            return f"{count / _BYTES[unit]:.3g}{unit}"
    return str(count)


def shown_moment(ms: float | None) -> str:
    """Milliseconds since the epoch as a time of this machine's zone; nothing for none."""
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
