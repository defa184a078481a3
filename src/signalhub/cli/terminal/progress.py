"""Progress bars on standard error, for people who wait at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from signalhub.cli.terminal.output import Output
from signalhub.log.disk import File, SystemDisk

Advance = Callable[[int], None]


@contextmanager
def bar(title: str, total: int, output: Output) -> Iterator[Advance]:
    """A bar while the block runs; it is gone afterwards, and programs never see it.

    With a total of 0 there is nothing to wait for, and no bar.
    """
    errors = Output(output.as_json, sys.stderr)
    if output.as_json or not errors.is_terminal or not total:
        yield lambda steps: None
        return

    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeElapsedColumn(), console=errors.console, transient=True) as shown:
        task = shown.add_task(title, total=total)
        yield lambda steps: shown.update(task, advance=steps)


class CountedFile:
    """A file that counts what is read."""

    def __init__(self, file: File, advance: Advance) -> None:
        self._file = file
        self._advance = advance
        self.write = file.write
        self.truncate = file.truncate
        self.size = file.size
        self.sync = file.sync
        self.close = file.close

    def read(self, size: int, position: int) -> bytes:
        found = self._file.read(size, position)
        self._advance(len(found))
        return found


class CountedDisk(SystemDisk):
    """A folder of the operating system, only to be read."""

    def __init__(self, disk: SystemDisk, advance: Advance) -> None:
        super().__init__(disk.path, read_only=True)
        self._advance = advance

    def open(self, name: str, *, read_only: bool = False) -> File:
        return CountedFile(super().open(name, read_only=read_only), self._advance)
