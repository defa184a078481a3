"""Losses of log entries that nobody has acknowledged yet, and the record of acknowledgements."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from pathlib import Path

from signalhub.clock import Clock
from signalhub.core.effects import Append, Effect
from signalhub.log.recovery import LogRecovery
from signalhub.state import losses
from signalhub.state.losses import Loss
from signalhub.wire.entry import Entry, Kind, OperatedBody, encode_body
from signalhub.wire.errors import Refusal, SettingsError

log = logging.getLogger("signalhub.server")


class Losses:
    """The losses of one data folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._changed_ns = 0
        self._known: list[Loss] = []
        # Losses that could not be written to the file: they are shown until the next start.
        self._unwritten: list[Loss] = []
        # Acknowledged ones that are being written to the log.
        self._recording: list[Loss] = []
        self._is_readable = True
        self._look()

    def note(self, found: LogRecovery) -> None:
        """The log is about to be repaired, which ends what it says about its lost entries."""
        last, now_ms = found.lost_to - 1, self._clock.now_ms()
        loss = Loss(epoch=found.latest_epoch, first=found.lost_from, last=last, found_ms=now_ms)
        try:
            losses.add(self._folder, loss)
            self._look()
        except (OSError, SettingsError) as error:
            log.error("a loss could not be recorded", extra={"reason": str(error)})
            self._unwritten.append(loss)

    def has_acknowledged(self, loss: Loss) -> bool:
        """Has somebody acknowledged this loss already?"""
        return any(one.acknowledged_ms and one.is_same(loss) for one in self._known)

    def log_is_there(self, epochs: Collection[int]) -> None:
        """The log that was found has these epochs: one that was lost as a whole is there again."""
        back = [one for one in self._known if one.is_whole and one.epoch in epochs]
        if not back:
            return
        try:
            losses.remove(self._folder, back)
            self._look()
        except (OSError, SettingsError) as error:
            log.error("a log that is there stays listed as lost", extra={"reason": str(error)})
        log.info("a log that was given up is there again", extra={"log": ", ".join(map(str, back))})

    @property
    def open(self) -> list[Loss]:
        """Those that nobody has acknowledged."""
        return [*(one for one in self._known if not one.acknowledged_ms), *self._unwritten]

    @property
    def are_open(self) -> bool:
        """Is there a loss that nobody has acknowledged, or may there be one?"""
        return bool(self.open) or not self._is_readable

    def tick(self, now: int) -> list[Effect]:
        """Look for acknowledgements, and record them."""
        if losses.changed_ns(self._folder) != self._changed_ns:
            self._look()
        new = [one for one in self._known if one.acknowledged_ms and one not in self._recording]
        self._recording += new
        return [
            Append(_record(one, now), self._recorded(one), self._not_recorded(one)) for one in new
        ]

    def _look(self) -> None:
        self._changed_ns = losses.changed_ns(self._folder)
        try:
            self._known = losses.read(self._folder)
            self._is_readable = True
        except SettingsError as error:
            self._is_readable = False
            log.error("the list of losses cannot be read", extra={"reason": str(error)})

    def _recorded(self, loss: Loss) -> Callable[[int, int], list[Effect]]:
        def committed(offset: int, now: int) -> list[Effect]:
            try:
                losses.remove(self._folder, [loss])
                self._look()
            except (OSError, SettingsError) as error:
                log.error("an acknowledged loss stays listed", extra={"reason": str(error)})
            log.info("a loss was acknowledged", extra={"loss": str(loss), "by": loss.by})
            return []

        return committed

    def _not_recorded(self, loss: Loss) -> Callable[[Refusal, int], list[Effect]]:
        def refused(refusal: Refusal, now: int) -> list[Effect]:
            if refusal.retryable:
                self._recording.remove(loss)
            return []

        return refused


def _record(loss: Loss, now: int) -> Entry:
    body = OperatedBody(loss.by, "", "admin", f"acknowledged the loss of {loss}")
    return Entry(Kind.OPERATED, "", 0, 0, now, encode_body(body))
