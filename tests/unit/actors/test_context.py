"""What rides along with a call."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.actors.api.config import CHAIN_MAX, CallContext, fresh
from signalhub.actors.api.payload import PayloadError

FULL = CallContext(
    call_chain=("order/1", "stock/2"),
    auth={"user": "ada", "roles": ["admin"]},
    state={"trace": [1, 2]},
    call_id="c1",
    caller="stock/2",
)


@pytest.mark.parametrize("context", [FULL, CallContext(), CallContext(auth=("a", 1))])
def test_a_context_is_the_same_after_storing(context: CallContext) -> None:
    assert CallContext.decode(context.encode()) == context


def test_a_message_without_context_has_a_fresh_one() -> None:
    assert CallContext.decode(b"null") == fresh() == CallContext()


def test_every_fresh_context_has_a_state_of_its_own() -> None:
    fresh().state["x"] = 1

    assert fresh().state == {}


def test_the_chain_grows_with_each_call() -> None:
    child = fresh().child("order/1").child("stock/2", call_id="c9")

    assert child.call_chain == ("order/1", "stock/2")
    assert (child.caller, child.call_id) == ("stock/2", "c9")


def test_actors_that_call_each_other_for_ever_do_not_grow_the_chain_for_ever() -> None:
    context = fresh().child("origin/1")
    for number in range(3 * CHAIN_MAX):
        context = context.child(f"ping/{number}")

    assert len(context.call_chain) == CHAIN_MAX
    assert context.call_chain[0] == "origin/1"
    assert context.call_chain[-2:] == ("ping/298", "ping/299")


def test_rights_reach_the_child_and_nobody_can_change_them() -> None:
    rights: dict[str, Any] = {"roles": ["admin"], "more": {"tags": {"x"}}}
    context = CallContext(auth=rights)
    rights["roles"].append("root")
    child = context.child("order/1")

    assert child.auth == {"roles": ("admin",), "more": {"tags": frozenset({"x"})}}
    with pytest.raises(TypeError):
        child.auth["user"] = "eve"
    with pytest.raises(AttributeError):
        child.auth = None  # type: ignore[misc]


def test_the_state_is_captured_as_it_is_now() -> None:
    context = CallContext(state={"seen": [1]})
    child = context.child("order/1")
    context.state["seen"].append(2)
    child.state["seen"].append(3)

    assert child.state == {"seen": [1, 3]}
    assert context.state == {"seen": [1, 2]}


def test_what_cannot_be_stored_is_named() -> None:
    with pytest.raises(PayloadError, match=r"the call context: state\.lock: object cannot"):
        CallContext(state={"lock": object()}).encode()
    with pytest.raises(PayloadError, match=r"lock: object cannot"):
        CallContext(state={"lock": object()}).child("order/1")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"5",
        b"[]",
        b'{"other":1}',
        b'{"chain":"x"}',
        b'{"chain":[1]}',
        b'{"state":[]}',
        b'{"call":1}',
        b'{"call":null}',
        b'{"caller":1}',
        b'{"caller":[]}',
    ],
)
def test_what_is_no_context_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        CallContext.decode(data)
