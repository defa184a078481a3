"""What is forgotten in time, however much there is, and what is found without a search."""

from __future__ import annotations

from pathlib import Path

import pytest

from signalhub.actors import wire
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
from signalhub.testing.local_actors import request_body
from tests.support.actors.offload import Fetcher, Unhurried
from tests.support.actors.scripted import QUICK, Target

HOST = "@(actors/a)"
START_MS = 1_760_000_000_000
CONFIG = DurableConfig(
    durability="process",
    tombstone_ttl_ms=60_000,
    max_request_age_ms=30_000,
    idempotency_ttl_ms=60_000,
)
INSERTS = {
    "done": "INSERT INTO done (actor, call_id, accepted_ms) VALUES ('target/1', ?, ?)",
    "keys": "INSERT INTO keys VALUES ('target/1', ?, 'c', ?)",
}


@pytest.fixture
def kernel() -> Kernel:
    made = Kernel(HostStore(":memory:"), [Target], host=HOST, config=CONFIG)
    made.start(START_MS)
    return made


def arrived() -> DeliveryArrived:
    data = request_body("c1", "target/2", op("note", "x" * 100))
    return DeliveryArrived(wire.CALL, data, "@(test/caller)", START_MS, 1)


@pytest.mark.parametrize("table", INSERTS)
def test_much_that_has_had_its_time_is_forgotten_in_parts(kernel: Kernel, table: str) -> None:
    def left() -> int:
        query = f"SELECT count(*) FROM {table} WHERE actor = 'target/1'"
        found: int = kernel.store.execute(query).get
        return found

    rows = [(f"c{number}", START_MS - 100_000) for number in range(25_000)]
    kernel.store.executemany(INSERTS[table], [*rows, ("new", START_MS + 100_000)])
    kernel.turn([arrived()], START_MS)
    for turns, expected in ((49, 15_001), (3, 1)):
        for _ in range(turns):
            kernel.turn([], START_MS)
        assert left() == expected
    plan = "EXPLAIN QUERY PLAN SELECT actor, idem_key FROM keys WHERE until_ms < 5"
    assert "keys_until" in str(kernel.store.execute(plan).fetchall())


def test_work_of_an_actor_that_is_not_here_is_not_started(tmp_path: Path) -> None:
    local = Unhurried(Fetcher, path=tmp_path / "a.db", config=QUICK)
    local.call("fetcher/1", "fetch")
    for status, is_started in ((PlaceStatus.HERE, True), (PlaceStatus.GONE, False)):
        local.kernel.places.put("fetcher/1", 1, status)
        local.restart()
        effects = local.kernel.turn([], START_MS)
        assert any(isinstance(one, Offload) for one in effects) == is_started


def test_a_result_that_is_too_large_is_replaced_under_the_id_its_caller_knows(
    kernel: Kernel,
) -> None:
    kernel.turn([arrived()], START_MS)
    effects = kernel.turn([PlacesFound([ActorPlace("target/2", HOST, 1)])], START_MS)
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
    for number, call_id in ((1, "old"), (SEARCHED_MAX, "newer"), (SEARCHED_MAX + 1, "newest")):
        store.execute("INSERT INTO done VALUES (?, 'busy/1', ?, 5)", (number, call_id))

    found = {"callee": {"actor": "busy/1", "state": "executed", "acceptedMs": 5}}
    assert call(store, "newest") == call(store, "newer") == found
    assert call(store, "old") is None
    # If its caller lives here, its actor is known.
    store.execute(
        "INSERT INTO pending VALUES ('busy/2', 'old', 'busy/1', 'm', NULL, NULL, 0, x'', 1, NULL)"
    )
    known = call(store, "old")
    assert known is not None
    assert known["callee"] == found["callee"]
