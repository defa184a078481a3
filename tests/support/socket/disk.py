"""A disk that waits for the test.

Nothing here knows how the hub keeps its promises, except that data become durable through
`os.fdatasync` and `os.fsync`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.peer import PATIENCE_S


class HeldDisk:
    """Lets no write of this process become durable while it is held."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._is_broken = False
        self._somebody_waits = asyncio.Event()

    def hold(self) -> None:
        """From now on every sync waits."""
        self._somebody_waits.clear()
        self._may_go_on.clear()

    def release(self) -> None:
        """Let all syncs continue."""
        self._may_go_on.set()

    def break_down(self) -> None:
        """From now on every sync fails."""
        self._is_broken = True

    async def wait(self) -> None:
        """Wait until a sync is held."""
        async with asyncio.timeout(PATIENCE_S):
            await self._somebody_waits.wait()

    def instead_of(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        """What the process calls in its place."""

        def held_sync(descriptor: int) -> None:
            if not self._may_go_on.is_set():
                self._loop.call_soon_threadsafe(self._somebody_waits.set)
                self._may_go_on.wait(PATIENCE_S)
            if self._is_broken:
                raise OSError(errno.EIO, "the disk has failed")
            sync(descriptor)

        return held_sync


@contextmanager
def held_disk() -> Iterator[HeldDisk]:
    """A disk in the hands of the test, for a hub in the test's own process.

    It must be left before the hub is stopped, which syncs too.
    """
    disk = HeldDisk()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", disk.instead_of(os.fdatasync))
        patch.setattr(os, "fsync", disk.instead_of(os.fsync))
        try:
            yield disk
        finally:
            disk.release()
