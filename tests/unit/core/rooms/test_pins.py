"""Pins: the log is needed from the oldest message that can be read on, and hardly any earlier."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.core.rooms import inbox as pins_module
from signalhub.core.rooms.inbox import Pins
from tests.support.memory.rooms import deposit, fill, pages, room_shell, without_shelf

NOW = 1_760_000_000_000


@pytest.fixture
def short_stretches() -> Iterator[None]:
    """Marks so few and short that they have to be merged soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pins_module, "_STRETCH", 4)
        patch.setattr(pins_module, "_MARKS_MAX", 8)
        yield


def test_without_messages_nothing_is_needed() -> None:
    assert Pins().needed_from(NOW) is None


def test_a_message_is_needed_until_it_expires() -> None:
    pins = Pins()
    pins.add(7, NOW + 10)

    assert [pins.needed_from(NOW + at_ms) for at_ms in (0, 9, 10)] == [7, 7, None]


def test_what_comes_after_everything_has_expired_is_needed() -> None:
    pins = Pins()
    pins.add(7, NOW + 10)
    pins.needed_from(NOW + 10)
    pins.add(9, NOW + 20)

    # One mark stands for a stretch, so a little more may be kept.
    assert pins.needed_from(NOW + 15) in (7, 8, 9)


def test_asking_at_a_wrong_time_forgets_nothing() -> None:
    pins = Pins()
    pins.add(7, NOW + 10)
    assert pins.needed_from(NOW + 1_000_000) is None

    assert pins.needed_from(NOW) == 7


def test_what_was_cut_off_the_log_is_forgotten() -> None:
    pins = Pins()
    for offset in range(0, 10_000, 1_024):
        pins.add(offset, NOW + 10)
    pins.cut(5_000)

    assert pins.needed_from(NOW) == 4_096
    assert len(pins.marks()) == 6


def test_a_clock_that_is_wrong_for_a_while_frees_nothing() -> None:
    pins = Pins()
    pins.add(7, NOW + 10)

    assert [pins.needed_from(NOW + 10**9), pins.needed_from(NOW)] == [None, 7]


def test_what_the_log_has_lost_is_let_go() -> None:
    pins = Pins()
    for number in range(10):
        pins.add(number * 2_000, NOW + 10)

    pins.cut(7_000)

    assert [first for first, _ in pins.marks()] == [number * 2_000 for number in range(3, 10)]
    assert pins.needed_from(NOW) == 6_000


def test_a_long_lived_message_keeps_what_is_behind_it() -> None:
    pins = Pins()
    pins.add(0, NOW + 1_000)
    pins.add(5_000, NOW + 10)

    assert pins.needed_from(NOW + 500) == 0


def test_a_short_lived_message_before_a_long_lived_one_frees_its_stretch() -> None:
    pins = Pins()
    pins.add(0, NOW + 10)
    pins.add(5_000, NOW + 1_000)

    assert pins.needed_from(NOW + 10) == 5_000


def test_a_message_that_outlives_its_stretch_holds_it() -> None:
    pins = Pins()
    for offset, lasts_ms in ((0, 10), (1, 1_000), (2, 10)):
        pins.add(offset, NOW + lasts_ms)

    assert pins.needed_from(NOW + 10) is not None
    assert pins.needed_from(NOW + 1_000) is None


def test_a_week_of_messages_takes_little_room() -> None:
    pins = Pins()
    for number in range(60_000):
        pins.add(number * 1_000, NOW + number)

    assert len(pins.marks()) <= 4_096


def test_what_is_applied_again_changes_nothing() -> None:
    pins = Pins()
    pins.add(2_000, NOW + 10)
    pins.add(5, NOW + 1_000)

    assert pins.marks() == [(2_000, NOW + 10)]


