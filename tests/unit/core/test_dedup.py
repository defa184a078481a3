from __future__ import annotations

import subprocess
import sys
import tracemalloc

import pytest

from signalhub import native
from signalhub.core.messages.dedup import Dedup, KnownAck, _Table

WINDOW_MS = 300_000
NOW_MS = 1_760_000_000_000
AMPLE = 2**40
SENDER = "@(local/planner)"


def make_dedup(memory_bytes_max: int = AMPLE) -> Dedup:
    return Dedup(WINDOW_MS, memory_bytes_max)


def fill(dedup: Dedup, count: int, now_ms: int = NOW_MS, per_ms: int = 10) -> int:
    """Remember ids `0` to `count - 1`, some per millisecond; the time of the last one."""
    at_ms = now_ms
    for number in range(count):
        at_ms = now_ms + number // per_ms
        dedup.remember(SENDER, str(number), at_ms, KnownAck(at_ms))
    return at_ms


@pytest.mark.parametrize(
    "ack",
    [
        KnownAck(NOW_MS),
        KnownAck(NOW_MS + 1, "queued"),
        KnownAck(NOW_MS + 1_000_000, "queued"),
        KnownAck(NOW_MS + 10**9),
        KnownAck(NOW_MS - 1),
        KnownAck(NOW_MS - 10**9, "queued"),
        KnownAck(0),
        KnownAck(NOW_MS, extra=b'{"deliveredCount":2}'),
    ],
)
def test_a_repeated_message_gets_the_very_same_ack_within_the_window(ack: KnownAck) -> None:
    dedup = make_dedup()
    dedup.remember(SENDER, "m1", NOW_MS, ack)

    assert dedup.find(SENDER, "m1", NOW_MS) == ack
    assert dedup.find(SENDER, "m1", NOW_MS + WINDOW_MS) == ack
    assert dedup.find(SENDER, "m1", NOW_MS + WINDOW_MS + 1) is None


def test_a_message_is_known_by_sender_and_id_together_whatever_their_characters() -> None:
    dedup = make_dedup()
    for sender, message_id in (("@(a)", "m"), ("@(é\ud800)", "\0")):
        dedup.remember(sender, message_id, NOW_MS, KnownAck(NOW_MS))
        assert dedup.find(sender, message_id, NOW_MS) is not None

    for sender, message_id in (
        *(("@(b)", "m"), ("@(a)", "n"), ("@(a)m", ""), ("", "@(a)m"), ("@(é\ud801)", "\0")),
    ):
        assert dedup.find(sender, message_id, NOW_MS) is None


def test_sweeping_frees_what_has_expired_and_nothing_else() -> None:
    dedup = make_dedup()
    empty_bytes = dedup.memory_bytes
    dedup.remember(SENDER, "old", NOW_MS, KnownAck(NOW_MS, extra=b"[]"))
    dedup.remember(SENDER, "young", NOW_MS + 1, KnownAck(NOW_MS + 1))

    dedup.sweep(NOW_MS + 1 + WINDOW_MS)
    assert dedup.count == 1
    assert dedup.find(SENDER, "young", NOW_MS + 1 + WINDOW_MS) == KnownAck(NOW_MS + 1)

    dedup.sweep(NOW_MS + 2 + WINDOW_MS)
    assert dedup.count == 0
    assert dedup.memory_bytes == empty_bytes


def test_a_few_sweeps_empty_a_large_table() -> None:
    dedup = make_dedup()
    empty_bytes = dedup.memory_bytes
    last_ms = fill(dedup, 20_000)

    for _ in range(20):
        dedup.sweep(last_ms + WINDOW_MS + 1)

    assert dedup.count == 0
    assert dedup.memory_bytes == empty_bytes


def test_steady_traffic_keeps_itself_clean_without_a_sweep() -> None:
    dedup = Dedup(60_000, AMPLE)

    for number in range(20_000):
        dedup.remember(SENDER, str(number), NOW_MS + number * 30, KnownAck(NOW_MS + number * 30))

    # 2 000 ids fit the window; what has expired goes when its bucket is touched.
    assert dedup.count < 2_700


@pytest.mark.parametrize("count", [1_000, 3_333, 20_000, 50_000])
def test_an_id_costs_at_most_32_bytes(count: int) -> None:
    dedup = make_dedup()

    fill(dedup, count)

    assert dedup.count == count
    assert dedup.memory_bytes / count <= 32


