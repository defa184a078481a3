"""What is due when, and what waits for a hub that is busy."""

from __future__ import annotations

import os
import time

import pytest

from signalhub.clock import SystemClock
from signalhub.pipeline.run.schedule import WAIT_MS, Beats, Neighbour, neighbour
from signalhub.pipeline.run.status import UpkeepRound
from signalhub.pipeline.tables import catch_up
from signalhub.pipeline.tables.tables import INBOX
from signalhub.settings.model import PipelineSettings

SETTINGS = PipelineSettings(shape_s=60.0, maintain_s=60.0)
TABLES = [name for name in catch_up.ORDER if name != INBOX.name]


class Hub:
    """Uses some share of a core."""

    def __init__(self, share: float) -> None:
        self.share: float | None = share
        self.used_s = 100.0
        self.now_ms = 1_000_000
        self.seen = Neighbour(lambda: None if self.share is None else self.used_s)

    def pass_s(self, seconds: float) -> int:
        """Let time go by, with a look at the end of each second."""
        for _ in range(int(seconds)):
            self.now_ms += 1_000
            self.used_s += self.share or 0.0
            self.seen.is_busy(self.now_ms)
        return self.now_ms


@pytest.mark.parametrize(("share", "is_busy"), [(0.1, False), (0.4, False), (0.6, True)])
def test_a_hub_is_busy_when_it_took_half_of_a_core_in_the_last_second(
    share: float, is_busy: bool
) -> None:
    hub = Hub(share)
    assert not hub.seen.is_busy(hub.now_ms), "one look says nothing"

    now = hub.pass_s(2)

    assert hub.seen.is_busy(now) is is_busy
    hub.share = 0.0
    assert hub.seen.is_busy(now + 999) is is_busy
    assert not hub.seen.is_busy(now + 1_000)


def test_nothing_waits_for_a_hub_that_is_gone() -> None:
    hub = Hub(1.0)
    assert hub.seen.is_busy(hub.pass_s(2))
    hub.share = None

    assert not hub.seen.is_busy(hub.pass_s(1))
    assert not Neighbour().is_busy(hub.now_ms)
    assert not neighbour(None).is_busy(hub.now_ms)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="there is no /proc")
def test_processor_time_is_that_of_the_process() -> None:
    def burn(seconds: float) -> None:
        # Where asking for the time is a call into the system, that time is the process's, too.
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass

    its = neighbour(os.getpid())
    its.is_busy(0)

    burn(0.05)
    assert not its.is_busy(1_000)
    burn(0.6)
    assert its.is_busy(2_000)


def test_tables_come_one_after_the_other_once_per_period() -> None:
    hub = Hub(0.0)
    beats = Beats(SETTINGS, hub.seen)
    now = hub.pass_s(2)

    assert [beats.next_table(now) for _ in TABLES] == TABLES
    assert beats.next_table(now) is None
    assert beats.next_table(hub.pass_s(59)) is None
    assert beats.next_table(hub.pass_s(1)) == TABLES[0]
    beats.put_back(TABLES[0])
    assert beats.next_table(hub.now_ms) == TABLES[0]


def test_tables_wait_for_a_busy_hub_and_not_for_ever() -> None:
    hub = Hub(1.0)
    beats = Beats(SETTINGS, hub.seen)

    assert beats.next_table(hub.pass_s(2)) is None
    assert beats.inbox.is_due(hub.now_ms), "inboxes do not wait"
    assert beats.next_table(hub.pass_s(WAIT_MS / 1000 - 1)) is None
    assert beats.next_table(hub.pass_s(1)) == TABLES[0]
    hub.share = 0.0
    assert beats.next_table(hub.pass_s(1)) == TABLES[1]

    hub = Hub(1.0)
    beats = Beats(SETTINGS, hub.seen)
    assert beats.next_table(hub.pass_s(2)) is None
    hub.share = 0.0
    assert beats.next_table(hub.pass_s(1)) == TABLES[0], "they go on as soon as the hub has time"


def test_whoever_waits_for_the_tables_does_not_wait_for_the_hub() -> None:
    hub = Hub(1.0)
    beats = Beats(SETTINGS, hub.seen)
    assert beats.next_table(hub.pass_s(2)) is None

    beats.hurry()

    assert [beats.next_table(hub.now_ms) for _ in TABLES] == TABLES, "those that were waiting"
    assert [beats.next_table(hub.now_ms) for _ in TABLES] == TABLES, "and all that came since"
    assert beats.next_table(hub.now_ms) is None
    assert beats.next_table(hub.pass_s(61)) is None


def test_upkeep_waits_for_a_busy_hub_and_not_for_ever() -> None:
    hub = Hub(1.0)
    hub.pass_s(2)

    def is_due(seconds_ago: float) -> bool:
        last = UpkeepRound(at_ms=SystemClock().now_ms() - int(seconds_ago * 1000), ms=0)
        return Beats(SETTINGS, hub.seen).is_upkeep_due(last, hub.now_ms)

    assert not is_due(120)
    assert is_due(60 + WAIT_MS / 1000)
    hub.share = 0.0
    hub.pass_s(1)
    assert is_due(120)
    assert not is_due(30)
