"""Checkers that find nothing prove nothing: every planted bug must be found and named."""

from __future__ import annotations

from collections import deque

import pytest

from signalhub.core.effects import Deliver, Effect, FanOut, Forget
from signalhub.core.messages.ask import AskReceipt, FanReceipt
from signalhub.core.messages.audience import Audience, Topics
from signalhub.core.messages.dedup import Dedup, KnownAck
from signalhub.core.messages.publish import PublishReceipt, RunReceipt
from signalhub.core.sessions.registry import Registration, Registry
from signalhub.core.sessions.session import Session
from signalhub.pacing import TokenBucket
from tests.simulation.events import RecordingShell
from tests.simulation.world import Bug, Plant, World
from tests.support.memory.shell import Peer, Waiter

SEEDS = 12
STEPS = 500


class AcksTooEarly(RecordingShell):
    """Takes a queued frame for a delivered one."""

    def write(self, peer: Peer, frame: bytes, receipt: Waiter | None) -> None:
        super().write(peer, frame, None)
        if receipt is not None and peer.can_be_written:
            self._handed_over.append(receipt)


class AcksTwice(RecordingShell):
    """Reports every hand-over a second time."""

    def hand_over(self, peer: Peer, frame: bytes, receipt: Waiter | None) -> None:
        super().hand_over(peer, frame, receipt)
        if receipt is not None:
            self._handed_over.append(receipt)


class SwallowsAReceipt(RecordingShell):
    """Hands one ask over without reporting it."""

    def hand_over(self, peer: Peer, frame: bytes, receipt: Waiter | None) -> None:
        is_swallowed = self.tally.ask_latency.count == 10 and len(self.hub.pending) == 1
        super().hand_over(peer, frame, None if is_swallowed else receipt)


class LosesReceipts(RecordingShell):
    """Forgets who waits for an answer when a socket dies."""

    def dropped(self, peer: Peer) -> None:
        peer.waiting = deque((frame, None) for frame, _ in peer.waiting)
        super().dropped(peer)


class Overtakes(RecordingShell):
    """Lets the newest waiting frame out first."""

    def write(self, peer: Peer, frame: bytes, receipt: Waiter | None) -> None:
        super().write(peer, frame, receipt)
        peer.waiting.rotate(1)


class Misdelivers(RecordingShell):
    """Now and then uses the wrong socket."""

    def deliver(self, effect: Deliver) -> None:
        live = [peer for peer in self.peers if peer.can_be_written]
        if self.tally.deliveries % 7 == 0:
            effect.session = live[0].session
        super().deliver(effect)


class DeliversTwice(RecordingShell):
    """Sends every copy to every subscriber twice when there are many."""

    def _fan_out(self, effect: FanOut) -> None:
        audience = effect.audience
        if len(audience.recipients) > 2:
            effect.audience = Audience(audience.recipients * 2)
        super()._fan_out(effect)


class ForgetsToForget(RecordingShell):
    """Keeps the rows of those who have left."""

    def _perform_one(self, effect: Effect) -> None:
        if not isinstance(effect, Forget):
            super()._perform_one(effect)


class NoMemory(Dedup):
    def find_by(self, key: bytes, now_ms: int) -> KnownAck | None:
        return None


class AckOfNow(Dedup):
    def find_by(self, key: bytes, now_ms: int) -> KnownAck | None:
        found = super().find_by(key, now_ms)
        return None if found is None else KnownAck(now_ms + 1)


class NoLeases(Registry):
    def find(self, address: str, now_ms: int) -> Registration | None:
        return self.get(address)


class Limitless(Registry):
    @property
    def is_full(self) -> bool:
        return False


class Unforgetting(Topics):
    def leave(self, session: Session, address: str | None = None) -> None:
        if address is None:
            super().leave(session)


class Stale(Topics):
    """Keeps an audience longer than its subscriptions."""

    def _outdated_by(self, kept: Audience, topic: str) -> TokenBucket | None:
        return None


class Overflowing(TokenBucket):
    def _refill(self, now_ms: int) -> None:
        self.tokens += max(0, now_ms - self._at_ms) * self.rate_s / 1000
        self._at_ms = now_ms


def becoming(part: str, cls: type[object]) -> Plant:
    """A part of the hub is of another class."""

    def plant(shell: RecordingShell) -> None:
        getattr(shell.hub, part).__class__ = cls

    return plant


def with_overflowing_buckets(shell: RecordingShell) -> None:
    opened = shell.hub.opened

    def opened_with_a_hole(
        link: object, now: int, source: str = "", *, has_socket: bool = True
    ) -> Session:
        session = opened(link, now, source, has_socket=has_socket)
        session.bucket = Overflowing(session.bucket.rate_s, session.bucket.burst, now)
        return session

    shell.hub.opened = opened_with_a_hole  # type: ignore[method-assign]


def with_lingering_names(shell: RecordingShell) -> None:
    shell.hub.identities.remove = lambda session: None  # type: ignore[method-assign]


def with_forgotten_asks(shell: RecordingShell) -> None:
    hub = shell.hub
    hub.pending = hub.asks._pending = hub._router._pending = Amnesia()


class Amnesia(dict[bytes, AskReceipt | PublishReceipt | RunReceipt | FanReceipt]):
    def pop(self, *args: object) -> None:  # type: ignore[override]
        pass


BUGS = {
    "acks too early": Bug("acknowledged before it was handed over", AcksTooEarly),
    "acks twice": Bug("answered more than once", AcksTwice),
    "swallows a receipt": Bug("handed over, but not acknowledged", SwallowsAReceipt),
    "loses receipts": Bug("left behind", LosesReceipts),
    "overtakes": Bug("overtaken by a later message", Overtakes),
    "misdelivers": Bug("a message went astray", Misdelivers),
    "delivers twice": Bug("an address got two copies", DeliversTwice),
    "forgets to forget": Bug("a row outlived its registration", ForgetsToForget),
    "no memory": Bug("delivered twice within the window", plant=becoming("dedup", NoMemory)),
    "another ack": Bug("acknowledged with another time", plant=becoming("dedup", AckOfNow)),
    "no leases": Bug("whose lease has ended", plant=becoming("registry", NoLeases)),
    "no limit": Bug("the registry is over its limit", plant=becoming("registry", Limitless)),
    "stale audiences": Bug("hub:publish reached the wrong ears", plant=becoming("topics", Stale)),
    "clinging subscriptions": Bug(
        "hub:publish reached the wrong ears", plant=becoming("topics", Unforgetting)
    ),
    "overflowing buckets": Bug("tokens in a bucket", plant=with_overflowing_buckets),
    "lingering names": Bug("evicted somebody else", plant=with_lingering_names),
    "forgotten asks": Bug("an ask was neither delivered nor answered", plant=with_forgotten_asks),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found_and_named(name: str) -> None:
    BUGS[name].assert_found(World, SEEDS, STEPS)
