"""`/overview`, `/series` and `/search`: the whole hub at a glance.

An overview is made once a second for all who look, from the newest row of the ring and the last
round of the survey; and once more without the names of actors, for those who may not learn them.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

from signalhub.core.limits.quotas import Resource
from signalhub.core.overview.survey import BLOCKED, HELD_UP, Seen
from signalhub.server.admin.answers import (
    Attention,
    Busiest,
    BusyName,
    ErrorCount,
    LimitUse,
    OverviewAnswer,
    SearchAnswer,
    SearchHit,
    SeriesAnswer,
    SeriesMark,
)
from signalhub.server.admin.api import AdminApi, AdminRefusal, Asked, bad_request

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.core.limits.usage import SocketUsage
    from signalhub.core.subscriptions.subscription import Subscription
    from signalhub.engine.local import LocalEngine
    from signalhub.server.admin.facts import Condition
    from signalhub.server.admin.sampler import Sampler
    from signalhub.server.lake import Lakeside

ATTENTION_MAX: Final = 50
BUSIEST_MAX: Final = 5
SERIES_MAX: Final = 64
HITS_MAX: Final = 20
QUERY_CHARS_MAX: Final = 256
# Things a search looks at: a tenth of a second of the hub's time, a slice per turn.
LOOKED_AT_MAX: Final = 400_000
SLICE: Final = 250
# The alert for a lake that is behind fires at the same.
LAKE_BEHIND_S: Final = 120
LAKE_BEHIND_MS: Final = 300_000
LOGINS_MS: Final = 900_000
_HOUR_MS: Final = 3_600_000
_POSITION: Final = re.compile(r"(?:([0-9]{1,9}):)?([0-9]{1,19})\.([0-9]{1,19})")
_ID: Final = re.compile(r"[0-9A-Za-z_-]{16,64}")

HitKind = Literal["actor", "topic", "subscription", "host", "session", "call", "entry", "message"]


class Overview:
    """Answers about the whole hub."""

    def __init__(
        self,
        hub: Hub,
        engine: LocalEngine,
        sampler: Sampler,
        condition: Condition,
        sockets: Callable[[], SocketUsage],
        lakeside: Lakeside | None,
    ) -> None:
        self._hub = hub
        self._engine = engine
        self._sampler = sampler
        self._condition = condition
        self._sockets = sockets
        self._lakeside = lakeside
        self._shown = hub.wall.shown
        # With the names of actors, and without.
        self._made: dict[bool, tuple[int, OverviewAnswer]] = {}
        self._refused_logins: tuple[int, int] | None = None
        self._letters_since: dict[str, int] = {}
        self._behind_since: int | None = None
        # The running search of each visitor.
        self._searches: dict[str, object] = {}

    def add_to(self, api: AdminApi) -> None:
        """Add the routes."""
        api.add("GET", "/overview", self.overview, answer=OverviewAnswer)
        api.add(
            "GET", "/series", self.series, answer=SeriesAnswer,
            query=("names", "from", "to", "step"),
        )  # fmt: skip
        api.add("GET", "/search", self.search, answer=SearchAnswer, query=("q",))

    async def overview(self, asked: Asked) -> OverviewAnswer:
        """Rates, limits, degradations, what needs attention, and who is busiest."""
        await self._sampler.look()
        return self.newest(asked.now, with_names=asked.visitor.may_name_all)

    def newest(self, now: int, *, with_names: bool) -> OverviewAnswer:
        """The overview of this second, with or without the names of actors."""
        second = now // 1000
        made = self._made.get(with_names)
        if made is None or made[0] != second:
            made = self._made[with_names] = (second, self._make(now, with_names))
        return made[1]

    def _make(self, now: int, with_names: bool) -> OverviewAnswer:
        degradations = self._condition.listed()
        attention = list(self._attention(now, with_names))
        attention.sort(key=lambda one: one.level != "error")
        totals = self._sampler.survey.totals
        errors = list(self._sampler.recent_errors().items())[:BUSIEST_MAX]
        return OverviewAnswer(
            at=self._shown(now),
            status="degraded" if degradations else "ok",
            sample={
                name: value
                for name, value in self._sampler.ring.newest.items()
                if not math.isnan(value)
            },
            limits=self._limits(),
            degradations=degradations,
            attention=attention[:ATTENTION_MAX],
            attention_total=len(attention)
            + max(0, totals.alarming_total - len(totals.alarming))
            + (max(0, totals.full_total - len(totals.full)) if with_names else 0),
            busiest=Busiest(
                topics=_busy(totals.busy_topics),
                actors=_busy(totals.busy_sessions) if with_names else [],
                errors=[ErrorCount(code=code, count=count) for code, count in errors],
            ),
        )

    def _limits(self) -> list[LimitUse]:
        quotas, settings, sockets = self._hub.quotas, self._hub.settings, self._sockets()
        found = [
            LimitUse(resource=one.value, used=quotas.total(one), limit=quotas.limits[one].total)
            for one in Resource
        ]
        newest = self._sampler.ring.newest
        log_bytes = newest.get("log_bytes", math.nan)
        return [
            *found,
            LimitUse(resource="sockets", used=sockets.used, limit=sockets.limit),
            LimitUse(
                resource="waiting_bytes",
                used=int(newest.get("queue_bytes", 0)),
                limit=settings.outbound.total_bytes_max,
            ),
            LimitUse(
                resource="log_bytes",
                used=0 if math.isnan(log_bytes) else int(log_bytes),
                limit=settings.log.retention_bytes,
            ),
        ]

    # What needs attention.

    def _attention(self, now: int, with_names: bool) -> Iterator[Attention]:
        for one in self._condition.listed():
            yield Attention(
                code="degraded",
                level="error" if one.code.startswith("storage") else "warning",
                since=one.since,
                text=one.text,
                link="#/health",
            )
        totals = self._sampler.survey.totals
        for subscription, seen in totals.alarming:
            yield self._stuck(subscription, seen)
        letters = {}
        for topic, waiting in totals.letters:
            letters[topic.name] = since = self._letters_since.get(topic.name, now)
            yield Attention(
                code="letters",
                level="warning",
                since=self._shown(since),
                text=f"{_count(waiting, 'dead letter')} in {topic.name}",
                link=f"#/letters?topic={quote(topic.name, safe='')}",
                topic=topic.name,
            )
        self._letters_since = letters
        yield from self._slow(now) if with_names else self._slow_in_numbers(now)
        yield from self._refused(now)
        yield from self._lake(now)

    def _slow(self, now: int) -> Iterator[Attention]:
        """Actors that do not take what is sent to them."""
        totals = self._sampler.survey.totals
        for box in totals.full:
            yield Attention(
                code="mailbox_full",
                level="warning",
                since=self._shown(box.attached_at_ms),
                text=f"the mailbox of {box.name} is full: asks to it are refused",
                link=f"#/actors/{quote(box.name, safe='')}",
                address=box.name,
            )
        for session, paused in totals.pausing:
            waiting_since = now if session.outbound is None else session.outbound.progress_at_ms
            yield Attention(
                code="paused_senders",
                level="warning",
                since=self._shown(waiting_since),
                text=f"{session.address} reads too slowly: {_count(paused, 'sender')} paused",
                link=f"#/actors/{quote(session.address, safe='')}",
                address=session.address,
            )

    def _slow_in_numbers(self, now: int) -> Iterator[Attention]:
        """How many they are."""
        totals = self._sampler.survey.totals
        if totals.full:
            yield Attention(
                code="mailbox_full",
                level="warning",
                since=self._shown(min(box.attached_at_ms for box in totals.full)),
                text=f"mailboxes that are full, so that asks are refused: {totals.full_total}",
                link="#/actors",
            )
        if totals.pausing:
            waits = (one.outbound for one, _ in totals.pausing)
            since = min((one.progress_at_ms for one in waits if one is not None), default=now)
            yield Attention(
                code="paused_senders",
                level="warning",
                since=self._shown(since),
                text=f"clients that read too slowly for their senders: {totals.pausing_total}",
                link="#/sessions",
            )

    def _stuck(self, subscription: Subscription, seen: Seen) -> Attention:
        topic, name = subscription.stream.name, subscription.name
        who = f"{topic} / {name}"
        if seen.state == BLOCKED:
            code, level = "blocked", "error"
            text = f"{who} is blocked by {_count(subscription.window.exhausted, 'message')}"
        elif seen.state == HELD_UP:
            code, level = "held_up", "error"
            text = f"{who} waits for messages that cannot be read"
        else:
            code, level = "growing", "warning"
            text = f"{who} falls behind: lag {seen.lag}"
            if seen.trend:
                text += f", {seen.trend:+.1f}/s"
        since = seen.minutes[0][0] if code == "growing" else seen.since_ms
        return Attention(
            code=code,  # type: ignore[arg-type]
            level=level,  # type: ignore[arg-type]
            since=self._shown(since),
            text=text,
            link=f"#/subs/{quote(topic, safe='')}/{quote(name, safe='')}",
            topic=topic,
            subscription=name,
        )

    def _refused(self, now: int) -> Iterator[Attention]:
        count = self._hub.tally.logins_refused
        before = self._refused_logins
        if before is None or count > before[0]:
            self._refused_logins = before = (count, now if count else -LOGINS_MS)
        if count and now - before[1] < LOGINS_MS:
            yield Attention(
                code="refused_logins",
                level="warning",
                since=self._shown(before[1]),
                text=f"{_count(count, 'login')} refused since the start, the last one lately",
                link="#/health",
            )

    def _lake(self, now: int) -> Iterator[Attention]:
        lake = self._lakeside
        if lake is None or lake.lag_ms(now) < LAKE_BEHIND_S * 1000:
            self._behind_since = None
            return
        if self._behind_since is None:
            self._behind_since = now
        if now - self._behind_since >= LAKE_BEHIND_MS:
            yield Attention(
                code="lake_behind",
                level="warning",
                since=self._shown(self._behind_since),
                text=f"the lake is {lake.lag_ms(now) // 1000} s behind",
                link="#/lake",
            )

    # Series.

    def series(self, asked: Asked) -> SeriesAnswer:
        """Values of some series between two times, by default of the last 15 minutes."""
        ring, now, ahead = self._sampler.ring, asked.now, self._shown(0)
        end = asked.number("to", now + ahead) - ahead
        begin = asked.number("from", end + ahead - _HOUR_MS // 4) - ahead
        step = asked.number("step", 1_000, low=1, high=_HOUR_MS)
        if begin > end:
            raise bad_request("from must not be after to")
        names = [one for one in (asked.text("names") or "").split(",") if one]
        unknown = [one for one in names if not ring.has(one)]
        if unknown:
            raise bad_request(
                f"there is no series {unknown[0]!r}", f"Choose from {', '.join(ring.names)}."
            )
        if len(names) > SERIES_MAX:
            raise bad_request(f"at most {SERIES_MAX} names may be given")
        step, times, found = ring.read(list(dict.fromkeys(names)), begin, end, step)
        started = self._sampler.started_ms
        marks = [SeriesMark(at=self._shown(started), what="started")] if started >= begin else []
        return SeriesAnswer(
            step=step,
            t=[one + ahead for one in times],
            series={
                name: [None if math.isnan(one) else round(one, 6) for one in values]
                for name, values in found.items()
            },
            marks=marks,
            names=list(ring.names),
        )

    # Search.

    async def search(self, asked: Asked) -> SearchAnswer:
        """Actors, topics, subscriptions, hosts and sessions with a text in their names."""
        query = (asked.text("q") or "").strip()
        if not query or len(query) > QUERY_CHARS_MAX:
            raise bad_request(f"q must have 1 to {QUERY_CHARS_MAX} characters")
        mine, who = object(), asked.visitor.name
        is_alone = who in self._searches or (
            len(self._searches) < self._hub.settings.ui.searches_max
        )
        if not is_alone:
            raise AdminRefusal(
                429, "busy", "Others are searching.", "Try again.", headers={"Retry-After": "1"}
            )
        # A search that goes on ends the one before of the same visitor.
        self._searches[who] = mine
        try:
            return await self._search(asked, query, lambda: self._searches.get(who) is mine)
        finally:
            if self._searches.get(who) is mine:
                del self._searches[who]

    async def _search(
        self, asked: Asked, query: str, is_wanted: Callable[[], bool]
    ) -> SearchAnswer:
        hits = list(_direct(query))
        counts: dict[str, int] = {}
        word = query.lower()
        looked_at = 0
        is_complete = True
        for kind, name, detail, link in self._names(asked):
            looked_at += 1
            if looked_at % SLICE == 0:
                await asyncio.sleep(0)
                if looked_at >= LOOKED_AT_MAX or not is_wanted():
                    is_complete = False
                    break
            if word not in name.lower():
                continue
            counts[kind] = counts.get(kind, 0) + 1
            if counts[kind] <= HITS_MAX:
                hits.append(SearchHit(kind=kind, name=name, detail=detail, link=link))
        return SearchAnswer(query=query, hits=hits, complete=is_complete)

    def _names(self, asked: Asked) -> Iterator[tuple[HitKind, str, str, str]]:
        streams, registry = self._hub.streams, self._hub.registry
        for topic in streams.names():
            yield "topic", topic, "", f"#/topics/{quote(topic, safe='')}"
        for topic in streams.names():
            found = streams.topics.get(topic)
            for name in () if found is None else found.names():
                link = f"#/subs/{quote(topic, safe='')}/{quote(name, safe='')}"
                yield "subscription", f"{topic}/{name}", "", link
        for actor in list(registry):
            is_shown = asked.may("discover", actor.address)
            detail = ", ".join(islice(actor.capabilities, 4))
            link = f"#/actors/{quote(actor.address, safe='')}"
            yield "actor", actor.address if is_shown else "", detail, link
        for address in list(streams.mailboxes):
            box = streams.mailboxes.get(address)
            is_shown = box is not None and asked.may("discover", address)
            if box is not None and box.is_host:
                kinds = ", ".join(islice(box.kinds or (), 4))
                yield "host", address if is_shown else "", kinds, "#/hosts"
            else:
                is_away = is_shown and registry.get(address) is None
                link = f"#/actors/{quote(address, safe='')}"
                yield "actor", address if is_away else "", "away", link
        for session in list(self._hub.sessions):
            if session.has_socket:
                link = f"#/sessions?q={quote(session.id, safe='')}"
                is_shown = asked.visitor.may_name(session.address)
                yield "session", session.id, session.address if is_shown else "", link


def _direct(query: str) -> Iterator[SearchHit]:
    """What the query itself says: a position of the log, or the id of a message or a call."""
    position = _POSITION.fullmatch(query)
    if position is not None:
        shard, epoch, offset = position[1] or "0", position[2], position[3]
        link = f"#/log?at={quote(query, safe='')}"
        detail = f"shard {shard}, epoch {epoch}, offset {offset}"
        yield SearchHit(kind="entry", name=query, detail=detail, link=link)
    elif _ID.fullmatch(query):
        found = quote(query, safe="")
        yield SearchHit(kind="message", name=query, detail="in the log", link=f"#/log?id={found}")
        yield SearchHit(kind="call", name=query, detail="", link=f"#/calls?id={found}")


def _busy(found: list[tuple[float, str]]) -> list[BusyName]:
    return [BusyName(name=name, rate=round(rate, 3)) for rate, name in found[:BUSIEST_MAX]]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
