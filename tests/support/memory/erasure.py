"""Two people whose messages are told apart, and requests to erase, on a memory shell."""

from __future__ import annotations

from typing import Any

from signalhub.wire.entry import Kind, SettledBody, StoredEntry, decode_body
from tests.support.memory.shell import MemoryShell, Message, Peer
from tests.support.memory.topics import create, publish

ADA, BOB = "@(people/ada)", "@(people/bob)"


def erase(peer: Peer, **payload: Any) -> Message:
    reply: Message = peer.ask("hub:erase", payload)
    return reply


def erased(peer: Peer, **payload: Any) -> dict[str, Any]:
    reply = erase(peer, **payload)
    assert reply["type"] == "hub:erased", reply
    found: dict[str, Any] = reply["payload"]
    return found


def entries(shell: MemoryShell, kind: Kind) -> list[StoredEntry]:
    return [one for one in shell.engine.entries if one.kind == kind]


def outcomes(shell: MemoryShell) -> list[tuple[str, int, int]]:
    """Stream, position and outcome of every settlement that can be read."""
    return [
        (one.stream, delivery.seq, delivery.outcome)
        for one in entries(shell, Kind.SETTLED)
        if not one.is_erased
        for delivery in decode_body(SettledBody, one.body).deliveries
    ]


def holds(shell: MemoryShell, text: str) -> bool:
    """Is it anywhere in the log?"""
    return any(text.encode() in one.body or text in one.stream for one in shell.engine.entries)


def two_senders(shell: MemoryShell) -> tuple[Peer, Peer]:
    """Ada's messages have the odd positions of the topic, Bob's the even ones."""
    ada, bob = shell.connect(ADA), shell.connect(BOB)
    create(ada)
    for turn in range(3):
        publish(ada, f"of ada {turn}")
        publish(bob, f"of bob {turn}")
    return ada, bob
