"""What rooms keep: snapshots and logs tell the same story, also after a cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from signalhub.core import refusals
from signalhub.core.rooms.values import Blob
from signalhub.core.streams.recovery import take_snapshot
from signalhub.wire.entry import Kind
from signalhub.wire.errors import RoomCode
from tests.support.memory.rooms import (
    ROOM,
    SECRET,
    Caller,
    blob,
    cut,
    deposit,
    described,
    fill,
    inbox_of,
    join,
    pages,
    put_blob,
    read,
    room_of,
    room_shell,
    send,
    seqs,
    without_shelf,
)
from tests.support.memory.shell import MemoryShell

# Snapshots.


def furnished(shell: MemoryShell) -> None:
    """Something of every kind that rooms remember."""
    join(shell, "bound", "bound-inbox")
    fill(shell, 5, inbox=SECRET)
    deposit(shell, "d1", inbox="lone")
    put_blob(shell, b"one")
    put_blob(shell, b"two")
    put_blob(shell, b"q", name="quorum", room="blobs-only")
    for name in ("x", "y", "z"):
        send(shell, f"propose-{name}", type="mls_proposal", proposal=name, pseudonym="alice")
    send(shell, "approve", type="mls_approval", proposal="x")
    send(shell, "commit", type="mls_commit", proposal="y")


def test_snapshot_and_log_tell_the_same_story() -> None:
    shell = room_shell()
    furnished(shell)
    shell.save_snapshot()
    put_blob(shell, b"three")
    send(shell, "reject", type="mls_rejection", proposal="z")
    deposit(shell, "d2", inbox="lone")

    by_snapshot, by_log = shell.restarted(), without_shelf(shell)

    assert described(by_snapshot) == described(by_log) == described(shell)


def test_a_snapshot_holds_only_what_changed_since_the_last_one() -> None:
    shell = room_shell()
    furnished(shell)
    first = take_snapshot(shell.hub.parts, shell.engine.head).rooms
    nothing = take_snapshot(shell.hub.parts, shell.engine.head).rooms
    send(shell, "more", inbox=SECRET)
    more = take_snapshot(shell.hub.parts, shell.engine.head).rooms
    whole = take_snapshot(shell.hub.parts, shell.engine.head, is_whole=True).rooms

    assert len(first) == len(whole) == 6
    assert nothing == {}
    assert more.keys() == {inbox_of(shell, SECRET).name, room_of(shell).name, "shared"}


def test_snapshots_add_up() -> None:
    shell = room_shell()
    furnished(shell)
    shell.save_snapshot()
    for number in range(5):
        send(shell, f"more{number}", inbox=SECRET)
        put_blob(shell, b"%d" % number, room="blobs-only")
        shell.save_snapshot()
        shell = shell.restarted()

    assert described(without_shelf(shell)) == described(shell)
    assert pages(shell, 100, inbox=SECRET) == list(range(1, 16))


def test_a_room_that_was_forgotten_does_not_speak_for_the_one_that_came_after_it() -> None:
    shell = room_shell()
    shell.engine.is_full = True
    send(shell, "a", inbox=SECRET)
    shell.engine.is_full = False
    shell.advance(3_000)
    send(shell, "a", inbox=SECRET)
    shell.save_snapshot()
    shell.advance(3_000)
    send(shell, "b", room="another")
    shell.tick()
    shell.save_snapshot()

    again = shell.restarted()

    assert described(again) == described(shell)
    assert room_of(again).inbox is inbox_of(again, SECRET)


def test_rooms_that_only_hold_guests_are_in_no_snapshot() -> None:
    shell = room_shell()
    visitor = join(shell)
    shell.save_snapshot()

    assert visitor.guest in room_of(shell).guests
    assert list(shell.shelf._rooms) in ([], ["shared"])


@pytest.mark.parametrize("which", ["inbox.", "room.", "shared"])
def test_a_spoiled_snapshot_is_made_again_from_the_log(
    which: str, caplog: pytest.LogCaptureFixture
) -> None:
    shell = room_shell()
    furnished(shell)
    shell.save_snapshot()
    name = next(one for one in shell.shelf._rooms if one.startswith(which))
    shell.shelf._rooms[name] = b"\xc1\xff"

    again = shell.restarted()

    assert described(again) == described(shell)
    assert "snapshot" in caplog.text
    assert send(again, "m3").accepted.is_repeat


def test_entries_a_snapshot_covers_already_change_nothing() -> None:
    """A snapshot may be newer than the offset it is filed under."""
    shell = room_shell()
    furnished(shell)
    early = shell.engine.head - 4
    shell.save_snapshot()
    assert shell.shelf._head is not None
    epoch, _, _, next_id = shell.shelf._head
    shell.shelf._head = (epoch, early, early, next_id)

    assert described(shell.restarted()) == described(shell)


# The log is cut.


def test_a_log_that_was_cut_still_knows_everything() -> None:
    shell = room_shell(retention_s=60.0)
    furnished(shell)
    shell.clock.advance(61)
    head = shell.engine.head
    cut(shell)

    again = without_shelf(shell)

    assert shell.engine.first == head
    assert described(again) == described(shell)
    assert send(again, "fresh").seq == 11
    assert deposit(again, "fresh", inbox="lone").seq == 2
    assert send(again, "x", inbox="another").code == RoomCode.CONFLICT
    assert send(again, "x", room="bound").seq == 1
    assert (blob(again), blob(again, "quorum", "blobs-only")) == (Blob(2, b"two"), Blob(1, b"q"))
    assert put_blob(again, b"three", 1).code == RoomCode.PRECONDITION_FAILED


def test_a_log_is_not_cut_where_somebody_may_still_read() -> None:
    shell = room_shell(retention_s=60.0, buffer=1)
    fill(shell, 5)
    shell.clock.advance(59)
    cut(shell)

    assert pages(shell, 2) == [1, 2, 3, 4, 5]
    assert pages(without_shelf(shell), 2) == [1, 2, 3, 4, 5]


def test_what_is_archived_does_not_keep_the_log() -> None:
    shell = room_shell()
    fill(shell, 5)
    everything = shell.engine.head
    shell.hub.rooms.archived_to(everything)
    fill(shell, 5, first=6)

    assert shell.hub.rooms.needed_from(shell.now) == everything


def test_nothing_is_needed_of_a_log_without_messages() -> None:
    shell = room_shell()
    put_blob(shell, b"one")

    assert shell.hub.rooms.needed_from(shell.now) is None


def test_counters_go_on_when_the_log_and_the_snapshot_have_lost_every_message() -> None:
    shell = room_shell(retention_s=60.0)
    for first in (1, 4, 7):
        fill(shell, 3, first=first)
        shell.clock.advance(61)
        cut(shell)
        shell = without_shelf(shell)

    assert send(shell, "m10").seq == 10
    page = read(shell).page
    assert (seqs(page), page.oldest) == ([10], 10)


def test_a_log_that_begins_in_the_middle_of_an_inbox_knows_how_far_it_is() -> None:
    shell = room_shell()
    fill(shell, 10)
    shell.engine.cut(next(one.offset for one in shell.engine.entries if one.seq == 6))

    again = without_shelf(shell)

    page = read(again).page
    assert (seqs(page), page.oldest) == ([6, 7, 8, 9, 10], 6)
    assert deposit(again, "d").seq == 11


def test_anchors_are_written_only_for_what_is_defined_before_the_cut() -> None:
    shell = room_shell()
    furnished(shell)
    end = shell.engine.head
    shell.perform(shell.hub.anchors.anchor(end, shell.now))
    written = shell.engine.head
    shell.perform(shell.hub.anchors.anchor(end, shell.now))

    assert shell.hub.anchors.anchored() >= end
    assert shell.engine.head == written


def test_nothing_may_be_cut_until_all_anchors_of_a_room_are_on_disk() -> None:
    shell = room_shell(retention_s=60.0)
    furnished(shell)
    shell.clock.advance(61)
    shell.engine.is_prompt = False
    before = described(shell)
    end = shell.engine.head
    shell.perform(shell.hub.anchors.anchor(end, shell.now))
    count = shell.engine.pending
    for _ in range(count - 1):
        shell.engine.commit(1)
        assert shell.hub.anchors.anchored() < end
        shell.engine.cut(shell.hub.anchors.anchored())
        assert described(without_shelf(shell)) == before
    shell.engine.commit(1)

    assert shell.hub.anchors.anchored() >= end
    shell.engine.cut(end)
    assert described(without_shelf(shell)) == before


def test_anchors_the_log_refused_count_for_nothing() -> None:
    shell = room_shell(retention_s=60.0)
    furnished(shell)
    before, known = shell.hub.anchors.anchored(), described(shell)
    shell.engine.is_full = True
    shell.perform(shell.hub.anchors.anchor(shell.engine.head, shell.now))
    shell.engine.is_full = False
    shell.clock.advance(61)

    assert shell.hub.anchors.anchored() == before
    cut(shell)
    assert described(without_shelf(shell)) == known


# Something is on its way while anchors are written.


def message(shell: MemoryShell) -> Caller:
    return send(shell, "late", inbox=SECRET)


def appended(shell: MemoryShell) -> Caller:
    return deposit(shell, "late", inbox="lone")


def written(shell: MemoryShell) -> Caller:
    return put_blob(shell, b"late")


def made(shell: MemoryShell) -> Caller:
    return put_blob(shell, b"late", name="quorum")


def bound(shell: MemoryShell) -> Caller:
    return send(shell, "late", room="new", inbox="new-inbox")


def proposed(shell: MemoryShell) -> Caller:
    return send(shell, "late", type="mls_proposal", proposal="late")


def approved(shell: MemoryShell) -> Caller:
    return send(shell, "late", type="mls_approval", proposal="x")


def committed(shell: MemoryShell) -> Caller:
    return send(shell, "late", type="mls_commit", proposal="x")


ON_THEIR_WAY = [message, appended, written, made, bound, proposed, approved, committed]


@pytest.mark.parametrize("happens", ON_THEIR_WAY)
@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("in_pieces", [False, True])
def test_what_is_on_its_way_while_the_log_is_anchored_is_not_lost(
    happens: Callable[[MemoryShell], Caller], is_refused: bool, in_pieces: bool
) -> None:
    shell = room_shell(retention_s=60.0)
    furnished(shell)
    shell.engine.is_prompt = False
    caller = happens(shell)
    shell.perform(shell.hub.anchors.anchor(shell.engine.head, shell.now))
    if in_pieces:
        shell.engine.commit(1)
    if is_refused:
        shell.engine.refuse(refusals.storage_full())
    shell.engine.is_prompt = True
    shell.settle()
    shell.clock.advance(61)
    shell.engine.cut(min(shell.hub.anchors.anchored(), shell.engine.head))

    assert len(caller.results) == 1
    assert described(without_shelf(shell)) == described(shell)
    cut(shell)
    again = without_shelf(shell)
    assert described(again) == described(shell)
    assert again.engine.first == shell.engine.first > 0


@pytest.mark.parametrize("happens", ON_THEIR_WAY)
def test_what_happens_while_anchors_are_on_their_way_is_not_lost(
    happens: Callable[[MemoryShell], Caller],
) -> None:
    shell = room_shell(retention_s=60.0)
    furnished(shell)
    shell.engine.is_prompt = False
    end = shell.engine.head
    shell.perform(shell.hub.anchors.anchor(end, shell.now))
    happens(shell)
    shell.engine.commit()
    shell.engine.is_prompt = True
    shell.clock.advance(61)
    shell.engine.cut(end)

    assert shell.hub.anchors.anchored() >= end
    assert described(without_shelf(shell)) == described(shell)


@pytest.mark.parametrize("restart", [MemoryShell.restarted, without_shelf])
@pytest.mark.parametrize("happens", ON_THEIR_WAY)
def test_what_was_written_before_a_restart_holds_the_log_until_it_is_anchored(
    restart: Callable[[MemoryShell], MemoryShell], happens: Callable[[MemoryShell], Caller]
) -> None:
    shell = room_shell(retention_s=60.0)
    furnished(shell)
    shell.save_snapshot()
    shell = restart(shell)
    shell.engine.is_prompt = False
    happens(shell)
    shell.clock.advance(61)
    cut(shell)
    shell.engine.is_prompt = True
    shell.settle()
    shell.clock.advance(61)
    shell.engine.cut(min(shell.hub.anchors.anchored(), shell.engine.head))

    assert described(without_shelf(shell)) == described(shell)


def test_the_mark_of_the_key_survives_a_cut() -> None:
    shell = room_shell(retention_s=60.0)
    fill(shell, 1)
    shell.clock.advance(61)
    cut(shell)
    cut(without_shelf(shell))

    again = without_shelf(shell)

    assert again.hub.rooms.directory.key_mark == shell.hub.rooms.directory.names.mark
    assert sum(one.kind == Kind.INBOX_KEY for one in again.engine.entries) == 1


def test_a_proposal_that_outlives_its_message_goes_on() -> None:
    shell = room_shell(retention_s=60.0)
    send(shell, "p", type="mls_proposal", proposal="x", pseudonym="alice")
    shell.clock.advance(3_600)
    cut(shell)

    again = without_shelf(shell)
    send(again, "a", type="mls_approval", proposal="x")

    found = again.hub.rooms.proposal(ROOM, None, "x", again.now)
    assert (found.status, found.proposer, len(found.approvals)) == ("pending", "alice", 1)
    again.clock.advance(23 * 3_600)
    again.tick()
    assert again.tally.rooms.proposals_expired == 1
