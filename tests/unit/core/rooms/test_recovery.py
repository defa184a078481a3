"""What rooms keep: snapshots and logs say the same, also after the log was cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.core.rooms import inbox as pins_module
from signalhub.core.rooms.inbox import Pins
from signalhub.core.rooms.values import Blob
from signalhub.core.streams.recovery import take_snapshot
from signalhub.wire.entry import Kind
from signalhub.wire.errors import RoomCode
from tests.support.memory.rooms import (
    DAY_S,
    SECRET,
    Caller,
    Restart,
    RoomShell,
    cut,
    described,
    restarts,
    room_shell,
)

NOW = 1_760_000_000_000

# Snapshots.


def furnished(retention_s: float = 60.0) -> RoomShell:
    """A hub with something of every kind that rooms remember."""
    shell = room_shell(retention_s=retention_s)
    shell.enter("bound", "bound-inbox")
    shell.fill(5, inbox=SECRET)
    shell.deposit("d1", inbox="lone")
    shell.put_blob(b"one")
    shell.put_blob(b"two")
    shell.put_blob(b"q", name="quorum", room="blobs-only")
    for name in ("x", "y", "z"):
        shell.propose(name, pseudonym="alice")
    shell.about("mls_approval")
    shell.about("mls_commit", "y")
    return shell


def test_snapshots_add_up_and_say_what_the_log_says() -> None:
    shell = furnished()
    shell.save_snapshot()
    shell.about("mls_rejection", "z")
    shell.deposit("d2", inbox="lone")
    for number in range(5):
        shell.send(f"more{number}", inbox=SECRET)
        shell.put_blob(b"%d" % number, room="blobs-only")
        again = shell.restarted()
        assert described(again) == described(shell)
        shell = again
        shell.save_snapshot()

    assert described(shell.restarted_from_log()) == described(shell)
    assert shell.pages(100, inbox=SECRET) == list(range(1, 17))


def test_a_snapshot_holds_only_what_changed_since_the_last_one() -> None:
    shell = furnished()
    # A room with guests alone is in no snapshot.
    visitor = shell.enter("empty")

    def taken(*, is_whole: bool = False) -> set[str]:
        snapshot = take_snapshot(shell.hub.parts, shell.engine.head, is_whole=is_whole)
        return {name for name, state in snapshot.rooms.items() if state is not None}

    first, nothing = taken(), taken()
    shell.send("more", inbox=SECRET)
    more, whole = taken(), taken(is_whole=True)

    assert visitor.guest in shell.room("empty").guests
    assert (len(first), first, nothing) == (6, whole, set())
    assert more == {shell.inbox(SECRET).name, shell.room().name, "shared"}


def test_a_room_that_was_forgotten_does_not_speak_for_the_one_that_came_after_it() -> None:
    shell = room_shell()
    shell.engine.is_full = True
    shell.send("a", inbox=SECRET)
    shell.engine.is_full = False
    shell.advance(3_000)
    shell.send("a", inbox=SECRET)
    shell.save_snapshot()
    shell.advance(3_000)
    shell.send("b", room="another")
    shell.tick()
    shell.save_snapshot()

    again = shell.restarted()

    assert described(again) == described(shell)
    assert again.room().inbox is again.inbox(SECRET)


@pytest.mark.parametrize("which", ["inbox.", "room.", "shared"])
def test_a_damaged_snapshot_is_made_again_from_the_log(
    which: str, caplog: pytest.LogCaptureFixture
) -> None:
    shell = furnished()
    shell.save_snapshot()
    name = next(one for one in shell.shelf._rooms if one.startswith(which))
    shell.shelf._rooms[name] = b"\xc1\xff"

    again = shell.restarted()

    assert described(again) == described(shell)
    assert "snapshot" in caplog.text
    assert again.send("m3").accepted.is_repeat


def test_entries_a_snapshot_already_covers_change_nothing() -> None:
    """A snapshot may be newer than the offset it is filed under."""
    shell = furnished()
    early = shell.engine.head - 4
    shell.save_snapshot()
    assert shell.shelf._head is not None
    epoch, _, _, next_id = shell.shelf._head
    shell.shelf._head = (epoch, early, early, next_id)

    assert described(shell.restarted()) == described(shell)


# The log is cut.


def test_a_log_that_was_cut_still_knows_everything() -> None:
    shell = furnished()
    shell.clock.advance(61)
    head = shell.engine.head
    cut(shell)

    again = shell.restarted_from_log()

    assert shell.engine.first == head
    assert described(again) == described(shell)
    assert again.send("new").seq == 11
    assert again.deposit("new", inbox="lone").seq == 2
    assert again.send("x", inbox="another").code == RoomCode.CONFLICT
    assert again.send("x", room="bound").seq == 1
    assert again.blob() == Blob(2, b"two")
    assert again.blob("quorum", "blobs-only") == Blob(1, b"q")
    assert again.put_blob(b"three", 1).code == RoomCode.PRECONDITION_FAILED


def test_counters_and_the_mark_of_the_key_outlive_every_message() -> None:
    shell = room_shell(retention_s=60.0)
    for first in (1, 4, 7):
        shell.fill(3, first=first)
        shell.clock.advance(61)
        cut(shell)
        shell = shell.restarted_from_log()

    assert shell.send("m10").seq == 10
    assert (shell.read().seqs, shell.read().page.oldest) == ([10], 10)
    assert shell.rooms.directory.key_mark == shell.rooms.directory.names.mark
    assert shell.count(Kind.INBOX_KEY) == 1


def test_a_log_that_begins_in_the_middle_of_an_inbox_knows_its_head() -> None:
    shell = room_shell()
    shell.fill(10)
    shell.cut_before(6)

    again = shell.restarted_from_log()

    assert (again.read().seqs, again.read().page.oldest) == ([6, 7, 8, 9, 10], 6)
    assert again.deposit("d").seq == 11


def test_a_proposal_that_outlives_its_message_goes_on() -> None:
    shell = room_shell(retention_s=60.0)
    shell.propose(pseudonym="alice")
    shell.clock.advance(3_600)
    cut(shell)

    again = shell.restarted_from_log()
    again.about("mls_approval")

    (found,) = again.proposals()
    assert (found.status, found.proposer, len(found.approvals)) == ("pending", "alice", 1)
    again.clock.advance(DAY_S - 3_600)
    again.tick()
    assert again.counts.proposals_expired == 1


def test_anchors_are_written_once_for_what_is_defined_before_the_cut() -> None:
    shell = furnished()
    end, written = shell.engine.head, []
    for _ in range(2):
        shell.perform(shell.hub.anchors.anchor(end, shell.now))
        written.append(shell.engine.head)

    assert shell.hub.anchors.anchored() >= end
    assert written[0] == written[1] > end


def test_nothing_may_be_cut_until_all_anchors_of_a_room_are_on_disk() -> None:
    shell = furnished()
    shell.clock.advance(61)
    shell.hold()
    before, end = described(shell), shell.engine.head
    shell.perform(shell.hub.anchors.anchor(end, shell.now))
    for _ in range(shell.engine.pending - 1):
        shell.commit(1)
        assert shell.hub.anchors.anchored() < end
        shell.engine.cut(shell.hub.anchors.anchored())
        assert described(shell.restarted_from_log()) == before
    shell.commit(1)

    assert shell.hub.anchors.anchored() >= end
    shell.engine.cut(end)
    assert described(shell.restarted_from_log()) == before


def test_anchors_the_log_refused_count_for_nothing() -> None:
    shell = furnished()
    before, known = shell.hub.anchors.anchored(), described(shell)
    shell.engine.is_full = True
    shell.perform(shell.hub.anchors.anchor(shell.engine.head, shell.now))
    shell.engine.is_full = False
    shell.clock.advance(61)

    assert shell.hub.anchors.anchored() == before
    cut(shell)
    assert described(shell.restarted_from_log()) == known


# Something is on its way while anchors are written.

ON_ITS_WAY: dict[str, Callable[[RoomShell], Caller]] = {
    "message": lambda shell: shell.send("late", inbox=SECRET),
    "append": lambda shell: shell.deposit("late", inbox="lone"),
    "blob": lambda shell: shell.put_blob(b"late"),
    "first blob": lambda shell: shell.put_blob(b"late", name="quorum"),
    "binding": lambda shell: shell.send("late", room="new", inbox="new-inbox"),
    "proposal": lambda shell: shell.propose("late"),
    "approval": lambda shell: shell.about("mls_approval"),
    "commit": lambda shell: shell.about("mls_commit"),
}
on_its_way = pytest.mark.parametrize("happens", ON_ITS_WAY.values(), ids=ON_ITS_WAY)
Happens = Callable[[RoomShell], Caller]


@on_its_way
@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("in_pieces", [False, True])
def test_what_is_on_its_way_while_the_log_is_anchored_is_not_lost(
    happens: Happens, is_refused: bool, in_pieces: bool
) -> None:
    shell = furnished()
    shell.hold()
    caller = happens(shell)
    shell.perform(shell.hub.anchors.anchor(shell.engine.head, shell.now))
    if in_pieces:
        shell.commit(1)
    if is_refused:
        shell.refuse()
    shell.engine.is_prompt = True
    shell.settle()
    shell.clock.advance(61)
    shell.engine.cut(min(shell.hub.anchors.anchored(), shell.engine.head))

    assert len(caller.results) == 1
    assert described(shell.restarted_from_log()) == described(shell)
    cut(shell)
    again = shell.restarted_from_log()
    assert described(again) == described(shell)
    assert again.engine.first == shell.engine.first > 0


@on_its_way
def test_what_happens_while_anchors_are_on_their_way_is_not_lost(happens: Happens) -> None:
    shell = furnished()
    shell.hold()
    end = shell.engine.head
    shell.perform(shell.hub.anchors.anchor(end, shell.now))
    happens(shell)
    shell.commit()
    shell.engine.is_prompt = True
    shell.clock.advance(61)
    shell.engine.cut(end)

    assert shell.hub.anchors.anchored() >= end
    assert described(shell.restarted_from_log()) == described(shell)


@restarts
@on_its_way
def test_what_was_written_before_a_restart_holds_the_log_until_it_is_anchored(
    restart: Restart, happens: Happens
) -> None:
    shell = furnished()
    shell.save_snapshot()
    shell = restart(shell)
    shell.hold()
    happens(shell)
    shell.clock.advance(61)
    cut(shell)
    shell.engine.is_prompt = True
    shell.settle()
    shell.clock.advance(61)
    shell.engine.cut(min(shell.hub.anchors.anchored(), shell.engine.head))

    assert described(shell.restarted_from_log()) == described(shell)


# What the log is needed for.


def pins(*marks: tuple[int, int]) -> Pins:
    """Messages at offsets, and how long they last from `NOW` on."""
    found = Pins()
    for offset, lasts_ms in marks:
        found.add(offset, NOW + lasts_ms)
    return found


@pytest.mark.parametrize(
    ("marks", "needed"),
    [
        ([], {0: None}),
        ([(7, 10)], {0: 7, 9: 7, 10: None, 10**9: None}),
        ([(0, 1_000), (5_000, 10)], {500: 0}),
        ([(0, 10), (5_000, 1_000)], {10: 5_000}),
        ([(0, 10), (1, 1_000), (2, 10)], {10: 0, 1_000: None}),
        # What is applied again changes nothing.
        ([(2_000, 10), (5, 1_000)], {0: 2_000, 10: None}),
    ],
)
def test_the_log_is_needed_from_the_oldest_stretch_that_can_be_read(
    marks: list[tuple[int, int]], needed: dict[int, int | None]
) -> None:
    found = pins(*marks)

    # Asking at a wrong time forgets nothing.
    for at_ms, offset in (*needed.items(), *needed.items()):
        assert found.needed_from(NOW + at_ms) == offset


def test_a_week_of_messages_takes_little_memory_and_can_be_restored() -> None:
    found, restored = Pins(), Pins()
    for number in range(20_000):
        found.add(number * 2_000, NOW + number)
    restored.restore(found.all())
    for one in (found, restored):
        one.add(50_000_000, NOW + 60_000)

    assert len(found.all()) <= 4_096
    # What was cut off the log is forgotten.
    short = pins(*((number * 2_000, 10) for number in range(10)))
    short.cut(7_000)
    assert [first for first, _ in short.all()] == list(range(6_000, 20_000, 2_000))
    assert short.needed_from(NOW) == 6_000
    assert restored.needed_from(NOW + 10_000) == found.needed_from(NOW + 10_000)
    assert restored.needed_from(NOW + 59_999) is not None


@pytest.fixture
def short_stretches() -> Iterator[None]:
    """Marks so few and short that they have to be merged soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pins_module, "_PIN_OFFSETS", 4)
        patch.setattr(pins_module, "_PINS_MAX", 8)
        yield


