"""Read backwards, a log holds what it holds read forwards, whatever state its segments are in.

* Sealed, waiting for their seal and active segments, in the process of the log and in another.
* Erased entries are there without their content.
* Before and after damage everything else is read; what is skipped is exactly what is damaged.
"""

from __future__ import annotations

from random import Random

import pytest

from signalhub.log.errors import LogDamaged
from signalhub.log.folder import Folder
from signalhub.log.reader import Reader
from signalhub.testing import FaultyDisk
from signalhub.wire.entry import StoredEntry
from tests.faults.healthy_folder import healthy_folder
from tests.support.memory.log import do_upkeep, entry, erase, open_log
from tests.support.volume import SEEDS, volume

LIVES = volume(SEEDS, 400) // 4


@pytest.mark.parametrize("seed", range(LIVES))
def test_both_directions_read_the_same(seed: int) -> None:
    dice = Random(seed)
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=dice.choice([2_000, 70_000, 2**18]))
    readers = [Reader(log), Reader.of_folder(disk)]
    for step in range(dice.randint(1, 60)):
        log.append([entry(0, body=dice.randbytes(dice.randrange(3_000))) for _ in range(3)])
        if step % 7 == 0:
            do_upkeep(log)
        if step % 11 == 0:
            agree(dice, readers, log.head)
    sealed = [info for info in log.segments if info.is_sealed]
    if sealed:
        info = dice.choice(sealed)
        erase(disk, info, dice.randrange(info.base, info.end))
        for reader in readers:
            reader.close()
    agree(dice, readers, log.head)


def agree(dice: Random, readers: list[Reader], head: int) -> None:
    bounds = sorted((dice.randint(0, head), dice.randint(0, head)))
    for reader in readers:
        expected = list(reader.scan(0))
        assert [one.offset for one in expected] == list(range(head))
        assert list(reader.scan_back()) == expected[::-1]
        assert list(reader.scan_back(bounds[1], bounds[0])) == expected[slice(*bounds)][::-1]


def test_a_folder_is_followed_without_reading_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(FaultyDisk())
    log.append([entry(1)])
    folder = Folder(log.disk)
    reader = Reader(folder)
    looks: list[str] = []
    monkeypatch.setattr(Folder, "refresh", lambda _: looks.append("again"))

    for seq in range(2, 500):
        log.append([entry(seq)])
        assert next(reader.scan_back()).seq == seq

    assert looks == []
    assert [one.seq for one in reader.read("orders", 1, 490, 5, 2**20)] == list(range(490, 495))


@pytest.mark.parametrize("seed", range(LIVES))
def test_damage_hides_nothing_but_itself(seed: int) -> None:
    dice = Random(seed)
    healthy = healthy_folder()
    whole = list(Reader.of_folder(FaultyDisk(healthy.files)).scan_back(None, healthy.first))
    name = dice.choice(healthy.sealed)
    files = (
        healthy.without(name)
        if seed % 5 == 0
        else healthy.with_flip(name, dice.randrange(8 * healthy.footers[name]))
    )
    reader = Reader.of_folder(FaultyDisk(files))
    first = reader._source.first
    end = int(name.partition(".")[0])

    down, gaps = read_down(reader, first)
    up, others = read_up(reader, first)

    assert sorted(gaps) == sorted(others)
    assert down == up[::-1]
    lost = {offset for low, high in gaps for offset in range(low, high + 1)}
    expected = [one for one in whole if one.offset >= first and one.offset not in lost]
    assert down == expected
    if first <= end:
        assert gaps, "a damaged segment is noticed unless it was the oldest and is gone"


def read_down(reader: Reader, first: int) -> tuple[list[StoredEntry], list[tuple[int, int]]]:
    """Everything from the head on, and the gaps, with both ends."""
    found: list[StoredEntry] = []
    gaps: list[tuple[int, int]] = []
    before = reader._source.head
    while before > first:
        try:
            for stored in reader.scan_back(before, first):
                found.append(stored)
                before = stored.offset
        except LogDamaged:
            below = reader.readable_before(before - 1)
            gaps.append((below, before - 1))
            before = below
    return found, gaps


def read_up(reader: Reader, first: int) -> tuple[list[StoredEntry], list[tuple[int, int]]]:
    found: list[StoredEntry] = []
    gaps: list[tuple[int, int]] = []
    offset, head = first, reader._source.head
    while offset < head:
        try:
            for stored in reader.scan(offset, head):
                found.append(stored)
                offset = stored.offset + 1
        except LogDamaged:
            above = reader.readable_after(offset)
            gaps.append((offset, above - 1))
            offset = above
    return found, gaps
