"""Proposals: four states that follow messages and one alarm, within bounds, through restarts."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.core import refusals
from signalhub.core.rooms.values import PENDING
from signalhub.wire.entry import Kind, ProposalBody
from signalhub.wire.errors import RoomCode, RoomError
from tests.support.memory.rooms import (
    DAY_MS,
    ROOM,
    TEXT,
    WEEK_MS,
    Caller,
    join,
    put_blob,
    read,
    room_of,
    room_shell,
    send,
    seqs,
    without_shelf,
)
from tests.support.memory.shell import MemoryShell

NEWS = {"mls_commit": "committed", "mls_rejection": "rejected"}


def propose(shell: MemoryShell, name: str = "x", text: bytes = TEXT, **members: Any) -> Caller:
    """A proposal; the message is called after it."""
    return send(shell, f"propose-{name}", text, type="mls_proposal", proposal=name, **members)


def about(shell: MemoryShell, type: str, name: str = "x", text: bytes = TEXT) -> Caller:
    """Another message about a proposal."""
    message_id = f"{type}-{name}-{len(shell.engine.entries)}-{shell.engine.pending}"
    return send(shell, message_id, text, type=type, proposal=name)


def known(shell: MemoryShell) -> list[ProposalBody]:
    return shell.hub.rooms.proposals(ROOM, None, shell.now)


def status(shell: MemoryShell, name: str = "x") -> str:
    return shell.hub.rooms.proposal(ROOM, None, name, shell.now).status


def state_bytes(shell: MemoryShell) -> int:
    """What proposals and blobs take, counted again."""
    size = 0
    for room in shell.hub.rooms.directory.rooms.values():
        size += sum(len(one.data) for one in room.blobs.values())
        for one in room.proposals.values():
            size += 300 + len(one.content) + sum(map(len, one.approvals))
    return size


def test_a_proposal_begins_pending_and_ends_a_day_later() -> None:
    shell = room_shell()
    shell.clock.advance(7)
    propose(shell, pseudonym="alice")

    (found,) = known(shell)

    created_ms = 1_760_000_005_000
    assert found == ProposalBody("x", "alice", TEXT, PENDING, created_ms, created_ms + DAY_MS)


def test_approvals_gather_in_order() -> None:
    shell = room_shell()
    propose(shell)
    for text in (b"b25l", b"dHdv"):
        about(shell, "mls_approval", text=text)

    found = shell.hub.rooms.proposal(ROOM, None, "x", shell.now)

    assert (found.status, found.approvals) == ("pending", [b"b25l", b"dHdv"])


@pytest.mark.parametrize("type", NEWS)
def test_a_commit_or_a_rejection_finishes_a_proposal(type: str) -> None:
    shell = room_shell()
    propose(shell)
    about(shell, type)

    assert status(shell) == NEWS[type]


@pytest.mark.parametrize("type", NEWS)
@pytest.mark.parametrize("later", ["mls_approval", "mls_rejection", "mls_commit", "mls_proposal"])
def test_a_finished_proposal_changes_no_more_but_its_messages_pass(type: str, later: str) -> None:
    shell = room_shell()
    propose(shell)
    about(shell, type)
    before = known(shell)
    visitor = join(shell)

    caller = about(shell, later, text=b"YW5vdGhlcg")

    assert (caller.seq, visitor.seqs) == (3, [3])
    assert known(shell) == before


def test_messages_about_an_unknown_proposal_pass_and_change_nothing() -> None:
    shell = room_shell()
    for type in ("mls_approval", "mls_rejection", "mls_commit"):
        about(shell, type)

    assert known(shell) == []
    assert seqs(read(shell).page) == [1, 2, 3]


def test_a_second_proposal_of_the_same_name_passes_and_changes_nothing() -> None:
    shell = room_shell()
    propose(shell, text=b"b25l")
    about(shell, "mls_proposal", text=b"dHdv")

    assert [one.content for one in known(shell)] == [b"b25l"]


def test_proposals_are_listed_oldest_first_and_rooms_do_not_share_them() -> None:
    shell = room_shell()
    for name in ("b", "a", "c"):
        propose(shell, name)
    propose(shell, "elsewhere", room="another")

    assert [one.id for one in known(shell)] == ["b", "a", "c"]


@pytest.mark.parametrize("room", [ROOM, "never-seen"])
def test_a_proposal_nobody_made_is_not_found(room: str) -> None:
    shell = room_shell()
    propose(shell)

    with pytest.raises(RoomError) as caught:
        shell.hub.rooms.proposal(room, None, "nope", shell.now)

    assert caught.value.code == RoomCode.NOT_FOUND
    assert shell.hub.rooms.proposals("never-seen", None, shell.now) == []


def test_ordinary_messages_never_touch_a_proposal() -> None:
    shell = room_shell()
    propose(shell)
    for type in ("mls_app", "mls_group_info"):
        send(shell, type, type=type, proposal="x")

    assert status(shell) == "pending"


# The log.


def test_nothing_is_known_of_a_proposal_before_the_commit() -> None:
    shell = room_shell()
    shell.engine.is_prompt = False
    propose(shell)
    about(shell, "mls_approval")
    before = known(shell)
    shell.engine.commit()

    assert before == []
    assert len(known(shell)[0].approvals) == 1


def test_a_proposal_the_log_refused_never_was() -> None:
    shell = room_shell()
    propose(shell)
    shell.engine.is_prompt = False
    callers = [propose(shell, "y"), about(shell, "mls_commit")]
    shell.engine.refuse(refusals.storage_full())

    assert [caller.code for caller in callers] == [RoomCode.UNAVAILABLE] * 2
    assert [(one.id, one.status) for one in known(shell)] == [("x", "pending")]


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_proposals_survive_a_restart(has_snapshot: bool) -> None:
    shell = room_shell()
    for name in "abcd":
        propose(shell, name, pseudonym="alice")
    about(shell, "mls_commit", "a")
    about(shell, "mls_approval", "b")
    shell.save_snapshot()
    about(shell, "mls_approval", "b")
    about(shell, "mls_rejection", "c")

    again = shell.restarted() if has_snapshot else without_shelf(shell)

    assert known(again) == known(shell)
    assert [one.status for one in known(again)] == ["committed", "pending", "rejected", "pending"]
    assert again.hub.rooms.state.bytes == shell.hub.rooms.state.bytes == state_bytes(shell)


# The alarm.


def test_a_proposal_nobody_finished_expires_to_the_millisecond() -> None:
    shell = room_shell(timestamps="exact")
    propose(shell)
    shell.clock.advance(86_399.999)
    before = status(shell)
    shell.clock.advance(0.001)

    assert (before, status(shell)) == ("pending", "expired")


def test_the_alarm_is_written_with_the_next_tick() -> None:
    shell = room_shell()
    propose(shell)
    shell.clock.advance(86_400)
    shell.tick()
    shell.tick()

    assert room_of(shell).proposals["x"].status == "expired"
    assert sum(one.kind == Kind.ROOM_PROPOSAL for one in shell.engine.entries) == 1
    assert shell.tally.rooms.proposals_expired == 1


@pytest.mark.parametrize("type", ["mls_approval", "mls_rejection", "mls_commit"])
@pytest.mark.parametrize("proposal_s", [86_400.0, 7.0])
@pytest.mark.parametrize("has_ticked", [True, False])
def test_an_expired_proposal_is_not_finished_again(
    type: str, proposal_s: float, has_ticked: bool
) -> None:
    shell = room_shell(proposal_s=proposal_s)
    shell.clock.advance(3)
    propose(shell)
    while status(shell) == "pending":
        shell.clock.advance(1 if proposal_s < 100 else 100)
    if has_ticked:
        shell.tick()
    about(shell, type)

    for one in (shell, without_shelf(shell)):
        assert status(one) == "expired"
        assert known(one)[0].approvals == []


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_the_alarm_goes_off_after_a_restart(has_snapshot: bool) -> None:
    shell = room_shell()
    propose(shell)
    shell.save_snapshot()
    shell.clock.advance(3_600)
    again = shell.restarted() if has_snapshot else without_shelf(shell)
    again.clock.advance(82_800)

    assert status(again) == "expired"
    again.tick()
    assert again.tally.rooms.proposals_expired == 1
    assert status(without_shelf(again)) == "expired"


def test_an_alarm_that_was_due_while_the_hub_was_down_goes_off_at_once() -> None:
    shell = room_shell()
    propose(shell)
    shell.clock.advance(3 * 86_400)

    again = shell.restarted()

    assert status(again) == "expired"
    again.tick()
    assert again.tally.rooms.proposals_expired == 1


def test_an_alarm_the_log_refused_goes_off_again() -> None:
    shell = room_shell()
    propose(shell)
    shell.clock.advance(86_400)
    shell.engine.is_full = True
    shell.tick()
    refused = (status(shell), shell.tally.rooms.proposals_expired)
    shell.engine.is_full = False
    shell.pass_time(2)

    assert refused == ("expired", 0)
    assert shell.tally.rooms.proposals_expired == 1
    assert room_of(shell).proposals["x"].status == "expired"


def test_a_commit_on_its_way_when_the_alarm_goes_off_counts() -> None:
    shell = room_shell(timestamps="exact")
    propose(shell)
    shell.clock.advance(86_399.5)
    shell.engine.is_prompt = False
    about(shell, "mls_commit")
    shell.clock.advance(0.5)
    shell.tick()
    shell.engine.commit()

    assert status(shell) == "committed"
    assert status(without_shelf(shell)) == "committed"


def test_an_approval_on_its_way_when_the_alarm_goes_off_is_kept() -> None:
    shell = room_shell(timestamps="exact")
    propose(shell)
    shell.clock.advance(86_399.5)
    shell.engine.is_prompt = False
    about(shell, "mls_approval")
    shell.clock.advance(0.5)
    shell.tick()
    shell.engine.commit()

    for one in (shell, without_shelf(shell)):
        assert (status(one), len(known(one)[0].approvals)) == ("expired", 1)


@pytest.mark.parametrize("end", ["mls_commit", "mls_rejection", None])
@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_finished_proposal_can_be_looked_up_for_a_week(
    end: str | None, has_snapshot: bool
) -> None:
    shell = room_shell()
    propose(shell)
    if end is not None:
        about(shell, end)
    else:
        shell.clock.advance(86_400)
        shell.tick()
    if has_snapshot:
        shell.save_snapshot()
    shell = shell.restarted()
    shell.clock.advance(WEEK_MS / 1000 - 1)
    shell.tick()
    before = len(known(shell))
    shell.clock.advance(1)
    shell.tick()

    assert (before, known(shell), shell.hub.rooms.state.bytes) == (1, [], 0)
    if has_snapshot:
        shell.save_snapshot()
    again = shell.restarted()
    again.tick()
    assert known(again) == []


# Bounds.


def full(shell: MemoryShell, count: int) -> None:
    for number in range(count):
        propose(shell, f"x{number}")


def test_a_room_full_of_pending_proposals_takes_no_other() -> None:
    shell = room_shell(proposals_max=3)
    full(shell, 3)

    refused = propose(shell, "late")

    assert refused.code == RoomCode.UNAVAILABLE
    assert refused.error.retry_after_ms is not None
    assert send(shell, "ordinary").seq == 4
    assert about(shell, "mls_proposal", "x1").seq == 5
    assert propose(shell, "elsewhere", room="another").seq == 1


def test_a_finished_proposal_makes_room_for_a_fresh_one() -> None:
    shell = room_shell(proposals_max=3)
    full(shell, 3)
    about(shell, "mls_commit", "x1")
    propose(shell, "late")

    assert [one.id for one in known(shell)] == ["x0", "x2", "late"]
    assert known(without_shelf(shell)) == known(shell)


def test_a_proposal_whose_alarm_is_due_makes_room_before_the_tick() -> None:
    shell = room_shell(proposals_max=3)
    full(shell, 3)
    shell.clock.advance(86_400)

    assert propose(shell, "late").seq == 4
    assert len(known(shell)) == 3
    shell.tick()
    assert [one.id for one in known(shell)] == ["x1", "x2", "late"]
    assert known(without_shelf(shell)) == known(shell)


def test_a_proposal_that_made_room_does_not_come_back() -> None:
    """Its end was on its way to the log when a fresh one took its place."""
    shell = room_shell(proposals_max=3)
    full(shell, 3)
    shell.clock.advance(86_400)
    shell.engine.is_prompt = False
    propose(shell, "late")
    shell.tick()
    shell.engine.commit()

    for one in (shell, shell.restarted(), without_shelf(shell)):
        assert [case.id for case in known(one)] == ["x1", "x2", "late"]
        assert one.hub.rooms.state.bytes == state_bytes(one)


def test_proposals_on_their_way_count() -> None:
    shell = room_shell(proposals_max=2)
    send(shell, "first")
    shell.engine.is_prompt = False
    callers = [propose(shell, f"x{number}") for number in range(3)]
    shell.engine.commit()

    assert [caller.seq for caller in callers[:2]] == [2, 3]
    assert callers[2].code == RoomCode.UNAVAILABLE
    assert len(known(shell)) == 2


def test_a_blob_on_its_way_takes_no_place_of_a_proposal() -> None:
    shell = room_shell(proposals_max=1)
    send(shell, "first")
    shell.engine.is_prompt = False
    put_blob(shell, b"data")
    put_blob(shell, b"data", name="quorum")
    caller = propose(shell)
    shell.engine.commit()

    assert caller.seq == 2
    assert status(shell) == "pending"


def test_a_proposal_has_no_more_approvals_than_allowed() -> None:
    shell = room_shell(proposals_max=3)
    propose(shell)
    callers = [about(shell, "mls_approval") for _ in range(5)]

    assert [caller.seq for caller in callers] == [2, 3, 4, 5, 6]
    assert len(known(shell)[0].approvals) == 3
    assert known(without_shelf(shell)) == known(shell)


@pytest.mark.parametrize("type", ["mls_proposal", "mls_approval"])
def test_there_is_a_bound_for_everything_rooms_remember(type: str) -> None:
    shell = room_shell(state_bytes_max=1_000)
    propose(shell, text=b"A" * 400)

    refused = about(shell, type, "x" if type == "mls_approval" else "y", text=b"A" * 400)

    assert refused.code == RoomCode.UNAVAILABLE
    assert about(shell, "mls_commit", text=b"A" * 400).seq == 2
    assert shell.hub.rooms.state.bytes == state_bytes(shell) <= 1_000


def test_what_is_dropped_is_given_back() -> None:
    shell = room_shell(state_bytes_max=1_000)
    propose(shell, text=b"A" * 400)
    about(shell, "mls_commit")
    shell.clock.advance(WEEK_MS / 1000)
    shell.tick()

    assert shell.hub.rooms.state.bytes == 0
    assert propose(shell, "y", text=b"A" * 400).seq == 3


def test_a_refused_proposal_costs_nothing() -> None:
    shell = room_shell(proposals_max=1, rate=2)
    propose(shell)
    propose(shell, "late")

    assert send(shell, "ordinary").seq == 2
    assert propose(shell, "late", room="another").seq == 1
