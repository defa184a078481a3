"""A disk in memory that can lose power, fail and fill up.

It separates durable content from what the operating system still holds in memory, and guarantees no
more than a real disk: content is safe after `File.sync`, names are safe after `Disk.sync`, a sector
of 512 bytes is never torn. Of everything else any part may survive a power cut, in any order. One
lock serves all files, so a writer and its readers may be in different threads.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random
from threading import Lock
from typing import Final, Literal

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
        """Return one of the many contents the disk may be left with."""
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
                    # Content removed by a truncation cannot come back if the truncation survived.
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


_TRACE_STEPS_MAX: Final = 10_000
_ENDLESS_BYTES: Final = 2**40

Operation = Literal[
    "create", "open", "read", "write", "truncate", "sync", "rename", "remove", "sync_names"
]
# Operations at which a power cut matters; others do not change the disk.
CHANGING: Final = ("create", "write", "truncate", "sync", "rename", "remove", "sync_names")


class PowerCut(BaseException):
    """A power cut. Not an `Exception`, so the program under test cannot catch it by accident."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on a disk; its text explains a failing test."""

    operation: Operation
    name: str
    position: int = 0
    size: int = 0

    def __str__(self) -> str:
        reach = f" {self.position}+{self.size}" if self.operation in ("read", "write") else ""
        return f"{self.operation} {self.name}{reach}".rstrip()