steps_of_pins = st.lists(
    st.tuples(
        st.integers(1, 12),  # How far the next message is in the log.
        st.integers(1, 100),  # How long it lasts.
        st.integers(0, 30),  # How much time passes after it.
        st.sampled_from(["", "restart", "cut"]),  # What else happens.
    ),
    max_size=120,
)


@pytest.mark.usefixtures("short_stretches")
@given(steps=steps_of_pins)
def test_the_log_is_never_free_where_a_message_can_still_be_read(
    steps: list[tuple[int, int, int, str]],
) -> None:
    found, messages, offset, now = Pins(), [], 0, NOW
    for step, lasts_ms, passes_ms, event in steps:
        offset += step
        messages.append((offset, now + lasts_ms))
        found.add(offset, now + lasts_ms)
        now += passes_ms
        if event == "restart":
            marks, found = found.all(), Pins()
            found.restore(marks)
        needed = found.needed_from(now)
        if event == "cut":
            found.cut(offset + 1 if needed is None else needed)
        readable = [offset for offset, expires_ms in messages if expires_ms > now]
        if readable:
            assert needed is not None
            assert needed <= min(readable)
        assert len(found.all()) <= 9
    assert found.needed_from(now + 101) is None


@pytest.mark.usefixtures("short_stretches")
@given(steps=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 30)), min_size=1, max_size=200))
def test_messages_that_last_equally_long_hold_no_more_than_a_few_stretches(
    steps: list[tuple[int, int]],
) -> None:
    found, messages, offset, now = Pins(), [], 0, NOW
    widest = 0
    for step, passes_ms in steps:
        offset += step
        messages.append((offset, now + 100))
        found.add(offset, now + 100)
        now += passes_ms
        needed = found.needed_from(now)
        readable = [offset for offset, expires_ms in messages if expires_ms > now]
        if readable:
            assert needed is not None
            found.cut(needed)
            # Eight marks cover what is needed; a stretch is at most twice as long as it has to be,
            # or had to be when more was needed: stretches do not get shorter again.
            widest = max(widest, offset - needed)
            assert min(readable) - needed <= max(4, widest // 2)


def test_the_log_is_needed_until_messages_expire_or_are_archived() -> None:
    shell = room_shell(retention_s=60.0, buffer=1)
    shell.put_blob(b"one")
    assert shell.rooms.needed_from(shell.now) is None
    shell.fill(5)
    shell.clock.advance(30)
    needed = shell.rooms.needed_from(shell.now)
    assert needed is not None
    again = shell.restarted_from_log()
    assert again.rooms.needed_from(again.now) == needed

    cut(again)
    assert again.pages(2) == again.restarted_from_log().pages(2) == [1, 2, 3, 4, 5]
    everything = again.engine.head
    again.rooms.archived_to(everything)
    again.fill(5, first=6)
    assert again.rooms.needed_from(again.now) == everything
    again.clock.advance(60)
    assert again.rooms.needed_from(again.now) is None


@pytest.mark.parametrize("buffer", [2, 500])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_wall_clock_that_is_ahead_for_a_moment_hides_and_deletes_nothing(
    buffer: int, is_restarted: bool
) -> None:
    shell = room_shell(buffer=buffer)
    shell.fill(5)
    shell.tick()
    shell.clock.jump(8 * DAY_S)
    shell.tick()
    assert shell.read().seqs == [1, 2, 3, 4, 5]
    shell.save_snapshot()
    shell.clock.jump(-8 * DAY_S)
    shell.clock.advance(1)
    shell.tick()
    if is_restarted:
        shell.save_snapshot()
        shell = shell.restarted()

    assert (shell.read().seqs, shell.read().page.oldest) == ([1, 2, 3, 4, 5], 1)
    needed = shell.rooms.needed_from(shell.now)
    assert needed is not None
    assert needed <= shell.offset_of(1)
    cut(shell)
    assert shell.pages(2) == [1, 2, 3, 4, 5]
    shell.fill(1, first=6)
    assert shell.read().seqs == [1, 2, 3, 4, 5, 6]
