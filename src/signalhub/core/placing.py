"""Finding, giving and changing the places of durable actors, and the fences of messages to them.

`hub:place` says where actors live and gives a place to those without one: on a present host of
their kind, or on the host that claims them. `hub:move` gives an actor to another host, if it is
still where the mover believes. Both are answered when everything they say is on disk.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core import journal, mailbox, refusals, requests
from signalhub.core.effects import Append, Effect
from signalhub.core.placements import Coming, Place, number_of, preferred
from signalhub.core.session import Session
from signalhub.core.streams import Mailbox
from signalhub.entry import Entry, Kind, Placed, encode_body
from signalhub.envelope import Envelope
from signalhub.errors import Refusal

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

# So many places are written again at once before the log is cut; the rest follow a tick later.
ANCHORS_MAX: Final = 10_000
_FIRST_TOKEN: Final = 1


def place(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:place`: where these actors live, in the order they are asked for."""
    request = requests.parse(requests.Place, message.payload)
    if request.tokens is not None and request.host is None:
        raise refusals.structural("payload.tokens are for hosts that claim: name payload.host")
    if request.host is None:
        search: _Search | _Claim = _Search(hub, session, now)
    else:
        search = _Claim(_own_host(hub, session, request.host, now), request.tokens or {})
    fresh: dict[str, Place] = {}
    places: list[dict[str, object]] = []
    unplaced: list[dict[str, object]] = []
    room = hub.settings.actors.limit - len(hub.placements)
    for actor in request.actors:
        known = fresh.get(actor) or hub.placements.find(actor)
        found = search.find(actor, known)
        if known is None and room <= 0 and isinstance(found, Place):
            found = refusals.too_many_actors(hub.settings.actors.limit)
        if isinstance(found, Refusal):
            unplaced.append({"actor": actor, "code": found.code, "message": found.message})
            continue
        if found is not known:
            fresh[actor] = found
            room -= known is None
        places.append(_described(actor, found))
    payload = {"places": places, "unplaced": unplaced}
    answer = journal.Answer(session, message, "hub:placed", payload)
    return _answer_when_stored(hub, answer, request.actors, fresh, now)


class _Search:
    """Gives a place to actors without one, on a host that is there."""

    def __init__(self, hub: Hub, session: Session, now: int) -> None:
        self._hub = hub
        self._session = session
        self._now = now
        # Numbers and names of the hosts for each kind.
        self._hosts: dict[str, list[tuple[int, str]]] = {}

    def find(self, actor: str, known: Place | None) -> Place | Refusal:
        if known is not None:
            return known
        kind = kind_of(actor)
        hosts = self._hosts.get(kind)
        if hosts is None:
            hosts = self._hosts[kind] = self._present(kind)
        host = preferred(actor, hosts)
        if host is None:
            return refusals.no_host(kind)
        if not self._session.allowance.may_send(host):
            return refusals.unauthorized("send", host)
        return Place(host, _FIRST_TOKEN)

    def _present(self, kind: str) -> list[tuple[int, str]]:
        return [
            (number_of(box.name), box.name)
            for box in self._hub.streams.hosts()
            if kind in (box.kinds or ()) and _is_present(self._hub, box, self._now)
        ]


class _Claim:
    """Gives actors to the host that asks, but none that lives elsewhere."""

    def __init__(self, box: Mailbox, tokens: dict[str, int]) -> None:
        self._box = box
        self._tokens = tokens

    def find(self, actor: str, known: Place | None) -> Place | Refusal:
        # What the host knows from before may be more than a hub knows that was made anew.
        token = self._tokens.get(actor, _FIRST_TOKEN)
        if known is not None and (known.host != self._box.name or known.token >= token):
            return known
        if known is None and kind_of(actor) not in (self._box.kinds or ()):
            return refusals.no_host(kind_of(actor))
        return Place(self._box.name, token)


def kind_of(actor: str) -> str:
    """The kind of a durable actor."""
    return actor.partition("/")[0]


