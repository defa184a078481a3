"""A host's SQLite file that fails, or kills the process, at chosen statements.

It belongs to the package because a host recognizes failures of its own file by the package that
raised them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NoReturn

import apsw

from signalhub.actors.store.store import HostStore


class Crash(BaseException):
    """A simulated kill of the host's process."""


class FragileStore(HostStore):
    """A store that can fail, or kill the process, at a chosen statement."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, durability="process")
        self.countdown = -1
        self.fault: BaseException = Crash()
        run, run_each = self._run, self._run_each

        def execute(statement: str, values: Any = None) -> apsw.Cursor:
            self._count_down(statement)
            return run(statement, values)

        def executemany(statement: str, rows: Iterable[Any]) -> apsw.Cursor:
            self._count_down(statement)
            return run_each(statement, rows)

        self._run, self._run_each = execute, executemany  # type: ignore[assignment]

    def _count_down(self, statement: str) -> None:
        # A rollback cannot fail.
        if self.countdown >= 0 and not statement.startswith("R"):
            self.countdown -= 1
            if self.countdown < 0:
                raise self.fault

    def empty(self) -> None:
        """Reset to an empty store; opening another one would take longer than a whole run."""
        tables = self.connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        names = [str(name) for (name,) in tables]
        for name in names:
            if name.startswith("state:"):
                self.connection.execute(f'DROP TABLE "{name}"')
            else:
                self.connection.execute(f'DELETE FROM "{name}"')

    @staticmethod
    def is_full() -> NoReturn:
        """Fail as a full disk does."""
        raise apsw.FullError("the disk is full")
