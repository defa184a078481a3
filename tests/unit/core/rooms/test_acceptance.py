"""How messages get their positions: gap-free, once per id, told to everybody after the commit."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.core import refusals
from signalhub.core.effects import Answer, Note
from signalhub.core.rooms.accept import PendingMessage
from signalhub.core.rooms.values import Accepted, RoomWelcome
from signalhub.wire.entry import Kind
from signalhub.wire.errors import RoomCode, RoomError
from tests.support.memory.rooms import INBOX, SECRET, Caller, RoomShell, room_shell

UNAVAILABLE = RoomCode.UNAVAILABLE
NOW_MS = 1_760_000_000_000


def message_entries(shell: RoomShell) -> list[int]:
    """The positions of all messages in the log."""
    return [one.seq for one in shell.engine.entries if one.kind == Kind.ROOM_MESSAGE]


# Positions.


def test_positions_stay_gap_free_when_the_log_refuses_in_the_middle() -> None:
    shell = room_shell()
    visitor, caller = shell.enter(), Caller()
    shell.fill(1)
    shell.hold()
    for name in "abcd":
        if name < "c":
            shell.send(name, caller=caller)
        else:
            shell.deposit(name, caller=caller)
    shell.send("d", caller=caller)

    shell.commit(2)

    assert caller.told == [("a", 2, False), ("b", 3, False)]
    assert (visitor.seqs, shell.read().page.next_seq) == ([1, 2, 3], 4)
    shell.refuse()
    # Answers come in the order of the messages, repeats behind their originals.
    assert [message_id for _, message_id in caller.answers] == ["a", "b", "c", "d", "d"]
    refused = [one.code for one in caller.results if isinstance(one, RoomError)]
    assert refused == [UNAVAILABLE] * 3
    assert (shell.counts.refused, shell.counts.repeats) == (3, 1)
    assert [shell.send("d").told, shell.deposit("c").told] == [[("d", 4, False)], [("c", 5, False)]]
    assert message_entries(shell) == [*visitor.seqs, 5] == [1, 2, 3, 4, 5]


def test_a_full_log_costs_no_position_and_says_when_to_try_again() -> None:
    shell = room_shell()
    shell.engine.is_full = True
    for _ in range(3):
        error = shell.send("a").error
        assert (error.code, error.retry_after_ms) == (UNAVAILABLE, 1_000)
        assert shell.deposit("b", inbox=SECRET).code == UNAVAILABLE
    assert shell.known == (0, 0)

    shell.engine.is_full = False

    assert (shell.send("a").seq, shell.deposit("b", inbox=SECRET).seq) == (1, 1)


def test_a_log_that_has_stopped_takes_nothing_new_and_repeats_are_still_known() -> None:
    shell = room_shell()
    shell.fill(1)
    shell.stop_log()

    assert [shell.send("a").code, shell.deposit("b").code] == [UNAVAILABLE] * 2
    assert shell.send("m1").accepted == Accepted("m1", 1, True, NOW_MS)
    assert shell.read().seqs == [1]


def test_a_log_that_stops_answers_everything_on_its_way() -> None:
    shell = room_shell()
    shell.hold()
    callers = [shell.send("a"), shell.send("a"), shell.deposit("b")]

    shell.engine.refuse(refusals.storage_failed(), is_final=True)

    assert [caller.code for caller in callers] == [UNAVAILABLE] * 3


# Repeats.


def test_a_repeat_gets_the_first_position_whichever_way_it_comes_and_is_written_nowhere() -> None:
    shell = room_shell()
    visitor = shell.enter()
    shell.fill(2)
    shell.deposit("d")

    shell.say(visitor, "m2")

    assert visitor.results[-1] == Accepted("m2", 2, True, NOW_MS)
    assert (shell.send("m2").seq, shell.deposit("m2").seq, shell.send("d").seq) == (2, 2, 3)
    assert (message_entries(shell), visitor.seqs) == ([1, 2, 3], [1, 2])
    assert (shell.counts.sent, shell.counts.appended, shell.counts.repeats) == (2, 1, 4)


def test_repeats_of_a_pending_message_are_answered_after_it() -> None:
    shell = room_shell()
    visitor, caller = shell.enter(), Caller()
    shell.hold()
    for message_id in ("a", "b", "a", "a", "b"):
        shell.send(message_id, caller=caller)
    before = list(caller.results)

    shell.commit()

    assert before == []
    assert caller.told == [
        *(("a", 1, False), ("a", 1, True), ("a", 1, True)),
        *(("b", 2, False), ("b", 2, True)),
    ]
    assert visitor.seqs == [1, 2]


def test_repeats_are_answered_while_room_or_inbox_is_limited_and_cost_nothing() -> None:
    shell = room_shell(rate=2, append_rate=1)
    shell.hold()
    callers = [shell.send("m1") for _ in range(3)]
    shell.commit()
    shell.engine.is_prompt = True
    shell.fill(1, first=2)
    shell.deposit("d")

    assert [caller.seq for caller in callers] == [1, 1, 1]
    for limited in (shell.send("x"), shell.deposit("y")):
        assert limited.code == RoomCode.RATE_LIMIT_EXCEEDED
    assert (shell.send("m1").seq, shell.deposit("d").accepted.is_repeat) == (1, True)
    shell.advance(5_000)
    assert [shell.send(one).seq for one in ("x", "y")] == [4, 5]


def test_a_repeat_with_another_ciphertext_or_pseudonym_is_a_conflict_and_counted() -> None:
    shell = room_shell()
    shell.send("a", b"b25lAA", pseudonym="alice")
    shell.hold()
    shell.send("b", b"b25lAA", pseudonym="alice")

    # The beginning of a ciphertext is another one.
    conflicts = [shell.send(name, b"b25l", pseudonym="alice") for name in "ab"]
    conflicts += [shell.send(name, b"b25lAA", pseudonym="mallory") for name in "ab"]
    conflicts += [shell.deposit(name, b"b25l") for name in "ab"]
    same = [shell.send(name, b"b25lAA", pseudonym="alice") for name in "ab"]
    same += [shell.deposit(name, b"b25lAA") for name in "ab"]
    shell.commit()

    assert {one.code for one in conflicts} == {RoomCode.CONFLICT}
    assert [one.seq for one in same] == [1, 2, 1, 2]
    assert shell.counts.conflicts == 6
    assert [body.ciphertext for body in shell.bodies()] == [b"b25lAA"] * 2


@pytest.mark.parametrize(
    ("timestamps", "created_ms"),
    [("exact", 1_760_000_012_345), ("coarse", 1_760_000_010_000), ("none", None)],
)
def test_answers_tell_the_time_of_acceptance_as_the_setting_allows(
    timestamps: str, created_ms: int | None
) -> None:
    shell = room_shell(timestamps=timestamps)
    shell.clock.advance(12.345)
    shell.hold()
    caller = shell.deposit("d")
    shell.clock.advance(7)
    shell.deposit("between", inbox=SECRET)
    shell.tick()
    shell.commit()
    shell.engine.is_prompt = True
    shell.save_snapshot()
    shell.clock.advance(86_400)

    assert caller.accepted == Accepted("d", 1, False, created_ms)
    assert shell.bodies()[0].created_ms == created_ms
    for one in (shell, shell.restarted(), shell.restarted_from_log()):
        assert one.deposit("d").accepted == Accepted("d", 1, True, created_ms)


# Sockets of the room.


def test_without_echo_a_socket_does_not_hear_its_own_messages() -> None:
    shell = room_shell(echo_to_sender=False)
    sender, twin = shell.enter(), shell.enter()

    shell.say(sender, "a")
    shell.send("b", pseudonym="p1")

    assert (sender.seqs, twin.seqs) == ([2], [1, 2])
    assert shell.counts.announced == 3


def test_a_sender_that_has_left_is_not_counted_as_spared() -> None:
    shell = room_shell(echo_to_sender=False)
    sender, other = shell.enter(), shell.enter()
    shell.hold()
    shell.say(sender, "a")
    shell.leave(sender)
    shell.commit()

    assert other.seqs == [1]
    assert shell.counts.announced == 1


def test_a_socket_hears_what_is_committed_while_it_is_there() -> None:
    shell = room_shell()
    shell.fill(2)
    stays, leaves = shell.enter(), shell.enter()
    shell.hold()
    shell.say(leaves, "a")
    shell.leave(leaves)
    comes = shell.enter()
    shell.commit()

    assert (stays.seqs, leaves.seqs) == ([3], [])
    assert (comes.welcome, comes.seqs) == (RoomWelcome(2, 1), [3])


def test_a_welcome_tells_what_can_still_be_read() -> None:
    shell = room_shell(retention={"general": 60.0, INBOX: 60.0})
    shell.deposit("d")
    assert shell.enter().welcome == RoomWelcome(1, 1)
    shell.fill(1)
    shell.clock.advance(30)
    shell.fill(1, first=3)
    shell.clock.advance(30)

    assert shell.enter().welcome == RoomWelcome(3, 3)
    shell.clock.advance(30)
    assert shell.enter().welcome == RoomWelcome(3, 4)


# Memory.


def test_memory_holds_the_newest_messages_of_an_inbox_only() -> None:
    shell = room_shell(buffer=10)
    shell.fill(1_000)
    buffer, recent = shell.rooms.messages.buffer, shell.inbox().recent

    assert list(recent) == list(range(991, 1_001))
    assert buffer.bytes == sum(len(one.json) for one in recent.values())
    assert len(buffer) <= 300


def test_memory_for_all_inboxes_is_bounded_and_the_oldest_go_first() -> None:
    shell = room_shell(buffer_bytes=1_000)
    for number in range(30):
        shell.send(f"x{number}", room=f"room{number % 3}")

    assert 0 < shell.rooms.messages.buffer.bytes <= 1_000
    held = [len(one.recent) for one in shell.rooms.directory.inboxes.values()]
    assert max(held) - min(held) <= 1
    assert shell.read(inbox="cm9vbTA").seqs == list(range(1, 11))
    # A message larger than all memory is still served.
    shell.send("large", b"A" * 1_000)
    assert shell.rooms.messages.buffer.bytes == 0
    assert shell.read().ids == ["large"]


def test_expired_messages_leave_memory_with_the_tick() -> None:
    shell = room_shell(retention_s=60.0)
    shell.fill(10)
    shell.clock.advance(60)
    shell.fill(1, first=11)

    shell.tick()

    assert list(shell.inbox().recent) == [11]


def test_a_fault_in_one_message_keeps_nobody_else_of_the_commit_from_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = room_shell()
    shell.fill(1)
    followed = PendingMessage.follow

    def fail_for_b(message: PendingMessage, *rest: Any) -> None:
        if message.request.message_id == "b":
            raise LookupError("b")
        followed(message, *rest)

    monkeypatch.setattr(PendingMessage, "follow", fail_for_b)
    caller = Caller()
    shell.hold()
    for name in "abc":
        shell.send(name, caller=caller)

    pending = list(shell.inbox().pending.values())
    effects = shell.rooms.committed(pending, shell.engine.head, NOW_MS)

    assert [one.message_id for one in effects if isinstance(one, Answer)] == ["a", "c"]
    (note,) = [one for one in effects if isinstance(one, Note)]
    assert str(note.error) == "LookupError", "what is confidential is not logged"
