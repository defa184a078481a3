"""The protocols of servers that store messages: publish with an answer, consume and acknowledge.

Every server gets the same 400 bytes, a complete `hub:publish`; topics are numbered. A message
counts as published when the server has confirmed that it is stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.frames import masked_run
from bench.protocols import MARKER, Script, SignalHub, Step, address, asked, envelopes

MESSAGE_BYTES = 400
_SEQ_DIGITS = 9


class StoreDialect(Protocol):
    """How one server stores messages."""

    @property
    def published(self) -> bytes:
        """Text that occurs exactly once in every answer to a stored publication."""

    @property
    def batch(self) -> int:
        """How many publications one answer confirms."""

    def prepared(self, port: int, topics: int) -> Script:
        """Create this many topics."""

    def publisher(self, port: int, name: str) -> Script:
        """Open a connection that can publish."""

    def publishes(self, name: str, topic: int, ids: Iterable[int]) -> bytes:
        """Return frames of equal length, one publication each, or one batch of them."""


class ConsumedDialect(StoreDialect, Protocol):
    """A store that also delivers, and expects acknowledgements."""

    def consumer(self, port: int, name: str, topic: int, window: int) -> Script:
        """Become the only consumer of the topic, from its start; delivery has not started."""

    def starts(self, name: str, topic: int) -> bytes:
        """Return what the consumer sends to start the delivery."""

    def acks(self, name: str, topic: int, seqs: range) -> bytes:
        """Return frames of equal length, one acknowledgement each."""


def topic_name(topic: int) -> str:
    return f"bench/kept-{topic:05d}"


def publications(
    name: str, topic: int, ids: Iterable[int], size: int = MESSAGE_BYTES
) -> list[bytes]:
    """Return the message as the hub reads it, and as the others store it."""
    given = list(ids)
    bare = len(_publications(name, topic, given[:1], "")[0])
    return _publications(name, topic, given, "x" * (size - bare))


def _publications(name: str, topic: int, ids: Iterable[int], text: str) -> list[bytes]:
    payload = (
        f'{{"topic":"{topic_name(topic)}","type":"bench:event","durable":true,'
        f'"data":{{"mark":"{MARKER.decode()}","text":"{text}"}}}}'
    )
    return envelopes(ids, name, "hub:publish", payload, pattern="ask", ttl="null")


@dataclass(frozen=True)
class HubStore:
    """Durable topics, subscriptions, asks and mailboxes of the hub."""

    message_bytes: int = MESSAGE_BYTES

    batch = 1
    published = b'"hub:published"'
    delivered = b'"hub:delivery_ack"'
    subscribed = b'"hub:subscribed"'

    def prepared(self, port: int, topics: int) -> Script:
        name = "maker"
        made = (f'{{"topic":"{topic_name(topic)}","durable":true}}' for topic in range(topics))
        return [
            *SignalHub().registered(port, name),
            *(
                asked(number, name, "hub:topic_create", payload, "hub:topic_created")
                for number, payload in enumerate(made, start=3)
            ),
        ]

    def publisher(self, port: int, name: str) -> Script:
        return SignalHub().registered(port, name)

    def publishes(self, name: str, topic: int, ids: Iterable[int]) -> bytes:
        return masked_run(publications(name, topic, ids, self.message_bytes))

    def consumer(self, port: int, name: str, topic: int, window: int) -> Script:
        paused = self._subscription(name, topic)
        return [
            *SignalHub().registered(port, name),
            Step(self.subscribes(name, topic, [name], window), self.subscribed),
            asked(4, name, "hub:sub_pause", paused, "hub:sub_info_response"),
        ]

    def starts(self, name: str, topic: int) -> bytes:
        return asked(5, name, "hub:sub_resume", self._subscription(name, topic), "").request

    def acks(self, name: str, topic: int, seqs: range) -> bytes:
        # JSON numbers have no leading zeros, but may have spaces before them.
        head = self._subscription(name, topic)[:-1]
        payloads = (f'{head},"seq":{seq:>{_SEQ_DIGITS}}}}' for seq in seqs)
        ids = zip(seqs, payloads, strict=True)
        return masked_run([envelopes([seq], name, "hub:ack", text)[0] for seq, text in ids])

    def subscribes(
        self, name: str, topic: int, subscriptions: Sequence[str], window: int = 256
    ) -> bytes:
        """Return frames of equal length, one durable subscription each."""
        frames: list[bytes] = []
        for number, subscription in enumerate(subscriptions, start=100):
            head = self._subscription(subscription, topic)[:-1]
            payload = f'{head},"mode":"exclusive","from":"earliest","window":{window}}}'
            frames += envelopes([number], name, "hub:subscribe", payload, pattern="ask")
        return masked_run(frames)

    def mailbox(self, port: int, name: str) -> Script:
        """Register as a durable actor, whose mailbox remains when it disconnects."""
        actor = f'{{"actorAddress":"{address(name)}","capabilities":[],"durable":true}}'
        *greeted, _ = SignalHub().registered(port, name)
        return [*greeted, asked(2, name, "hub:register", actor, "hub:registered")]

    def asks(self, name: str, target: str, ids: Iterable[int]) -> bytes:
        """Return frames of equal length, one ask to the target each."""
        data = f'{{"mark":"{MARKER.decode()}","text":"{"x" * 60}"}}'
        payload = f'{{"to":"{address(target)}","type":"bench:event","data":{data}}}'
        return masked_run(envelopes(ids, name, "hub:send", payload, pattern="ask", ttl="null"))

    @staticmethod
    def _subscription(name: str, topic: int) -> str:
        return f'{{"topic":"{topic_name(topic)}","subscription":"{name}"}}'


@dataclass(frozen=True)
class RedisStreams:
    """XADD; its answer is the new entry's id, the only bulk string that comes back."""

    batch = 1
    published = b"$"

    def prepared(self, port: int, topics: int) -> Script:
        return [Step(b"PING\r\n", b"+PONG")]

    def publisher(self, port: int, name: str) -> Script:
        return [Step(b"PING\r\n", b"+PONG")]

    def publishes(self, name: str, topic: int, ids: Iterable[int]) -> bytes:
        head = [b"XADD", topic_name(topic).encode(), b"*", b"m"]
        return b"".join(_resp([*head, each]) for each in publications(name, topic, ids))


