"""Looking back: `hub:replay` sends a range of a durable topic again, without settling anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from signalhub import envelope as wire
from signalhub.core import copies, letters, publishing, refusals, requests
from signalhub.core.effects import Effect, Fetch, Reply
from signalhub.core.session import Session, State
from signalhub.core.streams import Topic
from signalhub.entry import Stored
from signalhub.envelope import Envelope

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

LIMIT_MAX = 10_000
PAGE_MESSAGES = 256
PAGE_BYTES = 2**20


def replay(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """The copies in order, then `hub:replayed` with how far it came."""
    request = requests.parse(requests.Replay, message.payload)
    publishing.check_may_read(session, request.topic)
    topic = publishing.find(hub, request.topic)
    if request.epoch is not None and request.epoch != topic.epoch:
        raise refusals.wrong_epoch(topic.name, request.epoch, topic.epoch)
    first = int(request.from_seq)
    last = topic.head if request.to_seq is None else min(int(request.to_seq), topic.head)
    limit = min(request.limit or LIMIT_MAX, LIMIT_MAX)
    return _Replaying(hub, session, message, topic, first, last, limit).go_on(now)


class _Replaying:
    """One request, page by page; it stops early when the reader does not keep up."""

    def __init__(
        self,
        hub: Hub,
        session: Session,
        message: Envelope,
        topic: Topic,
        first: int,
        last: int,
        limit: int,
    ) -> None:
        self._hub = hub
        self._session = session
        self._message = message
        self._topic = topic
        self._asked = first
        self._next = max(first, topic.first)
        self._last = last
        self._left = limit
        self._count = 0

    def go_on(self, now: int) -> list[Effect]:
        """The next page, or the end."""
        is_blocked = self._session.outbound is not None and self._count > 0
        if self._next > self._last or self._left <= 0 or is_blocked:
            return [self._end(now)]
        count = min(PAGE_MESSAGES, self._left, self._last - self._next + 1)
        topic = self._topic
        return [Fetch(topic.name, topic.id, self._next, count, PAGE_BYTES, self._fetched)]

    def _fetched(self, found: list[Stored] | None, now: int) -> list[Effect]:
        if self._session.state is not State.CONNECTED:
            return []
        if found is None:
            unread = refusals.storage_unreadable()
            return [self._hub.refuse(self._session, self._message, unread, now)]
        if not found:
            return [self._end(now)]
        copied: list[Effect] = []
        if found[0].seq > self._next:
            copied += letters.lose_before(self._hub, self._topic, found[0].seq, now)
        for stored in found:
            if stored.seq > self._last or self._left <= 0:
                break
            self._next = stored.seq + 1
            held = self._hub.erasures.held_of(stored)
            if stored.seq in self._topic.removed or held.is_erased:
                continue
            message = held.message
            if message.expires_at is not None and message.expires_at < now:
                continue
            if message.deliver_at is not None and message.deliver_at > now:
                continue
            frame = copies.replayed(self._topic, held, self._message.sender, now)
            copied.append(Reply(self._session, frame))
            self._count += 1
            self._left -= 1
        return [*copied, *self.go_on(now)]

    def _end(self, now: int) -> Reply:
        is_complete = self._next > self._last and self._asked >= self._topic.first
        payload: dict[str, object] = {
            "topic": self._topic.name,
            "epoch": self._topic.epoch,
            "count": self._count,
            "complete": is_complete,
            "next": self._next,
        }
        if self._asked < self._topic.first:
            payload |= {"lostFrom": self._asked, "lostTo": self._topic.first - 1}
        return self._hub.reply(
            self._session, self._message, "hub:replayed", wire.encode(payload), now
        )
