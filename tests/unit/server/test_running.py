"""Steps of the core that are not messages of actors, and the effects of rooms."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from signalhub.core.effects import Answer, Append, Consult, Effect, Fetch, Recall
from signalhub.core.rooms.values import Accepted, Archived, Result
from signalhub.wire.entry import Entry, Kind
from tests.support.memory.write_path import Stage

SECRET = "room-of-somebody"


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


def explode(offset: int, now: int) -> list[Effect]:
    raise LookupError(SECRET)


def accepted(seq: int = 1) -> Accepted:
    return Accepted(SECRET, seq, False, None)


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as an error, after checking that nobody is named."""
    assert SECRET not in caplog.text
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


def test_step_gets_the_time_of_the_tick_and_its_effects_are_performed() -> None:
    caller = Caller()
    times: list[int] = []

    def step(now: int) -> list[Effect]:
        times.append(now)
        return [Answer(caller, accepted(), SECRET)]

    with Stage() as stage:
        assert stage.runner.run(step)
        stage.clock.advance(0.5)
        assert stage.runner.run(step)
        stage.loop.run_dry()
        assert stage.runner.run(step)

    assert times[0] == times[1] == times[2] - 500
    assert caller.answers == [(accepted(), SECRET)] * 3


def test_failing_step_is_logged_without_its_words_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def step(now: int) -> list[Effect]:
        raise LookupError(SECRET)

    with Stage() as stage:
        assert not stage.runner.run(step)
        stage.loop.run_dry()
        assert stage.writer.tick_ms == 0

    assert faults(caplog) == ["a request could not be handled"]
    assert "LookupError" in caplog.text


def test_who_cannot_be_answered_does_not_keep_others_from_their_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caller = Caller()
    effects: list[Effect] = [
        Answer(Broken(), accepted(), SECRET),
        Answer(caller, accepted(), SECRET),
    ]

    with Stage() as stage:
        assert stage.runner.run(lambda now: effects)

    assert len(caller.answers) == 1
    assert faults(caplog) == ["a request could not be answered"]


def test_fault_behind_a_commit_is_logged_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entry = Entry(Kind.ROOM_MESSAGE, "a stream", 1, 1, 0, b"")
    with Stage() as stage:
        stage.runner.run(lambda now: [Append(entry, explode)])
        stage.loop.run_dry()

    assert faults(caplog) == ["a committed entry could not be handled"]


def test_fault_behind_a_read_is_logged_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    def then(found: object, now: int) -> list[Effect]:
        raise LookupError(SECRET)

    with Stage() as stage:
        stage.runner.run(lambda now: [Fetch("a stream", 1, 1, 1, 1, then)])
        stage.loop.run_dry()

    assert faults(caplog) == ["a request could not be handled"]


@pytest.mark.parametrize("seqs", [[7, 0], [], None])
def test_what_the_store_recalls_comes_back_to_the_loop(seqs: list[int] | None) -> None:
    recalled: list[list[int] | None] = []

    def then(found: list[int] | None, now: int) -> list[Effect]:
        recalled.append(found)
        return []

    with Stage() as stage:
        stage.runner.run(lambda now: [Recall([b"key"], 0, then)])
        ((keys, done),) = stage.rows.recalled
        # This is what the store's own thread does.
        done(seqs)
        assert recalled == []
        stage.loop.run_dry()

    assert keys == [b"key"]
    assert recalled == [seqs]


def test_what_is_recalled_after_the_end_is_dropped() -> None:
    recalled: list[list[int] | None] = []

    def then(found: list[int] | None, now: int) -> list[Effect]:
        recalled.append(found)
        return []

    with Stage() as stage:
        stage.runner.run(lambda now: [Recall([b"key"], 0, then)])
        stage.runner.stop()
        stage.rows.recalled[0][1]([7])
        stage.loop.run_dry()

    assert recalled == []


def consult(then: Callable[[list[Archived] | None, int], list[Effect]]) -> Consult:
    return Consult("an inbox", 1, 10, 10, then)


def test_without_an_archive_there_is_nothing_in_it() -> None:
    found: list[list[Archived] | None] = []

    def then(some: list[Archived] | None, now: int) -> list[Effect]:
        found.append(some)
        return []

    with Stage() as stage:
        stage.runner.run(lambda now: [consult(then)])

    assert found == [[]]


@pytest.mark.parametrize("some", [None, [], [Archived(1, "m1", b"AAAA", None, 10)]])
def test_archive_is_consulted_and_its_answer_performed(some: list[Archived] | None) -> None:
    shelf, caller = Shelf(), Caller()
    found: list[list[Archived] | None] = []

    def then(some: list[Archived] | None, now: int) -> list[Effect]:
        found.append(some)
        return [Answer(caller, accepted(), "")]

    with Stage(shelf) as stage:
        asked = consult(then)
        stage.runner.run(lambda now: [asked])
        assert shelf.asked == [asked]
        assert found == []
        shelf.done(some)

    assert found == [some]
    assert len(caller.answers) == 1


def test_fault_in_what_the_archive_told_is_logged_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def then(some: list[Archived] | None, now: int) -> list[Effect]:
        raise LookupError(SECRET)

    shelf = Shelf()
    with Stage(shelf) as stage:
        stage.runner.run(lambda now: [consult(then)])
        shelf.done([])

    assert faults(caplog) == ["a request could not be handled"]
