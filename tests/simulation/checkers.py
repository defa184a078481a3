"""Promises, checked against everything that was seen; none of them looks at how the hub works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from signalhub.core.hub import Hub
from signalhub.core.messages.audience import Audience
from signalhub.settings.model import Settings
from signalhub.wire.names import HUB_ADDRESS
from tests.simulation.events import Emitted, Exchange, Handed
from tests.support.memory.shell import MemoryShell, Message, Peer

WINDOW_MS = 300_000
NEVER_LIMITED = ("hub:connect", "hub:heartbeat", "hub:renew", "hub:disconnect")

Check = Callable[[Exchange], None]
Key = tuple[str, str]  # The sender and the id of an ask.


class Order:
    """What one session sends to one recipient arrives in the order it was sent.

    Every transmission carries a serial number of the world.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, Peer, str], int] = {}

    def check(self, exchange: Exchange) -> None:
        for event in exchange.events:
            if isinstance(event, Handed) and event.message["from"] != HUB_ADDRESS:
                data = event.message["payload"]
                route = (data["session"], event.peer, event.message["to"])
                assert data["serial"] > self._last.get(route, 0), "overtaken by a later message"
                self._last[route] = data["serial"]


@dataclass(slots=True)
class Ask:
    """One ask of one sender, over all its repeats; `target` is where its copy was sent."""

    target: Peer | None = None
    # Who asked first, until it is told.
    first: Peer | None = None
    unanswered: list[Peer] = field(default_factory=list)
    handed_at_ms: int | None = None
    handed_elapsed_ms: int = 0
    ack: Message | None = None

    @property
    def is_on_its_way(self) -> bool:
        return self.target is not None and self.target.closed is None and self.handed_at_ms is None

    @property
    def is_awaited(self) -> bool:
        return any(peer.closed is None for peer in self.unanswered)


class Asks:
    """An ask is acknowledged when its copy was handed over, not sooner, and answered once.

    Repeats within the window are neither delivered again nor answered differently.
    """

    def __init__(self) -> None:
        self._asks: dict[Key, Ask] = {}
        self.repeats = 0

    def unanswered(self) -> list[Key]:
        """Asks whose asker is still there and still waits."""
        return [key for key, ask in self._asks.items() if ask.is_awaited]

    def check(self, exchange: Exchange) -> None:
        request = exchange.request
        if request is not None and request["type"] == "hub:send" and request["pattern"] == "ask":
            self._asked(exchange, request)
        handed: list[Ask] = []
        for event in exchange.events:
            message = event.message if isinstance(event, Emitted | Handed) else {}
            match event, message.get("type"):
                case Handed(), "news":
                    handed += self._handed(exchange, message)
                case Emitted(), "hub:delivery_ack":
                    self._acked(event.peer, message)
                case Emitted(), "hub:unknown_actor" | "hub:error":
                    self._refused(event.peer, message)
        assert not any(ask.is_awaited for ask in handed), "handed over, but not acknowledged"

    def _asked(self, exchange: Exchange, request: Message) -> None:
        assert exchange.peer is not None
        key = (request["from"], request["id"])
        ask = self._asks.setdefault(key, Ask())
        copies = exchange.copies()
        if ask.is_on_its_way:
            assert not copies, "delivered again while the first copy is on its way"
            if exchange.refusal() is None and exchange.peer not in ask.unanswered:
                ask.unanswered.append(exchange.peer)
        elif copies:
            is_repeat = ask.handed_at_ms is not None
            age_ms = exchange.elapsed_ms - ask.handed_elapsed_ms
            assert not is_repeat or age_ms > WINDOW_MS, "delivered twice within the window"
            self._asks[key] = Ask(copies[0].peer, exchange.peer, [exchange.peer])
        else:
            replies = exchange.replies()
            assert replies, "an ask was neither delivered nor answered"
            if replies[0]["type"] == "hub:delivery_ack":
                self.repeats += 1
                ask.unanswered.append(exchange.peer)

    def _handed(self, exchange: Exchange, message: Message) -> list[Ask]:
        original_id = message["metadata"].get("originalMessageId", "")
        ask = self._asks.get((message["from"], original_id))
        if ask is None:
            return []
        assert ask.handed_at_ms is None, "the same copy arrived twice"
        ask.handed_at_ms = exchange.now
        ask.handed_elapsed_ms = exchange.elapsed_ms
        return [ask]

    def _acked(self, peer: Peer, message: Message) -> None:
        ask = self._asks[message["to"], message["correlationId"]]
        assert ask.handed_at_ms is not None, "acknowledged before it was handed over"
        delivered_at_ms = message["payload"]["deliveredAt"]
        assert delivered_at_ms == ask.handed_at_ms, "acknowledged with another time"
        payload = dict(message["payload"])
        is_repeat = payload.pop("duplicate", False)
        assert is_repeat is (peer is not ask.first), "a repeat is not marked, or a first answer is"
        ask.first = None
        ask.ack = ask.ack or payload
        assert payload == ask.ack, "another answer than the first time"
        self._answered(ask, peer)

    def _refused(self, peer: Peer, message: Message) -> None:
        ask = self._asks.get((message["to"], message["correlationId"]))
        if ask is None or ask.target is None or message["payload"]["code"] == "rate_limited":
            return
        if peer in ask.unanswered:
            assert ask.handed_at_ms is None, "refused though it was handed over"
            self._answered(ask, peer)

    @staticmethod
    def _answered(ask: Ask, peer: Peer) -> None:
        assert peer in ask.unanswered, "answered to somebody who did not ask, or twice"
        ask.unanswered.remove(peer)


