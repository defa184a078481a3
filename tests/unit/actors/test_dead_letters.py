"""What actors have given up: kept, shown, tried again."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.actors import Actor, CallError, Token, alias, remote, wire
from signalhub.actors.kernel.calls import WaitingCall
from signalhub.actors.kernel.dead_letters import DeadLetter, Evidence, contents
from signalhub.testing.local_actors import LocalActors


class Echo(Actor):
    @remote
    def echo(self, value: Any) -> Any:
        return value

    @remote
    def later(self) -> Token:
        token = self.defer()
        self.state.put("token", token)
        return token

    @remote
    def answer(self, value: Any) -> None:
        self.resolve(self.state.get("token"), value)


class Asker(Actor):
    @remote
    def ask(self, method: str = "echo", *args: Any) -> None:
        self.call("echo/1", method, *args, then=self.on_done, timeout=None)

    @remote
    def letters(self) -> list[str]:
        return [letter.error for letter in self.dead_letters()]

    @remote
    def try_again(self) -> list[bool]:
        return [self.redrive(letter.id) for letter in self.dead_letters()]

    @remote
    def try_again_and_raise(self) -> None:
        assert all(self.try_again())
        raise ValueError("no")

    @remote
    def try_unknown(self) -> bool:
        return self.redrive("01ARZ3NDEKTSV4RRFFQ69G5FAV")

    def on_done(self, outcome: Any) -> None:
        if is_broken:
            raise KeyError("broken")
        self.state.put("got", [*self.state.get("got", []), outcome])


is_broken: list[bool] = []


@pytest.fixture
def buried(tmp_path: Any) -> LocalActors:
    """An actor with a dead letter: a continuation that failed for a reason now gone."""
    is_broken[:] = [True]
    local = LocalActors(Asker, Echo, path=tmp_path / "a.db")
    local.call("asker/1", "ask", "echo", 7)
    local.advance(60)
    is_broken.clear()
    assert len(letters(local)) == 1
    return local


def letters(local: LocalActors) -> list[DeadLetter]:
    return local.kernel.letters.of("asker/1")


def got(local: LocalActors) -> Any:
    return local.state("asker/1").get("got")


def test_an_actor_sees_its_letters(buried: LocalActors) -> None:
    assert buried.call("asker/1", "letters") == ["KeyError: 'broken'"]
    assert buried.call("asker/2", "letters") == []


def test_a_letter_survives_a_restart_and_is_redriven_with_its_outcome(buried: LocalActors) -> None:
    buried.restart()

    assert buried.call("asker/1", "try_again") == [True]
    assert got(buried) == [7]
    assert letters(buried) == []
    assert buried.kernel.store.execute("SELECT count(*) FROM pending").get == 0


def test_a_letter_is_redriven_once(buried: LocalActors) -> None:
    (letter,) = letters(buried)
    now_ms = buried.clock.now_ms()

    assert buried.kernel.letters.redrive("asker/1", letter.id, now_ms) is True
    assert buried.kernel.letters.redrive("asker/1", letter.id, now_ms) is False
    buried.run()
    assert got(buried) == [7]


def test_there_is_nothing_to_redrive_under_an_unknown_id(buried: LocalActors) -> None:
    assert buried.call("asker/1", "try_unknown") is False


def test_a_redriven_letter_that_fails_again_is_a_letter_again(buried: LocalActors) -> None:
    is_broken.append(True)
    buried.call("asker/1", "try_again")
    buried.advance(60)

    (letter,) = letters(buried)
    assert letter.attempts == 5


def test_a_redrive_in_a_handler_that_raises_has_not_happened(buried: LocalActors) -> None:
    with pytest.raises(ValueError, match="no"):
        buried.call("asker/1", "try_again_and_raise")
    buried.advance(60)

    assert got(buried) is None
    assert len(letters(buried)) == 1
    assert not buried.kernel.has_work
    assert buried.kernel.counters.late_results == 0
    assert buried.call("asker/1", "try_again") == [True]
    assert got(buried) == [7]


def test_a_letter_can_be_thrown_away(buried: LocalActors) -> None:
    (letter,) = letters(buried)

    assert buried.kernel.letters.purge("asker/1", letter.id) is True
    assert buried.kernel.letters.purge("asker/1", letter.id) is False
    assert letters(buried) == []


def test_people_can_read_a_letter(buried: LocalActors) -> None:
    (letter,) = letters(buried)
    shown = contents(buried.kernel.store, "asker/1", letter.id)

    assert shown is not None
    assert (shown["dest"], shown["method"]) == ("echo/1", "echo")
    assert shown["outcome"] == '{"ok":7}'
    assert shown["then"] == '{"m":"on_done","a":[],"k":{}}'
    assert contents(buried.kernel.store, "asker/1", "absent") is None


class Renamed(Asker):
    """`on_done` is gone."""

    kind = "asker"
    on_done = None  # type: ignore[assignment]


class Found(Renamed):
    """And has become another method."""

    kind = "asker"

    @alias("on_done")
    def on_outcome(self, outcome: Any) -> None:
        shown = repr(outcome) if isinstance(outcome, CallError) else outcome
        self.state.put("found", shown)


def test_a_continuation_whose_method_is_gone_is_a_letter_at_the_start(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    local = LocalActors(Asker, Echo, path=tmp_path / "a.db")
    local.call("asker/1", "ask", "later")
    local.restart(Renamed, Echo)
    local.run()

    (letter,) = letters(local)
    assert letter.error == "Renamed no longer has a method on_done"
    assert "is set aside" in caplog.text
    assert local.kernel.store.execute("SELECT count(*) FROM pending").get == 0


def test_the_outcome_that_comes_later_is_added_to_the_letter(tmp_path: Any) -> None:
    local = LocalActors(Asker, Echo, path=tmp_path / "a.db")
    local.call("asker/1", "ask", "later")
    local.restart(Renamed, Echo)
    local.call("echo/1", "answer", 8)
    assert local.kernel.counters.late_results == 0
    local.restart(Found, Echo)

    assert local.call("asker/1", "try_again") == [True]
    assert local.state("asker/1").get("found") == 8


def test_a_letter_without_an_outcome_waits_for_it_once_it_is_redriven(tmp_path: Any) -> None:
    local = LocalActors(Asker, Echo, path=tmp_path / "a.db")
    local.call("asker/1", "ask", "later")
    local.restart(Renamed, Echo)
    local.run()
    local.restart(Found, Echo)
    assert local.call("asker/1", "try_again") == [True]
    assert local.state("asker/1").get("found") is None
    local.call("echo/1", "answer", 8)

    assert local.state("asker/1").get("found") == 8


def test_a_second_outcome_for_a_letter_is_late(tmp_path: Any) -> None:
    local = LocalActors(Asker, Echo, path=tmp_path / "a.db")
    local.call("asker/1", "ask", "later")
    local.restart(Renamed, Echo)
    local.run()
    (letter,) = letters(local)
    assert local.kernel.letters.add_outcome("asker/1", letter.call_id, b'{"ok":1}') is True

    assert local.kernel.letters.add_outcome("asker/1", letter.call_id, b'{"ok":2}') is False


def test_a_continuation_whose_method_is_gone_when_its_outcome_is_there_is_not_tried_again(
    tmp_path: Any,
) -> None:
    is_broken[:] = [True]
    local = LocalActors(Asker, Echo, path=tmp_path / "a.db")
    local.call("asker/1", "ask", "echo", 7)
    local.restart(Renamed, Echo)
    local.advance(2)

    (letter,) = letters(local)
    assert "Renamed has no method on_done; if it was renamed, add @alias" in letter.error
    local.restart(Found, Echo)
    assert local.call("asker/1", "try_again") == [True]
    assert local.state("asker/1").get("found") == 7
    is_broken.clear()


@pytest.mark.parametrize(
    ("column", "expected"),
    [('"then"', "invalid payload"), ("context", "the context of the call cannot be read")],
)
def test_what_is_stored_and_cannot_be_read_is_a_letter_and_not_a_crash(
    tmp_path: Any, column: str, expected: str
) -> None:
    local = LocalActors(Asker, Echo, path=tmp_path / "a.db")
    local.call("asker/1", "ask", "later")
    with local.kernel.store.transaction():
        local.kernel.store.execute(f"UPDATE pending SET {column} = ?", (b"nonsense",))
    local.restart()
    local.call("echo/1", "answer", 8)

    (letter,) = letters(local)
    assert expected in letter.error


def test_a_gone_catch_is_a_letter_at_the_start_as_well(tmp_path: Any) -> None:
    class Catching(Actor):
        @remote
        def ask(self) -> None:
            self.call("echo/1", "later", then=self.on_value, catch=self.on_error)

        def on_value(self, value: Any) -> None: ...

        def on_error(self, error: CallError) -> None: ...

    class Bold(Actor):
        kind = "catching"

        def on_value(self, value: Any) -> None: ...

    local = LocalActors(Catching, Echo, path=tmp_path / "a.db")
    local.call("catching/1", "ask")
    local.restart(Bold, Echo)
    local.run()

    assert "no longer has a method on_error" in local.kernel.letters.of("catching/1")[0].error


def test_calls_of_a_kind_that_is_not_served_any_more_are_left_alone(tmp_path: Any) -> None:
    local = LocalActors(Asker, Echo, path=tmp_path / "a.db")
    local.call("asker/1", "ask", "later")
    local.restart(Echo)
    local.run()

    assert letters(local) == []
    local.restart(Asker, Echo)
    local.call("echo/1", "answer", 8)
    assert got(local) == [8]


def test_what_could_not_be_read_is_shown_and_cannot_be_redriven() -> None:
    local = LocalActors(Echo)
    local.deliver(wire.BATCH, b"\xffnonsense", "@(actors/new)")
    local.run()
    (letter,) = local.kernel.letters.of("")

    shown = contents(local.kernel.store, "", letter.id)
    assert shown is not None
    assert "nonsense" in shown["data"]
    assert local.kernel.letters.redrive("", letter.id, local.clock.now_ms()) is False
    assert len(local.kernel.letters.of("")) == 1


@pytest.mark.parametrize("outcome", [None, b"{}"])
def test_what_a_call_leaves_behind_is_enough_to_wait_for_it_again(outcome: bytes | None) -> None:
    calls = LocalActors(Asker, Echo).kernel.calls
    waiting = WaitingCall("c1", "echo/1", "echo", b"then", b"catch", True, b"null")
    evidence = Evidence.of(waiting, outcome)

    item = calls.restore("asker/1", "c1", evidence)

    assert calls.find("asker/1", "c1") == waiting
    assert evidence.outcome == outcome
    assert (item is None) == (outcome is None)
