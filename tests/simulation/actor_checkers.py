"""What must hold of durable actors when everything has become quiet."""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec

from signalhub.actors import wire
from signalhub.actors.api import payload
from signalhub.actors.api.operation import decode_operation
from tests.simulation.actor_workload import OUTSIDE, PATIENCE_MS, Plan, Workload
from tests.simulation.actor_world import ActorWorld

EMPTY = ("outbox", "inbox", "pending", "deferred", "offloads", "alarms", "moves", "parts")
CANCELLED = ("withdrawn", "suppressed")
ORDERED = ("call", "send", "keyed", "brief")


class Notes:
    """What the actors have written down about themselves."""

    def __init__(self, world: ActorWorld) -> None:
        # Of each actor, in order, the words of each note.
        self.of: dict[str, list[list[str]]] = defaultdict(list)
        self.seen: dict[int, Counter[str]] = defaultdict(Counter)
        self.heard: dict[int, str] = {}
        self.heard_ms: dict[int, int] = {}
        self.made_ms: dict[int, int] = {}
        self.maker: dict[int, str] = {}
        self.stopped: dict[int, str] = {}
        # Labels of messages nobody waited for that found no receiver.
        self.given_up: set[str] = set()
        for host in world.hosts:
            for (data,) in host.store.connection.execute(
                "SELECT payload FROM dead WHERE origin = 'send'"
            ):
                sent = wire.decode(msgspec.msgpack.decode(data)["payload"])
                self.given_up.add(str(decode_operation(bytes(sent.body)).args[0]))
            rows = host.store.connection.execute(
                "SELECT actor, value FROM state JOIN actors ON address = actor"
                " WHERE status = 'here' AND key LIKE 'note%' ORDER BY actor, key"
            )
            for actor, value in rows:
                self.of[actor].append(payload.decode(value).split(" "))
        for actor, notes in self.of.items():
            for words in notes:
                self._read(actor, *words)

    def _read(self, actor: str, what: str, number: str, *more: str) -> None:
        label = int(number)
        self.seen[label][what] += 1
        if what == "heard":
            self.heard[label], self.heard_ms[label] = more[0], int(more[1])
        elif what == "made":
            self.made_ms[label], self.maker[label] = int(more[2]), actor
        elif what == "stopped" and self.stopped.get(label) not in CANCELLED:
            self.stopped[label] = more[0]


def check(world: ActorWorld, workload: Workload) -> None:
    """Raises `AssertionError` that names the rule and the call."""
    notes = Notes(world)
    for plan in workload.plans.values():
        _check_made(workload, notes, plan)
        _check_effects(notes, plan)
        _check_continuation(world, notes, plan)
        _check_outcome(world, notes, plan)
    _check_homes(world)
    _check_order(workload, notes)
    _check_answers(world, workload)
    _check_nothing_is_left(world)


def _check_made(workload: Workload, notes: Notes, plan: Plan) -> None:
    made = notes.seen[plan.label].get("made", 0)
    if plan.label in workload.undone:
        traces = set(notes.seen[plan.label]) - {"stopped"}
        assert not traces, f"{plan} was taken back and yet left {traces}"
        return
    assert made <= 1, f"{plan} was made {made} times"
    assert made or plan.label in workload.following, (
        f"{plan} was never made: the handler that makes it is lost"
    )


def _check_effects(notes: Notes, plan: Plan) -> None:
    seen = notes.seen[plan.label]
    for what in ("done", "answered", "heard", "rang"):
        assert seen[what] <= 1, f"duplicated: {plan} was {what} {seen[what]} times"
    if not seen["made"]:
        traces = {what for what, count in seen.items() if count} - {"stopped"}
        assert not traces, f"{plan} was never made and yet left {traces}"
    if plan.next_label and seen["made"]:
        following = notes.seen[plan.next_label]["made"]
        assert following == seen["done"], f"{plan} was done, and the call it makes is not there"


