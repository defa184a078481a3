"""Requests to other actors that wait for a reply, or for the replies of many.

States of an exchange: SENT (the hub has not answered) → HANDED OVER → ended. It ends exactly once:
with its last reply, with an error, or when its time is over. What it was is remembered for a while,
so that replies that come later are recognised, counted and dropped.

The hub does not report that a recipient has left after the request was handed over. So one without
a mailbox is looked for at growing intervals, once for all requests it was given. Not finding it
means that it has left, unless there may be other reasons: our own link was new, so the recipient
may be reconnecting as well, or our token may not see it. Then it must be found once before.
"""

from __future__ import annotations

from typing import Any, Final

from signalhub.client.message import Message
from signalhub.client.protocol.effects import Concluded, Dismissed, Effect, Failed, Replied
from signalhub.client.protocol.frame import Request
from signalhub.client.protocol.pending import Deadlines
from signalhub.wire.errors import ClientError, NoReply

FIRST_LOOK_S: Final = 0.25
LOOK_PAUSE_MAX_S: Final = 2.0
REPLIES_MAX: Final = 10_000
# Exchanges that have ended and whose late replies are recognised.
REMEMBERED_MAX: Final = 10_000


class Exchange:
    """One request, to the actor `to` or, without it, to many."""

    __slots__ = (
        "due_s",
        "expected",
        "id",
        "is_handed_over",
        "order",
        "replied",
        "replies_max",
        "subject",
        "timeout_s",
        "to",
    )

    def __init__(
        self, request: Request, order: int, to: str, replies_max: int, timeout_s: float
    ) -> None:
        self.id = request.id
        self.subject = request.subject
        self.order = order
        self.to = to
        self.replies_max = replies_max
        self.timeout_s = timeout_s
        self.due_s = 0.0
        self.is_handed_over = False
        # How many were asked, if that is known, and who has replied.
        self.expected: int | None = None
        self.replied: set[str] = set()

    @property
    def is_complete(self) -> bool:
        """Whether no further reply is expected."""
        count = len(self.replied)
        return count >= self.replies_max or (self.expected is not None and count >= self.expected)


class Watch:
    """A recipient that is looked for, and the exchanges that wait for it."""

    __slots__ = ("address", "due_s", "order", "pause_s", "waiting", "was_found")

    def __init__(self, address: str, order: int, *, was_found: bool) -> None:
        self.address = address
        self.order = order
        self.due_s = 0.0
        self.pause_s = FIRST_LOOK_S
        self.was_found = was_found
        self.waiting: dict[str, None] = {}


