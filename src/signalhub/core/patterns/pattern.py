"""A pattern subscription, its parts on topics, and the consumers that take all of them.

A part is an ordinary subscription of one topic. A consumer of a pattern is a consumer of every part
that had something to send since it joined; its window counts what is in flight of all of them. A
part that finds no room waits in its queue. Freed room goes to the first of the queue, to one part
at a time and in portions, so that a busy topic does not keep the others waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from signalhub.core.limits.quotas import NOBODY
from signalhub.core.subscriptions.consumers import EXCLUSIVE, FAILOVER, Consumer
from signalhub.wire.entry import CursorBody, Entry, Kind, SubscriptionDefinitionBody, encode_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from signalhub.auth.permissions import Allowance
    from signalhub.core.effects import Append, Effect
    from signalhub.core.requests import ResumePoint
    from signalhub.core.sessions.session import Session
    from signalhub.core.streams.streams import Topic
    from signalhub.core.subscriptions.dispatcher import Dispatcher
    from signalhub.core.subscriptions.subscription import Subscription
    from signalhub.wire.errors import Refusal

# While others wait, a part gets this share of the window at a time.
_PORTION: Final = 8
# Parts of one consumer that read from the log at the same time.
READING_MAX: Final = 16


class PatternConsumer:
    """One session as a consumer of a pattern subscription."""

    __slots__ = (
        "_dispatcher",
        "address",
        "auto_ack",
        "bytes",
        "bytes_max",
        "flights",
        "id",
        "name",
        "pattern",
        "portion",
        "queue",
        "reading",
        "session",
        "shares",
        "turn",
        "window",
    )

    is_named = True

    def __init__(
        self,
        consumer_id: str,
        name: str,
        session: Session,
        address: str,
        pattern: Pattern,
        dispatcher: Dispatcher,
        *,
        window: int,
        bytes_max: int,
        auto_ack: bool,
    ) -> None:
        self.id = consumer_id
        self.name = name
        self.session = session
        self.address = address
        self.pattern = pattern
        self._dispatcher = dispatcher
        self.window = window
        self.bytes_max = bytes_max
        self.auto_ack = auto_ack
        # What is in flight of all parts.
        self.flights = 0
        self.bytes = 0
        # Its consumers of parts.
        self.shares: dict[Subscription, Consumer] = {}
        # Parts that have something to send and found no room, the next one first.
        self.queue: dict[Subscription, None] = {}
        # Parts whose turn goes on when a fetch has finished.
        self.reading: set[Subscription] = set()
        # The part whose turn it is, and how much more it may send.
        self.turn: Subscription | None = None
        self.portion = 0

    @property
    def place(self) -> dict[str, str]:
        """What it consumes, by name."""
        text = self.pattern.text
        return {"topic": text, "pattern": text, "subscription": self.pattern.name}

    def parts(self) -> Iterable[Consumer]:
        """Its consumers of parts."""
        return list(self.shares.values())

    def grant(self, window: int | None = None, bytes_max: int | None = None) -> None:
        """Set how many messages and bytes may be in flight to it."""
        if window is not None:
            self.window = window
        if bytes_max is not None:
            self.bytes_max = bytes_max
        self.serve()

    @property
    def has_room(self) -> bool:
        """May one more message be sent to it?"""
        return (
            self.flights < self.window
            and self.bytes < self.bytes_max
            and self.session.outbound is None
        )

    def room_for(self, part: Subscription) -> int:
        """How many messages of a part may be sent to it now."""
        if not self.has_room:
            return 0
        room = self.window - self.flights
        if self.turn is part:
            return min(room, self.portion)
        return 0 if self.queue else room

    def took(self, count: int, size: int) -> None:
        """Messages were sent to it."""
        self.flights += count
        self.bytes += size
        if self.turn is not None:
            self.portion -= count

    def gave(self, count: int, size: int) -> None:
        """Messages are no longer in flight to it."""
        self.flights -= count
        self.bytes -= size
        self.serve()

    def serve(self) -> None:
        """Let parts that wait send, if there is room."""
        if self.queue and self.has_room:
            self._dispatcher.serve(self)

    def ended(self) -> None:
        """It has left all parts; nothing in a circle keeps its session."""
        self.shares.clear()

    def wake(self, dispatcher: Dispatcher) -> None:
        """It may have room again."""
        self.serve()

    def wait(self, part: Subscription) -> None:
        """A part has something to send, and waits for its turn."""
        self.queue[part] = None

    def begin_turn(self) -> Subscription | None:
        """The next part that may send, if there is room for it."""
        if not self.queue or not self.has_room or len(self.reading) >= READING_MAX:
            return None
        part = next(iter(self.queue))
        del self.queue[part]
        self.give_turn(part)
        return part

    def give_turn(self, part: Subscription) -> None:
        """It is the turn of this part."""
        room = max(1, self.window - self.flights)
        self.turn = part
        self.portion = max(1, min(room, self.window // _PORTION)) if self.queue else room

    def end_turn(self, part: Subscription) -> None:
        """The pass of the part whose turn it was has ended."""
        self.turn = None
        if part.backlog.wanted is not None and part.backlog.obstacle is None:
            self.reading.add(part)

    def drop(self, part: Subscription) -> None:
        """A part is gone."""
        self.shares.pop(part, None)
        self.queue.pop(part, None)
        self.reading.discard(part)
        self.serve()


class Pattern:
    """A pattern subscription."""

    __slots__ = (
        "awaiting",
        "consumers",
        "defined_at",
        "definition",
        "deleting",
        "filled",
        "held_up",
        "holder",
        "id",
        "idle_since_ms",
        "is_dirty",
        "is_ending",
        "is_gone",
        "is_paused",
        "is_preparing",
        "levels",
        "making",
        "members",
        "needs_filling",
        "owner",
        "positions",
        "stored_definition",
        "stored_pause",
        "waiting",
    )

    def __init__(self, pattern_id: int, definition: SubscriptionDefinitionBody, now: int) -> None:
        self.id = pattern_id
        self.definition = definition
        # The definition on disk, which is the one that snapshots contain.
        self.stored_definition = definition
        self.levels = definition.pattern.split("/")
        self.owner = definition.owner
        self.holder = NOBODY
        # Its parts by topic.
        self.members: dict[str, Subscription] = {}
        self.consumers: list[PatternConsumer] = []
        self.is_paused = self.stored_pause = False
        # The pending entries that create and delete it.
        self.making: Append | None = None
        self.deleting: Append | None = None
        # Its deletion is on disk, and its parts are being deleted.
        self.is_gone = False
        # What is to be told when that is done, or cannot be done.
        self.awaiting: list[Callable[[Refusal | None, int], list[Effect]]] = []
        self.is_ending = False
        # There may be topics with messages that have no part yet.
        self.needs_filling = False
        # Why parts cannot be made now, and where those begin that would begin elsewhere when they
        # are made: the id of the topic and the floor, by the topic's name.
        self.held_up: Refusal | None = None
        self.waiting: dict[str, tuple[int, int]] = {}
        # Where its first consumer was before, until the parts on these topics are made; its own
        # entry is written after theirs.
        self.positions: dict[str, ResumePoint] = {}
        self.is_preparing = False
        # What waits until they have; `None` if nothing is being done about it.
        self.filled: list[Callable[[int], list[Effect]]] | None = None
        # When the last consumer left; 0 while there is one.
        self.idle_since_ms = now
        self.is_dirty = True
        # The log from this offset on is enough to rebuild it, apart from its parts.
        self.defined_at = 0

    @property
    def text(self) -> str:
        return self.definition.pattern

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def is_abandonable(self) -> bool:
        """May it expire, as far as its state goes?"""
        return not (self.making or self.deleting or self.is_gone or self.consumers)

    def floor_of(self, topic: Topic) -> int:
        """Where it begins in a topic that has no part yet."""
        topic_id, floor = self.waiting.get(topic.name, (-1, 0))
        if topic_id == topic.id:
            return max(topic.first - 1, min(floor, topic.head))
        resume = self.positions.get(topic.name)
        if resume is not None and resume.epoch in (None, topic.epoch):
            return max(topic.first - 1, min(int(resume.seq), topic.head))
        last = self.definition.last
        if last is None:
            return topic.first - 1
        return max(topic.first - 1, topic.head - last)

    def postpone(self, topic: Topic, floor: int) -> None:
        """A part cannot be made now; it will begin there."""
        self.needs_filling = True
        if self.definition.last is not None or floor != topic.first - 1:
            self.waiting[topic.name] = topic.id, floor

    def part_definition(self, floor: int) -> SubscriptionDefinitionBody:
        """The definition of a new part."""
        # Only the whole expires.
        return replace(self.definition, start=floor, last=None, idle_expiry_ms=0)

    def entry(self, kind: Kind, now: int, *, is_paused: bool = False) -> Entry:
        """An entry about it; its stream is the pattern, which no topic can be called."""
        body = self.cursor(is_paused) if kind is Kind.CURSOR else self.definition
        return Entry(kind, self.text, self.id, 0, now, encode_body(body))

    def cursor(self, is_paused: bool) -> CursorBody:
        """Whether it is paused, as an entry; it has no position."""
        return CursorBody(self.name, 1, 0, 0, [], {}, {}, is_paused)

    def may_be_consumed(self, allowance: Allowance) -> bool:
        """Both verbs must cover the whole pattern."""
        owner = self.definition.owner
        return allowance.may_subscribe(self.text) and allowance.may_consume(
            self.text, self.name, owner
        )

    def tell(self, refusal: Refusal | None, now: int) -> list[Effect]:
        """Tell those who await its deletion."""
        awaiting, self.awaiting = self.awaiting, []
        return [effect for one in awaiting for effect in one(refusal, now)]

    def named(self, consumer: str) -> PatternConsumer | None:
        return next((one for one in self.consumers if one.name == consumer), None)

    def left(self, consumer: PatternConsumer, now: int) -> None:
        """A consumer leaves; the parts it had are woken by whoever calls this."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        consumer.queue.clear()
        consumer.reading.clear()
        if not self.consumers:
            self.idle_since_ms = now
            self.is_dirty = True

    # Parts.

    def take(self, part: Subscription) -> None:
        """A part was made or restored."""
        part.pattern = self
        # Otherwise the first consumer would get every first message.
        part.consumers.begin_at(len(self.members))
        self.members[part.stream.name] = part
        self.waiting.pop(part.stream.name, None)

    def forget(self, part: Subscription) -> None:
        """A part was removed."""
        for one in self.consumers:
            one.drop(part)
        if self.members.get(part.stream.name) is part:
            del self.members[part.stream.name]

    def attach(self, part: Subscription) -> None:
        """A part may have something to send: it gets the consumers that it lacks."""
        if len(part.consumers) == len(self.consumers):
            return
        for one in self.consumers:
            if part not in one.shares:
                one.shares[part] = share = Consumer(
                    one.id,
                    one.name,
                    one.session,
                    one.address,
                    part,
                    window=one.window,
                    bytes_max=one.bytes_max,
                    auto_ack=one.auto_ack,
                    group=one,
                )
                part.joined(share)

    def before_pass(self, part: Subscription) -> PatternConsumer | None:
        """A part was woken; whose turn goes on with it?"""
        self.attach(part)
        for one in self.consumers:
            if part in one.reading:
                one.reading.discard(part)
                one.queue.pop(part, None)
                one.give_turn(part)
                return one
        return None

    def after_pass(self, part: Subscription, on_turn: PatternConsumer | None) -> None:
        """A pass over a part has ended."""
        if on_turn is not None:
            on_turn.end_turn(part)
        if part.is_hungry:
            for one in self._receivers(part):
                one.wait(part)
                if len(one.queue) > 1 and part.backlog.wanted is None:
                    # Many parts must not keep what they have read ahead until their next turns.
                    part.backlog.clear()
        for one in self.consumers:
            one.serve()

    def _receivers(self, part: Subscription) -> list[PatternConsumer]:
        """The consumers whose room the part waits for."""
        groups = [one.group for one in part.consumers.all if one.group is not None]
        if self.definition.mode in (EXCLUSIVE, FAILOVER):
            return groups[:1]
        if part.window.is_keyed:
            waiting = [one.group for one in part.consumers.all if one.waiting]
            return [one for one in waiting if one is not None] or groups
        return groups
