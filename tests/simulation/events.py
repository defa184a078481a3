"""What a simulated hub is seen doing, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from signalhub.wire.names import HUB_ADDRESS
from tests.support.memory.shell import MemoryShell, Message, Peer, Waiter, decoded


@dataclass(frozen=True, slots=True)
class Emitted:
    """The hub wants a peer to have this message."""

    peer: Peer
    message: Message


@dataclass(frozen=True, slots=True)
class Handed:
    """The peer has it."""

    peer: Peer
    message: Message


@dataclass(frozen=True, slots=True)
class Closed:
    """The hub closed the peer's socket, or learned that it is gone."""

    peer: Peer


Event = Emitted | Handed | Closed


@dataclass(slots=True)
class Exchange:
    """One thing that happened to the hub, and all it did about it.

    `request` is the message that arrived, if it was one. `elapsed_ms` is how much time has passed
    in all, `ahead_ms` how far the wall clock is ahead of the hub's own time.
    """

    shell: MemoryShell
    now: int
    elapsed_ms: int
    peer: Peer | None = None
    request: Message | None = None
    events: list[Event] = field(default_factory=list)
    ahead_ms: int = field(init=False)

    def __post_init__(self) -> None:
        self.ahead_ms = self.shell.steady.ahead_ms

    def emitted(self) -> list[Emitted]:
        return [event for event in self.events if isinstance(event, Emitted)]

    def copies(self) -> list[Emitted]:
        """Messages of actors among what was emitted."""
        return [event for event in self.emitted() if event.message["from"] != HUB_ADDRESS]

    def closed(self) -> set[Peer]:
        return {event.peer for event in self.events if isinstance(event, Closed)}

    def replies(self) -> list[Message]:
        """The hub's answers to the request, on the socket it came from."""
        assert self.request is not None
        return [
            event.message
            for event in self.emitted()
            if event.peer is self.peer
            and event.message["from"] == HUB_ADDRESS
            and event.message["correlationId"] == self.request["id"]
        ]

    def refusal(self) -> str | None:
        """The code of the error the request was answered with."""
        codes = [reply["payload"].get("code") for reply in self.replies()]
        assert len(codes) <= 1, f"answered more than once: {codes}"
        return codes[0] if codes else None


class RecordingShell(MemoryShell):
    """A shell that writes down what it does into the running exchange."""

    def __init__(self, *args: Any, **members: Any) -> None:
        super().__init__(*args, **members)
        self.log: list[Event] = []
        self.plant(self)

    @staticmethod
    def plant(shell: RecordingShell) -> None:
        """What is wrong with this one, and with all its successors."""

    def write(self, peer: Peer, frame: bytes, receipt: Waiter | None) -> None:
        if peer.can_be_written:
            self.log.append(Emitted(peer, decoded(frame)))
        super().write(peer, frame, receipt)

    def hand_over(self, peer: Peer, frame: bytes, receipt: Waiter | None) -> None:
        super().hand_over(peer, frame, receipt)
        self.log.append(Handed(peer, peer.received[-1]))

    def close(self, peer: Peer, code: int, reason: str) -> None:
        self.log.append(Closed(peer))
        super().close(peer, code, reason)

    def dropped(self, peer: Peer) -> None:
        self.log.append(Closed(peer))
        super().dropped(peer)


class Lived(Protocol):
    """A world that can be run and listened to."""

    @property
    def checks(self) -> list[Callable[[Exchange], None]]: ...

    def run(self, steps: int) -> None: ...


def history(world: Lived, steps: int) -> list[Message]:
    """Everything the hub had to say in a run."""
    said: list[Message] = []

    def note(exchange: Exchange) -> None:
        said.extend(event.message for event in exchange.events if isinstance(event, Emitted))

    world.checks.append(note)
    world.run(steps)
    return said
