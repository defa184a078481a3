"""Power is cut at every operation of a log; what was acknowledged is there afterwards.

The scripted run holds everything a log does: appends of all sizes, rolling, preparing, sealing,
publishing the head, retention, reopening. The disk keeps any part of what was not synced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from random import Random

import pytest

from signalhub.log.head import read_head
from signalhub.log.recovery import recover
from signalhub.testing import FaultyDisk, PowerCut
from signalhub.testing.disk import CHANGING
from tests.support.memory.log_workload import (
    EPOCH,
    Ledger,
    Run,
    Sync,
    assert_sound,
    copy_of,
    explained,
    go_on,
    live,
    survive,
)
from tests.support.volume import FAULTS, thinned, volume

SCRIPT = 7
STEPS = 75
SHARES = 8
IMAGES_MIN = 2_000

shared = pytest.mark.parametrize("share", thinned(range(SHARES), 2))
relaxed = pytest.mark.parametrize("sync", ["interval", "os"])


@cache
def operations(sync: Sync = "always") -> int:
    """How many operations the scripted run takes when nothing goes wrong."""
    disk, ledger = FaultyDisk(), Ledger()
    live(disk, ledger, SCRIPT, STEPS, sync)
    assert_sound(disk, ledger)
    return disk.operations


def cut_at(operation: int, sync: Sync = "always") -> tuple[FaultyDisk, Ledger]:
    """The scripted run until the power fails."""
    disk, ledger = FaultyDisk(), Ledger()
    disk.crash_at(operation)
    with pytest.raises(PowerCut):
        live(disk, ledger, SCRIPT, STEPS, sync)
    return disk, ledger


def cuts(share: int, sync: Sync = "always") -> Iterator[tuple[int, FaultyDisk, Ledger]]:
    """The power fails at each operation of a share in turn."""
    for operation in range(1 + share, operations(sync) + 1, SHARES):
        yield operation, *cut_at(operation, sync)


def test_the_scripted_run_does_everything_a_log_does() -> None:
    disk, ledger = FaultyDisk(), Ledger()
    live(disk, ledger, SCRIPT, STEPS)

    assert disk.operations >= 200
    assert {step.operation for step in disk.trace} >= set(CHANGING)
    assert ledger.removed > 0
    assert any(step.name == "head" for step in disk.trace)
    assert any(name.endswith(".footer") for name in disk.names())
    assert disk.open_files == 0


@shared
def test_no_acknowledged_entry_is_lost_wherever_the_power_is_cut(share: int) -> None:
    seeds = -(-IMAGES_MIN // operations())
    for operation, disk, ledger in cuts(share):
        for seed in [0, 1, *range(operation * 1_000, operation * 1_000 + seeds)]:
            with explained("power cut at operation", operation, disk.trace[-1], "seed", seed):
                image, found = disk.crash(seed), copy_of(ledger)
                recovery = survive(image, found)
                assert (found.epoch, recovery.epoch_changed) == (EPOCH, False)
                go_on(image, found)


@shared
def test_a_second_power_cut_during_recovery_is_survived(share: int) -> None:
    for operation, disk, ledger in cuts(share):
        for second in range(1, 100):
            image, found = disk.crash(operation), copy_of(ledger)
            image.crash_at(second)
            try:
                recover(image, repair=True)
                break
            except PowerCut:
                pass
            with explained("power cut at operation", operation, "and in recovery at", second):
                wreck = image.crash(operation + second)
                survive(wreck, found)
                go_on(wreck, found)


@shared
def test_what_a_killed_process_left_is_made_durable_before_it_is_built_upon(share: int) -> None:
    """The system remembers what was never synced, until the power fails after the restart."""
    for operation, cut, ledger in cuts(share):
        disk = cut.restart()
        survive(disk, ledger)
        Run(disk, ledger, Random(operation)).append(1)
        for seed in (0, operation, operation + 1):
            with explained("killed at operation", operation, "seed", seed):
                assert survive(disk.crash(seed), copy_of(ledger)).head == len(ledger.submitted)


@pytest.mark.parametrize("seed", range(volume(FAULTS, 40)))
def test_a_life_of_power_cuts_and_kills_loses_nothing(seed: int) -> None:
    """What a killed process left unsynced was shown after the restart, so it must stay."""
    rng = Random(seed)
    disk, ledger = FaultyDisk(), Ledger()
    for _ in range(12):
        disk.crash_at(rng.randint(1, 90))
        with suppress(PowerCut):
            live(disk, ledger, rng.randrange(2**32), 40)
        is_kill = rng.random() < 0.4
        disk = disk.restart() if is_kill else disk.crash(rng.randrange(2**32))
        survive(disk, ledger)
        assert ledger.epoch == EPOCH

    go_on(disk, ledger)


@relaxed
@shared
def test_a_log_that_syncs_late_is_a_prefix_and_reports_what_it_lost(share: int, sync: Sync) -> None:
    """A new epoch, exactly when something was lost that somebody may have read."""
    changes = []
    for operation, disk, ledger in cuts(share, sync):
        seeds = (0, 1, operation, operation + 1)
        for number, image in enumerate([*map(disk.crash, seeds), with_nothing_but_its_head(disk)]):
            with explained("power cut at operation", operation, disk.trace[-1], "image", number):
                found = copy_of(ledger)
                published = read_head(image)
                shown = max(published.durable, published.shown) if published else 0
                recovery = survive(image, found, sync=sync)
                assert recovery.epoch_changed == (recovery.head < shown)
                assert found.epoch == EPOCH + recovery.epoch_changed
                if recovery.epoch_changed:
                    assert (recovery.lost_from, recovery.lost_to) == (recovery.head, shown)
                go_on(image, found, sync=sync)
                changes.append(recovery.epoch_changed)
    # Otherwise this would prove little.
    assert min(changes.count(True), changes.count(False)) >= 3


def with_nothing_but_its_head(disk: FaultyDisk) -> FaultyDisk:
    """Everything that was not synced is lost but the published head."""
    present = disk.restart().files()
    return FaultyDisk(
        disk.crash(0).files() | {name: present[name] for name in present if name == "head"}
    )


def test_the_new_epoch_is_durable_before_anything_is_appended() -> None:
    """A cut below the published head, then power cuts at every step of the recovery."""
    disk, ledger = FaultyDisk(), Ledger()
    run = Run(disk, ledger, Random(3), sync="os")
    run.sync()
    for _ in range(6):
        run.append(2)
    lost = disk.crash(0).files() | {"head": disk.files()["head"]}
    epochs = set()
    for second in range(1, 100):
        image = FaultyDisk(lost)
        image.crash_at(second)
        try:
            recovery = recover(image, repair=True)
            assert recovery.epoch_changed
            assert (recovery.head, recovery.lost_to) == (0, 12)
            break
        except PowerCut:
            pass
        for seed in range(20):
            wreck = image.crash(seed)
            again = recover(wreck, repair=True)
            epochs.add(again.epoch)
            assert again.head == 0
            assert recover(wreck, repair=False).epoch == again.epoch
    assert epochs == {EPOCH + 1}, "recorded once, however often the recovery was interrupted"
