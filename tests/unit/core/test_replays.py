"""What the hub remembers of replays, and what it has forgotten."""

from __future__ import annotations

import pytest

from signalhub.core.replay import Replays, original_of
from signalhub.wire.entry import ReplayOrigin
from signalhub.wire.errors import Code, Refusal


def copy(job: str, offset: int = 1, *, until: int) -> ReplayOrigin:
    return ReplayOrigin(job, 0, 1, offset, f"m-{offset}", 1, until)


def full(*bounds: int, jobs_max: int = 3) -> Replays:
    """Jobs named by their bounds."""
    replays = Replays(jobs_max)
    for at, bound in enumerate(bounds):
        replays.note(copy(f"job-{bound}", until=bound), at)
    return replays


def is_refused(replays: Replays, bound: int) -> bool:
    try:
        replays.check(f"job-{bound}", (1, bound))
    except Refusal as refusal:
        return refusal.code == Code.REPLAY_FORGOTTEN
    return False


def test_the_newest_copy_counts_in_whatever_order_they_are_seen() -> None:
    replays = Replays()
    for offset in (3, 5, 4):
        replays.note(copy("job", offset, until=9), offset)

    last = replays.last("job")
    assert last is not None
    assert original_of(last) == (0, 1, 5)
    assert replays.newest("job") == (0, 1, 5)


def test_the_job_with_the_oldest_bound_is_forgotten() -> None:
    replays = full(30, 10, 20, 40)

    assert len(replays) == 3
    assert [is_refused(replays, bound) for bound in (10, 20, 30, 40)] == [True, False, False, False]


def test_what_was_forgotten_together_stays_forgotten_when_there_is_room_again() -> None:
    replays = Replays(3)
    for at, (job, bound) in enumerate([("a", 10), ("b", 10), ("c", 20), ("d", 30)]):
        replays.note(copy(job, until=bound), at)

    assert len(replays) == 2
    assert [is_refused(replays, bound) for bound in (9, 10, 11)] == [True, True, False]


def test_there_is_no_room_for_a_job_older_than_all_that_are_known() -> None:
    replays = full(20, 30, 40)

    assert is_refused(replays, 20 - 1)
    assert not is_refused(replays, 25)
    # Nor is remembered what a forgotten job still writes.
    replays = full(10, 20, 30, 40)
    replays.note(copy("job-10", 5, until=10), 9)
    assert replays.last("job-10") is None
    assert is_refused(replays, 10)


def test_all_that_is_known_and_forgotten_survives() -> None:
    replays = full(10, 20, 30, 40)

    restored = Replays(3)
    restored.restore(replays.state())

    assert restored.state() == replays.state()
    assert is_refused(restored, 10)


def test_what_is_read_behind_a_state_adds_to_it() -> None:
    replays = full(20, 30)

    replays.restore(full(10, 20, 30, 40).state())

    assert [is_refused(replays, bound) for bound in (10, 20, 30, 40)] == [True, False, False, False]


def test_a_state_is_taken_again_only_when_something_changed() -> None:
    replays = full(10)

    assert replays.take_state(is_whole=False) is not None
    assert replays.take_state(is_whole=False) is None
    assert replays.take_state(is_whole=True) is not None


def test_a_job_of_another_bound_is_another_job() -> None:
    replays = full(10)

    with pytest.raises(Refusal, match="offset 10"):
        replays.check("job-10", (1, 11))
