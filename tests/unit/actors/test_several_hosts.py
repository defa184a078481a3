"""Calls from host to host over a hub that loses, repeats, delays and refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from signalhub.actors import remote
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.kernel.events import (
    ActorPlace,
    BatchRefused,
    PlacesFound,
    Receipted,
    SendBatch,
)
from signalhub.actors.wire import split
from tests.support.actors.scripted import Caller, Scripted, Target, calling
from tests.support.actors.several_hosts import Hosts

UNKNOWN = ["timeout", "unknown"]


class Other(Scripted):
    """Lives in a third host."""

    @remote
    def large(self) -> str:
        return "x" * 600_000


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path, [Caller], [Target], [Other])


def with_config(folder: Path, **config: Any) -> Hosts:
    config = {"durability": "process"} | config
    return Hosts(folder, [Caller], [Target], [Other], config=DurableConfig(**config))


def ask(hosts: Hosts, method: str, *args: Any, caller: str = "caller/1", **options: Any) -> None:
    hosts.do(caller, calling(method, *args, **({"timeout": 20} | options)))


def go(hosts: Hosts, count: int, target: str = "target/1") -> None:
    """Make numbered calls without a timeout."""
    for number in range(count):
        ask(hosts, "note", number, target=target, timeout=None)


def send(hosts: Hosts, value: Any, target: str = "target/1") -> None:
    hosts.do("caller/1", lambda self: self.send(target, "note", value))


def to(hosts: Hosts, number: int) -> Callable[[SendBatch], bool]:
    """Is a batch for this host?"""
    return lambda send: send.to == hosts.sides[number].name


def nothing(send: SendBatch) -> bool:
    return False


def larger_than(limit: int) -> Callable[[SendBatch], BatchRefused | None]:
    def refuse(send: SendBatch) -> BatchRefused | None:
        is_large = len(send.data) > limit
        return BatchRefused(send.batch, "too large", is_too_large=True) if is_large else None

    return refuse


def test_repeated_batches_are_executed_once_and_counted(hosts: Hosts) -> None:
    hosts.repeat = lambda send: True
    go(hosts, 10)
    hosts.advance(5)

    assert hosts.notes("target/1") == hosts.notes() == list(range(10))
    assert hosts.sides[1].kernel.counters.duplicates == 10
    assert hosts.sides[0].kernel.counters.late_results == 10


def test_a_destination_that_does_not_answer_does_not_hold_up_others(hosts: Hosts) -> None:
    hosts.lose = to(hosts, 1)
    go(hosts, 5)
    go(hosts, 5, "other/1")
    hosts.advance(1)

    assert hosts.notes("other/1") == list(range(5))
    assert hosts.notes("target/1") == []
    hosts.lose = nothing
    hosts.advance(10)
    assert hosts.notes("target/1") == list(range(5))


@pytest.mark.parametrize("lost", [1, 0], ids=["request", "result"])
def test_a_lost_batch_is_sent_again_after_growing_pauses(hosts: Hosts, lost: int) -> None:
    times: list[int] = []

    def lose(send: SendBatch) -> bool:
        if to(hosts, lost)(send):
            times.append(hosts.clock.now_ms())
            return len(times) < 7
        return False

    hosts.lose = lose
    go(hosts, 1)
    hosts.advance(60)

    assert [(at - times[0]) / 1000 for at in times] == [0, 1, 3, 7, 15, 25, 35]
    assert hosts.notes() == hosts.notes("target/1") == [0]


def test_the_next_batch_waits_for_the_receipt_of_the_one_before(hosts: Hosts) -> None:
    hosts.lose = to(hosts, 1)
    go(hosts, 250)
    hosts.run()

    (sent,) = filter(to(hosts, 1), hosts.sent)
    assert len(split(sent.data)) == 100


def test_a_receipt_that_comes_during_a_turn_lets_the_next_batch_go_at_its_end(hosts: Hosts) -> None:
    ask(hosts, "note", 0)
    hosts.run()
    side = hosts.sides[0]

    def sent_after(value: int, *late: Receipted) -> list[SendBatch]:
        ask(hosts, "note", value)
        events, side.events = side.events, []
        effects = side.kernel.turn(events, side.clock.now_ms(), 0, lambda: late)
        sent = [one for one in effects if isinstance(one, SendBatch)]
        return [*filter(to(hosts, 1), sent)]

    (first,) = sent_after(1)
    assert sent_after(2) == []
    (second,) = sent_after(3, Receipted(first.batch))
    assert len(split(second.data)) == 2


def test_a_call_that_has_left_may_have_been_executed_when_it_times_out(hosts: Hosts) -> None:
    ask(hosts, "later")
    hosts.advance(10)
    hosts.lose_receipt = to(hosts, 1)
    hosts.lose = to(hosts, 0)
    ask(hosts, "note", 7, caller="caller/2")
    hosts.advance(20)
    hosts.lose_receipt = hosts.lose = nothing
    hosts.call("target/1", "answer")
    hosts.advance(20)

    assert hosts.notes() == hosts.notes("caller/2") == [UNKNOWN]
    assert hosts.notes("target/1") == [7]
    assert hosts.count(0, "outbox") == 0
    assert hosts.sides[0].kernel.counters.late_results == 2


def test_a_call_behind_one_without_a_receipt_was_not_executed(hosts: Hosts) -> None:
    hosts.lose = to(hosts, 1)
    for number in (1, 2):
        ask(hosts, "note", number, caller=f"caller/{number}")
        hosts.run()
    # The second is in the lane, and the lane has never got that far.
    lane = (hosts.sides[1].name, True)
    hosts.sides[0].kernel.dispatch._pauses[lane].until_ms = 1 << 60
    hosts.advance(20)

    assert hosts.notes() == [UNKNOWN]
    assert hosts.notes("caller/2") == [["timeout", "no"]]


def test_a_call_that_has_not_left_is_withdrawn_and_one_that_has_is_suppressed(hosts: Hosts) -> None:
    def cancel(self: Caller) -> None:
        cancelled.append(self.cancel_call(self.pending_calls()[0].id).value)

    cancelled: list[str] = []
    ask(hosts, "later")
    hosts.run()
    hosts.lose = to(hosts, 1)
    for number in (2, 3):
        ask(hosts, "note", number, caller=f"caller/{number}")
        hosts.run()
    for number in (1, 2, 3):
        hosts.do(f"caller/{number}", cancel)
    hosts.run()
    hosts.lose = nothing
    hosts.advance(60)

    assert cancelled == ["suppressed", "suppressed", "withdrawn"]
    assert hosts.notes("target/1") == []
    assert hosts.count(0, "outbox") == 0


def test_a_result_that_comes_before_the_receipt_leaves_nothing_in_the_way(hosts: Hosts) -> None:
    hosts.lose_receipt = to(hosts, 1)
    for number in range(150):
        ask(hosts, "note", number)
    hosts.advance(30)
    hosts.lose_receipt = nothing
    ask(hosts, "note", "last", caller="caller/2")
    hosts.advance(60)

    assert hosts.count(0, "outbox") == 0
    assert hosts.notes("caller/2") == ["last"]


def test_what_is_too_large_for_the_hub_ends_its_call_and_others_go_on(hosts: Hosts) -> None:
    hosts.refuse = larger_than(50_000)
    ask(hosts, "note", "a")
    ask(hosts, "note", "x" * 100_000)
    send(hosts, "y" * 100_000)
    ask(hosts, "note", "b")
    ask(hosts, "large", target="other/1")
    hosts.advance(10)

    assert hosts.notes("target/1") == ["a", "b"]
    undeliverable, result = sorted(one for one in hosts.notes() if one not in ("a", "b"))
    assert undeliverable.startswith("CallUndeliverable: ")
    assert "larger than the hub accepts" in undeliverable
    assert result == "TooLarge: the result is larger than the hub accepts"
    (letter,) = hosts.sides[0].kernel.letters.of("caller/1")
    assert letter.origin == "send"


def test_a_call_nobody_takes_is_given_up_after_the_age_limit(tmp_path: Path) -> None:
    hosts = with_config(tmp_path, max_request_age_ms=60_000)
    hosts.lose = to(hosts, 1)
    go(hosts, 2)
    send(hosts, "x")
    hosts.advance(80)

    assert [one.partition(":")[0] for one in hosts.notes()] == ["CallUndeliverable"] * 2
    assert [one.origin for one in hosts.sides[0].kernel.letters.of("caller/1")] == ["send"]
    assert hosts.count(0, "outbox") == 0


def test_a_call_without_an_end_is_in_no_batch_that_ends(hosts: Hosts) -> None:
    """Not even if what was to be sent first has to wait, because its place is not known."""
    hosts.lose = lambda send: True
    send(hosts, "x", "target/9")
    ask(hosts, "note", 1)
    go(hosts, 1)
    hosts.run()
    (side, target, _) = hosts.sides
    hosts.crash(side)
    hosts.sent.clear()

    side.events.append(PlacesFound([ActorPlace("target/1", target.name, 1)]))
    hosts.turn(side)

    (ending,) = filter(to(hosts, 1), hosts.sent)
    assert ending.ttl_ms is not None
    assert len(split(ending.data)) == 1


def test_tombstones_end_when_every_repeat_has_been_seen(tmp_path: Path) -> None:
    hosts = with_config(tmp_path, tombstone_ttl_ms=3_600_000)
    go(hosts, 10)
    hosts.run()
    # Time alone ends nothing: only what the hub accepted later does.
    hosts.clock.advance(86_400)
    for _ in range(120):
        hosts.turn(hosts.sides[1])
    assert hosts.count(1, "done") == 10
    go(hosts, 1)
    hosts.run()
    for _ in range(120):
        hosts.turn(hosts.sides[1])

    assert hosts.count(1, "done") == 1


def test_a_late_answer_reaches_its_caller_after_both_hosts_restarted(hosts: Hosts) -> None:
    ask(hosts, "later")
    hosts.run()
    for side in hosts.sides:
        hosts.crash(side)
    hosts.call("target/1", "answer")
    hosts.advance(5)

    assert hosts.notes() == ["late"]
