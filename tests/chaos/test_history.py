"""The checker itself: it finds nothing in honest histories and calls each fault by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest
from msgspec.structs import replace

from tests.chaos.lies import (
    LIES,
    Expected,
    lost_middle,
    lost_prefix,
    neighbours,
    reorder_within_the_mailbox,
)
from tests.chaos.tale import EPOCH, MAILBOX, READERS, TOPIC, TOPIC_READERS, Tale
from tests.support.process.history import Latency, Report, check
from tests.support.process.lines import (
    Acked,
    Attempted,
    Joined,
    Line,
    Noted,
    Received,
    Refused,
    Settled,
    Started,
)
from tests.support.volume import volume

SEEDS = range(volume(2, 4))


@pytest.mark.parametrize("seed", range(40))
def test_an_honest_history_is_clean(seed: int) -> None:
    tale = Tale(seed)

    report = check(tale.lines, seed)

    assert report.anomalies == {}
    assert report.examples == {}
    assert report.acked == len(tale.acked)
    assert report.refused == 3
    assert report.unknown == 2
    assert report.attempted == report.acked + report.refused + report.unknown
    assert report.sendings > report.attempted
    assert report.readers == len(READERS) + 1
    distinct = len(tale.log[TOPIC]) * len(TOPIC_READERS) + len(tale.log[MAILBOX])
    assert report.received == distinct + report.duplicates_marked
    assert report.notes == {"refused: queue_full": 6}


@pytest.mark.parametrize("seed", SEEDS)
def test_ledgers_may_follow_each_other_in_any_order(seed: int) -> None:
    tale = Tale(seed)

    def writer(line: Line) -> str:
        match line:
            case Received() | Settled() | Joined():
                return line.session.split("#")[0]
            case Attempted() | Acked() | Refused():
                return "producers"
        return "runner"

    writers = sorted({writer(line) for line in tale.lines})
    tale.random.shuffle(writers)
    shuffled = [line for name in writers for line in tale.lines if writer(line) == name]

    assert check(shuffled) == check(tale.lines)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_fault_is_called_by_its_name(lie: Callable[[Tale], Expected], seed: int) -> None:
    tale = Tale(seed)
    expected = lie(tale)

    report = check(tale.lines, seed)

    assert report.anomalies == expected, report.examples
    assert set(report.examples) == set(expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_faults_are_both_named(seed: int) -> None:
    tale = Tale(seed)
    expected = Counter(lost_prefix(tale)) + Counter(reorder_within_the_mailbox(tale))

    assert check(tale.lines).anomalies == expected


def lone(session: str, at: float) -> Joined:
    return Joined(at, session, "a", TOPIC, "ledger", "exclusive")


def test_a_mark_on_what_cannot_be_a_repeat_is_counted() -> None:
    lines: list[Line] = [
        *(Started(1.0), lone("a#0", 1.1), Attempted(2.0, "p", TOPIC, "p-1", 1)),
        *(Received(3.0, "a#0", EPOCH, 1, "p-1", True), Attempted(4.0, "p", TOPIC, "p-2", 2)),
        *(Received(5.0, "a#0", EPOCH, 2, "p-2"), Received(6.0, "a#0", EPOCH, 2, "p-2", True)),
    ]

    report = check(lines)

    assert report.anomalies == {}
    assert (report.fresh, report.fresh_marked) == (2, 1)


def test_what_was_sent_before_the_session_began_may_be_a_repeat() -> None:
    lines: list[Line] = [
        *(Started(1.0), lone("a#0", 1.1), Attempted(2.0, "p", TOPIC, "p-1", 1), Started(3.0)),
        *(lone("a#1", 3.1), Received(4.0, "a#1", EPOCH, 1, "p-1", True)),
    ]

    assert check(lines).fresh == 0


def test_what_another_consumer_may_have_had_may_be_a_repeat() -> None:
    lines = [*shared_by("a", "b"), Received(4.0, "b#0", EPOCH, 1, "p-1", True)]

    assert check(lines).fresh == 0


# What looks like a fault and is none.


@pytest.mark.parametrize("seed", SEEDS)
def test_a_marked_repeat_is_counted_and_no_fault(seed: int) -> None:
    tale = Tale(seed)
    before = check(tale.lines).duplicates_marked
    line = tale.random.choice(tale.firsts("ledger"))
    tale.put(replace(line, is_marked=True), line)

    report = check(tale.lines)

    assert report.anomalies == {}
    assert report.duplicates_marked == before + 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shared_subscription_promises_no_order(seed: int) -> None:
    tale = Tale(seed)
    tale.swap(*neighbours(tale, "workers", lambda line: ""))

    assert check(tale.lines).anomalies == {}


def different_keys(tale: Tale) -> tuple[Received, Received]:
    firsts = [line for line in tale.firsts("routes") if line.session.endswith("#0")]
    pairs = [
        (first, second)
        for first, second in pairwise(firsts)
        if tale.key_of[first.id] != tale.key_of[second.id]
    ]
    return tale.random.choice(pairs)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_key_shared_subscription_promises_no_order_between_keys(seed: int) -> None:
    tale = Tale(seed)
    tale.swap(*different_keys(tale))

    assert check(tale.lines).anomalies == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stale_socket_that_is_read_late_proves_nothing(seed: int) -> None:
    """What the killed hub had written is read after the new one has delivered it marked."""
    tale = Tale(seed)
    stale = [line for line in tale.receipts("routes") if line.session.endswith("#0")][-1]
    repeat = next(
        line for line in tale.receipts("routes") if line.id == stale.id and line.is_marked
    )
    tale.lines.remove(stale)
    tale.put(stale, repeat)

    assert check(tale.lines).anomalies == {}


def test_two_consumers_of_one_life_may_write_a_repeat_down_before_the_first_copy() -> None:
    lines = [
        *(*shared_by("a", "b"), Received(4.0, "b#0", EPOCH, 1, "p-1", True)),
        Received(4.1, "a#0", EPOCH, 1, "p-1"),
    ]

    report = check(lines)

    assert report.anomalies == {}
    assert report.duplicates_marked == 1


def shared_by(*consumers: str) -> list[Line]:
    """One acknowledged entry of a topic, and a shared subscription with these consumers."""
    joined = [Joined(1.1, f"{name}#0", name, TOPIC, "workers", "shared") for name in consumers]
    sent: list[Line] = [Attempted(2.0, "p", TOPIC, "p-1", 1), Acked(3.0, "p-1", EPOCH, 1)]
    return [Started(1.0), *joined, *sent]


def test_a_copy_to_another_consumer_may_cross_a_confirmed_settlement() -> None:
    lines = [
        *(*shared_by("a", "b"), Received(4.0, "a#0", EPOCH, 1, "p-1")),
        *(Settled(5.0, "a#0", EPOCH, 1), Received(5.1, "b#0", EPOCH, 1, "p-1", True)),
    ]

    assert check(lines).anomalies == {}


def test_the_first_confirmation_counts() -> None:
    lines = [
        *(*shared_by("a"), Received(4.0, "a#0", EPOCH, 1, "p-1"), Settled(5.0, "a#0", EPOCH, 1)),
        *(Received(6.0, "a#0", EPOCH, 1, "p-1", True), Settled(7.0, "a#0", EPOCH, 1)),
    ]

    assert check(lines).anomalies == {"settled_again": 1}


def test_only_one_of_three_copies_may_be_unmarked() -> None:
    lines = [
        *(*shared_by("a", "b", "c"), Received(4.0, "a#0", EPOCH, 1, "p-1", True)),
        *(Received(4.1, "b#0", EPOCH, 1, "p-1"), Received(4.2, "c#0", EPOCH, 1, "p-1")),
    ]

    assert check(lines).anomalies == {"duplicate_unmarked": 1}


def test_a_consumer_that_had_a_marked_copy_gets_no_unmarked_one() -> None:
    lines = [
        *(*shared_by("a", "b"), Received(4.0, "a#0", EPOCH, 1, "p-1", True)),
        Received(4.1, "b#0", EPOCH, 1, "p-1", True),
        Received(4.2, "b#0", EPOCH, 1, "p-1"),
    ]

    assert check(lines).anomalies == {"duplicate_unmarked": 1}


def test_a_new_life_marks_what_any_consumer_had_before() -> None:
    lines = [
        *(*shared_by("a"), Received(4.0, "a#0", EPOCH, 1, "p-1", True), Started(5.0)),
        Joined(5.1, "b#1", "b", TOPIC, "workers", "shared"),
        Received(5.2, "b#1", EPOCH, 1, "p-1"),
    ]

    assert check(lines).anomalies == {"duplicate_unmarked": 1}


def test_unanswered_messages_keep_the_order_they_were_sent_in() -> None:
    lines: list[Line] = [
        *(Attempted(1.0, "p", TOPIC, "p-1", 1), Attempted(1.1, "p", TOPIC, "p-2", 2)),
        Joined(1.2, "a#0", "a", TOPIC, "ledger", "exclusive"),
        Received(2.0, "a#0", EPOCH, 1, "p-2"),
        Received(2.1, "a#0", EPOCH, 2, "p-1"),
    ]

    assert check(lines).anomalies == {"order_break_sent": 1}


def test_a_hole_is_held_against_those_who_went_past_it() -> None:
    lines: list[Line] = [
        *(Attempted(1.0, "p", TOPIC, "p-1", 1), Attempted(1.1, "p", TOPIC, "p-2", 2)),
        Joined(1.2, "a#0", "a", TOPIC, "ledger", "exclusive"),
        Joined(1.3, "b#0", "b", TOPIC, "audit", "exclusive"),
        *(Received(2.0, "a#0", EPOCH, 1, "p-1"), Received(2.1, "b#0", EPOCH, 1, "p-1")),
        Received(2.2, "a#0", EPOCH, 3, "p-2"),
    ]

    assert check(lines).anomalies == {"skip": 1, "divergence": 1}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_new_epoch_counts_from_one_again(seed: int) -> None:
    tale = Tale(seed)
    cut = len(tale.log[TOPIC]) // 2

    def moved(line: Line) -> Line:
        if not isinstance(line, Acked | Received | Settled):
            return line
        is_topic = (
            line.id in tale.log[TOPIC]
            if isinstance(line, Acked | Received)
            else (not line.session.startswith("box"))
        )
        if is_topic and line.seq is not None and line.seq > cut:
            return replace(line, epoch="e2", seq=line.seq - cut)
        return line

    tale.change(moved)

    assert check(tale.lines).anomalies == {}


def test_an_unanswered_message_may_be_gone() -> None:
    report = check([Attempted(1.0, "p", TOPIC, "p-1", 1)])

    assert report.anomalies == {}
    assert (report.attempted, report.acked, report.refused, report.unknown) == (1, 0, 0, 1)


def test_a_failed_log_leaves_the_outcome_unknown() -> None:
    lines: list[Line] = [
        *(Attempted(1.0, "p", TOPIC, "p-1", 1), Refused(2.0, "p-1", "storage_failed")),
        Joined(3.0, "a#0", "a", TOPIC, "ledger", "exclusive"),
        Received(4.0, "a#0", EPOCH, 1, "p-1"),
    ]

    report = check(lines)

    assert report.anomalies == {}
    assert (report.refused, report.unknown) == (0, 1)


def test_a_refused_message_that_was_sent_again_is_judged_by_its_last_answer() -> None:
    lines: list[Line] = [
        *(Attempted(1.0, "p", TOPIC, "p-1", 1), Refused(2.0, "p-1", "queue_full")),
        *(Attempted(3.0, "p", TOPIC, "p-2", 2), Acked(4.0, "p-2", EPOCH, 1)),
        *(Attempted(5.0, "p", TOPIC, "p-1", 1), Acked(6.0, "p-1", EPOCH, 2)),
    ]

    report = check(lines)

    assert report.anomalies == {}
    assert (report.acked, report.refused, report.sendings) == (2, 0, 3)


# Times.


def test_latency_counts_from_the_first_attempt() -> None:
    lines: list[Line] = []
    for number in range(1, 101):
        at = float(number)
        lines.append(Attempted(at, "p", TOPIC, f"p-{number}", number))
        if number == 100:
            lines.append(Attempted(at + 0.25, "p", TOPIC, f"p-{number}", number))
        lines.append(Acked(at + number / 200, f"p-{number}", EPOCH, number))

    report = check(lines)

    assert report.ack_latency == Latency(250.0, 495.0, 500.0)
    assert report.repeated_ack_latency == Latency(500.0, 500.0, 500.0)


def test_latency_ends_with_the_first_answer() -> None:
    lines: list[Line] = [
        *(Attempted(1.0, "p", TOPIC, "p-1", 1), Acked(1.5, "p-1", EPOCH, 1)),
        Acked(9.0, "p-1", EPOCH, 1),
    ]

    assert check(lines).ack_latency == Latency(500.0, 500.0, 500.0)


def test_a_repeated_message_waits_only_once() -> None:
    lines: list[Line] = [
        *(Attempted(1.0, "p", TOPIC, "p-1", 1), Attempted(1.2, "p", TOPIC, "p-1", 1)),
        *(Acked(1.5, "p-1", EPOCH, 1), Attempted(60.0, "p", TOPIC, "p-2", 2)),
        Acked(60.25, "p-2", EPOCH, 2),
    ]

    assert check(lines).unavailable_s == 0.5


def test_examples_are_few_however_much_is_lost() -> None:
    tale = Tale(3)
    tale.forget("box", tale.log[MAILBOX])

    report = check(tale.lines)

    assert report.anomalies["lost_postfix"] > len(report.examples["lost_postfix"]) == 5


def test_nobody_is_unavailable_while_nobody_asks() -> None:
    lines: list[Line] = [
        *(Attempted(1.0, "p", TOPIC, "p-1", 1), Acked(1.5, "p-1", EPOCH, 1)),
        *(Attempted(60.0, "p", TOPIC, "p-2", 2), Acked(60.25, "p-2", EPOCH, 2)),
    ]

    assert check(lines).unavailable_s == 0.5


def test_unavailability_is_the_longest_time_without_an_answer_to_anybody() -> None:
    lines: list[Line] = [
        *(Attempted(1.0, "p", TOPIC, "p-1", 1), Attempted(1.1, "p", TOPIC, "p-2", 2)),
        *(Acked(1.2, "p-1", EPOCH, 1), Attempted(4.0, "p", TOPIC, "p-2", 2)),
        *(Acked(5.2, "p-2", EPOCH, 2), Attempted(5.3, "p", TOPIC, "p-3", 3)),
        Refused(5.4, "p-3", "queue_full"),
    ]

    assert check(lines).unavailable_s == 4.0


def test_a_report_survives_the_way_through_json() -> None:
    tale = Tale(7)
    lost_middle(tale)
    tale.lines.append(Noted(tale.lines[-1].at, "settle: not_a_consumer"))
    report = check(tale.lines, seed=7)

    text = msgspec.json.encode(report)

    assert msgspec.json.decode(text, type=Report) == report
    assert report.seed == 7
    assert report.notes["settle: not_a_consumer"] == 1
    assert len(report.examples["lost_middle"]) == 3
