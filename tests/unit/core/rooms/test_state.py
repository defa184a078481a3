"""What a room remembers beside its messages: proposals and two blobs, within bounds."""

from __future__ import annotations

import pytest

from signalhub.core.rooms import floor, state
from signalhub.core.rooms.floor import EntriesLost
from signalhub.core.rooms.values import Blob
from signalhub.wire.entry import Kind
from signalhub.wire.errors import RoomCode, RoomError
from tests.support.memory.rooms import (
    DAY_S,
    ROOM,
    TEXT,
    WEEK_S,
    Caller,
    Restart,
    RoomShell,
    restarts,
    room_shell,
)

CHANGED, UNAVAILABLE = RoomCode.PRECONDITION_FAILED, RoomCode.UNAVAILABLE
ENDS = {"mls_commit": "committed", "mls_rejection": "rejected"}


def status(shell: RoomShell, name: str = "x") -> str:
    return shell.rooms.proposal(ROOM, None, name, shell.now).status


def names(shell: RoomShell) -> list[str]:
    return [one.id for one in shell.proposals()]


def state_bytes(shell: RoomShell) -> int:
    """What proposals and blobs take, counted again."""
    size = 0
    for room in shell.rooms.directory.rooms.values():
        size += sum(len(one.data) for one in room.blobs.values())
        for one in room.proposals.values():
            size += 300 + len(one.content) + sum(map(len, one.approvals))
    return size


def missing(shell: RoomShell, name: str = "metadata", room: str = ROOM) -> bool:
    try:
        shell.blob(name, room)
    except RoomError as error:
        return error.code == RoomCode.NOT_FOUND
    return False


# Proposals follow messages.


def test_proposals_are_listed_oldest_first_and_by_room() -> None:
    shell = room_shell()
    # Messages about an unknown proposal pass and change nothing.
    assert [shell.about(type).seq for type in ("mls_approval", *ENDS)] == [1, 2, 3]
    assert shell.proposals() == []
    for name in ("b", "a", "c"):
        shell.propose(name)
    shell.propose("elsewhere", room="another")

    assert names(shell) == ["b", "a", "c"]
    for room in (ROOM, "never-seen"):
        with pytest.raises(RoomError) as caught:
            shell.rooms.proposal(room, None, "elsewhere", shell.now)
        assert caught.value.code == RoomCode.NOT_FOUND
    assert shell.rooms.proposals("never-seen", None, shell.now) == []


def test_a_proposal_is_known_after_the_commit_and_one_the_log_refused_never_was() -> None:
    shell = room_shell()
    shell.hold()
    shell.propose()
    shell.about("mls_approval")
    before = shell.proposals()
    shell.commit()
    callers = [shell.propose("y"), shell.about("mls_commit")]
    shell.refuse()

    assert before == []
    assert [caller.code for caller in callers] == [UNAVAILABLE] * 2
    assert [(one.id, one.status) for one in shell.proposals()] == [("x", "pending")]
    assert len(shell.proposals()[0].approvals) == 1
    assert shell.room().in_flight == {}


# The alarm.


def test_a_proposal_expires_to_the_millisecond_and_the_next_tick_writes_it() -> None:
    shell = room_shell(timestamps="exact")
    shell.propose()
    shell.clock.advance(DAY_S - 0.001)
    before = status(shell)
    shell.clock.advance(0.001)

    assert (before, status(shell)) == ("pending", "expired")
    shell.tick()
    shell.tick()
    assert shell.room().proposals["x"].status == "expired"
    assert shell.count(Kind.ROOM_PROPOSAL) == shell.counts.proposals_expired == 1


@pytest.mark.parametrize("type", ["mls_approval", "mls_rejection", "mls_commit"])
@pytest.mark.parametrize("proposal_s", [float(DAY_S), 7.0])
@pytest.mark.parametrize("has_ticked", [True, False])
def test_an_expired_proposal_is_not_finished_again(
    type: str, proposal_s: float, has_ticked: bool
) -> None:
    shell = room_shell(proposal_s=proposal_s)
    shell.clock.advance(3)
    shell.propose()
    while status(shell) == "pending":
        shell.clock.advance(1 if proposal_s < 100 else 100)
    if has_ticked:
        shell.tick()
    shell.about(type)

    for one in (shell, shell.restarted_from_log()):
        assert status(one) == "expired"
        assert one.proposals()[0].approvals == []


