"""What waits for a span of time waits for that span, though somebody sets the wall clock.

So does what has to be remembered, across restarts, too. Tokens, times to live and delayed messages
are given by the wall clock; they are converted when they arrive, and a jump does not move them.
"""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.core import refusals
from signalhub.core.effects import EraseEntries
from signalhub.core.erasure import Erasures
from signalhub.settings.model import DispatchSettings, RegistrySettings, Settings
from signalhub.wire.entry import ErasedBody
from tests.support.memory.shell import SETTLING_HELLO, MemoryShell, Peer
from tests.support.memory.topics import (
    ACTOR,
    NAMED,
    attempts,
    create,
    position_of,
    publish,
    seqs,
    subscribe,
    subscription_of,
)

HOUR_S = 3_600
JUMPS = [HOUR_S, -HOUR_S]
HASTY: dict[str, Any] = {"ackTimeoutMs": 10_000, "backoffMs": 100, "backoffCapMs": 100}


def working(shell: MemoryShell, **options: Any) -> tuple[Peer, Peer]:
    """A subscription with a consumer on a hub that has been ticking; writer and reader."""
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer)
    subscribe(reader, **HASTY | options)
    shell.pass_time(2)
    return writer, reader


@pytest.mark.parametrize("jump_s", JUMPS)
@pytest.mark.parametrize("does_fail", [True, False], ids=["pause after a failure", "ack timeout"])
def test_a_wait_takes_as_long_as_it_should(does_fail: bool, jump_s: int) -> None:
    shell = MemoryShell()
    writer, reader = working(shell, backoffMs=10_000 if does_fail else 100, backoffCapMs=10_000)
    publish(writer)
    if does_fail:
        reader.ask("hub:nack", NAMED | {"seq": 1})
    reader.take()

    shell.clock.jump(jump_s)
    shell.tick()
    shell.pass_time(5)
    early = attempts(reader)
    shell.pass_time(8)

    assert early == []
    assert attempts(reader) == [(1, 2)]


@pytest.mark.parametrize("jump_s", JUMPS)
def test_the_watchdog_goes_on_looking(jump_s: int) -> None:
    shell = MemoryShell(Settings(dispatch=DispatchSettings(wakes=False)))
    writer, reader = working(shell)

    shell.clock.jump(jump_s)
    shell.tick()
    publish(writer)
    shell.pass_time(2)

    assert seqs(reader) == [1]
    assert subscription_of(shell).stats.heartbeat_polls == 1


@pytest.mark.parametrize("jump_s", JUMPS)
def test_the_next_consumer_is_promoted(jump_s: int) -> None:
    shell = MemoryShell(Settings(dispatch=DispatchSettings(failover_ms=3_000)))
    writer, reader = working(shell, mode="failover")
    standby = shell.connect("@(a/standby)")
    subscribe(standby, mode="failover")
    reader.drop()

    shell.clock.jump(jump_s)
    publish(writer)
    shell.tick()
    shell.pass_time(10)

    assert seqs(standby)[:1] == [1]


@pytest.mark.parametrize("jump_s", JUMPS)
def test_what_could_not_be_read_at_first_is_read_later(jump_s: int) -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    publish(writer)
    shell.hub.streams.topics["t"].recent.clear()
    found = shell.engine._found
    shell.engine._found = lambda fetch: []  # type: ignore[method-assign]
    reader = shell.connect("@(a/reader)")
    subscribe(reader)
    shell.pass_time(2)

    shell.clock.jump(jump_s)
    shell.tick()
    shell.engine._found = found  # type: ignore[method-assign]
    shell.pass_time(2)

    assert seqs(reader) == [1]


@pytest.mark.parametrize("jump_s", JUMPS)
def test_cursors_are_written_on(jump_s: int) -> None:
    shell = MemoryShell()
    writer, reader = working(shell)
    publish(writer)
    written = subscription_of(shell).stats.cursors

    shell.clock.jump(jump_s)
    shell.tick()
    reader.tell("hub:ack", NAMED | {"seq": 1})
    shell.pass_time(3)

    assert subscription_of(shell).stats.cursors > written
    assert position_of(shell.restarted()).floor == 1


@pytest.mark.parametrize("jump_s", JUMPS)
def test_mail_that_is_not_acknowledged_comes_again(jump_s: int) -> None:
    shell = MemoryShell()
    sender = shell.connect("@(a/sender)")
    actor = shell.connect(ACTOR, metadata=SETTLING_HELLO)
    actor.register(durable=True)
    shell.pass_time(2)
    sender.send(ACTOR, 1, pattern="ask")
    actor.take()

    shell.clock.jump(jump_s)
    shell.tick()
    shell.pass_time(35)

    assert attempts(actor) == [(1, 2)]


def test_an_erasure_that_failed_is_tried_again_though_the_clock_is_set_back() -> None:
    erasures, now = Erasures(), 10 * HOUR_S * 1000
    erasures.add(ErasedBody("actor", [(1, 1)]), offset=5)
    (erase,) = erasures.tick(now)
    assert isinstance(erase, EraseEntries)
    erase.then(refusals.storage_full(), now)

    early, later = erasures.tick(now + 1_000), erasures.tick(now - HOUR_S * 1000)

    assert (len(early), len(later)) == (0, 1)


def test_a_subscription_without_consumers_is_woken_by_whoever_comes_after_the_jump() -> None:
    shell = MemoryShell()
    writer, reader = working(shell)
    reader.drop()
    publish(writer)

    shell.clock.jump(-HOUR_S)
    shell.tick()
    shell.pass_time(2)
    reader = shell.connect("@(a/reader)")
    subscribe(reader)

    assert seqs(reader) == [1]


def test_a_tick_that_comes_a_little_late_is_no_jump() -> None:
    shell = MemoryShell()
    writer, reader = working(shell)
    publish(writer)
    reader.take()

    shell.advance(4_000)
    shell.tick()
    shell.advance(4_000)
    shell.tick()
    shell.advance(2_200)

    assert attempts(reader) == [(1, 2)]


def test_a_timeout_made_shorter_does_not_wait_for_longer_ones_before_it() -> None:
    shell = MemoryShell()
    writer, reader = working(shell, ackTimeoutMs=HOUR_S * 1_000)
    publish(writer)
    writer.ask("hub:sub_update", NAMED | {"ackTimeoutMs": 1_000})
    publish(writer)
    reader.take()

    shell.pass_time(2)

    assert attempts(reader) == [(2, 2)]


# Without durable topics.


def test_renewals_are_written_though_the_clock_is_set_back() -> None:
    shell = MemoryShell(Settings(registry=RegistrySettings(sweep_s=60.0)))
    peer = shell.join("@(local/a)")
    shell.pass_time(61)

    shell.clock.jump(-HOUR_S)
    peer.register()
    registered = len(shell.written)
    for _ in range(4):
        peer.tell("hub:heartbeat")
        shell.pass_time(50)

    assert len(shell.written) > registered


def test_the_next_minute_of_metrics_and_the_next_heartbeat_come_in_time() -> None:
    shell = MemoryShell(Settings(heartbeat_push_s=5.0))
    shell.tick()
    peer = shell.connect()
    peer.take()

    shell.clock.jump(-HOUR_S)
    shell.pass_time(12)
    pushed = [one["type"] for one in peer.take()]
    shell.pass_time(50)
    began = peer.ask("hub:metrics")["payload"]["windowStart"]

    assert pushed.count("hub:heartbeat_ack") >= 2
    assert 0 <= shell.clock.now_ms() - began <= 60_000
