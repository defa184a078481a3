"""What a host makes of the hub's word about places, also if the hub has lost its memory."""

from __future__ import annotations

from signalhub.actors import Actor, remote, wire
from signalhub.actors.api.operation import op
from signalhub.actors.kernel.events import (
    ActorPlace,
    DeliveryArrived,
    Effect,
    Event,
    LocateActors,
    Moved,
    PlacesFound,
)
from signalhub.actors.move.places import PlaceStatus
from signalhub.testing.local_actors import CALLER, HOST, LocalActors, request_body

ELSEWHERE = "@(actors/elsewhere)"


class Counter(Actor):
    @remote
    def add(self) -> int:
        count: int = self.state.get("count", 0) + 1
        self.state.put("count", count)
        return count


class Asker(Actor):
    @remote
    def ask(self, target: str) -> None:
        self.call(target, "add", timeout=None)


def living(token: int = 1) -> LocalActors:
    """A host in which `counter/1` has counted once."""
    actors = LocalActors(Counter, Asker)
    actors.call("counter/1", "add")
    actors.kernel.places.put("counter/1", token, PlaceStatus.HERE)
    return actors


def turn(actors: LocalActors, *events: Event) -> list[Effect]:
    return actors.kernel.turn(events, actors.clock.now_ms())


def request(actors: LocalActors, call_id: str = "c") -> DeliveryArrived:
    data = request_body(call_id, "counter/1", op("add"))
    return DeliveryArrived(wire.CALL, data, CALLER, actors.clock.now_ms(), call_id)


def part(token: int) -> bytes:
    return b'{"v":1,"move":"m","actor":"counter/1","token":%d,"number":0,"count":2}' % token


def status(actors: LocalActors) -> PlaceStatus | None:
    own = actors.kernel.places.own("counter/1")
    return None if own is None else own.status


def asked_about(effects: list[Effect]) -> list[str]:
    return [one for effect in effects if isinstance(effect, LocateActors) for one in effect.actors]


def test_an_actor_that_nobody_serves_delays_nobody_else() -> None:
    actors = LocalActors(Asker, Counter, foreign=("mail", "stock"))
    kernel = actors.kernel
    actors.call("asker/1", "ask", "counter/1")
    data = request_body("1", "asker/1", op("ask", "mail/1"))
    turn(actors, DeliveryArrived(wire.CALL, data, CALLER, 1, 1))
    turn(actors, PlacesFound([], {"mail/1": "nobody serves it"}))

    data = request_body("2", "asker/1", op("ask", "stock/7"))
    effects = turn(actors, DeliveryArrived(wire.CALL, data, CALLER, 1, 2))

    assert asked_about(effects) == ["stock/7"]
    due_ms = kernel.next_due_ms()
    assert due_ms is not None
    assert due_ms > actors.clock.now_ms(), "and nobody is asked without a pause"


def test_what_came_in_the_turn_in_which_an_actor_is_said_to_live_elsewhere_does_not_run() -> None:
    actors = living()

    turn(actors, request(actors), PlacesFound([ActorPlace("counter/1", ELSEWHERE, 2)]))

    assert actors.state("counter/1").get("count") == 1
    assert status(actors) is PlaceStatus.GONE


def test_an_answer_older_than_what_is_known_is_asked_for_once_more() -> None:
    actors = living(token=5)

    turn(actors, PlacesFound([ActorPlace("counter/1", ELSEWHERE, 4)]))
    assert status(actors) is PlaceStatus.HERE
    actors.clock.advance(2)
    assert asked_about(turn(actors)) == ["counter/1"]

    turn(actors, PlacesFound([ActorPlace("counter/1", ELSEWHERE, 4)]))
    assert status(actors) is PlaceStatus.GONE, "the hub insists"

    turn(actors, DeliveryArrived(wire.MOVE, part(5), ELSEWHERE, actors.clock.now_ms(), "part"))
    assert status(actors) is PlaceStatus.ARRIVING, "and it may come back"


def test_an_actor_that_has_left_does_not_begin_anew_because_the_hub_forgot() -> None:
    actors = living()
    actors.kernel.places.put("counter/1", 2, PlaceStatus.GONE)

    turn(actors, request(actors))
    turn(actors, PlacesFound([ActorPlace("counter/1", HOST, 1)]))
    turn(actors)

    assert actors.state("counter/1").get("count") == 1
    assert actors.kernel.inbox.has("counter/1", "request", f"{CALLER}#c"), "it is kept"


def test_a_part_of_a_move_does_not_stop_an_actor_that_lives_here() -> None:
    actors = living()

    turn(actors, DeliveryArrived(wire.MOVE, part(7), ELSEWHERE, actors.clock.now_ms(), "part"))

    assert status(actors) is PlaceStatus.HERE
    assert actors.call("counter/1", "add") == 2


def test_a_late_part_is_no_arrival_even_after_something_came_for_the_actor() -> None:
    actors = living()
    actors.kernel.places.put("counter/1", 3, PlaceStatus.GONE)
    turn(actors, request(actors))

    turn(actors, DeliveryArrived(wire.MOVE, part(2), ELSEWHERE, actors.clock.now_ms(), "part"))

    assert status(actors) is PlaceStatus.UNPLACED


def test_an_actor_that_was_on_its_way_here_and_lives_elsewhere_is_not_waited_for() -> None:
    actors = living()
    actors.kernel.places.put("counter/1", 0, PlaceStatus.UNPLACED)
    turn(actors, PlacesFound([ActorPlace("counter/1", HOST, 2)]))
    assert status(actors) is PlaceStatus.ARRIVING

    turn(actors, PlacesFound([ActorPlace("counter/1", ELSEWHERE, 3)]))

    assert status(actors) is PlaceStatus.GONE


def test_a_move_that_the_hub_refuses_makes_the_host_ask_where_the_actor_lives() -> None:
    actors = living()
    actors.kernel.moving.begin("counter/1", ELSEWHERE)

    effects = turn(actors, Moved("counter/1", None, "stale_placement", is_final=True))

    assert asked_about(effects) == ["counter/1"]


def test_a_delivery_that_makes_the_host_stumble_is_kept_and_the_rest_goes_on() -> None:
    actors = living()
    poison = b'{"v":1,"move":"m","actor":"counter/1","token":9223372036854775808,"count":1}'

    turn(actors, DeliveryArrived(wire.MOVE, poison, ELSEWHERE, 1, "poison"), request(actors))

    assert len(actors.kernel.letters.of("")) == 1
    assert actors.state("counter/1").get("count") == 2
