"""What is wrong with a class of actors is said when it is made, or when a host is given it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from signalhub.actors import Actor, CallContext, alias, ref, remote
from signalhub.actors.api.actor import method_of, remote_method
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.api.kinds import Kinds
from signalhub.testing.local_actors import LocalActors


def test_the_kind_is_made_of_the_name_or_given() -> None:
    class PaymentGateway(Actor):
        pass

    class Shop(Actor):
        kind = "corner-shop"

    class Bakery(Shop):
        pass

    assert (PaymentGateway.kind, Shop.kind, Bakery.kind) == (
        "payment-gateway",
        "corner-shop",
        "bakery",
    )


def test_a_kind_that_cannot_be_an_address_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid kind"):
        type("Bad", (Actor,), {"kind": "No Kind"})


@pytest.mark.parametrize("name", ["work", "on_start", "on_before_call"])
def test_methods_that_are_called_by_the_host_cannot_be_async(name: str) -> None:
    async def method(self: Any, *args: Any) -> None: ...

    with pytest.raises(TypeError, match="is async: handlers must be plain functions"):
        type("Bad", (Actor,), {name: remote(method)})


@pytest.mark.parametrize("name", ["on_start", "on_before_call"])
def test_hooks_cannot_be_async_without_a_mark_either(name: str) -> None:
    async def method(self: Any, *args: Any) -> None: ...

    with pytest.raises(TypeError, match="is async"):
        type("Bad", (Actor,), {name: method})


def test_a_generator_cannot_be_remote() -> None:
    def method(self: Any) -> Any:
        yield 1

    with pytest.raises(TypeError, match="is async"):
        type("Bad", (Actor,), {"method": remote(method)})


def test_a_name_with_an_underscore_is_never_remote() -> None:
    def method(self: Any) -> None: ...

    with pytest.raises(TypeError, match="a name with an underscore is never remote"):
        type("Bad", (Actor,), {"_method": remote(method)})


def test_an_alias_cannot_be_the_name_of_another_method() -> None:
    def old(self: Any) -> None: ...

    def new(self: Any) -> None: ...

    with pytest.raises(TypeError, match="the alias old is a method of its own"):
        type("Bad", (Actor,), {"old": old, "new": alias("old")(new)})


def test_two_methods_cannot_have_the_same_alias() -> None:
    def one(self: Any) -> None: ...

    def two(self: Any) -> None: ...

    with pytest.raises(TypeError, match="the alias old"):
        type("Bad", (Actor,), {"one": alias("old")(one), "two": alias("old")(two)})


def test_a_method_may_have_several_aliases_and_is_remote_under_each() -> None:
    class Renamed(Actor):
        @alias("first")
        @alias("second", "third")
        @remote
        def present(self) -> str:
            return "found"

        @alias("gone")
        def private(self) -> None: ...

    local = LocalActors(Renamed)

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
        def closed(self) -> str:
            return "base"

    class Derived(Base):
        @remote
        def changed(self) -> str:
            return "derived"

        def closed(self) -> str:
            return "derived"

    local = LocalActors(Derived)

    assert local.call("derived/1", "kept") == "base"
    assert local.call("derived/1", "changed") == "derived"
    with pytest.raises(Exception, match="no remote method closed"):
        local.call("derived/1", "closed")


def test_overrides_are_checked_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match="unknown key 'call_timeout'"):
        type("Bad", (Actor,), {"config_overrides": {"call_timeout": 1}})
    with pytest.raises(TypeError, match="must be an int"):
        type("Bad", (Actor,), {"config_overrides": {"call_timeout_ms": "1"}})


def test_tombstones_shorter_than_a_timeout_are_refused_when_the_class_is_made() -> None:
    with pytest.raises(ValueError, match="must exceed call_timeout_ms"):
        type("Bad", (Actor,), {"config_overrides": {"call_timeout_ms": 86_400_000}})


def test_a_class_overrides_its_parents_and_these_the_host() -> None:
    class Parent(Actor):
        config_overrides: ClassVar = {"max_args": 7, "max_depth": 7}

    class Child(Parent):
        config_overrides: ClassVar = {"max_args": 8}

    kinds = Kinds([Parent, Child], DurableConfig(max_args=9, max_depth=9, retry_base_ms=9))

    def settings(kind: str) -> tuple[int, int, int]:
        config = kinds.config(kind)
        return config.max_args, config.max_depth, config.retry_base_ms

    assert (settings("parent"), settings("child")) == ((7, 7, 9), (8, 7, 9))
    assert list(kinds) == ["parent", "child"]
    assert kinds.names == ["child", "parent"]


@pytest.mark.parametrize("wrong", [Actor, int, "order"])
def test_a_host_takes_only_classes_of_actors(wrong: Any) -> None:
    with pytest.raises(TypeError, match="is not a subclass of Actor"):
        Kinds([wrong], DurableConfig())


def test_a_host_takes_one_class_of_a_kind() -> None:
    class One(Actor):
        kind = "same"

    class Other(Actor):
        kind = "same"

    with pytest.raises(TypeError, match="have the same kind same"):
        Kinds([One, Other], DurableConfig())
    assert Kinds([One, One], DurableConfig()).names == ["same"]


def test_an_actor_knows_its_address_the_time_and_its_context() -> None:
    class Self(Actor):
        @remote
        def look(self) -> list[Any]:
            is_context = isinstance(self.context, CallContext)
            return [str(self.ref), self.key, repr(self), self.now_ms, is_context]

    local = LocalActors(Self)

    assert local.call("self/a/b", "look") == [
        "self/a/b",
        "a/b",
        "<Self self/a/b>",
        local.clock.now_ms(),
        True,
    ]


def test_the_address_of_an_actor_does_not_change() -> None:
    actor = Actor(ref("order", "1"))

    with pytest.raises(AttributeError):
        actor.ref = ref("order", "2")  # type: ignore[misc]


def test_a_slow_handler_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(Actor):
        config_overrides: ClassVar = {"handler_warn_ms": 1}

        @remote
        def work(self) -> int:
            return sum(range(300_000))

    local = LocalActors(Slow)
    local.call("slow/1", "work")

    assert local.kernel.counters.slow == 1
    assert "blocked all actors of the host" in caplog.text
