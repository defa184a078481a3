"""Requests about durable topics, subscriptions, their messages and actors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, Self, TypedDict, cast, get_args

from signalhub.client.answers import (
    Count,
    Erased,
    LetterCount,
    LettersPreview,
    Original,
    Place,
    Placements,
    Replayed,
    Republished,
    Sought,
    SubscriptionInfo,
    SubscriptionPage,
    Topic,
    TopicPage,
    answer_of,
)
from signalhub.client.arguments import (
    BacklogPolicy,
    Mode,
    Poison,
    Position,
    checked_actor,
    checked_address,
    checked_name,
    checked_pattern,
    checked_topic,
    epoch_ms,
    wire_position,
)
from signalhub.client.delivery import Delivery, Settled
from signalhub.client.protocol.frame import A, HeldBy, Payload
from signalhub.wire.envelope import TELL
from signalhub.wire.names import has_wildcard


class _OfTopic(Payload[A], Generic[A]):
    topic: str

    def __post_init__(self) -> None:
        checked_topic(self.topic)


class CreateTopic(_OfTopic[Topic]):
    TYPE = "hub:topic_create"
    ANSWER = "hub:topic_created"

    definition: Mapping[str, Any]

    def content(self) -> object:
        return {"topic": self.topic, "durable": True, **self.definition}


class UpdateTopic(_OfTopic[Topic]):
    TYPE = "hub:topic_update"
    ANSWER = "hub:topic_info_response"

    definition: Mapping[str, Any]

    def content(self) -> object:
        return {"topic": self.topic, **self.definition}


class ShowTopic(_OfTopic[Topic]):
    TYPE = "hub:topic_info"
    ANSWER = "hub:topic_info_response"


class ListTopics(Payload[TopicPage]):
    TYPE = "hub:list_topics"
    ANSWER = "hub:topic_list"

    pattern: str | None = None
    offset: int | None = None
    limit: int | None = None


class DeleteTopic(_OfTopic[None]):
    TYPE = "hub:topic_delete"
    ANSWER = "hub:topic_deleted"
    # A repeat would be refused as if the first request had failed.
    REPEATABLE = False


class _OfSubscription(Payload[A], Generic[A]):
    topic: str
    subscription: str

    def __post_init__(self) -> None:
        checked_pattern(self.topic)
        checked_name(self.subscription, "a subscription")

    def content(self) -> object:
        return self.place()

    def place(self) -> dict[str, Any]:
        """Which subscription is meant; a topic with a wildcard is a pattern."""
        member = "pattern" if has_wildcard(self.topic) else "topic"
        return {member: self.topic, "subscription": self.subscription}

    def subject(self) -> str:
        return f"{self.TYPE} for {self.subscription} of topic {self.topic}"


class Join(_OfSubscription[None]):
    TYPE = "hub:subscribe"
    ANSWER = "hub:subscribed"

    terms: Mapping[str, Any]

    def content(self) -> object:
        return {**self.place(), **self.terms}


class Leave(_OfSubscription[None]):
    TYPE = "hub:unsubscribe"
    ANSWER = "hub:unsubscribed"
    # The subscription also ends with the connection.
    REPEATABLE = False


class _Shown(_OfSubscription[SubscriptionInfo]):
    ANSWER = "hub:sub_info_response"


class ShowSubscription(_Shown):
    TYPE = "hub:sub_info"


class UpdateSubscription(_Shown):
    TYPE = "hub:sub_update"

    serving: Mapping[str, Any]

    def content(self) -> object:
        return {**self.place(), **self.serving}


class Pause(_Shown):
    TYPE = "hub:sub_pause"


class Resume(_Shown):
    TYPE = "hub:sub_resume"


class DeleteSubscription(_Shown):
    TYPE = "hub:sub_delete"
    ALIAS = "hub:sub_deleted"
    REPEATABLE = False


class ListSubscriptions(Payload[SubscriptionPage]):
    TYPE = "hub:list_subs"
    ANSWER = "hub:sub_list"
    ALIAS = "hub:sub_info_response"

    topic: str | None = None
    offset: int | None = None
    limit: int | None = None
    pattern: str | None = None
    patterns: bool = False

    def __post_init__(self) -> None:
        if self.topic is not None and has_wildcard(self.topic):
            self.pattern, self.topic = checked_pattern(self.topic), None
        elif self.topic is not None:
            checked_topic(self.topic)


class Seek(_OfSubscription[Sought]):
    """Move a durable subscription, or with `dry_run` only report the effect."""

    TYPE = "hub:seek"
    ANSWER = "hub:sought"

    to: Position
    dry_run: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.to = wire_position(self.to)

    def content(self) -> object:
        return {**self.place(), "to": self.to, **({"dryRun": True} if self.dry_run else {})}

    def subject(self) -> str:
        return self.TYPE

    def is_repeatable(self) -> bool:
        return self.dry_run


class ReadTopic(_OfTopic[Replayed]):
    """A range of a topic; the messages arrive before the answer."""

    TYPE = "hub:replay"
    ANSWER = "hub:replayed"

    from_seq: int
    to_seq: int | None = None
    limit: int | None = None

    def collects(self) -> str:
        return self.topic


class LetterEdit(TypedDict, total=False):
    """What a redriven message has instead of its dead letter; `None` removes key or headers."""

    data: Any
    type: str
    key: str | None
    headers: Mapping[str, str] | None


class LetterChoice(TypedDict, total=False):
    """Which dead letters are meant; what is given must all be so."""

    reason: str
    stream: str
    """The topic they came from, or the address of the mailbox."""
    subscription: str
    type: str
    died_from: datetime | float
    died_to: datetime | float
    through: int
    """Nothing beyond this position; from a preview, together with `epoch`."""
    epoch: str


class Redriving(LetterChoice, total=False):
    """Which dead letters are put back, and what is replaced in some of them, by position."""

    edits: Mapping[int, LetterEdit]


class _DeadLetters(_OfTopic[A], Generic[A]):
    """All dead letters, or the chosen ones."""

    REPEATABLE = False

    all: bool | None = None
    seqs: Iterable[int] | None = None
    filter: Mapping[str, Any] | None = None
    through: int | None = None
    epoch: str | None = None
    edits: Mapping[int, LetterEdit] | None = None
    dry_run: bool = False

    @classmethod
    def of(
        cls,
        topic: str,
        seqs: Iterable[int] | None,
        choice: LetterChoice | Redriving,
    ) -> Self:
        dry_run = cls.READS is LettersPreview
        listed = None if seqs is None else list(seqs)
        if not choice and not dry_run:
            return cls(topic, all=True) if listed is None else cls(topic, seqs=listed)
        # A hub that knows none of this refuses a filter; it would do more if it ignored a part.
        filter: dict[str, Any] = {name: choice[name] for name in _FILTERS if name in choice}  # type: ignore[literal-required]
        for name, bound in (("from", choice.get("died_from")), ("to", choice.get("died_to"))):
            if bound is not None:
                filter[name] = epoch_ms(bound)
        if listed is not None:
            filter["seqs"] = listed
        return cls(
            topic,
            filter=filter,
            through=choice.get("through"),
            epoch=choice.get("epoch"),
            edits=cast(Redriving, choice).get("edits"),
            dry_run=dry_run,
        )


_FILTERS = ("reason", "stream", "subscription", "type")


class _Done(_DeadLetters[LetterCount]):
    def read(self, answer: Any, attempts: int) -> LetterCount:
        done = answer_of(answer, Count)
        return LetterCount(done.count, done.skipped)


class Redrive(_Done):
    TYPE = "hub:redrive"
    ANSWER = "hub:redriven"


class Purge(_Done):
    TYPE = "hub:purge"
    ANSWER = "hub:purged"


class PreviewRedrive(_DeadLetters[LettersPreview]):
    TYPE = "hub:redrive"
    ANSWER = "hub:redriven"
    REPEATABLE = True


class Source(NamedTuple):
    """The source of a message: a mailbox, or a subscription of a topic."""

    stream: str | None = None
    topic: str | None = None
    subscription: str | None = None


class SettlementRequest(Payload[Settled]):
    """A verdict on messages of one epoch."""

    KIND = HeldBy.EXEMPT

    stream: str | None = None
    topic: str | None = None
    subscription: str | None = None
    epoch: str | None = None
    seq: int | None = None
    id: str | None = None
    seqs: Sequence[int] | None = None
    ids: Sequence[str | None] | None = None
    attempt: int | None = None
    up_to: int | None = None
    delay_ms: int | None = None
    ms: int | None = None
    reason: str | None = None

    @classmethod
    def of(cls, source: Source, deliveries: Sequence[Delivery], **facts: Any) -> Self:
        """Settle one or several deliveries of one epoch."""
        first = deliveries[0]
        if len(deliveries) == 1:
            return cls(*source, epoch=first.epoch, seq=first.seq, id=first.id, **facts)
        seqs = [one.seq for one in deliveries]
        ids = [one.id for one in deliveries]
        return cls(*source, epoch=first.epoch, seqs=seqs, ids=None if None in ids else ids, **facts)

    def subject(self) -> str:
        if self.stream is not None:
            return f"{self.TYPE} for the mailbox of {self.stream}"
        return f"{self.TYPE} for {self.subscription} of topic {self.topic}"


Verdict = type[SettlementRequest]


class Ack(SettlementRequest):
    TYPE = "hub:ack"
    ANSWER = "hub:acked"


class Nack(SettlementRequest):
    TYPE = "hub:nack"
    ANSWER = "hub:nacked"


class Extend(SettlementRequest):
    TYPE = "hub:extend"
    ANSWER = "hub:extended"

    @classmethod
    def of(cls, source: Source, deliveries: Sequence[Delivery], **facts: Any) -> Self:
        """Extend one delivery; without an id, as in mailboxes, the number names the attempt."""
        (delivery,) = deliveries
        return super().of(source, deliveries, attempt=delivery.attempt, **facts)


class Term(SettlementRequest):
    TYPE = "hub:term"
    ANSWER = "hub:termed"


class Credit(Payload[None]):
    """How many messages or bytes a consumer may have unsettled."""

    TYPE = "hub:credit"
    KIND = HeldBy.EXEMPT
    PATTERN = TELL

    subscription_id: str
    messages: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        if self.messages is None and self.bytes is None:
            raise ValueError("a credit needs a number of messages, of bytes, or both")
        if min(each for each in (self.messages, self.bytes) if each is not None) < 0:
            raise ValueError("a credit must be at least 0")


class Republish(Payload[Republished]):
    """Send messages of a replay job; repeatable, because the hub takes each message once."""

    TYPE = "hub:republish"
    ANSWER = "hub:republished"

    job: str
    until: Mapping[str, int]
    to: Mapping[str, str]
    messages: Sequence[Original]
    ended: bool | None = None


class Erase(Payload[Erased]):
    """Erase content from the log; repeatable, because a repeat finds nothing left."""

    TYPE = "hub:erase"
    ANSWER = "hub:erased"

    actor: str | None = None
    inbox: str | None = None
    pseudonym: str | None = None

    def __post_init__(self) -> None:
        if self.actor is not None:
            checked_address(self.actor)


class FindPlaces(Payload[Placements]):
    """Ask where durable actors live; repeatable, because a repeat gets the same answer."""

    TYPE = "hub:place"
    ANSWER = "hub:placed"

    actors: Iterable[str]
    host: str | None = None
    tokens: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        self.actors = [checked_actor(actor) for actor in self.actors]


class Move(Payload[Place]):
    """Move an actor to another host; repeatable, because the hub recognises it by the token."""

    TYPE = "hub:move"
    ANSWER = "hub:moved"

    actor: str
    token: int
    to: str

    def __post_init__(self) -> None:
        checked_actor(self.actor)
        checked_address(self.to)


class ForgetPlace(Payload[Place]):
    """Forget where an actor lives; a repeat could hit its next place."""

    TYPE = "hub:forget_place"
    ANSWER = "hub:place_forgotten"
    REPEATABLE = False

    actor: str

    def __post_init__(self) -> None:
        checked_actor(self.actor)


def destination(
    topic: str | None = None, subscription: str | None = None, actor: str | None = None
) -> dict[str, str]:
    """The target of a replay job: a topic, one of its subscriptions, or an actor's mailbox."""
    if (topic is None) is (actor is None) or (actor is not None and subscription is not None):
        raise ValueError("a replay goes to a topic, a topic and subscription, or an actor")
    if actor is not None:
        return {"actor": checked_address(actor)}
    assert topic is not None
    to = {"topic": checked_topic(topic)}
    if subscription is not None:
        to["subscription"] = checked_name(subscription, "a subscription")
    return to


