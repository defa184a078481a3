"""What actors do in a simulation: calls of every kind to each other, noting all that happens."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import msgspec

from signalhub.actors import wire
from signalhub.actors.api.actor import Actor, remote
from signalhub.actors.api.deferred import Token
from signalhub.actors.api.errors import CallError, CallTimeout, Retry
from signalhub.actors.api.operation import op
from signalhub.testing.local_actors import request_body
from tests.simulation.actor_world import ActorWorld

OUTSIDE = "@(test/outside)"
BURST_MS = (200, 2_000)
# So long a continuation raises until it is given up, and then all that was given up is tried again.
DOOMED_MS = 40_000
MENDING_MS = 9_000_000
# Hosts that try for so long do not give up while a world is in disorder.
PATIENCE_MS = 600_000


class Plan(msgspec.Struct, array_like=True):
    """One thing that an actor is told to do.

    `how` is `call`, `loose` (without order), `keyed` (made twice under one key), `brief` (cancelled
    at once), `send`, `alarm` or `offload`. `mode` says what the called one does: `plain`, `raise`,
    `retry`, `defer` or `chain` (call the next actor under the label `next_label`). A continuation
    raises until `clumsy_ms` have passed since the call.
    """

    label: int
    how: str
    target: str = ""
    mode: str = "plain"
    timeout: float | None = None
    clumsy_ms: int = 0
    delay_ms: int = 0
    next_label: int = 0
    next_target: str = ""


async def double(label: int) -> int:
    """Work outside an actor."""
    return 2 * label


class Worker(Actor):
    """Notes what it does in its state, in order, one row each."""

    kind = "worker"

    _notes: int | None = None

    def _note(self, *words: object) -> None:
        if self._notes is None:
            self._notes = len(self.state.list("note"))
        self._notes += 1
        self.state.put(f"note{self._notes:05}", " ".join(map(str, words)))

    @remote
    def go(self, plans: list[Any], fails: bool = False) -> int:
        """Do all of this, or, if it fails, nothing."""
        for plan in plans:
            self._do(Plan(*plan))
        if fails:
            raise ValueError("this one fails")
        return len(plans)

    def _do(self, plan: Plan) -> None:
        self._note("made", plan.label, plan.how, plan.target, self.now_ms)
        match plan.how:
            case "alarm":
                self.alarms.schedule(plan.delay_ms / 1000, partial(self.rang, plan.label))
            case "offload":
                self.offload(double, plan.label, then=partial(self.heard, plan.label, 0))
            case "send":
                self.send(plan.target, self._operation(plan))
            case _:
                self._call(plan)

    def _call(self, plan: Plan) -> None:
        clumsy_until_ms = self.now_ms + plan.clumsy_ms if plan.clumsy_ms else 0
        key = f"key {plan.label}" if plan.how == "keyed" else None
        for _ in range(2 if plan.how == "keyed" else 1):
            call_id = self.call(
                plan.target,
                self._operation(plan),
                then=partial(self.heard, plan.label, clumsy_until_ms),
                timeout=plan.timeout,
                key=key,
                ordered=plan.how != "loose",
            )
        self.state.put(f"call {plan.label}", call_id)
        if plan.how == "brief":
            self._note("stopped", plan.label, self.cancel_call(call_id).value)

    def _operation(self, plan: Plan) -> Any:
        until_ms = self.now_ms + plan.delay_ms
        following = [plan.next_label, plan.next_target]
        return op(Worker.work, plan.label, plan.mode, until_ms, following)

    @remote
    def work(self, label: int, mode: str, until_ms: int, following: list[Any]) -> Any:
        """The effect whose number and order count."""
        self._note("done", label, self.context.caller)
        if mode == "raise":
            raise ValueError(f"{label} is refused")
        if mode == "retry" and self.now_ms < until_ms:
            raise Retry(after=(until_ms - self.now_ms) / 1000)
        if mode == "chain":
            self._do(Plan(following[0], "call", following[1]))
        if mode == "defer":
            token = self.defer()
            self.alarms.schedule(0.5, partial(self.answer, token.id, label))
            return token
        return label

    def answer(self, token: str, label: int) -> None:
        """A call that was deferred."""
        self._note("answered", label)
        self.resolve(Token(token), label)

    def heard(self, label: int, clumsy_until_ms: int, outcome: Any) -> None:
        """The continuation of every call."""
        if self.now_ms < clumsy_until_ms:
            raise RuntimeError(f"{label} cannot be heard yet")
        kind = "value"
        if isinstance(outcome, CallTimeout):
            kind = f"timeout-{outcome.executed}"
        elif isinstance(outcome, CallError):
            kind = outcome.name
        self._note("heard", label, kind, self.now_ms)

    def rang(self, label: int) -> None:
        self._note("rang", label)

    @remote
    def stop(self, label: int) -> None:
        """Cancel a call that was made before."""
        call_id = self.state.get(f"call {label}", "none")
        self._note("stopped", label, self.cancel_call(call_id).value)

    @remote
    def mend(self) -> int:
        """Try again what was given up."""
        letters = [one for one in self.dead_letters() if one.origin == "continuation"]
        return sum(self.redrive(one.id) for one in letters)


class Workload:
    """What the actors of a world are told from outside, chosen by its seed."""

    def __init__(self, world: ActorWorld) -> None:
        self.world = world
        self.plans: dict[int, Plan] = {}
        # Labels of what was told to a handler that fails, and of calls that others make.
        self.undone: set[int] = set()
        self.following: set[int] = set()
        self.told: dict[str, str] = {}
        self.names: list[str] = []
        self._favourite = ""
        self._random: Random = world.random

    def fill(self, *, actors: int, calls: int, lasting_ms: int, waves_ms: tuple[int, ...]) -> None:
        """Each actor gets so many calls to make, within so long after the beginning of a wave."""
        chance = self._random
        self.names = [f"worker/{number}" for number in range(actors)]
        for name in self.names:
            # Most go to the same one and at nearly the same time, or order would not matter.
            self._favourite = chance.choice(self.names)
            bursts_ms = [chance.choice(waves_ms) + chance.randrange(lasting_ms) for _ in "ab"]
            burst_ms = chance.choice(BURST_MS)
            left = calls
            while left > 0:
                at_ms = chance.choice(bursts_ms) + chance.randrange(burst_ms)
                left -= self._tell_to_go(at_ms, name, left)
        if any(plan.clumsy_ms for plan in self.plans.values()):
            for name in self.names:
                self.tell(MENDING_MS, name, "mend")

    def _tell_to_go(self, at_ms: int, name: str, calls_max: int) -> int:
        """A few calls, and now and then something else; returns how many will be made."""
        chance = self._random
        count = min(calls_max, chance.choice([1, 1, 2, 4]))
        plans = [self._plan(at_ms, name) for _ in range(count)]
        if chance.random() < 0.2:
            plans.append(self._other_plan())
        fails = chance.random() < 0.05
        self.have(at_ms, name, plans, fails=fails)
        return 0 if fails else count

    def have(self, at_ms: int, name: str, plans: list[Plan], *, fails: bool = False) -> None:
        """Tell an actor to do all of this in one go."""
        if fails:
            self.undone.update(plan.label for plan in plans)
            self.undone.update(plan.next_label for plan in plans if plan.next_label)
        arguments = [list(msgspec.structs.astuple(plan)) for plan in plans]
        self.tell(at_ms, name, "go", arguments, fails)

    def plan(self, how: str, **settings: Any) -> Plan:
        """Something to do, under a label of its own."""
        plan = Plan(len(self.plans) + 1, how, **settings)
        self.plans[plan.label] = plan
        return plan

    def _plan(self, at_ms: int, name: str) -> Plan:
        chance = self._random
        how = chance.choices(["call", "send", "loose", "keyed", "brief"], [70, 12, 10, 4, 4])[0]
        mode = chance.choices(["plain", "raise", "retry", "defer", "chain"], [70, 8, 8, 7, 7])[0]
        target = self._favourite if chance.random() < 0.7 else chance.choice(self.names)
        plan = self.plan(how, target=target, mode=mode)
        if how != "send":
            plan.timeout = chance.choice([None, None, None, 0.2, 2.0, 30.0])
            plan.clumsy_ms = chance.choices([0, 1_000, DOOMED_MS], [90, 8, 2])[0]
            if chance.random() < 0.08:
                self.tell(at_ms + chance.randrange(1, 3_000), name, "stop", plan.label)
        if mode == "retry":
            plan.delay_ms = chance.randrange(2_000)
        if mode == "chain":
            following = self.plan("call", target=chance.choice(self.names))
            self.following.add(following.label)
            plan.next_label, plan.next_target = following.label, following.target
        return plan

    def _other_plan(self) -> Plan:
        how = self._random.choice(["alarm", "alarm", "offload"])
        return self.plan(how, delay_ms=self._random.choice([-5, 0, 300, 5_000]))

    def tell(self, at_ms: int, name: str, method: str, *args: Any) -> None:
        """Have somebody outside call an actor."""
        call_id = f"told-{len(self.told) + 1}"
        self.told[call_id] = method
        body = request_body(call_id, name, op(method, *args))
        self.world.after(at_ms, self._arrive, name, body)

    def _arrive(self, name: str, body: bytes) -> None:
        world = self.world
        host = world.home_of(name).host
        is_patient = world.config.max_request_age_ms >= PATIENCE_MS
        if is_patient and world.strikes(world.faults.refusal):
            # Whoever is outside may have an old address.
            host = self._random.choice(world.hosts).name
        for _ in range(1 + world.strikes(world.faults.duplication)):
            world.tell(host, wire.CALL, body, OUTSIDE)
