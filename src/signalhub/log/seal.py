"""Sealing: a full segment gets its footer, in short slices.

The interpreter runs one thread at a time, and the hub must not wait for this one: after every few
hundred microseconds of work there is a `yield`, where the caller pauses. An interrupted sealing is
started again.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator
from hashlib import sha256
from typing import Final

from crc32c import crc32c

from signalhub.log.disk import Disk, File
from signalhub.log.errors import LogDamaged
from signalhub.log.footer import (
    SegmentSummary,
    encode_run,
    encode_summary,
    encode_trailer,
    read_summary,
    run_hash,
    sealed_segment,
)
from signalhub.log.positions import Positions
from signalhub.log.record import ERASED, Unreadable, entry_digest, read_entry_heads
from signalhub.log.segment import BATCHES_BEGIN, LocatedBatch, SegmentInfo, scan_batches

Slices = Generator[None, None, None]

# An entry takes about two microseconds, a run about four.
_SLICE_ENTRIES: Final = 120
_SLICE_RUNS: Final = 60
_HASH_BYTES: Final = 8
_BUCKETS: Final = 256
_PIECE_BYTES: Final = 2**16


class SegmentSealing:
    """One segment that is being sealed."""

    def __init__(self, info: SegmentInfo, previous_chain: bytes) -> None:
        self._info = info
        self._previous_chain = previous_chain
        self._chain = sha256(previous_chain)
        self._positions = Positions(info.base, BATCHES_BEGIN)
        self._min_ms = 2**63
        self._max_ms = 0
        self.erased = 0
        """How many of its entries are erased."""

    def read(self, file: File) -> Slices:
        """Verify all batches and collect the positions of entries; raises `LogDamaged`."""
        info = self._info
        digests: list[bytes] = []
        try:
            for located in scan_batches(file, BATCHES_BEGIN, info.bytes):
                yield from self._read_batch(located, digests)
        except Unreadable as error:
            raise LogDamaged(info.name, self._positions.size, str(error)) from error
        if self._positions.end != info.end:
            raise LogDamaged(info.name, info.bytes, f"it ends before offset {info.end}")
        self._chain.update(b"".join(digests))

    def _read_batch(self, located: LocatedBatch, digests: list[bytes]) -> Slices:
        positions, data = self._positions, located.data
        positions.mark()
        shift = located.position - located.at
        for at, flags, stream, stream_epoch, seq, at_ms in read_entry_heads(
            data, located.batch, located.at
        ):
            if seq:
                positions.note(stream, stream_epoch, seq, at_ms, at + shift)
            if at_ms < self._min_ms:
                self._min_ms = at_ms
            if at_ms > self._max_ms:
                self._max_ms = at_ms
            if flags & ERASED:
                self.erased += 1
            digests.append(entry_digest(data, at))
            if len(digests) == _SLICE_ENTRIES:
                self._chain.update(b"".join(digests))
                digests.clear()
                yield
        positions.move(located.batch.end, located.end)

    @property
    def chain(self) -> bytes:
        """The chain of the segment, after it was read."""
        return self._chain.digest()

    def footer(self) -> Generator[None, None, tuple[SegmentSummary, list[bytes]]]:
        """The footer in pieces, with its summary; can be called once."""
        hashes, run_positions, pieces = yield from self._encode_runs()
        marks = self._positions.mark_offsets
        info = self._info
        summary = SegmentSummary(
            epoch=info.epoch,
            base=info.base,
            end=info.end,
            bytes=info.bytes,
            created_ms=info.created_ms,
            min_ms=min(self._min_ms, self._max_ms),
            max_ms=self._max_ms,
            marks=len(marks),
            runs=len(hashes),
            previous_chain=self._previous_chain,
            chain=self.chain,
        )
        relative = array("I", (offset - info.base for offset in marks))
        tables = (relative, self._positions.mark_positions, hashes, run_positions)
        return summary, _gathered([encode_summary(summary), *map(bytes, tables), *pieces])

    def _encode_runs(self) -> Generator[None, None, tuple[array[int], array[int], list[bytes]]]:
        # Sorting everything at once would take too long; buckets are in the order of the hashes.
        # Each run is prefixed with its hash as bytes, because tuples would burden the collector.
        buckets: list[list[bytes]] = [[] for _ in range(_BUCKETS)]
        positions = self._positions
        while positions.streams:
            for _ in range(min(positions.streams, _SLICE_RUNS)):
                stream, stream_epoch, runs = positions.pop_stream()
                name = stream.encode()
                key = run_hash(name, stream_epoch).to_bytes(_HASH_BYTES, "big")
                buckets[key[0]] += [key + encode_run(name, stream_epoch, run) for run in runs]
            yield
        hashes, run_positions, pieces, position = array("Q"), array("I"), [], 0
        done = 0
        for bucket in buckets:
            bucket.sort()
            for run in bucket:
                hashes.append(int.from_bytes(run[:_HASH_BYTES], "big"))
                run_positions.append(position)
                position += len(run) - _HASH_BYTES
            pieces.append(b"".join([run[_HASH_BYTES:] for run in bucket]))
            bucket.clear()
            if len(hashes) - done >= _SLICE_RUNS:
                done = len(hashes)
                yield
        return hashes, run_positions, pieces


def _gathered(pieces: list[bytes]) -> list[bytes]:
    """The same bytes in fewer pieces."""
    gathered: list[list[bytes]] = [[]]
    size = 0
    for piece in pieces:
        gathered[-1].append(piece)
        size += len(piece)
        if size >= _PIECE_BYTES:
            gathered.append([])
            size = 0
    return [b"".join(some) for some in gathered if some]


def write_footer(file: File, position: int, pieces: list[bytes]) -> Slices:
    """Append a footer to the batches, and return when it is on disk."""
    file.truncate(position)
    end, crc = position, 0
    for piece in pieces:
        file.write(piece, end)
        crc = crc32c(piece, crc)
        end += len(piece)
        yield
    file.write(encode_trailer(position, end - position, crc), end)
    file.sync()


def seal(
    disk: Disk, info: SegmentInfo, previous_chain: bytes, expected_chain: bytes | None = None
) -> Generator[None, None, SegmentInfo]:
    """Seal a segment that is no longer written to; raises `LogDamaged`.

    `expected_chain` is what the next segment's footer says about this one, if it has a footer.
    """
    file = disk.open(info.name)
    try:
        sealing = SegmentSealing(info, previous_chain)
        yield from sealing.read(file)
        if expected_chain and sealing.chain != expected_chain:
            raise LogDamaged(info.name, 0, "its entries do not match the chain of the next segment")
        summary, pieces = yield from sealing.footer()
        yield from write_footer(file, info.bytes, pieces)
    finally:
        file.close()
    return sealed_segment(summary)


def previous_chain_of(disk: Disk, info: SegmentInfo) -> bytes | None:
    """The chain of the previous segment, from the footer of a sealed one."""
    file = disk.open(info.name, read_only=True)
    try:
        return read_summary(file).previous_chain
    except Unreadable:
        return None
    finally:
        file.close()
