"""How messages get their positions: dense, once per id, told to everybody after the commit."""

from __future__ import annotations

import pytest

from signalhub.core import refusals
from signalhub.core.rooms.values import Accepted, RoomWelcome
from signalhub.wire.entry import Kind
from signalhub.wire.errors import RoomCode
from tests.support.memory.rooms import (
    INBOX,
    SECRET,
    Caller,
    bodies,
    deposit,
    fill,
    ids,
    inbox_of,
    join,
    leave,
    read,
    room_shell,
    say,
    send,
    seqs,
)
from tests.support.memory.shell import MemoryShell

UNAVAILABLE = RoomCode.UNAVAILABLE


def message_entries(shell: MemoryShell) -> list[int]:
    """The positions of all messages in the log."""
    return [one.seq for one in shell.engine.entries if one.kind == Kind.ROOM_MESSAGE]


# Positions.


def test_positions_count_from_one_without_gaps_through_rooms_and_inboxes_alike() -> None:
    shell = room_shell()

    found = [send(shell, "a").seq, deposit(shell, "b").seq, send(shell, "c").seq]

    assert found == [1, 2, 3]
    assert ids(read(shell).page) == ["a", "b", "c"]


def test_every_inbox_counts_for_itself() -> None:
    shell = room_shell()

    found = [send(shell, "a", room=room).seq for room in ("one", "two", "one", "t:one")]

    assert found == [1, 1, 1, 1]
    assert [send(shell, "b", room=room).seq for room in ("one", "two")] == [2, 2]


def test_nobody_is_told_anything_before_the_commit() -> None:
    shell = room_shell()
    visitor = join(shell)
    shell.engine.is_prompt = False

    caller = send(shell, "a")
    page = read(shell).page

    assert (caller.results, visitor.seqs, page.messages) == ([], [], [])
    shell.engine.commit()
    assert (caller.seq, visitor.seqs) == (1, [1])
    assert seqs(read(shell).page) == [1]


def test_what_is_committed_in_pieces_is_released_in_pieces() -> None:
    shell = room_shell()
    visitor = join(shell)
    fill(shell, 1)
    shell.engine.is_prompt = False
    callers = [send(shell, f"x{number}") for number in range(4)]

    shell.engine.commit(2)

    assert [len(caller.results) for caller in callers] == [1, 1, 0, 0]
    assert visitor.seqs == [1, 2, 3]
    assert read(shell).page.next_seq == 4


def test_positions_stay_dense_when_the_log_refuses_in_the_middle() -> None:
    shell = room_shell()
    visitor = join(shell)
    fill(shell, 1)
    shell.engine.is_prompt = False
    callers = [send(shell, name) if name < "c" else deposit(shell, name) for name in "abcd"]
    shell.engine.commit(2)

    shell.engine.refuse(refusals.storage_full())
    again = [send(shell, "d"), deposit(shell, "c")]
    shell.engine.commit()

    assert [caller.seq for caller in callers[:2]] == [2, 3]
    assert [caller.code for caller in callers[2:]] == [UNAVAILABLE] * 2
    assert [caller.seq for caller in again] == [4, 5]
    assert message_entries(shell) == [1, 2, 3, 4, 5]
    assert visitor.seqs == [1, 2, 3, 4]
    assert shell.tally.rooms.refused == 2


def test_a_full_log_costs_no_position_however_often_it_is_tried() -> None:
    shell = room_shell()
    shell.engine.is_full = True
    for _ in range(3):
        assert send(shell, "a").code == UNAVAILABLE
        assert deposit(shell, "b", inbox=SECRET).code == UNAVAILABLE
    assert (shell.hub.rooms.directory.rooms, shell.hub.rooms.directory.inboxes) == ({}, {})

    shell.engine.is_full = False

    assert (send(shell, "a").seq, deposit(shell, "b", inbox=SECRET).seq) == (1, 1)


def test_a_refusal_says_when_to_try_again() -> None:
    shell = room_shell()
    shell.engine.is_full = True

    error = send(shell, "a").error

    assert error.retry_after_ms == 1_000


