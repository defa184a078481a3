"""Whatever a crash makes of the end of the last segment: cut at the last good batch, kept aside.

The tails here were written and never published, so cutting them keeps the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from signalhub.log.log import Log
from signalhub.log.reader import Reader
from signalhub.log.record import ENTRY_HEADER_BYTES, HEADER_BYTES
from signalhub.log.recovery import recover
from signalhub.log.segment import BATCHES_BEGIN
from signalhub.testing import FaultyDisk, PowerCut
from signalhub.testing.disk import SECTOR_BYTES
from signalhub.wire.entry import Entry
from tests.faults.healthy_folder import flipped
from tests.support.memory.log import as_entry
from tests.support.memory.log_workload import (
    EPOCH,
    Ledger,
    Sync,
    make_entries,
    opened,
)
from tests.support.volume import FAULTS, SEEDS, thinned, volume

TAIL_BYTES = 8 * 1024
SCRAMBLES = volume(2_000, 20_000)
# Every bit in `make soak`; otherwise a prime, so that each bit of a byte has its turn.
STRIDE = volume(7, 1)
SHARES = 4
ROOM = 256 * 1024


@dataclass(frozen=True)
class Scene:
    """A folder with a published beginning and an unpublished tail in its last segment."""

    files: dict[str, bytes]
    segment: str
    entries: tuple[Entry, ...]
    boundaries: tuple[tuple[int, int], ...]
    """Where each batch of the tail begins, and the offset it begins with; then the end of all."""

    @property
    def content(self) -> bytes:
        return self.files[self.segment]

    @property
    def end(self) -> int:
        return self.boundaries[-1][0]

    def batch_at(self, position: int) -> tuple[int, int]:
        """The batch that holds a byte: where it begins, and its first offset."""
        return max(one for one in self.boundaries if one[0] <= position)

    def disk_with(self, content: bytes) -> FaultyDisk:
        return FaultyDisk(self.files | {self.segment: content})


def make_scene(batches: list[list[Entry]], published: int, *, is_prepared: bool = False) -> Scene:
    """Write batches, of which only the first `published` have ever been shown to anybody."""
    disk = FaultyDisk()
    log = reopened(disk)
    for entries in batches[:published]:
        log.append(entries)
    log.sync()
    head = disk.files().get("head", b"")
    boundaries = [(log.segments[-1].bytes, log.head)]
    for entries in batches[published:]:
        log.append(entries)
        boundaries.append((log.segments[-1].bytes, log.head))
    name = log.segments[-1].name
    content = disk.files()[name][: boundaries[-1][0]] + bytes(ROOM // 8 if is_prepared else 0)
    return Scene(
        disk.files() | {"head": head, name: content},
        name,
        tuple(entry for entries in batches for entry in entries),
        tuple(boundaries),
    )


@cache
def long_tail(*, is_prepared: bool = False) -> Scene:
    """More than 8 KiB of unpublished batches; the last three hold one, two and three entries."""
    rng = Random(11)
    ledger = Ledger()
    batches = []
    for count in (3, 1, 2, 8, 5, 8, 3, 8, 1, 4, 8, 2):
        batches.append(make_entries(rng, ledger, count, 1_760_000_000_000))
        ledger.submitted += batches[-1]
    batches += [
        [Entry(2, "orders", 9, seq, 5, rng.randbytes(60)) for seq in range(count)]
        for count in (1, 2, 3)
    ]
    scene = make_scene(batches, 3, is_prepared=is_prepared)
    assert scene.end - scene.boundaries[0][0] > TAIL_BYTES
    return scene


def assert_cut(scene: Scene, content: bytes, position: int, head: int) -> None:
    """Recovery cuts exactly there, keeps the cut bytes, and changes nothing else."""
    disk = scene.disk_with(content)
    expected = disk.files()

    found = recover(disk, repair=True)

    after = disk.files()
    assert found.damage is None
    assert (found.head, found.epoch, found.epoch_changed) == (head, EPOCH, False)
    rest = content[position:]
    if rest.strip(b"\0"):
        assert found.torn is not None
        assert (found.torn.segment, found.torn.position) == (scene.segment, position)
        assert found.torn.saved_as is not None
        kept = expected[found.torn.saved_as] = after[found.torn.saved_as]
        assert len(kept) == found.torn.bytes
        assert rest.startswith(kept)
        assert rest.rstrip(b"\0") == kept.rstrip(b"\0")
    else:
        assert found.torn is None
    assert after[scene.segment][:position] == content[:position]
    assert not after[scene.segment][position:].strip(b"\0")
    unchanged = after.keys() - {scene.segment, "head"}
    assert {name: after[name] for name in unchanged} == {
        name: data for name, data in expected.items() if name not in (scene.segment, "head")
    }


def first_difference(scene: Scene, content: bytes) -> int:
    """The first byte that is not what was written, or missing; the end if there is none."""
    end = min(len(content), scene.end)
    pairs = enumerate(zip(content[:end], scene.content, strict=False))
    return next((at for at, (now, then) in pairs if now != then), end)


def reopened(disk: FaultyDisk, sync: Sync = "os") -> Log:
    return opened(disk, sync=sync, segment_bytes=ROOM)


@pytest.mark.parametrize("share", thinned(range(SHARES), 1))
def test_every_truncation_of_the_last_8_kib_is_cut_at_the_last_good_batch(share: int) -> None:
    scene = long_tail()

    for size in range(scene.end - TAIL_BYTES + share, scene.end, SHARES):
        position, head = scene.batch_at(size)
        assert_cut(scene, scene.content[:size], position, head)


def test_every_whole_batch_is_kept_and_reads_back_as_it_was_written() -> None:
    scene = long_tail()

    for position, head in scene.boundaries:
        log = reopened(scene.disk_with(scene.content[: position + 7]))
        assert [as_entry(one) for one in Reader(log).scan(0)] == [*scene.entries[:head]]


@pytest.mark.parametrize("is_prepared", [False, True])
def test_every_flipped_bit_of_the_last_three_records_is_noticed(is_prepared: bool) -> None:
    scene = long_tail(is_prepared=is_prepared)
    begin = scene.boundaries[-4][0]

    assert_cut(scene, scene.content, *scene.boundaries[-1])
    for bit in range(8 * begin, 8 * scene.end, STRIDE):
        position, head = scene.batch_at(bit // 8)
        assert_cut(scene, flipped(scene.content, bit), position, head)


def scrambled(scene: Scene, rng: Random) -> bytes:
    """The tail with some of its sectors lost, mixed up, misplaced or full of noise."""
    begin = scene.boundaries[0][0]
    content = bytearray(scene.content)
    sectors = range(begin // SECTOR_BYTES, -(-scene.end // SECTOR_BYTES))
    for at in rng.sample(sectors, rng.randint(1, 6)):
        own = slice(max(begin, at * SECTOR_BYTES), min((at + 1) * SECTOR_BYTES, len(content)))
        size = own.stop - own.start
        other = rng.randrange(0, len(content) - size)
        content[own] = rng.choice(
            (
                bytes(size),
                rng.randbytes(size),
                scene.content[other : other + size],
                scene.content[other // SECTOR_BYTES * SECTOR_BYTES :][:size],
                b"\xff" * size,
            )
        ).ljust(size, b"\0")
    return bytes(content)


@pytest.mark.parametrize("share", range(SHARES))
def test_scrambled_sectors_are_never_taken_for_entries(share: int) -> None:
    scene = long_tail(is_prepared=True)
    rng = Random(share)
    seen = set()

    for _ in range(SCRAMBLES // SHARES):
        content = scrambled(scene, rng)
        position, head = scene.batch_at(first_difference(scene, content))
        assert_cut(scene, content, position, head)
        seen.add(head)

    assert len(seen) > 8


def equal_batches(count: int, mark: bytes) -> list[list[Entry]]:
    """Batches of the same size, so that one fits exactly where another was."""
    return [[Entry(2, "orders", 1, seq + 1, seq, mark * 100)] for seq in range(count)]


def test_a_good_batch_in_a_wrong_place_ends_the_log() -> None:
    scene = make_scene(equal_batches(6, b"x"), 1)
    starts = [position for position, _ in scene.boundaries]
    size = starts[1] - starts[0]

    for place, (position, head) in enumerate(scene.boundaries[:-1]):
        for source in [starts[0] - size, *starts[:-1]]:
            content = bytearray(scene.content)
            content[position : position + size] = scene.content[source : source + size]
            if source != starts[place]:
                assert_cut(scene, bytes(content), position, head)


def whole_sectors(count: int, mark: bytes) -> list[list[Entry]]:
    """Batches that fill sectors exactly, so that a power cut may replace any one of them alone."""
    overhead = HEADER_BYTES + ENTRY_HEADER_BYTES + len("orders")
    sizes = [SECTOR_BYTES - overhead] * count
    sizes[0] -= BATCHES_BEGIN
    return [[Entry(2, "orders", 1, seq, 0, mark * size)] for seq, size in enumerate(sizes, start=1)]


@pytest.mark.parametrize("sync", ["always", "os"])
def test_what_was_cut_never_comes_back(sync: Sync) -> None:
    """New batches exactly where the old ones were, and power cuts at every operation."""
    scene = make_scene(whole_sectors(6, b"x"), 2)
    broken = flipped(scene.content, 8 * (scene.boundaries[0][0] + 50))
    fresh = whole_sectors(6, b"y")
    for operation in range(1, 200):
        disk = scene.disk_with(broken)
        disk.crash_at(operation)
        submitted = [*scene.entries[:2]]
        try:
            log = reopened(disk, sync)
            for entries in fresh[2:]:
                submitted += entries
                log.append(entries)
            log.close()
            break
        except PowerCut:
            pass
        for seed in range(volume(FAULTS, 60)):
            found = reopened(disk.crash(seed), sync)
            stored = [as_entry(one) for one in Reader(found).scan(0)]
            assert stored == submitted[: found.head]
    else:
        pytest.fail("the log never came to an end")


def test_torn_bytes_are_safe_before_they_are_cut() -> None:
    """Wherever recovery is interrupted, they are in the segment or in a file of their own."""
    scene = make_scene(equal_batches(4, b"x"), 1)
    content = scene.content[:-40]
    position, _ = scene.batch_at(len(content))
    torn = content[position:]
    for operation in range(1, 100):
        disk = scene.disk_with(content)
        disk.crash_at(operation)
        is_complete = True
        try:
            recover(disk, repair=True)
        except PowerCut:
            is_complete = False
        for seed in range(volume(FAULTS, 40)):
            files = disk.crash(seed).files()
            saved = [files[name] for name in files if name.endswith(".torn")]
            assert files[scene.segment] == content or torn in saved
        if is_complete:
            return
    pytest.fail("the recovery never came to an end")


bodies = st.one_of(st.binary(max_size=80), st.integers(0, 1_200).map(bytes), st.just(b"SH" * 40))
written = st.lists(st.lists(bodies, min_size=1, max_size=3), min_size=1, max_size=6)
wounds = st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=600)), max_size=3)


@hypothesis_settings(max_examples=volume(SEEDS, 400))
@given(written, wounds, st.floats(0, 1), st.booleans())
def test_any_tail_is_cut_where_it_first_differs_from_what_was_written(
    texts: list[list[bytes]],
    hits: list[tuple[float, bytes]],
    survived: float,
    is_prepared: bool,
) -> None:
    batches = [[Entry(2, "s", 1, 0, 0, body) for body in batch] for batch in texts]
    scene = make_scene(batches, 0, is_prepared=is_prepared)
    begin = scene.boundaries[0][0]
    content = bytearray(scene.content)
    for where, noise in hits:
        at = begin + int(where * (scene.end - begin))
        content[at : at + len(noise)] = noise[: len(content) - at]
    del content[begin + int(survived * (len(content) - begin)) :]
    changed = first_difference(scene, bytes(content))
    position, head = scene.batch_at(changed)
    torn = scene.content[changed : scene.end]
    if changed < scene.end and not torn.strip(b"\0") and not content[changed:].strip(b"\0"):
        # Zeros written and lost are zeros again, if there is room for them.
        position, head = scene.batch_at(len(content))

    assert_cut(scene, bytes(content), position, head)
