"""Who may call what: `@remote`, guards, `on_before_call`, names that are never callable."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from signalhub.actors import Actor, CallContext, CallError, RemoteError, remote, wire
from signalhub.actors.api.operation import Operation, encode_operation
from signalhub.testing.local_actors import CALLER, LocalActors


class Refused(Exception):
    """What guards of these tests raise."""


def members_only(actor: Actor, context: CallContext) -> None:
    if context.caller != "member/1":
        raise Refused(f"{context.caller} is no member of {actor.key}")


class Club(Actor):
    @remote
    def visit(self) -> str:
        return "welcome"

    @remote(guard=members_only)
    def dine(self) -> str:
        self.state.put("dined", True)
        return "enjoy"

    @remote(guard=None)
    def look(self) -> str:
        return "nice"

    def cook(self) -> str:
        return "never for strangers"

    def _count_silver(self) -> int:
        return 12


class Member(Actor):
    @remote
    def go(self) -> None:
        self.call("club/1", Club.dine, then=self.keep)

    def keep(self, outcome: Any) -> None:
        self.state.put("outcome", repr(outcome))


def forged(method: str) -> Any:
    """What a sender that checks nothing gets for an operation of that name."""
    local = LocalActors(Club)
    body = msgspec.Raw(encode_operation(Operation(method)))
    message = wire.ActorMessage("request", "forged", "club/1", body)
    local.deliver(wire.CALL, wire.join([wire.encode(message)]))
    local.run()
    return local.outcome("forged")


def test_marked_methods_are_callable() -> None:
    assert forged("visit") == "welcome"
    assert forged("look") == "nice"


@pytest.mark.parametrize(
    "method",
    ["cook", "_count_silver", "absent", "__init__", "on_start", "call", "state", "resolve", "kind"],
)
def test_whatever_is_not_marked_is_not_callable_even_by_a_sender_that_checks_nothing(
    method: str,
) -> None:
    with pytest.raises(RemoteError) as caught:
        forged(method)

    assert caught.value.name == "NotCallable"
    assert f"Club has no remote method {method}" in str(caught.value)


def test_an_operation_among_the_arguments_needs_the_mark_as_well() -> None:
    local = LocalActors(Club)
    body = encode_operation(Operation("visit", (Operation("_count_silver"),)))
    message = wire.ActorMessage("request", "forged", "club/1", msgspec.Raw(body))
    local.deliver(wire.CALL, wire.join([wire.encode(message)]))
    local.run()

    with pytest.raises(RemoteError, match="no remote method _count_silver"):
        local.outcome("forged")


def test_a_guard_lets_pass_whom_it_does_not_refuse() -> None:
    local = LocalActors(Club, Member)
    local.call("member/1", "go")

    assert local.state("member/1").get("outcome") == "'enjoy'"


def test_what_a_guard_raises_reaches_the_caller_and_the_method_is_not_run() -> None:
    local = LocalActors(Club, Member)
    local.call("member/2", "go")

    shown = local.state("member/2").get("outcome")
    assert shown == "<RemoteError Refused: 'member/2 is no member of 1'>"
    assert local.state("club/1").list() == {}


def test_on_before_call_is_asked_before_every_remote_call_and_before_guards() -> None:
    class Watched(Actor):
        def on_before_call(self, context: CallContext) -> None:
            seen.append(f"before {context.caller}")
            if context.caller == "visitor/evil":
                raise Refused("not you")

        def look(self, context: CallContext) -> None:
            seen.append("guard")

        @remote(guard=look)
        def enter(self) -> None:
            seen.append("enter")

    class Visitor(Actor):
        @remote
        def go(self) -> None:
            self.call("watched/1", Watched.enter, then=self.keep)

        def keep(self, outcome: Any) -> None:
            seen.append(f"{outcome}")

    seen: list[str] = []
    local = LocalActors(Watched, Visitor)
    local.call("visitor/good", "go")
    local.call("visitor/evil", "go")

    assert seen == [
        "before visitor/good",
        "guard",
        "enter",
        "None",
        "before visitor/evil",
        "not you",
    ]


def test_continuations_and_alarms_are_not_remote_calls() -> None:
    class Private(Actor):
        def on_before_call(self, context: CallContext) -> None:
            seen.append(context.call_id)

        @remote
        def go(self) -> None:
            self.alarms.schedule(1, self.later)
            self.call("club/1", "visit", then=self.keep)

        def keep(self, outcome: Any) -> None:
            self.state.put("outcome", outcome)

        def later(self) -> None:
            self.state.put("later", True)

    seen: list[str] = []
    local = LocalActors(Private, Club)
    local.call("private/1", "go")
    local.advance(2)

    assert len(seen) == 1
    assert local.state("private/1").list() == {"later": True, "outcome": "welcome"}


def test_a_guard_cannot_be_async_because_nobody_would_wait_for_it() -> None:
    async def check(actor: Actor, context: CallContext) -> None: ...

    with pytest.raises(TypeError, match="an async one would let every call pass"):
        remote(guard=check)


def test_an_unknown_version_of_the_envelope_is_kept_as_evidence_and_harms_nobody() -> None:
    local = LocalActors(Club)
    for body in (b'{"v":2,"messages":[]}', b'{"messages":[]}', b"\xff", b'{"v":1,"messages":[7]}'):
        local.deliver(wire.BATCH, body, "@(actors/new)")
    local.run()

    assert local.kernel.counters.unreadable == 4
    assert [letter.origin for letter in local.kernel.letters.of("")] == ["unreadable"] * 4
    assert "version 2" in local.kernel.letters.of("")[0].error
    assert local.call("club/1", "visit") == "welcome"


def test_an_outsider_can_only_make_requests() -> None:
    local = LocalActors(Club)
    message = wire.ActorMessage("result", "c", "club/1", msgspec.Raw(b'{"ok":1}'))
    local.deliver(wire.CALL, wire.join([wire.encode(message)]))
    local.run()

    assert "can only make requests" in local.kernel.letters.of("")[0].error


def test_an_outsider_cannot_pretend_to_be_somebody_else() -> None:
    class Asked(Actor):
        @remote
        def who(self) -> list[Any]:
            return [self.context.caller, list(self.context.call_chain), self.context.auth]

    local = LocalActors(Asked)
    context = CallContext(("boss/1",), "root", {}, "x", "boss/1").encode()
    body = msgspec.Raw(encode_operation(Operation("who")))
    message = wire.ActorMessage("request", "c", "asked/1", body, "boss/1", msgspec.Raw(context))
    local.deliver(wire.CALL, wire.join([wire.encode(message)]))
    local.run()

    assert local.outcome("c") == [CALLER, [], {"address": CALLER}]


def test_a_broken_operation_is_an_error_of_the_call() -> None:
    local = LocalActors(Club)
    message = wire.ActorMessage("request", "c", "club/1", msgspec.Raw(b'{"nonsense": 1}'))
    local.deliver(wire.CALL, wire.join([wire.encode(message)]))
    local.run()

    with pytest.raises(CallError, match="invalid stored operation"):
        local.outcome("c")
