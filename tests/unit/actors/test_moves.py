"""Moves amid trouble: a hub that takes little or forgets, parcels that do not fit, late answers."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from signalhub.actors import Actor, Retry, remote, wire
from signalhub.actors.api.operation import op
from signalhub.actors.kernel.events import (
    ActorPlace,
    BatchRefused,
    CommandAnswer,
    Commanded,
    DeliveryArrived,
    Effect,
    Event,
    GiveAway,
    LocateActors,
    Moved,
    PlacesFound,
    Receipted,
    SendBatch,
)
from signalhub.actors.move.leave import PART_BYTES
from signalhub.actors.move.parcel import pack, unpack
from signalhub.actors.move.places import PlaceStatus
from signalhub.testing.local_actors import CALLER, HOST, LocalActors, request_body

OLD, NEW = "@(actors/old)", "@(actors/new)"
ACTOR = "chest/1"


class Chest(Actor):
    @remote
    def fill(self, chars: int) -> None:
        self.state.put("content", "x" * chars)

    @remote
    def sql(self, text: str) -> None:
        self.state.sql(text)


class Asker(Actor):
    @remote
    def ask(self) -> None:
        self.call("stock/1", "reserve", then=self.hear, timeout=None)

    def hear(self, outcome: Any) -> None:
        self.state.put("heard", repr(outcome))


class Sender(Actor):
    @remote
    def tell(self, chars: int) -> None:
        self.send(ACTOR, Chest.fill, chars)


class Journey:
    """An actor whose parts are about to leave, and a hub that takes so many bytes at once."""

    def __init__(self, chars: int = 2 * PART_BYTES) -> None:
        self.old = LocalActors(Chest, Sender)
        self.old.call(ACTOR, "fill", chars)
        self.bytes_max = 2**20
        self.receipts_max = 1_000
        self.withheld: list[Event] = []
        self.parts: list[dict[str, Any]] = []
        self._next = self._turn(Commanded("move", {"actor": ACTOR, "to": NEW}, None))

    def _turn(self, *events: Event) -> list[Effect]:
        return self.old.kernel.turn(events, self.old.clock.now_ms())

    def begin_again(self) -> None:
        """The connection to the hub is a new one."""
        self.parts = []
        self.old.kernel.moving.connected()
        self._next = self._turn()

    def hear_the_rest(self) -> None:
        """Receipts come that were withheld."""
        self.receipts_max = 1_000
        self._next = self._turn(*self.withheld)

    def run(self) -> None:
        """Until nothing is left to send."""
        for _ in range(10_000):
            events = [event for effect in self._next for event in self._perform(effect)]
            if not events and not self.old.kernel.has_work:
                return
            self._next = self._turn(*events)
        raise AssertionError("it does not end")

    def _perform(self, effect: Effect) -> list[Event]:
        now_ms = self.old.clock.now_ms()
        match effect:
            case GiveAway():
                return [Moved(ACTOR, 2)]
            case SendBatch(type=wire.MARK):
                mark = DeliveryArrived(wire.MARK, effect.data, HOST, now_ms, "mark")
                return [Receipted(effect.batch), mark]
            case SendBatch(type=wire.MOVE):
                if len(effect.data) > self.bytes_max:
                    return [BatchRefused(effect.batch, "too large", is_too_large=True)]
                self.parts.append(msgspec.json.decode(effect.data))
                if len(self.parts) > self.receipts_max:
                    self.withheld.append(Receipted(effect.batch))
                    return []
                return [Receipted(effect.batch)]
            case _:
                return []


def turn(actors: LocalActors, *events: Event) -> list[Effect]:
    return actors.kernel.turn(events, actors.clock.now_ms())


def take_in(new: LocalActors, parts: list[dict[str, Any]]) -> list[Effect]:
    """Parts come to the new host."""
    effects: list[Effect] = []
    for number, part in enumerate(parts):
        data = msgspec.json.encode(part)
        effects += turn(new, DeliveryArrived(wire.MOVE, data, OLD, new.clock.now_ms(), number))
    return effects


def confirm(new: LocalActors, token: int = 2) -> list[Effect]:
    return turn(new, PlacesFound([ActorPlace(ACTOR, HOST, token)]))


def arrive(new: LocalActors, parts: list[dict[str, Any]]) -> None:
    take_in(new, parts)
    confirm(new)


def content(actors: LocalActors) -> Any:
    return actors.state(ACTOR).get("content")


def status(actors: LocalActors, actor: str = ACTOR) -> PlaceStatus | None:
    own = actors.kernel.places.own(actor)
    return None if own is None else own.status


def told(effects: list[Effect], type: str) -> list[SendBatch]:
    return [one for one in effects if isinstance(one, SendBatch) and one.type == type]


def test_a_parcel_is_cut_until_its_parts_fit() -> None:
    journey, new = Journey(), LocalActors(Chest)
    journey.bytes_max = 20_000

    journey.run()

    assert max(len(b64decode(part["body"])) for part in journey.parts) < 20_000
    arrive(new, journey.parts)
    assert content(new) == content(journey.old)


def test_parts_of_two_sizes_are_not_taken_for_one_set() -> None:
    journey, new = Journey(), LocalActors(Chest)
    journey.run()
    large = journey.parts
    journey.bytes_max = 20_000
    journey.begin_again()
    journey.run()
    small = journey.parts

    # The first of the large ones comes once more when half of the others are there.
    half = len(small) // 2
    arrive(new, [large[0], *small[:half], large[0], large[1]])
    assert content(new) is None
    arrive(new, small[half:])

    assert content(new) == content(journey.old)


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
    journey, new = Journey(), LocalActors(Chest)
    journey.run()
    take_in(new, journey.parts)
    (arrival,) = told(confirm(new), wire.MOVE)
    journey.bytes_max = 20_000
    journey.begin_again()
    journey.run()

    take_in(new, journey.parts)
    turn(journey.old, DeliveryArrived(wire.MOVE, arrival.data, NEW, 1, "arrival"))

    assert status(journey.old) is PlaceStatus.GONE
    assert content(journey.old) is None
    assert content(new) is not None


@pytest.mark.parametrize("changes", [{"token": 3}, {"actor": "chest/2"}, {"sender": OLD}])
def test_nobody_else_makes_the_old_host_forget_an_actor(changes: dict[str, Any]) -> None:
    journey = Journey()
    journey.run()
    sender = changes.pop("sender", NEW)
    arrival = {"v": 1, "move": journey.parts[0]["move"], "actor": ACTOR, "token": 2} | changes

    turn(
        journey.old, DeliveryArrived(wire.MOVE, msgspec.json.encode(arrival), sender, 1, "arrival")
    )

    assert status(journey.old) is PlaceStatus.LEAVING
    assert content(journey.old) is not None


def test_a_copy_of_a_part_is_answered_once_its_move_has_ended_and_never_before() -> None:
    journey, new = Journey(), LocalActors(Chest)
    journey.run()
    arrive(new, journey.parts)
    new.kernel.places.put(ACTOR, 3, PlaceStatus.GONE)

    (answer,) = told(take_in(new, journey.parts[:1]), wire.MOVE)
    turn(journey.old, DeliveryArrived(wire.MOVE, answer.data, NEW, 1, "answer"))
    assert status(journey.old) is PlaceStatus.GONE

    another = LocalActors(Chest)
    another.kernel.places.put(ACTOR, 3, PlaceStatus.GONE)
    assert not told(take_in(another, journey.parts), wire.MOVE)


def spoiled(parts: list[dict[str, Any]], spoil: Callable[[Any], None]) -> list[dict[str, Any]]:
    """The same move with a parcel that does not fit."""
    parcel = unpack(b"".join(b64decode(part["body"]) for part in parts))
    spoil(parcel)
    body = b64encode(pack(parcel)).decode()
    return [parts[0] | {"count": 1, "body": body}]


def have_a_column_more(parcel: Any) -> None:
    parcel.plain["state"][0].append(1)


def have_a_broken_row(parcel: Any) -> None:
    parcel.inbox.append(["too short"])


def be_of_another_version(parcel: Any) -> None:
    parcel.version = 99


def be_somebody_else(parcel: Any) -> None:
    parcel.actor = "chest/2"


def be_unreadable(parcel: Any) -> None:
    parcel.last_id = 7


@pytest.mark.parametrize(
    "spoil",
    [have_a_column_more, have_a_broken_row, be_of_another_version, be_somebody_else, be_unreadable],
)
def test_a_parcel_that_cannot_be_taken_over_is_kept_and_ends_no_host(
    spoil: Callable[[Any], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journey, new = Journey(chars=10), LocalActors(Chest, path=tmp_path / "new.db")
    journey.run()
    take_in(new, spoiled(journey.parts, spoil))

    for _ in range(2):
        confirm(new)
        assert status(new) is PlaceStatus.ARRIVING
        assert new.kernel.moves.failures[ACTOR] in caplog.text
        new.call("chest/3", "fill", 1)
        new.restart()

    assert new.kernel.store.execute("SELECT count(*) FROM parts").get == 1


def test_what_cannot_be_sent_is_not_moved_at_all() -> None:
    actors = LocalActors(Chest)
    actors.call(ACTOR, "sql", "CREATE TABLE {words} (word TEXT)")
    actors.call(ACTOR, "sql", "INSERT INTO {words} VALUES (CAST(x'ff' AS TEXT))")

    (answer, *_) = turn(actors, Commanded("move", {"actor": ACTOR, "to": NEW}, None))

    assert isinstance(answer, CommandAnswer)
    assert "cannot be sent" in answer.result["error"]
    assert status(actors) is PlaceStatus.HERE


def asking() -> tuple[LocalActors, str]:
    """An actor with a call on its way, which then begins to move; and the batch of the call."""
    actors = LocalActors(Asker, foreign=["stock"])
    data = request_body("c", "asker/1", op("ask"))
    turn(actors, DeliveryArrived(wire.CALL, data, CALLER, actors.clock.now_ms(), "c"))
    turn(actors, PlacesFound([ActorPlace("asker/1", HOST, 1)]))
    (send,) = told(turn(actors, PlacesFound([ActorPlace("stock/1", OLD, 1)])), wire.BATCH)
    turn(actors, Commanded("move", {"actor": "asker/1", "to": NEW}, None))
    return actors, send.batch


def test_an_actor_that_stands_still_does_not_hear_that_its_call_was_too_large() -> None:
    actors, batch = asking()

    turn(actors, BatchRefused(batch, "too large", is_too_large=True))
    assert actors.state("asker/1").get("heard") is None

    turn(actors, Moved("asker/1", None, "refused", is_final=True))
    actors.clock.advance(2)
    (again,) = told(turn(actors, PlacesFound([ActorPlace("stock/1", OLD, 1)])), wire.BATCH)
    turn(actors, BatchRefused(again.batch, "too large", is_too_large=True))
    assert "CallUndeliverable" in actors.state("asker/1").get("heard")


def test_a_message_that_was_put_off_is_put_off_after_a_move_as_well() -> None:
    runs: list[int] = []

    class Patient(Actor):
        @remote
        def work(self) -> None:
            runs.append(1)
            raise Retry(after=3600)

    actors = LocalActors(Patient)
    actors.begin("patient/1", "work")
    actors.run()
    turn(actors, Commanded("move", {"actor": "patient/1", "to": NEW}, None))
    turn(actors, Moved("patient/1", None, "refused", is_final=True))
    actors.advance(3_000)
    assert len(runs) == 1
    actors.advance(700)
    assert len(runs) == 2


def test_a_hub_that_has_forgotten_a_move_is_told_of_it_by_the_new_host() -> None:
    journey, new = Journey(), LocalActors(Chest)
    journey.run()
    take_in(new, journey.parts)

    confirm(new, token=1)
    new.clock.advance(2)
    (asked,) = [one for one in turn(new) if isinstance(one, LocateActors)]
    assert asked.claims == {ACTOR: 2}
    confirm(new)

    assert status(new) is PlaceStatus.HERE


def test_a_host_that_has_only_some_parts_claims_nothing() -> None:
    journey, new = Journey(), LocalActors(Chest)
    journey.run()
    take_in(new, journey.parts[:1])

    confirm(new, token=1)
    new.clock.advance(2)
    (asked,) = [one for one in turn(new) if isinstance(one, LocateActors)]
    assert not asked.claims


def test_asking_again_has_pauses_that_grow() -> None:
    journey, new = Journey(), LocalActors(Chest)
    journey.run()
    take_in(new, journey.parts[:1])
    pauses = []
    for _ in range(3):
        confirm(new, token=1)
        due_ms = new.kernel.next_due_ms()
        assert due_ms is not None
        pauses.append(due_ms - new.clock.now_ms())
        new.clock.advance(pauses[-1] / 1000)
        turn(new)

    assert pauses == [1_000, 2_000, 4_000]


def test_after_a_new_connection_every_part_is_sent_again_once_the_one_under_way_is_back() -> None:
    journey = Journey()
    journey.receipts_max = 1
    journey.run()
    assert [part["number"] for part in journey.parts] == [0, 1]

    journey.begin_again()
    assert not journey.parts
    journey.hear_the_rest()
    journey.run()

    assert [part["number"] for part in journey.parts] == [0, 1, 2]


def test_what_waits_for_an_actor_that_is_to_come_back_stays_in_the_name_of_its_sender() -> None:
    """In another name it would be overtaken by what the same sender says next."""
    journey = Journey()
    journey.run()
    old = journey.old
    data = request_body("c", "sender/1", op("tell", 1))
    turn(old, DeliveryArrived(wire.CALL, data, CALLER, old.clock.now_ms(), "c"))
    turn(old, PlacesFound([ActorPlace("sender/1", HOST, 1)]))

    effects = turn(old, PlacesFound([ActorPlace(ACTOR, HOST, 3)]))

    waiting = old.kernel.store.execute("SELECT actor FROM outbox WHERE dest = ?", (ACTOR,))
    assert waiting.fetchall() == [("sender/1",)]
    assert not [one for one in effects if isinstance(one, LocateActors)], "and is asked about later"
