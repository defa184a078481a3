"""The hub under fire: one attacker, one victim it may reach, one bystander it must not touch.

Invariant: whatever arrives, the hub raises nothing, everything it writes is a complete envelope in
valid UTF-8, and the bystander's session goes on as if nobody else were there.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Raw

from signalhub.auth.tokens import Authenticator, SessionTokens
from signalhub.core.effects import (
    Append,
    Close,
    Deliver,
    Dispatch,
    Effect,
    FanOut,
    Fetch,
    FindTime,
    Note,
    Reply,
)
from signalhub.core.hub import Hub
from signalhub.core.messages.ask import AskReceipt
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.subscriptions.window import Attempt
from signalhub.counters import Tally
from signalhub.settings.model import Settings
from signalhub.wire.envelope import RAW_PONG
from signalhub.wire.errors import Refusal
from signalhub.wire.frames import is_text
from tests.fuzz.corpus import ATTACKER, VICTIM
from tests.support.memory.engine import MemoryEngine
from tests.support.memory.shell import TURNS_MAX, CountedIds, envelope

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


_decode = msgspec.json.Decoder(HubMessage).decode


class Target:
    """A hub and the three sessions."""

    def __init__(self, settings: Settings, authenticator: Authenticator | None, token: str) -> None:
        self.hub = Hub(
            settings,
            ids=CountedIds(),
            authenticator=authenticator,
            session_tokens=SessionTokens(b"a secret of the tests"),
            tally=Tally(),
        )
        self.engine = MemoryEngine()
        self.engine.report_to(self)
        self.now = 1_760_000_000_000
        self._written: list[tuple[Session, HubMessage]] = []
        self._token = token
        self.frames = 0
        self.bystander = self._join(BYSTANDER)
        self._ask(self.bystander, "hub:subscribe", {"topic": TOPIC})
        self.victim = self._join(VICTIM)
        self.attacker = self._join(ATTACKER)

    def fire(self, frame: bytes) -> bool:
        """One frame of the attacker's; `False` if it would not have passed the connection."""
        if not is_text(frame):
            return False
        self.frames += 1
        self.now += 1
        try:
            self._perform(self.hub.received(self.attacker, frame, self.now))
        except Exception as error:
            error.add_note(f"frame {self.frames}: {frame[:2_000]!r}")
            raise
        if self.attacker.state is SessionState.CLOSED:
            self.attacker = self._join(ATTACKER)
        if self.victim.state is SessionState.CLOSED:
            self.victim = self._join(VICTIM)
        return True

    def check_bystander(self) -> None:
        """The bystander is served as ever."""
        assert self.bystander.state is SessionState.CONNECTED
        (heartbeat,) = self._ask(self.bystander, "hub:heartbeat", None)
        found = self._ask(self.bystander, "hub:discover", {"pattern": BYSTANDER})
        payload = {"topic": TOPIC, "type": "news", "data": self.frames}
        copy, published = self._ask(self.bystander, "hub:publish", payload)
        news, ack = self._ask(
            self.bystander, "hub:send", {"to": BYSTANDER, "type": "news", "data": [1]}
        )
        assert heartbeat.type == "hub:heartbeat_ack"
        assert BYSTANDER.encode() in bytes(found[0].payload)
        assert (copy.to, published.type) == (BYSTANDER, "hub:published")
        assert (bytes(news.payload), ack.type) == (b"[1]", "hub:delivery_ack")

    def check_nothing_is_left(self) -> None:
        """When the others have gone, only the bystander remains."""
        for session in (self.attacker, self.victim):
            self._perform(self.hub.closed(session, self.now))
        assert list(self.hub.sessions) == [self.bystander]
        assert [one.address for one in self.hub.registry] == [BYSTANDER]
        assert len(self.hub.identities) == 1
        assert self.hub.topics._exact.keys() == {TOPIC}
        assert not self.hub.topics._wildcards.below
        assert not self.hub.pending

    def _join(self, address: str) -> Session:
        session = self.hub.opened(None, self.now)
        hello = {"protocolVersion": "0.1.0", "capabilities": ["x"], "authToken": self._token}
        self._ask(session, "hub:connect", None, address, hello)
        registration = {"actorAddress": address, "capabilities": ["x"], "ttlSeconds": 3_600}
        reply, *_ = self._ask(session, "hub:register", registration, address)
        assert reply.type == "hub:registered", bytes(reply.payload)
        return session

    def _ask(
        self,
        session: Session,
        type: str,
        payload: object,
        sender: str = BYSTANDER,
        metadata: object = None,
    ) -> list[HubMessage]:
        message_id = f"own-{self.hub.tally.received}"
        frame = envelope(type, payload, id=message_id, sender=sender, metadata=metadata or {})
        written = self._perform(self.hub.received(session, frame, self.now))
        return [message for reader, message in written if reader is session]

    def _perform(self, effects: list[Effect]) -> list[tuple[Session, HubMessage]]:
        """Do what is asked and what follows from it, and check all that is written."""
        self._carry_out(effects)
        for _ in range(TURNS_MAX):
            has_moved = False
            if self.hub.next_dispatch_ms <= self.now:
                has_moved = True
                self._carry_out(self.hub.dispatch(self.now))
            has_moved |= self.engine.commit()
            has_moved |= self.engine.read()
            if not has_moved:
                break
        else:
            raise AssertionError("the hub never comes to rest")
        written, self._written = self._written, []
        return written

    def committed(self, appends: list[Append], first: int) -> None:
        self.hub.tally.appended += len(appends)
        for offset, append in enumerate(appends, first):
            self._carry_out(append.committed(offset, self.now))

    def refused(self, appends: list[Append], refusal: Refusal, *, is_final: bool) -> None:
        raise AssertionError("this log refuses nothing")

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply(session=session, frame=frame):
                    self._written.append((session, _checked(frame)))
                case Deliver(session=session, frame=frame, receipt=receipt):
                    self._send(session, frame, receipt)
                case Dispatch(session=session, frame=frame, receipt=attempt):
                    self._send(session, frame, attempt)
                case FanOut(audience=audience, head=head, tail=tail, receipt=fan_receipt):
                    for one in audience.recipients:
                        self._written.append(
                            (one.session, _checked(head + one.address_json + tail))
                        )
                    count = len(audience.recipients)
                    self._carry_out(self.hub.fanned_out(fan_receipt, count, 0, self.now))
                case Close(session=session):
                    assert session.state is SessionState.CLOSED
                    assert session is not self.bystander
                case Append():
                    self.engine.append(effect)
                case Fetch():
                    self._fetch(effect)
                case FindTime():
                    self._find_time(effect)
                case Note(error=error):
                    if error is not None:
                        raise error

    def _send(self, session: Session, frame: bytes, receipt: AskReceipt | Attempt | None) -> None:
        self._written.append((session, _checked(frame)))
        if receipt is not None:
            self._carry_out(self.hub.handed_over(receipt, self.now))

    def _fetch(self, effect: Fetch) -> None:
        self.engine.fetch(effect, lambda found: self._carry_out(effect.then(found, self.now)))

    def _find_time(self, effect: FindTime) -> None:
        self.engine.find_time(effect, lambda seq: self._carry_out(effect.then(seq, self.now)))


_PONG = HubMessage("", "", "", "pong", Raw(), "tell", None, 0, {}, None, None)


def _checked(frame: bytes) -> HubMessage:
    if frame == RAW_PONG:
        return _PONG
    assert is_text(frame)
    return _decode(frame)
