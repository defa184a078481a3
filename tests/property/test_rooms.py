"""Whatever happens to a hub, rooms lose nothing, repeat nothing and show nothing that has expired.

A run is a list of steps drawn from a seed; the steps are in `room_run.py`, what must hold in
`room_watch.py`. A run that fails is cut down before it is shown. The checks are worth something
only if a broken hub fails them: bugs are planted, and each must be named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from signalhub.core.effects import Answer
from signalhub.core.messages.dedup import Dedup
from signalhub.core.rooms import recovery, state
from signalhub.core.rooms.accept import Acceptance, PendingMessage
from signalhub.core.rooms.inbox import Buffer, Inbox, Pins
from signalhub.core.rooms.read import PageRead
from signalhub.core.rooms.room import Room
from signalhub.core.rooms.state import RoomStates
from signalhub.core.rooms.values import Accepted
from tests.property.cutting import check, failure_of
from tests.property.room_run import Run, Step, drawn
from tests.support.volume import SEEDS, volume

GROUPS = 4
RUNS = volume(SEEDS, 1_200)
SEARCHED = 400
OFTEN = ("Accepted", "Page", "Blob", "CONFLICT", "PRECONDITION_FAILED", "UNAVAILABLE")
SELDOM = ("RATE_LIMIT_EXCEEDED", "repeat", "frame", "crash", "cut")
TALLIED = ("archive_reads", "log_reads", "partial", "recalls", "proposals_expired")


def nothing(*_: object) -> None:
    """Does nothing."""


def forgetful(room: Room) -> Room:
    """A room that has just been restored and knows nothing of its rate."""
    room.saved_accepts = []
    if room.inbox is not None:
        room.inbox.saved_accepts = []
    return room


def play(seed: int, steps: list[Step]) -> None:
    Run(seed).play(steps)


@pytest.mark.parametrize("group", range(GROUPS))
def test_rooms_keep_what_they_promise(group: int) -> None:
    for seed in range(group, RUNS, GROUPS):
        check(seed, drawn(seed), partial(play, seed))


def test_nothing_is_so_rare_in_the_runs_that_nobody_would_see_it_go_wrong() -> None:
    counted: Counter[str] = Counter()
    for seed in range(150):
        run = Run(seed)
        run.play(drawn(seed))
        counted += run.watch.counted
        for what in TALLIED:
            counted[what] += run.tallied(what)

    assert min(counted[what] for what in OFTEN) > 30, counted
    assert min(counted[what] for what in SELDOM) > 15, counted
    assert min(counted[what] for what in TALLIED) > 2, counted


# Bugs.


@dataclass(frozen=True)
class Bug:
    """A function of the hub that is replaced by a wrong one, and what the runs must say to it."""

    owner: object
    name: str
    wrong: Callable[[Any], Callable[..., Any]]  # Takes the right one.
    complaint: str


TOO_SOON = Accepted("", 10_000, False, None)
BUGS = {
    "acknowledges before the commit": Bug(
        *(Acceptance, "send"),
        lambda send: (
            lambda self, request, now: [
                *send(self, request, now),
                Answer(request.caller, TOO_SOON),
            ]
        ),
        "acknowledged before its commit",
    ),
    "announces twice": Bug(
        *(PendingMessage, "_announce"),
        lambda announce: (
            lambda self, room, *given: replace(
                announce(self, room, *given), guests=tuple(room.guests) * 2
            )
        ),
        "heard [",
    ),
    "keeps refused positions": Bug(Inbox, "take_back", lambda _: nothing, "has a hole"),
    "forgets ids in a restart": Bug(Dedup, "load", lambda _: nothing, "was accepted twice"),
    "takes other texts for repeats": Bug(
        *(Acceptance, "digest_of"), lambda _: lambda self, request: 1, "has another text"
    ),
    "cuts what is needed": Bug(Pins, "needed_from", lambda _: nothing, "were passed over"),
    "serves what has expired": Bug(
        *(Buffer, "keep"),
        lambda keep: lambda self, inbox, kept: keep(self, inbox, replace(kept, expires_ms=2**62)),
        "has expired",
    ),
    "passes over the archive": Bug(PageRead, "_gone", lambda _: nothing, "were passed over"),
    "anchors too little": Bug(
        *(recovery, "_entries"),
        lambda entries: lambda *given: entries(*given)[:-1] or entries(*given),
        "the log alone",
    ),
    "forgets rates in a restart": Bug(
        *(Room, "window"),
        lambda window: lambda self, *given: window(forgetful(self), *given),
        "in one window",
    ),
    "ignores conditions": Bug(
        *(RoomStates, "put"),
        lambda put: lambda self, request, now: put(self, replace(request, if_version=None), now),
        "the condition did not hold",
    ),
    "finishes expired proposals": Bug(
        *(state, "_seen"), lambda seen: lambda proposal, now: proposal, "proposals are"
    ),
}


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_found_and_named(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bug.owner, bug.name, bug.wrong(getattr(bug.owner, bug.name)))

    others = set()
    for seed in range(SEARCHED):
        complaint = str(failure_of(partial(play, seed), drawn(seed)))
        if bug.complaint in complaint:
            return
        others.add(complaint[:60])
    pytest.fail(f"nobody noticed; what was said: {others}")
