"""Pattern subscriptions on a memory shell, in few words."""

from __future__ import annotations

from typing import Any

from signalhub.core.patterns.pattern import Pattern
from tests.support.memory.shell import MemoryShell, Message, Peer

ORDERS = "orders/#"
BILLING: dict[str, Any] = {"pattern": ORDERS, "subscription": "billing"}


def people(shell: MemoryShell) -> tuple[Peer, Peer]:
    """A writer and a reader."""
    return shell.connect("@(a/writer)"), shell.connect("@(a/reader)")


def consume(peer: Peer, **options: Any) -> Message:
    """Join the pattern, from the earliest messages on; what the hub says."""
    reply = peer.ask("hub:subscribe", BILLING | {"from": "earliest"} | options)
    assert reply["type"] == "hub:subscribed", reply
    payload: Message = reply["payload"]
    return payload


def came(peer: Peer) -> list[tuple[str, int]]:
    """Topic and position of what has come since the last look."""
    return [(one["metadata"]["topic"], one["metadata"]["delivery"]["seq"]) for one in peer.heard()]


def ack(peer: Peer, topic: str, *seqs: int) -> Message:
    return peer.ask("hub:ack", {"topic": topic, "subscription": "billing", "seqs": list(seqs)})


def info(peer: Peer, **where: Any) -> Message:
    """What the hub shows of the pattern, or of one subscription."""
    reply = peer.ask("hub:sub_info", where or BILLING)
    assert reply["type"] == "hub:sub_info_response", reply
    payload: Message = reply["payload"]
    return payload


def asked(peer: Peer, type: str, **payload: Any) -> Message:
    """Ask something about the pattern; the payload of the answer, which may take some turns."""
    before = len(peer.received)
    peer.request(type, BILLING | payload)
    (reply,) = [
        one
        for one in peer.received[before:]
        if one["correlationId"] and one["type"].startswith("hub:")
    ]
    answer: Message = reply["payload"]
    return answer


def pattern_of(shell: MemoryShell) -> Pattern:
    found = shell.hub.patterns.index.find(ORDERS, "billing")
    assert found is not None
    return found
