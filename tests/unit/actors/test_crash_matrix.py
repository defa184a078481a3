"""The process ends at every point where that could matter; afterwards all promises are kept.

Every case is repeated with more crashes in a row and more calls under way.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from signalhub.actors import remote
from signalhub.actors.api.config import DurableConfig
from tests.support.actors import scripted
from tests.support.actors.scripted import QUICK, Scripted, Stage
from tests.support.actors.several_hosts import Crash, Fuse, Hosts
from tests.support.volume import volume

rounds = pytest.mark.parametrize("round_", range(volume(4, 10)))
points = pytest.mark.parametrize("point", ["handler", "commit", "committed"])

TIMEOUT = ["timeout", "unknown"]
QUEUES = ("pending", "inbox", "outbox", "dead")
# One message a turn, so that others are stored and not executed.
NARROW = DurableConfig(durability="process", inbound_batch_size=1)

# Which methods ran since the last commit.
steps: list[str] = []


@pytest.fixture(autouse=True)
def _no_steps() -> None:
    steps.clear()


class Caller(Scripted):
    def note(self, value: Any = None) -> None:
        steps.append("on_done")
        super().note(value)

    def ring(self) -> None:
        steps.append("ring")
        rung = self.state.get("rung", 0) + 1
        self.state.put("rung", rung)
        self.send("target/1", "note", 2_000 + rung)


class Target(scripted.Target):
    @remote
    def note(self, value: Any = None) -> Any:
        steps.append("add")
        return super().note(value)


def go(self: Caller, count: int) -> None:
    steps.append("go")
    self.state.put("went", self.state.get("went", 0) + 1)
    for number in range(count):
        self.call("target/1", "note", number, then=self.note, timeout=None)
        self.send("target/1", "note", number + 1_000)


def go_later(self: Caller, count: int) -> None:
    for _ in range(count):
        self.call("target/1", "later", then=self.note, timeout=10)


def set_alarms(self: Caller, count: int) -> None:
    for _ in range(count):
        self.alarms.schedule(5, self.ring)
    self.alarms.every(5, self.ring, id="recurring")


def after(step: str, point: str) -> Callable[[str], bool]:
    """Is this the point, and has that method just run, or run in this turn?"""

    def is_wanted(reached: str) -> bool:
        has_run = steps[-1:] == [step] if point == "handler" else step in steps
        is_it = reached == point and has_run
        if is_it or reached == "committed":
            steps.clear()
        return is_it

    return is_wanted


def survive(local: Stage) -> None:
    """Run, and restart after every crash."""
    while True:
        try:
            local.run()
            return
        except Crash:
            local.restart()


def one_host(
    folder: Path, round_: int, is_wanted: Callable[[str], bool], config: DurableConfig = QUICK
) -> tuple[Stage, Fuse]:
    fuse = Fuse(0, is_wanted)
    local = Stage(Caller, Target, path=folder / "a.db", config=config, reached=fuse)
    if round_ % 2:
        # The target has a place already, so that calls go into its inbox at once.
        local.call("target/1", "note", -1)
        steps.clear()
    fuse.charges = round_ + 1
    return local, fuse


def added(count: int) -> list[int]:
    """What the target is given by `go`, in this order."""
    return [number + extra for number in range(count) for extra in (0, 1_000)]


def seen(host: Stage | Hosts) -> list[int]:
    return [one for one in host.notes("target/1") if one >= 0]


def check(host: Stage | Hosts, calls: int) -> None:
    """Everything once, in order, and nothing left."""
    assert seen(host) == added(calls)
    assert host.notes() == list(range(calls))
    assert host.state("caller/1").get("went") == 1
    assert left_in(host) == 0


def left_in(host: Stage | Hosts) -> int:
    if isinstance(host, Stage):
        return host.count(*QUEUES)
    return sum(host.count(number, table) for number in (0, 1) for table in QUEUES)


ONE_HOST: dict[str, tuple[Callable[[str], bool], DurableConfig]] = {
    "K1 inside a handler": (after("go", "handler"), QUICK),
    "K1 after the handler, before the commit": (after("go", "commit"), QUICK),
    "K2 after the commit, before anything is sent": (after("go", "committed"), QUICK),
    "K5 inside the handler of the target": (after("add", "handler"), QUICK),
    "K5 before the commit of the target": (after("add", "commit"), QUICK),
    "K7 the result is stored, its continuation has not run": (after("add", "committed"), NARROW),
    "K8 inside the continuation": (after("on_done", "handler"), QUICK),
    "K8 before the commit of the continuation": (after("on_done", "commit"), QUICK),
    "K8 right after the continuation": (after("on_done", "committed"), NARROW),
}


@rounds
@pytest.mark.parametrize("case", ONE_HOST)
def test_calls_within_a_host(tmp_path: Path, case: str, round_: int) -> None:
    is_wanted, config = ONE_HOST[case]
    local, fuse = one_host(tmp_path, round_, is_wanted, config)
    local.start("caller/1", go, round_ + 6)
    survive(local)

    # There may be fewer such points than charges, because many steps share a turn.
    assert fuse.burnt
    check(local, round_ + 6)


@rounds
def test_k3_after_the_batch_was_sent_and_before_its_receipt(tmp_path: Path, round_: int) -> None:
    hosts = Hosts(tmp_path, [Caller], [Target])
    caller, target = hosts.sides
    crashes = round_ + 1

    def ends_after_sending(send: Any) -> bool:
        nonlocal crashes
        if send.to == target.name and crashes:
            crashes -= 1
            hosts.deliver(send.to, send.type, send.data, caller.name)
            raise Crash
        return False

    hosts.lose = ends_after_sending
    hosts.do("caller/1", go, 5)
    hosts.advance(60)

    assert crashes == 0
    check(hosts, 5)
    assert target.kernel.counters.duplicates == 10 * (round_ + 1)


@rounds
def test_k4_the_target_has_stored_what_is_not_settled(tmp_path: Path, round_: int) -> None:
    hosts = Hosts(tmp_path, [Caller], [Target], config=NARROW)
    fuse = Fuse(round_ + 1, lambda point: point == "committed" and hosts.count(1, "inbox") > 0)
    hosts.sides[1].reached = fuse
    hosts.do("caller/1", go, 10)
    hosts.advance(60)

    assert fuse.burnt == fuse.charges
    check(hosts, 10)


@rounds
@points
def test_k5_and_k6_in_the_target_before_its_commit_or_before_its_results_are_sent(
    tmp_path: Path, point: str, round_: int
) -> None:
    hosts = Hosts(tmp_path, [Caller], [Target])
    hosts.sides[1].reached = fuse = Fuse(round_ + 1, after("add", point))
    for number in range(round_ + 2):
        hosts.do(f"caller/{number}", go, 3)
        hosts.advance(1)
    hosts.advance(60)

    assert fuse.burnt == fuse.charges
    for number in range(round_ + 2):
        assert hosts.notes(f"caller/{number}") == [0, 1, 2]
    assert len(seen(hosts)) == 6 * (round_ + 2)
    assert left_in(hosts) == 0


@rounds
@points
def test_k7_and_k8_in_the_caller_with_its_results(tmp_path: Path, point: str, round_: int) -> None:
    config = DurableConfig(durability="process", inbound_batch_size=2)
    hosts = Hosts(tmp_path, [Caller], [Target], config=config)
    hosts.sides[0].reached = fuse = Fuse(round_ + 1, after("on_done", point))
    hosts.do("caller/1", go, 24)
    hosts.advance(60)

    assert fuse.burnt == fuse.charges
    check(hosts, 24)


@rounds
@pytest.mark.parametrize("point", ["timeout", "commit", "committed"])
@pytest.mark.parametrize("is_answered", [False, True])
def test_k9_between_a_timeout_and_its_commit(
    tmp_path: Path, point: str, is_answered: bool, round_: int
) -> None:
    local, fuse = one_host(tmp_path, 0, lambda reached: is_late and reached == point)
    is_late = False
    local.do("caller/1", go_later, 3)
    local.clock.advance(10)
    fuse.charges = round_ + 1
    is_late = True
    if is_answered:
        local.begin("target/1", "answer")
    survive(local)
    fuse.charges = 0
    local.advance(60)
    local.call("target/1", "answer")

    assert fuse.burnt > 0
    assert len(local.notes()) == 3
    assert all(one in (TIMEOUT, "late") for one in local.notes())
    assert local.count("pending") == 0


@rounds
@points
def test_k10_in_an_alarm(tmp_path: Path, point: str, round_: int) -> None:
    local, fuse = one_host(tmp_path, round_, after("ring", point))
    local.do("caller/1", set_alarms, round_ + 2)
    local.clock.advance(5)
    survive(local)

    assert fuse.burnt > 0
    rings = round_ + 3
    assert local.state("caller/1").get("rung") == rings
    assert seen(local) == list(range(2_001, 2_001 + rings))
    assert local.count("alarms") == 1


@rounds
def test_k11_during_the_recovery(tmp_path: Path, round_: int) -> None:
    local, fuse = one_host(tmp_path, 0, lambda point: point == "recovery")
    fuse.charges = 0
    local.do("caller/1", go_later, 3)
    local.start("caller/1", go, 5)
    local.turn()
    local.clock.advance(10)
    local.restart()
    fuse.charges = round_ + 1
    survive(local)

    assert fuse.burnt == fuse.charges
    assert sorted(local.notes(), key=str) == [*range(5), *[TIMEOUT] * 3]
    assert seen(local) == added(5)


@rounds
def test_k12_the_clock_is_set_back_an_hour_across_a_restart(tmp_path: Path, round_: int) -> None:
    local, _ = one_host(tmp_path, 0, lambda point: False, NARROW)
    local.do("caller/1", go_later, 1)
    local.start("caller/1", go, 4)
    for _ in range(round_ + 1):
        local.turn()
    local.clock.jump(-3_600)
    local.restart()
    local.start("caller/1", go, 3)
    local.run()

    assert seen(local) == added(4) + added(3)
    assert local.notes() == [*range(4), *range(3)]
    # No deadline has passed, and none was forgotten.
    assert local.kernel.counters.timeouts == 0
    local.advance(3_611)
    assert local.notes()[7:] == [TIMEOUT]


@rounds
@pytest.mark.parametrize("point", ["handler", "timeout", "recovery", "commit", "committed"])
def test_crashes_at_every_point_of_everything(tmp_path: Path, point: str, round_: int) -> None:
    hosts = Hosts(tmp_path, [Caller], [Target])
    hosts.be_unreliable(round_)
    hits = 0

    def every_fifth(reached: str) -> bool:
        nonlocal hits
        hits += reached == point
        return reached == point and hits % 5 == round_ % 5

    for side in hosts.sides:
        side.reached = Fuse(12, every_fifth)
    hosts.do("caller/1", go, 20)
    hosts.do("caller/1", go_later, 2)
    hosts.do("caller/1", set_alarms, 2)
    hosts.advance(69)

    expected = [*range(20), TIMEOUT, TIMEOUT]
    assert sorted(hosts.notes(), key=str) == sorted(expected, key=str)
    rung = hosts.state("caller/1").get("rung")
    assert rung >= 3
    assert [one for one in seen(hosts) if one <= 2_000] == added(20)
    assert [one for one in seen(hosts) if one > 2_000] == list(range(2_001, 2_001 + rung))
    assert left_in(hosts) == 0
