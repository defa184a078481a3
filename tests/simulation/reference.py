"""A hub in its simplest form: who is where, who hears what, whose lease has ended.

It is told every exchange, works out what the hub had to do, and complains if the hub did otherwise.
Nothing in it is fast or bounded; it knows the rules, not the hub.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from signalhub.settings.model import Settings
from signalhub.wire.names import topic_matches
from tests.simulation.events import Exchange
from tests.support.memory.shell import Message, Peer, Row

CLOCK_BEHIND_MS_MAX = 300_000


@dataclass(slots=True)
class Entry:
    """One registered address."""

    peer: Peer
    lease_ms: float
    renewed_ms: int


@dataclass(slots=True)
class Client:
    """What the hub may know of one socket."""

    hello_name: str
    name: str
    last_seen_ms: int
    clock_behind_ms: float = 0
    wall_ahead_ms: int = 0  # How far the hub's wall clock was ahead of its own time at the hello.
    addresses: list[str] = field(default_factory=list)
    topics: dict[tuple[str, str], None] = field(default_factory=dict)


class Reference:
    """The registry, the topics and the routes as they have to be."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.entries: dict[str, Entry] = {}
        self.clients: dict[Peer, Client] = {}
        self.away: dict[str, int] = {}

    def restarted(self, rows: dict[str, Row]) -> None:
        """All sockets are gone; the rows are what is remembered."""
        self.entries.clear()
        self.clients.clear()
        self.away = {row.address: row.expires_at_ms for row in rows.values()}

    def is_live(self, address: str, now: int) -> bool:
        entry = self.entries.get(address)
        if entry is None:
            return False
        seen_ms = max(entry.renewed_ms, self.clients[entry.peer].last_seen_ms)
        return seen_ms + entry.lease_ms > now

    def has_expired(self, exchange: Exchange) -> bool:
        request = exchange.request
        assert request is not None
        assert exchange.peer is not None
        if not request["ttl"]:
            return False
        client = self.clients[exchange.peer]
        expires_at = request["timestamp"] + request["ttl"] + client.clock_behind_ms
        ahead_ms = min(exchange.ahead_ms, client.wall_ahead_ms)
        return bool(expires_at - ahead_ms < exchange.now)

    def check(self, exchange: Exchange) -> None:
        """Follow one exchange."""
        if exchange.request is not None:
            self._check_request(exchange, exchange.request)
        else:
            assert not exchange.copies(), "actors' messages appeared out of nowhere"
        for peer in exchange.closed():
            self._forget(peer)
        self._check_rows(exchange)

    def _check_request(self, exchange: Exchange, request: Message) -> None:
        assert exchange.peer is not None
        client = self.clients.get(exchange.peer)
        if request["type"] == "hub:connect":
            self._connect(exchange, request)
            return
        assert client is not None
        if exchange.refusal() == "rate_limited":
            assert len(exchange.events) <= 2, "a rate-limited message had effects"
            return
        client.last_seen_ms = exchange.now
        payload = request["payload"]
        match request["type"]:
            case "hub:register":
                self._register(exchange, client, payload)
            case "hub:unregister":
                self._unregister(exchange.peer, client, payload["actorAddress"])
            case "hub:renew":
                if exchange.refusal() is None:
                    self.entries[request["from"]].renewed_ms = exchange.now
            case "hub:subscribe":
                if exchange.refusal() is None:
                    client.topics[self._hearer(client, request), payload["topic"]] = None
            case "hub:unsubscribe":
                self._unsubscribe(client, self._hearer(client, request), payload["topic"])
            case "hub:discover":
                self._check_discovery(exchange)
            case "hub:send":
                self._check_send(exchange, request)
            case "hub:publish" | "hub:broadcast":
                self._check_fan_out(exchange, request)
        if request["type"] not in ("hub:send", "hub:publish", "hub:broadcast"):
            assert not exchange.copies(), f"{request['type']} sent messages to actors"

    def _connect(self, exchange: Exchange, request: Message) -> None:
        peer, name = exchange.peer, request["from"]
        assert peer is not None
        behind_ms = exchange.now + exchange.ahead_ms - request["timestamp"]
        if not 0 < behind_ms <= CLOCK_BEHIND_MS_MAX:
            behind_ms = 0
        self.clients[peer] = Client(name, name, exchange.now, behind_ms, exchange.ahead_ms)

    def _register(self, exchange: Exchange, client: Client, payload: Message) -> None:
        peer, address = exchange.peer, payload["actorAddress"]
        assert peer is not None
        known = self.entries.get(address)
        if exchange.refusal() is not None:
            assert exchange.refusal() == "registry_full"
            assert known is None, "a known address was refused"
            taken = len(self.entries) / self._settings.registry.limit
            assert taken > self._settings.registry.refuse_above, "refused while there was room"
            return
        rivals = {
            other
            for other, its in self.clients.items()
            if its.name == address and other is not peer
        }
        assert exchange.closed() == rivals, "evicted somebody else than its rivals"
        for rival in rivals:
            self._forget(rival)
        if known is not None and known.peer not in (peer, *rivals):
            self._unregister(known.peer, self.clients[known.peer], address, is_moved=True)
        asked_s = payload.get("ttlSeconds") or self._settings.registry.lease_s
        lease_ms = min(max(asked_s, 1), self._settings.registry.lease_max_s) * 1000
        self.entries[address] = Entry(peer, lease_ms, exchange.now)
        self.away.pop(address, None)
        if address not in client.addresses:
            client.addresses.append(address)
        client.name = address

    def _unregister(
        self, peer: Peer, client: Client, address: str, *, is_moved: bool = False
    ) -> None:
        if address not in client.addresses:
            return
        client.addresses.remove(address)
        client.topics = {held: None for held in client.topics if held[0] != address}
        if not is_moved:
            del self.entries[address]
            if client.name == address:
                client.name = client.addresses[-1] if client.addresses else client.hello_name

    def _forget(self, peer: Peer) -> None:
        client = self.clients.pop(peer, None)
        for address in client.addresses if client else ():
            del self.entries[address]

    @staticmethod
    def _unsubscribe(client: Client, address: str, topic: str) -> None:
        """The address that asks, or else every address of the session that hears the topic."""
        if (address, topic) in client.topics:
            del client.topics[address, topic]
        else:
            client.topics = {held: None for held in client.topics if held[1] != topic}

    @staticmethod
    def _hearer(client: Client, request: Message) -> str:
        sender: str = request["from"]
        return sender if sender in client.addresses else client.name

    def _check_discovery(self, exchange: Exchange) -> None:
        (reply,) = exchange.replies()
        live = [address for address in self.entries if self.is_live(address, exchange.now)]
        found = [actor["address"] for actor in reply["payload"]["actors"]]
        assert found == live[:100], "discovery does not show who is there"
        assert reply["payload"]["hasMore"] is (len(live) > 100)

    def _check_send(self, exchange: Exchange, request: Message) -> None:
        target = request["payload"]["to"]
        is_live = self.is_live(target, exchange.now)
        copies = [(event.peer, event.message["to"]) for event in exchange.copies()]
        if copies:
            assert is_live, f"a message went to {target}, whose lease has ended"
            assert copies == [(self.entries[target].peer, target)], "a message went astray"
            assert not self.has_expired(exchange), "an expired message was delivered"
        elif request["pattern"] == "tell":
            assert not is_live or self.has_expired(exchange), "a message was swallowed"
        self._check_send_refusal(exchange, target, is_live)

    def _check_send_refusal(self, exchange: Exchange, target: str, is_live: bool) -> None:
        match exchange.refusal():
            case None:
                pass
            case "unknown_actor":
                assert not is_live, f"{target} is there, but was called unknown"
                assert self.away.get(target, 0) <= exchange.now
            case "actor_reconnecting":
                assert not is_live
                assert self.away[target] > exchange.now
            case "message_expired":
                assert self.has_expired(exchange), "a message was called expired before its time"
            case other:
                raise AssertionError(f"nothing explains {other}")

    def _check_fan_out(self, exchange: Exchange, request: Message) -> None:
        copies = [(event.peer, event.message["to"]) for event in exchange.copies()]
        if self.has_expired(exchange):
            expected = []
        elif request["type"] == "hub:publish":
            expected = self._audience(request["payload"]["topic"])
        else:
            expected = [
                (entry.peer, address)
                for address, entry in self.entries.items()
                if self.is_live(address, exchange.now)
            ]
        assert len(copies) == len(set(copies)), "an address got two copies"
        assert set(copies) == set(expected), f"{request['type']} reached the wrong ears"

    def _audience(self, topic: str) -> list[tuple[Peer, str]]:
        return [
            (peer, address)
            for peer, client in self.clients.items()
            for address, wanted in client.topics
            if topic_matches(wanted, topic)
        ]

    def _check_rows(self, exchange: Exchange) -> None:
        rows = exchange.shell.rows.keys()
        for address in self.away.keys() - rows:
            assert self.away.pop(address) <= exchange.now, "somebody was given up too early"
        assert rows >= self.entries.keys(), "a registration was not written, or was removed"
        assert rows <= self.entries.keys() | self.away.keys(), "a row outlived its registration"
