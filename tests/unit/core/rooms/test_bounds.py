"""What rooms keep in memory is bounded, and what they must know they know all the same."""

from __future__ import annotations

import pytest

from signalhub.core.effects import Recall
from signalhub.core.messages.dedup import Dedup, fingerprint
from signalhub.core.rooms import state
from signalhub.core.streams import recovery
from signalhub.wire.errors import RoomCode, RoomError
from tests.support.memory.rooms import (
    INBOX,
    ROOM,
    SECRET,
    TEXT,
    bodies,
    cut,
    deposit,
    fill,
    inbox_of,
    join,
    offset_of,
    pages,
    put_blob,
    read,
    room_of,
    room_shell,
    send,
    seqs,
)
from tests.support.memory.shell import MemoryShell

# Room for about fifty ids.
SCARCE_BYTES = 1_500
EIGHT_DAYS_S = 8 * 86_400
every_precision = pytest.mark.parametrize("timestamps", ["exact", "coarse", "none"])


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hubs have next to no memory for ids."""

    def made(window_ms: int, memory_bytes_max: int) -> Dedup:
        return Dedup(window_ms, SCARCE_BYTES)

    monkeypatch.setattr("signalhub.core.rooms.inbox.Dedup", made)


def aged(shell: MemoryShell, count: int = 200) -> None:
    """Messages m1, m2, … over half an hour, all in a snapshot, most of them out of memory."""
    for number in range(1, count + 1):
        assert send(shell, f"m{number}").seq == number
        shell.clock.advance(10)
    shell.save_snapshot()
    assert shell.hub.rooms.messages.ids.memory.is_shortened


def unsaved(shell: MemoryShell, message_id: str) -> int:
    """The position of an id that is known to be in no snapshot."""
    return shell.hub.rooms.messages.ids.find_unsaved(fingerprint(inbox_of(shell).name, message_id))


def repeated(shell: MemoryShell, *numbers: int) -> None:
    """Messages with these numbers are known, with their positions."""
    found = [send(shell, f"m{number}").accepted for number in numbers]
    assert [(one.seq, one.is_repeat) for one in found] == [(number, True) for number in numbers]


# Ids that are in no snapshot.


@pytest.mark.usefixtures("scarce")
class TestWithLittleMemory:
    """Memory gives ids up long before a snapshot takes them over."""

    @every_precision
    def test_ids_are_known_although_no_snapshot_has_them(self, timestamps: str) -> None:
        shell = room_shell(timestamps=timestamps)
        for number in range(1, 201):
            assert send(shell, f"m{number}").seq == number
            shell.clock.advance(1)

        assert shell.hub.rooms.messages.ids.memory.is_shortened
        repeated(shell, *range(1, 201))
        assert deposit(shell, "m1").accepted.is_repeat
        assert len(bodies(shell)) == 200

    @every_precision
    def test_ids_are_known_while_their_snapshot_is_on_its_way(self, timestamps: str) -> None:
        shell = room_shell(timestamps=timestamps)
        fill(shell, 100)
        first_offset = shell.engine.head
        first = recovery.take_snapshot(shell.hub.parts, first_offset)
        fill(shell, 100, first=101)
        second_offset = shell.engine.head
        recovery.take_snapshot(shell.hub.parts, second_offset)

        repeated(shell, 1, 50, 100, 101, 150, 200)
        shell.shelf.save_snapshot(first, shell.engine.epoch, 0)
        shell.hub.rooms.messages.ids.saved(first_offset)

        assert (unsaved(shell, "m100"), unsaved(shell, "m101")) == (0, 101)
        repeated(shell, 1, 50, 100, 101, 150, 200)
        assert len(bodies(shell)) == 200

    def test_ids_in_a_snapshot_take_no_more_memory(self) -> None:
        shell = room_shell()
        fill(shell, 200)
        assert len(shell.hub.rooms.messages.ids.unsaved) == 200

        shell.save_snapshot()

        assert not shell.hub.rooms.messages.ids.unsaved
        assert [unsaved(shell, f"m{number}") for number in range(1, 201)] == [0] * 200
        repeated(shell, 1, 100, 200)

    def test_a_snapshot_that_is_not_on_disk_yet_frees_nothing(self) -> None:
        shell = room_shell()
        fill(shell, 200)
        offset = shell.engine.head
        recovery.take_snapshot(shell.hub.parts, offset)
        shell.hub.rooms.messages.ids.saved(offset - 1)
        assert unsaved(shell, "m3") == 3

        shell.hub.rooms.messages.ids.saved(offset)

        assert unsaved(shell, "m3") == 0

    def test_all_who_wait_for_an_inbox_are_looked_up_at_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shell = room_shell()
        aged(shell)
        asked: list[int] = []
        look_up = shell._recall

        def counted(effect: Recall) -> None:
            asked.append(len(effect.keys))
            look_up(effect)

        monkeypatch.setattr(shell, "_recall", counted)
        shell.engine.is_readable = False
        callers = [send(shell, name) for name in ("m1", "fresh-1", "m2", "fresh-2", "m3")]
        callers.append(deposit(shell, "m4"))
        shell.engine.is_readable = True
        shell.settle()

        assert asked == [1, 5]
        assert [caller.seq for caller in callers] == [1, 201, 2, 202, 3, 4]

    def test_a_message_whose_room_was_bound_meanwhile_is_looked_up_in_that_inbox(self) -> None:
        shell = room_shell()
        deposit(shell, "old", inbox=SECRET)
        deposit(shell, "default", inbox=INBOX)
        shell.clock.advance(10)
        for number in range(1, 201):
            send(shell, f"m{number}", room="busy")
            shell.clock.advance(10)
        shell.save_snapshot()
        shell.engine.is_readable = False
        again, fresh = send(shell, "old"), send(shell, "fresh")
        guest = join(shell, inbox=SECRET)
        shell.engine.is_readable = True
        shell.settle()

        assert guest.welcome.last_seq == 1
        assert (again.accepted.seq, again.accepted.is_repeat) == (1, True)
        assert (fresh.accepted.seq, fresh.accepted.is_repeat) == (2, False)
        assert [one.message_id for one in bodies(shell, SECRET)] == ["old", "fresh"]


# What a room remembers.


def test_alarms_of_proposals_that_are_gone_do_not_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_ALARMS_SPARE", 10)
    shell = room_shell(proposals_max=5)
    send(shell, "first", type="mls_proposal", proposal="first")
    alarms: list[int] = []
    for number in range(200):
        send(shell, f"p{number}", type="mls_proposal", proposal=f"P{number}")
        send(shell, f"c{number}", type="mls_commit", proposal=f"P{number}")
        alarms.append(len(shell.hub.rooms.state.alarms))

    assert max(alarms) <= 10 + 3 * 5
    assert len(room_of(shell).proposals) == 5
    shell.clock.advance(86_400)
    shell.tick()
    assert room_of(shell).proposals["first"].status == "expired"
    shell.clock.advance(7 * 86_400)
    shell.tick()
    assert shell.hub.rooms.state.alarms == []
    assert shell.hub.rooms.state.proposals_count == 0


def test_one_room_remembers_no_more_than_its_share_and_the_others_go_on() -> None:
    shell = room_shell(room_state_bytes_max=1_000)
    assert put_blob(shell, b"x" * 900).results
    before = shell.hub.rooms.state.bytes

    refused = [
        put_blob(shell, b"x" * 101, name="quorum"),
        put_blob(shell, b"x" * 1_001),
        send(shell, "p", type="mls_proposal", proposal="p"),
        put_blob(shell, b"x" * 1_001, room="untouched"),
        send(shell, "p", TEXT * 200, room="untouched", type="mls_proposal", proposal="p"),
    ]

    assert [caller.code for caller in refused] == [RoomCode.UNAVAILABLE] * 5
    assert all(caller.error.retry_after_ms for caller in refused)
    assert shell.hub.rooms.state.bytes == before
    assert send(shell, "m1").seq == 1
    assert send(shell, "p", room="other", type="mls_proposal", proposal="p").seq == 1
    assert not isinstance(put_blob(shell, b"x" * 500, room="third").result, RoomError)
    assert not isinstance(put_blob(shell, b"x" * 100).result, RoomError)
    assert send(shell, "p", type="mls_proposal", proposal="p").seq == 2


def test_approvals_count_towards_the_share_of_their_room() -> None:
    shell = room_shell(room_state_bytes_max=1_500)
    send(shell, "p", type="mls_proposal", proposal="p")

    callers = [
        send(shell, f"a{number}", b"A" * 400, type="mls_approval", proposal="p")
        for number in range(4)
    ]

    assert [caller.seq for caller in callers[:2]] == [2, 3]
    assert [caller.code for caller in callers[2:]] == [RoomCode.UNAVAILABLE] * 2
    assert send(shell, "c", type="mls_commit", proposal="p").seq == 4


def test_a_room_is_asked_only_so_often_for_its_state() -> None:
    shell = room_shell(state_rate=3)
    rooms, at_ms = shell.hub.rooms, 1_000_000
    for _ in range(3):
        rooms.look(ROOM, at_ms)

    with pytest.raises(RoomError) as limited:
        rooms.look(ROOM, at_ms + 10_000)

    assert limited.value.code == RoomCode.RATE_LIMIT_EXCEEDED
    assert limited.value.retry_after_ms == 50_000
    rooms.look("other", at_ms + 10_000)
    rooms.look(ROOM, at_ms + 60_000)


def test_a_blob_with_an_inbox_binds_its_room_and_the_log_knows() -> None:
    shell = room_shell()
    put_blob(shell, b"blob", inbox=SECRET)

    again = shell.restarted()

    for one in (shell, again):
        assert put_blob(one, b"x", inbox=INBOX).code == RoomCode.CONFLICT
        assert send(one, "m", inbox=INBOX).code == RoomCode.CONFLICT
    assert send(again, "m1").seq == 1
    assert len(bodies(again, SECRET)) == 1


# A clock that was wrong for a moment.


@pytest.mark.parametrize("buffer", [2, 500])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_messages_can_be_read_again_after_the_clock_was_ahead_for_a_moment(
    buffer: int, is_restarted: bool
) -> None:
    shell = room_shell(buffer=buffer)
    fill(shell, 5)
    shell.tick()
    shell.clock.jump(EIGHT_DAYS_S)
    shell.tick()
    assert seqs(read(shell).page) == []
    assert shell.hub.rooms.needed_from(shell.now) is None
    shell.save_snapshot()
    shell.clock.jump(-EIGHT_DAYS_S)
    shell.clock.advance(1)
    shell.tick()
    if is_restarted:
        shell.save_snapshot()
        shell = shell.restarted()

    page = read(shell).page

    assert (seqs(page), page.oldest) == ([1, 2, 3, 4, 5], 1)
    assert pages(shell, 2) == [1, 2, 3, 4, 5]
    needed = shell.hub.rooms.needed_from(shell.now)
    assert needed is not None
    assert needed <= offset_of(shell, 1)
    cut(shell)
    assert pages(shell, 2) == [1, 2, 3, 4, 5]
    fill(shell, 1, first=6)
    assert seqs(read(shell).page) == [1, 2, 3, 4, 5, 6]
