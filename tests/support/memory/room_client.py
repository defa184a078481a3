"""One member of a room with the hub's end of its wire, and the time, in the hands of the test."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from signalhub.client.protocol.effects import Failed, SendFrame
from signalhub.client.rooms.answers import InboxPage, RoomMessage
from signalhub.client.rooms.protocol import Effect, FetchPage, RoomProtocol
from signalhub.wire.base64url import encoded
from signalhub.wire.errors import ClientError, Unavailable

E = TypeVar("E", bound=Effect)

LONG_S = 1_000.0
LIMITED = "RATE_LIMIT_EXCEEDED"


class Member:
    """Performs nothing: what the protocol wants is kept to be looked at."""

    def __init__(self, since: int | None = 0) -> None:
        self.now_s = 100.0
        self.protocol = RoomProtocol("p1", since, random=lambda: 0.0)
        self.effects: list[Effect] = []
        self._seen = 0

    def of(self, kind: type[E]) -> list[E]:
        """All effects of a kind so far."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def fresh(self, kind: type[E]) -> list[E]:
        """The effects of a kind since the last call, which forgets the others."""
        effects, self._seen = self.effects[self._seen :], len(self.effects)
        return [effect for effect in effects if isinstance(effect, kind)]

    def written(self) -> list[dict[str, Any]]:
        """The frames written since the last call."""
        return [json.loads(effect.frame) for effect in self.fresh(SendFrame)]

    def ids(self) -> list[str]:
        """The messages written since the last call."""
        return [frame["messageId"] for frame in self.written()]

    def open(self) -> None:
        self.effects += self.protocol.opened(self.now_s)

    def join(self, last_seq: int = 0) -> None:
        self.open()
        self.hear("welcome", lastSeq=last_seq, oldestBufferedSeq=1)

    def hear(self, action: str, **members: Any) -> None:
        frame = json.dumps({"action": action, **members}).encode()
        self.effects += self.protocol.received(frame, self.now_s)

    def live(self, *seqs: int, message_id: str | None = None, data: bytes = b"x") -> None:
        """Others say something."""
        for seq in seqs:
            name = message_id or f"m{seq}"
            self.hear("message", seq=seq, messageId=name, ciphertext=encoded(data), type="mls_app")

    def accept(self, message_id: str, seq: int, **members: Any) -> None:
        self.hear("ack", messageId=message_id, seq=seq, **members)

    def refuse(
        self, message_id: str, code: str = LIMITED, retry_after_ms: int | None = None
    ) -> None:
        self.hear(
            "error", messageId=message_id, error="x", errorCode=code, retryAfterMs=retry_after_ms
        )

    def lose(self, close_code: int | None = None) -> None:
        self.effects += self.protocol.lost(close_code)

    def send(self, *message_ids: str, data: bytes = b"x", timeout_s: float = LONG_S) -> None:
        members = {"ciphertext": encoded(data), "type": "mls_app"}
        deadline_s = self.now_s + timeout_s
        for message_id in message_ids:
            self.effects += self.protocol.submit(message_id, data, members, deadline_s, self.now_s)

    def stop(self, error: ClientError) -> None:
        self.effects += self.protocol.stop(error)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.effects += self.protocol.tick(self.now_s)

    def take(self) -> list[int]:
        """The positions the reader can have now."""
        taken: list[int] = []
        while True:
            message, effects = self.protocol.take(self.now_s)
            self.effects += effects
            if message is None:
                return taken
            taken.append(message.seq)

    def fetch(self) -> int:
        """The position of the only page asked for since the last call."""
        (fetch,) = self.fresh(FetchPage)
        return fetch.from_seq

    def page(self, asked: int, *seqs: int, partial: bool = False) -> None:
        messages = tuple(RoomMessage(seq=n, message_id=f"m{n}", ciphertext=b"x") for n in seqs)
        next_seq = seqs[-1] + 1 if seqs else asked
        page = InboxPage(messages=messages, next_seq=next_seq, is_partial=partial)
        self.effects += self.protocol.fetched(asked, page, self.now_s)

    def no_page(self, retry_after_s: float | None, error: ClientError | None = None) -> None:
        reason = error or Unavailable("busy")
        self.effects += self.protocol.not_fetched(reason, retry_after_s, self.now_s)

    def failure(self, message_id: str = "a") -> ClientError:
        """How a message failed."""
        (failed,) = [effect for effect in self.of(Failed) if effect.id == message_id]
        return failed.error