class Bounds:
    """The registry stays below its limit, and nobody sends more than burst and rate allow."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._charged: dict[Peer, list[int]] = {}

    def check(self, exchange: Exchange) -> None:
        hub = exchange.shell.hub
        assert len(hub.registry) <= self._settings.registry.limit, "the registry is over its limit"
        request, peer = exchange.request, exchange.peer
        if not self._settings.message_rate or request is None or peer is None:
            return
        tokens = peer.session.bucket.tokens
        assert 0 <= tokens <= self._settings.message_burst, f"{tokens} tokens in a bucket"
        if request["type"] in NEVER_LIMITED:
            assert exchange.refusal() != "rate_limited", f"{request['type']} was rate limited"
        elif exchange.refusal() != "rate_limited":
            self._charge(peer, exchange.elapsed_ms)

    def _charge(self, peer: Peer, elapsed_ms: int) -> None:
        charged = self._charged.setdefault(peer, [])
        charged.append(elapsed_ms)
        for count, began_ms in enumerate(reversed(charged), start=1):
            spent_s = (elapsed_ms - began_ms) / 1000
            allowed = self._settings.message_burst + self._settings.message_rate * spent_s
            assert count <= allowed + 1e-6, "more messages than burst and rate allow"
            if spent_s * self._settings.message_rate > len(charged):
                break


def assert_nothing_is_left(shell: MemoryShell) -> None:
    """After everybody has gone and every lease has ended."""
    hub: Hub = shell.hub
    left = {
        "sessions": len(hub.sessions),
        "registrations": len(hub.registry),
        "restored": len(hub.registry._away),
        "identities": len(hub.identities),
        "asks": len(hub.pending),
        "topics": len(hub.topics._exact),
        "wildcards": len(hub.topics._wildcards.below),
        "audiences": sum(
            len(one.recipients)
            for one in hub.topics._audiences.values()
            if isinstance(one, Audience)
        ),
        "tokens": len(hub.sessions._token_ends_ms),
        "ids": hub.dedup.count,
        "rows": len(shell.rows),
    }
    assert not any(left.values()), f"left behind: {left}"
