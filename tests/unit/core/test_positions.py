"""Where a subscription is: what is settled, what is parked, and what a cursor keeps of it."""

from __future__ import annotations

import pytest

from signalhub.core.subscriptions.position import Position
from signalhub.wire.entry import CursorBody, Outcome, Settlement, decode_body, encode_body


def test_the_floor_passes_over_parked_messages_which_stay_unsettled_and_are_no_lag() -> None:
    position = Position(0)
    position.settle(1)
    position.park(2, due_ms=500)
    position.settle(3)
    position.park(5, due_ms=500)

    assert position.floor == 3
    assert not position.is_settled(2)
    assert position.unsettled(head=6) == 2
    position.settle(2)
    assert position.is_settled(2)
    assert list(position.parked) == [5]


def test_what_is_gone_is_skipped_and_what_lies_behind_counts() -> None:
    position = Position(0)
    position.settle(5)

    for gone in (4, 2):
        position.skip_to(gone)
        assert position.floor == 5


def test_a_cursor_restores_everything() -> None:
    position = Position(2)
    position.settle(4)
    position.park(6, due_ms=700)
    position.failures[3] = 2
    position.reserved = 4_096
    position.is_paused = True

    other = Position(0)
    other.restore(decode_body(CursorBody, encode_body(position.cursor("s"))))

    assert other.cursor("s") == position.cursor("s")
    assert (other.is_paused, other.reserved) == (True, 4_096)


def test_failures_of_a_message_that_a_snapshot_has_as_settled_are_not_remembered() -> None:
    position = Position(1)

    for outcome in (Outcome.FAILED, Outcome.ACKED):
        position.replay(Settlement(1, 0, outcome, failures=1))

    assert position.failures == {}


@pytest.mark.parametrize("outcome", Outcome)
def test_a_settlement_in_the_log_settles_unless_it_will_be_tried_again(outcome: Outcome) -> None:
    position = Position(0)

    position.replay(Settlement(1, 0, outcome, failures=3))

    assert position.is_settled(1) is (outcome not in (Outcome.FAILED, Outcome.HANDED_OVER))
    assert position.failures.get(1) == (3 if outcome is Outcome.FAILED else None)
