"""Calls from host to host over a hub that loses, repeats, delays and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from signalhub.actors import Actor, CallError, CallTimeout, Token, remote
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.kernel.events import ActorPlace, BatchRefused, PlacesFound, SendBatch
from signalhub.actors.wire import split
from tests.support.actors.several_hosts import Hosts


class Caller(Actor):
    @remote
    def go(self, target: str, count: int) -> None:
        for number in range(count):
            self.call(target, "note", number, then=self.on_done, timeout=None)

    @remote
    def ask(self, target: str, method: str, *args: Any) -> None:
        self.state.put("call", self.call(target, method, *args, then=self.on_done, timeout=20))

    @remote
    def tell(self, target: str, *args: Any) -> None:
        self.send(target, "note", *args)

    @remote
    def cancel(self) -> None:
        self.state.put("cancelled", self.cancel_call(self.state.get("call")).value)

    def on_done(self, outcome: Any) -> None:
        if isinstance(outcome, CallTimeout):
            outcome = ["timeout", outcome.executed]
        elif isinstance(outcome, CallError):
            outcome = [outcome.name, outcome.message]
        self.state.put("outcomes", [*self.state.get("outcomes", []), outcome])


class Target(Actor):
    @remote
    def note(self, value: Any) -> Any:
        self.state.put("seen", [*self.state.get("seen", []), value])
        return value

    @remote
    def large(self) -> str:
        return "x" * 600_000

    @remote
    def later(self) -> Token:
        token = self.defer()
        self.state.put("token", token)
        return token

    @remote
    def answer(self) -> None:
        self.resolve(self.state.get("token"), "late")


class Other(Target):
    kind = "other"


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path, [Caller], [Target], [Other])


def outcomes(hosts: Hosts) -> Any:
    return hosts.state("caller/1").get("outcomes", [])


def to_target(hosts: Hosts) -> str:
    return hosts.sides[1].name


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_calls_keep_their_order_under_loss_and_repetition(
    hosts: Hosts, seed: int
) -> None:
    hosts.be_unreliable(seed)
    hosts.call("caller/1", "go", "target/1", 1_000)
    hosts.advance(600)

    assert hosts.state("target/1").get("seen") == list(range(1_000))
    assert sorted(outcomes(hosts)) == list(range(1_000))
    for number in range(2):
        for table in ("outbox", "inbox", "pending"):
            assert hosts.count(number, table) == 0


def test_repeated_batches_are_executed_once_and_counted(hosts: Hosts) -> None:
    hosts.repeat = lambda send: True
    hosts.call("caller/1", "go", "target/1", 10)
    hosts.advance(5)

    assert hosts.state("target/1").get("seen") == list(range(10))
    assert outcomes(hosts) == list(range(10))
    assert hosts.sides[1].kernel.counters.duplicates == 10
    assert hosts.sides[0].kernel.counters.late_results == 10


def test_a_destination_that_does_not_answer_does_not_hold_up_others(hosts: Hosts) -> None:
    hosts.lose = lambda send: send.to == to_target(hosts)
    hosts.call("caller/1", "go", "target/1", 5)
    hosts.call("caller/1", "go", "other/1", 5)
    hosts.advance(1)

    assert hosts.state("other/1").get("seen") == list(range(5))
    assert hosts.state("target/1").get("seen") is None
    hosts.lose = lambda send: False
    hosts.advance(10)
    assert hosts.state("target/1").get("seen") == list(range(5))


def test_a_lost_batch_is_sent_again_after_pauses_that_double_up_to_ten_seconds(
    hosts: Hosts,
) -> None:
    times: list[int] = []

    def lose(send: SendBatch) -> bool:
        if send.to == to_target(hosts):
            times.append(hosts.clock.now_ms())
            return len(times) < 7
        return False

    hosts.lose = lose
    hosts.call("caller/1", "go", "target/1", 1)
    hosts.advance(60)

    assert [(at - times[0]) / 1000 for at in times] == [0, 1, 3, 7, 15, 25, 35]
    assert outcomes(hosts) == [0]


def test_the_next_batch_waits_for_the_receipt_of_the_one_before(hosts: Hosts) -> None:
    hosts.lose = lambda send: send.to == to_target(hosts)
    hosts.call("caller/1", "go", "target/1", 250)
    hosts.run()

    sent = [send for send in hosts.sent if send.to == to_target(hosts)]
    assert len(sent) == 1
    assert len(split(sent[0].data)) == 100


def test_a_result_that_is_lost_is_sent_again(hosts: Hosts) -> None:
    lost: list[SendBatch] = []

    def lose(send: SendBatch) -> bool:
        if send.to == hosts.sides[0].name and len(lost) < 3:
            lost.append(send)
            return True
        return False

    hosts.lose = lose
    hosts.call("caller/1", "go", "target/1", 3)
    hosts.advance(30)

    assert len(lost) == 3
    assert outcomes(hosts) == [0, 1, 2]
    assert hosts.state("target/1").get("seen") == [0, 1, 2]


def test_a_call_that_was_sent_and_times_out_may_have_been_executed(hosts: Hosts) -> None:
    hosts.call("caller/1", "ask", "target/1", "later")
    hosts.advance(20)
    assert outcomes(hosts) == [["timeout", "unknown"]]
    hosts.call("target/1", "answer")
    hosts.run()

    assert outcomes(hosts) == [["timeout", "unknown"]]
    assert hosts.sides[0].kernel.counters.late_results == 1


def test_a_call_without_a_receipt_may_have_been_executed_when_it_times_out(hosts: Hosts) -> None:
    hosts.lose_receipt = lambda send: send.to == to_target(hosts)
    hosts.lose = lambda send: send.to == hosts.sides[0].name
    hosts.call("caller/1", "ask", "target/1", "note", 7)
    hosts.advance(20)

    assert outcomes(hosts) == [["timeout", "unknown"]]
    assert hosts.state("target/1").get("seen") == [7]
    assert hosts.count(0, "outbox") == 0


def test_a_call_behind_one_without_a_receipt_was_not_executed_when_it_times_out(
    hosts: Hosts,
) -> None:
    hosts.lose = lambda send: send.to == to_target(hosts)
    hosts.call("caller/1", "ask", "target/1", "note", 1)
    hosts.run()
    hosts.call("caller/2", "ask", "target/1", "note", 2)
    hosts.run()
    # The second is in the lane, and the lane has never got that far.
    hosts.sides[0].kernel.dispatch._pauses[(to_target(hosts), True)].until_ms = 1 << 60
    hosts.advance(20)

    assert outcomes(hosts) == [["timeout", "unknown"]]
    assert hosts.state("caller/2").get("outcomes") == [["timeout", "no"]]


def test_a_call_that_has_not_left_is_withdrawn_and_one_that_has_is_suppressed(
    hosts: Hosts,
) -> None:
    hosts.call("caller/1", "ask", "target/1", "later")
    hosts.run()
    hosts.lose = lambda send: send.to == to_target(hosts)
    hosts.call("caller/2", "ask", "target/1", "note", 1)
    hosts.run()
    hosts.call("caller/3", "ask", "target/1", "note", 2)
    hosts.run()
    for number in (1, 2, 3):
        hosts.call(f"caller/{number}", "cancel")
    hosts.run()
    hosts.lose = lambda send: False
    hosts.advance(60)

    cancelled = [hosts.state(f"caller/{number}").get("cancelled") for number in (1, 2, 3)]
    assert cancelled == ["suppressed", "suppressed", "withdrawn"]
    assert hosts.state("target/1").get("seen") is None
    assert hosts.count(0, "outbox") == 0


def test_a_result_that_comes_before_the_receipt_leaves_nothing_in_the_way(hosts: Hosts) -> None:
    hosts.lose_receipt = lambda send: send.to == to_target(hosts)
    for number in range(150):
        hosts.call("caller/1", "ask", "target/1", "note", number)
    hosts.advance(30)
    hosts.lose_receipt = lambda send: False
    hosts.call("caller/2", "ask", "target/1", "note", "last")
    hosts.advance(60)

    assert hosts.count(0, "outbox") == 0
    assert hosts.state("caller/2").get("outcomes") == ["last"]


def test_a_request_too_large_for_the_hub_ends_its_call_and_others_go_on(hosts: Hosts) -> None:
    def refuse(send: SendBatch) -> BatchRefused | None:
        is_large = len(send.data) > 50_000
        return BatchRefused(send.batch, "too large", is_too_large=True) if is_large else None

    hosts.refuse = refuse
    hosts.call("caller/1", "ask", "target/1", "note", "a")
    hosts.call("caller/1", "ask", "target/1", "note", "x" * 100_000)
    hosts.call("caller/1", "tell", "target/1", "y" * 100_000)
    hosts.call("caller/1", "ask", "target/1", "note", "b")
    hosts.advance(10)

    assert hosts.state("target/1").get("seen") == ["a", "b"]
    (error,) = [one for one in outcomes(hosts) if isinstance(one, list)]
    assert error[0] == "CallUndeliverable"
    assert "larger than the hub accepts" in error[1]
    (letter,) = hosts.sides[0].kernel.letters.of("caller/1")
    assert letter.origin == "send"


def test_a_result_too_large_for_the_hub_is_an_error_of_the_call(hosts: Hosts) -> None:
    def refuse(send: SendBatch) -> BatchRefused | None:
        is_large = len(send.data) > 500_000
        return BatchRefused(send.batch, "too large", is_too_large=True) if is_large else None

    hosts.refuse = refuse
    hosts.call("caller/1", "ask", "target/1", "large")
    hosts.call("caller/1", "ask", "target/1", "note", 7)
    hosts.advance(10)

    too_large = ["TooLarge", "the result is larger than the hub accepts"]
    assert sorted(outcomes(hosts), key=str) == [7, too_large]


def test_a_call_nobody_takes_is_given_up_after_the_age_limit(tmp_path: Path) -> None:
    config = DurableConfig(durability="process", max_request_age_ms=60_000)
    hosts = Hosts(tmp_path, [Caller], [Target], [Other], config=config)
    hosts.lose = lambda send: send.to == to_target(hosts)
    hosts.call("caller/1", "go", "target/1", 2)
    hosts.call("caller/1", "tell", "target/1", "x")
    hosts.advance(80)

    assert [one[0] for one in outcomes(hosts)] == ["CallUndeliverable"] * 2
    assert [one.origin for one in hosts.sides[0].kernel.letters.of("caller/1")] == ["send"]
    assert hosts.count(0, "outbox") == 0


def test_a_call_without_an_end_is_in_no_batch_that_ends(hosts: Hosts) -> None:
    """Not even if what was to be sent first has to wait, because its place is not known."""
    hosts.lose = lambda send: True
    hosts.call("caller/1", "tell", "target/9", "x")
    hosts.call("caller/1", "ask", "target/1", "note", 1)
    hosts.call("caller/1", "go", "target/1", 1)
    hosts.run()
    (side, *_) = hosts.sides
    hosts.crash(side)
    hosts.sent.clear()

    side.events.append(PlacesFound([ActorPlace("target/1", to_target(hosts), 1)]))
    hosts.turn(side)

    (ending,) = [send for send in hosts.sent if send.to == to_target(hosts)]
    assert ending.ttl_ms is not None
    assert len(split(ending.data)) == 1


def test_tombstones_end_when_every_repeat_has_been_seen(tmp_path: Path) -> None:
    config = DurableConfig(durability="process", tombstone_ttl_ms=3_600_000)
    hosts = Hosts(tmp_path, [Caller], [Target], [Other], config=config)
    hosts.call("caller/1", "go", "target/1", 10)
    hosts.run()
    assert hosts.count(1, "done") == 10
    # Time alone ends nothing: only what the hub accepted later does.
    hosts.clock.advance(86_400)
    for _ in range(120):
        hosts.turn(hosts.sides[1])
    assert hosts.count(1, "done") == 10
    hosts.call("caller/1", "go", "target/1", 1)
    hosts.run()
    for _ in range(120):
        hosts.turn(hosts.sides[1])

    assert hosts.count(1, "done") == 1


def test_the_answer_of_a_late_actor_reaches_its_caller_after_both_restarted(hosts: Hosts) -> None:
    hosts.call("caller/1", "ask", "target/1", "later")
    hosts.run()
    for side in hosts.sides:
        hosts.crash(side)
    hosts.call("target/1", "answer")
    hosts.advance(5)

    assert outcomes(hosts) == ["late"]
