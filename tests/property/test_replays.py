"""Replays that are interrupted anywhere: by the log, by crashes, by their operator.

* Every message of a replay is appended exactly once, in the order of the originals.
* That holds whatever of a job is sent again, and when the log was cut and the snapshot lost.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from signalhub.core import refusals
from signalhub.wire.entry import Kind, MessageBody, decode_body
from tests.support.memory.engine import Shelf
from tests.support.memory.shell import MemoryShell, Peer
from tests.support.memory.topics import TOPIC, commit_all, create
from tests.support.volume import SEEDS, volume

GROUPS = 4
LIVES = volume(SEEDS, 600)
STEPS = 40
UNTIL = {"epoch": 3, "offset": 1_000}

OPS = {
    "send": 30,
    "send_again": 10,
    "hold": 5,
    "release": 5,
    "commit_some": 10,
    "refuse": 3,
    "snapshot": 4,
    "crash": 5,
    "lose_snapshot": 2,
    "cut": 4,
}


class Life:
    """Some replays into one topic."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.shell = MemoryShell()
        self.peer = self._connect()
        create(self.peer)
        self.jobs = {f"job-{n}": self._originals() for n in range(dice.randint(1, 3))}
        # How far the operator believes each job to be.
        self.sent = dict.fromkeys(self.jobs, 0)
        self.copies: list[tuple[str, tuple[int, int, int]]] = []
        self.harvested = 0

    def _originals(self) -> list[tuple[int, int, int]]:
        places = [(0, epoch, offset) for epoch in (1, 3) for offset in range(20)]
        return sorted(self.dice.sample(places, self.dice.randint(1, len(places))))

    def _connect(self) -> Peer:
        return self.shell.connect("@(a/operator)")

    def step(self) -> None:
        (op,) = self.dice.choices(list(OPS), list(OPS.values()))
        getattr(self, op)()
        self.harvest()

    def send(self) -> None:
        job = self.dice.choice(list(self.jobs))
        self._send(job, self.sent[job])

    def send_again(self) -> None:
        job = self.dice.choice(list(self.jobs))
        self._send(job, self.dice.randint(0, self.sent[job]))

    def _send(self, job: str, start: int) -> None:
        end = start + self.dice.randint(0, 8)
        messages = [
            {"shard": shard, "epoch": epoch, "offset": offset, "id": "m", "type": "n", "data": 1}
            for shard, epoch, offset in self.jobs[job][start:end]
        ]
        payload = {"job": job, "until": UNTIL, "to": {"topic": TOPIC}, "messages": messages}
        for reply in self.peer.request("hub:republish", payload):
            assert reply["type"] == "hub:republished", reply
            assert reply["payload"]["appended"] + reply["payload"]["skipped"] == len(messages)
        # An impatient operator continues without an answer; a refusal sends it back.
        self.sent[job] = max(self.sent[job], min(end, len(self.jobs[job])))

    def hold(self) -> None:
        self.shell.engine.is_prompt = False

    def release(self) -> None:
        self.shell.engine.is_prompt = True
        commit_all(self.shell)

    def commit_some(self) -> None:
        self.shell.engine.commit(self.dice.randint(1, 5))
        self.shell.settle()

    def refuse(self) -> None:
        if self.shell.engine.pending:
            self.shell.engine.refuse(refusals.storage_full())
            self._start_over()

    def snapshot(self) -> None:
        self.shell.save_snapshot()

    def crash(self) -> None:
        self._restart(self.shell.shelf)

    def lose_snapshot(self) -> None:
        self._restart(Shelf())

    def _restart(self, shelf: Shelf) -> None:
        written = self.dice.randint(0, self.shell.engine.pending)
        self.shell = MemoryShell(engine=self.shell.engine.crashed(written), shelf=shelf)
        self.shell.engine.is_prompt = True
        self.peer = self._connect()
        self._start_over()

    def cut(self) -> None:
        """Retention deletes what is written down again behind it."""
        self.release()
        self.harvest()
        end = self.dice.randint(self.shell.engine.first, self.shell.engine.head)
        self.shell.perform(self.shell.hub.anchors.anchor(end, self.shell.now))
        commit_all(self.shell)
        self.harvest()
        # The snapshot must not be older than the log.
        self.shell.save_snapshot()
        self.shell.engine.cut(min(end, self.shell.hub.anchors.anchored()))

    def _start_over(self) -> None:
        """What was on its way may be gone: ask from somewhere before it, or from the beginning."""
        for job in self.sent:
            self.sent[job] = 0

    def harvest(self) -> None:
        """What has been appended since the last look."""
        for entry in self.shell.engine.scan(self.harvested):
            if entry.kind == Kind.PUBLISHED:
                replay = decode_body(MessageBody, entry.body).replay
                assert replay is not None
                self.copies.append((replay.job, (replay.shard, replay.epoch, replay.offset)))
        self.harvested = self.shell.engine.head

    def finish(self) -> None:
        self.release()
        for job, originals in self.jobs.items():
            self.sent[job] = 0
            while self.sent[job] < len(originals):
                self._send(job, self.sent[job])
        self.harvest()

    def check(self) -> None:
        for job, originals in self.jobs.items():
            assert [place for name, place in self.copies if name == job] == originals


def lives(group: int) -> Iterator[int]:
    yield from range(group, LIVES, GROUPS)


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_message_of_every_replay_is_appended_once_and_in_order(group: int) -> None:
    for seed in lives(group):
        life = Life(random.Random(seed))
        try:
            for _ in range(STEPS):
                life.step()
            life.finish()
            life.check()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
