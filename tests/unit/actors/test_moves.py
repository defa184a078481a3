"""Moves of actors: their steps, parcels that do not fit, hubs that forget, contested places."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from signalhub.actors import Retry, wire
from signalhub.actors.api.operation import op
from signalhub.actors.api.state import State
from signalhub.actors.kernel.events import (
    ActorPlace,
    BatchRefused,
    CommandAnswer,
    Connected,
    DeliveryArrived,
    Effect,
    GiveAway,
    LocateActors,
    Moved,
    PlacesFound,
)
from signalhub.actors.move import moves
from signalhub.actors.move.leave import LOOK_MS, PART_BYTES
from signalhub.actors.move.moves import FIRST_STEPS, TRANSITIONS, Direction, MoveRow, Moves, Step
from signalhub.actors.move.parcel import ActorTable, Parcel, pack, unpack
from signalhub.actors.move.places import PlaceStatus
from signalhub.actors.store import views
from signalhub.actors.store.host_time import HostTime
from signalhub.actors.store.store import HostStore
from signalhub.ids import ulid
from signalhub.testing.local_actors import CALLER, HOST, request_body
from tests.support.actors.journey import (
    ACTOR,
    NEW,
    OLD,
    Journey,
    arrive,
    asked_about,
    delivered,
    located,
    move,
    sent,
    take_in,
    turn,
)
from tests.support.actors.scripted import Caller, Stage, Target, calling, number_of, stored


def status(actors: Stage, actor: str = ACTOR) -> PlaceStatus | None:
    own = actors.kernel.places.own(actor)
    return None if own is None else own.status


def refuse_move(actors: Stage, actor: str = ACTOR) -> list[Effect]:
    return turn(actors, Moved(actor, None, "refused", is_final=True))


@pytest.mark.parametrize("event", get_args(moves.Event))
@pytest.mark.parametrize(("direction", "step"), TRANSITIONS)
def test_a_move_takes_only_the_steps_of_its_table(
    direction: Direction, step: Step, event: moves.Event
) -> None:
    def in_store() -> list[MoveRow]:
        read = Moves(store)
        read.load()
        return read.all()

    store = HostStore(":memory:")
    known = Moves(store)
    row = MoveRow(ACTOR, direction, "@(h/b)", step, 1, "m-1")
    known.put(row)
    known.put_part(ACTOR, "m-1", 0, b"rows")
    before = msgspec.structs.replace(row)
    if event not in TRANSITIONS[direction, step]:
        with pytest.raises(AssertionError, match=event):
            known.advance(row, event)
        assert (row, in_store()) == (before, [before])
        return

    known.advance(row, event)
    after = TRANSITIONS[direction, step][event]
    assert in_store() == known.all()
    assert [each.step for each in known.all()] == ([] if after is None else [after])
    assert known.count(ACTOR, "m-1") == (0 if after is None else 1)


@pytest.mark.parametrize("direction", get_args(Direction))
def test_every_step_is_reached_and_left(direction: Direction) -> None:
    reached = {FIRST_STEPS[direction]}
    ends = 0
    for (side, step), events in TRANSITIONS.items():
        if side == direction:
            assert step in reached
            reached |= {after for after in events.values() if after is not None}
            ends += None in events.values()

    assert reached == {step for side, step in TRANSITIONS if side == direction}
    assert ends


def test_a_parcel_is_cut_until_its_parts_fit() -> None:
    journey, new = Journey(), Stage(Target)
    journey.bytes_max = 20_000
    journey.run()

    assert max(len(b64decode(part["body"])) for part in journey.parts) < 20_000
    arrive(new, journey.parts)
    assert new.notes(ACTOR) == journey.old.notes(ACTOR)


def look(journey: Journey, answer: Moved) -> list[Effect]:
    """The old host looks after its move, and the hub answers."""
    journey.old.clock.advance(LOOK_MS / 1000)
    effects = turn(journey.old)
    assert [one for one in effects if isinstance(one, GiveAway)] == [GiveAway(ACTOR, 1, NEW)]
    return turn(journey.old, answer)


FORGOTTEN = Moved(ACTOR, None, "stale", is_final=True, is_forgotten=True)


def test_a_move_whose_place_is_forgotten_ends_and_leaves_a_dead_letter() -> None:
    journey = Journey(chars=10).run()
    for _ in range(2):
        look(journey, Moved(ACTOR, 2))
        assert status(journey.old) is PlaceStatus.LEAVING
    look(journey, FORGOTTEN)

    assert status(journey.old) is PlaceStatus.GONE
    assert journey.old.kernel.moves.all() == []
    assert "forgotten" in journey.old.kernel.moves.failures[ACTOR]
    (letter,) = views.dead(journey.old.kernel.store, address=ACTOR)
    assert (letter["origin"], letter["error"]) == (
        "stranded",
        f"its place was forgotten during its move to {NEW}",
    )
    assert journey.old.notes(ACTOR) == []
    assert journey.old.kernel.next_due_ms() is None
    # An arrival that is confirmed after all changes nothing.
    arrival = {"v": 1, "move": journey.parts[0]["move"], "actor": ACTOR, "token": 2}
    delivered(journey.old, wire.MOVE, msgspec.json.encode(arrival), NEW)
    assert len(views.dead(journey.old.kernel.store, address=ACTOR)) == 1


def test_a_request_that_ran_before_a_forgotten_move_does_not_run_again() -> None:
    journey = Journey(chars=10).run()
    old = journey.old
    look(journey, FORGOTTEN)
    for call in ("call-1", "call-2"):
        delivered(old, wire.CALL, request_body(call, ACTOR, op("note", call)), CALLER)
    turn(old, PlacesFound([ActorPlace(ACTOR, HOST, 3, is_fresh=True)]))

    assert status(old) is PlaceStatus.HERE
    assert old.notes(ACTOR) == ["call-2"]


@pytest.mark.parametrize("is_final", [False, True])
def test_a_move_goes_on_while_the_hub_does_not_say_that_its_place_is_forgotten(
    is_final: bool,
) -> None:
    """It may have lost its data, or the actor has moved on and the confirmation is on its way."""
    journey = Journey(chars=10).run()
    look(journey, Moved(ACTOR, None, "stale", is_final=is_final))

    assert status(journey.old) is PlaceStatus.LEAVING
    journey.begin_again()
    assert journey.run().parts
    look(journey, Moved(ACTOR, 2))


@pytest.mark.parametrize("has_mail", [False, True])
def test_the_new_host_gives_up_an_actor_whose_place_is_forgotten(has_mail: bool) -> None:
    new = Stage(Target)
    take_in(new, Journey(chars=10).run().parts)
    if has_mail:
        call = request_body("c-1", ACTOR, op("note", 7))
        delivered(new, wire.CALL, call, CALLER)
    effects = turn(new, PlacesFound([], {ACTOR: "forgotten"}, [ACTOR]))

    assert (new.count("parts"), new.kernel.moves.all()) == (0, [])
    assert "forgotten" in new.kernel.moves.failures[ACTOR]
    # Nobody asks for another place unless somebody has called.
    assert asked_about(effects) == ([ACTOR] if has_mail else [])
    assert status(new) is (PlaceStatus.UNPLACED if has_mail else PlaceStatus.GONE)
    turn(new, PlacesFound([ActorPlace(ACTOR, HOST, 3, is_fresh=True)]))
    new.run()
    assert new.notes(ACTOR) == ([7] if has_mail else [])


def test_parts_of_two_sizes_are_not_taken_for_one_set() -> None:
    journey, new = Journey().run(), Stage(Target)
    large = journey.parts
    journey.bytes_max = 20_000
    journey.begin_again()
    small = journey.run().parts

    # The first of the large ones comes once more when half of the others are there.
    half = len(small) // 2
    arrive(new, [large[0], *small[:half], large[0], large[1]])
    assert new.notes(ACTOR) == []
    arrive(new, small[half:])
    assert new.notes(ACTOR) == journey.old.notes(ACTOR)


def test_an_actor_that_fits_in_no_message_waits_with_a_pause() -> None:
    journey = Journey(chars=10)
    journey.bytes_max = 10
    journey.run()

    assert not journey.parts
    due_ms = journey.old.kernel.next_due_ms()
    assert due_ms is not None
    assert due_ms > journey.old.clock.now_ms()


def test_the_new_host_is_believed_whatever_the_parts_were_called() -> None:
    """All of them arrive; then the hub is set to take less, and the rest of the move overlaps."""
    journey, new = Journey().run(), Stage(Target)
    (arrival,) = sent(arrive(new, journey.parts), wire.MOVE)
    journey.bytes_max = 20_000
    journey.begin_again()
    journey.run()
    take_in(new, journey.parts)
    delivered(journey.old, wire.MOVE, arrival.data, NEW)

    assert status(journey.old) is PlaceStatus.GONE
    assert journey.old.notes(ACTOR) == []
    assert len(new.notes(ACTOR)) == 1


@pytest.mark.parametrize("changes", [{"token": 3}, {"actor": "target/2"}, {"sender": OLD}])
def test_nobody_else_makes_the_old_host_forget_an_actor(changes: dict[str, Any]) -> None:
    journey = Journey().run()
    sender = changes.pop("sender", NEW)
    arrival = {"v": 1, "move": journey.parts[0]["move"], "actor": ACTOR, "token": 2} | changes
    delivered(journey.old, wire.MOVE, msgspec.json.encode(arrival), sender)

    assert status(journey.old) is PlaceStatus.LEAVING
    assert len(journey.old.notes(ACTOR)) == 1


def test_a_copy_of_a_part_is_answered_once_its_move_has_ended_and_never_before() -> None:
    journey, new, another = Journey().run(), Stage(Target), Stage(Target)
    arrive(new, journey.parts)
    for host in (new, another):
        host.kernel.places.put(ACTOR, 3, PlaceStatus.GONE)

    (answer,) = sent(take_in(new, journey.parts[:1]), wire.MOVE)
    delivered(journey.old, wire.MOVE, answer.data, NEW)
    assert status(journey.old) is PlaceStatus.GONE
    assert not sent(take_in(another, journey.parts), wire.MOVE)


def changed(parts: list[dict[str, Any]], change: Callable[[Any], object]) -> dict[str, Any]:
    """The parcel as a single part, with a change."""
    parcel = unpack(b"".join(b64decode(part["body"]) for part in parts))
    change(parcel)
    return parts[0] | {"count": 1, "body": b64encode(pack(parcel)).decode()}


SPOILED: dict[str, Callable[[Any], object]] = {
    "another version": lambda parcel: setattr(parcel, "version", 99),
    "unreadable": lambda parcel: setattr(parcel, "last_id", 7),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_parcel_that_cannot_be_taken_over_is_kept_and_ends_no_host(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = stored(tmp_path, Target)
    take_in(new, [changed(Journey(chars=10).run().parts, SPOILED[how])])

    for _ in range(2):
        located(new, ACTOR, HOST, 2)
        assert status(new) is PlaceStatus.ARRIVING
        assert new.kernel.moves.failures[ACTOR] in caplog.text
        new.call("target/3", "note")
        new.restart()
    assert new.count("parts") == 1


@pytest.mark.parametrize("body", [b"\x81\xa5actor\xa2\xff\xff", b"\x81\xa5inbox" + b"\x91" * 3_000])
def test_bytes_that_are_no_parcel_end_no_host(body: bytes) -> None:
    new = Stage(Target)
    part = {
        "v": 1,
        "move": ulid(1_760_000_000_000, 1),
        "actor": ACTOR,
        "token": 2,
        "count": 1,
    }

    arrive(new, [part | {"body": b64encode(body).decode()}])

    assert status(new) is PlaceStatus.ARRIVING
    assert "cannot be read" in new.kernel.moves.failures[ACTOR]


def with_table(*statements: str, name: str = "state:target/1:t") -> Callable[[Any], object]:
    return lambda parcel: parcel.tables.append(ActorTable([*statements], name, ["a"], [[1]]))


OWN = 'CREATE TABLE "state:target/1:t" (a)'
RESULT = b'{"kind":"result","call":"c","to":"target/3","body":null}'
HOSTILE: dict[str, Callable[[Any], object]] = {
    "a column more": lambda parcel: parcel.plain["state"][0].append(1),
    "a broken row": lambda parcel: parcel.inbox.append(["too short"]),
    "a text for a number": lambda parcel: parcel.inbox.append(
        ["target/1", "1", "request", "c", "x", b"", "once", 0]
    ),
    "a text for bytes": lambda parcel: parcel.plain["state"].append(["target/1", "k", "1"]),
    "a text in base64": lambda parcel: parcel.plain["state"].append(["target/1", "k", "cron"]),
    "a number that is too large": lambda parcel: parcel.done.append(["target/1", "c", 2**63]),
    "an id that is none": lambda parcel: parcel.outbox.append(
        ["target/1", "target/3", "0", "result", "c", "", 0, RESULT, 0, None]
    ),
    "more attempts than can be counted": lambda parcel: parcel.inbox.append(
        ["target/1", "1", "result", "c", "x", RESULT.replace(b"/3", b"/1"), 2**62, 0]
    ),
    "a message nobody can read": lambda parcel: parcel.inbox.append(
        ["target/1", "1", "request", "c", "x", b'{"kind"', 0, 0]
    ),
    "a message to somebody else": lambda parcel: parcel.outbox.append(
        ["target/1", "target/4", "0", "result", "c", "", 0, RESULT, 0, None]
    ),
    "somebody else": lambda parcel: setattr(parcel, "actor", "target/2"),
    "another actor's state": lambda parcel: parcel.plain["state"].append(["target/3", "k", b"1"]),
    "another actor's inbox": lambda parcel: parcel.inbox.append(
        ["target/3", "1", "request", "c", "x", b"", 0, 0]
    ),
    "another actor's outbox": lambda parcel: parcel.outbox.append(
        ["target/3", "target/4", "0", "request", "c", "", 0, b"", 0, None]
    ),
    "another actor's memory": lambda parcel: parcel.done.append(["target/3", "c", 1]),
    "a table of the host": lambda parcel: parcel.plain.update(meta=[["target/1", "host"]]),
    "ids far ahead": lambda parcel: setattr(parcel, "last_id", "7" + "Z" * 25),
    "attach": with_table("ATTACH DATABASE '/tmp/stolen.db' AS stolen"),
    "attach afterwards": with_table(f"{OWN}; ATTACH DATABASE ':memory:' AS stolen"),
    "a copy of all state": with_table('CREATE TABLE "state:target/1:t" AS SELECT * FROM state'),
    "an endless query": with_table(
        'CREATE TABLE "state:target/1:t" AS WITH RECURSIVE n(a) AS'
        " (SELECT 1 UNION ALL SELECT a + 1 FROM n) SELECT a FROM n"
    ),
    "a trigger": with_table(
        OWN, 'CREATE TRIGGER "state:target/1:r" AFTER INSERT ON state BEGIN SELECT 1; END'
    ),
    "a trigger afterwards": with_table(
        f'{OWN}; CREATE TRIGGER "state:target/1:r" AFTER INSERT ON "state:target/1:t"'
        " BEGIN DELETE FROM state; END"
    ),
    "a view": with_table(OWN, 'CREATE VIEW "state:target/1:v" AS SELECT * FROM state'),
    "a pragma": with_table(OWN, "PRAGMA writable_schema = ON"),
    "a pragma afterwards": with_table(f"{OWN}; PRAGMA journal_mode = DELETE"),
    "a statement": with_table(OWN, "DELETE FROM state"),
    "a statement afterwards": with_table(f"{OWN}; UPDATE state SET value = x'31'"),
    "the end of the transaction": with_table(f"{OWN}; COMMIT"),
    "another actor's table": with_table('CREATE TABLE "state:target/3:t" (a)'),
    "rows of another actor's table": with_table(OWN, name="state:target/3:t"),
    "rows of the host's table": with_table(OWN, name="meta"),
    "the schema": with_table(f"{OWN}; DELETE FROM sqlite_schema"),
    "a virtual table": with_table(OWN, 'CREATE VIRTUAL TABLE "state:target/1:v" USING fts5(a)'),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_parcel_reaches_nothing_but_its_own_actor(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = stored(tmp_path, Target)
    new.call("target/3", "note", "mine")
    parts = Journey(chars=10).run().parts
    before = contents_of(new)
    hostile = changed(parts, HOSTILE[how])
    take_in(new, [hostile])
    located(new, ACTOR, HOST, 2)

    assert contents_of(new) == before
    assert "is refused" in caplog.text
    (letter,) = views.dead(new.kernel.store, address=ACTOR)
    assert (letter["origin"], letter["error"][:24]) == ("refused", f"parcel from {OLD}"[:24])
    kept = "SELECT payload FROM dead WHERE origin = 'refused'"
    assert new.kernel.store.execute(kept).get == b64decode(hostile["body"])
    assert new.kernel.store.execute("SELECT count(*) FROM pragma_database_list").get == 1

    # A repeat is not kept a second time; the actor itself can still come, and the letter stays.
    take_in(new, [hostile])
    located(new, ACTOR, HOST, 2)
    assert new.count("dead") == 1
    arrive(new, [part | {"move": "7" + "Z" * 25} for part in parts])
    assert status(new) is PlaceStatus.HERE
    assert [one["origin"] for one in views.dead(new.kernel.store, address=ACTOR)] == ["refused"]
    assert new.notes("target/3") == ["mine"]


def contents_of(actors: Stage) -> list[Any]:
    """What a host has of its actors but the one that moves."""
    execute = actors.kernel.store.execute
    rows = [
        execute(f"SELECT * FROM {table} WHERE actor != ?", (ACTOR,)).fetchall()
        for table in ("state", "inbox", "outbox", "pending", "alarms", "keys", "dead")
    ]
    return [*rows, execute("SELECT type, name, sql FROM sqlite_schema").fetchall()]


def test_parts_without_end_are_refused() -> None:
    new = Stage(Target)
    new.kernel.taking_over.parcel_bytes_max = PART_BYTES
    take_in(new, Journey().run().parts)

    (letter,) = views.dead(new.kernel.store, address=ACTOR)
    assert letter["origin"] == "refused"
    assert f"larger than {PART_BYTES} bytes" in letter["error"]
    assert status(new) is PlaceStatus.ARRIVING


def test_an_actor_may_be_named_like_a_table_of_sqlite() -> None:
    state = State(HostStore(":memory:"), "target/sqlite_schema", 50, 2**20)
    state.sql("CREATE TABLE {items} (a)")
    state.sql("INSERT INTO {items} VALUES (7)")
    last = ulid(1, 1)
    parcel = unpack(
        pack(Parcel.collect(state._store, "target/sqlite_schema", last, HostTime(state._store)))
    )
    parcel.check("target/sqlite_schema", 1)
    store = HostStore(":memory:")
    parcel.insert(store, lambda: "id", HostTime(store))

    assert store.execute('SELECT a FROM "state:target/sqlite_schema:items"').get == 7


def test_what_cannot_be_sent_is_not_moved_at_all() -> None:
    def spoil(self: Target) -> None:
        self.state.sql("CREATE TABLE {words} (word TEXT)")
        self.state.sql("INSERT INTO {words} VALUES (CAST(x'ff' AS TEXT))")

    actors = Stage(Target)
    actors.do(ACTOR, spoil)
    (answer, *_) = move(actors)

    assert isinstance(answer, CommandAnswer)
    assert "cannot be sent" in answer.result["error"]
    assert status(actors) is PlaceStatus.HERE


def test_an_actor_that_stands_still_does_not_hear_that_its_call_was_too_large() -> None:
    actors = Stage(Caller, foreign=["stock"])
    call = op("run", number_of(calling("reserve", target="stock/1", timeout=None)))
    delivered(actors, wire.CALL, request_body("c", "caller/1", call), CALLER)
    located(actors, "caller/1", HOST)
    (first,) = sent(located(actors, "stock/1", OLD), wire.BATCH)
    move(actors, "caller/1")
    turn(actors, BatchRefused(first.batch, "too large", is_too_large=True))
    assert actors.notes() == []

    refuse_move(actors, "caller/1")
    actors.clock.advance(2)
    (again,) = sent(located(actors, "stock/1", OLD), wire.BATCH)
    turn(actors, BatchRefused(again.batch, "too large", is_too_large=True))
    assert actors.notes()[0].startswith("CallUndeliverable")


def test_a_message_that_was_put_off_is_put_off_after_a_move_as_well() -> None:
    def put_off(self: Target) -> None:
        runs.append(self.now_ms)
        raise Retry(after=3600)

    runs: list[int] = []
    actors = Stage(Target)
    actors.start(ACTOR, put_off)
    actors.run()
    move(actors)
    refuse_move(actors)
    actors.advance(3_000)
    assert len(runs) == 1
    actors.advance(700)
    assert len(runs) == 2


def asked_after_a_pause(new: Stage) -> tuple[int, LocateActors]:
    """What a host asks, and after how long, to which the hub has given an old answer."""
    located(new, ACTOR, HOST, 1)
    due_ms = new.kernel.next_due_ms()
    assert due_ms is not None
    pause_ms = due_ms - new.clock.now_ms()
    new.clock.advance(pause_ms / 1000)
    (asked,) = [one for one in turn(new) if isinstance(one, LocateActors)]
    return pause_ms, asked


def test_a_hub_that_has_forgotten_a_move_is_told_of_it_by_the_new_host() -> None:
    new = Stage(Target)
    take_in(new, Journey().run().parts)

    assert asked_after_a_pause(new)[1].claims == {ACTOR: 2}
    located(new, ACTOR, HOST, 2)
    assert status(new) is PlaceStatus.HERE


def test_a_host_that_has_only_some_parts_claims_nothing_and_asks_with_growing_pauses() -> None:
    new = Stage(Target)
    take_in(new, Journey().run().parts[:1])
    pauses, questions = zip(*(asked_after_a_pause(new) for _ in range(3)), strict=True)

    assert pauses == (1_000, 2_000, 4_000)
    assert not any(asked.claims for asked in questions)


def test_after_a_new_connection_every_part_is_sent_again_once_the_one_under_way_is_back() -> None:
    journey = Journey()
    journey.receipts_max = 1
    assert [part["number"] for part in journey.run().parts] == [0, 1]

    journey.begin_again()
    assert not journey.parts
    journey.hear_the_rest()
    assert [part["number"] for part in journey.run().parts] == [0, 1, 2]


def test_what_waits_for_an_actor_that_is_to_come_back_stays_in_the_name_of_its_sender() -> None:
    """In another name it would be overtaken by what the same sender says next."""
    old = Journey().run().old
    send = op("run", number_of(lambda self: self.send(ACTOR, "note", 1) and None))
    delivered(old, wire.CALL, request_body("c", "caller/1", send), CALLER)
    located(old, "caller/1", HOST)

    effects = located(old, ACTOR, HOST, 3)

    waiting = old.kernel.store.execute("SELECT actor FROM outbox WHERE dest = ?", (ACTOR,))
    assert waiting.fetchall() == [("caller/1",)]
    assert asked_about(effects) == [], "it is asked about later"


@pytest.fixture
def living() -> Stage:
    """A host in which the actor has noted something once."""
    actors = Stage(Target, Caller)
    actors.call(ACTOR, "note", "here")
    return actors


def request(actors: Stage) -> DeliveryArrived:
    data = request_body("c", ACTOR, op("note", "came"))
    return DeliveryArrived(wire.CALL, data, CALLER, actors.clock.now_ms(), "c")


def take_part(actors: Stage, token: int) -> None:
    data = b'{"v":1,"move":"m","actor":"target/1","token":%d,"number":0,"count":2}' % token
    delivered(actors, wire.MOVE, data, NEW)


def test_an_actor_that_nobody_serves_delays_nobody_else() -> None:
    actors = Stage(Caller, Target, foreign=("mail", "stock"))
    actors.do("caller/1", calling("note", timeout=None))
    effects = {}
    for kind in ("mail", "stock"):
        call = op("run", number_of(calling("add", target=f"{kind}/1", timeout=None)))
        effects[kind] = delivered(actors, wire.CALL, request_body(kind, "caller/1", call), CALLER)
        turn(actors, PlacesFound([], {"mail/1": "nobody serves it"} if kind == "mail" else {}))

    assert asked_about(effects["stock"]) == ["stock/1"]
    due_ms = actors.kernel.next_due_ms()
    assert due_ms is not None
    assert due_ms > actors.clock.now_ms(), "and nobody is asked without a pause"
    assert "mail/1" in asked_about(turn(actors, Connected())), "but a new connection ends it"


Steps = list[Callable[[Stage], object]]
CONTESTED: dict[str, tuple[PlaceStatus, int, Steps, list[PlaceStatus]]] = {
    "something comes in the turn in which the actor is said to live elsewhere": (
        *(PlaceStatus.HERE, 1),
        [lambda host: turn(host, request(host), PlacesFound([ActorPlace(ACTOR, NEW, 2)]))],
        [PlaceStatus.GONE],
    ),
    "an old answer is asked for again, then believed, and the actor may come back": (
        *(PlaceStatus.HERE, 5),
        [
            lambda host: located(host, ACTOR, NEW, 4),
            lambda host: located(host, ACTOR, NEW, 4),
            lambda host: take_part(host, 5),
        ],
        [PlaceStatus.HERE, PlaceStatus.GONE, PlaceStatus.ARRIVING],
    ),
    "a part of a move does not stop an actor that lives here": (
        *(PlaceStatus.HERE, 1),
        [lambda host: take_part(host, 7)],
        [PlaceStatus.HERE],
    ),
    "a late part is no arrival even after something came": (
        *(PlaceStatus.GONE, 3),
        [lambda host: turn(host, request(host)), lambda host: take_part(host, 2)],
        [PlaceStatus.UNPLACED, PlaceStatus.UNPLACED],
    ),
    "an actor that was on its way here and lives elsewhere is not waited for": (
        *(PlaceStatus.UNPLACED, 0),
        [
            lambda host: located(host, ACTOR, HOST, 2),
            lambda host: located(host, ACTOR, NEW, 3),
        ],
        [PlaceStatus.ARRIVING, PlaceStatus.GONE],
    ),
}


@pytest.mark.parametrize("case", CONTESTED)
def test_what_a_host_makes_of_the_hubs_word_about_places(living: Stage, case: str) -> None:
    before, token, steps, expected = CONTESTED[case]
    living.kernel.places.put(ACTOR, token, before)
    for step, after in zip(steps, expected, strict=True):
        step(living)
        assert status(living) is after
        living.clock.advance(2)
        if "old answer" in case and after is PlaceStatus.HERE:
            assert asked_about(turn(living)) == [ACTOR]

    assert living.notes(ACTOR) == ["here"]
    if expected == [PlaceStatus.HERE]:
        assert living.call(ACTOR, "note", 2) == 2


def test_an_actor_that_has_left_does_not_begin_anew_because_the_hub_forgot(living: Stage) -> None:
    living.kernel.places.put(ACTOR, 2, PlaceStatus.GONE)
    turn(living, request(living))
    located(living, ACTOR, HOST, 1)
    turn(living)

    assert living.notes(ACTOR) == ["here"]
    assert living.kernel.inbox.has(ACTOR, "request", f"{CALLER}#c"), "it is kept"


@pytest.mark.parametrize("before", [None, *PlaceStatus])
def test_an_actor_whose_place_was_forgotten_starts_empty_under_a_later_token(
    living: Stage, before: PlaceStatus | None
) -> None:
    if before is None:
        living.kernel.store.execute("DELETE FROM actors")
        Parcel.delete(living.kernel.store, ACTOR)
        living.kernel.places.load()
    elif before is not PlaceStatus.HERE:
        living.kernel.places.put(ACTOR, 2, before)
    turn(living, request(living))
    fresh = PlacesFound([ActorPlace(ACTOR, HOST, 3, is_fresh=True)])
    turn(living, fresh)
    turn(living, fresh)

    # Where it lives it goes on; a move under way is not cut off.
    if before is PlaceStatus.HERE:
        assert living.notes(ACTOR) == ["here", "came"]
    else:
        assert living.notes(ACTOR) == ["here" if before is PlaceStatus.LEAVING else "came"]
    if before is not PlaceStatus.LEAVING:
        own = living.kernel.places.own(ACTOR)
        assert own is not None
        assert (own.status, own.token) == (PlaceStatus.HERE, 3)
    is_kept = before not in (None, PlaceStatus.HERE, PlaceStatus.LEAVING)
    assert len(living.kernel.letters.of(ACTOR)) == is_kept


def test_after_a_refused_move_the_host_asks_where_the_actor_lives(living: Stage) -> None:
    living.kernel.moving.begin(ACTOR, NEW)

    assert asked_about(refuse_move(living)) == [ACTOR]


def test_a_delivery_that_the_host_cannot_handle_is_kept_and_the_rest_is_done(living: Stage) -> None:
    poison = b'{"v":1,"move":"m","actor":"target/1","token":9223372036854775808,"count":1}'
    turn(living, DeliveryArrived(wire.MOVE, poison, NEW, 1, "poison"), request(living))

    assert len(living.kernel.letters.of("")) == 1
    assert living.notes(ACTOR) == ["here", "came"]


@pytest.fixture
def before() -> State:
    return state_of(HostStore(":memory:"))


def state_of(store: HostStore) -> State:
    return State(store, ACTOR, 50, 2**20)


def moved(state: State) -> State:
    """The same tables in another store."""
    store = HostStore(":memory:")
    parcel = unpack(pack(Parcel.collect(state._store, ACTOR, "", HostTime(state._store))))
    Parcel.delete(state._store, ACTOR)
    left = "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'state:%'"
    assert state._store.execute(left).get == 0
    parcel.insert(store, lambda: "id", HostTime(store))
    return state_of(store)


def test_columns_that_are_generated_are_generated_again(before: State) -> None:
    generated = "b GENERATED ALWAYS AS (a + 1), c GENERATED ALWAYS AS (a + 2) STORED"
    before.sql(f"CREATE TABLE {{items}} (a INTEGER, {generated}, d)")
    before.sql("CREATE INDEX {by_b} ON {items} (b)")
    before.sql("INSERT INTO {items} (a, d) VALUES (1, 'x'), (5, NULL)")
    after = moved(before)

    assert after.sql("SELECT * FROM {items}") == [(1, 2, 3, "x"), (5, 6, 7, None)]
    after.sql("INSERT INTO {items} (a) VALUES (9)")
    assert after.sql("SELECT a FROM {items} WHERE b = 10") == [(9,)]


@pytest.mark.parametrize("removed", ["id = 3", "TRUE"])
def test_ids_are_not_given_a_second_time(before: State, removed: str) -> None:
    before.sql("CREATE TABLE {items} (id INTEGER PRIMARY KEY AUTOINCREMENT, a)")
    before.sql("INSERT INTO {items} (a) VALUES (1), (2), (3)")
    before.sql(f"DELETE FROM {{items}} WHERE {removed}")
    after = moved(before)

    assert after.sql("INSERT INTO {items} (a) VALUES (4) RETURNING id") == [(4,)]
    assert moved(after).sql("INSERT INTO {items} (a) VALUES (5) RETURNING id") == [(5,)]


@pytest.mark.parametrize(
    ("columns", "row_id"),
    [
        ("a", "rowid"),
        ("a, RowId TEXT", "_rowid_"),
        ("a, rowid, _rowid_", "oid"),
        ("a, b INTEGER PRIMARY KEY DESC", "rowid"),
    ],
)
def test_rows_keep_their_ids(before: State, columns: str, row_id: str) -> None:
    before.sql(f"CREATE TABLE {{items}} ({columns})")
    before.sql("INSERT INTO {items} (a) VALUES ('x'), ('y'), ('z')")
    before.sql("DELETE FROM {items} WHERE a = 'x'")
    query = f"SELECT {row_id}, a FROM {{items}} ORDER BY a"

    assert moved(before).sql(query) == [(2, "y"), (3, "z")]


@pytest.mark.parametrize(
    "definition",
    [
        "(a, b INTEGER PRIMARY KEY)",
        "(a, b, PRIMARY KEY (b, a)) WITHOUT ROWID",
        "(a, b, rowid GENERATED ALWAYS AS (b + 1), _rowid_, oid)",
        '(a, b, "c ""d""" DEFAULT 3)',
        "(a TEXT, b INTEGER) STRICT",
    ],
)
def test_tables_of_all_kinds_are_moved(before: State, definition: str) -> None:
    before.sql(f"CREATE TABLE {{items}} {definition}")
    before.sql("INSERT INTO {items} (a, b) VALUES ('x', 7), ('y', 5)")
    query = "SELECT * FROM {items} ORDER BY a"
    rows: list[Any] = before.sql(query)

    assert moved(before).sql(query) == rows
