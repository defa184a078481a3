"""Two blobs per room: versions that count, conditions that hold also against what is in flight."""

from __future__ import annotations

import pytest

from signalhub.core import refusals
from signalhub.core.rooms.values import Blob
from signalhub.wire.errors import RoomCode, RoomError
from tests.support.memory.rooms import (
    ROOM,
    Caller,
    blob,
    join,
    leave,
    put_blob,
    room_shell,
    send,
    without_shelf,
)
from tests.support.memory.shell import MemoryShell

CHANGED = RoomCode.PRECONDITION_FAILED


def missing(shell: MemoryShell, name: str = "metadata", room: str = ROOM) -> bool:
    try:
        blob(shell, name, room)
    except RoomError as error:
        return error.code == RoomCode.NOT_FOUND
    return False


def test_versions_count_from_one() -> None:
    shell = room_shell()

    written = [put_blob(shell, data).result for data in (b"one", b"two", b"")]

    assert written == [Blob(1), Blob(2), Blob(3)]
    assert blob(shell) == Blob(3, b"")


def test_a_blob_nobody_wrote_is_not_found() -> None:
    shell = room_shell()
    put_blob(shell, b"x", name="quorum")

    assert missing(shell)
    assert missing(shell, room="another")
    assert blob(shell, "quorum") == Blob(1, b"x")


def test_the_two_blobs_of_a_room_and_those_of_other_rooms_are_independent() -> None:
    shell = room_shell()
    put_blob(shell, b"m1")
    put_blob(shell, b"m2")
    put_blob(shell, b"q", name="quorum")
    put_blob(shell, b"other", room="another")

    assert (blob(shell), blob(shell, "quorum")) == (Blob(2, b"m2"), Blob(1, b"q"))
    assert blob(shell, room="another") == Blob(1, b"other")


@pytest.mark.parametrize(("if_version", "is_written"), [(0, False), (1, False), (2, True)])
def test_a_condition_must_name_the_version_that_is_there(if_version: int, is_written: bool) -> None:
    shell = room_shell()
    put_blob(shell, b"one")
    put_blob(shell, b"two")

    caller = put_blob(shell, b"three", if_version)

    if is_written:
        assert caller.result == Blob(3)
    else:
        assert caller.code == CHANGED
        assert '"2"' in caller.error.text
    assert blob(shell) == (Blob(3, b"three") if is_written else Blob(2, b"two"))


def test_a_blob_can_be_made_only_if_there_is_none() -> None:
    shell = room_shell()

    assert put_blob(shell, b"x", 1).code == CHANGED
    assert put_blob(shell, b"x", 0).result == Blob(1)
    assert put_blob(shell, b"x", 0).code == CHANGED


def test_a_condition_that_fails_makes_no_room() -> None:
    shell = room_shell()
    put_blob(shell, b"x", 7)

    assert shell.hub.rooms.directory.rooms == {}


# In flight.


def test_a_blob_is_seen_once_it_is_on_disk() -> None:
    shell = room_shell()
    shell.engine.is_prompt = False
    caller = put_blob(shell, b"x")
    before = (caller.results, missing(shell))
    shell.engine.commit()

    assert before == ([], True)
    assert (caller.result, blob(shell)) == (Blob(1), Blob(1, b"x"))


def test_of_two_writers_that_know_the_same_version_one_wins() -> None:
    shell = room_shell()
    put_blob(shell, b"one")
    shell.engine.is_prompt = False
    callers = [put_blob(shell, data, 1) for data in (b"two", b"too")]
    shell.engine.commit()

    assert callers[0].result == Blob(2)
    assert callers[1].code == CHANGED
    assert blob(shell) == Blob(2, b"two")


def test_of_two_makers_one_wins() -> None:
    shell = room_shell()
    shell.engine.is_prompt = False
    callers = [put_blob(shell, data, 0) for data in (b"one", b"won")]
    shell.engine.commit()

    assert (callers[0].result, callers[1].code) == (Blob(1), CHANGED)


def refused(shell: MemoryShell, *callers: Caller) -> None:
    """The log has no room for what is on its way, and then it has."""
    shell.engine.refuse(refusals.storage_full())
    shell.engine.is_prompt = True
    assert [caller.code for caller in callers] == [RoomCode.UNAVAILABLE] * len(callers)


