"""`/topics` and `/subscriptions`: what is stored, who reads it, and how far they are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from signalhub.core.overview.survey import STATES, in_flight, letters_in, state_of
from signalhub.core.requests import Poison, RetentionLimits, Start, SubscriptionOptions
from signalhub.core.streams import dead_letters
from signalhub.core.streams.streams import LETTERS_SUFFIX
from signalhub.core.subscriptions.window import EXHAUSTED, SENT, WAITING, Phase
from signalhub.server.admin.actors import DryRun, consumer_facts
from signalhub.server.admin.answers import (
    Done,
    FlightRow,
    LagPoint,
    Planned,
    SeekAnswer,
    SeekPlan,
    SubscriptionAnswer,
    SubscriptionRow,
    SubscriptionsAnswer,
    TopicAnswer,
    TopicRow,
    TopicsAnswer,
)
from signalhub.server.admin.api import AdminApi, Asked, bad_request, not_found
from signalhub.server.admin.paging import Key, Page, key_of_cursor, page_of, rows_of, slices

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.core.streams.streams import Topic
    from signalhub.core.subscriptions.subscription import Subscription
    from signalhub.core.subscriptions.window import Flight
    from signalhub.server.admin.sampler import Sampler

FLIGHTS_MAX: Final = 200
SEATS_MAX: Final = 100
SHOWN_MAX: Final = 100
SORTS: Final = ("name", "lag", "oldest")
_NEVER: Final = 2**62
_PHASES: Final[dict[Phase, Literal["sent", "waiting", "exhausted"]]] = {
    SENT: "sent",
    WAITING: "waiting",
    EXHAUSTED: "exhausted",
}


class TopicBody(msgspec.Struct, frozen=True, rename="camel"):
    """A definition of a topic; with PATCH, what is not given stays."""

    retention: RetentionLimits | None = None
    poison: Poison | None = None
    dead_letter: str | None = None
    heartbeat_ms: Annotated[int, Meta(ge=0, le=86_400_000)] | None = None
    dry_run: bool = False


class SetBody(SubscriptionOptions):
    """Options of a subscription; what is not given stays."""

    dry_run: bool = False


class GivenPlan(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a plan that a seek carries out; a whole plan is one, too."""

    epoch: str
    next: Annotated[int, Meta(ge=1, le=2**53)]
    generation: Annotated[int, Meta(ge=1, le=2**53)]


class SeekBody(msgspec.Struct, frozen=True, rename="camel"):
    """Where to: with `dryRun` a plan is made, with `plan` it is carried out."""

    to: Start | None = None
    plan: GivenPlan | None = None
    dry_run: bool = False


class SettleBody(msgspec.Struct, frozen=True, rename="camel"):
    """Which deliveries are settled, and how."""

    seqs: Annotated[
        list[Annotated[int, Meta(ge=1, le=2**53)]], Meta(min_length=1, max_length=10_000)
    ]
    verdict: Literal["ack", "nack", "term"]
    generation: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    delay_ms: Annotated[int, Meta(ge=0, le=86_400_000)] | None = None
    reason: Annotated[str, Meta(max_length=1_024)] | None = None
    dry_run: bool = False


