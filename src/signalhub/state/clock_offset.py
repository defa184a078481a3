"""The file that says how far the wall clock was ahead of the hub's own time.

With it the next process continues that time, so that a wall clock that was set while the hub ran
ends nothing early. Without it, time continues from the wall clock, but not before the newest entry
of the log. It is written on a change only, and not synced: at worst an older one is found.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from signalhub import privacy

NAME: Final = "clock"
_CHANGE_MS_MIN: Final = 1_000

log = logging.getLogger("signalhub.state")


class ClockOffset:
    """Keeps the difference of the clocks in a data folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self.saved_ms = self._read()

    def save(self, ahead_ms: int) -> None:
        """Write the difference if it has changed; a failure is logged, and tried again later."""
        if abs(ahead_ms - self.saved_ms) < _CHANGE_MS_MIN:
            return
        temporary = self._path.with_suffix(".tmp")
        try:
            with open(temporary, "w", encoding="ascii", opener=privacy.opener) as file:
                file.write(f"{ahead_ms}\n")
            os.replace(temporary, self._path)
        except OSError as error:
            log.warning("the offset of the clock could not be written", extra={"error": str(error)})
            return
        self.saved_ms = ahead_ms

    def _read(self) -> int:
        try:
            return int(self._path.read_text("ascii"))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            log.warning("the offset of the clock cannot be read", extra={"error": str(error)})
            return 0
