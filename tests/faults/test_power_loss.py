"""Power is cut at every operation of a log's life; what was acknowledged is there afterwards.

The scripted life holds everything a log does: appends of all sizes, rolling, preparing, sealing,
publishing the head, retention, reopening. The disk keeps any part of what was not synced.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from random import Random

import pytest

from signalhub.log.head import read_head
from signalhub.log.reader import Reader
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
    go_on,
    live,
    survive,
)
from tests.support.volume import FAULTS, thinned, volume

SCRIPT = 7
STEPS = 75
SHARES = 8
IMAGES_MIN = 2_000
RELAXED: tuple[Sync, ...] = ("interval", "os")


@cache
def operations(sync: Sync = "always") -> int:
    """How many operations the scripted life takes when nothing goes wrong."""
    disk, ledger = FaultyDisk(), Ledger()
    live(disk, ledger, SCRIPT, STEPS, sync)
    assert_sound(disk, ledger)
    return disk.operations


def cut_at(operation: int, sync: Sync = "always") -> tuple[FaultyDisk, Ledger]:
    """The scripted life until the power fails."""
    disk, ledger = FaultyDisk(), Ledger()
    disk.crash_at(operation)
    with pytest.raises(PowerCut):
        live(disk, ledger, SCRIPT, STEPS, sync)
    return disk, ledger


def explain(error: BaseException, disk: FaultyDisk, operation: int, seed: int) -> None:
    error.add_note(f"power cut at operation {operation} ({disk.trace[-1]}), seed {seed}")


def test_the_scripted_life_does_everything_a_log_does() -> None:
    disk, ledger = FaultyDisk(), Ledger()
    live(disk, ledger, SCRIPT, STEPS)

    assert disk.operations >= 200
    assert {step.operation for step in disk.trace} >= set(CHANGING)
    assert ledger.removed > 0
    assert any(step.name == "head" for step in disk.trace)
    assert any(name.endswith(".footer") for name in disk.names())
    assert disk.open_files == 0


@pytest.mark.parametrize("share", thinned(range(SHARES), 2))
def test_no_acknowledged_entry_is_lost_wherever_the_power_is_cut(share: int) -> None:
    seeds = -(-IMAGES_MIN // operations())
    for operation in range(1 + share, operations() + 1, SHARES):
        disk, ledger = cut_at(operation)
        for seed in [0, 1, *range(operation * 1_000, operation * 1_000 + seeds)]:
            try:
                image, found = disk.crash(seed), copy_of(ledger)
                recovery = survive(image, found)
                assert found.epoch == EPOCH
                assert not recovery.epoch_changed
                go_on(image, found)
            except BaseException as error:
                explain(error, disk, operation, seed)
                raise


@pytest.mark.parametrize("share", thinned(range(SHARES), 2))
def test_a_second_power_cut_during_recovery_is_survived(share: int) -> None:
    for operation in range(1 + share, operations() + 1, SHARES):
        disk, ledger = cut_at(operation)
        seed = operation
        for second in range(1, 100):
            image, found = disk.crash(seed), copy_of(ledger)
            image.crash_at(second)
            try:
                recover(image, repair=True)
                break
            except PowerCut:
                pass
            try:
                wreck = image.crash(seed + second)
                survive(wreck, found)
                go_on(wreck, found)
            except BaseException as error:
                explain(error, image, second, seed + second)
                explain(error, disk, operation, seed)
                raise


@pytest.mark.parametrize("share", thinned(range(SHARES), 2))
def test_what_a_killed_process_left_is_made_durable_before_it_is_built_upon(share: int) -> None:
    """The system remembers what was never synced, until the power fails after the restart."""
    for operation in range(1 + share, operations() + 1, SHARES):
        disk, ledger = cut_at(operation)
        disk = disk.restart()
        survive(disk, ledger)
        Run(disk, ledger, Random(operation)).append(1)
        for seed in (0, operation, operation + 1):
            try:
                assert survive(disk.crash(seed), copy_of(ledger)).head == len(ledger.submitted)
            except BaseException as error:
                explain(error, disk, operation, seed)
                raise


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


@pytest.mark.parametrize("sync", RELAXED)
@pytest.mark.parametrize("share", thinned(range(SHARES), 2))
def test_a_log_that_syncs_late_is_a_prefix_and_owns_up_to_what_it_lost(
    share: int, sync: Sync
) -> None:
    """A new epoch, exactly when something was gone that somebody may have read."""
    for operation in range(1 + share, operations(sync) + 1, SHARES):
        disk, ledger = cut_at(operation, sync)
        for seed in (0, 1, operation, operation + 1, operation + 2):
            try:
                image, found = disk.crash(seed), copy_of(ledger)
                published = read_head(image)
                shown = max(published.durable, published.shown) if published else 0
                recovery = survive(image, found, sync=sync)
                assert recovery.epoch_changed == (recovery.head < shown)
                assert found.epoch == EPOCH + recovery.epoch_changed
                if recovery.epoch_changed:
                    assert (recovery.lost_from, recovery.lost_to) == (recovery.head, shown)
                go_on(image, found, sync=sync)
            except BaseException as error:
                explain(error, disk, operation, seed)
                raise


@pytest.mark.parametrize("sync", RELAXED)
def test_late_syncs_lose_something_shown_now_and_then(sync: Sync) -> None:
    """Otherwise the test above would prove little."""
    verdicts = [
        recover(cut_at(operation, sync)[0].crash(seed), repair=False).epoch_changed
        for operation in range(1, operations(sync) + 1, 2)
        for seed in range(operation, operation + 4)
    ]

    assert verdicts.count(True) >= 3
    assert verdicts.count(False) >= 3


def test_synced_entries_survive_whatever_the_sync_setting() -> None:
    for sync in RELAXED:
        disk, ledger = FaultyDisk(), Ledger()
        run = Run(disk, ledger, Random(3), sync=sync)
        for _ in range(10):
            run.append(2)
        run.sync()
        run.append(2)

        for seed in range(50):
            assert survive(disk.crash(seed), copy_of(ledger), sync=sync).head >= 20


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


def test_readers_of_another_process_stay_below_the_published_head() -> None:
    disk, ledger = FaultyDisk(), Ledger()
    run = Run(disk, ledger, Random(5), sync="interval")
    run.append(3)
    run.sync()
    run.append(3)

    assert [one.offset for one in Reader.of_folder(disk).scan(0)] == [0, 1, 2]