class Exchanges:
    """All exchanges of one client."""

    def __init__(self) -> None:
        self.late_replies = 0
        self._open: dict[str, Exchange] = {}
        self._ended: dict[str, None] = {}
        self._deadlines = Deadlines[Exchange]()
        self._watches: dict[str, Watch] = {}
        self._looks: Deadlines[Watch] = Deadlines[Watch]()
        # Recipients by the id of the request that looks for them, and who waited for it then.
        self._asked: dict[str, tuple[Watch, list[str]]] = {}
        self._orders = 0

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._open

    def open(
        self, request: Request, to: str, replies_max: int, timeout_s: float, now_s: float
    ) -> None:
        """Expect replies to a request that is sent now."""
        self._orders += 1
        exchange = Exchange(request, self._orders, to, replies_max, timeout_s)
        self._open[request.id] = exchange
        self._ended.pop(request.id, None)
        self._deadlines.set(exchange, now_s + timeout_s)

    def forget(self, message_id: str) -> None:
        """End one silently: nobody waits any longer."""
        exchange = self._open.get(message_id)
        if exchange is not None:
            self._end(exchange)

    def handed_over(
        self, message_id: str, facts: dict[str, Any], *, is_seen: bool, now_s: float
    ) -> list[Effect]:
        """The hub has accepted the request; `is_seen` if we may see every actor."""
        exchange = self._open[message_id]
        exchange.is_handed_over = True
        has_position = facts.get("seq") is not None
        if exchange.to:
            # One with a mailbox gets the request again, whoever is connected now.
            if not has_position and "*" not in exchange.to:
                self._watch(exchange, now_s, was_found=is_seen)
            return []
        if not has_position:
            names = ("subscriberCount", "deliveredCount", "queuedCount")
            exchange.expected = sum(
                count for name in names if isinstance(count := facts.get(name), int)
            )
        if not exchange.is_complete:
            return []
        self._end(exchange)
        return [Concluded(message_id)]

    def replied(self, message: Message) -> list[Effect] | None:
        """A message has arrived; `None` if it is not a reply to a request of this client."""
        message_id = message.in_reply_to
        if message_id is None:
            return None
        exchange = self._open.get(message_id)
        if exchange is None:
            return [self._dropped(message)] if message_id in self._ended else None
        if exchange.to and message.sender != exchange.to:
            return None
        if message.sender in exchange.replied:
            return [self._dropped(message)]
        exchange.replied.add(message.sender)
        exchange.is_handed_over = True
        is_last = exchange.is_complete
        if is_last:
            self._end(exchange)
        return [Replied(message_id, message, is_last)]

    def failed(self, message_id: str, error: ClientError) -> list[Effect]:
        """The request itself has failed, unless a reply says that it has not."""
        exchange = self._open[message_id]
        if exchange.replied:
            return []
        self._end(exchange)
        return [Failed(message_id, error)]

    def stop(self, reason: str) -> list[Effect]:
        """The client ends: so do all exchanges that were handed over."""
        effects: list[Effect] = []
        for exchange in list(self._open.values()):
            self._end(exchange)
            text = f"{exchange.subject}: {reason} before the reply"
            effects.append(Failed(exchange.id, NoReply(text)))
        return effects

    def due(self, now_s: float) -> list[tuple[Exchange, list[Effect]]]:
        """End what has waited long enough; those not handed over are for the caller to word."""
        ended: list[tuple[Exchange, list[Effect]]] = []
        for exchange in self._deadlines.due(now_s):
            self._end(exchange)
            if not exchange.is_handed_over:
                ended.append((exchange, []))
            elif exchange.to:
                text = f"{exchange.subject}: no reply within {exchange.timeout_s:g} s"
                ended.append((exchange, [Failed(exchange.id, NoReply(text))]))
            else:
                ended.append((exchange, [Concluded(exchange.id)]))
        return ended

    def wake_at_s(self, *, is_ready: bool) -> float | None:
        """When something is due."""
        moments = [self._deadlines.next_s, self._looks.next_s if is_ready else None]
        return min((moment for moment in moments if moment is not None), default=None)

    # Looking for recipients.

    def to_look_for(self, now_s: float) -> list[Watch]:
        """The recipients to look for now; `looking` follows for each of them."""
        return [watch for watch in self._looks.due(now_s) if watch.waiting]

    def looking(self, watch: Watch, message_id: str) -> None:
        """This request looks for a recipient."""
        self._asked[message_id] = watch, list(watch.waiting)

    def is_look(self, message_id: str) -> bool:
        return message_id in self._asked

    def looked(self, message_id: str, facts: dict[str, Any], now_s: float) -> list[Effect]:
        """The hub says who is there: requests to a recipient that is not have ended."""
        watch, waited = self._asked.pop(message_id)
        actors = facts.get("actors")
        found = isinstance(actors, list) and any(
            isinstance(one, dict) and one.get("address") == watch.address for one in actors
        )
        effects: list[Effect] = []
        if not found and watch.was_found:
            for waiting in waited:
                if (exchange := self._open.get(waiting)) is not None:
                    self._end(exchange)
                    text = f"{exchange.subject}: {exchange.to} has left without a reply"
                    effects.append(Failed(waiting, NoReply(text, code="recipient_left")))
        watch.was_found |= found
        self._look_again(watch, now_s)
        return effects

    def not_looked(self, message_id: str, *, is_final: bool) -> None:
        """The hub did not say; it never will if `is_final`."""
        watch, _ = self._asked.pop(message_id)
        if not is_final:
            self._look_again(watch, watch.due_s)

    def lost(self, now_s: float) -> None:
        """The link is lost: perhaps the hub was restarted, and recipients reconnect as well."""
        for watch, _ in self._asked.values():
            self._look_again(watch, now_s)
        self._asked.clear()
        for watch in self._watches.values():
            watch.was_found = False

    def _watch(self, exchange: Exchange, now_s: float, *, was_found: bool) -> None:
        watch = self._watches.get(exchange.to)
        if watch is None:
            self._orders += 1
            watch = Watch(exchange.to, self._orders, was_found=was_found)
            self._watches[exchange.to] = watch
            self._looks.set(watch, now_s + watch.pause_s)
        watch.waiting[exchange.id] = None

    def _look_again(self, watch: Watch, now_s: float) -> None:
        if self._watches.get(watch.address) is watch:
            watch.pause_s = min(2 * watch.pause_s, LOOK_PAUSE_MAX_S)
            self._looks.set(watch, now_s + watch.pause_s)

    def _end(self, exchange: Exchange) -> None:
        del self._open[exchange.id]
        self._deadlines.clear(exchange)
        watch = self._watches.get(exchange.to)
        if watch is not None:
            watch.waiting.pop(exchange.id, None)
            if not watch.waiting:
                del self._watches[watch.address]
                self._looks.clear(watch)
        self._ended[exchange.id] = None
        if len(self._ended) > REMEMBERED_MAX:
            del self._ended[next(iter(self._ended))]

    def _dropped(self, message: Message) -> Effect:
        self.late_replies += 1
        return Dismissed(message)