class FaultyDisk:
    """A folder in memory that implements `Disk`, with faults chosen by the caller.

    The usual test runs a program until a chosen operation, then checks how it recovers:

        disk = FaultyDisk()
        disk.crash_at(17)
        with pytest.raises(PowerCut):
            program(disk)
        check(disk.crash(seed=4))

    Every choice follows from the seed; `trace` lists the program's operations.
    """

    def __init__(
        self, files: Mapping[str, bytes] | None = None, *, capacity_bytes: int | None = None
    ) -> None:
        self.capacity_bytes = capacity_bytes
        """Capacity for the content of all files; `None`: unlimited. May be changed at any time."""
        self.operations = 0
        """The number of changing operations so far."""
        self.trace: deque[Step] = deque(maxlen=_TRACE_STEPS_MAX)
        """The latest operations of all kinds, oldest first."""
        self.open_files = 0
        """The number of open files."""
        self._names = {name: Content(name, content) for name, content in (files or {}).items()}
        self._durable_names = dict(self._names)
        self._renamings: list[_Renaming] = []
        self._faults: list[_Fault] = []
        self._cut_at = 0
        self._is_cut = False
        self._lock = Lock()

    def crash_at(self, operation: int) -> None:
        """Cut the power at a changing operation, 1 being the next: it raises `PowerCut`.

        So does every operation after it. The operation itself may take effect like any other
        unsynced one; a sync never does.
        """
        self._cut_at = self.operations + operation

    def crash(self, seed: int) -> FaultyDisk:
        """Return the disk as a machine may find it after a power cut now; this one is not changed.

        Seed 0 loses everything that was not synced, seed 1 loses nothing. Every other seed draws
        for each sector whether and which of the versions since the last sync survived, for each
        file which of its sizes, for each creation, renaming and removal whether it happened.
        """
        with self._lock:
            chance = Random(seed)
            survival = seed if seed in (0, 1) else chance.choice((0.1, 0.5, 0.9, chance.random()))
            names = dict(self._durable_names)
            for renaming in self._surviving_renamings(chance, survival):
                renaming.apply(names)
            return FaultyDisk(
                {
                    name: content.after_power_cut(chance, survival)
                    for name, content in sorted(names.items())
                },
                capacity_bytes=self.capacity_bytes,
            )

    def restart(self) -> FaultyDisk:
        """Return the disk as the next process finds it after this one was killed.

        Nothing is lost: the operating system still holds unsynced content. It is not durable
        until it is synced.
        """
        with self._lock:
            next_disk = FaultyDisk(capacity_bytes=self.capacity_bytes)
            twins = {id(one): one.copy() for one in self._contents()}
            next_disk._names = {name: twins[id(one)] for name, one in self._names.items()}
            next_disk._durable_names = {
                name: twins[id(one)] for name, one in self._durable_names.items()
            }
            next_disk._renamings = [
                _Renaming(one.old, one.new, twins[id(one.content)]) for one in self._renamings
            ]
            return next_disk

    def fail(
        self,
        operation: Operation,
        *,
        at: int = 1,
        error: int = errno.EIO,
        times: int = 1,
        written: int = 0,
        name: str = "*",
    ) -> None:
        """Let operations fail with an `OSError`, starting with the `at`-th from now.

        Only files whose names match the pattern `name` count. A failing write leaves the first
        `written` bytes behind, as a short write does. A failing sync of a file drops its sectors,
        as Linux does: later syncs succeed without writing them, until they are written again.
        """
        assert at >= 1, "the next operation is number 1"
        self._faults.append(_Fault(operation, name, at, times, error, written))

    def heal(self) -> None:
        """Stop injecting errors; the capacity stays."""
        self._faults.clear()

    def files(self) -> dict[str, bytes]:
        """Return names and contents as programs see them. Not an operation, so it never fails."""
        with self._lock:
            return {name: bytes(self._names[name].visible) for name in sorted(self._names)}

    def names(self) -> list[str]:
        with self._lock:
            self._assert_power()
            return sorted(self._names)

    def create(self, name: str) -> FaultyFile:
        with self._step("create", name) as fault:
            if name in self._names:
                raise _failure(errno.EEXIST, name)
            content = Content(name)
            if fault is None:
                self._rename(_Renaming(None, name, content))
        return self._opened(content, read_only=False)

    def open(self, name: str, *, read_only: bool = False) -> FaultyFile:
        with self._step("open", name):
            if name not in self._names:
                raise _failure(errno.ENOENT, name)
            content = self._names[name]
        return self._opened(content, read_only=read_only)

    def rename(self, old: str, new: str) -> None:
        with self._step("rename", old) as fault:
            if old not in self._names:
                raise _failure(errno.ENOENT, old)
            if fault is None:
                self._rename(_Renaming(old, new, self._names[old]))

    def has_no_name_for(self, content: Content) -> bool:
        """Was the file removed or replaced?"""
        with self._lock:
            return all(one is not content for one in self._names.values())

    def remove(self, name: str) -> None:
        with self._step("remove", name) as fault:
            if fault is None and name in self._names:
                self._rename(_Renaming(name, None, self._names[name]))

    def sync(self) -> None:
        with self._step("sync_names", "") as fault:
            if fault is None and not self._is_cut:
                self._durable_names = dict(self._names)
                self._renamings.clear()

    def free_bytes(self) -> int:
        with self._lock:
            self._assert_power()
            return max(0, self._room())

    def _opened(self, content: Content, *, read_only: bool) -> FaultyFile:
        self.open_files += 1
        return FaultyFile(self, content, read_only=read_only)

    @contextmanager
    def _step(
        self, operation: Operation, name: str, position: int = 0, size: int = 0
    ) -> Iterator[_Fault | None]:
        """Run one operation under the lock; its fault is chosen before, the error raised after."""
        with self._lock:
            self._assert_power()
            self.trace.append(Step(operation, name, position, size))
            if operation in CHANGING:
                self.operations += 1
                self._is_cut = self.operations == self._cut_at
            fault = self._fault(operation, name)
            yield fault
            self._assert_power()
            if fault is not None:
                raise _failure(fault.error, name)

    def _assert_power(self) -> None:
        if self._is_cut:
            raise PowerCut(f"the power was cut at operation {self.operations}: {self.trace[-1]}")

    def _fault(self, operation: Operation, name: str) -> _Fault | None:
        """The fault for this operation, if any; all matching faults count it."""
        found = None
        for fault in [*self._faults]:
            if fault.operation == operation and fnmatchcase(name, fault.name):
                fault.countdown -= 1
                if fault.countdown <= 0:
                    found = fault
                if fault.countdown <= 1 - fault.times:
                    self._faults.remove(fault)
        return found

    def _room(self) -> int:
        if self.capacity_bytes is None:
            return _ENDLESS_BYTES
        return self.capacity_bytes - sum(len(one.visible) for one in self._names.values())

    def _rename(self, renaming: _Renaming) -> None:
        renaming.apply(self._names)
        renaming.content.name = renaming.new or renaming.content.name
        self._renamings.append(renaming)

    def _surviving_renamings(self, chance: Random, survival: float) -> Iterator[_Renaming]:
        """Half of the seeds keep the order of a journal, half keep any subset."""
        is_ordered = chance.random() < 0.5 and survival not in (0, 1)
        count = chance.randint(0, len(self._renamings))
        for index, one in enumerate(self._renamings):
            survived = index < count if is_ordered else chance.random() < survival
            if survived:
                yield one

    def _contents(self) -> Iterator[Content]:
        yield from self._names.values()
        yield from self._durable_names.values()
        yield from (one.content for one in self._renamings)


