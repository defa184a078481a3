"""Progress bars on standard error, for people who wait at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from signalhub.cli.output import Output

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
