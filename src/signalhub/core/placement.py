"""The places of durable actors: each is on one host, with a token that grows on every move.

A place is valid from the moment it is sent to the log, so that no message accepted after a move
carries the old token; if the log rejects it, it is undone. Snapshots contain only what is on disk.

An actor is unknown, coming (its first place is being written), placed, or moving (it is placed, and
another place is being written). Several places of one actor may be pending; only the last counts.

An operator can have a place forgotten. What stays is a place without a host: its token is kept, so
that the next place has a higher one and whatever the former host still sends is outdated. It is
kept for ever, but makes room for another actor: one that has never had a place gets one while fewer
actors than the limit have a host, and fewer than twice as many have or had one. A forgotten place
can always be given anew.

| event | unknown | coming | placed | moving |
|---|---|---|---|---|
| `send`: another place is sent to the log | coming | coming | moving | moving |
| `took`: the last one is on disk | | placed | | placed |
| `took`: an earlier one is on disk | | moving | | moving |
| `refused`: the log takes none of them | unknown | unknown | placed | placed |
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import count, islice, takewhile
from typing import TYPE_CHECKING, Final, Protocol, TypeGuard

import msgspec

from signalhub.auth.permissions import EVERYTHING
from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect, GiveWay
from signalhub.core.limits.quotas import Holder, Quotas, Resource, holder_of
from signalhub.core.limits.scans import Scans, Steps, steps_of
from signalhub.core.operations import operated
from signalhub.core.rendezvous import RIVALS_MAX, Node, preferred
from signalhub.core.sessions.session import Session
from signalhub.core.streams import mailboxes
from signalhub.core.streams.streams import Mailbox
from signalhub.wire.entry import Entry, Kind, PlacedBody, encode_body
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Refusal

if TYPE_CHECKING:
    from signalhub.core.log_state import LogState
    from signalhub.core.replies import DeferredAnswer, Handler, Replies
    from signalhub.core.sessions.registry import Registry
    from signalhub.core.streams.streams import Streams
    from signalhub.counters import Tally
    from signalhub.settings.model import ActorsSettings

# While so many places are being written, requests for many of them wait: what follows from a commit
# happens in one piece.
COMING_MAX: Final = 256

# Actor, host, token, the offset of its entry, its owner, and the token it started with.
Row = tuple[str, str, int, int, str, int]

# By host and kind.
Counts = dict[str, dict[str, int]]


class Place(msgspec.Struct, frozen=True, gc=False):
    """The host of an actor, and the token of its stay there; forgotten if the host is empty."""

    host: str
    token: int
    offset: int = -1  # The offset of its entry, once it is on disk.
    owner: str = ""  # The subject of the token that placed the actor; empty if unknown.
    # The token of the stay at which it started empty; at any later one it arrived by a move.
    first: int = 1
    source: str = ""  # Where the actor was placed from; not stored.

    @property
    def holder(self) -> Holder:
        """Whose quota it counts for."""
        return Holder(self.owner, self.source)

    def is_at(self, host: str, token: int) -> bool:
        return self.host == host and self.token == token


class Coming(msgspec.Struct, eq=False):
    """A place that is being written, and the answers that wait for it."""

    actor: str
    place: Place
    order: int
    # Had the actor no place before this one, and not even a forgotten one?
    is_new: bool
    is_unknown: bool
    waiters: list[DeferredAnswer]


class Placements:
    """All places. Invariant: stored places are in the order of their entries."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._stored: dict[str, Place] = {}
        self._coming: dict[str, Coming] = {}
        self._forgotten = 0  # How many of the stored places have no host.
        self._new = 0  # How many pending places are for actors without one.
        self._unknown = 0  # How many of those had never had one.
        self._order = count()
        # The number of actors by host and kind, and of places that are being written.
        self._on: Counts = {}
        self._arriving: Counts = {}
        self._dirty: set[str] = set()

    def __len__(self) -> int:
        """The number of actors with a host, on disk or pending."""
        return len(self._stored) - self._forgotten + self._new

    @property
    def recorded(self) -> int:
        """The number of actors with a place or a forgotten one, on disk or pending."""
        return len(self._stored) + self._unknown

    @property
    def are_enough_coming(self) -> bool:
        """Are so many places being written that more would make a commit take long?"""
        return len(self._coming) >= COMING_MAX

    def find(self, actor: str) -> Place | None:
        """The place of an actor, pending and forgotten ones included."""
        coming = self._coming.get(actor)
        return self._stored.get(actor) if coming is None else coming.place

    def are_on(self, host: str) -> bool:
        """Is any actor placed on this host, or about to be?"""
        return host in self._on or host in self._arriving

    def kinds_on(self, host: str) -> set[str]:
        """The kinds of the actors that are placed on this host, or about to be."""
        return {*self._on.get(host, ()), *self._arriving.get(host, ())}

    # On the way to the log.

    def send(self, actor: str, place: Place) -> Coming:
        """A place is sent to the log."""
        before = self.find(actor)
        is_new = bool(place.host) and not is_placed(before)
        coming = Coming(actor, place, next(self._order), is_new, before is None, [])
        self._coming[actor] = coming
        self._count_coming(coming, 1)
        return coming

    def latest(self, actors: Iterable[str]) -> Coming | None:
        """The last pending place of these actors; once it is on disk, all of them are."""
        found = [self._coming[actor] for actor in actors if actor in self._coming]
        return max(found, key=lambda one: one.order, default=None)

    def took(self, coming: Coming, offset: int) -> Place | None:
        """A place is on disk; return the one before it."""
        before = self._stored.get(coming.actor)
        self._count_coming(coming, -1)
        self.note(coming.actor, msgspec.structs.replace(coming.place, offset=offset))
        if self._coming.get(coming.actor) is coming:
            del self._coming[coming.actor]
        return before

    def refused(self, coming: Coming) -> None:
        """The log rejected all pending places."""
        self._coming.pop(coming.actor, None)
        self._count_coming(coming, -1)

    def _count_coming(self, coming: Coming, change: int) -> None:
        _add(self._arriving, coming.place.host, coming.actor, change)
        self._unknown += coming.is_unknown * change
        if coming.is_new:
            self._new += change
            self._quotas.take(Resource.PLACES, coming.place.holder, change)

    # On disk.

    def note(self, actor: str, place: Place) -> None:
        """Apply a place read from the log."""
        before = self._stored.pop(actor, None)
        if before is not None:
            self._count(actor, before, -1)
        place = msgspec.structs.replace(
            place, host=sys.intern(place.host), owner=sys.intern(place.owner)
        )
        self._stored[actor] = place
        self._count(actor, place, 1)
        self._dirty.add(actor)

    def _count(self, actor: str, place: Place, change: int) -> None:
        if not place.host:
            self._forgotten += change
            return
        self._quotas.take(Resource.PLACES, place.holder, change)
        _add(self._on, place.host, actor, change)

    @property
    def defined_at(self) -> int | None:
        """The log from this offset on contains all places; `None` if there are none."""
        return next((one.offset for one in self._stored.values()), None)

    def before(self, end: int) -> Iterator[tuple[str, Place]]:
        """The places that the log holds only before this offset."""
        old = takewhile(lambda item: item[1].offset < end, self._stored.items())
        return (item for item in old if item[0] not in self._coming)

    # Across restarts.

    def take_rows(self, *, is_whole: bool) -> list[Row]:
        """The places stored since the last call, or all."""
        chosen: Iterable[str] = self._stored if is_whole else self._dirty
        rows = [self._row(actor) for actor in chosen]
        self._dirty.clear()
        return rows

    def _row(self, actor: str) -> Row:
        place = self._stored[actor]
        return (actor, place.host, place.token, place.offset, place.owner, place.first)

    def restore(self, rows: Iterable[Row]) -> None:
        """Load a snapshot, in the order of the entries."""
        for actor, host, token, offset, owner, first in rows:
            self.note(actor, Place(host, token, offset, owner, first))
        self._dirty.clear()


