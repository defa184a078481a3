"""The line of waiting requests does not keep what nobody waits for."""

from __future__ import annotations

import pytest

from signalhub.client.protocol.frame import FrameWriter
from signalhub.client.protocol.pending import EMPTY_MIN, Deadlines, Flow, Pending
from signalhub.client.requests import Tell
from signalhub.clock import Ids

frames = FrameWriter("@(demo/alice)", Ids())


def pending(order: int, to: str = "@(demo/bob)") -> Pending:
    return Pending(frames.request(Tell(to, "note", order), 0), order, 0.0)


@pytest.mark.parametrize("is_paused", [False, True])
def test_withdrawn_requests_are_let_go_during_a_long_stall(is_paused: bool) -> None:
    flow = Flow(0.0)
    if is_paused:
        flow.greeted(0, 0, 0.0)
        flow.opened()
        flow.pause("@(demo/bob)", 0.0)
    for order in range(5_000):
        each = pending(order)
        flow.add(each)
        assert flow.take(0.0) is None
        flow.withdraw(each)

    lines = [flow._traffic, *flow._parked.values()]
    assert sum(len(line) for line in lines) <= EMPTY_MIN + 1
    assert flow.waiting == 0


def test_an_empty_place_is_skipped() -> None:
    flow = Flow(0.0)
    first, second = pending(1), pending(2)
    flow.add(first)
    flow.add(second)

    flow.withdraw(first)
    flow.greeted(0, 0, 0.0)
    flow.opened()

    assert flow.take(0.0) is second
    assert flow.take(0.0) is None


def test_a_hold_ends_when_it_said_it_would() -> None:
    flow = Flow(0.0)
    flow.greeted(0, 0, 0.0)
    flow.opened()
    flow.hold(5.0)
    flow.add(pending(1))

    assert flow.take(4.99) is None
    assert flow.wake_at_s(1.0) == 5.0
    assert flow.take(5.0) is not None


def test_deadlines_of_requests_that_are_done_are_let_go() -> None:
    deadlines = Deadlines()
    for order in range(5_000):
        each = pending(order)
        deadlines.set(each, 100.0 + order)
        deadlines.clear(each)

    assert len(deadlines._heap) < 200
    assert list(deadlines.due(1e9)) == []
