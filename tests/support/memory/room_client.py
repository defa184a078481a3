"""One member of a room with the hub's end of its wire, and the time, in the hands of the test."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from signalhub.client.protocol.effects import Failed, SendFrame
from signalhub.client.rooms.answers import InboxPage, Missed, RoomMessage
from signalhub.client.rooms.protocol import Effect, FetchPage, RoomProtocol
from signalhub.wire.base64url import encoded
from signalhub.wire.errors import ClientError, GaveUp
from tests.support.memory.stories import Stage

E = TypeVar("E", bound=Effect)


class Member(Stage):
    """Performs nothing: what the protocol wants is kept, and each step looks at what is new."""

    def __init__(self, since: int | None = 0) -> None:
        self.now_s = 100.0
        self.protocol = RoomProtocol("p1", since, random=lambda: 0.0)
        self.effects: list[Effect] = []
        self._seen: dict[type, int] = {}

    def of(self, kind: type[E]) -> list[E]:
        """All effects of a kind so far."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def fresh(self, kind: type[E]) -> list[E]:
        """The effects of a kind since the last look at them."""
        effects = self.of(kind)
        fresh = effects[self._seen.get(kind, 0) :]
        self._seen[kind] = len(effects)
        return fresh

    def hear(self, action: str, **members: Any) -> None:
        frame = json.dumps({"action": action, **members}).encode()
        self.effects += self.protocol.received(frame, self.now_s)

    def open(self) -> None:
        self.effects += self.protocol.opened(self.now_s)

    def welcome(self, last_seq: int) -> None:
        self.hear("welcome", lastSeq=last_seq, oldestBufferedSeq=1)

    def join(self, last_seq: int) -> None:
        self.open()
        self.welcome(last_seq)

    def lose(self, close_code: int | None = None) -> None:
        self.effects += self.protocol.lost(close_code)

    def time(self, seconds: float | str) -> None:
        self.now_s += float(seconds)
        self.effects += self.protocol.tick(self.now_s)

    def live(self, *seqs: int) -> None:
        """Somebody says something at these positions."""
        for seq in seqs:
            self.echo(f"m{seq}", seq)

    def echo(self, message_id: str, seq: int, data: bytes = b"x") -> None:
        members = {"seq": seq, "messageId": message_id, "ciphertext": encoded(data)}
        self.hear("message", type="mls_app", **members)

    def refuse(self, message_id: str, code: str, retry_after_ms: int | None = None) -> None:
        self.hear(
            "error", messageId=message_id, error="x", errorCode=code, retryAfterMs=retry_after_ms
        )

    def page(
        self,
        asked: int,
        *seqs: int,
        next_seq: int | None = None,
        is_partial: bool = False,
        skipped: tuple[Missed, ...] = (),
    ) -> None:
        messages = tuple(RoomMessage(seq=n, message_id=f"m{n}", ciphertext=b"x") for n in seqs)
        if next_seq is None:
            next_seq = seqs[-1] + 1 if seqs else asked
        page = InboxPage(
            messages=messages, next_seq=next_seq, is_partial=is_partial, skipped=skipped
        )
        self.effects += self.protocol.fetched(asked, page, self.now_s)

    def send(self, *message_ids: str, data: bytes = b"x", timeout_s: float = 1_000.0) -> None:
        members = {"ciphertext": encoded(data), "type": "mls_app"}
        deadline_s = self.now_s + timeout_s
        for message_id in message_ids:
            self.effects += self.protocol.submit(message_id, data, members, deadline_s, self.now_s)

    def soon(self, timeout_s: float, *message_ids: str) -> None:
        """Send with little time."""
        self.send(*message_ids, timeout_s=timeout_s)

    def forget(self, message_id: str) -> None:
        self.protocol.forget(message_id)

    def stop(self, reason: str = "enough") -> None:
        self.effects += self.protocol.stop(GaveUp(reason))

    def written(self) -> list[dict[str, Any]]:
        """The frames written since the last look."""
        return [json.loads(effect.frame) for effect in self.fresh(SendFrame)]

    def wrote(self, *message_ids: str) -> None:
        assert [frame.get("messageId") for frame in self.written()] == [*message_ids]

    def take(self, *seqs: int) -> None:
        """These are read now, and no more."""
        taken: list[int] = []
        while True:
            message, effects = self.protocol.take(self.now_s)
            self.effects += effects
            if message is None:
                break
            taken.append(message.seq)
        assert taken == [*seqs]

    def fetch(self, *from_seqs: int) -> None:
        """A page is asked for from this position on; none without an argument."""
        assert [fetch.from_seq for fetch in self.fresh(FetchPage)] == [*from_seqs]

    def error(self, message_id: str) -> ClientError:
        """How a message failed."""
        (failed,) = [effect for effect in self.of(Failed) if effect.id == message_id]
        return failed.error

    def fails(self, message_id: str, kind: str, code: str | None = None) -> None:
        error = self.error(message_id)
        assert type(error).__name__ == kind
        assert code is None or error.code == code

    def missed(self, *ends: int) -> None:
        """These ranges were gone."""
        pairs = [Missed(*pair) for pair in zip(ends[::2], ends[1::2], strict=True)]
        assert list(self.protocol.reading.missed) == pairs
