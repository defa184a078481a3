"""What is forgotten in time, however much there is: tombstones and keys. And what is not done."""

from __future__ import annotations

from pathlib import Path

import pytest

from signalhub.actors import Actor, remote, wire
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.api.operation import op
from signalhub.actors.kernel.events import (
    ActorPlace,
    BatchRefused,
    DeliveryArrived,
    Offload,
    PlacesFound,
    SendBatch,
)
from signalhub.actors.kernel.kernel import Kernel
from signalhub.actors.kernel.outbox import FROZEN, Outbox, Row
from signalhub.actors.move.places import PlaceStatus
from signalhub.actors.store.store import HostStore
from signalhub.actors.store.views import SEARCHED_MAX, call
from signalhub.testing.local_actors import LocalActors, request_body

HOST = "@(actors/a)"
START_MS = 1_760_000_000_000
CONFIG = DurableConfig(
    durability="process",
    tombstone_ttl_ms=60_000,
    max_request_age_ms=30_000,
    idempotency_ttl_ms=60_000,
)
started: list[str] = []


async def work() -> None:
    started.append("work")


class Busy(Actor):
    @remote
    def work(self) -> str:
        return "x" * 100

    @remote
    def offload_work(self) -> None:
        self.offload(work)


@pytest.fixture
def kernel() -> Kernel:
    made = Kernel(HostStore(":memory:"), [Busy], host=HOST, config=CONFIG)
    made.start(START_MS)
    return made


def count(kernel: Kernel, table: str) -> int:
    found: int = kernel.store.execute(f"SELECT count(*) FROM {table}").get
    return found


def arrived(target: str, at_ms: int, number: int = 1) -> DeliveryArrived:
    data = request_body(f"c{number}", target, op("work"))
    return DeliveryArrived(wire.CALL, data, "@(test/caller)", at_ms, number)


@pytest.mark.parametrize("table", ["done", "keys"])
def test_much_that_has_had_its_time_is_forgotten_in_a_few_turns(kernel: Kernel, table: str) -> None:
    statement = {
        "done": "INSERT INTO done (actor, call_id, accepted_ms) VALUES ('busy/1', ?, ?)",
        "keys": "INSERT INTO keys VALUES ('busy/1', ?, 'c', ?)",
    }[table]
    rows = [(f"c{number}", START_MS - 100_000) for number in range(25_000)]
    kernel.store.executemany(statement, [*rows, ("new", START_MS + 100_000)])

    kernel.turn([arrived("busy/2", START_MS)], START_MS)
    for _ in range(52):
        kernel.turn([], START_MS)

    left = kernel.store.execute(f"SELECT count(*) FROM {table} WHERE actor = 'busy/1'").get
    assert left == 1


def test_no_turn_forgets_more_than_a_part(kernel: Kernel) -> None:
    rows = [(f"c{number}", START_MS - 100_000) for number in range(25_000)]
    kernel.store.executemany("INSERT INTO keys VALUES ('busy/1', ?, 'c', ?)", rows)

    for _ in range(50):
        kernel.turn([], START_MS)

    assert count(kernel, "keys") == 15_000


def test_keys_are_found_by_their_time(kernel: Kernel) -> None:
    plan = kernel.store.execute(
        "EXPLAIN QUERY PLAN SELECT actor, idem_key FROM keys WHERE until_ms < 5"
    ).fetchall()

    assert "keys_until" in str(plan)


def test_work_of_an_actor_that_is_not_here_is_not_started(tmp_path: Path) -> None:
    local = LocalActors(Busy, path=tmp_path / "host.db", config=CONFIG)
    local.begin("busy/1", "offload_work")
    local.turn()
    kernel = local.kernel
    effects = kernel.turn([PlacesFound([ActorPlace("busy/1", kernel.places.host, 1)])], START_MS)
    assert [one for one in effects if isinstance(one, Offload)]

    def starts(status: PlaceStatus) -> bool:
        kernel.places.put("busy/1", 1, status)
        local.restart()
        effects = local.kernel.turn([], START_MS)
        return any(isinstance(one, Offload) for one in effects)

    assert starts(PlaceStatus.HERE)
    kernel = local.kernel
    assert not starts(PlaceStatus.GONE)


def test_a_result_that_is_too_large_is_replaced_under_the_id_its_caller_knows(
    kernel: Kernel,
) -> None:
    kernel.turn([arrived("busy/1", START_MS)], START_MS)
    effects = kernel.turn([PlacesFound([ActorPlace("busy/1", HOST, 1)])], START_MS)
    (sent,) = [one for one in effects if isinstance(one, SendBatch)]

    effects = kernel.turn([BatchRefused(sent.batch, "too large", is_too_large=True)], START_MS)

    (sent,) = [one for one in effects if isinstance(one, SendBatch)]
    ((message, _),) = wire.split(sent.data)
    assert message.call == "c1"
    assert b"TooLarge" in bytes(message.body)


def test_what_an_actor_has_to_send_is_frozen_row_by_row() -> None:
    store = HostStore(":memory:")
    outbox = Outbox(store)
    for number in range(3):
        outbox.add(Row("busy/1", f"busy/x{number}", "m1", "request", "m1", b"{}"), ("", True))
    statements: list[str] = []
    store.connection.set_profile(lambda statement, _: statements.append(statement))

    outbox.freeze("busy/1")

    store.connection.set_profile(None)
    assert store.execute("SELECT count(*) FROM outbox WHERE host = ?", (FROZEN,)).get == 3
    (update,) = {one for one in statements if one.startswith("UPDATE")}
    plan = store.execute(f"EXPLAIN QUERY PLAN {update}", ("!", 0, "a", "b", "c")).fetchall()
    assert "actor=? AND dest=? AND msg_id=?" in str(plan)


def test_a_request_that_has_run_is_looked_for_among_the_newest() -> None:
    store = HostStore(":memory:")
    insert = "INSERT INTO done VALUES (?, 'busy/1', ?, 5)"
    store.execute(insert, (1, "old"))
    store.execute(insert, (SEARCHED_MAX, "newer"))
    store.execute(insert, (SEARCHED_MAX + 1, "newest"))

    found = {"callee": {"actor": "busy/1", "state": "executed", "acceptedMs": 5}}
    assert call(store, "newest") == call(store, "newer") == found
    assert call(store, "old") is None

    # Whose it is is known here.
    store.execute(
        "INSERT INTO pending VALUES ('busy/2', 'old', 'busy/1', 'm', NULL, NULL, 0, x'', 1, NULL)"
    )
    known = call(store, "old")
    assert known is not None
    assert known["callee"] == found["callee"]
