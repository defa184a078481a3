"""Whatever consumers, the disk and the clock do, a subscription keeps its promises.

A schedule is a list of steps drawn from a seed. The invariants are in `dispatch_watch.py`, the
steps in `dispatch_run.py`. A schedule that fails is cut down before it is shown.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.property.cutting import check
from tests.property.dispatch_run import Run, Step, drawn
from tests.support.volume import SEEDS, volume

GROUPS = 8
LIVES = volume(SEEDS, 8_400)


@pytest.fixture(autouse=True)
def narrow_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that no short life would reach."""
    monkeypatch.setattr("signalhub.core.subscriptions.progress.RESERVE", 8)
    monkeypatch.setattr("signalhub.core.subscriptions.send.PASS_MESSAGES_MAX", 5)
    monkeypatch.setattr("signalhub.core.subscriptions.dispatcher.FETCH_MESSAGES", 3)


def play(traits: dict[str, Any], steps: list[Step]) -> None:
    Run(traits).play(steps)


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_life_of_a_subscription_keeps_the_promises(group: int) -> None:
    for seed in range(group, LIVES, GROUPS):
        traits, steps = drawn(seed)
        check(seed, steps, partial(play, traits))


def test_the_lives_are_worth_living() -> None:
    """Rare things must not be so rare that the watch never sees them."""
    runs = []
    for seed in range(200):
        traits, steps = drawn(seed)
        runs.append(Run(traits))
        runs[-1].play(steps)

    stats = [run.watch.subscription.stats for run in runs]
    assert sum(len(run.watch.published) for run in runs) > 800
    assert sum(run.watch.deliveries for run in runs) > 1_000
    assert sum(run.watch.redeliveries for run in runs) > 300
    assert sum(len(run.watch.letters) for run in runs) > 50
    assert sum(run.crashes for run in runs) > 80
    assert sum(run.watch.generation > 1 for run in runs) > 20
    assert sum(run.shell.tally.append_refused for run in runs) > 100
    for name in ("expired", "dropped", "timeouts", "nacked", "ignored", "lost"):
        assert sum(getattr(one, name) for one in stats) > 5, name
