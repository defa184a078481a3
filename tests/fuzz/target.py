"""The hub under fire: one attacker, one victim it may reach, one bystander it must not touch.

Invariant: whatever arrives, the hub raises nothing, everything it writes is a complete envelope in
valid UTF-8, and the bystander's session continues as if nobody else were there.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Raw

from signalhub.auth.tokens import Authenticator
from signalhub.core.sessions.session import SessionState
from signalhub.settings.model import Settings
from signalhub.wire.envelope import RAW_PONG
from signalhub.wire.frames import is_text
from tests.fuzz.corpus import ATTACKER, VICTIM
from tests.support.memory.shell import HELLO, MemoryShell, Peer

BYSTANDER = "@(quiet/bystander)"
TOPIC = "a topic of the bystander's own"


class HubMessage(msgspec.Struct, forbid_unknown_fields=True):
    """Exactly the eleven members, each of its type."""

    id: str
    sender: str = msgspec.field(name="from")
    to: str
    type: str
    payload: Raw
    pattern: Literal["tell"]
    correlation_id: str | None = msgspec.field(name="correlationId")
    timestamp: int
    metadata: dict[str, Raw]
    ttl: int | float | None
    signature: None


_check = msgspec.json.Decoder(HubMessage).decode


class Reader(Peer):
    """Checks the types of everything it is sent, and keeps it only when told to.

    Payloads of the attacker hold numbers that are too large to be kept.
    """

    is_keeping = True

    def hear(self, frame: bytes) -> None:
        assert is_text(frame)
        if frame != RAW_PONG:
            _check(frame)
        if self.is_keeping:
            super().hear(frame)


class Target(MemoryShell):
    """A hub and the three sessions."""

    def __init__(self, settings: Settings, authenticator: Authenticator | None, token: str) -> None:
        super().__init__(settings, authenticator=authenticator)
        self._token = token
        self.frames = 0
        self.bystander = self._enter(BYSTANDER)
        self.bystander.request("hub:subscribe", {"topic": TOPIC})
        self.victim = self._enter(VICTIM)
        self.attacker = self._enter(ATTACKER)

    def _enter(self, address: str) -> Reader:
        peer = Reader(self)
        peer.hello(address, metadata=HELLO | {"authToken": self._token})
        reply = peer.register(capabilities=["x"], ttlSeconds=3_600)
        assert reply["type"] == "hub:registered", reply
        peer.is_keeping = False
        return peer

    def fire(self, frame: bytes) -> bool:
        """One frame of the attacker's; `False` if it would not have passed the connection."""
        if not is_text(frame):
            return False
        self.frames += 1
        self.clock.advance(0.001)
        try:
            self.attacker.write(frame)
        except Exception as error:
            error.add_note(f"frame {self.frames}: {frame[:2_000]!r}")
            raise
        if self.attacker.session.state is SessionState.CLOSED:
            self.attacker = self._enter(ATTACKER)
        if self.victim.session.state is SessionState.CLOSED:
            self.victim = self._enter(VICTIM)
        return True

    def check_bystander(self) -> None:
        """The bystander is served as ever."""
        assert self.bystander.session.state is SessionState.CONNECTED
        self.bystander.is_keeping = True
        heartbeat = self.bystander.ask("hub:heartbeat")
        found = self.bystander.ask("hub:discover", {"pattern": BYSTANDER})
        self.bystander.take()
        payload = {"topic": TOPIC, "type": "news", "data": self.frames}
        self.bystander.ask("hub:publish", payload)
        copy, published = self.bystander.take()
        self.bystander.send(BYSTANDER, [1], pattern="ask")
        news, ack = self.bystander.take()
        self.bystander.is_keeping = False
        assert heartbeat["type"] == "hub:heartbeat_ack"
        assert [one["address"] for one in found["payload"]["actors"]] == [BYSTANDER]
        assert (copy["to"], published["type"]) == (BYSTANDER, "hub:published")
        assert (news["payload"], ack["type"]) == ([1], "hub:delivery_ack")

    def check_nothing_is_left(self) -> None:
        """When the others have gone, only the bystander remains."""
        for peer in (self.attacker, self.victim):
            peer.drop()
        assert list(self.hub.sessions) == [self.bystander.session]
        assert [one.address for one in self.hub.registry] == [BYSTANDER]
        assert len(self.hub.identities) == 1
        assert self.hub.topics._exact.keys() == {TOPIC}
        assert not self.hub.topics._wildcards.below
        assert not self.hub.pending
