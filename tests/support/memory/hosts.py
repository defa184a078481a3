"""Hosts of durable actors on a memory shell, in few words."""

from __future__ import annotations

from typing import Any

from signalhub.settings.model import Settings
from tests.support.memory.engine import Shelf
from tests.support.memory.shell import SETTLING_HELLO, MemoryShell, Message, Peer
from tests.support.memory.topics import code_of

A, B = "@(h/a)", "@(h/b)"
ACTOR = "order/17"


def register(peer: Peer, *kinds: str, **payload: Any) -> Message:
    """Register this peer's address as a host; the reply."""
    capabilities = ["actor-host", *(f"actor:{kind}" for kind in kinds)]
    given: dict[str, Any] = {"capabilities": capabilities, "durable": True}
    return peer.register(**(given | payload))


def host(shell: MemoryShell, address: str = A, *kinds: str, **payload: Any) -> Peer:
    """A host that is there, of `order` unless said otherwise, and settles what it gets."""
    peer = shell.connect(address, metadata=SETTLING_HELLO)
    reply = register(peer, *(kinds or ("order",)), **payload)
    assert reply["type"] == "hub:registered", reply
    peer.take()
    return peer


def hosted(settings: Settings | None = None) -> tuple[MemoryShell, Peer, Peer]:
    """A hub with a caller and one host."""
    shell = MemoryShell(settings)
    return shell, shell.connect("@(a/caller)"), host(shell)


def two_hosts(settings: Settings | None = None) -> tuple[MemoryShell, Peer, Peer]:
    """A hub with two hosts, and the actor on the first."""
    shell = MemoryShell(settings)
    hosts = host(shell), host(shell, B)
    assert place(hosts[0], ACTOR, host=A) == {ACTOR: (A, 1)}
    for one in hosts:
        one.take()
    return shell, *hosts


def places(reply: Message) -> dict[str, tuple[str, int]]:
    """Where the actors are that have a place."""
    assert reply["type"] == "hub:placed", reply
    return {one["actor"]: (one["host"], one["token"]) for one in reply["payload"]["places"]}


def unplaced(reply: Message) -> dict[str, str]:
    """Why the others have none."""
    assert reply["type"] == "hub:placed", reply
    return {one["actor"]: one["code"] for one in reply["payload"]["unplaced"]}


def place(peer: Peer, *actors: str, **payload: Any) -> dict[str, tuple[str, int]]:
    """Ask for places; those there are."""
    return places(peer.ask("hub:place", {"actors": list(actors or (ACTOR,))} | payload))


def move(peer: Peer, token: int = 1, to: str = B, actor: str = ACTOR) -> Message:
    return peer.ask("hub:move", {"actor": actor, "token": token, "to": to})


def where(shell: MemoryShell, actor: str = ACTOR) -> tuple[str, int] | None:
    """Where the hub believes an actor to be."""
    found = shell.hub.placements.find(actor)
    return None if found is None else (found.host, found.token)


def send(peer: Peer, to: str = A, fences: dict[str, int] | None = None, **members: Any) -> Message:
    """Ask a host something, with fences; the reply."""
    return peer.ask("hub:send", {"to": to, "type": "call", "fences": fences}, **members)


def stale(reply: Message) -> list[Message]:
    """What a refusal names as stale."""
    assert code_of(reply) == "stale_placement"
    assert reply["payload"]["retryable"] is False
    found: list[Message] = reply["payload"]["details"]["stale"]
    return found


def cut(shell: MemoryShell, *, keeps_snapshot: bool = False) -> MemoryShell:
    """Delete as much of the log as may be after everything is anchored, and start again."""
    end = shell.engine.head
    while shell.hub.anchors.anchored() < end:
        shell.perform(shell.hub.anchors.anchor(end, shell.now))
    shell.engine.cut(shell.hub.anchors.anchored())
    if not keeps_snapshot:
        shell.shelf = Shelf()
    return shell.restarted()
