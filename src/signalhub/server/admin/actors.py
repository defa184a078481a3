"""`/actors` and `/sessions`: who is there, and who is away."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from signalhub.core.overview.survey import in_flight
from signalhub.core.patterns.pattern import PatternConsumer
from signalhub.server.admin.answers import (
    ActorAnswer,
    ActorRow,
    ActorsAnswer,
    ConsumerFacts,
    Done,
    MailboxFacts,
    PlainSubscription,
    Planned,
    SessionRow,
    SessionsAnswer,
)
from signalhub.server.admin.api import AdminApi, Asked, bad_request, forbidden, not_found
from signalhub.server.admin.paging import (
    Key,
    Page,
    key_of_cursor,
    page_of,
    rows_of,
    slices,
)

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.core.sessions.session import Session
    from signalhub.core.streams.streams import Mailbox
    from signalhub.core.subscriptions.consumers import Consumer

STATES: Final = ("live", "hidden", "away")
# Things of one actor or session that are listed.
LISTED_MAX: Final = 200
ADDRESSES_MAX: Final = 20
METADATA_CHARS_MAX: Final = 4_096
# Addresses looked at per turn, at about a microsecond each.
SLICE: Final = 400
_NEEDED: Final = "sessions"


class DryRun(msgspec.Struct, frozen=True, rename="camel"):
    """The body of an action without further members."""

    dry_run: bool = False


class Actors:
    """Answers about actors and sessions."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._shown = hub.wall.shown

    def add_to(self, api: AdminApi) -> None:
        """Add the routes."""
        page = ("q", "cursor", "limit")
        api.add(
            "GET", "/actors", self.list_actors, answer=ActorsAnswer,
            query=(*page, "capability", "state"),
        )  # fmt: skip
        api.add("GET", "/actors/{}", self.show_actor, answer=ActorAnswer)
        api.add("GET", "/sessions", self.list_sessions, answer=SessionsAnswer, query=page)
        api.add("GET", "/sessions/{}", self.show_session, answer=SessionRow)
        api.add(
            "POST", "/sessions/{}/close", self.close_session, answer=Done, preview=Planned,
            body=DryRun,
        )  # fmt: skip

    # Actors.

    async def list_actors(self, asked: Asked) -> ActorsAnswer:
        """A page of actors, by address; away ones have only a mailbox."""
        hub, now = self._hub, asked.now
        wanted, capability = (asked.text("q") or "").lower(), asked.text("capability")
        state = asked.chosen("state", STATES)
        after = _after(asked, str)
        counts = dict.fromkeys(STATES, 0)
        sees_all = asked.allowance.discovers_all

        def key_of(candidate: tuple[str, bool]) -> Key | None:
            address, is_mailbox = candidate
            found = hub.registry.get(address)
            if found is None:
                its, capabilities = "away", _capabilities_of(hub.streams.mailboxes.get(address))
            elif is_mailbox:
                # It is in the registry, too.
                return None
            else:
                its = "live" if found.is_live(now) else "hidden"
                capabilities = found.capabilities
            counts[its] += 1
            if (state and its != state) or (capability and capability not in capabilities):
                return None
            words = (address, *capabilities)
            if wanted and not any(wanted in one.lower() for one in words):
                return None
            return (address,) if sees_all or asked.may("discover", address) else None

        page = await page_of(self._candidates(), key_of, after, asked.limit(), size=SLICE)
        rows = await rows_of(page.found, lambda one: self.row(one[1][0], now))
        return ActorsAnswer(
            rows=[row for row in rows if row is not None],
            total=page.total,
            live=counts["live"],
            away=counts["away"],
            limit=hub.registry.limit,
            next=page.next,
        )

    def _candidates(self) -> Iterator[tuple[str, bool]]:
        """Every address, and whether it is that of a mailbox; registered ones may come twice."""
        registry, boxes = self._hub.registry, self._hub.streams.mailboxes
        for one in list(registry):
            yield one.address, False
        for address in list(boxes):
            yield address, True
        for address, _ in registry.away():
            if address not in boxes:
                yield address, True

    def row(self, address: str, now: int) -> ActorRow | None:
        """One actor; `None` if it is gone."""
        facts = self._facts(address, now)
        return None if facts is None else ActorRow(**facts)

    def _facts(self, address: str, now: int) -> dict[str, Any] | None:
        hub, shown = self._hub, self._shown
        found, box = hub.registry.get(address), hub.streams.mailboxes.get(address)
        mailbox = None if box is None else self._mailbox(box)
        if found is not None:
            waiting = found.session.outbound
            return {
                "address": address,
                "state": "live" if found.is_live(now) else "hidden",
                "capabilities": list(found.capabilities),
                "metadata": found.metadata.decode()[:METADATA_CHARS_MAX],
                "session": found.session.id,
                "registered_at": shown(found.registered_at_ms),
                "expires_at": shown(found.expires_at_ms()),
                "away_since": None,
                "version": found.version,
                "mailbox": mailbox,
                "queued_messages": 0 if waiting is None else waiting.messages,
                "queued_bytes": 0 if waiting is None else waiting.bytes,
            }
        away = hub.registry.away_of(address)
        if box is None and away is None:
            return None
        return {
            "address": address,
            "state": "away",
            "capabilities": list(_capabilities_of(box)),
            "metadata": None,
            "session": None,
            "registered_at": None,
            "expires_at": None if away is None else shown(away.expires_at_ms),
            "away_since": None if box is None else shown(box.attached_at_ms),
            "version": None if away is None else away.version,
            "mailbox": mailbox,
            "queued_messages": 0,
            "queued_bytes": 0,
        }

    def _mailbox(self, box: Mailbox) -> MailboxFacts:
        subscription, settings = box.subscription, self._hub.settings
        oldest = subscription.oldest_ms() if subscription.lag else None
        return MailboxFacts(
            waiting=subscription.lag,
            oldest_at=None if oldest is None else self._shown(oldest),
            head=box.head,
            floor=subscription.position.floor,
            first=box.first,
            in_flight=in_flight(subscription),
            dead=subscription.position.dead_lettered,
            is_host=box.is_host,
            kinds=list(box.kinds or ()),
            limit=settings.actors.mailbox_limit if box.is_host else settings.mailbox.limit,
        )

    def show_actor(self, asked: Asked, address: str) -> ActorAnswer:
        """One actor, with what it subscribes to and what waits for it."""
        facts = self._facts(address, asked.now) if asked.may("discover", address) else None
        if facts is None:
            raise not_found(f"{address} is neither registered nor has it a mailbox.")
        found = self._hub.registry.get(address)
        session = None if found is None else found.session
        plain = [] if session is None else (session.subscriptions or {}).values()
        topics = (
            PlainSubscription(topic=topic, address=one.address)
            for one in plain
            for topic in one.topics
            if one.address == address
        )
        consumers = [] if session is None else list(islice(session.consumers.values(), LISTED_MAX))
        return ActorAnswer(
            **facts,
            identity=None if session is None else _named(asked, session.identity),
            source=_source_of(asked, session),
            subscriptions=list(islice(topics, LISTED_MAX)),
            consumers=[consumer_facts(one) for one in consumers],
            pausing=[] if session is None else _paused_by(asked, session),
        )

    # Sessions.

    async def list_sessions(self, asked: Asked) -> SessionsAnswer:
        """A page of sessions, oldest first."""
        wanted, limit = (asked.text("q") or "").lower(), asked.limit()
        after = _after(asked, int)
        everybody = list(self._hub.sessions)
        first = 0
        if after is not None:
            first = bisect_right(everybody, after[0], key=attrgetter("number"))
        found: list[Session] = []
        async for part in slices(islice(everybody, first, None)):
            found += [
                one
                for one in part
                if one.has_socket and not one.is_over and _is_sought(asked, one, wanted)
            ]
            if len(found) > limit:
                break
        keys: list[tuple[Key, Any]] = [((one.number,), one) for one in found[:limit]]
        page = Page(keys, len(found) > limit, len(self._hub.sessions))
        rows = await rows_of(page.found, lambda one: self._session(asked, one[1]))
        return SessionsAnswer(rows=rows, total=page.total, next=page.next)

    def show_session(self, asked: Asked, session_id: str) -> SessionRow:
        """One session."""
        return self._session(asked, self._find(session_id))

    def _find(self, session_id: str) -> Session:
        session = self._hub.sessions.get(session_id)
        if session is None or not session.has_socket:
            raise not_found("There is no such session (any more).", "Load the list again.")
        return session

    def _session(self, asked: Asked, session: Session) -> SessionRow:
        claims, waiting, shown = session.claims, session.outbound, self._shown
        sees_more = asked.may("admin", _NEEDED)
        is_named = asked.visitor.may_name(session.address)
        return SessionRow(
            session_id=session.id,
            identity=_named(asked, session.identity),
            addresses=list(_addresses(asked, session)),
            addresses_total=len(session.registrations),
            subject=claims.subject if claims is not None and is_named else None,
            token_id=claims.jti or None if claims is not None and sees_more else None,
            token_expires_at=None if claims is None else int(claims.expires_at_s * 1000),
            source=_source_of(asked, session),
            connected_at=shown(session.connected_at_ms),
            last_seen_at=shown(session.last_seen_ms),
            sent=session.sent,
            registrations=len(session.registrations),
            subscriptions=session.count_topics(),
            consumers=len(session.consumers),
            queued_messages=0 if waiting is None else waiting.messages,
            queued_bytes=0 if waiting is None else waiting.bytes,
            blocked=waiting is not None,
            pauses=0 if waiting is None else len(waiting.paused),
            client=None,
        )

    async def close_session(self, asked: Asked, session_id: str) -> Done | Planned:
        """Close a session; its client reconnects unless its token is revoked."""
        is_dry = asked.parsed(DryRun).dry_run
        session = self._find(session_id)
        if is_dry:
            return Planned(
                operation="session.close",
                target=_named(asked, session.address) or session.id,
                needs=f"admin: {_NEEDED}",
                allowed=asked.may("admin", _NEEDED),
            )
        if not asked.may("admin", _NEEDED):
            raise forbidden(f"admin: {_NEEDED}")
        target = session.address
        result = await asked.result("hub:close_session", {"sessionId": session_id})
        return Done(operation="session.close", target=target, result=result)