def is_placed(place: Place | None) -> TypeGuard[Place]:
    """Does the actor have a host?"""
    return place is not None and bool(place.host)


def _add(counts: Counts, host: str, actor: str, change: int) -> None:
    kinds, kind = counts.setdefault(host, {}), kind_of(actor)
    kinds[kind] = kinds.get(kind, 0) + change
    if not kinds[kind]:
        del kinds[kind]
        if not kinds:
            del counts[host]


# The number of places rewritten at once before the log is cut; the rest follow a tick later.
ANCHORS_MAX: Final = 10_000
_FIRST_TOKEN: Final = 1
_ACTORS_PER_TOKEN: Final = 10
# What finding an actor costs, in things examined: where it has a place, and where it has none; so
# many hosts that compete for it cost as much as one more thing. Of many hosts, fewer have been
# looked up before.
_KNOWN_COST: Final = 2
_NEW_COST: Final = 10
_RIVALS_PER_COST: Final = 2
_RIVALS_COST_MAX: Final = RIVALS_MAX
# So many names cost as much as one more thing, when they are read and when they are answered.
_NAMES_PER_COST: Final = 3
# Things examined between two looks at what is left of a slice.
_STEP: Final = 50
# So many hosts that are away may be met in one request before those that are there are listed.
_AWAY_MAX: Final = 256


