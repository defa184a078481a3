"""Merged wakes and reads that find nothing: what was published comes, and soon.

The clock is turned by hand where the specification gives a bound in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from signalhub.core.effects import Fetch
from signalhub.settings.model import DispatchSettings, LogSettings, Settings
from signalhub.wire.entry import StoredEntry
from tests.support.memory.shell import MemoryShell, Peer
from tests.support.socket.stage import run_stage
from tests.support.socket.topics import UNLIMITED, create, enter, publish_all, seqs

BURST, WINDOW = 1_000, 10
HEARTBEAT_MS = 500
STEP_MS = 5
FAULTS_MS = [300, 1_500, 3_000]
HEARTBEAT_POLLS = "signal_hub_dispatcher_heartbeat_polls_total"
WAKE_POLLS = "signal_hub_dispatcher_notifier_polls_total"
NAMED: dict[str, Any] = {"topic": "t", "subscription": "s"}


async def test_rd_9_2_burst_through_a_small_window_hardly_needs_the_watchdog() -> None:
    async with run_stage(dispatch={"heartbeat_ms": HEARTBEAT_MS}, **UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b", window=WINDOW)

        _, heard = await asyncio.gather(
            publish_all(publisher, range(BURST)), consumer.take_and_ack(BURST)
        )

        assert seqs(heard) == list(range(1, BURST + 1))
        assert await stage.metric(HEARTBEAT_POLLS) <= 1
        assert await stage.metric(WAKE_POLLS) > BURST / 2 / WINDOW


def test_rd_9_2_merged_wakes_need_no_watchdog_at_all() -> None:
    """All publications are committed before the first pass, so there is one wake for all."""
    shell = slow_shell()
    writer, reader = working(shell)
    shell.engine.is_prompt = False
    for number in range(BURST):
        payload = {"topic": "t", "type": "note", "data": number}
        writer.request("hub:publish", payload)
    shell.engine.is_prompt = True
    shell.settle()

    heard: list[int] = []
    while copies := [one["metadata"]["delivery"]["seq"] for one in reader.heard()]:
        heard += copies
        reader.ask("hub:ack", NAMED | {"upTo": copies[-1]})

    assert heard == list(range(1, BURST + 1))
    assert stats(shell).heartbeat_polls == 0


def slow_shell(**dispatch: Any) -> MemoryShell:
    """A hub that keeps nothing in memory, so that everything has to be read."""
    settings = Settings(
        message_rate=0.0,
        log=LogSettings(cache_bytes=1),
        dispatch=DispatchSettings(heartbeat_ms=HEARTBEAT_MS, **dispatch),
    )
    return MemoryShell(settings)


def working(shell: MemoryShell) -> tuple[Peer, Peer]:
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    writer.ask("hub:topic_create", {"topic": "t", "durable": True})
    reader.ask("hub:subscribe", NAMED | {"from": "earliest", "window": WINDOW})
    return writer, reader


def stats(shell: MemoryShell) -> Any:
    return shell.hub.streams.topics["t"].subscriptions["s"].stats


def finds_nothing(shell: MemoryShell) -> Callable[[], None]:
    """Reads are answered, but with nothing; how to end it."""
    found = shell.engine._found

    def nothing(fetch: Fetch) -> list[StoredEntry]:
        return []

    def end() -> None:
        shell.engine._found = found  # type: ignore[method-assign]

    shell.engine._found = nothing  # type: ignore[method-assign]
    return end


def fails(shell: MemoryShell) -> Callable[[], None]:
    """Reads end in errors."""
    end = finds_nothing(shell)
    shell.engine._found = lambda fetch: None  # type: ignore[assignment,method-assign,return-value]
    return end


def hangs(shell: MemoryShell) -> Callable[[], None]:
    """Reads are not answered at all."""
    shell.engine.is_readable = False

    def end() -> None:
        shell.engine.is_readable = True

    return end


@pytest.mark.parametrize("wakes", [True, False], ids=["wakes", "watchdog only"])
@pytest.mark.parametrize("fault_ms", FAULTS_MS)
@pytest.mark.parametrize("fault", [finds_nothing, fails, hangs])
def test_rd_9_3_what_cannot_be_read_at_first_comes_within_one_interval_after_the_fault(
    fault: Callable[[MemoryShell], Callable[[], None]], fault_ms: int, wakes: bool
) -> None:
    shell = slow_shell(wakes=wakes)
    writer, reader = working(shell)
    reader.take()
    end_fault = fault(shell)
    began = shell.now

    writer.request("hub:publish", {"topic": "t", "type": "note", "data": 1})
    shell.advance(fault_ms)
    assert reader.heard() == []
    end_fault()
    while not (heard := reader.heard()) and shell.now - began < fault_ms + 10 * HEARTBEAT_MS:
        shell.advance(STEP_MS)

    assert len(heard) == 1
    assert shell.now - began <= fault_ms + HEARTBEAT_MS


@pytest.mark.parametrize("fault_ms", FAULTS_MS)
def test_rd_9_3_the_log_is_not_asked_in_circles_while_it_finds_nothing(fault_ms: int) -> None:
    shell = slow_shell()
    writer, _ = working(shell)
    finds_nothing(shell)

    writer.request("hub:publish", {"topic": "t", "type": "note", "data": 1})
    shell.advance(fault_ms)

    assert 2 <= stats(shell).empty_reads <= 10 + fault_ms // 100


def test_rd_9_3_a_fault_in_the_middle_of_a_backlog_loses_and_repeats_nothing() -> None:
    shell = slow_shell()
    writer, reader = working(shell)
    for number in range(100):
        writer.ask("hub:publish", {"topic": "t", "type": "note", "data": number})
    heard: list[int] = []
    end_fault: Callable[[], None] | None = None

    for turn in range(200):
        copies = [one["metadata"]["delivery"]["seq"] for one in reader.heard()]
        heard += copies
        if copies:
            if turn % 3 == 1 and end_fault is None:
                end_fault = finds_nothing(shell)
            reader.ask("hub:ack", NAMED | {"upTo": copies[-1]})
        else:
            if end_fault is not None:
                end_fault()
                end_fault = None
            shell.advance(HEARTBEAT_MS)
        if len(heard) >= 100:
            break

    assert heard == list(range(1, 101))