def test_answers_to_refused_messages_come_in_the_order_of_the_messages() -> None:
    shell = room_shell()
    caller = Caller()
    shell.engine.is_prompt = False
    for message_id in "abc":
        send(shell, message_id, caller=caller)

    shell.engine.refuse(refusals.storage_full())

    assert [message_id for _, message_id in caller.answers] == ["a", "b", "c"]


def test_nothing_fresh_is_taken_while_the_log_has_stopped() -> None:
    shell = room_shell()
    fill(shell, 1)
    shell.hub.storage.stop(refusals.storage_failed())

    assert send(shell, "fresh").code == UNAVAILABLE
    assert deposit(shell, "fresh").code == UNAVAILABLE
    assert send(shell, "m1").accepted == Accepted("m1", 1, True, 1_760_000_000_000)
    assert seqs(read(shell).page) == [1]


def test_a_log_that_stops_answers_everything_on_its_way() -> None:
    shell = room_shell()
    shell.engine.is_prompt = False
    callers = [send(shell, "a"), send(shell, "a"), deposit(shell, "b")]

    shell.engine.refuse(refusals.storage_failed(), is_final=True)

    assert [caller.code for caller in callers] == [UNAVAILABLE] * 3
    assert send(shell, "a").code == UNAVAILABLE


# Repeats.


def test_a_repeat_gets_the_position_of_the_original_and_is_written_nowhere() -> None:
    shell = room_shell()
    visitor = join(shell)
    fill(shell, 3)

    caller = send(shell, "m2")

    assert caller.accepted == Accepted("m2", 2, True, 1_760_000_000_000)
    assert (message_entries(shell), visitor.seqs) == ([1, 2, 3], [1, 2, 3])
    assert (shell.tally.rooms.sent, shell.tally.rooms.repeats) == (3, 1)


def test_a_message_is_the_same_whichever_way_it_comes() -> None:
    shell = room_shell()
    visitor = join(shell)
    send(shell, "a")
    deposit(shell, "b")

    say(shell, visitor, "a")

    assert deposit(shell, "a").accepted.seq == 1
    assert send(shell, "b").accepted.seq == 2
    assert visitor.results[-1] == Accepted("a", 1, True, 1_760_000_000_000)
    assert visitor.seqs == [1]


def test_the_same_id_in_another_room_is_another_message() -> None:
    shell = room_shell()
    send(shell, "a", room="one")

    assert send(shell, "a", room="two").accepted.is_repeat is False


def test_repeats_of_a_message_on_its_way_are_answered_behind_it() -> None:
    shell = room_shell()
    visitor = join(shell)
    caller = Caller()
    shell.engine.is_prompt = False
    send(shell, "a", caller=caller)
    for message_id in ("b", "a", "a", "b"):
        send(shell, message_id, caller=caller)
    before = list(caller.results)

    shell.engine.commit()

    told = [(one.message_id, one.seq, one.is_repeat) for one in caller.results]  # type: ignore[union-attr]
    assert before == []
    assert told == [
        *(("a", 1, False), ("a", 1, True), ("a", 1, True)),
        *(("b", 2, False), ("b", 2, True)),
    ]
    assert visitor.seqs == [1, 2]


def test_repeats_of_a_message_the_log_refuses_are_refused_with_it() -> None:
    shell = room_shell()
    shell.engine.is_prompt = False
    callers = [send(shell, "a"), send(shell, "a")]
    shell.engine.refuse(refusals.storage_full())
    shell.engine.is_prompt = True

    assert [caller.code for caller in callers] == [UNAVAILABLE] * 2
    assert send(shell, "a").accepted.is_repeat is False


def test_a_repeat_is_answered_while_the_room_is_limited() -> None:
    shell = room_shell(rate=2)
    fill(shell, 2)

    assert send(shell, "fresh").code == RoomCode.RATE_LIMIT_EXCEEDED
    assert send(shell, "m1").accepted.seq == 1
    shell.advance(5_000)
    assert [send(shell, one).seq for one in ("x", "y")] == [3, 4]


def test_a_repeat_of_an_append_is_answered_while_the_inbox_is_limited() -> None:
    shell = room_shell(append_rate=1)
    deposit(shell, "d")

    assert deposit(shell, "d").accepted.is_repeat
    assert deposit(shell, "e").code == RoomCode.RATE_LIMIT_EXCEEDED


