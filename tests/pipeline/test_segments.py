"""Plans over the log: which bytes, in which pieces, up to where."""

from __future__ import annotations

from pathlib import Path

import pytest

from signalhub.log.errors import EntriesGone, LogDamaged
from signalhub.log.folder import look
from signalhub.log.segment import segment_name
from signalhub.pipeline.source.columns import read_columns
from signalhub.pipeline.source.plan import LogPosition, ReadPlan, Segments, log_of
from signalhub.wire.errors import SettingsError
from tests.pipeline.scene import LogScene


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    """A log of several small segments."""
    scene = LogScene(tmp_path, segment_bytes=2**16)
    scene.publish(2_000)
    return scene


def offsets(scene: LogScene, plan: ReadPlan) -> list[int]:
    """What the slices of a plan hold."""
    found: list[int] = []
    for one in plan.slices:
        for columns in read_columns(scene.disk, 0, one):
            found += columns["offset"].to_pylist()
    return found


def head_of(segments: Segments) -> LogPosition:
    head = segments.published()
    assert head is not None
    return head


def test_a_plan_holds_every_entry_once_and_in_order(scene: LogScene) -> None:
    segments = Segments(scene.disk)

    plan = segments.plan(segments.first, head_of(segments))

    assert offsets(scene, plan) == list(range(2_000))
    assert plan.end == LogPosition(segments.first.epoch, 2_000)
    assert len({one.segment for one in plan.slices}) > 1


def test_a_plan_can_begin_and_end_within_a_batch(scene: LogScene) -> None:
    segments = Segments(scene.disk)
    start = LogPosition(segments.first.epoch, 137)

    plan = segments.plan(start, head_of(segments), entries_max=55)

    assert offsets(scene, plan) == list(range(137, 192))
    assert plan.end.offset == 192


def test_the_next_plan_goes_on_where_the_last_one_ended(scene: LogScene) -> None:
    segments = Segments(scene.disk)
    position, found = segments.first, []
    while position != head_of(segments):
        plan = segments.plan(position, head_of(segments), entries_max=333)
        found += offsets(scene, plan)
        position = plan.end

    assert found == list(range(2_000))


def test_a_limit_in_bytes_ends_a_plan_early(scene: LogScene) -> None:
    segments = Segments(scene.disk)

    plan = segments.plan(segments.first, head_of(segments), bytes_max=20_000, slice_bytes=4_000)

    size = sum(one.end - one.begin for one in plan.slices)
    assert 20_000 <= size < 20_000 + 2 * 2**14
    assert offsets(scene, plan) == list(range(plan.end.offset))


def test_slices_have_the_size_that_was_asked_for(scene: LogScene) -> None:
    segments = Segments(scene.disk)

    fine = segments.plan(segments.first, head_of(segments), slice_bytes=1)
    coarse = segments.plan(segments.first, head_of(segments))

    assert len(fine.slices) == 20
    assert len(coarse.slices) < len(fine.slices)
    assert offsets(scene, fine) == offsets(scene, coarse)


def test_what_is_appended_later_is_in_the_next_plan_only(scene: LogScene) -> None:
    segments = Segments(scene.disk)
    first = segments.plan(segments.first, head_of(segments))
    scene.publish(500)

    later = segments.plan(first.end, head_of(segments))

    assert offsets(scene, later) == list(range(2_000, 2_500))


def test_nothing_beyond_the_head_is_planned(scene: LogScene) -> None:
    segments = Segments(scene.disk)
    head = LogPosition(segments.first.epoch, 150)

    plan = segments.plan(segments.first, head)

    assert offsets(scene, plan) == list(range(150))


def test_a_sealed_segment_is_entered_through_its_footer(scene: LogScene) -> None:
    scene.seal()
    segments = Segments(scene.disk)

    plan = segments.plan(LogPosition(segments.first.epoch, 150), head_of(segments), entries_max=10)

    assert offsets(scene, plan) == list(range(150, 160))


def test_a_plan_ends_in_front_of_damage_and_the_next_one_names_it(scene: LogScene) -> None:
    segments = Segments(scene.disk)
    whole = segments.plan(segments.first, head_of(segments))
    victim = whole.slices[1]
    path = scene.data / "log" / victim.segment
    damaged = bytearray(path.read_bytes())
    damaged[victim.end - 10] ^= 1
    path.write_bytes(damaged)

    plan = Segments(scene.disk).plan(segments.first, whole.end)

    assert plan.end.offset >= victim.from_offset
    assert offsets(scene, plan) == list(range(plan.end.offset))
    with pytest.raises(LogDamaged, match=victim.segment):
        Segments(scene.disk).plan(plan.end, whole.end)


def test_entries_that_retention_has_removed_are_named(scene: LogScene) -> None:
    segments = Segments(scene.disk)
    start = segments.first
    (scene.data / "log" / segment_name(0)).unlink()

    with pytest.raises(EntriesGone) as gone:
        Segments(scene.disk).plan(start, head_of(segments))

    assert gone.value.first == Segments(scene.disk).first.offset > 0


def test_a_missing_segment_between_others_is_damage(scene: LogScene) -> None:
    segments = Segments(scene.disk)
    names = sorted(path.name for path in (scene.data / "log").glob("*.log"))
    (scene.data / "log" / names[1]).unlink()

    plan = Segments(scene.disk).plan(segments.first, head_of(segments))

    assert plan.end.offset == int(names[1].removesuffix(".log"))
    with pytest.raises(LogDamaged, match=names[1]):
        Segments(scene.disk).plan(plan.end, head_of(segments))


def test_a_folder_without_a_log_says_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="holds no log"):
        log_of(tmp_path)


def test_a_segment_begun_anew_in_another_epoch_is_not_taken_for_the_old_one(
    tmp_path: Path,
) -> None:
    scene = LogScene(tmp_path, segment_bytes=2**16)
    # Until the last segment holds one batch, which is then lost with everything in it.
    while (last := look(scene.disk).segments[-1]).base == 0 or last.end - last.base != 100:
        scene.publish(100)
    segments = Segments(scene.disk)
    before = segments.plan(segments.first, head_of(segments)).end
    scene.lose_the_end()
    scene.publish(30)

    plan = segments.plan(LogPosition(before.epoch, last.base), head_of(segments))

    assert plan.end == LogPosition(before.epoch + 1, last.base + 30)
    assert offsets(scene, plan) == list(range(last.base, last.base + 30))