def _check_continuation(world: ActorWorld, notes: Notes, plan: Plan) -> None:
    seen, stopped = notes.seen[plan.label], notes.stopped.get(plan.label)
    if not seen["made"]:
        return
    if plan.how == "alarm":
        assert seen["rang"] == 1, f"lost: {plan} never rang"
    elif plan.how == "send":
        is_given_up = str(plan.label) in notes.given_up
        assert seen["done"] or plan.mode == "raise" or is_given_up, f"lost: {plan} was never done"
    elif stopped in CANCELLED:
        assert not seen["heard"], f"{plan} was cancelled, and its continuation ran"
        if stopped == "withdrawn":
            assert not seen["done"], f"{plan} was withdrawn, and it was done"
    else:
        assert seen["heard"] == 1, f"lost: the continuation of {plan} never ran"


def _check_outcome(world: ActorWorld, notes: Notes, plan: Plan) -> None:
    heard = notes.heard.get(plan.label)
    if heard is None or plan.how == "offload":
        return
    done = notes.seen[plan.label]["done"]
    if heard == "value":
        assert done, f"{plan} returned a value and was never done"
    elif heard == "ValueError":
        assert not done, f"{plan} failed, and its effect is there"
    elif heard == "timeout-no":
        assert not done, f"{plan} timed out before it left, and it was done"
    elif heard == "CallUndeliverable":
        assert _may_give_up(world), f"{plan} was given up too early"
    else:
        assert heard == "timeout-unknown", f"{plan} ended with {heard}"
    if heard.startswith("timeout"):
        assert plan.timeout is not None, f"{plan} has no timeout and timed out"
        if world.counts["jumps"] or world.hub.places[notes.maker[plan.label]].token > 1:
            return  # Its clock is not the one it began with.
        waited_ms = notes.heard_ms[plan.label] - notes.made_ms[plan.label]
        assert waited_ms >= plan.timeout * 1000, f"{plan} timed out after {waited_ms} ms"


def _check_order(workload: Workload, notes: Notes) -> None:
    """Each caller's calls to each destination have their effects in the order they were made in."""
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for dest, rows in notes.of.items():
        for words in rows:
            if words[0] == "done" and _is_ordered(workload.plans[int(words[1])]):
                places[words[2], dest].append(int(words[1]))
    for (caller, dest), done in places.items():
        made = [int(words[1]) for words in notes.of[caller] if words[0] == "made"]
        turn = {label: at for at, label in enumerate(made)}
        order = [turn[label] for label in done]
        assert order == sorted(order), f"order: {caller} to {dest} was done as {done}, not {made}"


def _is_ordered(plan: Plan) -> bool:
    return plan.how in ORDERED and plan.mode != "retry"


def _check_homes(world: ActorWorld) -> None:
    """Every actor lives where the hub says, and nowhere else."""
    homes: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for host in world.hosts:
        rows = host.store.connection.execute("SELECT address, token, status FROM actors")
        for address, token, status in rows:
            assert status in ("here", "gone"), f"{address} is {status} for ever at {host.name}"
            if status == "here":
                homes[address].append((host.name, token))
    for actor, places in homes.items():
        place = world.hub.places[actor]
        assert places == [(place.host, place.token)], f"{actor} lives at {places}, not {place}"


def _check_answers(world: ActorWorld, workload: Workload) -> None:
    answered = {
        message.call
        for mail in world.hub.mailboxes.get(OUTSIDE, [])
        for message, _ in wire.split(mail.data)
    }
    missing = sorted(set(workload.told) - answered)
    assert not missing, f"nobody outside heard of {missing}"


def _may_give_up(world: ActorWorld) -> bool:
    """A move to a clock that is an hour ahead makes what waits an hour older."""
    has_moved = any(place.token > 1 for place in world.hub.places.values())
    is_old = bool(world.counts["jumps"]) and has_moved
    return is_old or world.config.max_request_age_ms < PATIENCE_MS


def _check_nothing_is_left(world: ActorWorld) -> None:
    for host in world.hosts:
        dead = host.store.connection.execute("SELECT * FROM dead").fetchall()
        assert not dead or _may_give_up(world), f"{host.name} has given up {dead}"
        for table in EMPTY:
            rows = host.store.connection.execute(f"SELECT * FROM {table}").fetchall()
            assert not rows, f"{host.name} still has in {table}: {rows}"
