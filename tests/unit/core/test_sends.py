"""Messages whose recipients do not read, or are gone before the hub knows it."""

from __future__ import annotations

from signalhub.core.effects import FanOut
from signalhub.core.messages.ask import AskReceipt
from signalhub.settings.model import Settings
from tests.support.memory.shell import MemoryShell, Peer, envelope


def stalled_ask() -> tuple[MemoryShell, Peer, Peer]:
    """Alice has asked Bob, who does not read."""
    shell = MemoryShell()
    alice, bob = shell.join("@(local/alice)"), shell.join("@(local/bob)")
    bob.stall()
    assert alice.send("@(local/bob)", pattern="ask", id="a1") == []
    return shell, alice, bob


def test_an_overflowing_target_refuses_the_ask_for_now() -> None:
    shell, alice, bob = stalled_ask()
    (receipt,) = shell.hub.pending.values()
    assert isinstance(receipt, AskReceipt)
    bob.waiting.clear()

    shell.perform(shell.hub.overflowed(receipt, 10_000, shell.now))

    (reply,) = alice.take()
    assert reply["payload"]["code"] == "queue_full"
    assert reply["payload"]["retryable"] is True
    assert reply["payload"]["details"]["waiting"] == 10_000
    assert shell.hub.pending == {}


def test_asks_on_their_way_to_a_drained_session_are_settled() -> None:
    shell, _, _ = stalled_ask()

    shell.perform(shell.hub.drain(shell.now))

    assert shell.hub.pending == {}


def test_copies_that_cannot_be_queued_are_counted_as_failed() -> None:
    shell = MemoryShell()
    alice, bob = shell.join("@(local/alice)"), shell.join("@(local/bob)")
    # The socket has closed, but the hub has not heard of it yet.
    bob.closed = (1006, "")

    ack = alice.ask("hub:broadcast", {"type": "t"})

    assert (ack["payload"]["deliveredCount"], ack["payload"]["failedCount"]) == (1, 1)
    assert (shell.tally.broadcasts, shell.tally.broadcast_copies) == (1, 1)
    assert shell.tally.broadcast_failed == 1


def test_fan_outs_name_the_size_of_their_batches() -> None:
    shell = MemoryShell(Settings(broadcast_batch=7, fanout_batch=9))
    peer = shell.join("@(local/a)")

    batches = []
    for type in ("hub:broadcast", "hub:publish"):
        frame = envelope(type, {"type": "t", "topic": "t"})
        (effect,) = shell.hub.received(peer.session, frame, shell.now)
        assert isinstance(effect, FanOut)
        batches.append(effect.chunk)

    assert batches == [7, 9]