class Placement:
    """Places actors, and answers where they are."""

    def __init__(
        self,
        placements: Placements,
        streams: Streams,
        registry: Registry,
        storage: LogState,
        replies: Replies,
        tally: Tally,
        quotas: Quotas,
        scans: Scans,
        settings: ActorsSettings,
    ) -> None:
        self._placements = placements
        self._streams = streams
        self._registry = registry
        self._storage = storage
        self._replies = replies
        self._tally = tally
        self._quotas = quotas
        self._limit = settings.limit
        # Requests that name many actors are answered in slices.
        self._scans = scans
        # Places that the log has rejected, and why it did the last time.
        self._rejections = 0
        self._rejection: Refusal | None = None

    def handlers(self) -> dict[str, Handler]:
        return {
            "hub:place": self.place,
            "hub:move": self.move,
            "hub:forget_place": self.forget,
        }

    def place(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:place`: the places of these actors, in the order of the request."""
        request = requests.parse(requests.PlaceRequest, message.payload)
        self._charge(session, len(request.actors), now)
        if request.tokens is not None and request.host is None:
            raise refusals.structural("payload.tokens are for hosts that claim: name payload.host")
        made: list[Effect] = []
        steps = self._place(session, message, request, made)
        effects = self._scans.begin(session, message, steps, made, now)
        return [*effects, GiveWay(session)] if len(request.actors) > _ACTORS_PER_TOKEN else effects

    def _place(
        self,
        session: Session,
        message: Envelope,
        request: requests.PlaceRequest,
        made: list[Effect],
    ) -> Steps:
        """Place actors one after the other; `made` gets the entries of those that are new."""
        turn, now = self._scans.turns, self._scans.now
        places: list[dict[str, object]] = []
        unplaced: list[dict[str, object]] = []
        # Has it met places that are not on disk? Then it ends if the log rejects any.
        rejections, is_pending = self._rejections, False
        holder, searched = holder_of(session), 0
        spent = reading = len(request.actors) // _NAMES_PER_COST
        search = self._search(session, request, now)
        for actor in request.actors:
            known = self._placements.find(actor)
            while (found := search.find(actor, known, now)) is None:
                yield from search.look_up(kind_of(actor))
                turn, now = self._scans.turns, self._scans.now
                search.go_on(now)
                known = self._placements.find(actor)
            is_new = not is_placed(known)
            searched += is_new
            if is_new and isinstance(found, Place):
                full = self._full() if known is None else None
                found = full or self._quotas.refusal(Resource.PLACES, holder) or found
            if isinstance(found, Refusal):
                unplaced.append(
                    {
                        "actor": actor,
                        "code": found.code,
                        "message": found.message,
                        "resolution": found.resolution,
                    }
                )
            else:
                if found is not known:
                    if not made:
                        self._storage.check()
                    source = known.source if is_placed(known) else holder.source
                    found = msgspec.structs.replace(found, source=source)
                    made.append(self._append(actor, found, now))
                is_pending |= found.offset < 0
                places.append(_described(actor, found))
            spent += search.cost if is_new else _KNOWN_COST
            if spent >= _STEP:
                yield spent
                spent = 0
                if is_pending:
                    self._check_written(rejections)
                if turn != self._scans.turns:
                    turn, now = self._scans.turns, self._scans.now
                    search.go_on(now)
        yield spent + reading
        if is_pending:
            self._check_written(rejections)
        if request.host is None:
            # Where an actor without a place could go takes longer than where another one is.
            session.bucket.owe(searched, self._scans.now)
        payload: dict[str, object] = {"places": places, "unplaced": unplaced}
        answer = self._replies.answer(session, message, "hub:placed", payload)
        return self._answer_when_stored(answer, request.actors, self._scans.now)

    def _search(self, session: Session, request: requests.PlaceRequest, now: int) -> _Finder:
        if request.host is None:
            return _Search(session, self._streams.hosts, self._is_present)
        own_host = partial(self._own_host, session, request.host)
        return _Claim(session, own_host, request.tokens or {}, now)

    def _full(self) -> Refusal | None:
        """Why there is no room for an actor that has never had a place, if there is none."""
        placements, limit = self._placements, self._limit
        with_forgotten = placements.recorded >= 2 * limit
        if with_forgotten or len(placements) >= limit:
            return refusals.too_many_actors(limit, with_forgotten=with_forgotten)
        return None

    def _charge(self, session: Session, actors: int, now: int) -> None:
        """A request that names many actors takes the tokens of several messages."""
        wait_ms = session.bucket.take_many(actors // _ACTORS_PER_TOKEN, now)
        if wait_ms:
            self._tally.rate_limited += 1
            raise refusals.rate_limited(session.bucket.rate_s, wait_ms)

    def _own_host(self, session: Session, address: str, now: int) -> Mailbox:
        if address not in session.registrations:
            raise refusals.not_your_address(address)
        box = self._streams.host(address)
        if box is None or not self._is_present(now, address):
            raise refusals.structural(
                "payload.host is not a connected host: register it as durable, with the capability "
                f"{mailboxes.HOST}"
            )
        return box

    def _is_present(self, now: int, host: str) -> bool:
        """Is the host connected?"""
        registration = self._registry.find(host, now)
        return registration is not None and mailboxes.HOST in registration.capabilities

    def move(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:move`: move an actor to another host, with the next token."""
        request = requests.parse(requests.MoveRequest, message.payload)
        actor, known = request.actor, self._placements.find(request.actor)
        moved = Place(request.to, request.token + 1)
        made: list[Effect] = []
        if known is None or not known.is_at(moved.host, moved.token):
            if not is_placed(known) or known.token != request.token:
                details: dict[str, object] = {"stale": [_as_seen(session, actor, known)]}
                if known is not None and (not known.host or known.first > request.token):
                    # Since the stay that the host knows. A hub that has lost its data does not
                    # know that.
                    details["forgotten"] = [actor]
                raise refusals.stale_placement(details)
            if known.host not in session.registrations:
                raise refusals.not_its_host(actor)
            self.check_target(session, actor, request.to, now)
            moved = msgspec.structs.replace(
                moved, owner=known.owner, first=known.first, source=known.source
            )
            self._storage.check()
            made.append(self._append(actor, moved, now))
        answer = self._replies.answer(session, message, "hub:moved", _described(actor, moved))
        return made + self._answer_when_stored(answer, [actor], now)

    def check_target(self, session: Session, actor: str, to: str, now: int) -> None:
        """Refuse a move to a host that does not serve the kind, or may not.

        What a host may do is known from its token. With authentication it must therefore be
        connected, while without it a host that is away takes the actor later.
        """
        kind, box = kind_of(actor), self._streams.host(to)
        if box is None or kind not in (box.kinds or ()):
            raise refusals.no_host(kind)
        held = self._registry.find(to, now)
        if held is None and session.allowance is not EVERYTHING:
            raise refusals.host_is_away(to, kind)
        if held is not None and not held.session.allowance.may_host(kind):
            raise refusals.unauthorized("host", kind)

    def check_part(self, session: Session, actor: str, target: str, *, is_arrival: bool) -> None:
        """Refuse a part of an actor that its sender may not have, or that nobody there serves."""
        kind = kind_of(actor)
        if not session.allowance.may_host(kind):
            raise refusals.unauthorized("host", kind)
        box = self._streams.host(target)
        # The old host, which is told of the arrival, need not serve the kind any longer.
        if box is None or not (is_arrival or kind in (box.kinds or ())):
            raise refusals.no_host(kind)

    def forget(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:forget_place`: the actor can be placed anew; its former host is fenced off."""
        request = requests.parse(requests.ForgetPlaceRequest, message.payload)
        actor, known = request.actor, self._placements.find(request.actor)
        if not is_placed(known):
            raise refusals.not_placed(actor)
        if not session.allowance.may_control(known.host):
            raise refusals.unauthorized("control", known.host)
        payload: dict[str, object] = {"actor": actor, "host": known.host, "token": known.token}
        answer = self._replies.answer(session, message, "hub:place_forgotten", payload)
        self._storage.check()
        forgotten = self._append(actor, Place("", known.token), now)
        made = [*operated(session, message.type, "control", known.host, now), forgotten]
        return made + self._answer_when_stored(answer, [actor], now)

    def check_fences(self, session: Session, fences: dict[str, int]) -> None:
        """Refuse a message whose sender knows an outdated place of an actor."""
        find = self._placements.find
        stale: list[object] = []
        for actor, token in fences.items():
            known = find(actor)
            if not is_placed(known) or known.token != token:
                stale.append(_as_seen(session, actor, known))
        if stale:
            self._tally.stale_fences += 1
            raise refusals.stale_placement({"stale": stale})

    # The log.

    def _answer_when_stored(
        self, answer: DeferredAnswer, actors: list[str], now: int
    ) -> list[Effect]:
        """Answer once all pending places of these actors are on disk."""
        last = self._placements.latest(actors)
        if last is None:
            return answer.committed(0, now)
        last.waiters.append(answer)
        return []

    def _append(self, actor: str, place: Place, now: int) -> Append:
        coming = self._placements.send(actor, place)
        return Append(
            _entry(actor, place, now),
            partial(self._written, coming),
            partial(self._not_written, coming),
        )

    def _written(self, coming: Coming, offset: int, now: int) -> list[Effect]:
        before = self._placements.took(coming, offset)
        host = coming.place.host
        self._tally.actors_placed += bool(host) and not is_placed(before)
        self._tally.actors_moved += bool(host) and is_placed(before) and before.host != host
        return [one for each in coming.waiters for one in each.committed(offset, now)]

    def _not_written(self, coming: Coming, refusal: Refusal, now: int) -> list[Effect]:
        self._placements.refused(coming)
        self._rejections += 1
        self._rejection = refusal
        return [one for each in coming.waiters for one in each.refused(refusal, now)]

    def _check_written(self, rejections: int) -> None:
        """Refuse if the log has rejected places since there were so many rejections."""
        if self._rejection is not None and self._rejections != rejections:
            raise self._rejection

    def anchored(self) -> int | None:
        """The log from this offset on contains all places; `None` if there are none."""
        return self._placements.defined_at

    def anchor(self, end: int, now: int) -> list[Effect]:
        """Rewrite places that the log is about to lose."""
        chosen = list(islice(self._placements.before(end), ANCHORS_MAX))
        return [Append(_entry(*one, now), partial(self._anchored, *one)) for one in chosen]

    def _anchored(self, actor: str, place: Place, offset: int, now: int) -> list[Effect]:
        self._placements.note(actor, msgspec.structs.replace(place, offset=offset))
        return []


class _Finder(Protocol):
    """Decides where actors live that have no place."""

    cost: int
    """What the last one without a place has cost, in things examined."""

    def find(self, actor: str, known: Place | None, now: int) -> Place | Refusal | None:
        """The place of an actor, or why it has none; `None` if its kind must be looked up."""

    def look_up(self, kind: str) -> Generator[int, None, None]:
        """Find the hosts of a kind that are there: once, instead of for every actor."""

    def go_on(self, now: int) -> None:
        """Others have had their turns."""


class _Search:
    """Places actors that have no place on a connected host."""

    def __init__(
        self,
        session: Session,
        hosts_of: Callable[[str], Sequence[Node]],
        is_present: Callable[[int, str], bool],
    ) -> None:
        self._session = session
        self._hosts_of = hosts_of
        self._is_connected = is_present
        # Those that were looked up in this turn, and whether they are connected.
        self._seen: dict[str, bool] = {}
        self._now = 0
        # The hosts for each kind, and how many of them were found to be away.
        self._hosts: dict[str, Sequence[Node]] = {}
        self._away: dict[str, int] = {}
        self.cost = _NEW_COST

    def go_on(self, now: int) -> None:
        self._seen.clear()

    def find(self, actor: str, known: Place | None, now: int) -> Place | Refusal | None:
        if is_placed(known):
            return known if _may_send(self._session, known.host) else _not_shown(actor)
        kind = kind_of(actor)
        hosts = self._hosts.get(kind)
        if hosts is None:
            hosts = self._hosts[kind] = self._hosts_of(kind)
        self._now = now
        self.cost = _NEW_COST + min(len(hosts) // _RIVALS_PER_COST, _RIVALS_COST_MAX)
        try:
            host = preferred(actor, hosts, partial(self._is_present, kind))
        except _ManyAway:
            return None
        if host is None:
            return refusals.no_host(kind)
        if not _may_send(self._session, host):
            return _not_shown(actor)
        return _first_place(host, known, self._session.allowance.subject)

    def look_up(self, kind: str) -> Generator[int, None, None]:
        hosts: list[Node] = []
        for part, cost in steps_of(list(self._hosts_of(kind))):
            hosts += [one for one in part if self._is_connected(self._now, one[1])]
            yield cost
        self._hosts[kind], self._away[kind] = hosts, 0

    def _is_present(self, kind: str, host: str) -> bool:
        is_present = self._seen.get(host)
        if is_present is None:
            is_present = self._seen[host] = self._is_connected(self._now, host)
        if not is_present:
            away = self._away[kind] = self._away.get(kind, 0) + 1
            if away > _AWAY_MAX:
                raise _ManyAway
        return is_present


class _ManyAway(Exception):
    """Many hosts of a kind are away."""


class _Claim:
    """Gives actors to the requesting host, except those placed elsewhere."""

    def __init__(
        self, session: Session, own_host: Callable[[int], Mailbox], tokens: dict[str, int], now: int
    ) -> None:
        self._allowance = session.allowance
        self._own_host = own_host
        self._box = own_host(now)
        self._tokens = tokens
        self.cost = _NEW_COST

    def go_on(self, now: int) -> None:
        self._box = self._own_host(now)

    def look_up(self, kind: str) -> Generator[int, None, None]:
        yield from ()

    def find(self, actor: str, known: Place | None, now: int) -> Place | Refusal:
        # After a loss of data the host may know a higher token than the hub.
        held = self._tokens.get(actor)
        token = held or _FIRST_TOKEN
        if not self._allowance.may_host(kind_of(actor)):
            return refusals.unauthorized("host", kind_of(actor))
        if is_placed(known) and (known.host != self._box.name or known.token >= token):
            return known
        if not is_placed(known) and kind_of(actor) not in (self._box.kinds or ()):
            return refusals.no_host(kind_of(actor))
        if is_placed(known):
            return Place(self._box.name, token, owner=known.owner, first=known.first)
        if known is not None and held is not None and known.token >= held:
            # What the host has is from the stay that was forgotten.
            return refusals.place_forgotten(actor)
        if held is None:
            return _first_place(self._box.name, known, self._allowance.subject)
        return Place(self._box.name, held, owner=self._allowance.subject)


def _may_send(session: Session, host: str) -> bool:
    allowance = session.allowance
    return allowance is EVERYTHING or allowance.may_send(host)


def _not_shown(actor: str) -> Refusal:
    """Where an actor lives is for those who may send there; so is the name of the host."""
    return refusals.unauthorized("send", f"the host of {actor}")


def _first_place(host: str, forgotten: Place | None, subject: str) -> Place:
    """The place of an actor that starts empty, under a token that no host has had."""
    token = _FIRST_TOKEN if forgotten is None else forgotten.token + 1
    return Place(host, token, owner=subject, first=token)


def kind_of(actor: str) -> str:
    """The kind of a durable actor."""
    return actor.partition("/")[0]


def check_batch(session: Session, ends: Iterable[tuple[str, str]]) -> None:
    """Refuse messages between actors that a host may not send: sender and recipient of each.

    It sends those of its own actors, and passes on those to actors that it has had; so it must be
    permitted the kind of one of them. Which of its actors are still there is checked by fences.
    """
    may_host = session.allowance.may_host
    for sender, recipient in {(kind_of(sender), kind_of(to)) for sender, to in ends}:
        if not (may_host(sender) or may_host(recipient)):
            is_outside = not sender or sender.startswith("@")
            raise refusals.unauthorized("host", recipient if is_outside else sender)


def _described(actor: str, place: Place | None) -> dict[str, object]:
    if not is_placed(place):
        return {"actor": actor, "host": None, "token": None}
    described: dict[str, object] = {"actor": actor, "host": place.host, "token": place.token}
    if place.token == place.first != _FIRST_TOKEN:
        # Nothing of it arrives from elsewhere, although the token is not the first.
        described["fresh"] = True
    return described


def _as_seen(session: Session, actor: str, place: Place | None) -> dict[str, object]:
    """The same for those who may send there or host the kind; for others it has no place."""
    is_seen = is_placed(place) and (
        session.allowance.may_host(kind_of(actor)) or _may_send(session, place.host)
    )
    return _described(actor, place if is_seen else None)


def _entry(actor: str, place: Place, now: int) -> Entry:
    body = encode_body(PlacedBody(actor, place.host, place.token, place.owner, place.first))
    return Entry(Kind.PLACED, "", 0, 0, now, body)
