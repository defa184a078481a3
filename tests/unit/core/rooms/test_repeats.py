"""An id is known for a week: through restarts, clock changes and a memory that is too small."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pytest

from signalhub.core.effects import Recall
from signalhub.core.messages.dedup import Recalled, fingerprint
from signalhub.core.rooms.accept import Acceptance
from signalhub.core.rooms.values import Accepted
from signalhub.core.streams.recovery import take_snapshot
from signalhub.state import schema
from signalhub.state.schema import RoomIds
from signalhub.wire.errors import RoomCode
from tests.support.memory.rooms import (
    DAY_S,
    INBOX,
    SECRET,
    WEEK_S,
    Caller,
    Restart,
    RoomShell,
    restarts,
    room_shell,
    scarce_ids,
)

every_precision = pytest.mark.parametrize("timestamps", ["exact", "coarse", "none"])


def repeated(shell: RoomShell, *numbers: int) -> None:
    """Messages with these numbers are known, with their positions."""
    found = [shell.send(f"m{number}").accepted for number in numbers]
    assert [(one.seq, one.is_repeat) for one in found] == [(number, True) for number in numbers]


# Time and restarts.


@pytest.mark.parametrize(("timestamps", "longer_s"), [("exact", 0.0), ("coarse", 2.9)])
def test_an_id_is_known_for_a_week(timestamps: str, longer_s: float) -> None:
    shell = room_shell(timestamps=timestamps)
    shell.clock.advance(2)
    shell.fill(1)
    shell.clock.advance(WEEK_S + longer_s)

    repeated(shell, 1)
    shell.clock.advance(5.001)
    assert shell.send("m1").told == [("m1", 2, False)]


@every_precision
def test_messages_of_one_commit_are_all_known(timestamps: str) -> None:
    shell = room_shell(timestamps=timestamps)
    shell.clock.advance(2)
    shell.hold()
    for number in range(1, 31):
        if number == 16:
            shell.clock.advance(0.003)
        shell.send(f"m{number}")
    shell.commit()
    shell.engine.is_prompt = True

    repeated(shell, *range(1, 31))
    assert len(shell.rooms.messages.ids.unsaved) == 30


def test_an_id_that_is_used_again_after_its_time_is_once_on_a_page() -> None:
    shell = room_shell(repeat_s=100.0)
    shell.fill(1)
    shell.clock.advance(110)
    shell.fill(1)

    assert (shell.read().ids, shell.read().seqs, shell.read(2).seqs) == (["m1"], [1], [2])


@restarts
def test_a_repeat_after_a_restart_gets_the_first_position(restart: Restart) -> None:
    shell = room_shell()
    shell.fill(3)
    shell.deposit("d", inbox=SECRET)
    shell.save_snapshot()
    shell.fill(2, first=4)

    again = restart(shell)

    repeated(again, 1, 2, 3, 4, 5)
    assert again.deposit("d", inbox=SECRET).accepted.is_repeat
    assert again.send("new").accepted == Accepted("new", 6, False, 1_760_000_000_000)


@restarts
def test_other_content_under_a_known_id_is_told_after_a_restart(restart: Restart) -> None:
    shell = room_shell()
    shell.send("saved", pseudonym="alice")
    shell.save_snapshot()
    shell.send("logged", pseudonym="alice")

    again = restart(shell)

    for name in ("saved", "logged"):
        assert again.send(name, b"b3RoZXI").code == RoomCode.CONFLICT
        assert again.send(name, pseudonym="mallory").code == RoomCode.CONFLICT
        assert again.send(name, pseudonym="alice").accepted.is_repeat
    assert again.counts.conflicts == 4


@restarts
def test_messages_of_the_first_version_are_repeated_whatever_they_hold(
    restart: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = room_shell()
    with monkeypatch.context() as patch:
        # Its entries and records have no digests.
        patch.setattr(Acceptance, "digest_of", lambda self, request: 0)
        shell.send("saved", pseudonym="alice")
        shell.save_snapshot()
        shell.send("logged", pseudonym="alice")

    again = restart(shell)

    for seq, name in enumerate(("saved", "logged"), start=1):
        assert again.send(name, b"b3RoZXI", pseudonym="bob").told == [(name, seq, True)]


def test_after_a_crash_what_reached_the_disk_is_a_repeat_and_the_rest_is_new() -> None:
    shell = room_shell()
    shell.fill(1)
    shell.hold()
    callers = [shell.send(name) for name in "abc"]
    # A snapshot knows no id that is not on disk.
    shell.save_snapshot()

    again = shell.restarted(written=2)
    again.engine.is_prompt = True

    assert all(caller.results == [] for caller in callers)
    found = [again.send(name).accepted for name in "abc"]
    assert [(one.seq, one.is_repeat) for one in found] == [(2, True), (3, True), (4, False)]
    assert again.read().ids == ["m1", "a", "b", "c"]


def test_ids_are_known_a_week_through_many_restarts() -> None:
    shell = room_shell()
    for number in range(1, 8):
        shell.send(f"m{number}")
        shell.save_snapshot()
        shell.clock.advance(DAY_S)
        shell = shell.restarted()

    repeated(shell, *range(1, 8))
    shell.clock.advance(6)
    assert (shell.send("m1").seq, shell.send("m2").seq) == (8, 2)


def test_a_clock_that_is_set_back_costs_no_id() -> None:
    shell = room_shell()
    shell.fill(1)
    shell.clock.jump(-3_600)
    shell.hold()
    shell.send("m2")
    shell.clock.advance(60)
    shell.send("m3")
    shell.commit()
    # On disk there are records and nothing beside them.
    fresh = shell.rooms.messages.ids.memory.take_fresh()
    room_ids = RoomIds(apsw.Connection(":memory:"))
    room_ids._connection.execute(schema.CREATE)
    room_ids.add(fresh.records)

    name = shell.inbox().name
    found = [room_ids.recall(fingerprint(name, f"m{number}"), 0).seq for number in (1, 2, 3)]

    assert (found, fresh.aside) == ([1, 2, 3], {})
    shell = room_shell()
    for number in (1, 2, 3):
        shell.fill(1, first=number)
        shell.save_snapshot()
        shell.clock.jump(-2 * DAY_S)
    shell.fill(1, first=4)
    repeated(shell.restarted(), 1, 2, 3, 4)


def test_a_message_accepted_before_a_snapshot_and_committed_after_it_costs_no_id() -> None:
    shell = room_shell(repeat_s=150.0)
    shell.fill(1)
    shell.hold()
    shell.send("m2")
    shell.clock.advance(80)
    shell.save_snapshot()

    again = shell.restarted(written=1)

    repeated(again, 2, 1)
    again.clock.advance(60)
    repeated(again, 1)


# Memory gives ids up before a snapshot takes them over, and then they are looked up on disk.


@pytest.fixture
def scarce() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        scarce_ids(patch)
        yield


def aged(shell: RoomShell, count: int = 200, *, room: str = "general") -> RoomShell:
    """Messages m1, m2, … over half an hour, with snapshots as the hub takes them."""
    for number in range(1, count + 1):
        assert shell.send(f"m{number}", room=room).seq == number
        shell.clock.advance(10)
        if number % 10 == 0:
            shell.save_snapshot()
    assert shell.rooms.messages.ids.memory.is_shortened
    return shell


def unsaved(shell: RoomShell, message_id: str) -> int:
    """The position of an id that is known to be in no snapshot."""
    found = shell.rooms.messages.ids.find_unsaved(fingerprint(shell.inbox().name, message_id))
    return 0 if found is None else found.seq


@pytest.mark.usefixtures("scarce")
class TestWithLittleMemory:
    @every_precision
    def test_ids_are_known_although_no_snapshot_has_them(self, timestamps: str) -> None:
        shell = room_shell(timestamps=timestamps)
        for number in range(1, 201):
            assert shell.send(f"m{number}").accepted.is_repeat is False
            repeated(shell, number)
            shell.clock.advance(1)

        assert shell.rooms.messages.ids.memory.is_shortened
        repeated(shell, *range(1, 201))
        assert shell.deposit("m1").accepted.is_repeat
        assert len(shell.bodies()) == 200

    @every_precision
    def test_ids_are_known_while_their_snapshot_is_on_its_way(self, timestamps: str) -> None:
        shell = room_shell(timestamps=timestamps)
        ids = shell.rooms.messages.ids
        shell.fill(100)
        first_offset = shell.engine.head
        first = take_snapshot(shell.hub.parts, first_offset)
        shell.fill(100, first=101)
        take_snapshot(shell.hub.parts, shell.engine.head)

        repeated(shell, 1, 50, 100, 101, 150, 200)
        ids.saved(first_offset - 1)
        assert unsaved(shell, "m3") == 3
        shell.shelf.save_snapshot(first, shell.engine.epoch, 0)
        ids.saved(first_offset)

        assert [unsaved(shell, name) for name in ("m3", "m100", "m101")] == [0, 0, 101]
        repeated(shell, 1, 50, 100, 101, 150, 200)
        shell.fill(5, first=201)
        assert len(ids.unsaved) == 5
        shell.save_snapshot()
        # What a snapshot holds takes no more memory.
        assert (ids.unsaved, unsaved(shell, "m101"), unsaved(shell, "m205")) == ({}, 0, 0)
        assert len(shell.bodies()) == 205

    def test_what_memory_gave_up_is_looked_up_before_and_after_a_restart(self) -> None:
        shell = room_shell()
        visitor = shell.enter()
        aged(shell, 205)

        for one in (shell, shell.restarted()):
            repeated(one, 1, 20, 100, 201, 205)
            assert one.counts.recalls > 0
        assert visitor.seqs == list(range(1, 206))
        assert shell.send("new").seq == 206

    def test_nothing_is_looked_up_for_an_inbox_that_is_younger_than_memory(self) -> None:
        shell = aged(room_shell())
        before = shell.counts.recalls
        shell.send("a", room="young")
        shell.clock.advance(10)

        assert [shell.send(name, room="young").seq for name in "ba"] == [2, 1]
        assert shell.counts.recalls == before

    def test_messages_behind_a_look_up_keep_their_order_and_are_looked_up_at_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shell, caller, asked = aged(room_shell()), Caller(), []
        look_up = shell._recall

        def counted(effect: Recall) -> None:
            asked.append(len(effect.keys))
            look_up(effect)

        monkeypatch.setattr(shell, "_recall", counted)
        shell.hold_reads()
        for message_id in ("a", "m5", "b", "a", "m7", "c", "b"):
            shell.send(message_id, caller=caller)
        shell.deposit("d", caller=caller)
        # What memory knows is answered past those that wait.
        repeated(shell, 200)
        pending = caller.told
        shell.answer_reads()

        assert (pending, asked) == ([], [1, 7])
        assert sorted(caller.told) == [
            *(("a", 201, False), ("a", 201, True), ("b", 202, False), ("b", 202, True)),
            *(("c", 203, False), ("d", 204, False), ("m5", 5, True), ("m7", 7, True)),
        ]
        assert shell.inbox().queue is None

    def test_other_content_under_an_id_that_is_looked_up_is_told(self) -> None:
        shell = aged(room_shell())

        assert shell.send("m1", b"b3RoZXI").code == RoomCode.CONFLICT
        repeated(shell, 1)
        assert shell.counts.recalls > 0

    def test_an_id_that_cannot_be_looked_up_is_refused_and_the_others_go_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shell = aged(room_shell())
        shell.hold_reads()
        callers = [shell.send(name) for name in ("m1", "new", "m2")]
        answers = iter([None, Recalled(0), Recalled(2)])
        monkeypatch.setattr(shell.shelf, "recall", lambda *given: next(answers))
        shell.answer_reads()

        assert callers[0].code == RoomCode.UNAVAILABLE
        assert callers[0].error.retry_after_ms is not None
        assert [caller.seq for caller in callers[1:]] == [201, 2]

    def test_no_more_than_a_thousand_wait_for_a_look_up(self) -> None:
        shell = aged(room_shell())
        shell.hold_reads()
        callers = [shell.send(f"x{number}") for number in range(1_001)]
        shell.answer_reads()

        assert callers[-1].code == RoomCode.UNAVAILABLE
        assert [caller.seq for caller in callers[:-1]] == list(range(201, 1_201))

    def test_what_waited_is_limited_when_its_turn_comes(self) -> None:
        shell = aged(room_shell(rate=2))
        shell.hold_reads()
        callers = [shell.send(name) for name in ("a", "b", "c", "m3")]
        shell.answer_reads()

        assert [caller.seq for caller in callers[:2]] == [201, 202]
        assert callers[2].code == RoomCode.RATE_LIMIT_EXCEEDED
        assert callers[3].seq == 3

    @pytest.mark.parametrize("is_bound_by_a_socket", [True, False])
    def test_an_id_is_looked_up_again_if_its_room_was_bound_meanwhile(
        self, is_bound_by_a_socket: bool
    ) -> None:
        shell = room_shell()
        shell.deposit("old", inbox=SECRET)
        shell.deposit("default", inbox=INBOX)
        shell.clock.advance(10)
        aged(shell, room="busy")
        shell.hold_reads()
        new = shell.send("new", inbox=None if is_bound_by_a_socket else SECRET)
        again = shell.send("old")
        if is_bound_by_a_socket:
            assert shell.enter(inbox=SECRET).welcome.last_seq == 1
        shell.answer_reads()

        assert new.told == [("new", 2, False)]
        assert again.told == [("old", 1, True)]
        assert [one.message_id for one in shell.bodies(SECRET)] == ["old", "new"]

    def test_an_id_on_disk_is_forgotten_after_its_week(self) -> None:
        shell = aged(room_shell())
        shell.clock.advance(WEEK_S - 10 * 100)

        repeated(shell, 150)
        assert shell.send("m2").accepted.is_repeat is False