def test_repeats_on_their_way_are_not_limited_either() -> None:
    shell = room_shell(rate=1)
    shell.engine.is_prompt = False
    callers = [send(shell, "a") for _ in range(3)]
    shell.engine.commit()

    assert [caller.seq for caller in callers] == [1, 1, 1]


def test_a_repeat_with_another_text_gets_the_original_and_is_counted() -> None:
    shell = room_shell()
    send(shell, "a", b"b25l")
    shell.engine.is_prompt = False
    send(shell, "b", b"b25l")

    conflicts = [send(shell, name, b"dHdv") for name in "ab"]
    same = [send(shell, name, b"b25l") for name in "ab"]
    shell.engine.commit()

    assert [one.seq for one in (*conflicts, *same)] == [1, 2, 1, 2]
    assert shell.tally.rooms.conflicts == 2
    assert [body.ciphertext for body in bodies(shell)] == [b"b25l", b"b25l"]


def test_a_beginning_of_the_text_is_another_text() -> None:
    shell = room_shell()
    send(shell, "a", b"b25lAA")

    send(shell, "a", b"b25l")

    assert shell.tally.rooms.conflicts == 1


@pytest.mark.parametrize("timestamps", ["exact", "coarse"])
def test_an_id_is_known_for_a_week(timestamps: str) -> None:
    shell = room_shell(timestamps=timestamps)
    fill(shell, 1)
    shell.clock.advance(7 * 86_400)

    assert send(shell, "m1").accepted.is_repeat
    shell.clock.advance(5.001)
    assert send(shell, "m1").accepted == Accepted(
        "m1", 2, False, shell.hub.rooms.times.shown(shell.hub.rooms.times.floored(shell.now))
    )


@pytest.mark.parametrize(
    ("timestamps", "created_ms"),
    [("exact", 1_760_000_012_345), ("coarse", 1_760_000_010_000), ("none", None)],
)
def test_the_answer_tells_the_time_as_coarsely_as_asked_for(
    timestamps: str, created_ms: int | None
) -> None:
    shell = room_shell(timestamps=timestamps)
    shell.clock.advance(12.345)
    first = deposit(shell, "d").accepted
    shell.clock.advance(86_400)

    assert first == Accepted("d", 1, False, created_ms)
    assert deposit(shell, "d").accepted == Accepted("d", 1, True, created_ms)


def test_a_time_stays_what_it_was_however_long_the_commit_takes() -> None:
    shell = room_shell(timestamps="exact")
    shell.engine.is_prompt = False
    caller = deposit(shell, "d")
    began_ms = shell.now
    shell.clock.advance(30)
    shell.engine.commit()

    assert caller.accepted.created_ms == began_ms
    assert deposit(shell, "d").accepted.created_ms == began_ms
    assert bodies(shell)[0].created_ms == began_ms


# Everybody in the room.


def test_a_socket_hears_its_own_message_before_it_is_told_the_position() -> None:
    shell = room_shell()
    visitor = join(shell)
    shell.engine.is_prompt = False
    say(shell, visitor, "a")
    say(shell, visitor, "b")
    shell.engine.commit()

    told = [one if isinstance(one, int) else one.seq for one in visitor.heard[1:]]  # type: ignore[union-attr]
    assert told == [1, 1, 2, 2]
    assert [type(one) for one in visitor.heard[1:]] == [int, Accepted] * 2


def test_a_hub_without_echo_spares_the_socket_a_message_came_from() -> None:
    shell = room_shell(echo_to_sender=False)
    sender, twin = join(shell, pseudonym="p1"), join(shell, pseudonym="p1")

    say(shell, sender, "a")
    send(shell, "b", pseudonym="p1")

    assert (sender.seqs, twin.seqs) == ([2], [1, 2])
    assert shell.tally.rooms.announced == 3


def test_every_socket_of_the_room_hears_everything_in_order() -> None:
    shell = room_shell()
    visitors = [join(shell, pseudonym=f"p{number}") for number in range(5)]
    stranger = join(shell, "another")
    shell.engine.is_prompt = False
    for number in range(20):
        say(shell, visitors[number % 5], f"x{number}")
        if number % 3 == 0:
            shell.engine.commit(number % 4)
    shell.engine.commit()

    assert all(visitor.seqs == list(range(1, 21)) for visitor in visitors)
    assert stranger.seqs == []
    assert shell.tally.rooms.announced == 100


