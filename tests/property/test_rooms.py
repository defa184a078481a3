"""Whatever happens to a hub, rooms lose nothing, repeat nothing and show nothing that has expired.

A life is a list of steps drawn from a seed; the steps and the promises are in `room_life.py`, what
is true in `room_truth.py`. A life that goes wrong is cut down before it is shown. The promises are
worth something only if a broken hub breaks them: bugs are planted, and each must be named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest

from signalhub.core.effects import Announce, Answer, Append, Effect
from signalhub.core.messages.dedup import Dedup
from signalhub.core.rooms import recovery, state
from signalhub.core.rooms.accept import Acceptance, MessageOnItsWay
from signalhub.core.rooms.inbox import Buffer, Inbox, KeptMessage, Pins
from signalhub.core.rooms.read import PageRead
from signalhub.core.rooms.room import Room
from signalhub.core.rooms.state import RoomStates
from signalhub.core.rooms.values import Accepted, PutBlob, SendToRoom
from signalhub.wire.entry import Entry, InboxStandsBody, Kind, decode_body, encode_body
from tests.property.cutting import cut_down
from tests.property.room_life import Life, Step, drawn
from tests.support.volume import SEEDS, volume

GROUPS = 4
LIVES = volume(SEEDS, 1_200)
SEARCHED = 400


def failure_of(seed: int, steps: list[Step]) -> Exception | None:
    """What is wrong with a life."""
    try:
        Life(seed).play(steps)
    except Exception as failure:
        return failure
    return None


def explained(seed: int) -> str | None:
    """What is wrong with the life of a seed, and the shortest way to see it."""
    steps = drawn(seed)
    failure = failure_of(seed, steps)
    if failure is None:
        return None

    def fails(shorter: list[Step]) -> bool:
        found = failure_of(seed, shorter)
        return type(found) is type(failure) and str(found)[:20] == str(failure)[:20]

    steps = cut_down(steps, fails)
    lines = "\n".join(map(repr, steps))
    return f"seed {seed}, cut down to\n{lines}\n{failure_of(seed, steps)!r}"


@pytest.mark.parametrize("group", range(GROUPS))
def test_rooms_keep_what_they_promise(group: int) -> None:
    for seed in range(group, LIVES, GROUPS):
        fault = explained(seed)
        assert fault is None, fault


def test_the_lives_are_worth_living() -> None:
    """Rare things must not be so rare that nobody would see them go wrong."""
    lives = [Life(seed) for seed in range(200)]
    told: dict[str, int] = {}
    tally: dict[str, int] = {}
    for seed, life in enumerate(lives):
        life.play(drawn(seed))
        for what, count in (*life.watch.told.items(), *life.watch.counted.items()):
            told[what] = told.get(what, 0) + count
        for what in ("archive_reads", "log_reads", "partial", "recalls", "proposals_expired"):
            tally[what] = tally.get(what, 0) + life.tallied(what)

    for what in ("Accepted", "Page", "Blob", "CONFLICT", "PRECONDITION_FAILED", "UNAVAILABLE"):
        assert told.get(what, 0) > 100, (what, told)
    for what in ("RATE_LIMIT_EXCEEDED", "repeat", "frame", "crash", "cut"):
        assert told.get(what, 0) > 50, (what, told)
    assert min(tally.values()) > 5, tally


# Bugs.

Patch = pytest.MonkeyPatch


def acknowledging_too_soon(patch: Patch) -> None:
    send = Acceptance.send

    def hasty(self: Acceptance, request: SendToRoom, now: int) -> list[Effect]:
        effects = send(self, request, now)
        for one in list(effects):
            if isinstance(one, Append) and one.entry.kind == Kind.ROOM_MESSAGE:
                told = Accepted(request.message_id, one.entry.seq, False, None)
                effects.append(Answer(request.caller, told, request.message_id))
        return effects

    patch.setattr(Acceptance, "send", hasty)


def announcing_twice(patch: Patch) -> None:
    committed = MessageOnItsWay.committed

    def echoing(self: MessageOnItsWay, *given: object) -> list[Effect]:
        effects = committed(self, *given)  # type: ignore[arg-type]
        return effects + [one for one in effects if isinstance(one, Announce)]

    patch.setattr(MessageOnItsWay, "committed", echoing)


def keeping_refused_positions(patch: Patch) -> None:
    patch.setattr(Inbox, "take_back", lambda self, seq: None)


def forgetting_ids(patch: Patch) -> None:
    patch.setattr(Dedup, "load", lambda self, *given: None)


def needing_nothing(patch: Patch) -> None:
    patch.setattr(Pins, "needed_from", lambda self, now: None)


def ignoring_expiry(patch: Patch) -> None:
    keep = Buffer.keep

    def keep_for_ever(self: Buffer, inbox: Inbox, kept: KeptMessage) -> None:
        keep(self, inbox, msgspec.structs.replace(kept, expires_ms=2**62))

    patch.setattr(Buffer, "keep", keep_for_ever)


def ignoring_gaps(patch: Patch) -> None:
    patch.setattr(PageRead, "_gone", lambda self, first, last: None)


def anchoring_too_little(patch: Patch) -> None:
    entries = recovery._entries

    def one_less(one: Room | Inbox, at_ms: int) -> list[Entry]:
        found = entries(one, at_ms)
        for entry in found:
            if entry.kind == Kind.INBOX_STANDS:
                stands = decode_body(InboxStandsBody, entry.body)
                stands.head -= 1
                entry.body = encode_body(stands)
        return found

    patch.setattr(recovery, "_entries", one_less)


def forgetting_windows(patch: Patch) -> None:
    window = Room.window

    def afresh(self: Room, *given: int) -> object:
        if self.accepts is None:
            self.saved_accepts = []
            if self.inbox is not None:
                self.inbox.saved_accepts = []
        return window(self, *given)

    patch.setattr(Room, "window", afresh)


def ignoring_conditions(patch: Patch) -> None:
    put = RoomStates.put

    def put_anyway(self: RoomStates, request: PutBlob, now: int) -> list[Effect]:
        return put(self, msgspec.structs.replace(request, if_version=None), now)

    patch.setattr(RoomStates, "put", put_anyway)


def finishing_what_has_expired(patch: Patch) -> None:
    patch.setattr(state, "_seen", lambda proposal, now: proposal)


@dataclass(frozen=True)
class Bug:
    """Something wrong with the hub, and what the lives must say about it."""

    plant: Callable[[Patch], None]
    complaint: str


BUGS = {
    "acknowledges before the commit": Bug(acknowledging_too_soon, "acknowledged before its commit"),
    "announces twice": Bug(announcing_twice, "heard ["),
    "keeps refused positions": Bug(keeping_refused_positions, "has a hole"),
    "forgets ids in a restart": Bug(forgetting_ids, "was accepted twice"),
    "cuts what is needed": Bug(needing_nothing, "were passed over"),
    "serves what has expired": Bug(ignoring_expiry, "has expired"),
    "passes over the archive": Bug(ignoring_gaps, "were passed over"),
    "anchors too little": Bug(anchoring_too_little, "follows"),
    "forgets rates in a restart": Bug(forgetting_windows, "in one window"),
    "ignores conditions": Bug(ignoring_conditions, "the condition did not hold"),
    "finishes expired proposals": Bug(finishing_what_has_expired, "proposals are"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found_and_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    bug.plant(monkeypatch)

    others = set()
    for seed in range(SEARCHED):
        complaint = str(failure_of(seed, drawn(seed)))
        if bug.complaint in complaint:
            return
        others.add(complaint[:60])
    pytest.fail(f"nobody noticed; what was said: {others}")