@pytest.mark.parametrize("is_due_while_down", [False, True])
@restarts
def test_the_alarm_goes_off_after_a_restart(is_due_while_down: bool, restart: Restart) -> None:
    shell = room_shell()
    shell.propose()
    shell.save_snapshot()
    shell.clock.advance(3 * DAY_S if is_due_while_down else 3_600)
    again = restart(shell)
    if not is_due_while_down:
        assert status(again) == "pending"
        again.clock.advance(DAY_S - 3_600)

    assert status(again) == "expired"
    again.tick()
    assert again.counts.proposals_expired == 1
    assert status(again.restarted_from_log()) == "expired"


def test_an_alarm_the_log_refused_goes_off_again() -> None:
    shell = room_shell()
    shell.propose()
    shell.clock.advance(DAY_S)
    shell.engine.is_full = True
    shell.tick()
    refused = (status(shell), shell.counts.proposals_expired)
    shell.engine.is_full = False
    shell.pass_time(2)

    assert refused == ("expired", 0)
    assert shell.counts.proposals_expired == 1
    assert shell.room().proposals["x"].status == "expired"


@pytest.mark.parametrize(
    ("type", "found"), [("mls_commit", ("committed", 0)), ("mls_approval", ("expired", 1))]
)
def test_a_message_that_is_pending_when_the_alarm_goes_off_counts(
    type: str, found: tuple[str, int]
) -> None:
    shell = room_shell(timestamps="exact")
    shell.propose()
    shell.clock.advance(DAY_S - 0.5)
    shell.hold()
    shell.about(type)
    shell.clock.advance(0.5)
    shell.tick()
    shell.commit()

    for one in (shell, shell.restarted_from_log()):
        assert (status(one), len(one.proposals()[0].approvals)) == found


@pytest.mark.parametrize("end", [*ENDS, None])
@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_finished_proposal_can_be_read_for_a_week(end: str | None, has_snapshot: bool) -> None:
    shell = room_shell()
    shell.propose()
    if end is not None:
        shell.about(end)
    else:
        shell.clock.advance(DAY_S)
        shell.tick()
    if has_snapshot:
        shell.save_snapshot()
    shell = shell.restarted()
    shell.clock.advance(WEEK_S - 1)
    shell.tick()
    before = names(shell)
    shell.clock.advance(1)
    shell.tick()

    assert (before, names(shell), shell.rooms.state.bytes) == (["x"], [], 0)
    if has_snapshot:
        shell.save_snapshot()
    again = shell.restarted()
    again.tick()
    assert names(again) == []


# Blobs.


def test_a_condition_must_name_the_version_that_is_there() -> None:
    shell = room_shell()
    assert shell.put_blob(b"x", 1).code == CHANGED
    assert shell.known == (0, 0)
    assert shell.put_blob(b"one", 0).result == Blob(1)
    shell.put_blob(b"two")

    for version in (0, 1, 3):
        caller = shell.put_blob(b"three", version)
        assert caller.code == CHANGED
        assert '"2"' in caller.error.text
    assert shell.blob() == Blob(2, b"two")
    assert shell.put_blob(b"three", 2).result == Blob(3)
    shell.stop_log()
    assert shell.put_blob(b"four").code == UNAVAILABLE
    assert shell.put_blob(b"four", 7).code == CHANGED
    assert shell.blob() == Blob(3, b"three")


@pytest.mark.parametrize("version", [0, 1])
def test_of_two_writers_that_know_the_same_version_one_wins(version: int) -> None:
    shell = room_shell()
    if version:
        shell.put_blob(b"old")
    shell.hold()
    callers = [shell.put_blob(data, version) for data in (b"two", b"too")]
    before = (callers[0].results, missing(shell))
    shell.commit()

    assert before == ([], not version)
    assert (callers[0].result, callers[1].code) == (Blob(version + 1), CHANGED)
    assert shell.blob() == Blob(version + 1, b"two")


@pytest.mark.parametrize("committed", [0, 1])
def test_a_refused_write_leaves_the_version_that_was_there(committed: int) -> None:
    shell = room_shell()
    shell.put_blob(b"one")
    shell.hold()
    callers = [shell.put_blob(b"two"), shell.put_blob(b"three"), shell.put_blob(b"4", 3)]
    shell.commit(committed)
    shell.refuse()

    assert [caller.code for caller in callers[committed:]] == [UNAVAILABLE] * (3 - committed)
    assert shell.blob() == (Blob(2, b"two") if committed else Blob(1, b"one"))
    assert shell.put_blob(b"next", 1 + committed).result == Blob(2 + committed)


