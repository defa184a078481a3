"""The hub of a simulation as a few rules, and the hosts around it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from signalhub.actors.effects import GiveAway, Locate, Send
from signalhub.actors.events import Event, Moved, Place, Receipted, Refused
from signalhub.actors.kernel import Kernel
from signalhub.testing.actor_faults import FragileStore

NEVER = 1 << 62


class Mail(msgspec.Struct):
    """Something in a mailbox."""

    number: int
    type: str
    data: bytes
    sender: str
    accepted_ms: int
    expires_ms: int | None
    is_settled: bool = False


class ModelHub:
    """What the hub knows. All of it is on disk when it answers."""

    def __init__(self, window_ms: int) -> None:
        self.mailboxes: dict[str, list[Mail]] = {}
        self.places: dict[str, Place] = {}
        self.repeats = 0
        self.stale = 0
        self._window_ms = window_ms
        self._accepted: dict[tuple[str, str], int] = {}

    def send(self, sender: str, send: Send, sent_ms: int, now_ms: int) -> Receipted | Refused:
        """An ask: accepted once, and repeated ones get the first answer."""
        before = self._accepted.get((sender, send.batch))
        if before is not None and now_ms - before <= self._window_ms:
            self.repeats += 1
            return Receipted(send.batch)
        expires_ms = None if send.ttl_ms is None else sent_ms + send.ttl_ms
        if expires_ms is not None and expires_ms < now_ms:
            return Refused(send.batch, "message_expired")
        stale = [one for one, token in send.fences.items() if self._token(one) != token]
        if stale:
            self.stale += 1
            return Refused(send.batch, "stale_placement", stale)
        self._accepted[sender, send.batch] = now_ms
        self.put(send.to, send.type, send.data, sender, now_ms, expires_ms)
        return Receipted(send.batch)

    def _token(self, actor: str) -> int | None:
        place = self.places.get(actor)
        return None if place is None else place.token

    def put(
        self,
        to: str,
        type: str,
        data: bytes,
        sender: str,
        now_ms: int,
        expires_ms: int | None = None,
    ) -> None:
        box = self.mailboxes.setdefault(to, [])
        box.append(Mail(len(box), type, data, sender, now_ms, expires_ms))

    def place(self, actor: str, host: str, token: int = 1) -> Place:
        """Where it lives; there, if it lives nowhere."""
        known = self.places.get(actor)
        if known is None or (known.host == host and known.token < token):
            known = self.places[actor] = Place(actor, host, token)
        return known

    def move(self, actor: str, token: int, to: str) -> Moved:
        known = self.places[actor]
        if (known.host, known.token) == (to, token + 1):
            return Moved(actor, known.token)
        if known.token != token:
            return Moved(actor, None, "stale_placement", is_final=True)
        self.places[actor] = Place(actor, to, token + 1)
        return Moved(actor, token + 1)


@dataclass(eq=False)
class Host:
    """A process with a kernel, or one that is down at the moment."""

    number: int
    name: str
    store: FragileStore
    skew_ms: int = 0
    kernel: Kernel | None = None
    boots: int = 0
    # Which connection it has, or had last.
    connection: int = 0
    is_connected: bool = False
    events: list[Event] = field(default_factory=list)
    turn_at_ms: int = NEVER
    spins: int = 0
    # Requests without an answer, by their number.
    open: dict[int, Send | Locate | GiveAway] = field(default_factory=dict)
    # No message overtakes an earlier one on its way.
    sent_ms: dict[str, int] = field(default_factory=dict)
    answered_ms: int = 0
    delivered_ms: int = 0
    # Mail that was handed over on the present connection, and the newest of all.
    next_mail: int = 0
    newest_ms: int = 0