def _resp(words: list[bytes]) -> bytes:
    parts = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    return b"*%d\r\n%b" % (len(words), parts)


@dataclass(frozen=True)
class JetStream:
    """One stream for each topic, published to with a reply inbox; pure NATS protocol over TCP.

    In batches, the only answer is to the commit that ends one, so a batch counts as one message.
    """

    batch: int = 1

    published = b'"seq":'

    def prepared(self, port: int, topics: int) -> Script:
        steps = [self._hello("maker")]
        for topic in range(topics):
            stream = self._stream(topic)
            settings = {
                "name": stream,
                "subjects": [self._subject(topic)],
                "storage": "file",
                "allow_atomic": self.batch > 1,
            }
            request = self._request("maker", f"$JS.API.STREAM.CREATE.{stream}", settings)
            steps.append(Step(request, b'"did_create":true'))
        return steps

    def publisher(self, port: int, name: str) -> Script:
        return [self._hello(name)]

    def publishes(self, name: str, topic: int, ids: Iterable[int]) -> bytes:
        kept = publications(name, topic, ids)
        if self.batch > 1:
            return b"".join(
                self._atomic(name, topic, kept[start : start + self.batch], start)
                for start in range(0, len(kept), self.batch)
            )
        head = f"PUB {self._subject(topic)} {self._inbox(name)} {MESSAGE_BYTES}\r\n".encode()
        return b"".join(b"%b%b\r\n" % (head, each) for each in kept)

    def consumer(self, port: int, name: str, topic: int, window: int) -> Script:
        stream = self._stream(topic)
        settings = {
            "stream_name": stream,
            "config": {
                "durable_name": name,
                "deliver_subject": self._deliveries(name),
                "deliver_policy": "all",
                "ack_policy": "explicit",
                "max_ack_pending": window,
            },
        }
        subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}"
        request = self._request(name, subject, settings)
        return [self._hello(name), Step(request, b'"num_pending"')]

    def starts(self, name: str, topic: int) -> bytes:
        # A push consumer delivers as soon as its delivery subject has a subscriber.
        return f"SUB {self._deliveries(name)} 2\r\n".encode()

    def acks(self, name: str, topic: int, seqs: range) -> bytes:
        # The server reads delivery count and positions from the subject, but not time and backlog.
        head = f"PUB $JS.ACK.{self._stream(topic)}.{name}.1"
        return b"".join(
            f"{head}.{seq:0{_SEQ_DIGITS}}.{seq:0{_SEQ_DIGITS}}.0.0 4\r\n+ACK\r\n".encode()
            for seq in seqs
        )

    def _hello(self, name: str) -> Step:
        options = '{"verbose":false,"pedantic":false,"headers":true,"no_responders":false}'
        text = f"CONNECT {options}\r\nSUB {self._inbox(name)} 1\r\nPING\r\n"
        return Step(text.encode(), b"PONG")

    def _request(self, name: str, subject: str, body: Mapping[str, object]) -> bytes:
        text = json.dumps(body, separators=(",", ":"))
        return f"PUB {subject} {self._inbox(name)} {len(text)}\r\n{text}\r\n".encode()

    def _atomic(self, name: str, topic: int, kept: list[bytes], batch: int) -> bytes:
        frames = []
        for number, each in enumerate(kept, start=1):
            is_last = number == len(kept)
            head = f"NATS/1.0\r\nNats-Batch-Id: {name}-{batch:09d}\r\nNats-Batch-Sequence: {number}"
            commit = "\r\nNats-Batch-Commit: 1" if is_last else ""
            headers = f"{head}{commit}\r\n\r\n".encode()
            reply = f" {self._inbox(name)}" if is_last else ""
            sizes = f"{len(headers)} {len(headers) + len(each)}"
            line = f"HPUB {self._subject(topic)}{reply} {sizes}\r\n".encode()
            frames.append(b"%b%b%b\r\n" % (line, headers, each))
        return b"".join(frames)

    @staticmethod
    def _stream(topic: int) -> str:
        return f"KEPT{topic:05d}"

    @staticmethod
    def _subject(topic: int) -> str:
        return topic_name(topic).replace("/", ".")

    @staticmethod
    def _inbox(name: str) -> str:
        return f"_INBOX.{name}"

    @staticmethod
    def _deliveries(name: str) -> str:
        return f"_DELIVER.{name}"
