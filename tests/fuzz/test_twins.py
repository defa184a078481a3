"""The native way and the Python way, with the same input; see `twins.py`, and `shards.py` for how
much of it."""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import pytest

from signalhub import native
from signalhub.core.streams.streams import HeldRun
from tests.fuzz.asks import Asks
from tests.fuzz.publishes import Crowd, Publishes
from tests.fuzz.shards import ASKS, CROWD, PUBLISHES, TELLS, TIMEOUT_S
from tests.fuzz.tells import Tells
from tests.fuzz.twins import FOUND, SENDER, Difference, Kernel, Twins, fire
from tests.support.memory.shell import envelope
from tests.support.socket.frames import TEXT, masked_frame

pytestmark = pytest.mark.skipif(not native.IS_ON, reason="needs the native part")


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", TELLS.seeds)
def test_tells_have_the_same_effects_both_ways(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    print(f"seed {seed}")

    fire(Tells(), seed, TELLS.cases)

    assert not caplog.records, "nothing is worth a line in the log"


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", PUBLISHES.seeds)
def test_publishes_have_the_same_effects_both_ways(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    print(f"seed {seed}")

    fire(Publishes(), seed, PUBLISHES.cases)

    assert not caplog.records, "nothing is worth a line in the log"


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", CROWD.seeds)
def test_publishes_of_many_have_the_same_effects_both_ways(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    print(f"seed {seed}")

    fire(Crowd(), seed, CROWD.cases)

    assert not caplog.records, "nothing is worth a line in the log"


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", ASKS.seeds)
def test_asks_have_the_same_effects_both_ways(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    print(f"seed {seed}")

    fire(Asks(), seed, ASKS.cases)

    assert not caplog.records, "nothing is worth a line in the log"


def test_the_same_seed_gives_the_same_reads() -> None:
    first, second, other = (Tells().maker(Random(seed), 0) for seed in (1, 1, 2))

    reads = [first() for _ in range(50)]

    assert reads == [second() for _ in range(50)]
    assert reads != [other() for _ in range(50)]


def test_the_reads_reach_everything() -> None:
    """Rubbish alone would only test the parser."""
    counters: dict[str, int] = {}
    kernel = Kernel()
    with kernel.in_place():
        for number in range(60):
            twins = Twins(Tells(), number, kernel)
            make = Tells().maker(Random(number), number)
            for _ in range(20):
                for data in make()[0]:
                    twins.read(data)
            tally = twins.native.tally
            for name in ("deliveries", "unknown_targets", "expired_tells", "dropped_tells"):
                counters[name] = counters.get(name, 0) + getattr(tally, name)
            for code, count in tally.errors.items():
                counters[code] = counters.get(code, 0) + count
            counters["closed"] = counters.get("closed", 0) + twins.native.closed

    assert counters["deliveries"] > 10_000
    assert counters["unknown_targets"] > 100
    assert counters["expired_tells"] > 20
    assert counters["dropped_tells"] > 20
    assert counters["internal_error"] > 500
    assert counters["unauthorized"] > 500
    assert counters["rate_limited"] > 500
    assert counters["malformed_message"] > 20
    assert counters["closed"] > 50


def test_the_publishes_reach_everything() -> None:
    counters: dict[str, int] = {}
    kernel = Kernel()
    with kernel.in_place():
        for number in range(24):
            twins = Twins(Publishes(), number, kernel)
            make = Publishes().maker(Random(number), number)
            for _ in range(20):
                for data in make()[0]:
                    twins.read(data)
            tally = twins.native.tally
            for name in ("published", "duplicates", "deliveries", "expired_asks", "lost"):
                counters[name] = counters.get(name, 0) + getattr(tally, name)
            for code, count in tally.errors.items():
                counters[code] = counters.get(code, 0) + count
            for topic in twins.native.hub.streams.topics.values():
                kept = dict.values(topic.recent)
                in_runs = sum(isinstance(one, HeldRun) for one in kept)
                counters["runs"] = counters.get("runs", 0) + in_runs

    assert counters["published"] > 3_000
    assert counters["runs"] > 700
    assert counters["duplicates"] > 200
    assert counters["deliveries"] > 100
    assert counters["expired_asks"] > 5
    assert counters["lost"] > 20
    for code in ("internal_error", "unauthorized", "rate_limited", "queue_full"):
        assert counters[code] > 20, code


def test_the_asks_reach_everything() -> None:
    counters: dict[str, int] = {}
    kernel = Kernel()
    with kernel.in_place():
        for number in range(64):
            twins = Twins(Asks(), number, kernel)
            asks = twins.native.hub.asks
            accept_run = asks.accept_run

            def counted(*given: Any, accept_run: Any = accept_run) -> Any:
                accepted = accept_run(*given)
                counters["runs"] = counters.get("runs", 0) + (accepted is not None)
                return accepted

            asks.accept_run = counted  # type: ignore[method-assign, assignment]
            make = Asks().maker(Random(number), number)
            for _ in range(20):
                for data in make()[0]:
                    twins.read(data)
            tally = twins.native.tally
            names = ("duplicates", "queued_asks", "expired_asks", "append_refused", "dropped_tells")
            for name in names:
                counters[name] = counters.get(name, 0) + getattr(tally, name)
            delivered = tally.ask_latency.count
            counters["delivered"] = counters.get("delivered", 0) + delivered
            for code, times in tally.errors.items():
                counters[code] = counters.get(code, 0) + times

    assert counters["delivered"] > 4_000
    assert counters["runs"] > 4_000
    assert counters["queued_asks"] > 500
    assert counters["duplicates"] > 200
    assert counters["expired_asks"] > 200
    assert counters["append_refused"] > 50
    for code in ("unknown_actor", "internal_error", "unauthorized", "rate_limited"):
        assert counters[code] > 50, code
    for code in ("queue_full", "stale_placement", "storage_full", "storage_failed"):
        assert counters[code] > 10, code


def test_a_difference_is_found() -> None:
    kernel = Kernel()
    with kernel.in_place():
        twins = Twins(Tells(), 0, kernel)
        payload = {"to": SENDER, "type": "news", "data": 1}
        tell = envelope("hub:send", payload, sender=SENDER, pattern="tell")
        twins.read(masked_frame(TEXT, tell))
        twins.python.tally.deliveries += 1

        with pytest.raises(Difference, match="deliveries"):
            twins.finish()


def test_what_was_found_is_kept_in_small_files() -> None:
    sizes = [path.stat().st_size for path in FOUND.glob("*.txt")]

    assert sizes
    assert max(sizes) < 20_000
