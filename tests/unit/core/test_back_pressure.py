"""Slow readers: when senders are told to hold, and when to go on."""

from __future__ import annotations

import pytest

from signalhub.core.sessions.outbound import Outbound
from signalhub.settings.model import OutboundSettings as Bounds
from tests.support.memory.shell import MemoryShell

BOUNDS = Bounds(
    pause_messages=4, resume_messages=2, messages_max=6, bytes_max=1_000, stalled_s=10.0
)


def filled(messages: int, size: int = 10) -> Outbound:
    outbound = Outbound(BOUNDS, 0)
    for _ in range(messages):
        outbound.queued(size)
    return outbound


def test_few_large_messages_hold_their_senders_by_the_bytes_the_transports_included() -> None:
    sender = MemoryShell().connect().session
    outbound = filled(1, 200)

    early = outbound.pause(sender, "@(a/b)", 299)
    late = outbound.pause(sender, "@(a/b)", 300)
    outbound.queued(300)
    outbound.drained(1, 249, 5)
    still_heavy = outbound.release()
    outbound.drained(0, 1, 6)

    assert (early, late) == (False, True)
    assert still_heavy == []
    assert outbound.release() == [(sender, "@(a/b)")]


@pytest.mark.parametrize(
    ("messages", "size", "next_size", "in_transport", "is_admitted"),
    [
        *((5, 10, 10, 0, True), (6, 10, 10, 0, False)),
        *((2, 450, 100, 0, True), (2, 450, 101, 0, False)),
        *((1, 200, 100, 700, True), (1, 200, 101, 700, False)),
    ],
)
def test_the_hard_bounds_are_exact(
    messages: int, size: int, next_size: int, in_transport: int, is_admitted: bool
) -> None:
    assert filled(messages, size).admits(next_size, in_transport) is is_admitted


def test_more_cannot_leave_a_queue_than_was_in_it() -> None:
    with pytest.raises(AssertionError):
        filled(1).drained(2, 10, 0)
    with pytest.raises(AssertionError):
        filled(1).drained(1, 11, 0)


def test_pause_and_resume_name_the_recipient_that_is_the_cause() -> None:
    shell = MemoryShell()
    sender = shell.connect("@(local/sender)")
    gone = shell.connect("@(local/gone)")
    sender.take()

    shell.perform(shell.hub.hold(sender.session, "@(local/slow)", shell.now))
    gone.drop()
    held = [(sender.session, "@(local/slow)"), (gone.session, "@(local/slow)")]
    shell.perform(shell.hub.resume(held, shell.now))

    pause, resume = sender.take()
    assert (pause["type"], pause["to"]) == ("hub:pause", "@(local/sender)")
    assert pause["payload"] == {"reason": "outbound_queue_full", "target": "@(local/slow)"}
    assert (resume["type"], resume["payload"]) == ("hub:resume", {"target": "@(local/slow)"})
    assert pause["correlationId"] is resume["correlationId"] is None
    assert len(gone.received) == 1
    assert (shell.tally.paused, shell.tally.resumed) == (1, 2)
