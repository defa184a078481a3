"""Which sealed segments hold a stream, in SQLite; made from footers, never the truth.

The file may be missing, behind or damaged at any time: a reader then reads footers instead, and the
owner makes it again. One thread per `Index`.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from typing import Final

import apsw

from signalhub.log.disk import SystemDisk
from signalhub.log.footer import read_footer
from signalhub.log.record import Unreadable
from signalhub.log.segment import SegmentInfo
from signalhub.log.survey import INDEX_NAME

log_lines = logging.getLogger("signalhub.log")

_VERSION: Final = 1
_BUSY_MS: Final = 5_000
_SLICE_ROWS: Final = 100

_CREATE: Final = f"""
    CREATE TABLE segment (
        base INTEGER NOT NULL PRIMARY KEY,
        chain BLOB NOT NULL
    ) STRICT;
    CREATE TABLE stream_range (
        stream TEXT NOT NULL,
        stream_epoch INTEGER NOT NULL,
        last_seq INTEGER NOT NULL,
        base INTEGER NOT NULL,
        PRIMARY KEY (stream, stream_epoch, last_seq, base)
    ) STRICT, WITHOUT ROWID;
    PRAGMA user_version = {_VERSION};
"""
_FIND: Final = """
    SELECT base FROM stream_range WHERE stream = ? AND stream_epoch = ? AND last_seq >= ?
"""
_ADD: Final = "INSERT OR REPLACE INTO stream_range VALUES (?, ?, ?, ?)"
_FORGET: Final = """
    DELETE FROM segment WHERE base = :base;
    DELETE FROM stream_range WHERE base = :base;
"""


class Index:
    """A look-up across segments; `update` belongs to the process of the log."""

    def __init__(self, disk: SystemDisk) -> None:
        self._disk = disk
        self._path = str(disk.path / INDEX_NAME)
        self._known: frozenset[int] = frozenset()
        self._known_version = -1
        self._connection = self._open()

    def find(
        self, stream: str, stream_epoch: int, from_seq: int
    ) -> tuple[frozenset[int], frozenset[int]]:
        """Which segments are known at all, and which of them hold a stream from a position on."""
        try:
            version = self._connection.pragma("data_version")
            if version != self._known_version:
                self._known = self._bases("SELECT base FROM segment")
                self._known_version = version
            return self._known, self._bases(_FIND, (stream, stream_epoch, from_seq))
        except apsw.Error:
            log_lines.warning("The look-up index of the log cannot be read", exc_info=True)
            return frozenset(), frozenset()

    def update(self, segments: Sequence[SegmentInfo]) -> Generator[None, None, None]:
        """Learn new sealed segments and forget deleted ones, in slices."""
        self._known_version = -1
        try:
            yield from self._update(segments)
        except apsw.Error:
            log_lines.warning("The look-up index of the log is made again", exc_info=True)
            self._connection.close()
            self._remove()
            self._connection = self._open()
            yield from self._update(segments)

    def close(self) -> None:
        self._connection.close()

    def _update(self, segments: Sequence[SegmentInfo]) -> Generator[None, None, None]:
        wanted = {info.base: info for info in segments if info.is_sealed}
        known = dict(self._connection.execute("SELECT base, chain FROM segment"))
        for base, chain in known.items():
            if base not in wanted or wanted[base].chain != chain:
                with self._connection:
                    self._connection.execute(_FORGET, {"base": base})
                yield
        for info in wanted.values():
            if known.get(info.base) != info.chain:
                yield from self._add(info)

    def _add(self, info: SegmentInfo) -> Generator[None, None, None]:
        try:
            file = self._disk.open(info.name, read_only=True)
        except FileNotFoundError:
            return
        try:
            footer = read_footer(file)
        except Unreadable:
            return
        finally:
            file.close()
        with self._connection:
            for rows in footer.last_seqs(_SLICE_ROWS):
                self._connection.executemany(_ADD, [(*row, info.base) for row in rows])
                yield
            self._connection.execute(
                "INSERT OR REPLACE INTO segment VALUES (?, ?)", (info.base, info.chain)
            )

    def _open(self) -> apsw.Connection:
        try:
            return self._connect()
        except apsw.Error:
            log_lines.warning("The look-up index of the log is unusable", exc_info=True)
            self._remove()
            return self._connect()

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(self._path)
        try:
            connection.set_busy_timeout(_BUSY_MS)
            connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")
            with connection:
                version = connection.pragma("user_version")
                if version == 0:
                    connection.execute(_CREATE)
                elif version != _VERSION:
                    raise apsw.NotADBError(f"the index has version {version}")
        except apsw.Error:
            connection.close()
            raise
        return connection

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self._disk.remove(INDEX_NAME + suffix)

    def _bases(self, query: str, values: tuple[str | int, ...] = ()) -> frozenset[int]:
        return frozenset(base for (base,) in self._connection.execute(query, values))
