"""Where a subscription stands: floor, what is settled above it, what is parked."""

from __future__ import annotations

import pytest

from signalhub.core.subscriptions.subscription import Position
from signalhub.wire.entry import CursorBody, Outcome, Settlement, decode_body, encode_body


def test_the_floor_follows_what_is_settled_in_order() -> None:
    position = Position(0)

    for seq in (1, 2, 3):
        position.settle(seq)

    assert position.floor == 3
    assert not position.above


def test_acks_in_reverse_move_the_floor_only_when_the_first_comes() -> None:
    position = Position(0)

    floors = []
    for seq in (3, 2, 1):
        position.settle(seq)
        floors.append(position.floor)

    assert floors == [0, 0, 3]
    assert not position.above


def test_settling_again_changes_nothing() -> None:
    position = Position(5)
    position.settle(7)
    position.settle(7)
    position.settle(3)

    assert position.floor == 5
    assert list(position.above) == [(7, 7)]


def test_the_floor_passes_over_parked_messages_which_stay_unsettled() -> None:
    position = Position(0)
    position.settle(1)
    position.park(2, due_ms=500)
    position.settle(3)

    assert position.floor == 3
    assert not position.is_settled(2)
    assert position.unsettled(head=5) == 2

    position.settle(2)
    assert position.is_settled(2)
    assert not position.parked


def test_parked_messages_above_the_floor_are_no_lag_either() -> None:
    position = Position(0)
    position.park(3, due_ms=500)

    assert position.floor == 0
    assert position.unsettled(head=3) == 2


def test_a_seek_forgets_all_and_begins_a_new_generation() -> None:
    position = Position(0)
    position.settle(1)
    position.settle(3)
    position.park(4, due_ms=500)
    position.failures[2] = 1

    position.seek(0, 2)

    assert (position.floor, position.generation) == (0, 2)
    assert not position.above
    assert not position.parked
    assert not position.failures


def test_what_is_gone_is_skipped_and_what_lies_behind_counts() -> None:
    position = Position(0)
    position.settle(5)

    position.skip_to(4)

    assert position.floor == 5
    position.skip_to(2)
    assert position.floor == 5


def test_a_cursor_restores_everything() -> None:
    position = Position(2)
    position.settle(4)
    position.park(6, due_ms=700)
    position.failures[3] = 2
    position.reserved = 4_096
    position.is_paused = True

    written = decode_body(CursorBody, encode_body(position.cursor("s")))
    other = Position(0)
    other.restore(written)

    assert other.cursor("s") == position.cursor("s")
    assert other.is_paused
    assert other.reserved == 4_096


@pytest.mark.parametrize(
    ("outcome", "is_settled"),
    [(one, one not in (Outcome.FAILED, Outcome.HANDED_OVER)) for one in Outcome],
)
def test_a_settlement_in_the_log_settles_unless_it_will_be_tried_again(
    outcome: Outcome, is_settled: bool
) -> None:
    position = Position(0)

    position.replay(Settlement(1, 0, outcome, failures=3))

    assert position.is_settled(1) is is_settled
    assert position.failures.get(1) == (3 if outcome is Outcome.FAILED else None)
