"""A move takes the steps its table has, and no others."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from signalhub.actors.move.moves import (
    FIRST_STEPS,
    TRANSITIONS,
    Direction,
    Event,
    MoveRow,
    Moves,
    Step,
)
from signalhub.actors.store.store import HostStore

ACTOR = "order/1"


def stored(store: HostStore) -> list[MoveRow]:
    moves = Moves(store)
    moves.load()
    return moves.all()


@pytest.mark.parametrize("event", get_args(Event))
@pytest.mark.parametrize(("direction", "step"), TRANSITIONS)
def test_a_move_takes_only_the_steps_of_its_table(
    direction: Direction, step: Step, event: Event
) -> None:
    store = HostStore(":memory:")
    moves = Moves(store)
    move = MoveRow(ACTOR, direction, "@(h/b)", step, 1, "m-1")
    moves.put(move)
    moves.put_part(ACTOR, "m-1", 0, b"rows")
    before = msgspec.structs.replace(move)

    if event not in TRANSITIONS[direction, step]:
        with pytest.raises(AssertionError, match=event):
            moves.advance(move, event)
        assert (move, stored(store)) == (before, [before])
        return

    moves.advance(move, event)
    after = TRANSITIONS[direction, step][event]
    assert stored(store) == moves.all()
    assert [each.step for each in moves.all()] == ([] if after is None else [after])
    assert moves.count(ACTOR, "m-1") == (0 if after is None else 1)


@pytest.mark.parametrize("direction", get_args(Direction))
def test_every_step_is_reached_and_left(direction: Direction) -> None:
    reached = {FIRST_STEPS[direction]}
    ends = 0
    for (side, step), events in TRANSITIONS.items():
        if side == direction:
            assert step in reached
            reached |= {after for after in events.values() if after is not None}
            ends += None in events.values()

    assert reached == {step for side, step in TRANSITIONS if side == direction}
    assert ends
