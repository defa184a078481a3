"""Another program that uses the file of a store."""

from __future__ import annotations

from pathlib import Path

import apsw


class Rival:
    """Another user of the file, who locks it for as long as a test wants."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))

    def lock(self) -> None:
        """Nobody else can write."""
        self._connection.execute("begin exclusive")

    def read(self) -> None:
        """Keep reading the file as it is now."""
        self._connection.execute("begin")
        assert self._connection.execute("select count(*) from snapshot").get is not None

    def let_go(self) -> None:
        self._connection.execute("rollback")

    def close(self) -> None:
        self._connection.close()
