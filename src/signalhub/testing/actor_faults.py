"""What goes wrong with hosts of durable actors in a simulation, and a disk that can fail."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import apsw

from signalhub.actors.store import Store


class Crash(BaseException):
    """The process of a host ends here."""


@dataclass(frozen=True)
class Faults:
    """How often what goes wrong, each as a chance per occasion."""

    crash: float = 0.06  # At each point a turn passes, and before each of its effects.
    only_at: str = ""  # The one point where hosts crash, if it is not all of them.
    statement: float = 0.03  # That a turn ends at one of its statements.
    storage: float = 0.01  # That the disk fails instead, and the host lives on.
    loss: float = 0.15
    duplication: float = 0.15
    stall: float = 0.04  # That a message takes longer than its sender waits.
    refusal: float = 0.03
    disconnect: float = 0.04
    jump: float = 0.0  # That a clock is set back, once, while its host is down.


CALM = Faults(0, "", 0, 0, 0, 0, 0, 0, 0, 0)


class FragileStore(Store):
    """A store that can fail, or end the process, at a statement chosen before."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, durability="process")
        self.countdown = -1
        self.fault: BaseException = Crash()
        real = self.connection.execute

        def execute(statement: str, bindings: Any = ()) -> apsw.Cursor:
            # What takes back cannot fail: it only says what is so anyway.
            if self.countdown >= 0 and not statement.startswith("R"):
                self.countdown -= 1
                if self.countdown < 0:
                    raise self.fault
            return real(statement, bindings)

        self.execute = execute  # type: ignore[assignment]

    def empty(self) -> None:
        """As new; opening another one would take longer than a whole run."""
        tables = self.connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        names = [str(name) for (name,) in tables]
        for name in names:
            if name.startswith("state:"):
                self.connection.execute(f'DROP TABLE "{name}"')
            else:
                self.connection.execute(f'DELETE FROM "{name}"')


class Shelf:
    """Stores in memory that many worlds use, one after the other."""

    def __init__(self) -> None:
        self._stores: list[FragileStore] = []

    def take(self, number: int) -> FragileStore:
        while len(self._stores) <= number:
            self._stores.append(FragileStore(":memory:"))
        store = self._stores[number]
        store.countdown = -1
        store.empty()
        return store
