"""Which sealed segments contain a stream, in SQLite; derived from footers, never authoritative.

The file may be missing, outdated or damaged: it is used only after its first `update` in this
process has checked it, and rebuilt if anything is wrong with it. Until then, and for segments it
does not contain, a reader searches the footers themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from itertools import islice
from typing import Final

import apsw
from crc32c import crc32c

from signalhub.log.disk import SystemDisk
from signalhub.log.footer import footer_crc, read_footer
from signalhub.log.record import Unreadable
from signalhub.log.segment import SegmentInfo, segment_name
from signalhub.log.survey import INDEX_NAME
from signalhub.privacy import claim_file

log_lines = logging.getLogger("signalhub.log")

_VERSION: Final = 2
_BUSY_MS: Final = 5_000
_SLICE_ROWS: Final = 100

_CREATE: Final = f"""
    CREATE TABLE segment (
        base INTEGER NOT NULL PRIMARY KEY,
        chain BLOB NOT NULL,
        footer INTEGER NOT NULL,    -- The checksum of the footer its rows were made from.
        checksum INTEGER NOT NULL   -- Of its rows in `stream_range`.
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

Slices = Generator[None, None, None]
Row = tuple[str, int, int, int]


class Index:
    """A look-up across segments, for the reader of one thread in the process of the log."""

    def __init__(self, disk: SystemDisk) -> None:
        self._disk = disk
        self._path = str(disk.path / INDEX_NAME)
        self._known: frozenset[int] = frozenset()
        self._is_checked = False
        self._connection = self._open()

    def find(
        self, stream: str, stream_epoch: int, from_seq: int
    ) -> tuple[frozenset[int], frozenset[int]]:
        """The indexed segments, and those of them that contain a stream from a position on."""
        if not self._known:
            return frozenset(), frozenset()
        try:
            rows = self._connection.execute(_FIND, (stream, stream_epoch, from_seq))
            return self._known, frozenset(base for (base,) in rows)
        except apsw.Error:
            log_lines.warning("the look-up index of the log cannot be read", exc_info=True)
            self._known, self._is_checked = frozenset(), False
            return frozenset(), frozenset()

    def update(self, segments: Sequence[SegmentInfo]) -> Slices:
        """Add new sealed segments and drop deleted ones, in slices."""
        try:
            yield from self._update(segments)
        except apsw.Error:
            log_lines.warning("the look-up index of the log is rebuilt", exc_info=True)
            self._known = frozenset()
            self._connection.close()
            self._remove()
            self._connection = self._open()
            yield from self._update(segments)

    def forget(self, bases: Sequence[int]) -> None:
        """Delete all traces of segments that were replaced; see `update`."""
        self._known -= frozenset(bases)
        try:
            for base in bases:
                with self._connection:
                    self._connection.execute(_FORGET, {"base": base})
            # Otherwise overwritten content would stay readable in the write-ahead log.
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except apsw.Error:
            log_lines.warning("the look-up index of the log cannot be changed", exc_info=True)
            self._known, self._is_checked = frozenset(), False

    def close(self) -> None:
        self._connection.close()

    def _update(self, segments: Sequence[SegmentInfo]) -> Slices:
        if not self._is_checked:
            yield from self._check()
            self._is_checked = True
        wanted = {info.base: info for info in segments if info.is_sealed}
        known = dict(self._connection.execute("SELECT base, chain FROM segment"))
        for base in [base for base, chain in known.items() if not _is(wanted.get(base), chain)]:
            with self._connection:
                self._connection.execute(_FORGET, {"base": base})
            del known[base]
            yield
        for info in wanted.values():
            if info.base not in known:
                yield from self._add(info)
        rows = self._connection.execute("SELECT base FROM segment")
        self._known = frozenset(base for (base,) in rows)

    def _check(self) -> Slices:
        """Compare all rows with the checksums; raises `apsw.CorruptError`."""
        verdict = self._connection.pragma("integrity_check", 1)
        if verdict != "ok":
            raise apsw.CorruptError(verdict)
        sums = dict(self._connection.execute("SELECT base, checksum FROM segment"))
        rows = self._connection.execute("SELECT * FROM stream_range")
        while some := list(islice(rows, _SLICE_ROWS)):
            for row in some:
                sums[row[-1]] = sums.get(row[-1], 0) ^ _checksum(row)
            yield
        if any(sums.values()):
            raise apsw.CorruptError("the rows do not match their checksums")
        footers = dict(self._connection.execute("SELECT base, footer FROM segment"))
        self.forget([base for base, crc in footers.items() if self._footer_crc(base) != crc])

    def _footer_crc(self, base: int) -> int | None:
        """The checksum of a segment's footer; a rewritten segment has another."""
        try:
            file = self._disk.open(segment_name(base), read_only=True)
        except FileNotFoundError:
            return None
        try:
            return footer_crc(file)
        except Unreadable:
            return None
        finally:
            file.close()

    def _add(self, info: SegmentInfo) -> Slices:
        try:
            file = self._disk.open(info.name, read_only=True)
        except FileNotFoundError:
            return
        try:
            footer, crc = read_footer(file), footer_crc(file)
        except Unreadable:
            return
        finally:
            file.close()
        checksum = 0
        with self._connection:
            for ranges in footer.last_seqs(_SLICE_ROWS):
                rows: set[Row] = {(*one, info.base) for one in ranges}
                self._connection.executemany(_ADD, rows)
                for row in rows:
                    checksum ^= _checksum(row)
                yield
            values = (info.base, info.chain, crc, checksum)
            self._connection.execute("INSERT INTO segment VALUES (?, ?, ?, ?)", values)

    def _open(self) -> apsw.Connection:
        try:
            return self._connect()
        except apsw.Error:
            log_lines.warning("the look-up index of the log is unusable", exc_info=True)
            self._remove()
            return self._connect()

    def _connect(self) -> apsw.Connection:
        claim_file(self._path)
        connection = apsw.Connection(self._path)
        try:
            connection.set_busy_timeout(_BUSY_MS)
            connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL").fetchall()
            # Stream names may be addresses, and erasing must not leave traces of them.
            connection.execute("PRAGMA secure_delete = ON").fetchall()
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


def _is(info: SegmentInfo | None, chain: bytes) -> bool:
    return info is not None and info.chain == chain


def _checksum(row: Row) -> int:
    return crc32c(repr(row).encode())
