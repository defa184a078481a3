"""Tells and asks agree with a hub of eighty lines, whatever order things happen in."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from signalhub.core.messages.dedup import fingerprint
from signalhub.settings.model import Settings
from tests.support.memory.shell import MemoryShell, Message, Peer

NAMES = ["@(a/1)", "@(a/2)", "@(a/3)"]
WINDOW_MS = 300_000
names = st.sampled_from(NAMES)

Key = tuple[str, str]  # The sender and the id of an ask.
Entry = tuple[str, object, object]


def entry_of(message: Message) -> Entry | None:
    """What matters of a message; `None` for what the model does not follow."""
    payload = message["payload"]
    match message["type"]:
        case "news":
            return ("news", message["from"], payload)
        case "hub:delivery_ack":
            return ("ack", message["correlationId"], payload["deliveredAt"])
        case "hub:unknown_actor":
            return ("unknown", message["correlationId"], payload["retryable"])
    return None


class RouterModel(RuleBasedStateMachine):
    """Every peer receives exactly what the model says, in that order."""

    def __init__(self) -> None:
        super().__init__()
        self.shell = MemoryShell(Settings(message_rate=0))
        self.peers: dict[str, Peer] = {}
        self.expected: dict[Peer, list[Entry]] = {}
        self.waiting: dict[Peer, list[tuple[Entry, Key | None]]] = {}
        self.pending: dict[Key, list[Peer]] = {}
        self.accepted: dict[Key, int] = {}
        self.serial = 0
        for name in NAMES:
            self.join(name)

    # What the model expects.

    def put(self, peer: Peer, entry: Entry, key: Key | None = None) -> None:
        if peer.closed is not None:
            return
        if peer.is_stalled:
            self.waiting[peer].append((entry, key))
            return
        self.expected[peer].append(entry)
        if key is not None:
            self.handed_over(key)

    def handed_over(self, key: Key) -> None:
        self.accepted[key] = self.shell.now
        for asker in self.pending.pop(key):
            self.put(asker, ("ack", key[1], self.shell.now))

    def lose(self, peer: Peer) -> None:
        waiting, self.waiting[peer] = self.waiting[peer], []
        for _, key in waiting:
            if key is not None:
                for asker in self.pending.pop(key):
                    self.put(asker, ("unknown", key[1], True))

    def is_known(self, key: Key) -> bool:
        return key in self.accepted and self.shell.now - self.accepted[key] <= WINDOW_MS

    # What happens.

    @rule(name=names)
    def join(self, name: str) -> None:
        evicted = self.peers.get(name)
        self.peers[name] = peer = self.shell.join(name, ttlSeconds=3_600)
        self.expected[peer] = []
        self.waiting[peer] = []
        if evicted is not None:
            self.lose(evicted)

    @rule(name=names)
    def drop(self, name: str) -> None:
        peer = self.peers.pop(name, None)
        if peer is not None:
            peer.drop()
            self.lose(peer)

    @rule(name=names)
    def stall(self, name: str) -> None:
        if name in self.peers:
            self.peers[name].stall()

    @rule(name=names)
    def read_on(self, name: str) -> None:
        peer = self.peers.get(name)
        if peer is None:
            return
        peer.read_on()
        waiting, self.waiting[peer] = self.waiting[peer], []
        self.expected[peer] += [entry for entry, _ in waiting]
        for _, key in waiting:
            if key is not None:
                self.handed_over(key)

    @rule(sender=names, to=names)
    def tell(self, sender: str, to: str) -> None:
        if sender not in self.peers:
            return
        self.serial += 1
        self.peers[sender].send(to, self.serial)
        if to in self.peers:
            self.put(self.peers[to], ("news", sender, self.serial))

    @rule(sender=names, to=names, number=st.integers(0, 2))
    def ask(self, sender: str, to: str, number: int) -> None:
        asker = self.peers.get(sender)
        if asker is None:
            return
        key = (sender, f"{to} {number}")
        self.serial += 1
        asker.send(to, self.serial, pattern="ask", id=key[1])
        if key in self.pending:
            if asker not in self.pending[key]:
                self.pending[key].append(asker)
        elif self.is_known(key):
            self.put(asker, ("ack", key[1], self.accepted[key]))
        elif to in self.peers:
            self.pending[key] = [asker]
            self.put(self.peers[to], ("news", sender, self.serial), key)
        else:
            self.put(asker, ("unknown", key[1], False))

    @rule(seconds=st.sampled_from([1, 60, 299, 300, 301]))
    def time_passes(self, seconds: int) -> None:
        self.shell.clock.advance(seconds)
        self.shell.tick()
        for peer in self.peers.values():
            peer.tell("hub:heartbeat")

    # What must hold.

    @invariant()
    def everybody_has_received_what_they_should(self) -> None:
        for peer, expected in self.expected.items():
            entries = (entry_of(message) for message in peer.received)
            assert [entry for entry in entries if entry is not None] == expected

    @invariant()
    def only_asks_on_their_way_are_kept(self) -> None:
        assert self.shell.hub.pending.keys() == {fingerprint(*key) for key in self.pending}


RouterTest = RouterModel.TestCase
RouterTest.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
