"""`hub:limits`: who uses how much of what is limited."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from heapq import nlargest
from typing import TYPE_CHECKING, Final, NamedTuple

from signalhub.auth.permissions import EVERYTHING
from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect
from signalhub.core.limits.quotas import Quotas, Resource, holder_of
from signalhub.core.limits.scans import Scans, Steps, steps_of
from signalhub.core.operations import operated

if TYPE_CHECKING:
    from signalhub.core.log_state import LogState
    from signalhub.core.replies import Handler
    from signalhub.core.sessions.session import Session
    from signalhub.wire.envelope import Envelope

OPERATION: Final = "limits"
TOP_MAX: Final = 100
_TOP: Final = 10
# Limited in total: bytes that wait to be written to slow readers, and large frames being read.
WAITING_BYTES: Final = "waiting_bytes"
# Open sockets, those before their hello included; limited in total and per source.
SOCKETS: Final = "sockets"

Counts = Iterable[tuple[str, int]]


class SocketUsage(NamedTuple):
    """How many sockets are open, how many there may be, in total and per source, and of whom."""

    used: int
    limit: int
    per_source: int
    sources: Counts


class Usage:
    """Answers operators who ask what is used by whom."""

    def __init__(
        self,
        quotas: Quotas,
        sessions: Callable[[], Iterator[Session]],
        scans: Scans,
        storage: LogState,
        waiting_max: int,
    ) -> None:
        self._quotas = quotas
        self._sessions = sessions
        self._scans = scans
        self._storage = storage
        self._waiting_max = waiting_max
        # Set by whoever has the port; without one there are no sockets.
        self.sockets: Callable[[], SocketUsage] | None = None

    def handlers(self) -> dict[str, Handler]:
        return {"hub:limits": self.show}

    def show(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:limits`: every limit with those who use most of it, or what one identity uses."""
        allowance = session.allowance
        if allowance is not EVERYTHING and not allowance.may_administer(OPERATION):
            raise refusals.unauthorized("admin", OPERATION)
        request = requests.parse_or_empty(requests.LimitsRequest, message.payload)
        top = _TOP if request.limit is None else requests.page(request.limit, TOP_MAX)
        steps = self._steps(request.identity, top)
        size = sum(self._quotas.total(one) for one in (Resource.SESSIONS, Resource.REGISTRATIONS))
        # It is answered even if nothing can be recorded: a full disk is a reason to ask.
        recorded: list[Append] = []
        if self._storage.fault is None:
            recorded = operated(session, message.type, "admin", OPERATION, now)
        return [*recorded, *self._scans.run(session, message, steps, now, size=size)]

    def _steps(self, identity: str | None, top: int) -> Steps:
        rows: list[dict[str, object]] = []
        for resource in Resource:
            limits = self._quotas.limits[resource]
            row: dict[str, object] = {
                "resource": resource,
                "used": self._quotas.total(resource),
                "limit": limits.total,
                "perIdentity": limits.identity,
                "perSource": limits.source,
            }
            if identity is None:
                by_identity = yield from _largest(self._quotas.identities(resource), top)
                by_source = yield from _largest(self._quotas.sources(resource), top)
            else:
                by_identity = [(identity, self._quotas.of_identity(resource, identity))]
                by_source = []
            rows.append(row | _shown(by_identity, by_source))
        if self.sockets is not None and identity is None:
            rows.insert(0, (yield from _sockets(self.sockets(), top)))
        rows.append((yield from self._waiting(identity, top)))
        return "hub:limits_response", {"resources": rows}

    def _waiting(self, identity: str | None, top: int) -> Generator[int, None, dict[str, object]]:
        total = 0
        identities: dict[str, int] = {}
        sources: dict[str, int] = {}
        for part, examined in steps_of(list(self._sessions())):
            for one in part:
                waiting = 0 if one.outbound is None else one.outbound.bytes
                holder = holder_of(one)
                total += waiting
                if waiting and holder.identity:
                    identities[holder.identity] = identities.get(holder.identity, 0) + waiting
                if waiting and holder.source:
                    sources[holder.source] = sources.get(holder.source, 0) + waiting
            yield examined
        row: dict[str, object] = {
            "resource": WAITING_BYTES,
            "used": total,
            "limit": self._waiting_max,
            "perIdentity": None,
            "perSource": None,
        }
        if identity is not None:
            return row | _shown([(identity, identities.get(identity, 0))], [])
        by_identity = yield from _largest(identities.items(), top)
        by_source = yield from _largest(sources.items(), top)
        return row | _shown(by_identity, by_source)


def _sockets(found: SocketUsage, top: int) -> Generator[int, None, dict[str, object]]:
    row: dict[str, object] = {
        "resource": SOCKETS,
        "used": found.used,
        "limit": found.limit,
        "perIdentity": None,
        "perSource": found.per_source,
    }
    return row | _shown([], (yield from _largest(found.sources, top)))


def _largest(counts: Counts, top: int) -> Generator[int, None, list[tuple[str, int]]]:
    """The names with the highest counts, highest first."""
    best: list[tuple[str, int]] = []
    for part, examined in steps_of(counts):
        best = nlargest(top, [*best, *part], key=lambda one: one[1])
        yield examined
    return best


def _shown(identities: Counts, sources: Counts) -> dict[str, object]:
    return {
        "identities": [{"identity": name, "used": used} for name, used in identities],
        "sources": [{"source": name, "used": used} for name, used in sources],
    }
