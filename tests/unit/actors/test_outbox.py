"""What the outbox remembers of its table is what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from random import Random

import pytest

from signalhub.actors.kernel.outbox import NOWHERE, Outbox, Row
from signalhub.actors.store.store import HostStore
from tests.support.actors.scripted import Caller, stored

ACTORS = ("a/1", "a/2")
DESTS = ("b/1", "b/2")
HOSTS = ("@(actors/x)", "@(actors/y)", NOWHERE)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HostStore]:
    opened = HostStore(tmp_path / "actors.db", durability="process")
    yield opened
    opened.close()


@pytest.mark.parametrize("seed", range(20))
def test_the_lane_of_a_message_is_that_of_the_newest_row(store: HostStore, seed: int) -> None:
    outbox, chance, numbers = Outbox(store), Random(seed), count()
    outbox.load()
    rows: list[Row] = []

    def add() -> None:
        row = Row(
            chance.choice(ACTORS), chance.choice(DESTS), f"{next(numbers):04}", "request", "", b""
        )
        is_ordered = chance.random() < 0.7
        # As the kernel does: after what waits already.
        lane = outbox.lane_of(row.actor, row.dest, is_ordered=is_ordered)
        outbox.add(row, lane or (chance.choice(HOSTS), is_ordered))
        rows.append(row)

    def undo() -> None:
        before = [*rows]
        store.begin()
        add()
        if chance.random() < 0.5:
            row = chance.choice(rows)
            outbox.withdraw(row.actor, row.dest, row.msg_id)
        store.undo()
        outbox.forget_known()
        rows[:] = before

    def remove() -> None:
        if rows:
            found = chance.sample(rows, chance.randrange(1, len(rows) + 1))
            outbox.remove(found)
            rows[:] = [row for row in rows if row not in found]

    def withdraw() -> None:
        if rows:
            row = rows.pop(chance.randrange(len(rows)))
            outbox.withdraw(row.actor, row.dest, row.msg_id)

    def rehost() -> None:
        outbox.rehost(chance.choice(HOSTS), {dest: chance.choice(HOSTS) for dest in DESTS})

    def thaw() -> None:
        outbox.thaw(ACTORS[0])

    steps = [add, add, add, undo, remove, withdraw, rehost]
    steps += [lambda: outbox.freeze(ACTORS[0]), thaw]
    for _ in range(150):
        with store.transaction():
            chance.choice(steps)()
        for actor, dest, is_ordered in product(ACTORS, DESTS, (True, False)):
            assert outbox.lane_of(actor, dest, is_ordered=is_ordered) == lane_in_table(
                store, actor, dest, is_ordered
            )


def test_a_call_of_a_handler_that_raises_leaves_no_lane(tmp_path: Path) -> None:
    def call_and_raise(self: Caller) -> None:
        self.call("far/1", "note", 1)
        raise ValueError("no")

    local = stored(tmp_path, Caller, foreign=["far"])
    local.do("caller/1", lambda self: None)
    with pytest.raises(ValueError, match="no"):
        local.do("caller/1", call_and_raise)

    assert local.count("outbox") == 0
    assert local.kernel.outbox.lane_of("caller/1", "far/1", is_ordered=True) is None


def lane_in_table(
    store: HostStore, actor: str, dest: str, is_ordered: bool
) -> tuple[str, bool] | None:
    host: str | None = store.execute(
        "SELECT host FROM outbox WHERE actor = ? AND dest = ? AND is_ordered = ?"
        " ORDER BY msg_id DESC LIMIT 1",
        (actor, dest, is_ordered),
    ).get
    return None if host is None else (host, is_ordered)


def test_what_waits_is_known_without_asking_the_table(store: HostStore) -> None:
    outbox = Outbox(store)
    outbox.load()
    pair = ("a/1", "b/1")
    lane = ("@(actors/b)", True)
    assert outbox.lane_of(*pair, is_ordered=True) is None
    statements: list[str] = []
    with store.transaction():
        store.connection.set_profile(lambda statement, _: statements.append(statement))
        for number in range(100):
            row = Row(*pair, f"{number:04}", "request", "", b"")
            outbox.add(row, lane)
            assert outbox.lane_of(*pair, is_ordered=True) == lane
            outbox.remove([row])
            assert outbox.lane_of(*pair, is_ordered=True) is None
        store.connection.set_profile(None)

    assert not [one for one in statements if one.startswith("SELECT")]
