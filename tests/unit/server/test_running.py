"""Steps of the core that are not messages of actors, and the effects of rooms."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from signalhub.core import refusals
from signalhub.core.effects import Answer, Append, Consult, Effect, Fetch, Recall
from signalhub.core.messages.dedup import Recalled
from signalhub.core.rooms.values import Accepted, Archived, Result
from signalhub.wire.entry import Entry, Kind, Settlement
from tests.support.memory.write_path import Stage

SECRET = "room-of-somebody"
ACCEPTED = Accepted(SECRET, 1, False, None)
ENTRY = Entry(Kind.ROOM_MESSAGE, "a stream", 1, 1, 0, b"")
REFUSAL = refusals.storage_full()


class Caller:
    """Somebody who waits for an answer."""

    def __init__(self) -> None:
        self.answers: list[tuple[Result, str]] = []

    def answer(self, result: Result, message_id: str) -> None:
        self.answers.append((result, message_id))


class Broken:
    """Somebody who cannot be answered."""

    def answer(self, result: Result, message_id: str) -> None:
        raise LookupError(message_id)


class Shelf:
    """An archive that answers when the test says so."""

    position = 0

    def __init__(self) -> None:
        self.asked: list[Consult] = []
        self.done: Callable[[list[Archived] | None], None]

    def consult(self, consult: Consult, done: Callable[[list[Archived] | None], None]) -> None:
        self.asked.append(consult)
        self.done = done


def explode(*_: object) -> list[Effect]:
    raise LookupError(SECRET)


def kept_in(found: list[Any]) -> Callable[[Any, int], list[Effect]]:
    """What an effect leads to is kept."""

    def then(some: Any, now: int) -> list[Effect]:
        found.append(some)
        return []

    return then


def consult(then: Callable[[Any, int], list[Effect]]) -> Consult:
    return Consult("an inbox", 1, 10, 10, then)


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as an error, after checking that nobody is named."""
    assert SECRET not in caplog.text
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


def test_a_step_gets_the_time_of_the_tick_and_its_effects_are_performed() -> None:
    caller = Caller()
    times: list[int] = []

    def step(now: int) -> list[Effect]:
        times.append(now)
        return [Answer(caller, ACCEPTED, SECRET)]

    with Stage() as stage:
        assert stage.runner.run(step)
        stage.clock.advance(0.5)
        assert stage.runner.run(step)
        stage.loop.run_dry()
        assert stage.runner.run(step)

    assert times[0] == times[1] == times[2] - 500
    assert caller.answers == [(ACCEPTED, SECRET)] * 3


def test_a_failing_step_is_logged_without_its_words_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Stage() as stage:
        assert not stage.runner.run(explode)
        stage.loop.run_dry()
        assert stage.writer.tick_ms == 0

    assert faults(caplog) == ["a request could not be handled"]
    assert "LookupError" in caplog.text


@pytest.mark.parametrize(
    ("effect", "fault"),
    [
        (Answer(Broken(), ACCEPTED, SECRET), "a request could not be answered"),
        (Append(ENTRY, explode), "a committed entry could not be handled"),
        (Fetch("a stream", 1, 1, 1, 1, explode), "a request could not be handled"),
        (consult(explode), "a request could not be handled"),
    ],
    ids=["answer", "commit", "read", "archive"],
)
def test_a_fault_behind_an_effect_is_logged_without_its_words_and_stops_nobody(
    effect: Effect, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caller, shelf = Caller(), Shelf()
    with Stage(shelf) as stage:
        assert stage.runner.run(lambda now: [effect, Answer(caller, ACCEPTED, SECRET)])
        stage.loop.run_dry()
        for _ in shelf.asked:
            shelf.done([])

    assert len(caller.answers) == 1
    assert faults(caplog) == [fault]


def test_a_fault_behind_a_refusal_is_logged_and_the_other_entries_are_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused: list[Any] = []
    answered = Append(ENTRY, explode, kept_in(refused))

    with Stage() as stage:
        stage.runner.refused([answered, Append(ENTRY, explode, explode)], REFUSAL, is_final=False)

    assert refused == [REFUSAL]
    assert "a refused entry could not be handled" in caplog.text
    assert SECRET not in caplog.text


def test_a_fault_in_the_dispatch_does_not_hold_back_entries_of_others() -> None:
    landed: list[Any] = []

    with Stage() as stage:
        # A settlement that cannot be written.
        stage.hub.asks.loose.append(cast(Settlement, object()))
        stage.runner.run(lambda now: [Append(ENTRY, kept_in(landed))])
        with pytest.raises(TypeError):
            stage.loop.run_dry()
        # The loop goes on after an exception.
        stage.loop.run_dry()

    assert landed


@pytest.mark.parametrize("known", [[Recalled(7), Recalled()], [], None])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_the_store_recalls_comes_back_to_the_loop_unless_it_has_stopped(
    known: list[Recalled] | None, is_stopped: bool
) -> None:
    recalled: list[list[Recalled] | None] = []

    with Stage() as stage:
        stage.runner.run(lambda now: [Recall([b"key"], 0, kept_in(recalled))])
        ((keys, done),) = stage.rows.recalled
        if is_stopped:
            stage.runner.stop()
        # This is what the store's own thread does.
        done(known)
        assert recalled == []
        stage.loop.run_dry()

    assert keys == [b"key"]
    assert recalled == ([] if is_stopped else [known])


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_the_log_finds_comes_back_unless_the_runner_has_stopped(is_stopped: bool) -> None:
    found: list[Any] = []

    with Stage() as stage:
        stage.runner.run(lambda now: [Fetch("a stream", 1, 1, 1, 1, kept_in(found))])
        assert found == []
        if is_stopped:
            stage.runner.stop()
        stage.loop.run_dry()

    assert found == ([] if is_stopped else [[]])


@pytest.mark.parametrize("some", [None, [], [Archived(1, "m1", b"AAAA", None, 10)]])
def test_the_archive_is_consulted_if_there_is_one(some: list[Archived] | None) -> None:
    shelf = Shelf()
    found: list[list[Archived] | None] = []

    with Stage(shelf) as stage:
        asked = consult(kept_in(found))
        stage.runner.run(lambda now: [asked])
        assert (shelf.asked, found) == ([asked], [])
        shelf.done(some)
    assert found == [some]

    with Stage() as stage:
        stage.runner.run(lambda now: [consult(kept_in(found))])
    assert found == [some, []]