def test_the_memory_reported_is_the_memory_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "IS_ON", False)
    tracemalloc.start()
    try:
        before_bytes, _ = tracemalloc.get_traced_memory()
        dedup = make_dedup()
        fill(dedup, 20_000)
        used_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    finally:
        tracemalloc.stop()

    assert used_bytes / dedup.count <= 32
    assert 0.9 <= dedup.memory_bytes / used_bytes <= 1.1


_NATIVELY = """
import sys
from signalhub.core.messages.dedup import Dedup, KnownAck, fingerprint

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4_096

count = 200_000
keys = [fingerprint("@(local/a)", str(number)) for number in range(count)]
dedup = Dedup(3_600_000, 2**30)
before = resident()
for number in range(0, count, 16):
    at_ms = 1_000_000 + number
    dedup.remember_queued(keys[number : number + 16], at_ms, at_ms, number + 1, 3)
print(resident() - before, dedup.memory_bytes, dedup.count)
"""


@pytest.mark.skipif(not native.IS_ON, reason="needs the native part")
def test_the_memory_reported_is_what_the_native_part_uses() -> None:
    """Its allocations are not traced, so what counts is the memory of a process."""
    done = subprocess.run(
        [sys.executable, "-c", _NATIVELY], capture_output=True, text=True, timeout=60, check=True
    )
    used_bytes, reported_bytes, count = map(int, done.stdout.split())

    assert count == 200_000
    assert used_bytes / count <= 34
    assert 0.9 <= reported_bytes / used_bytes <= 1.1


def test_without_memory_for_the_window_the_oldest_go_and_it_says_so() -> None:
    dedup = make_dedup(memory_bytes_max=100_000)
    windows_ms = set()

    for number in range(10_000):
        at_ms = NOW_MS + number
        dedup.remember(SENDER, str(number), at_ms, KnownAck(at_ms))
        windows_ms.add(dedup.window_ms)
        assert dedup.memory_bytes <= 100_000

    assert dedup.is_shortened
    assert max(windows_ms) == WINDOW_MS
    # A quarter of what fits goes at a time, and one id came per millisecond.
    assert min(windows_ms) > 100_000 / 28 * 0.6
    newest_lost = 9_999 - dedup.window_ms
    assert dedup.find(SENDER, str(newest_lost), NOW_MS + 9_999) is None
    assert dedup.find(SENDER, str(newest_lost + 1), NOW_MS + 9_999) is not None


def test_expired_ids_make_room_before_the_window_is_shortened() -> None:
    dedup = make_dedup(memory_bytes_max=100_000)
    later_ms = fill(dedup, 3_500) + WINDOW_MS + 1

    dedup.remember(SENDER, "large", later_ms, KnownAck(later_ms, extra=b"x" * 50_000))

    assert dedup.memory_bytes <= 100_000
    assert not dedup.is_shortened
    assert dedup.find(SENDER, "large", later_ms) is not None


def test_the_window_grows_back_when_the_flood_is_over() -> None:
    dedup = make_dedup(memory_bytes_max=100_000)
    last_ms = fill(dedup, 10_000, per_ms=1)
    shortened_ms = dedup.window_ms

    dedup.sweep(last_ms + 1_000)
    assert dedup.window_ms == shortened_ms + 1_000

    dedup.sweep(last_ms + WINDOW_MS)
    assert dedup.window_ms == WINDOW_MS
    assert not dedup.is_shortened


@pytest.mark.parametrize("cap", [1, 50_000])
def test_extras_are_bounded_by_the_same_memory_however_small(cap: int) -> None:
    dedup = make_dedup(memory_bytes_max=cap)

    for number in range(1_000):
        at_ms = NOW_MS + number
        dedup.remember(SENDER, str(number), at_ms, KnownAck(at_ms, extra=b"x" * 1_000))
        assert dedup.memory_bytes <= cap or dedup.count <= 1

    assert dedup.is_shortened
    assert cap == 1 or dedup.find(SENDER, "999", NOW_MS + 999) is not None


