"""What a power cut leaves of the bytes of one file.

A sector is written as a whole or not at all. Between two syncs the operating system may write
sectors in any order and several times, so a sector may end as any of the versions it had; a size
counts on its own, and whatever lies beyond it is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

SECTOR_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Write:
    position: int
    data: bytes

    @property
    def end(self) -> int:
        return self.position + len(self.data)


@dataclass(frozen=True, slots=True)
class Truncate:
    end: int


class Content:
    """The bytes of one file: as programs see them, and as they are on the disk."""

    __slots__ = ("durable", "name", "pending", "stuck", "visible")

    def __init__(self, name: str, durable: bytes | bytearray = b"") -> None:
        self.name = name
        self.durable = bytearray(durable)
        self.visible = bytearray(durable)
        self.pending: list[Write | Truncate] = []
        # Sectors that a failed sync has given up: no sync writes them until they change again.
        self.stuck: set[int] = set()

    def copy(self) -> Content:
        twin = Content(self.name, self.durable)
        twin.visible = bytearray(self.visible)
        twin.pending = [*self.pending]
        twin.stuck = {*self.stuck}
        return twin

    def write(self, data: bytes, position: int) -> None:
        if data:
            self._change(Write(position, data))
            self.stuck.difference_update(_sectors(position, position + len(data)))

    def truncate(self, size: int) -> None:
        self._change(Truncate(size))

    def _change(self, change: Write | Truncate) -> None:
        self.pending.append(change)
        _apply(self.visible, change)

    def sync(self) -> None:
        size = len(self.visible)
        lost = {at: _sector(self.durable, at) for at in self.stuck if at * SECTOR_BYTES < size}
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()
        for at, saved in lost.items():
            self.pending.append(Write(at * SECTOR_BYTES, _sector(self.visible, at, size)))
            _apply(self.durable, Write(at * SECTOR_BYTES, saved))
        _apply(self.durable, Truncate(size))

    def give_up(self) -> None:
        for change in self.pending:
            if isinstance(change, Write):
                self.stuck.update(_sectors(change.position, change.end))

    def after_power_cut(self, chance: Random, survival: float) -> bytes:
        """One of the many contents the disk may be left with."""
        size, resized = self._surviving_size(chance, survival)
        image = bytearray(self.durable)
        versions: dict[int, list[bytes]] = {}
        for index, change in enumerate(self.pending):
            if isinstance(change, Write):
                _apply(image, change)
                for at in _sectors(change.position, change.end):
                    known = versions.setdefault(at, [_sector(self.durable, at)])
                    known.append(_sector(image, at))
            else:
                removed = _sectors(change.end, len(image))
                _apply(image, change)
                if index <= resized:
                    # What a truncation removed cannot come back once the truncation survived.
                    versions.update((at, [_sector(image, at)]) for at in removed)
        kept = bytearray(self.durable)
        for at, (oldest, *newer) in versions.items():
            survivor = oldest
            if newer and chance.random() < survival:
                survivor = newer[-1] if survival == 1 else chance.choice(newer)
            _apply(kept, Write(at * SECTOR_BYTES, survivor))
        _apply(kept, Truncate(size))
        return bytes(kept)

    def _surviving_size(self, chance: Random, survival: float) -> tuple[int, int]:
        """A size the file had since the last sync, and the change that gave it."""
        size = len(self.durable)
        sizes = [(size, -1)]
        for index, change in enumerate(self.pending):
            if isinstance(change, Truncate) or change.end > size:
                size = change.end
                sizes.append((size, index))
        if survival in (0, 1):
            return sizes[-1 if survival else 0]
        return chance.choice(sizes)


def _apply(content: bytearray, change: Write | Truncate) -> None:
    if change.end > len(content):
        content.extend(bytes(change.end - len(content)))
    if isinstance(change, Truncate):
        del content[change.end :]
    else:
        content[change.position : change.end] = change.data


def _sectors(begin: int, end: int) -> range:
    return range(begin // SECTOR_BYTES, -(-end // SECTOR_BYTES))


def _sector(content: bytearray, at: int, size: int | None = None) -> bytes:
    """A whole sector, or what of it lies below a size."""
    begin = at * SECTOR_BYTES
    if size is not None:
        return bytes(content[begin : min(begin + SECTOR_BYTES, size)])
    return bytes(content[begin : begin + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")
