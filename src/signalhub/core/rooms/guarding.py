"""Whoever waits for something that is read later gets an answer, also if we stumble over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from signalhub.core.effects import Answer, Effect, Note
from signalhub.core.rooms import denials
from signalhub.errors import unworded

T = TypeVar("T")
Then = Callable[[T, int], list[Effect]]


def guarded(caller: object, then: Then[T], message_id: str = "") -> Then[T]:
    """`then`, with an answer to the caller if it fails."""

    def run(found: T, now: int) -> list[Effect]:
        try:
            return then(found, now)
        except Exception as error:
            # Its words may quote an id.
            note = Note("a request to a room could not be finished", {}, unworded(error))
            return [Answer(caller, denials.broken(), message_id), note]

    return run