def consumer_facts(one: Consumer | PatternConsumer) -> ConsumerFacts:
    """A consumer, as people see it; that of a pattern has the pattern instead of a topic."""
    if isinstance(one, PatternConsumer):
        topic, subscription = one.pattern.text, one.pattern.name
    else:
        topic, subscription = one.subscription.stream.name, one.subscription.name
    return ConsumerFacts(
        topic=topic,
        subscription=subscription,
        consumer=one.name,
        subscription_id=one.id,
        session=one.session.id,
        in_flight=one.flights,
        window=one.window,
        bytes=one.bytes,
        blocked=one.session.outbound is not None,
    )


def _is_sought(asked: Asked, session: Session, wanted: str) -> bool:
    """Is a text in what is shown of a session?"""
    return (
        not wanted
        or wanted in session.id
        or (wanted in session.address.lower() and asked.visitor.may_name(session.address))
        or any(wanted in one.lower() for one in _addresses(asked, session))
        or (wanted in session.source and asked.may("admin", _NEEDED))
    )


def _named(asked: Asked, address: str | None) -> str | None:
    """A name, for those who may learn it."""
    return address if address and asked.visitor.may_name(address) else None


def _addresses(asked: Asked, session: Session) -> Iterator[str]:
    """The addresses of a session that may be named, of the first ones."""
    few = islice(session.registrations, ADDRESSES_MAX)
    return (one for one in few if asked.visitor.may_name(one))


def _source_of(asked: Asked, session: Session | None) -> str | None:
    """Where a client is, for those who may see sessions."""
    if session is None or not asked.may("admin", _NEEDED):
        return None
    return session.source or None


def _paused_by(asked: Asked, session: Session) -> list[str]:
    waiting = session.outbound
    if waiting is None:
        return []
    found = {sender.address for sender, _ in islice(waiting.paused, LISTED_MAX)}
    return sorted(one for one in found if asked.visitor.may_name(one))


def _capabilities_of(box: Mailbox | None) -> tuple[str, ...]:
    return () if box is None else box.capabilities


def _after(asked: Asked, kind: type) -> Key | None:
    try:
        return key_of_cursor(asked.text("cursor"), kind)
    except ValueError as error:
        raise bad_request(str(error), "Begin with the first page, without cursor.") from None