_MODES = get_args(Mode)
_POISONS = get_args(Poison)
_BACKLOG_POLICIES = get_args(BacklogPolicy)


class Serving(TypedDict, total=False):
    """How a durable subscription is served; omitted options keep their value or the hub's
    default."""

    window: int | None
    """How many messages a consumer may have unsettled."""
    strict: bool | None
    """Send nothing new while an earlier message is unsettled."""
    auto_ack: bool | None
    """Let the hub settle messages as they are written; a crash of the consumer loses some."""
    ack_timeout_s: float | None
    """Redeliver a message if it is not settled within this time."""
    max_deliveries: int | None
    """Apply the poison policy after this many failures."""
    backoff_s: float | None
    """The pause before the second attempt; it doubles each time."""
    backoff_cap_s: float | None
    """The longest pause between attempts."""
    heartbeat_s: float | None
    """How often the hub's watchdog checks the subscription; 0 means never."""
    rate_per_s: float | None
    """Deliver at most this many messages per second; 0 means no limit."""
    idle_expiry_s: float | None
    """Delete the subscription after this time without a consumer; 0 means never."""
    backlog_max: int | None
    """Keep at most about this many unsettled messages; 0 means no limit."""
    backlog_policy: BacklogPolicy | None
    """Beyond `backlog_max`: `drop_oldest` drops the oldest messages (the default), `refuse` refuses
    to publish."""
    poison: Poison | None
    """What happens to messages that failed too often; by default the topic's policy."""
    dead_letter: str | None
    """The topic for dead letters; by default the topic's own."""


