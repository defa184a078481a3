"""A producer: sends at a steady rate, repeats what was not answered under the same id, in order."""

from __future__ import annotations

import json
import time
from collections import deque
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from tests.support.process.ledger import Ledger
from tests.support.process.lines import Acked, Attempted, Noted, Refused
from tests.support.process.link import BROKEN, connect
from tests.support.process.plans import ProducerPlan
from tests.support.socket import frames
from tests.support.socket.peer import HUB, Envelope, Peer

AGAIN_S = 0.05
ACKS = ("hub:published", "hub:delivery_ack")


class Outgoing(NamedTuple):
    """A message and the frame it travels in, the same every time."""

    id: str
    number: int
    key: str
    frame: bytes


class Producer:
    """At most `window` messages are without a final answer at any time."""

    def __init__(self, plan: ProducerPlan, port: int, ledger: Ledger, random: Random) -> None:
        self._plan = plan
        self._port = port
        self._ledger = ledger
        self._random = random
        self._peer: Peer | None = None
        self._must_repeat = False
        self._unanswered: dict[str, Outgoing] = {}
        self._refused: deque[tuple[float, Outgoing]] = deque()
        self._outbox: list[Outgoing] = []
        self._made = 0
        self._paced_at_s = 0.0
        self._budget = 0.0
        self._is_resting = False
        self._turns_at_s = 0.0
        self.moved_at_s = 0.0
        self._is_finishing = False

    @property
    def is_ready(self) -> bool:
        return self._peer is not None

    def is_done(self, now_s: float) -> bool:
        return self._is_finishing and not self._unanswered

    def finish(self) -> None:
        """Nothing new; what was refused stays so, what is unanswered is repeated until it is."""
        self._is_finishing = True
        self._refused.clear()

    async def run(self) -> None:
        """Be connected for ever."""
        while True:
            peer = await connect(self._port, self._plan.address, self._random)
            self._peer, self._must_repeat = peer, True
            self._paced_at_s = time.monotonic()
            try:
                while True:
                    self._hear(await peer.receive())
            except BROKEN:
                self._peer = None
            finally:
                peer.abort()

    def prepare(self, now_s: float) -> None:
        """Note everything that is about to be sent."""
        if self._peer is None:
            return
        if self._must_repeat:
            self._outbox += self._unanswered.values()
            self._must_repeat = False
        while self._refused and self._refused[0][0] <= now_s:
            self._outbox.append(self._refused.popleft()[1])
        self._outbox += (self._new() for _ in range(self._due(now_s)))
        for message in self._outbox:
            self._unanswered[message.id] = message
            plan, key = self._plan, None if self._plan.is_mailbox else message.key
            self._ledger.write(
                Attempted(now_s, plan.address, plan.stream, message.id, message.number, key)
            )

    def flush(self) -> None:
        """The notes are on disk: send."""
        if self._outbox and self._peer is not None:
            self._peer.write(b"".join(message.frame for message in self._outbox))
        self._outbox.clear()

    def _due(self, now_s: float) -> int:
        """What the rate allows; time without a hub earns nothing, or each start meets a flood."""
        self._budget += (now_s - self._paced_at_s) * self._plan.rate_s
        self._paced_at_s = now_s
        if self._plan.rest_s and now_s >= self._turns_at_s:
            self._is_resting = not self._is_resting
            span_s = self._plan.rest_s if self._is_resting else self._plan.work_s
            self._turns_at_s = now_s + span_s * self._random.uniform(0.5, 1.5)
        if self._is_finishing or self._is_resting:
            self._budget = 0.0
            return 0
        room = self._plan.window - len(self._unanswered) - len(self._refused) - len(self._outbox)
        due = max(0, min(room, int(self._budget)))
        self._budget = min(self._budget - due, self._plan.window)
        return due

    def _new(self) -> Outgoing:
        self._made += 1
        assert self._peer is not None
        message_id = str(UUID(int=self._random.getrandbits(128), version=4))
        key = f"key-{self._random.randrange(self._plan.keys)}"
        content = {"id": message_id, "number": self._made, "text": "x" * 64}
        stream = self._plan.stream
        payload: dict[str, Any]
        if self._plan.is_mailbox:
            type, payload = "hub:send", {"to": stream, "type": "note", "data": content}
        else:
            type = "hub:publish"
            payload = {"topic": stream, "type": "note", "data": content, "key": key}
            payload["durable"] = True
        envelope = self._peer.envelope(type, payload, id=message_id, pattern="ask")
        frame = frames.masked_frame(frames.TEXT, json.dumps(envelope).encode())
        return Outgoing(message_id, self._made, key, frame)

    def _hear(self, reply: Envelope) -> None:
        now_s = time.monotonic()
        message = self._unanswered.pop(reply["correlationId"] or "", None)
        if message is None:
            if reply["type"] == "hub:error" and reply["from"] == HUB:
                self._ledger.write(Noted(now_s, f"unasked: {reply['payload']['code']}"))
            return
        self.moved_at_s = now_s
        payload = reply["payload"]
        if reply["type"] in ACKS:
            epoch, seq = payload.get("epoch"), payload.get("seq")
            self._ledger.write(Acked(now_s, message.id, epoch, seq))
            return
        code = payload.get("code", reply["type"])
        self._ledger.write(Refused(now_s, message.id, code))
        is_retryable = payload.get("retryable", reply["type"] == "hub:unknown_actor")
        if is_retryable and not self._is_finishing:
            self._refused.append((now_s + AGAIN_S, message))