def test_pins_go_on_where_they_were_kept() -> None:
    pins, restored = Pins(), Pins()
    for number in range(50_000):
        pins.add(number * 1_000, NOW + number)
    restored.restore(pins.marks())
    for one in (pins, restored):
        one.add(50_000_000, NOW + 60_000)

    assert restored.needed_from(NOW + 30_000) == pins.needed_from(NOW + 30_000)
    assert restored.needed_from(NOW + 59_999) is not None


steps = st.lists(
    st.tuples(
        st.integers(1, 12),  # How far the next message is in the log.
        st.integers(1, 100),  # How long it lasts.
        st.integers(0, 30),  # How much time passes after it.
        st.sampled_from(["", "restart", "cut"]),  # What else happens.
    ),
    max_size=120,
)


@pytest.mark.usefixtures("short_stretches")
@given(steps=steps)
def test_the_log_is_never_free_where_a_message_can_still_be_read(
    steps: list[tuple[int, int, int, str]],
) -> None:
    pins, messages, offset, now = Pins(), [], 0, NOW
    for step, lasts_ms, passes_ms, event in steps:
        offset += step
        messages.append((offset, now + lasts_ms))
        pins.add(offset, now + lasts_ms)
        now += passes_ms
        if event == "restart":
            marks, pins = pins.marks(), Pins()
            pins.restore(marks)
        needed = pins.needed_from(now)
        if event == "cut":
            pins.cut(offset + 1 if needed is None else needed)
        readable = [offset for offset, expires_ms in messages if expires_ms > now]
        if readable:
            assert needed is not None
            assert needed <= min(readable)
        assert len(pins.marks()) <= 9
    assert pins.needed_from(now + 101) is None


@pytest.mark.usefixtures("short_stretches")
@given(steps=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 30)), min_size=1, max_size=200))
def test_messages_that_last_equally_long_hold_no_more_than_a_few_stretches(
    steps: list[tuple[int, int]],
) -> None:
    pins, messages, offset, now = Pins(), [], 0, NOW
    for step, passes_ms in steps:
        offset += step
        messages.append((offset, now + 100))
        pins.add(offset, now + 100)
        now += passes_ms
        needed = pins.needed_from(now)
        readable = [offset for offset, expires_ms in messages if expires_ms > now]
        if readable:
            assert needed is not None
            pins.cut(needed)
            # Eight marks cover what is needed; a stretch is at most twice as long as it has to be.
            assert min(readable) - needed <= max(4, (offset - needed) // 2)


@pytest.mark.parametrize("seed", range(20))
def test_a_log_cut_where_pins_allow_it_still_serves_every_page(seed: int) -> None:
    dice = random.Random(seed)
    rules = {f"r{number}": float(10**number) for number in range(4)}
    shell = room_shell(retention=rules, buffer=2, timestamps="exact")
    accepted: dict[str, list[tuple[int, int]]] = {}
    for number in range(150):
        inbox = f"r{dice.randrange(4)}-{dice.randrange(2)}"
        lasts_ms = int(rules[inbox[:2]] * 1000)
        seq = deposit(shell, f"m{number}", inbox=inbox).seq
        accepted.setdefault(inbox, []).append((seq, shell.now + lasts_ms))
        shell.clock.advance(dice.choice([0.0, 0.5, 5.0, 50.0]))
        needed = shell.hub.rooms.needed_from(shell.now)
        shell.engine.cut(shell.engine.head if needed is None else needed)
        if dice.random() < 0.05:
            shell.save_snapshot()
            shell = shell.restarted()

    for inbox, messages in accepted.items():
        alive = [seq for seq, expires_ms in messages if expires_ms > shell.now]
        assert pages(shell, 3, inbox=inbox) == alive


def test_pins_follow_from_the_log_alone() -> None:
    shell = room_shell(retention_s=60.0)
    fill(shell, 5)
    shell.clock.advance(30)
    before = shell.hub.rooms.needed_from(shell.now)

    again = without_shelf(shell)

    assert again.hub.rooms.needed_from(again.now) == before is not None
    again.clock.advance(30)
    assert again.hub.rooms.needed_from(again.now) is None
