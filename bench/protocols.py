"""The protocol of each server: how a connection opens, what a message looks like.

Every protocol carries the same envelope, byte for byte what an actor sends to Signal Hub, so that
the servers differ in their work and not in their load. The marker is in the payload: a message
counts only where its payload arrived.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bench.frames import BINARY, TEXT, masked, masked_run, upgrade

MARKER = b"bench-arrived"
TOPIC = "bench/all"
SWITCHED = b" 101 "

_HUB = "@(cloudflare/signal-hub)"
_TEXT = "x" * 50
_DATA = f'{{"task":"summarise","mark":"{MARKER.decode()}","text":"{_TEXT}"}}'
_ID_DIGITS = 12


class Step(NamedTuple):
    """One request of an opening connection, and the text its answer must contain."""

    request: bytes
    answer: bytes


Script = list[Step]


class Dialect(Protocol):
    """One server's protocol."""

    def upgraded(self, port: int) -> Script:
        """Open the WebSocket and nothing else."""

    def registered(self, port: int, name: str) -> Script:
        """Open the WebSocket and register as `name`."""

    def subscribed(self, port: int, name: str) -> Script:
        """Open the WebSocket, register, and subscribe to the topic."""

    def sends(self, sender: str, target: str, ids: Iterable[int]) -> bytes:
        """Return frames of equal length, one message to `target` each."""

    def publishes(self, sender: str, ids: Iterable[int]) -> bytes:
        """Return frames of equal length, one publication to the topic each."""


def address(name: str) -> str:
    return f"@(bench/{name})"


def envelope(
    message_id: int,
    sender: str,
    type: str,
    payload: str,
    *,
    pattern: str = "tell",
    meta: str = "{}",
) -> bytes:
    """Return a complete message to the hub; its length does not depend on its id."""
    return envelopes([message_id], sender, type, payload, pattern=pattern, meta=meta)[0]


def envelopes(
    ids: Iterable[int],
    sender: str,
    type: str,
    payload: str,
    *,
    pattern: str = "tell",
    meta: str = "{}",
    ttl: str = "60000",
) -> list[bytes]:
    """Return complete messages to the hub that differ only in their ids."""
    now_ms = time.time_ns() // 1_000_000
    head = b'{"id":"00000000-0000-4000-8000-'
    tail = (
        f'","from":"{address(sender)}","to":"{_HUB}","type":"{type}","payload":{payload},'
        f'"pattern":"{pattern}","correlationId":null,"timestamp":{now_ms},"metadata":{meta},'
        f'"ttl":{ttl},"signature":null}}'
    ).encode()
    return [b"%b%0*d%b" % (head, _ID_DIGITS, message_id, tail) for message_id in ids]


def asked(
    number: int, name: str, type: str, payload: str, answer: str, *, meta: str = "{}"
) -> Step:
    """Return a request to the hub, and the type of its reply."""
    request = envelope(number, name, type, payload, pattern="ask", meta=meta)
    return Step(masked(request), answer.encode())


def _messages(sender: str, target: str, ids: Iterable[int]) -> list[bytes]:
    payload = f'{{"to":"{address(target)}","type":"bench:event","data":{_DATA}}}'
    return envelopes(ids, sender, "hub:send", payload)


def _publications(sender: str, ids: Iterable[int]) -> list[bytes]:
    payload = f'{{"topic":"{TOPIC}","type":"bench:event","data":{_DATA}}}'
    return envelopes(ids, sender, "hub:publish", payload)


@dataclass(frozen=True)
class SignalHub:
    """Protocol 0.1.0: connect, register, subscribe; a message is `hub:send` as tell."""

    def upgraded(self, port: int) -> Script:
        return [Step(upgrade("/ws", port), SWITCHED)]

    def registered(self, port: int, name: str) -> Script:
        hello = '{"protocolVersion":"0.1.0","capabilities":["send","receive"]}'
        actor = f'{{"actorAddress":"{address(name)}","capabilities":["bench"],"ttlSeconds":3600}}'
        return [
            *self.upgraded(port),
            asked(1, name, "hub:connect", "null", "hub:connected", meta=hello),
            asked(2, name, "hub:register", actor, "hub:registered"),
        ]

    def subscribed(self, port: int, name: str) -> Script:
        topic = f'{{"topic":"{TOPIC}"}}'
        return [
            *self.registered(port, name),
            asked(3, name, "hub:subscribe", topic, "hub:subscribed"),
        ]

    def sends(self, sender: str, target: str, ids: Iterable[int]) -> bytes:
        return masked_run(_messages(sender, target, ids))

    def publishes(self, sender: str, ids: Iterable[int]) -> bytes:
        return masked_run(_publications(sender, ids))


@dataclass(frozen=True)
class Nats:
    """NATS inside binary WebSocket frames, one PUB in each; the envelope is its payload."""

    def upgraded(self, port: int) -> Script:
        return [Step(upgrade("/", port), SWITCHED)]

    def registered(self, port: int, name: str) -> Script:
        return self._joined(port, f"SUB to.{name} 1\r\n")

    def subscribed(self, port: int, name: str) -> Script:
        return self._joined(port, f"SUB to.{name} 1\r\nSUB {self._subject} 2\r\n")

    def sends(self, sender: str, target: str, ids: Iterable[int]) -> bytes:
        return self._pub(f"to.{target}", _messages(sender, target, ids))

    def publishes(self, sender: str, ids: Iterable[int]) -> bytes:
        return self._pub(self._subject, _publications(sender, ids))

    _subject = TOPIC.replace("/", ".")

    def _joined(self, port: int, subscriptions: str) -> Script:
        hello = 'CONNECT {"verbose":false,"pedantic":false,"headers":false}\r\n'
        request = masked(f"{hello}{subscriptions}PING\r\n".encode(), BINARY)
        return [Step(upgrade("/", port), b"INFO "), Step(request, b"PONG")]

    @staticmethod
    def _pub(subject: str, envelopes: list[bytes]) -> bytes:
        head = f"PUB {subject} {len(envelopes[0])}\r\n".encode()
        return masked_run([b"%b%b\r\n" % (head, each) for each in envelopes], BINARY)


@dataclass(frozen=True)
class SocketIo:
    """Socket.IO 5 over Engine.IO 4, WebSocket transport only; the envelope is the event's value."""

    _path = "/socket.io/?EIO=4&transport=websocket"

    def upgraded(self, port: int) -> Script:
        return [Step(upgrade(self._path, port), SWITCHED)]

    def registered(self, port: int, name: str) -> Script:
        return [
            Step(upgrade(self._path, port), b'"sid"'),
            Step(masked(b"40"), b"40{"),
            self._event("register", f'"{address(name)}"', "registered"),
        ]

    def subscribed(self, port: int, name: str) -> Script:
        return [
            *self.registered(port, name),
            self._event("subscribe", f'"{TOPIC}"', "subscribed"),
        ]

    def sends(self, sender: str, target: str, ids: Iterable[int]) -> bytes:
        return self._events(b"send", _messages(sender, target, ids))

    def publishes(self, sender: str, ids: Iterable[int]) -> bytes:
        return self._events(b"publish", _publications(sender, ids))

    @staticmethod
    def _event(event: str, value: str, answer: str) -> Step:
        return Step(masked(f'42["{event}",{value}]'.encode()), answer.encode())

    @staticmethod
    def _events(event: bytes, envelopes: list[bytes]) -> bytes:
        return masked_run([b'42["%b",%b]' % (event, each) for each in envelopes], TEXT)