class Definition(TypedDict, total=False):
    """How a durable topic is defined; omitted options keep their value or the hub's default."""

    retention_s: float | None
    """How long messages are kept."""
    retention_bytes: int | None
    """How much is kept."""
    poison: Poison | None
    """What happens to messages that failed too often: `block` stops the subscription, `drop`
    drops the message, `dead_letter` moves it to the dead letters."""
    dead_letter: str | None
    """The topic for dead letters; by default `<name>.dlq`."""
    heartbeat_s: float | None
    """How often the hub's watchdog checks the subscriptions; 0 means never."""


def defined(definition: Definition) -> dict[str, Any]:
    """Return the definition of a topic as members of the wire protocol."""
    others = dict(definition)
    retention = {
        "ageSeconds": others.pop("retention_s", None),
        "bytes": others.pop("retention_bytes", None),
    }
    given = {name: kept for name, kept in retention.items() if kept is not None}
    for kept in given.values():
        if not isinstance(kept, int | float) or kept <= 0:
            raise ValueError(f"a retention of {kept} would keep nothing")
    if unknown := others.keys() - Definition.__annotations__.keys():
        raise TypeError(f"unknown option {unknown.pop()!r} of a durable topic")
    return ({"retention": given} if given else {}) | served(others)


def terms(
    *, mode: Mode, start: Position, consumer: str, serving: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a consumer as members of `hub:subscribe`."""
    if mode not in _MODES:
        raise ValueError(f"invalid mode {mode!r}; use one of {', '.join(_MODES)}")
    place = {"mode": mode, "from": wire_position(start)}
    return place | {"consumer": checked_name(consumer, "a consumer")} | served(serving)


def served(serving: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a subscription as members of the wire protocol."""
    members: dict[str, Any] = {}
    for name, value in serving.items():
        option = _OPTIONS.get(name)
        if option is None:
            raise TypeError(f"unknown option {name!r} of a durable subscription")
        if value is None:
            continue
        if option.least is not None and value < option.least:
            raise ValueError(f"{name} must be at least {option.least:g}")
        members[option.wire_name] = value if option.written is None else option.written(value)
    return members


def _checked_poison(poison: str) -> str:
    if poison not in _POISONS:
        raise ValueError(f"invalid poison policy {poison!r}; use one of {', '.join(_POISONS)}")
    return poison


def _checked_backlog_policy(policy: str) -> str:
    if policy not in _BACKLOG_POLICIES:
        known = ", ".join(_BACKLOG_POLICIES)
        raise ValueError(f"invalid backlog policy {policy!r}; use one of {known}")
    return policy


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


class _Option(NamedTuple):
    wire_name: str
    least: float | None = None
    written: Callable[[Any], Any] | None = None


_OPTIONS = {
    "window": _Option("window", 1),
    "strict": _Option("strict"),
    "auto_ack": _Option("autoAck"),
    "ack_timeout_s": _Option("ackTimeoutMs", 0.001, _ms),
    "max_deliveries": _Option("maxDeliveries", 1),
    "backoff_s": _Option("backoffMs", 0, _ms),
    "backoff_cap_s": _Option("backoffCapMs", 0, _ms),
    "heartbeat_s": _Option("heartbeatMs", 0, _ms),
    "rate_per_s": _Option("ratePerSecond", 0),
    "idle_expiry_s": _Option("idleExpiryMs", 0, _ms),
    "backlog_max": _Option("backlogMax", 0),
    "backlog_policy": _Option("backlogPolicy", written=_checked_backlog_policy),
    "poison": _Option("poison", written=_checked_poison),
    "dead_letter": _Option("deadLetter", written=checked_topic),
}
