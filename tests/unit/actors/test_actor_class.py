"""Classes of actors: what is wrong with them is said when they are made; who may call what."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest

from signalhub.actors import Actor, CallContext, CallError, RemoteError, alias, ref, remote, wire
from signalhub.actors.api.actor import method_of, remote_method
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.api.kinds import Kinds
from signalhub.actors.api.operation import Operation, encode_operation
from signalhub.testing.local_actors import CALLER
from tests.support.actors.scripted import Caller, Scripted, Stage


def test_the_kind_is_made_of_the_name_or_given() -> None:
    class PaymentGateway(Actor):
        pass

    class Shop(Actor):
        kind = "corner-shop"

    class Bakery(Shop):
        pass

    kinds = [cls.kind for cls in (PaymentGateway, Shop, Bakery)]
    assert kinds == ["payment-gateway", "corner-shop", "bakery"]
    with pytest.raises(ValueError, match="invalid kind"):
        type("Bad", (Actor,), {"kind": "No Kind"})


async def waits(self: Any, *args: Any) -> None: ...


def yields(self: Any) -> Any:
    yield 1


def plain(self: Any) -> None: ...


def other(self: Any) -> None: ...


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        *[({name: waits}, "is async") for name in ("on_start", "on_before_call")],
        *[
            ({name: remote(waits)}, "is async: handlers must be plain functions")
            for name in ("work", "on_start", "on_before_call")
        ],
        ({"method": remote(yields)}, "is async"),
        ({"_method": remote(plain)}, "a name with an underscore is never remote"),
        ({"old": plain, "new": alias("old")(other)}, "the alias old is a method of its own"),
        ({"one": alias("old")(plain), "two": alias("old")(other)}, "the alias old"),
    ],
)
def test_a_class_with_a_wrong_method_cannot_be_made(members: dict[str, Any], expected: str) -> None:
    with pytest.raises(TypeError, match=expected):
        type("Bad", (Actor,), members)


def test_a_guard_cannot_be_async_because_nobody_would_wait_for_it() -> None:
    with pytest.raises(TypeError, match="an async one would let every call pass"):
        remote(guard=waits)


def test_a_method_may_have_several_aliases_and_is_remote_under_each() -> None:
    class Renamed(Actor):
        @alias("first")
        @alias("second", "third")
        @remote
        def present(self) -> str:
            return "found"

        @alias("gone")
        def private(self) -> None: ...

    local = Stage(Renamed)
    for name in ("present", "first", "second", "third"):
        assert local.call("renamed/1", name) == "found"
    assert method_of(Renamed, "gone") == "private"
    assert remote_method(Renamed, "gone") is None


def test_remote_methods_are_inherited_and_may_be_overridden() -> None:
    class Base(Actor):
        @remote
        def kept(self) -> str:
            return "base"

        @remote
        def changed(self) -> str:
            return "base"

        @remote
        def closed(self) -> None: ...

    class Derived(Base):
        @remote
        def changed(self) -> str:
            return "derived"

        def closed(self) -> None: ...

    local = Stage(Derived)
    assert local.call("derived/1", "kept") == "base"
    assert local.call("derived/1", "changed") == "derived"
    with pytest.raises(RemoteError, match="no remote method closed"):
        local.call("derived/1", "closed")


def test_a_host_takes_one_class_of_a_kind_and_nothing_else() -> None:
    twin: Any = type("Twin", (Actor,), {"kind": "caller"})
    wrong: list[Any] = [Actor, int, "order"]

    for one in wrong:
        with pytest.raises(TypeError, match="is not a subclass of Actor"):
            Kinds([one], DurableConfig())
    with pytest.raises(TypeError, match="have the same kind caller"):
        Kinds([Caller, twin], DurableConfig())
    assert Kinds([Caller, Caller], DurableConfig()).names == ["caller"]


def test_an_actor_knows_its_address_the_time_and_its_context() -> None:
    def look(self: Caller) -> list[Any]:
        is_context = isinstance(self.context, CallContext)
        return [str(self.ref), self.key, repr(self), self.now_ms, is_context]

    local = Stage(Caller)
    seen = local.do("caller/a/b", look)

    assert seen == ["caller/a/b", "a/b", "<Caller caller/a/b>", local.clock.now_ms(), True]
    with pytest.raises(AttributeError):
        Actor(ref("order", "1")).ref = ref("order", "2")  # type: ignore[misc]


def test_a_slow_handler_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(Scripted):
        config_overrides: ClassVar = {"handler_warn_ms": 1}

    local = Stage(Slow)
    local.do("slow/1", lambda self: sum(range(300_000)))

    assert local.kernel.counters.slow == 1
    assert "blocked all actors of the host" in caplog.text


class Refused(Exception):
    """Raised by guards."""


def members_only(actor: Actor, context: CallContext) -> None:
    if context.caller != "caller/1":
        raise Refused(f"{context.caller} is no member of {actor.key}")


class Club(Scripted):
    kind = "target"

    @remote(guard=members_only)
    def dine(self) -> str:
        self.state.put("dined", True)
        return "enjoy"

    @remote(guard=None)
    def look(self) -> str:
        return "nice"

    def cook(self) -> None: ...

    def _count_silver(self) -> None: ...


def forged(operation: Operation | bytes) -> Any:
    """The answer to a sender that checks nothing."""
    local = Stage(Club)
    data = operation if isinstance(operation, bytes) else encode_operation(operation)
    message = wire.ActorMessage("request", "forged", "target/1", msgspec.Raw(data))
    local.deliver(wire.CALL, wire.join([wire.encode(message)]))
    local.run()
    return local.outcome("forged")


def test_marked_methods_are_callable_and_nothing_else() -> None:
    assert forged(Operation("look")) == "nice"
    hidden = ["cook", "_count_silver", "absent", "__init__", "on_start"]
    for method in (*hidden, "call", "state", "resolve", "kind"):
        for operation in (Operation(method), Operation("note", (Operation(method),))):
            with pytest.raises(RemoteError) as caught:
                forged(operation)
            assert caught.value.name == "NotCallable"
            assert f"Club has no remote method {method}" in str(caught.value)
    with pytest.raises(CallError, match="invalid stored operation"):
        forged(b'{"nonsense": 1}')


def test_an_outsider_cannot_pretend_to_be_somebody_else() -> None:
    class Asked(Scripted):
        kind = "target"

        @remote
        def who(self) -> list[Any]:
            return [self.context.caller, list(self.context.call_chain), self.context.auth]

    context = CallContext(("boss/1",), "root", {}, "x", "boss/1").encode()
    body = msgspec.Raw(encode_operation(Operation("who")))
    message = wire.ActorMessage("request", "c", "target/1", body, "boss/1", msgspec.Raw(context))
    local = Stage(Asked)
    local.deliver(wire.CALL, wire.join([wire.encode(message)]))
    local.run()

    assert local.outcome("c") == [CALLER, [], {"address": CALLER}]


def test_a_guard_decides_who_may_call() -> None:
    local = Stage(Club, Caller)
    local.do("caller/2", lambda self: self.call("target/1", Club.dine, then=self.note))
    assert local.notes("caller/2") == ["Refused: caller/2 is no member of 1"]
    assert local.state("target/1").list() == {}

    local.ask("dine")
    assert local.notes() == ["enjoy"]


def test_on_before_call_is_asked_before_every_remote_call_and_before_guards() -> None:
    class Watched(Scripted):
        kind = "target"

        def on_before_call(self, context: CallContext) -> None:
            seen.append(f"before {context.caller}")
            if context.caller == "caller/evil":
                raise Refused("not you")

        def look(self, context: CallContext) -> None:
            seen.append("guard")

        @remote(guard=look)
        def enter(self) -> None:
            seen.append("enter")
            # Continuations and alarms are no remote calls.
            self.alarms.schedule(0, self.note)
            self.call("caller/1", "note", then=self.note)

    seen: list[str] = []
    local = Stage(Watched, Caller)
    for name in ("good", "evil"):
        local.do(f"caller/{name}", lambda self: self.call("target/1", "enter", then=self.note))

    assert seen == ["before caller/good", "guard", "enter", "before caller/evil"]
    assert local.notes("caller/good") == [None]
    assert local.notes("caller/evil") == ["Refused: not you"]
    assert len(local.notes("target/1")) == 2
