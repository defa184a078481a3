"""What rides along with calls from actor to actor, and comes back to continuations."""

from __future__ import annotations

from typing import Any

from signalhub.actors import Actor, CallContext, Retry, remote
from signalhub.testing.local_actors import CALLER, LocalActors


class Last(Actor):
    """Says what it was called with."""

    @remote
    def look(self) -> dict[str, Any]:
        context = self.context
        context.state["changed by"] = "last"
        return {
            "chain": list(context.call_chain),
            "caller": context.caller,
            "call_id": context.call_id,
            "state": dict(context.state),
            "auth": context.auth,
        }


class Middle(Actor):
    @remote
    def pass_on(self, name: str, new_chain: bool = False) -> None:
        self.context.state["name"] = name
        self.call("last/1", Last.look, then=self.on_look, new_chain=new_chain)
        self.context.state["name"] = "changed after the call"

    def on_look(self, seen: dict[str, Any]) -> None:
        self.state.put("seen", seen)
        self.state.put("context", [list(self.context.call_chain), dict(self.context.state)])


class First(Actor):
    @remote
    def go(self, name: str, new_chain: bool = False) -> None:
        self.call(f"middle/{name}", Middle.pass_on, name, new_chain)


def seen(*args: Any) -> Any:
    local = LocalActors(First, Middle, Last)
    local.call("first/1", "go", *args)
    return local.state(f"middle/{args[0]}").get("seen")


def test_the_chain_grows_with_every_call() -> None:
    assert seen("a")["chain"] == ["first/1", "middle/a"]
    assert seen("a")["caller"] == "middle/a"


def test_everybody_knows_who_outside_began_it_all() -> None:
    assert seen("a")["auth"] == {"address": CALLER}


def test_rights_can_be_stored_and_passed_on_as_they_are() -> None:
    class Notary(Actor):
        @remote
        def note(self) -> None:
            self.state.put("who", self.context.auth)
            self.call("notary/2", "keep", self.context.auth, new_chain=True)

        @remote
        def keep(self, who: dict[str, str]) -> None:
            self.state.put("who", who)

    local = LocalActors(Notary)
    local.call("notary/1", "note")

    assert local.state("notary/1").get("who") == {"address": CALLER}
    assert local.state("notary/2").get("who") == {"address": CALLER}


def test_each_call_is_known_by_its_id() -> None:
    class Asker(Actor):
        @remote
        def ask(self) -> str:
            return self.call("last/1", Last.look, then=self.keep)

        def keep(self, seen: dict[str, Any]) -> None:
            self.state.put("call_id", seen["call_id"])

    local = LocalActors(Asker, Last)

    assert local.call("asker/1", "ask") == local.state("asker/1").get("call_id")


def test_the_state_goes_along_as_it_was_when_the_call_was_made() -> None:
    assert seen("a")["state"] == {"name": "a", "changed by": "last"}


def test_a_continuation_has_the_context_the_call_was_made_in() -> None:
    local = LocalActors(First, Middle, Last)
    local.call("first/1", "go", "a")

    assert local.state("middle/a").get("context") == [["first/1"], {"name": "a"}]


def test_a_new_chain_starts_afresh_and_the_continuation_is_still_in_the_old_one() -> None:
    local = LocalActors(First, Middle, Last)
    local.call("first/1", "go", "a", True)

    look = local.state("middle/a").get("seen")
    assert (look["chain"], look["state"]) == (["middle/a"], {"changed by": "last"})
    assert look["auth"] is None
    assert local.state("middle/a").get("context") == [["first/1"], {"name": "a"}]


def test_contexts_of_calls_made_at_the_same_time_do_not_mix() -> None:
    local = LocalActors(First, Middle, Last)
    for name in "abc":
        local.begin("first/1", "go", name)
    local.run()

    for name in "abc":
        assert local.state(f"middle/{name}").get("context") == [["first/1"], {"name": name}]


def test_several_calls_of_one_handler_have_the_state_of_their_moment() -> None:
    class Asker(Actor):
        @remote
        def ask(self) -> None:
            for number in range(3):
                self.context.state["number"] = number
                self.call("last/1", Last.look, then=self.keep)

        def keep(self, seen: dict[str, Any]) -> None:
            got = [seen["state"]["number"], self.context.state["number"]]
            self.state.put("got", [*self.state.get("got", []), got])

    local = LocalActors(Asker, Last)
    local.call("asker/1", "ask")

    assert local.state("asker/1").get("got") == [[0, 0], [1, 1], [2, 2]]


def test_a_send_takes_the_context_along() -> None:
    class Sender(Actor):
        @remote
        def tell(self) -> None:
            self.context.state["name"] = "x"
            self.send("middle/1", "pass_on", "y")

    local = LocalActors(Sender, Middle, Last)
    local.call("sender/1", "tell")

    assert local.state("middle/1").get("seen")["chain"] == ["sender/1", "middle/1"]


def test_an_alarm_starts_a_fresh_context() -> None:
    class Sleeper(Actor):
        @remote
        def go(self) -> None:
            self.context.state["name"] = "x"
            self.alarms.schedule(1, self.wake)

        def wake(self) -> None:
            fresh = self.context == CallContext()
            self.state.put("is_fresh", fresh)

    local = LocalActors(Sleeper)
    local.call("sleeper/1", "go")
    local.advance(1)

    assert local.state("sleeper/1").get("is_fresh") is True


def test_a_call_from_outside_names_its_sender_and_nothing_else() -> None:
    look = LocalActors(Last).call("last/1", "look")

    assert (look["chain"], look["caller"]) == ([], CALLER)


def test_a_context_survives_a_restart(tmp_path: Any) -> None:
    local = LocalActors(First, Middle, Last, path=tmp_path / "a.db")
    local.begin("first/1", "go", "a")
    for _ in range(12):
        local.turn()
        local.restart()
    local.run()

    assert local.state("middle/a").get("context") == [["first/1"], {"name": "a"}]


def test_a_handler_that_is_tried_again_starts_with_the_context_as_it_came() -> None:
    class Trying(Actor):
        @remote
        def look(self) -> None:
            seen_states.append(dict(self.context.state))
            self.context.state["spoilt"] = True
            if len(seen_states) < 3:
                raise Retry(after=1)

    seen_states: list[dict[str, Any]] = []
    local = LocalActors(Trying)
    local.begin("trying/1", "look")
    local.advance(5)

    assert seen_states == [{}, {}, {}]