class FaultyFile:
    """An open file of a `FaultyDisk`; implements `File`."""

    def __init__(self, disk: FaultyDisk, content: Content, *, read_only: bool) -> None:
        self._disk = disk
        self._content = content
        self._is_read_only = read_only
        self._is_open = True

    def read(self, size: int, position: int) -> bytes:
        with self._disk._step("read", self._content.name, position, size):
            self._assert_open()
            return bytes(self._content.visible[position : position + size])

    def write(self, data: bytes, position: int) -> None:
        with self._disk._step("write", self._content.name, position, len(data)) as fault:
            self._assert_writable()
            growth = position + len(data) - len(self._content.visible)
            lacking = growth - max(0, self._disk._room())
            if fault is not None:
                self._content.write(bytes(data[: fault.written]), position)
            elif growth > 0 and lacking > 0:
                self._content.write(bytes(data[: max(0, len(data) - lacking)]), position)
                raise _failure(errno.ENOSPC, self._content.name)
            else:
                self._content.write(bytes(data), position)

    def is_removed(self) -> bool:
        self._assert_open()
        return self._disk.has_no_name_for(self._content)

    def truncate(self, size: int) -> None:
        with self._disk._step("truncate", self._content.name, size) as fault:
            self._assert_writable()
            if fault is None:
                self._content.truncate(size)

    def size(self) -> int:
        with self._disk._lock:
            self._disk._assert_power()
            self._assert_open()
            return len(self._content.visible)

    def sync(self) -> None:
        with self._disk._step("sync", self._content.name) as fault:
            self._assert_open()
            if fault is not None:
                self._content.give_up()
            elif not self._disk._is_cut:
                self._content.sync()

    def close(self) -> None:
        # Closing works without power, so that clean-up code raises nothing.
        if self._is_open:
            self._is_open = False
            self._disk.open_files -= 1

    def _assert_open(self) -> None:
        if not self._is_open:
            raise _failure(errno.EBADF, self._content.name)

    def _assert_writable(self) -> None:
        self._assert_open()
        if self._is_read_only:
            raise _failure(errno.EBADF, self._content.name)


@dataclass(slots=True)
class _Fault:
    operation: Operation
    name: str
    countdown: int
    times: int
    error: int
    written: int


@dataclass(slots=True)
class _Renaming:
    """A change of names: a creation has no `old`, a removal no `new`."""

    old: str | None
    new: str | None
    content: Content

    def apply(self, names: dict[str, Content]) -> None:
        if self.old is not None and names.get(self.old) is self.content:
            del names[self.old]
        if self.new is not None:
            names[self.new] = self.content


def _failure(error: int, name: str) -> OSError:
    return OSError(error, os.strerror(error), name)
