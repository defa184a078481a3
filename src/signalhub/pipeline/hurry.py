"""Somebody waits for the pipeline, and says so with a file, which any process may leave."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from signalhub.pipeline.status import folder_of

_NAME: Final = "hurry"


def ask(data: str | Path) -> None:
    """Have the pipeline at work do now what it would do later."""
    (folder_of(data) / _NAME).touch()


def was_asked(data: str | Path) -> bool:
    """Whether somebody has; once for all who have."""
    try:
        (folder_of(data) / _NAME).unlink()
    except FileNotFoundError:
        return False
    return True