def test_a_refused_write_leaves_the_version_that_was_there() -> None:
    shell = room_shell()
    put_blob(shell, b"one")
    shell.engine.is_prompt = False
    refused(shell, put_blob(shell, b"two"), put_blob(shell, b"three"), put_blob(shell, b"4", 3))

    assert blob(shell) == Blob(1, b"one")
    assert put_blob(shell, b"two", 1).result == Blob(2)


def test_a_write_refused_in_the_middle_leaves_what_was_committed() -> None:
    shell = room_shell()
    put_blob(shell, b"one")
    shell.engine.is_prompt = False
    first, second = put_blob(shell, b"two"), put_blob(shell, b"three")
    shell.engine.commit(1)
    refused(shell, second)

    assert first.result == Blob(2)
    assert put_blob(shell, b"three", 2).result == Blob(3)


def test_a_first_write_that_is_refused_leaves_nothing() -> None:
    shell = room_shell()
    shell.engine.is_prompt = False
    refused(shell, put_blob(shell, b"one"), put_blob(shell, b"q", name="quorum"))

    assert missing(shell)
    assert shell.hub.rooms.directory.rooms == {}
    assert put_blob(shell, b"one", 0).result == Blob(1)


def test_a_room_is_not_forgotten_under_a_write() -> None:
    shell = room_shell()
    visitor = join(shell)
    shell.engine.is_prompt = False
    put_blob(shell, b"one")
    leave(shell, visitor)
    shell.engine.commit()

    assert blob(shell) == Blob(1, b"one")
    assert send(shell, "a", room="another").results == []


def test_nothing_is_written_while_the_log_has_stopped() -> None:
    shell = room_shell()
    put_blob(shell, b"one")
    shell.hub.storage.stop(refusals.storage_failed())

    assert put_blob(shell, b"two").code == RoomCode.UNAVAILABLE
    assert put_blob(shell, b"two", 7).code == CHANGED
    assert blob(shell) == Blob(1, b"one")


# Restarts and bounds.


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_blobs_survive_a_restart_with_their_versions(has_snapshot: bool) -> None:
    shell = room_shell()
    put_blob(shell, b"one")
    put_blob(shell, b"q", name="quorum")
    shell.save_snapshot()
    put_blob(shell, b"two")

    again = shell.restarted() if has_snapshot else without_shelf(shell)

    assert (blob(again), blob(again, "quorum")) == (Blob(2, b"two"), Blob(1, b"q"))
    assert put_blob(again, b"three", 1).code == CHANGED
    assert put_blob(again, b"three", 2).result == Blob(3)
    assert again.hub.rooms.state.bytes == len(b"threeq")


def test_a_crash_keeps_what_was_on_disk_and_forgets_what_was_not() -> None:
    shell = room_shell()
    put_blob(shell, b"one")
    shell.engine.is_prompt = False
    put_blob(shell, b"two")
    put_blob(shell, b"three")

    again = shell.restarted(written=1)

    assert blob(again) == Blob(2, b"two")


def test_a_snapshot_holds_no_blob_that_is_not_on_disk() -> None:
    shell = room_shell()
    put_blob(shell, b"one")
    shell.engine.is_prompt = False
    put_blob(shell, b"two")
    put_blob(shell, b"q", name="quorum")
    shell.save_snapshot()

    again = shell.restarted()

    assert (blob(again), missing(again, "quorum")) == (Blob(1, b"one"), True)


def test_there_is_a_bound_for_all_blobs_together() -> None:
    shell = room_shell(state_bytes_max=1_000)
    put_blob(shell, b"x" * 600)

    assert put_blob(shell, b"x" * 500, room="another").code == RoomCode.UNAVAILABLE
    assert put_blob(shell, b"x" * 400, room="another").result == Blob(1)
    assert shell.hub.rooms.state.bytes == 1_000


def test_a_blob_can_be_replaced_when_there_is_no_room_for_another() -> None:
    shell = room_shell(state_bytes_max=1_000)
    put_blob(shell, b"x" * 1_000)

    assert put_blob(shell, b"y" * 1_000).result == Blob(2)
    assert put_blob(shell, b"z" * 10).result == Blob(3)
    assert shell.hub.rooms.state.bytes == 10
