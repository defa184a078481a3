"""Which subscription reads what from where on, followed through the log without Spark."""

from __future__ import annotations

from typing import Any

from signalhub.pipeline.tables.piece import joined
from signalhub.pipeline.tables.subscriptions import Change, Stretch, Stretches


def change(offset: int, kind: str, name: str | None = "billing", **more: Any) -> Change:
    return Change(
        offset=offset,
        kind=kind,
        stream=more.pop("stream", "orders"),
        stream_epoch=1,
        accepted_at=offset * 1000,
        subscription=name,
        **more,
    )


def created(offset: int, start: int = 0, **more: Any) -> Change:
    return change(offset, "subscription_created", floor=start, **more)


def cursor(offset: int, generation: int, floor: int) -> Change:
    return change(offset, "cursor", generation=generation, floor=floor)


def follow(*changes: Change, epoch: int = 1, known: list[Stretch] | None = None) -> list[Stretch]:
    stretches = Stretches(0, epoch, known or [])
    for one in changes:
        stretches.apply(one)
    return stretches.changed


def test_a_subscription_reads_from_its_start_until_it_is_deleted() -> None:
    (one,) = follow(created(3, start=7), change(9, "subscription_deleted"))

    assert (one.generation, one.floor, one.from_offset) == (1, 7, 3)
    assert (one.to_offset, one.ended) == (9, "deleted")


def test_a_definition_written_again_changes_nothing() -> None:
    (one,) = follow(created(3), cursor(4, 1, 0), created(8), cursor(9, 1, 5))

    assert (one.floor, one.from_offset, one.ended) == (0, 3, None)


def test_a_seek_begins_a_new_generation() -> None:
    first, second = follow(created(3), cursor(4, 1, 0), cursor(9, 2, 5), cursor(10, 2, 8))

    assert (first.to_offset, first.ended) == (9, "sought")
    assert (second.generation, second.hub_generation, second.floor) == (2, 2, 5)
    assert second.ended is None


def test_what_is_made_again_counts_on() -> None:
    known = follow(created(3), cursor(5, 2, 0), change(9, "subscription_deleted"))
    (again,) = follow(created(12, start=4), known=known)

    assert (again.generation, again.life, again.hub_generation) == (3, 2, 1)


def test_a_topic_ends_its_own_subscriptions_only() -> None:
    found = follow(created(3), created(4, stream="other"), change(9, "stream_deleted", name=None))

    assert [(one.topic, one.ended) for one in found] == [("orders", "deleted"), ("other", None)]


def test_where_the_log_was_cut_the_first_cursor_says_where_it_stands() -> None:
    (one,) = follow(created(3, start=0), cursor(4, 1, 900))

    assert one.floor == 900


def test_a_cursor_of_what_does_not_exist_means_nothing() -> None:
    assert follow(cursor(4, 2, 9)) == []


def test_a_new_epoch_undoes_what_was_given_up() -> None:
    known = follow(created(3), change(12, "subscription_deleted"), created(13, stream="other"))
    stretches = Stretches(0, 2, known)
    stretches.cut(10, 99)

    ends = {one.topic: (one.ended, one.to_epoch, one.to_offset) for one in stretches.changed}
    assert ends == {"orders": (None, None, None), "other": ("given_up", 2, 10)}


def test_ranges_that_are_close_or_too_many_are_joined() -> None:
    far = 10**9
    spans = [(1, 0, 9), (1, 20, 30), (1, far, far + 1), (2, 5, 6)]

    assert joined(spans) == [(1, 0, 30), (1, far, far + 1), (2, 5, 6)]
    assert joined(spans, most=2) == [(1, 0, far + 1), (2, 5, 6)]
    assert joined([]) == []