def test_a_frame_says_what_a_page_says_and_who_sent_what_kind() -> None:
    shell = room_shell()
    visitor = join(shell)
    say(shell, visitor, "a", type="mls_group_info")
    send(shell, "b")

    alike = {"action": "message", "ciphertext": "aGVsbG8"}
    assert visitor.frames == [
        alike | {"seq": 1, "messageId": "a", "type": "mls_group_info", "pseudonymId": "p1"},
        alike | {"seq": 2, "messageId": "b", "type": "mls_app"},
    ]


def test_a_deposit_is_announced_to_nobody() -> None:
    shell = room_shell()
    visitor = join(shell, inbox=SECRET)
    deposit(shell, "d", inbox=SECRET)
    say(shell, visitor, "a")

    assert visitor.seqs == [2]
    assert (shell.tally.rooms.appended, shell.tally.rooms.sent) == (1, 1)


def test_who_has_left_before_the_commit_hears_nothing() -> None:
    shell = room_shell()
    stays, leaves = join(shell), join(shell)
    shell.engine.is_prompt = False
    say(shell, leaves, "a")
    leave(shell, leaves)
    shell.engine.commit()

    assert (stays.seqs, leaves.seqs) == ([1], [])


def test_who_comes_before_the_commit_hears_what_the_welcome_did_not_count() -> None:
    shell = room_shell()
    fill(shell, 2)
    shell.engine.is_prompt = False
    send(shell, "x")
    visitor = join(shell)
    shell.engine.commit()

    assert visitor.welcome == RoomWelcome(2, 1)
    assert visitor.seqs == [3]


def test_a_welcome_tells_what_the_hub_still_holds() -> None:
    shell = room_shell(retention={"general": 60.0})
    fill(shell, 2)
    shell.clock.advance(30)
    fill(shell, 1, first=3)
    shell.clock.advance(30)

    assert join(shell).welcome == RoomWelcome(3, 3)
    shell.clock.advance(30)
    assert join(shell).welcome == RoomWelcome(3, 4)


def test_a_welcome_counts_what_was_deposited_in_the_inbox_of_the_room() -> None:
    shell = room_shell()
    deposit(shell, "d", inbox=INBOX)

    assert join(shell).welcome == RoomWelcome(1, 1)


# What memory holds.


def test_memory_holds_the_newest_messages_of_an_inbox_only() -> None:
    shell = room_shell(buffer=10)
    fill(shell, 4_000)
    rooms = shell.hub.rooms

    assert list(inbox_of(shell).recent) == list(range(3_991, 4_001))
    assert rooms.messages.buffer.bytes == sum(
        len(one.json) for one in inbox_of(shell).recent.values()
    )
    assert len(rooms.messages.buffer) <= 1_100


def test_memory_for_all_inboxes_is_bounded_and_the_oldest_go_first() -> None:
    shell = room_shell(buffer_bytes=1_000)
    for number in range(30):
        send(shell, f"x{number}", room=f"room{number % 3}")

    rooms = shell.hub.rooms
    assert 0 < rooms.messages.buffer.bytes <= 1_000
    held = [len(one.recent) for one in rooms.directory.inboxes.values()]
    assert max(held) - min(held) <= 1
    assert all(seqs(read(shell, inbox=one).page) == list(range(1, 11)) for one in ("cm9vbTA",))


def test_a_message_larger_than_all_memory_is_still_served() -> None:
    shell = room_shell(buffer_bytes=100)
    send(shell, "large", b"A" * 1_000)

    assert shell.hub.rooms.messages.buffer.bytes == 0
    assert ids(read(shell).page) == ["large"]


def test_expired_messages_leave_memory_with_the_tick() -> None:
    shell = room_shell(retention_s=60.0)
    fill(shell, 10)
    shell.clock.advance(60)
    fill(shell, 1, first=11)

    shell.tick()

    assert list(inbox_of(shell).recent) == [11]