def _own_host(hub: Hub, session: Session, address: str, now: int) -> Mailbox:
    if address not in session.registrations:
        raise refusals.not_your_address(address)
    box = hub.streams.host(address)
    if box is None or not _is_present(hub, box, now):
        raise refusals.structural(
            f"payload.host is no host: register it as durable, with the capability {mailbox.HOST}"
        )
    return box


def _is_present(hub: Hub, box: Mailbox, now: int) -> bool:
    registration = hub.registry.find(box.name, now)
    return registration is not None and mailbox.HOST in registration.capabilities


def move(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:move`: another host has the actor from now on, under the next token."""
    request = requests.parse(requests.Move, message.payload)
    actor, known = request.actor, hub.placements.find(request.actor)
    moved = Place(request.to, request.token + 1)
    fresh: dict[str, Place] = {}
    if known is None or not known.is_at(moved.host, moved.token):
        if known is None or known.token != request.token:
            raise refusals.stale_placement({"stale": [_described(actor, known)]})
        if known.host not in session.registrations:
            raise refusals.not_its_host(actor, known.host)
        box = hub.streams.host(request.to)
        if box is None or kind_of(actor) not in (box.kinds or ()):
            raise refusals.no_host(kind_of(actor))
        fresh[actor] = moved
    answer = journal.Answer(session, message, "hub:moved", _described(actor, moved))
    return _answer_when_stored(hub, answer, [actor], fresh, now)


def _described(actor: str, place: Place | None) -> dict[str, object]:
    if place is None:
        return {"actor": actor, "host": None, "token": None}
    return {"actor": actor, "host": place.host, "token": place.token}


# Fences.


def check_fences(hub: Hub, fences: dict[str, int]) -> None:
    """Refuse a message whose sender believes an actor where it does not live any more."""
    find = hub.placements.find
    stale: list[object] = []
    for actor, token in fences.items():
        known = find(actor)
        if known is None or known.token != token:
            stale.append(_described(actor, known))
    if stale:
        hub.tally.stale_fences += 1
        raise refusals.stale_placement({"stale": stale})


# The log.


def _answer_when_stored(
    hub: Hub, answer: journal.Answer, actors: list[str], fresh: dict[str, Place], now: int
) -> list[Effect]:
    """Write what is new, and answer when that and what is on its way already is on disk."""
    if fresh:
        hub.check_storage()
    appends = [_append(hub, actor, place, now) for actor, place in fresh.items()]
    last = hub.placements.latest(actors)
    if last is None:
        return answer.committed(hub, 0, now)
    last.waiters.append(answer)
    return [*appends]


def _append(hub: Hub, actor: str, place: Place, now: int) -> Append:
    return Append(_entry(actor, place, now), Written(hub.placements.send(actor, place)))


def _entry(actor: str, place: Place, now: int) -> Entry:
    body = encode_body(Placed(actor, place.host, place.token))
    return Entry(Kind.PLACED, "", 0, 0, now, body)


class Written(msgspec.Struct):
    """A place on its way to the log."""

    coming: Coming

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        before = hub.placements.took(self.coming, offset)
        hub.tally.actors_placed += before is None
        hub.tally.actors_moved += before is not None and before.host != self.coming.place.host
        return [one for each in self.coming.waiters for one in each.committed(hub, offset, now)]

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        hub.placements.refused(self.coming)
        return [one for each in self.coming.waiters for one in each.refused(hub, refusal, now)]


def anchor(hub: Hub, end: int, now: int) -> list[Effect]:
    """Write down again where actors live, if the log is about to forget it."""
    chosen = list(islice(hub.placements.before(end), ANCHORS_MAX))
    return [Append(_entry(*one, now), Anchored(*one)) for one in chosen]


class Anchored(msgspec.Struct):
    """A place written again."""

    actor: str
    place: Place

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        hub.placements.note(self.actor, self.place.host, self.place.token, offset)
        return []

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        return []
