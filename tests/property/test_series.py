"""Messages that stay in a series are sent, settled and written like those that are flights.

Every life is lived twice: once as it is, and once with all series made flights after each step.
"""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.core.sessions.session import Session
from tests.property.dispatch_run import Run, Step, drawn
from tests.property.dispatch_watch import NAME

LIVES = 800
GROUPS = 4


@pytest.fixture(autouse=True)
def narrow_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that no short life would reach."""
    monkeypatch.setattr("signalhub.core.subscriptions.progress.RESERVE", 8)
    monkeypatch.setattr("signalhub.core.subscriptions.send.PASS_MESSAGES_MAX", 5)
    monkeypatch.setattr("signalhub.core.subscriptions.dispatcher.FETCH_MESSAGES", 3)


class Recorded(Run):
    """A life whose copies are kept."""

    def __init__(self, traits: dict[str, Any], *, has_series: bool) -> None:
        self.copies: list[tuple[str, bytes]] = []
        self.in_series = 0
        self.has_series = has_series
        super().__init__(traits)
        watch_sending = self.watch.sending

        def sending(session: Session, frame: bytes) -> None:
            self.copies.append((session.id, frame))
            watch_sending(session, frame)

        self.watch.sending = sending  # type: ignore[method-assign]

    def listen(self) -> None:
        super().listen()
        subscription = self.watch.topic.subscriptions.get(NAME)
        if subscription is not None and self.has_series:
            self.in_series += len(subscription.window.series)
        elif subscription is not None:
            subscription.window.flights  # noqa: B018  Makes flights of all series.
            assert not subscription.window.series


def lived(traits: dict[str, Any], steps: list[Step], *, has_series: bool) -> Recorded:
    run = Recorded(traits, has_series=has_series)
    run.play(steps)
    return run


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_life_with_series_is_the_same_as_one_without(group: int) -> None:
    in_series = 0
    for seed in range(group, LIVES, GROUPS):
        traits, steps = drawn(seed)
        one = lived(traits, steps, has_series=True)
        other = lived(traits, steps, has_series=False)

        assert one.copies == other.copies, f"seed {seed}"
        assert one.shell.engine.entries == other.shell.engine.entries, f"seed {seed}"
        in_series += one.in_series
    assert group % 4 == 3 or in_series > 50, "key-shared subscriptions alone have no series"
