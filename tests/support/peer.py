"""A bare client of the wire protocol: it sends exactly what a test says.

It shares no code with the hub or the SDK, and does not care what carries its messages. Whatever the
hub sends is checked on arrival: one complete envelope each, eleven members of the right types,
nothing that is not strict JSON.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypedDict, cast

HUB = "@(cloudflare/signal-hub)"
PATIENCE_S = 10.0

_NUMBER = (int, float)

Envelope = TypedDict(
    "Envelope",
    {
        "id": str,
        "from": str,
        "to": str,
        "type": str,
        "payload": Any,
        "pattern": str,
        "correlationId": str | None,
        "timestamp": int,
        "metadata": dict[str, Any],
        "ttl": float | None,
        "signature": str | None,
    },
)


class Closed(Exception):
    """The hub closed the socket; `code` is `None` when it did so without a close frame."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"closed with {code}")
        self.code = code


class Peer(ABC):
    """One client. `sender` is the `from` of what it sends unless a test says otherwise."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.sender = f"@(local/client-{uuid.uuid4()})"
        self.close_code: int | None = None
        self.close_reason = ""
        self._now_ms = now_ms
        self._set_aside: deque[Envelope] = deque()

    # What depends on how it is connected.

    @abstractmethod
    def send_text(self, text: str | bytes) -> None:
        """Send one text message, whatever it says."""

    @abstractmethod
    async def receive_text(self) -> str:
        """The next text message as it is, or `Closed`."""

    @abstractmethod
    def polls(self) -> AsyncIterator[None]:
        """The rounds of a polling loop; a `TimeoutError` in the end."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Has neither side ended the connection?"""

    @abstractmethod
    async def until_closed(self) -> int | None:
        """Wait for the end of the connection, whatever arrives before it; the close code."""

    @abstractmethod
    def pause(self) -> None:
        """Stop reading: what the hub writes has to wait."""

    @abstractmethod
    def resume(self) -> None:
        """Read again."""

    @abstractmethod
    def close(self, code: int = 1000) -> None:
        """Say goodbye with a close frame."""

    @abstractmethod
    def hang_up(self) -> None:
        """Close the connection without a close frame, after sending what was written."""

    @abstractmethod
    def abort(self) -> None:
        """Drop the connection."""

    # Sending.

    def envelope(self, type: str, payload: Any = None, /, **members: Any) -> dict[str, Any]:
        """A complete envelope; `members` replaces single ones, `...` leaves one out."""
        complete = {
            "id": str(uuid.uuid4()),
            "from": self.sender,
            "to": HUB,
            "type": type,
            "payload": payload,
            "pattern": "tell",
            "correlationId": None,
            "timestamp": self._now_ms(),
            "metadata": {},
            "ttl": None,
            "signature": None,
        }
        if "sender" in members:
            members["from"] = members.pop("sender")
        complete |= members
        return {name: value for name, value in complete.items() if value is not ...}

    def send(self, type: str, payload: Any = None, /, **members: Any) -> str:
        """Send one envelope, `tell` unless said otherwise; its id."""
        message = self.envelope(type, payload, **members)
        self.send_text(json.dumps(message))
        return cast(str, message.get("id"))

    async def ask(self, type: str, payload: Any = None, /, **members: Any) -> Envelope:
        """Send with pattern `ask` and wait for the reply."""
        return await self.reply_to(self.send(type, payload, **{"pattern": "ask"} | members))

    async def connect(self, **metadata: Any) -> Envelope:
        """`hub:connect` as the TypeScript clients say it; the reply."""
        given = {"protocolVersion": "0.1.0", "capabilities": ["send", "receive"]} | metadata
        return await self.ask("hub:connect", metadata=given, ttl=5000)

    async def register(self, address: str, *capabilities: str, **payload: Any) -> Envelope:
        """Register an address and speak as it from now on; the reply."""
        payload = {"actorAddress": address, "capabilities": list(capabilities)} | payload
        reply = await self.ask("hub:register", payload, sender=address)
        if reply["type"] == "hub:registered":
            self.sender = address
        return reply

    def tell(self, to: str, type: str, data: Any = None, /, **members: Any) -> str:
        """`hub:send` as a tell; its id."""
        return self.send("hub:send", {"to": to, "type": type, "data": data}, **members)

    async def ask_actor(self, to: str, type: str, data: Any = None, /, **members: Any) -> Envelope:
        """`hub:send` as an ask; the hub's answer."""
        return await self.ask("hub:send", {"to": to, "type": type, "data": data}, **members)

    # Receiving.

    async def receive(self, type: str | None = None) -> Envelope:
        """The next envelope, which must be of `type` if one is given."""
        if self._set_aside:
            message = self._set_aside.popleft()
        else:
            message = read_envelope(await self.receive_text())
        assert type is None or message["type"] == type, f"expected {type}, got {message}"
        return message

    def set_aside(self, messages: Iterable[Envelope]) -> None:
        """Let these be the next that `receive` gives."""
        self._set_aside.extendleft(reversed(list(messages)))

    async def reply_to(self, message_id: str) -> Envelope:
        """The hub's reply to a request; what comes before it is kept for `receive`."""
        earlier: list[Envelope] = []
        while True:
            message = await self.receive()
            if message["correlationId"] == message_id and message["from"] == HUB:
                self.set_aside(earlier)
                return message
            earlier.append(message)

    async def nothing_more(self) -> None:
        """Nothing has arrived: the answer to a heartbeat is the next thing there is."""
        message_id = self.send("hub:heartbeat", {"timestamp": 1})
        message = await self.receive()
        assert message["correlationId"] == message_id, f"unexpected: {message}"


def read_envelope(text: str) -> Envelope:
    """What the hub sent, after checking that it is a whole envelope."""
    message = json.loads(text, parse_constant=_refuse_constant)
    assert isinstance(message, dict), message
    assert set(message) == set(Envelope.__annotations__), sorted(message)
    for name in ("id", "from", "to", "type"):
        assert isinstance(message[name], str), (name, message)
    uuid.UUID(message["id"])
    assert message["pattern"] == "tell", message
    assert message["correlationId"] is None or isinstance(message["correlationId"], str), message
    assert type(message["timestamp"]) is int, message
    assert isinstance(message["metadata"], dict), message
    assert message["ttl"] is None or isinstance(message["ttl"], _NUMBER), message
    assert message["signature"] is None, message
    return cast(Envelope, message)


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"the hub sent {name}, which is not JSON")


def code_of(reply: Envelope) -> str:
    """The code of an error, after checking that it is one with all five members."""
    assert reply["type"] == "hub:error", reply
    payload = reply["payload"]
    assert set(payload) == {"code", "message", "resolution", "details", "retryable"}, payload
    assert isinstance(payload["message"], str)
    assert isinstance(payload["resolution"], str)
    assert payload["message"]
    assert payload["resolution"]
    assert isinstance(payload["details"], dict)
    assert isinstance(payload["retryable"], bool)
    code: str = payload["code"]
    return code
