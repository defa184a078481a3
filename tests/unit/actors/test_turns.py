"""Which events one turn of a host takes."""

from __future__ import annotations

import pytest

from signalhub.actors.host.thread import Turning
from signalhub.actors.kernel.events import Commanded, Connected, DeliveryArrived, Event, Receipted
from signalhub.actors.kernel.send import Trip
from signalhub.clock import SteadyClock
from tests.support.actors.scripted import Stage, Target


def delivery(count: int) -> DeliveryArrived:
    return DeliveryArrived("actors:batch", b"", "@(actors/other)", 0, None, count)


@pytest.mark.parametrize(
    ("counts", "turns"),
    [
        ([], [[]]),
        ([100], [[100], []]),
        ([100, 100, 1], [[100], [100], [1], []]),
        ([60, 60, 1, 60], [[60, 60], [1, 60], []]),
        ([500, 1], [[500], [1], []]),
        ([1] * 150, [[1] * 100, [1] * 50, []]),
        ([0, 100, 0], [[0, 100], [0], []]),
    ],
)
def test_deliveries_wait_for_the_turn_that_runs_their_messages(
    counts: list[int], turns: list[list[int]]
) -> None:
    local = Stage(Target)
    assert local.kernel.config.inbound_batch_size == 100
    turning = Turning(local.kernel, SteadyClock(local.clock), lambda effects: None)
    turning.put(map(delivery, counts))

    for wanted in turns:
        taken = turning._taken()
        assert [one.count for one in taken if isinstance(one, DeliveryArrived)] == wanted


def test_other_events_keep_their_place_among_deliveries() -> None:
    local = Stage(Target)
    turning = Turning(local.kernel, SteadyClock(local.clock), lambda effects: None)
    events: list[Event] = [Connected(), delivery(100), Connected(), delivery(1), Connected()]
    turning.put(events)

    assert [*turning._taken(), *turning._taken()] == events
    assert turning._taken() == []


def test_the_receipt_of_a_lane_batch_does_not_wait_behind_deliveries() -> None:
    local = Stage(Target)
    turning = Turning(local.kernel, SteadyClock(local.clock), lambda effects: None)
    local.kernel.dispatch._trips["ours"] = Trip(("@(actors/other)", True), [], 0)
    ours, of_a_move = Receipted("ours"), Receipted("part of a move")
    first, second = delivery(100), delivery(100)
    turning.put([first, second, of_a_move, ours])

    assert turning._taken() == [first, ours]
    assert turning._taken() == [second, of_a_move]


def test_a_command_does_not_wait_behind_deliveries() -> None:
    local = Stage(Target)
    turning = Turning(local.kernel, SteadyClock(local.clock), lambda effects: None)
    command = Commanded("status", {}, None)
    turning.put([*(first := [delivery(100), delivery(100)]), command])

    assert turning._taken() == [first[0], command]
    assert turning._taken() == first[1:]