class Streams:
    """Answers about topics and subscriptions, and changes them."""

    def __init__(self, hub: Hub, sampler: Sampler) -> None:
        self._hub = hub
        self._sampler = sampler
        self._survey = sampler.survey
        self._shown = hub.wall.shown

    def add_to(self, api: AdminApi) -> None:
        """Add the routes."""
        page = ("q", "cursor", "limit")
        api.add("GET", "/topics", self.list_topics, answer=TopicsAnswer, query=page)
        api.add("GET", "/topics/{}", self.show_topic, answer=TopicAnswer)
        changed: dict[str, Any] = {"answer": Done, "preview": Planned}
        api.add("PUT", "/topics/{}", self.create_topic, body=TopicBody, **changed)
        api.add("PATCH", "/topics/{}", self.update_topic, body=TopicBody, **changed)
        api.add("DELETE", "/topics/{}", self.delete_topic, query=("dryRun",), **changed)
        api.add(
            "GET", "/subscriptions", self.list_subscriptions, answer=SubscriptionsAnswer,
            query=(*page, "topic", "state", "sort"),
        )  # fmt: skip
        one = "/topics/{}/subscriptions/{}"
        api.add("GET", one, self.show_subscription, answer=SubscriptionAnswer)
        api.add("DELETE", one, self.delete_subscription, query=("dryRun",), **changed)
        api.add("POST", f"{one}/pause", self.pause, body=DryRun, **changed)
        api.add("POST", f"{one}/resume", self.resume, body=DryRun, **changed)
        api.add("POST", f"{one}/set", self.set, body=SetBody, **changed)
        api.add("POST", f"{one}/seek", self.seek, answer=SeekAnswer, body=SeekBody)
        api.add("POST", f"{one}/settle", self.settle, body=SettleBody, **changed)

    # Topics.

    async def list_topics(self, asked: Asked) -> TopicsAnswer:
        """A page of durable topics, by name."""
        await self._sampler.look()
        topics, limit = self._hub.streams.topics, asked.limit()
        wanted, after = (asked.text("q") or "").lower(), _after(asked, str)
        names = self._hub.streams.names()
        first = 0 if after is None else bisect_right(names, after[0])
        found: list[str] = []
        async for part in slices(islice(names, first, None)):
            found += [one for one in part if wanted in one.lower() and one in topics]
            if len(found) > limit:
                break
        keys: list[tuple[Key, Any]] = [((name,), name) for name in found[:limit]]
        page = Page(keys, len(found) > limit, len(topics))
        rows = await rows_of(page.found, lambda one: self._known_topic(one[1]))
        return TopicsAnswer(rows=[row for row in rows if row], total=page.total, next=page.next)

    def _known_topic(self, name: str) -> TopicRow | None:
        topic = self._hub.streams.topics.get(name)
        return None if topic is None else self.topic_row(topic)

    def topic_row(self, topic: Topic) -> TopicRow:
        """One topic."""
        return TopicRow(**self._topic_facts(topic))

    def _topic_facts(self, topic: Topic) -> dict[str, Any]:
        definition = topic.definition
        letters = self._hub.streams.topics.get(
            definition.dead_letter or topic.name + LETTERS_SUFFIX
        )
        return {
            "topic": topic.name,
            "epoch": topic.epoch,
            "head": topic.head,
            "first": topic.first,
            "messages": letters_in(topic),
            "bytes": topic.bytes,
            "removed": topic.removed.count,
            "retention_s": definition.retention_s,
            "retention_bytes": definition.retention_bytes,
            "poison": definition.poison or "block",
            "dead_letter": definition.dead_letter,
            "heartbeat_ms": definition.heartbeat_ms,
            "owner": definition.owner,
            "is_letters": topic.is_letters,
            "subscriptions": len(topic.subscriptions),
            "worst_lag": self._survey.worst_lag_of(topic.name),
            "letters": 0 if letters is None or topic.is_letters else letters_in(letters),
            "rate": self._survey.rate_of(topic.name),
        }

    async def show_topic(self, asked: Asked, name: str) -> TopicAnswer:
        """One topic, with its first subscriptions."""
        await self._sampler.look()
        return self.topic_answer(self._topic(name))

    def topic_answer(self, topic: Topic) -> TopicAnswer:
        """The same for the live socket."""
        names = topic.names()[:SHOWN_MAX]
        rows = [self.subscription_row(topic.subscriptions[one]) for one in names]
        return TopicAnswer(**self._topic_facts(topic), rows=rows)

    def _topic(self, name: str) -> Topic:
        topic = self._hub.streams.topics.get(name)
        if topic is None or topic.is_deleting:
            raise not_found(
                f"There is no durable topic {name!r}.",
                "Durable topics are listed under /topics; plain topics keep nothing.",
            )
        return topic

    async def create_topic(self, asked: Asked, name: str) -> Done | Planned:
        """Create a topic; repeating the same definition changes nothing."""
        body = asked.parsed(TopicBody)
        return await self._changed(
            asked, "topic.create", "hub:topic_create", "create", name, _given(body), body.dry_run
        )

    async def update_topic(self, asked: Asked, name: str) -> Done | Planned:
        """Change a topic."""
        body = asked.parsed(TopicBody)
        self._topic(name)
        return await self._changed(
            asked, "topic.update", "hub:topic_update", "create", name, _given(body), body.dry_run
        )

    async def delete_topic(self, asked: Asked, name: str) -> Done | Planned:
        """Delete a topic, its subscriptions and its messages."""
        owner = self._topic(name).definition.owner
        return await self._changed(
            asked, "topic.delete", "hub:topic_delete", "delete", name, {}, asked.flag("dryRun"),
            owner=owner,
        )  # fmt: skip

    async def _changed(
        self,
        asked: Asked,
        operation: str,
        request: str,
        verb: str,
        topic: str,
        given: dict[str, Any],
        is_dry: bool,
        *,
        subscription: str | None = None,
        owner: str = "",
    ) -> Done | Planned:
        """Send a request of the wire protocol, or say what it would need."""
        target = topic if subscription is None else f"{topic}/{subscription}"
        if is_dry:
            is_allowed = asked.may(verb, topic, owner)
            return Planned(
                operation=operation, target=target, needs=f"{verb}: {topic}", allowed=is_allowed
            )
        asked.require(verb, topic, owner)
        named = {"topic": topic}
        if subscription is not None:
            named["subscription"] = subscription
        result = await asked.result(request, given | named)
        return Done(operation=operation, target=target, result=result)

    # Subscriptions.

    async def list_subscriptions(self, asked: Asked) -> SubscriptionsAnswer:
        """A page of subscriptions, by name or the worst first."""
        await self._sampler.look()
        survey, limit, now = self._survey, asked.limit(), asked.now
        wanted, topic = (asked.text("q") or "").lower(), asked.text("topic")
        state, sort = asked.chosen("state", STATES), asked.chosen("sort", SORTS, "name")
        kinds = (str, str) if sort == "name" else (int, str, str)
        after = _after(asked, *kinds)
        if topic is not None:
            self._topic(topic)

        def key_of(one: Subscription) -> Key | None:
            names = (one.stream.name, one.name)
            if wanted and wanted not in f"{names[0]}/{names[1]}".lower():
                return None
            if state and state_of(one) != state:
                return None
            if sort == "name":
                return names
            seen = survey.seen(one)
            if sort == "lag":
                return (-(one.lag if seen is None else seen.lag), *names)
            oldest = one.oldest_ms() if one.lag else None
            # One whose oldest message is not in memory is older than what is.
            return (0 if one.lag and oldest is None else oldest or _NEVER, *names)

        page = await page_of(
            self._subscriptions(topic, after, sort), key_of, after, limit, size=200
        )
        rows = await rows_of(page.found, lambda one: self.subscription_row(one[1]))
        total = self._hub.streams.count_subscriptions()
        return SubscriptionsAnswer(
            rows=rows,
            total=page.total if wanted or state or topic else total,
            next=page.next,
            at=self._shown(now),
        )

    def _subscriptions(
        self, topic: str | None, after: Key | None, sort: str
    ) -> Iterator[Subscription]:
        topics = self._hub.streams.topics
        names = self._hub.streams.names() if topic is None else [topic]
        first = 0
        if sort == "name" and after is not None and topic is None:
            first = max(0, bisect_right(names, after[0]) - 1)
        for name in islice(names, first, None):
            found = topics.get(name)
            if found is not None:
                yield from list(found.subscriptions.values())

    def subscription_row(self, subscription: Subscription) -> SubscriptionRow:
        """One subscription."""
        return SubscriptionRow(**self._subscription_facts(subscription))

    def _subscription_facts(self, one: Subscription) -> dict[str, Any]:
        seen, stats, position, window = (
            self._survey.seen(one),
            one.stats,
            one.position,
            one.window,
        )
        lag = one.lag
        oldest = one.oldest_ms() if lag else None
        return {
            "topic": one.stream.name,
            "subscription": one.name,
            "mode": one.definition.mode,
            "state": state_of(one),
            "lag": lag,
            "oldest_at": None if oldest is None else self._shown(oldest),
            "in_flight": in_flight(one),
            "waiting_retry": max(0, len(window) - in_flight(one) - window.exhausted),
            "exhausted": window.exhausted,
            "parked": len(position.parked),
            "consumers": len(one.consumers),
            "floor": position.floor,
            "next": one.next_seq,
            "head": one.stream.head,
            "first": one.stream.first,
            "paused": one.is_paused,
            "blocked": one.is_blocked,
            "delivered": stats.delivered,
            "settled": stats.settled,
            "redelivered": stats.redelivered,
            "nacked": stats.nacked,
            "timeouts": stats.timeouts,
            "dead_lettered": position.dead_lettered,
            "lost": stats.lost,
            "delivered_rate": None if seen is None else seen.delivered_rate,
            "settled_rate": None if seen is None else seen.settled_rate,
            "redelivered_rate": None if seen is None else seen.redelivered_rate,
            "trend": None if seen is None else seen.trend,
            "owner": one.definition.owner,
        }

    async def show_subscription(self, asked: Asked, topic: str, name: str) -> SubscriptionAnswer:
        """One subscription, with its consumers and the first messages in flight."""
        await self._sampler.look()
        return self.subscription_answer(self._subscription(topic, name), asked.may("read", topic))

    def _subscription(self, topic: str, name: str) -> Subscription:
        found = self._topic(topic).subscriptions.get(name)
        if found is None or found.is_deleting:
            raise not_found(f"The topic {topic!r} has no subscription {name!r}.")
        return found

    def subscription_answer(self, one: Subscription, may_read: bool) -> SubscriptionAnswer:
        """The same for the live socket; keys and reasons for those who may read the topic."""
        definition, seen = one.definition, self._survey.seen(one)
        obstacle = one.backlog.obstacle
        points = list((seen.history if seen is not None else None) or ())
        idle_ms = one.idle_since_ms if not len(one.consumers) else 0
        return SubscriptionAnswer(
            **self._subscription_facts(one),
            epoch=one.stream.epoch,
            generation=one.last_generation,
            window=definition.window,
            strict=definition.strict,
            ack_timeout_ms=definition.ack_timeout_ms,
            max_deliveries=definition.max_deliveries,
            backoff_ms=definition.backoff_ms,
            backoff_cap_ms=definition.backoff_cap_ms,
            heartbeat_ms=one.heartbeat_ms,
            auto_ack=definition.auto_ack,
            poison=one.poison_policy,
            dead_letter=dead_letters.address(one),
            rate_per_second=definition.rate_s,
            idle_expiry_ms=definition.idle_expiry_ms,
            idle_since=self._shown(idle_ms) if idle_ms else None,
            backlog_max=definition.backlog_max,
            backlog_policy=definition.backlog_policy or None,
            settled_above_floor=one.position.above.count,
            held_up=None if obstacle is None else obstacle.message,
            seats=[consumer_facts(each) for each in islice(one.consumers, SEATS_MAX)],
            flights=[self._flight(each, may_read) for each in one.window.first(FLIGHTS_MAX)],
            flights_total=len(one.window),
            history=[LagPoint(at=self._shown(at), lag=lag, settled=n) for at, lag, n in points],
        )

    def _flight(self, flight: Flight, may_read: bool) -> FlightRow:
        held, consumer, shown = flight.held, flight.consumer, self._shown
        is_timed = flight.phase in (SENT, WAITING) and flight.deadline_ms > 0
        is_known = may_read and held is not None and not held.is_erased
        return FlightRow(
            seq=flight.seq,
            consumer=None if consumer is None or flight.phase is not SENT else consumer.name,
            attempt=flight.deliveries,
            failures=flight.failures,
            sent_at=shown(flight.last_sent) if flight.last_sent else None,
            due_at=shown(flight.deadline_ms) if is_timed else None,
            phase=_PHASES.get(flight.phase, "ready"),
            key=held.message.key if is_known and held is not None else None,
            reason=flight.reason or None if may_read else None,
        )

    async def delete_subscription(self, asked: Asked, topic: str, name: str) -> Done | Planned:
        """Delete a subscription, and with it its position."""
        return await self._change(
            asked, topic, name, "delete", "hub:sub_delete", {}, asked.flag("dryRun")
        )

    async def pause(self, asked: Asked, topic: str, name: str) -> Done | Planned:
        """Send nothing until resumed; acks still count."""
        is_dry = asked.parsed(DryRun).dry_run
        return await self._change(asked, topic, name, "pause", "hub:sub_pause", {}, is_dry)

    async def resume(self, asked: Asked, topic: str, name: str) -> Done | Planned:
        """Send again."""
        is_dry = asked.parsed(DryRun).dry_run
        return await self._change(asked, topic, name, "resume", "hub:sub_resume", {}, is_dry)

    async def set(self, asked: Asked, topic: str, name: str) -> Done | Planned:
        """Change options of a subscription."""
        body = asked.parsed(SetBody)
        given = _given(body)
        if not given:
            raise bad_request("no option is given", "Give one or more, such as `window`.")
        return await self._change(asked, topic, name, "set", "hub:sub_update", given, body.dry_run)

    async def settle(self, asked: Asked, topic: str, name: str) -> Done | Planned:
        """Settle deliveries for whoever has them: `ack`, `nack` or `term`."""
        body = asked.parsed(SettleBody)
        return await self._change(
            asked, topic, name, "settle", "hub:sub_settle", _given(body), body.dry_run
        )

    async def _change(
        self,
        asked: Asked,
        topic: str,
        name: str,
        what: str,
        request: str,
        given: dict[str, Any],
        is_dry: bool,
    ) -> Done | Planned:
        owner = self._subscription(topic, name).definition.owner
        verb = "delete" if what == "delete" else "manage"
        return await self._changed(
            asked, f"subscription.{what}", request, verb, topic, given, is_dry,
            subscription=name, owner=owner,
        )  # fmt: skip

    async def seek(self, asked: Asked, topic: str, name: str) -> SeekAnswer:
        """Continue from another position: plan it with `dryRun`, then give the plan back."""
        body, one = asked.parsed(SeekBody), self._subscription(topic, name)
        if (body.to is None) == (body.plan is None):
            raise bad_request(
                "the body needs either `to` or `plan`", "Make a plan with `to` and `dryRun`."
            )
        asked.require("manage", topic, one.definition.owner)
        flights = in_flight(one)
        request: dict[str, Any] = {"topic": topic, "subscription": name, "dryRun": body.dry_run}
        if body.plan is None:
            request["to"] = body.to
        else:
            plan = body.plan
            request["generation"] = plan.generation
            request["to"] = {"seq": plan.next, "epoch": plan.epoch}
        found = await asked.result("hub:seek", request)
        return SeekAnswer(
            plan=SeekPlan(
                epoch=found["epoch"],
                generation=found["generation"],
                next=found["next"],
                will_replay=found["willReplay"],
                will_skip=found["willSkip"],
                head=one.stream.head,
                first=one.stream.first,
                in_flight=flights,
            ),
            done=not body.dry_run,
        )


def _given(body: Any) -> dict[str, Any]:
    """The members of a body that were given, as the wire protocol names them."""
    found: dict[str, Any] = msgspec.to_builtins(body)
    return {name: value for name, value in found.items() if value is not None and name != "dryRun"}


def _after(asked: Asked, *kinds: type) -> Key | None:
    try:
        return key_of_cursor(asked.text("cursor"), *kinds)
    except ValueError as error:
        raise bad_request(str(error), "Begin with the first page, without cursor.") from None