@restarts
def test_a_version_that_a_loss_may_have_taken_is_never_given_again(restart: Restart) -> None:
    shell = room_shell()
    shell.put_blob(b"kept")
    shell = shell.restarted()
    shell.perform(shell.rooms.enter_epoch(2, EntriesLost(3), shell.now))
    floor = shell.rooms.directory.floor

    # What is left has the version that it always had.
    assert shell.put_blob(b"x", 2).code == CHANGED
    assert shell.put_blob(b"new", 1).result == Blob(floor + 1)
    assert shell.put_blob(b"q", 0, name="quorum").result == Blob(floor + 1)
    shell = restart(shell)
    for version in (2, 3, 4):
        assert shell.put_blob(b"x", version).code == CHANGED
    assert shell.put_blob(b"newer", floor + 1).result == Blob(floor + 2)
    assert restart(shell).blob() == Blob(floor + 2, b"newer")


def test_a_loss_skips_more_versions_than_any_blob_can_have_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the clock is wrong, and no inbox has as many positions."""
    monkeypatch.setattr(floor, "_SKIPPED_MIN", 1)
    shell = room_shell()
    for _ in range(9):
        shell.put_blob(b"kept")
    shell.perform(shell.rooms.enter_epoch(2, EntriesLost(5), shell.now))

    assert shell.rooms.directory.floor >= 9 + 5


def test_a_refused_write_after_a_loss_leaves_the_version_that_was_there() -> None:
    shell = room_shell()
    shell.put_blob(b"kept")
    shell.perform(shell.rooms.enter_epoch(2, EntriesLost(3), shell.now))
    shell.hold()
    shell.put_blob(b"new")
    shell.put_blob(b"q", name="quorum")
    shell.refuse()

    assert shell.put_blob(b"x", shell.rooms.directory.floor).code == CHANGED
    assert shell.put_blob(b"q", 0, name="quorum").result == Blob(shell.rooms.directory.floor + 1)
    assert shell.put_blob(b"new", 1).result == Blob(shell.rooms.directory.floor + 1)


def test_a_room_that_is_only_written_to_lasts_until_the_write_is_refused() -> None:
    shell = room_shell()
    visitor = shell.enter()
    shell.hold()
    callers = [shell.put_blob(b"one"), shell.put_blob(b"q", name="quorum")]
    shell.leave(visitor)
    assert shell.known == (1, 0)
    shell.refuse()

    assert [caller.code for caller in callers] == [UNAVAILABLE] * 2
    assert (missing(shell), shell.known) == (True, (0, 0))
    assert shell.put_blob(b"one", 0).result == Blob(1)


@pytest.mark.parametrize("written", [0, 1])
def test_a_crash_keeps_the_blobs_on_disk_and_forgets_the_others(written: int) -> None:
    shell = room_shell()
    shell.put_blob(b"one")
    shell.hold()
    shell.put_blob(b"two")
    shell.put_blob(b"q", name="quorum")
    shell.save_snapshot()

    again = shell.restarted(written)

    assert again.blob() == (Blob(2, b"two") if written else Blob(1, b"one"))
    assert missing(again, "quorum")


# Bounds.


def filled(count: int = 3) -> RoomShell:
    """A room with as many pending proposals as it may have."""
    shell = room_shell(proposals_max=count)
    for number in range(count):
        shell.propose(f"x{number}")
    return shell


def test_a_room_full_of_pending_proposals_takes_no_other_until_one_is_finished() -> None:
    shell = filled()

    refused = shell.propose("late")

    assert refused.code == UNAVAILABLE
    assert refused.error.retry_after_ms is not None
    assert shell.send("ordinary").seq == 4
    assert shell.about("mls_proposal", "x1").seq == 5
    assert shell.propose("elsewhere", room="another").seq == 1
    shell.about("mls_commit", "x1")
    shell.propose("late")
    for one in (shell, shell.restarted_from_log()):
        assert names(one) == ["x0", "x2", "late"]


@pytest.mark.parametrize("is_held", [False, True])
def test_an_expired_proposal_makes_room_before_the_tick_and_does_not_come_back(
    is_held: bool,
) -> None:
    shell = filled()
    shell.clock.advance(DAY_S)
    if is_held:
        # Its end is on its way to the log when a new one takes its place.
        shell.hold()
    caller = shell.propose("late")
    assert len(shell.proposals()) == 3
    shell.tick()
    shell.commit()

    assert caller.seq == 4
    for one in (shell, shell.restarted(), shell.restarted_from_log()):
        assert names(one) == ["x1", "x2", "late"]
        assert one.rooms.state.bytes == state_bytes(one)


def test_pending_proposals_count_and_pending_blobs_do_not() -> None:
    shell = room_shell(proposals_max=2, rate=4)
    shell.send("first")
    shell.hold()
    for name in ("metadata", "quorum"):
        shell.put_blob(b"data", name=name)
    callers = [shell.propose(f"x{number}") for number in range(3)]
    shell.commit()

    assert [caller.seq for caller in callers[:2]] == [2, 3]
    assert callers[2].code == UNAVAILABLE
    assert names(shell) == ["x0", "x1"]
    # A refused one does not count for the rate.
    shell.engine.is_prompt = True
    assert shell.send("ordinary").seq == 4


def test_a_proposal_has_no_more_approvals_than_allowed() -> None:
    shell = room_shell(proposals_max=3)
    shell.propose()

    assert [shell.about("mls_approval").seq for _ in range(5)] == [2, 3, 4, 5, 6]
    assert len(shell.proposals()[0].approvals) == 3
    assert shell.restarted_from_log().proposals() == shell.proposals()


def is_refused(*callers: Caller) -> None:
    assert [caller.code for caller in callers] == [UNAVAILABLE] * len(callers)
    assert all(caller.error.retry_after_ms for caller in callers)


def test_there_is_a_bound_for_everything_rooms_remember() -> None:
    shell = room_shell(state_bytes_max=1_000)
    shell.propose(ciphertext=b"A" * 400)

    is_refused(
        shell.about("mls_approval", ciphertext=b"A" * 400),
        shell.propose("y", b"A" * 400),
        shell.put_blob(b"x" * 301, room="another"),
    )

    assert shell.put_blob(b"x" * 300, room="another").result == Blob(1)
    assert shell.rooms.state.bytes == state_bytes(shell) == 1_000
    # A blob can be replaced when there is no room for another.
    assert shell.put_blob(b"y" * 300, room="another").result == Blob(2)
    assert shell.put_blob(b"z" * 10, room="another").result == Blob(3)
    assert shell.about("mls_commit", ciphertext=b"A" * 400).seq == 2
    shell.clock.advance(WEEK_S)
    shell.tick()
    assert shell.rooms.state.bytes == 10
    assert shell.propose("y", b"A" * 400).seq == 3


def test_one_room_remembers_no_more_than_its_share_and_the_others_go_on() -> None:
    shell = room_shell(room_state_bytes_max=1_000)
    shell.put_blob(b"x" * 900)
    before = shell.rooms.state.bytes

    is_refused(
        shell.put_blob(b"x" * 101, name="quorum"),
        shell.put_blob(b"x" * 1_001),
        shell.propose("p"),
        shell.put_blob(b"x" * 1_001, room="untouched"),
        shell.propose("p", TEXT * 200, room="untouched"),
    )

    assert shell.rooms.state.bytes == before
    assert shell.send("m1").seq == 1
    assert shell.propose("p", room="other").seq == 1
    assert shell.put_blob(b"x" * 500, room="third").result == Blob(1)
    assert shell.put_blob(b"x" * 100).result == Blob(2)
    assert shell.propose("p").seq == 2


def test_approvals_count_towards_the_share_of_their_room() -> None:
    shell = room_shell(room_state_bytes_max=1_500)
    shell.propose("p")

    callers = [shell.about("mls_approval", "p", b"A" * 400) for _ in range(4)]

    assert [caller.seq for caller in callers[:2]] == [2, 3]
    is_refused(*callers[2:])
    assert shell.about("mls_commit", "p").seq == 4


def test_alarms_of_proposals_that_are_gone_do_not_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_ALARMS_SPARE", 10)
    shell = room_shell(proposals_max=5)
    shell.propose("first")
    alarms: list[int] = []
    for number in range(200):
        shell.propose(f"P{number}")
        shell.about("mls_commit", f"P{number}")
        alarms.append(len(shell.rooms.state.alarms))

    assert max(alarms) <= 10 + 3 * 5
    assert len(shell.room().proposals) == 5
    shell.clock.advance(DAY_S)
    shell.tick()
    assert shell.room().proposals["first"].status == "expired"
    shell.clock.advance(WEEK_S)
    shell.tick()
    assert (shell.rooms.state.alarms, shell.rooms.state.proposals_count) == ([], 0)