def test_a_clock_set_back_makes_nothing_last_longer_or_shorter() -> None:
    dedup = make_dedup()
    hour_ms = 3_600_000
    dedup.remember(SENDER, "before", NOW_MS, KnownAck(NOW_MS))
    back_ms = NOW_MS - hour_ms
    dedup.remember(SENDER, "after", back_ms, KnownAck(back_ms, "queued"))

    assert dedup.find(SENDER, "before", back_ms) == KnownAck(NOW_MS)
    assert dedup.find(SENDER, "after", back_ms) == KnownAck(back_ms, "queued")
    assert dedup.find(SENDER, "before", back_ms + WINDOW_MS - 1) == KnownAck(NOW_MS)
    assert dedup.find(SENDER, "before", back_ms + WINDOW_MS) is None
    assert dedup.find(SENDER, "after", back_ms + WINDOW_MS) == KnownAck(back_ms, "queued")
    assert dedup.find(SENDER, "after", back_ms + WINDOW_MS + 1) is None
    fill(dedup, 5_000, now_ms=back_ms)
    assert dedup.memory_bytes / dedup.count <= 32


def test_jitter_between_readings_of_the_clock_does_not_speed_time_up() -> None:
    dedup = make_dedup()
    dedup.remember(SENDER, "m", NOW_MS, KnownAck(NOW_MS))

    for _ in range(1_000):
        dedup.find(SENDER, "x", NOW_MS + 900)
        dedup.find(SENDER, "x", NOW_MS)

    assert dedup.find(SENDER, "m", NOW_MS + WINDOW_MS) is not None


@pytest.mark.parametrize("strange_ms", [-(10**15), -1, 0, 2**42 - 1, 2**42, 2**63])
def test_a_strange_time_is_used_and_a_sane_one_trusted_again_after_it(strange_ms: int) -> None:
    dedup = make_dedup()
    for now_ms in (strange_ms, NOW_MS, strange_ms, NOW_MS + 5_000):
        dedup.remember(SENDER, f"at {now_ms}", now_ms, KnownAck(now_ms))
        dedup.sweep(now_ms)
        assert dedup.find(SENDER, f"at {now_ms}", now_ms) == KnownAck(now_ms)

    last_ms = NOW_MS + 5_000
    assert dedup.find(SENDER, f"at {last_ms}", last_ms + WINDOW_MS) == KnownAck(last_ms)
    assert dedup.find(SENDER, f"at {last_ms}", last_ms + WINDOW_MS + 1) is None


def test_remembering_twice_does_no_harm() -> None:
    dedup = make_dedup()
    for extra in (b"1", b"22", b""):
        dedup.remember(SENDER, "m", NOW_MS, KnownAck(NOW_MS, extra=extra))
    assert dedup.find(SENDER, "m", NOW_MS) == KnownAck(NOW_MS)

    dedup.remember(SENDER, "n", NOW_MS + 1, KnownAck(NOW_MS + 1))
    dedup.sweep(NOW_MS + 1 + WINDOW_MS)

    once = make_dedup()
    once.remember(SENDER, "n", NOW_MS + 1, KnownAck(NOW_MS + 1))
    assert dedup.memory_bytes == once.memory_bytes


def test_bytes_of_two_records_are_not_taken_for_one_key() -> None:
    table = _Table()
    for key in (b"a" * 10, b"bbbbbccccc"):
        table.add(key, NOW_MS, KnownAck(NOW_MS), 0, 0)

    assert table.find(b"\0\0\0\0\0bbbbb") is None
    assert table.find(b"bbbbbccccc") is not None
    assert table.find(b"a" * 10) is not None


def test_what_is_kept_is_remembered_by_the_next_process() -> None:
    dedup = Dedup(WINDOW_MS, 2**20)
    dedup.keep_fresh()
    acks = {
        f"m-{number}": KnownAck(NOW_MS + number, "queued", seq=number, stream=7)
        for number in range(999)
    }
    acks["b"] = KnownAck(NOW_MS + 999, extra=b"{}")
    kept = []
    for message_id, ack in acks.items():
        dedup.remember("s", message_id, ack.at_ms, ack)
        if message_id.endswith("00"):
            kept.append(dedup.take_fresh())
    kept.append(dedup.take_fresh())

    again = Dedup(WINDOW_MS, 2**20)
    again.load(kept)

    assert again.count == dedup.count
    assert {one: again.find("s", one, NOW_MS + 1000) for one in acks} == acks
    assert again.find("s", "m-1000", NOW_MS + 1000) is None
    again.remember("s", "m-1000", NOW_MS + 1001, KnownAck(NOW_MS + 1001))
    assert again.find("s", "m-1000", NOW_MS + 1002) is not None
    assert again.find("s", "m-0", NOW_MS + WINDOW_MS + 2) is None
