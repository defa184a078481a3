"""What goes along with calls, and comes back to continuations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from signalhub.actors import Retry
from signalhub.actors.api.config import CHAIN_MAX, CallContext, StoredContext, fresh
from signalhub.actors.api.payload import PayloadError
from signalhub.testing.local_actors import CALLER
from tests.support.actors.scripted import Caller, Stage, Target, calling, number_of, stored

FULL = CallContext(
    call_chain=("order/1", "stock/2"),
    auth={"user": "ada", "roles": ["admin"]},
    state={"trace": [1, 2]},
    call_id="c1",
    caller="stock/2",
)


def test_a_context_is_the_same_after_storing_and_fresh_without_one() -> None:
    for context in (FULL, CallContext(), CallContext(auth=("a", 1))):
        assert CallContext.decode(context.encode()) == context
    fresh().state["x"] = 1
    assert CallContext.decode(b"null") == fresh() == CallContext()


def test_the_chain_grows_with_each_call_up_to_a_limit() -> None:
    context = fresh().child("origin/1", call_id="c9")
    assert (context.caller, context.call_id) == ("origin/1", "c9")
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


@pytest.mark.parametrize(
    "data",
    [
        b"null",
        b"{}",
        b'{"call":"c1"}',
        b'{"chain":["order/1"],"call":"c1","caller":"order/1"}',
        b'{"chain":["order/1"],"auth":{"call":"c0","at":[1]},"call":"c1","caller":"order/1"}',
        b'{"call":"c1","auth":{"call":"c0"}}',
        b'{"call":"c1","call":"c2"}',
        b'{"caller":"\\"call\\":\\"c3","call":"c1"}',
        b'{ "call": "c1", "caller": null }',
        b'{"c\\u0061ll":"c1","caller":"\x7f"}',
        b'{"auth":"\x7f","call":"c1"}',
        b'{"auth":{"$":"tuple","v":[1]},"call":"c1"}',
        b'{"state":{"x":1},"call":"c1"}',
        '{"chain":["order/é"],"call":"é","caller":"order/é"}'.encode(),
        b'{"auth":"%b","call":"c1"}' % (b"x" * 5_000),
    ],
)
def test_what_is_remembered_of_contexts_changes_nothing(data: bytes) -> None:
    plain = CallContext._decoded(data)
    for _ in range(2):
        stored = StoredContext(data)
        assert stored.context == plain
        assert CallContext.decode(stored.own()) == plain
        for call_id in ("c8", "01HZZZZZZZZZZZZZZZZZZZZZZZ"):
            child = CallContext.decode(stored.child("stock/ß", call_id))
            assert child == plain.child("stock/ß", call_id=call_id)

        stored.context.state["own"] = 1
        assert CallContext.decode(stored.own()).state["own"] == 1
        assert CallContext.decode(stored.child("stock/1", "c9")).state["own"] == 1


def test_an_invalid_context_is_refused() -> None:
    with pytest.raises(PayloadError, match=r"the call context: state\.lock: object cannot"):
        CallContext(state={"lock": object()}).encode()
    with pytest.raises(PayloadError, match=r"lock: object cannot"):
        CallContext(state={"lock": object()}).child("order/1")
    fields = [b'"other":1', b'"chain":"x"', b'"chain":[1]', b'"state":[]']
    fields += [b'"call":1', b'"call":null', b'"caller":1', b'"caller":[]']
    for data in (b"", b"5", b"[]", *(b"{%b}" % field for field in fields)):
        with pytest.raises(PayloadError):
            CallContext.decode(data)


def look(self: Target) -> dict[str, Any]:
    """What a call came with."""
    context = self.context
    context.state["changed by"] = "target"
    return {
        "chain": list(context.call_chain),
        "caller": context.caller,
        "call_id": context.call_id,
        "state": dict(context.state),
        "auth": context.auth,
    }


def note_context(self: Caller, seen: dict[str, Any]) -> None:
    self.note([seen, list(self.context.call_chain), dict(self.context.state)])


def pass_on(self: Caller, name: str, **options: Any) -> str:
    """Call `look`, with something in the context, and note what it saw and what came back."""
    self.context.state["name"] = name
    done = self.script(note_context)
    call_id = self.call("target/1", "run", number_of(look), then=done, **options)
    self.context.state["name"] = "changed after the call"
    return call_id


def pass_on_alone(self: Caller, name: str) -> str:
    return pass_on(self, name, new_chain=True)


@pytest.fixture
def local() -> Stage:
    return Stage(Caller, Target)


def test_everything_goes_along_with_a_call_as_it_was_then(local: Stage) -> None:
    callees = {"caller/2": "a", "caller/3": "b"}
    for address, name in callees.items():
        local.start("caller/1", calling("run", number_of(pass_on), name, target=address))
    local.run()

    for address, name in callees.items():
        ((seen, chain, state),) = local.notes(address)
        assert (chain, state) == (["caller/1"], {"name": name})
        assert seen["chain"] == ["caller/1", address]
        assert seen["caller"] == address
        assert seen["auth"] == {"address": CALLER}, "who outside began it all"
        assert seen["state"] == {"name": name, "changed by": "target"}


def test_each_call_is_known_by_its_id_and_has_the_state_of_its_moment(local: Stage) -> None:
    call_ids = local.do("caller/1", lambda self: [pass_on(self, name) for name in "abc"])

    seen = [[one["call_id"], one["state"]["name"], state] for one, _, state in local.notes()]
    assert seen == [
        [call_id, name, {"name": name}] for call_id, name in zip(call_ids, "abc", strict=True)
    ]


def test_a_new_chain_starts_afresh_and_its_continuation_is_in_the_old_one(local: Stage) -> None:
    local.do("caller/1", calling("run", number_of(pass_on_alone), "a", target="caller/2"))

    ((seen, chain, state),) = local.notes("caller/2")
    assert (seen["chain"], seen["state"]) == (["caller/2"], {"changed by": "target"})
    assert seen["auth"] is None
    assert (chain, state) == (["caller/1"], {"name": "a"})


def test_sends_take_the_context_along_and_alarms_start_a_fresh_one(local: Stage) -> None:
    def send(self: Caller) -> None:
        self.send("caller/2", "run", number_of(pass_on), "y")
        self.send("target/2", "note", self.context.auth)
        self.context.state["name"] = "x"
        self.alarms.schedule(1, self.script(lambda self: self.note(self.context == CallContext())))

    local.do("caller/1", send)
    local.advance(1)

    assert local.notes("caller/2")[0][0]["chain"] == ["caller/1", "caller/2"]
    assert local.notes("target/2") == [{"address": CALLER}]
    assert local.notes() == [True]
    outside = local.do("target/1", look)
    assert (outside["chain"], outside["caller"]) == ([], CALLER)


def test_a_context_survives_restarts(tmp_path: Path) -> None:
    local = stored(tmp_path)
    local.start("caller/1", calling("run", number_of(pass_on), "a", target="caller/2"))
    for _ in range(12):
        local.turn()
        local.restart()
    local.run()

    assert local.notes("caller/2")[0][1:] == [["caller/1"], {"name": "a"}]


def test_a_handler_that_is_tried_again_starts_with_the_context_as_it_came(local: Stage) -> None:
    def spoil(self: Target) -> None:
        seen.append(dict(self.context.state))
        self.context.state["spoilt"] = True
        if len(seen) < 3:
            raise Retry(after=1)

    seen: list[dict[str, Any]] = []
    local.start("target/1", spoil)
    local.advance(5)

    assert seen == [{}, {}, {}]
