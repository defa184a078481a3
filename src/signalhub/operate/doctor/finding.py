"""What a check has found."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """One line of the report; `advice` says what to do."""

    check: str
    level: Level
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def warn(check: str, text: str, advice: str) -> Finding:
    return Finding(check, Level.WARN, text, advice)


def fail(check: str, text: str, advice: str) -> Finding:
    return Finding(check, Level.FAIL, text, advice)


def worst(findings: list[Finding]) -> Level:
    """The level of the whole report."""
    levels = {one.level for one in findings}
    return next((one for one in (Level.FAIL, Level.WARN) if one in levels), Level.OK)
