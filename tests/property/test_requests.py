"""Whatever is asked for in whatever order, each request is answered once and outlives a restart.

A life is a list of steps drawn from a seed; the steps and the promises are in `request_life.py`. A
life that goes wrong is cut down before it is shown.
"""

from __future__ import annotations

import pytest

from tests.property.cutting import check
from tests.property.request_life import Life, drawn
from tests.support.volume import SEEDS, volume

GROUPS = 6
LIVES = volume(SEEDS, 3_000)


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_request_is_answered_once_and_survives_a_restart(group: int) -> None:
    for seed in range(group, LIVES, GROUPS):
        check(seed, drawn(seed), lambda steps: Life().play(steps))


def test_the_lives_are_worth_living() -> None:
    """Rare things must not be so rare that nobody would see them go wrong."""
    lives = []
    for seed in range(100):
        lives.append(Life())
        lives[-1].play(drawn(seed))

    answers: dict[str, int] = {}
    for life in lives:
        for peer in life.peers:
            for message in peer.received:
                answers[message["type"]] = answers.get(message["type"], 0) + 1
    for kind in (
        *("hub:published", "hub:subscribed", "hub:sought", "hub:acked", "hub:termed", "hub:nacked"),
        *("hub:topic_deleted", "hub:redriven", "hub:purged", "hub:registered", "hub:unregistered"),
        *("hub:delivery_ack", "hub:sub_info_response", "hub:topic_info_response"),
    ):
        assert answers.get(kind, 0) > 10, kind
    assert sum(life.refused for life in lives) > 200
    assert sum(life.shell.tally.append_refused for life in lives) > 50
