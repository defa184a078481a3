"""Acknowledgements that the native part reads as runs do what they do one by one.

The same reads go to two hubs: one takes their runs, the other every message for itself. Afterwards
both have written the same, sent the same, and stand where the other stands.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from signalhub.core import refusals
from signalhub.core.sessions.session import Session
from signalhub.core.subscriptions.send import delivery_id
from signalhub.settings.model import Settings
from signalhub.wire.frames import is_text
from tests.fuzz.mutations import Damage
from tests.support.memory.shell import Peer, envelope
from tests.support.memory.topics import (
    NAME,
    NAMED,
    TOPIC,
    create,
    publish,
    subscribe,
    subscription_of,
)
from tests.support.memory.turns import TurningShell
from tests.support.socket.frames import TEXT, masked_frame

native = pytest.importorskip("signalhub_native")

GROUPS = 4
SEEDS = 160
READS = 14
MODES = ["exclusive", "exclusive", "failover", "shared", "key-shared"]


class Side:
    """A hub with a writer, and two consumers of one subscription."""

    def __init__(self, options: dict[str, Any], *, takes_runs: bool) -> None:
        self.shell = TurningShell(Settings(message_rate=0.0))
        self.takes_runs = takes_runs
        self.runs = self.acks = 0
        self.writer = self.shell.connect("@(a/writer)")
        create(self.writer)
        self.consumers = [self.shell.connect(f"@(a/reader/{number})") for number in range(2)]
        for number, peer in enumerate(self.consumers):
            if number == 0 or options["mode"] != "exclusive":
                subscribe(peer, consumer=f"c{number}", **options)
        self.readers = [native.Reader(2**20, 2**15) for _ in self.consumers]

    def read(self, number: int, texts: list[bytes]) -> None:
        """Messages of a consumer arrive in one turn."""
        peer = self.consumers[number]
        with self.shell.one_turn():
            if not self.takes_runs:
                for text in filter(is_text, texts):
                    self.shell.receive(peer, text)
                return
            data = b"".join(masked_frame(TEXT, text) for text in texts)
            for item in self.readers[number].read(data, 10_000, 1)[0]:
                if isinstance(item, bytes):
                    if is_text(item):
                        self.shell.receive(peer, item)
                elif isinstance(item, native.Settles):
                    self.take(peer, item)
                else:
                    for text in item.messages():
                        self.shell.receive(peer, text)

    def take(self, peer: Peer, run: Any) -> None:
        effects = self.shell.hub.received_run(peer.session, run, self.shell.now)
        if effects is None:
            for text in run.messages():
                self.shell.receive(peer, text)
            return
        self.runs += 1
        self.acks += run.count
        self.shell.perform(effects)

    def state(self) -> dict[str, Any]:
        """Everything that a subscription knows."""
        one = subscription_of(self.shell)
        position = one.position
        return {
            "window": {
                seq: (each.phase, each.deliveries, each.failures, each.deadline_ms, each.last_sent)
                for seq, each in one.window.seen().items()
            },
            "position": msgspec.to_builtins(position.cursor(NAME)),
            "next": one.next_seq,
            "due": one.window.next_due_ms(),
            "stats": {name: getattr(one.stats, name) for name in STATS},
            "consumers": [(each.name, each.flights, each.bytes) for each in one.consumers],
            "received": self.shell.tally.received,
            "heard": [peer.session.last_seen_ms for peer in self.consumers],
        }


STATS = ("settled", "delivered", "redelivered", "nacked", "timeouts", "ignored", "cursors")


def written(dice: Damage, side: Side, number: int) -> list[bytes]:
    """What a consumer says in one read: mostly that it is done with what it has."""
    one = subscription_of(side.shell)
    seqs = sorted(one.window.seen())
    ids = next(iter(side.consumers[number].session.consumers), "sub-none")
    texts: list[bytes] = []
    style = dice.below(4)
    for _ in range(1 + dice.below(9)):
        if not seqs:
            seqs = [1 + dice.below(40)]
        payload = dict(_subject(dice, ids, style))
        take = 1 + dice.below(3) if dice.is_likely(0.2) else 1
        taken = seqs[:take] if dice.is_likely(0.8) else [dice.pick(seqs)]
        seqs = [seq for seq in seqs if seq not in taken]
        attempts = [dice.pick([1, 1, 1, 1, 1, 1, 1, 2, 3]) for _ in taken]
        names = [delivery_id(one, seq, each) for seq, each in zip(taken, attempts, strict=True)]
        if len(taken) > 1:
            payload["seqs"] = taken
            if style % 2:
                payload["ids"] = names
        elif dice.is_likely(0.05):
            payload["upTo"] = taken[0]
        else:
            payload["seq"] = taken[0]
            if style % 2 or dice.is_likely(0.05):
                payload["id"] = names[0]
        if dice.is_likely(0.05):
            payload["attempt"] = dice.pick([1, 2])
        type = dice.pick(["hub:ack"] * 12 + ["hub:nack", "hub:term", "hub:heartbeat"])
        pattern = "ask" if dice.is_likely(0.06) else "tell"
        texts.append(
            envelope(type, payload, pattern=pattern, id=f"m{dice.below(99)}", timestamp=17)
        )
    return [dice.damaged(text, 0.04) for text in texts]


def _subject(dice: Damage, consumer_id: str, style: int) -> dict[str, Any]:
    if dice.is_likely(0.03):
        return dice.pick(
            [
                {},
                {"topic": "no", "subscription": "no"},
                {"stream": "@(no)"},
                NAMED | {"epoch": "9.9"},
            ]
        )
    if dice.is_likely(0.05):
        return NAMED | {"epoch": "1.1"}
    named = NAMED
    return {"subscriptionId": consumer_id} if style < 2 else named


def play(seed: int) -> tuple[int, int]:
    """Let both sides live through the same; how many acknowledgements came in how many runs."""
    dice = Damage(seed)
    options = {
        "mode": MODES[seed % len(MODES)],
        "window": dice.pick([3, 8, 256]),
        "ackTimeoutMs": dice.pick([200, 30_000]),
        "backoffMs": dice.pick([0, 100]),
        "maxDeliveries": dice.pick([2, 6]),
        "poison": dice.pick(["drop", "dead_letter", "block"]),
    }
    sides = [Side(options, takes_runs=takes_runs) for takes_runs in (True, False)]
    for _ in range(READS):
        fresh, pause_ms = dice.below(12), dice.pick([0, 0, 5, 150])
        keys = [dice.pick(["a", "b", None]) for _ in range(fresh)]
        for side in sides:
            for key in keys:
                publish(side.writer, key=key)
            side.shell.advance(pause_ms)
        number = dice.pick([0, 0, 0, 1])
        texts = written(dice, sides[0], number)
        for side in sides:
            side.read(number, texts)
        one, other = sides
        assert one.state() == other.state()
        assert one.shell.engine.entries == other.shell.engine.entries
        for mine, theirs in zip(one.shell.peers, other.shell.peers, strict=True):
            assert mine.take() == theirs.take()
    return sides[0].acks, sides[0].runs


@pytest.mark.parametrize("group", range(GROUPS))
def test_runs_of_acknowledgements_do_what_they_do_one_by_one(group: int) -> None:
    acks = runs = 0
    for seed in range(group, SEEDS, GROUPS):
        try:
            found = play(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        acks, runs = acks + found[0], runs + found[1]

    assert runs > 100
    assert acks > 1.5 * runs


def test_a_run_that_would_be_refused_is_left_to_python() -> None:
    side = Side({"mode": "exclusive"}, takes_runs=True)
    session: Session = side.consumers[0].session
    reader = native.Reader(2**20, 2**15)
    for payload in (
        {"subscriptionId": "sub-none", "seq": 1},
        {"topic": TOPIC, "seq": 1},
        {"topic": TOPIC, "subscription": NAME, "epoch": "9.9", "seq": 1},
    ):
        text = envelope("hub:ack", payload, pattern="tell")
        (run,) = reader.read(masked_frame(TEXT, text), 100, 1)[0]

        assert side.shell.hub.received_run(session, run, side.shell.now) is None
        assert run.messages() == [text]


def test_nothing_is_settled_in_runs_while_a_part_of_the_log_is_missing() -> None:
    side = Side({"mode": "exclusive"}, takes_runs=True)
    publish(side.writer)
    text = envelope("hub:ack", {"topic": TOPIC, "subscription": NAME, "seq": 1}, pattern="tell")
    side.shell.hub.storage.hide(refusals.storage_full())

    side.read(0, [text])

    assert side.runs == 0
    assert side.consumers[0].take()[-1]["type"] == "hub:error"
    assert subscription_of(side.shell).position.floor == 0
