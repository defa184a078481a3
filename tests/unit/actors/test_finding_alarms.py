"""Alarms by their ids, lists of them, and alarms that cannot be set."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from signalhub.actors import RESULT, AlarmType, cont, op, remote
from signalhub.testing.local_actors import LocalActors
from tests.support.actors.alarms import START, Clock, left, rung, set_alarm


@pytest.fixture
def local() -> LocalActors:
    return LocalActors(Clock)


def test_the_same_id_replaces_the_alarm(local: LocalActors) -> None:
    set_alarm(local, 5, "first", id="one")
    set_alarm(local, 9, "second", id="one")
    local.advance(60)

    assert rung(local) == [["second", 9_000]]


def test_an_alarm_is_found_by_its_id(local: LocalActors) -> None:
    set_alarm(local, 5, id="one")

    due = START + timedelta(seconds=5)
    assert local.call("clock/1", "about", "one") == ["delayed", due, "pending", 0]
    assert local.call("clock/1", "about", "two") is None


def test_an_alarm_is_cancelled_once(local: LocalActors) -> None:
    set_alarm(local, 5, id="one")

    assert local.call("clock/1", "cancel", "one") == "x"
    assert local.call("clock/1", "cancel", "one") is None
    local.advance(60)
    assert rung(local) == []


def test_alarms_of_other_actors_are_out_of_reach(local: LocalActors) -> None:
    set_alarm(local, 5, id="one")

    assert local.call("clock/2", "about", "one") is None
    assert local.call("clock/2", "cancel", "one") is None
    assert local.call("clock/2", "shown") == []


def test_alarms_are_listed_by_time_and_filtered(local: LocalActors) -> None:
    set_alarm(local, 30, "delayed")
    set_alarm(local, START + timedelta(seconds=20), "scheduled")
    set_alarm(local, "0 0 * * *", "cron")
    set_alarm(local, 10, "interval", method="every")

    def shown(**filters: Any) -> Any:
        return local.call("clock/1", op("shown", **filters))

    assert shown() == ["interval", "scheduled", "delayed", "cron"]
    for kind in AlarmType:
        assert shown(type=kind.value) == [kind.value]
    assert shown(status="pending") == ["interval", "scheduled", "delayed", "cron"]
    assert shown(status="skipped") == []
    assert shown(start=START + timedelta(seconds=20)) == ["scheduled", "delayed", "cron"]
    assert shown(end=START + timedelta(seconds=20)) == ["interval", "scheduled"]
    naive = (START + timedelta(seconds=30)).replace(tzinfo=None)
    assert shown(start=naive, end=naive) == ["delayed"]
    assert shown(type="cron", end=START) == []
    with pytest.raises(ValueError, match="nonsense"):
        shown(type="nonsense")


def test_trigger_runs_the_earliest_even_if_they_are_not_due(local: LocalActors) -> None:
    for seconds in (300, 100, 200):
        set_alarm(local, seconds, f"{seconds} s")

    assert local.call("clock/1", "trigger", 2) == 2
    assert [name for name, _ in rung(local)] == ["100 s", "200 s"]
    assert local.call("clock/1", "trigger") == 0
    assert local.call("clock/1", "trigger", 9) == 1
    assert local.call("clock/1", "trigger", 9) == 0
    assert len(rung(local)) == 3


def test_trigger_without_a_number_runs_what_is_overdue(local: LocalActors) -> None:
    class Late(Clock):
        @remote
        def go(self) -> int:
            self.alarms.schedule(-1, self.ring, "overdue")
            self.alarms.schedule(60, self.ring, "not yet")
            return self.alarms.trigger()

    local = LocalActors(Late)

    assert local.call("late/1", "go") == 1
    assert local.state("late/1").get("rung") == [["overdue", 0]]


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        (lambda actor: actor.alarms.schedule(object(), actor.ring), "invalid time"),
        (lambda actor: actor.alarms.schedule("every day", actor.ring), "invalid cron expression"),
        (
            lambda actor: actor.alarms.schedule("* * * * *", actor.ring, tz="Mars/X"),
            "unknown time zone",
        ),
        (lambda actor: actor.alarms.schedule(1, print), "a continuation must be a method"),
        (lambda actor: actor.alarms.schedule(1, "absent"), "has no method 'absent'"),
        (lambda actor: actor.alarms.schedule(1, actor.ring, object()), "argument 1"),
        (lambda actor: actor.alarms.schedule(1, actor.ring, id=""), "the id of an alarm"),
        (lambda actor: actor.alarms.schedule(1, actor.ring, id=7), "the id of an alarm"),
        (lambda actor: actor.alarms.schedule(1, actor.ring, max_attempts=0), "max_attempts"),
        (lambda actor: actor.alarms.schedule(1, cont(actor.ring, RESULT)), "an alarm has none"),
        (lambda actor: actor.alarms.schedule(1, actor.wait), "wait is async"),
        (lambda actor: actor.alarms.every(0, actor.ring), "invalid interval 0"),
        (lambda actor: actor.alarms.every("x", actor.ring), "invalid time"),
    ],
)
def test_a_wrong_alarm_is_refused_at_once_and_leaves_nothing(attempt: Any, expected: str) -> None:
    class Wrong(Clock):
        @remote
        def try_it(self) -> str:
            try:
                attempt(self)
            except (TypeError, ValueError) as error:
                return str(error)
            return "it was set"

        async def wait(self) -> None: ...

    local = LocalActors(Wrong)

    assert expected in local.call("wrong/1", "try_it")
    assert left(local) == 0
