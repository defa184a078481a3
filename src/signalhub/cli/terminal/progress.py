"""Progress bars on standard error, for people who wait at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from signalhub.cli.terminal.output import Output
from signalhub.log.disk import File, SystemDisk

Show = Callable[[int, int], None]
Advance = Callable[[int], None]


@contextmanager
def bar(title: str, output: Output) -> Iterator[Show]:
    """A function that shows how much of a total is done, while the block runs.

    The bar appears with the first total above 0 and is removed at the end. Programs never see it.
    """
    errors = Output(output.as_json, sys.stderr)
    if output.as_json or not errors.is_terminal:
        yield lambda done, total: None
        return

    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    drawn = Progress(*columns, TimeElapsedColumn(), console=errors.console, transient=True)
    task = drawn.add_task(title, total=None)
    with ExitStack() as stack:

        def show(done: int, total: int) -> None:
            if total and not drawn.live.is_started:
                stack.enter_context(drawn)
                drawn.reset(task)
            drawn.update(task, completed=done, total=total)

        yield show


class CountedFile:
    """A file that counts what is read."""

    def __init__(self, file: File, advance: Advance) -> None:
        self._file = file
        self._advance = advance
        self.write = file.write
        self.truncate = file.truncate
        self.size = file.size
        self.is_removed = file.is_removed
        self.sync = file.sync
        self.close = file.close

    def read(self, size: int, position: int) -> bytes:
        found = self._file.read(size, position)
        self._advance(len(found))
        return found


class CountedDisk(SystemDisk):
    """A folder of the operating system, opened read-only, that reports how much is read."""

    def __init__(self, disk: SystemDisk, show: Show, total: int) -> None:
        super().__init__(disk.path, read_only=True)
        self._show = show
        self._total = total
        self._done = 0

    def open(self, name: str, *, read_only: bool = False) -> File:
        return CountedFile(super().open(name, read_only=read_only), self._advance)

    def _advance(self, count: int) -> None:
        self._done += count
        self._show(self._done, self._total)
