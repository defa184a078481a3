"""Ids outlive restarts and a small memory: what it had to give up is looked up on disk."""

from __future__ import annotations

import apsw
import pytest

from signalhub.core.messages.dedup import Dedup, fingerprint
from signalhub.core.rooms.values import Accepted
from signalhub.state import schema
from signalhub.state.schema import RoomIds
from signalhub.wire.errors import RoomCode
from tests.support.memory.rooms import (
    SECRET,
    Caller,
    bodies,
    deposit,
    fill,
    ids,
    inbox_of,
    join,
    read,
    room_shell,
    send,
    without_shelf,
)
from tests.support.memory.shell import MemoryShell

# Room for about fifty ids.
SCARCE_BYTES = 1_500


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hubs have next to no memory for ids."""

    def made(window_ms: int, memory_bytes_max: int) -> Dedup:
        return Dedup(window_ms, SCARCE_BYTES)

    monkeypatch.setattr("signalhub.core.rooms.inbox.Dedup", made)


def aged(shell: MemoryShell, count: int = 200, **members: str) -> None:
    """Messages m1, m2, … over half an hour, with snapshots as the hub takes them."""
    for number in range(1, count + 1):
        assert send(shell, f"m{number}", **members).seq == number  # type: ignore[arg-type]
        shell.clock.advance(10)
        if number % 10 == 0:
            shell.save_snapshot()


def told(caller: Caller) -> list[tuple[str, int, bool]]:
    """What was accepted, in the order of the answers."""
    return [
        (one.message_id, one.seq, one.is_repeat)
        for one in caller.results
        if isinstance(one, Accepted)
    ]


# Restarts.


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_repeat_after_a_restart_gets_the_original_position(has_snapshot: bool) -> None:
    shell = room_shell()
    fill(shell, 3)
    deposit(shell, "d", inbox=SECRET)
    if has_snapshot:
        shell.save_snapshot()
    fill(shell, 2, first=4)

    again = shell.restarted() if has_snapshot else without_shelf(shell)

    assert [send(again, f"m{number}").seq for number in range(1, 6)] == [1, 2, 3, 4, 5]
    assert deposit(again, "d", inbox=SECRET).accepted.is_repeat
    assert send(again, "fresh").accepted == Accepted("fresh", 6, False, 1_760_000_000_000)


def test_what_reached_the_disk_unreported_is_a_repeat_and_the_rest_is_fresh() -> None:
    shell = room_shell()
    fill(shell, 1)
    shell.engine.is_prompt = False
    callers = [send(shell, name) for name in "abc"]

    again = shell.restarted(written=2)
    again.engine.is_prompt = True

    assert all(caller.results == [] for caller in callers)
    found = [send(again, name).accepted for name in "abc"]
    assert [(one.seq, one.is_repeat) for one in found] == [(2, True), (3, True), (4, False)]


def test_a_snapshot_knows_no_id_that_is_not_on_disk() -> None:
    shell = room_shell()
    fill(shell, 1)
    shell.engine.is_prompt = False
    send(shell, "lost")
    shell.save_snapshot()

    again = shell.restarted()
    again.engine.is_prompt = True

    assert send(again, "lost").accepted.is_repeat is False
    assert ids(read(again).page) == ["m1", "lost"]


def test_ids_are_known_a_week_through_many_restarts() -> None:
    shell = room_shell()
    for number in range(1, 8):
        send(shell, f"m{number}")
        shell.save_snapshot()
        shell.clock.advance(86_400)
        shell = shell.restarted()

    assert [send(shell, f"m{number}").seq for number in range(1, 8)] == list(range(1, 8))
    shell.clock.advance(6)
    assert send(shell, "m1").seq == 8
    assert send(shell, "m2").seq == 2


def test_a_clock_that_was_set_back_before_a_restart_costs_no_id() -> None:
    shell = room_shell()
    fill(shell, 2)
    shell.save_snapshot()
    shell.clock.jump(-2 * 86_400)
    fill(shell, 1, first=3)
    shell.save_snapshot()
    fill(shell, 1, first=4)

    again = shell.restarted()

    assert [send(again, f"m{number}").seq for number in range(1, 5)] == [1, 2, 3, 4]


def test_ids_of_a_clock_that_was_set_back_fit_their_records() -> None:
    """On disk there are records and nothing beside them."""
    shell = room_shell()
    fill(shell, 1)
    shell.clock.jump(-3_600)
    shell.engine.is_prompt = False
    send(shell, "m2")
    shell.clock.advance(60)
    send(shell, "m3")
    shell.engine.commit()
    fresh = shell.hub.rooms.messages.ids.memory.take_fresh()
    room_ids = RoomIds(apsw.Connection(":memory:"))
    room_ids._connection.execute(schema.CREATE)
    room_ids.add(fresh.records)

    name = inbox_of(shell).name
    found = [room_ids.recall(fingerprint(name, f"m{number}"), 0) for number in (1, 2, 3)]

    assert (found, fresh.aside) == ([1, 2, 3], {})


@pytest.mark.parametrize("timestamps", ["exact", "coarse"])
def test_a_repeat_tells_the_time_of_the_original_whatever_came_between(timestamps: str) -> None:
    shell = room_shell(timestamps=timestamps)
    shell.clock.advance(4.5)
    shell.engine.is_prompt = False
    caller = deposit(shell, "d")
    shell.clock.advance(3)
    deposit(shell, "between", inbox=SECRET)
    shell.tick()
    shell.engine.commit()
    shell.engine.is_prompt = True
    shell.save_snapshot()

    for one in (shell, shell.restarted(), without_shelf(shell)):
        assert deposit(one, "d").accepted.created_ms == caller.accepted.created_ms


def test_a_message_committed_after_a_snapshot_and_accepted_before_it_costs_no_id() -> None:
    shell = room_shell(repeat_s=150.0)
    fill(shell, 1)
    shell.engine.is_prompt = False
    send(shell, "m2")
    shell.clock.advance(80)
    shell.save_snapshot()

    again = shell.restarted(written=1)

    assert send(again, "m2").accepted.is_repeat
    assert send(again, "m1").accepted.is_repeat
    again.clock.advance(60)
    assert send(again, "m1").accepted.is_repeat


# Memory is scarce.


@pytest.mark.usefixtures("scarce")
class TestWithLittleMemory:
    """Every id of the week is known, the old ones from disk."""

    def test_what_memory_gave_up_is_recalled(self) -> None:
        shell = room_shell()
        visitor = join(shell)
        aged(shell)

        found = [send(shell, f"m{number}").accepted for number in (1, 20, 150, 200)]

        assert [(one.seq, one.is_repeat) for one in found] == [
            *((1, True), (20, True), (150, True)),
            (200, True),
        ]
        assert shell.hub.rooms.messages.ids.memory.is_shortened
        assert shell.tally.rooms.recalls > 0
        assert visitor.seqs == list(range(1, 201))
        assert send(shell, "fresh").seq == 201

    def test_what_memory_gave_up_is_recalled_after_a_restart(self) -> None:
        shell = room_shell()
        aged(shell, 205)

        again = shell.restarted()

        assert [send(again, f"m{number}").seq for number in (1, 100, 201, 205)] == [
            *(1, 100, 201, 205),
        ]
        assert send(again, "fresh").seq == 206

    def test_nothing_is_recalled_for_an_inbox_that_is_younger_than_memory(self) -> None:
        shell = room_shell()
        aged(shell)
        before = shell.tally.rooms.recalls
        send(shell, "a", room="young")
        shell.clock.advance(10)

        assert send(shell, "b", room="young").seq == 2
        assert send(shell, "a", room="young").seq == 1
        assert shell.tally.rooms.recalls == before

    def test_messages_behind_a_pending_recall_keep_their_order(self) -> None:
        shell = room_shell()
        aged(shell)
        caller = Caller()
        shell.engine.is_readable = False
        for message_id in ("a", "m5", "b", "a", "m7", "c", "b"):
            send(shell, message_id, caller=caller)
        deposit(shell, "d", caller=caller)
        pending = told(caller)
        shell.engine.is_readable = True
        shell.settle()

        assert pending == []
        assert sorted(told(caller)) == [
            *(("a", 201, False), ("a", 201, True), ("b", 202, False), ("b", 202, True)),
            *(("c", 203, False), ("d", 204, False), ("m5", 5, True), ("m7", 7, True)),
        ]
        assert inbox_of(shell).queue is None

    def test_a_known_id_is_answered_past_those_that_wait(self) -> None:
        shell = room_shell()
        aged(shell)
        shell.engine.is_readable = False
        waiting = send(shell, "fresh")

        assert send(shell, "m200").seq == 200
        assert waiting.results == []

    def test_an_id_that_cannot_be_looked_up_is_refused_and_the_others_go_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shell = room_shell()
        aged(shell)
        shell.engine.is_readable = False
        callers = [send(shell, "m1"), send(shell, "fresh"), send(shell, "m2")]
        answers = iter([None, 0, 2])
        monkeypatch.setattr(shell.shelf, "recall", lambda *given: next(answers))
        shell.engine.is_readable = True
        shell.settle()

        assert callers[0].code == RoomCode.UNAVAILABLE
        assert callers[0].error.retry_after_ms is not None
        assert [caller.seq for caller in callers[1:]] == [201, 2]

    def test_no_more_than_a_thousand_wait_for_a_recall(self) -> None:
        shell = room_shell()
        aged(shell)
        shell.engine.is_readable = False
        callers = [send(shell, f"x{number}") for number in range(1_001)]
        shell.engine.is_readable = True
        shell.settle()

        assert callers[-1].code == RoomCode.UNAVAILABLE
        assert [caller.seq for caller in callers[:-1]] == list(range(201, 1_201))

    def test_what_waited_is_limited_when_its_turn_comes(self) -> None:
        shell = room_shell(rate=2)
        for number in range(1, 201):
            send(shell, f"m{number}")
            shell.clock.advance(10)
            shell.save_snapshot()
        shell.engine.is_readable = False
        callers = [send(shell, name) for name in ("a", "b", "c", "m3")]
        shell.engine.is_readable = True
        shell.settle()

        assert [caller.seq for caller in callers[:2]] == [201, 202]
        assert callers[2].code == RoomCode.RATE_LIMIT_EXCEEDED
        assert callers[3].seq == 3

    @pytest.mark.parametrize("timestamps", ["exact", "coarse", "none"])
    def test_an_id_that_is_on_no_snapshot_yet_is_known_however_coarse_the_times(
        self, timestamps: str
    ) -> None:
        shell = room_shell(timestamps=timestamps)
        for number in range(1, 301):
            first = send(shell, f"m{number}").accepted
            again = send(shell, f"m{number}").accepted
            assert (first.seq, first.is_repeat) == (number, False)
            assert (again.seq, again.is_repeat) == (number, True)
            shell.clock.advance(1)
            if number % 10 == 0:
                shell.save_snapshot()

        assert len(bodies(shell)) == 300

    def test_an_id_is_looked_up_again_if_its_room_got_another_inbox_meanwhile(self) -> None:
        shell = room_shell()
        deposit(shell, "old", inbox=SECRET)
        deposit(shell, "d")
        aged(shell, room="busy")
        shell.engine.is_readable = False
        binds = send(shell, "fresh", inbox=SECRET)
        again = send(shell, "old")
        shell.engine.is_readable = True
        shell.settle()

        assert binds.seq == 2
        assert (again.accepted.seq, again.accepted.is_repeat) == (1, True)

    def test_a_recalled_id_is_forgotten_after_its_week(self) -> None:
        shell = room_shell()
        aged(shell)
        shell.clock.advance(7 * 86_400 - 10 * 100)

        assert send(shell, "m150").accepted.is_repeat
        assert send(shell, "m2").accepted.is_repeat is False
