"""One member of a room with the hub's end of its wire, and the time, in the hands of the test."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from signalhub.client.protocol.effects import Drop, Failed, Reported, SendFrame, Stop
from signalhub.client.protocol.events import MessagesDeleted, PositionsSkipped
from signalhub.client.rooms.answers import InboxPage, Missed, RoomMessage
from signalhub.client.rooms.protocol import Effect, FetchPage, MessageAccepted, RoomProtocol
from signalhub.wire.base64url import encoded
from signalhub.wire.errors import ClientError, GaveUp, Refused, Unavailable
from tests.support.memory.stories import Stage

E = TypeVar("E", bound=Effect)

LIMITED = "RATE_LIMIT_EXCEEDED"


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

    def ack(self, message_id: str, seq: int) -> None:
        self.hear("ack", messageId=message_id, seq=seq)

    def duplicate(self, message_id: str, seq: int) -> None:
        self.hear("ack", messageId=message_id, seq=seq, duplicate=True)

    def refuse(self, message_id: str, code: str, retry_after_ms: int | None = None) -> None:
        self.hear(
            "error", messageId=message_id, error="x", errorCode=code, retryAfterMs=retry_after_ms
        )

    def limit(self, message_id: str, retry_after_ms: int) -> None:
        self.refuse(message_id, LIMITED, retry_after_ms)

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

    def skips(self, first: int, last: int, asked: int, *seqs: int) -> None:
        """A page of a hub that has lost these positions."""
        self.page(asked, *seqs, skipped=(Missed(first, last),))

    def partial(self, asked: int, *seqs: int) -> None:
        """A page with holes."""
        self.page(asked, *seqs, next_seq=asked, is_partial=True)

    def ends(self, next_seq: int, asked: int, *seqs: int) -> None:
        """A page of a hub that cannot read on from here."""
        self.page(asked, *seqs, next_seq=next_seq, is_partial=True)

    def busy(self, retry_after_s: float) -> None:
        """The hub has no page for now."""
        error = Unavailable("busy")
        self.effects += self.protocol.not_fetched(error, retry_after_s, self.now_s)

    def forbidden(self) -> None:
        """The hub has no page, ever."""
        error = Refused("BAD_REQUEST", "no")
        self.effects += self.protocol.not_fetched(error, None, self.now_s)

    def send(self, *message_ids: str, data: bytes = b"x", timeout_s: float = 1_000.0) -> None:
        members = {"ciphertext": encoded(data), "type": "mls_app"}
        deadline_s = self.now_s + timeout_s
        for message_id in message_ids:
            self.effects += self.protocol.submit(message_id, data, members, deadline_s, self.now_s)

    def soon(self, timeout_s: float, *message_ids: str) -> None:
        """Send with little time."""
        self.send(*message_ids, timeout_s=timeout_s)

    def large(self, size: int, *message_ids: str) -> None:
        self.send(*message_ids, data=b"x" * size)

    def forget(self, message_id: str) -> None:
        self.protocol.forget(message_id)

    def congest(self) -> None:
        self.effects += self.protocol.congested(True, self.now_s)

    def clear(self) -> None:
        self.effects += self.protocol.congested(False, self.now_s)

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

    def accepted(self, *message_ids: str) -> None:
        assert [effect.id for effect in self.fresh(MessageAccepted)] == [*message_ids]

    def failed(self, *message_ids: str) -> None:
        assert [effect.id for effect in self.of(Failed)] == [*message_ids]

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

    def warned(self, *ends: int) -> None:
        """A listener is told of these ranges."""
        events = [one.event for one in self.of(Reported)]
        facts = [
            (one.first, one.last)
            for one in events
            if isinstance(one, MessagesDeleted | PositionsSkipped)
        ]
        assert facts == list(zip(ends[::2], ends[1::2], strict=True))

    def skipped(self, *ends: int) -> None:
        """A listener is told that the hub has lost these ranges."""
        events = [one.event for one in self.of(Reported)]
        facts = [(one.first, one.last) for one in events if isinstance(one, PositionsSkipped)]
        assert facts == list(zip(ends[::2], ends[1::2], strict=True))

    def position(self, seq: int) -> None:
        assert self.protocol.reading.last_seq == seq

    def dropped(self, count: int) -> None:
        assert len(self.of(Drop)) == count

    def stopped(self, *kinds: str) -> None:
        assert [type(effect.error).__name__ for effect in self.of(Stop)] == [*kinds]
