"""Finding what is to be erased, and erasing it, on the thread that keeps the log in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Final

from signalhub.core import refusals
from signalhub.core.effects import Erase, Locate, Located, Match
from signalhub.errors import Refusal
from signalhub.log.commit import Upkeep
from signalhub.log.erasure import Erasure, remove_torn
from signalhub.log.errors import EntriesGone, LogDamaged, LogFull, storage_error
from signalhub.log.log import Log
from signalhub.log.reader import Reader

log_lines = logging.getLogger("signalhub.log")

# Reading and judging an entry takes a few microseconds.
_SLICE_ENTRIES: Final = 100

Slices = Generator[None, None, None]


class Eraser:
    """Carries out what the core wants erased; reports on the loop."""

    def __init__(
        self,
        log: Log,
        upkeep: Upkeep,
        loop: asyncio.AbstractEventLoop,
        forget: Callable[[list[int], Callable[[], None]], None],
    ) -> None:
        """`forget` lets go of replaced segments, then calls back on the loop."""
        self._log = log
        self._upkeep = upkeep
        self._loop = loop
        self._forget = forget

    def locate(self, locate: Locate, done: Callable[[Located | None], None]) -> None:
        """Look through the log, soon."""
        self._upkeep.run(lambda: self._locate(locate, done))

    def erase(self, erase: Erase, done: Callable[[int | Refusal], None]) -> None:
        """Write the segments anew, soon."""
        self._upkeep.run(lambda: self._erase(erase, done))

    def _locate(self, locate: Locate, done: Callable[[Located | None], None]) -> Slices:
        torn, located = 0, None
        try:
            if locate.needle:
                torn = yield from remove_torn(self._log.disk, [locate.needle])
            located = yield from self._look(locate)
            located.torn = torn
            if any(one.offset >= self._log.segments[-1].base for one in located.found):
                # Only what is in a finished segment can be taken out of it.
                self._log.roll_soon()
        except Exception:
            # Whatever it is, somebody waits for an answer.
            log_lines.exception("the log could not be searched")
        self._loop.call_soon_threadsafe(done, located)

    def _look(self, locate: Locate) -> Generator[None, None, Located]:
        reader = Reader(self._log)
        found: list[Match] = []
        offset, end = locate.from_offset, locate.to_offset
        try:
            while offset < end and len(found) < locate.count_max:
                offset = max(offset, self._log.first)
                try:
                    for stored in reader.scan(offset, end):
                        offset = stored.offset + 1
                        match = locate.choose(stored)
                        found += [] if match is None else [match]
                        if len(found) == locate.count_max:
                            break
                        if offset % _SLICE_ENTRIES == 0:
                            yield
                except EntriesGone as gone:
                    # Retention was faster.
                    offset = max(offset, gone.first)
        finally:
            reader.close()
        return Located(found, min(offset, end))

    def _erase(self, erase: Erase, done: Callable[[int | Refusal], None]) -> Slices:
        erasures = [
            Erasure(tuple(body.ranges), body.pseudonym, tuple(body.renamed))
            for body in erase.bodies
        ]
        try:
            rewritten = yield from self._log.erase(erasures)
        except Exception as error:
            log_lines.exception("entries could not be erased; it is tried again later")
            self._loop.call_soon_threadsafe(done, _refusal(error))
            return
        bases = [one.info.base for one in rewritten]
        if bases:
            facts = {"segments": len(bases), "entries": sum(one.erased for one in rewritten)}
            log_lines.info("entries were erased", extra=facts)
        self._forget(bases, lambda: done(len(bases)))


def _refusal(error: Exception) -> Refusal:
    if isinstance(error, OSError):
        error = storage_error(error)
    if isinstance(error, LogFull):
        return refusals.storage_full()
    if isinstance(error, LogDamaged):
        return refusals.storage_damaged(f"{error.segment}: {error.reason}")
    return refusals.storage_failed()
