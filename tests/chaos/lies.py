"""Every way to tell an honest tale otherwise; each says what the checker then has to find."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from msgspec.structs import replace

from tests.chaos.tale import EPOCH, MAILBOX, TOPIC, TOPIC_READERS, Tale
from tests.support.process.history import check
from tests.support.process.lines import (
    Acked,
    Attempted,
    Joined,
    Line,
    Received,
    Refused,
    Settled,
    Started,
)

Expected = dict[str, int]


def lost_prefix(tale: Tale) -> Expected:
    count = tale.random.randint(1, 4)
    tale.forget("ledger", tale.log[TOPIC][:count])
    return {"lost_prefix": count}


def lost_middle(tale: Tale) -> Expected:
    ids = tale.random.sample(tale.certain(TOPIC)[5:-5], 3)
    tale.forget("workers", ids)
    return {"lost_middle": 3}


def lost_postfix(tale: Tale) -> Expected:
    count = tale.random.randint(1, 4)
    tale.forget("routes", tale.log[TOPIC][-count:])
    return {"lost_postfix": count}


def lost_at_both_ends(tale: Tale) -> Expected:
    tale.forget("ledger", tale.log[TOPIC][:2] + tale.log[TOPIC][-3:])
    return {"lost_prefix": 2, "lost_postfix": 3}


def lost_to_all_readers(tale: Tale) -> Expected:
    ids = tale.random.sample(tale.certain(TOPIC)[5:-5], 2)
    for reader in TOPIC_READERS:
        tale.forget(reader, ids)
    return {"lost_middle": 2 * len(TOPIC_READERS)}


def lost_in_the_log_after_delivery(tale: Tale) -> Expected:
    count = tale.random.randint(1, 4)
    tale.forget("replay", tale.log[TOPIC][-count:])
    return {"lost_postfix": count}


def lost_from_the_mailbox(tale: Tale) -> Expected:
    tale.forget("box", tale.random.sample(tale.certain(MAILBOX)[3:-3], 2))
    return {"lost_middle": 2}


def a_reader_that_got_nothing(tale: Tale) -> Expected:
    tale.forget("box", tale.log[MAILBOX])
    return {"lost_postfix": len(tale.certain(MAILBOX))}


def a_whole_life_that_vanished(tale: Tale) -> Expected:
    """Acknowledged in the second life, but the third one went on from the first one's log."""
    starts = [line.at for line in tale.lines if isinstance(line, Started)]
    ids = [
        line.id
        for line in tale.lines
        if isinstance(line, Acked)
        and starts[1] < line.at < starts[2]
        and line.id in tale.log[TOPIC]
    ]
    for reader in TOPIC_READERS:
        tale.forget(reader, ids)
    return {"lost_middle": len(ids) * len(TOPIC_READERS)}


def unmarked_duplicate(tale: Tale) -> Expected:
    line = tale.random.choice(tale.firsts("ledger"))
    tale.put(replace(line, is_marked=False), line)
    return {"duplicate_unmarked": 1}


def unmarked_duplicate_after_a_restart(tale: Tale) -> Expected:
    repeats = [line for line in tale.receipts("box") if line.is_marked]
    chosen = tale.random.choice(repeats)
    tale.change(lambda line: replace(line, is_marked=False) if line is chosen else line)
    return {"duplicate_unmarked": 1}


def unmarked_duplicate_at_another_consumer(tale: Tale) -> Expected:
    line = tale.random.choice(tale.firsts("workers"))
    other = line.session.replace("-0#", "-x#").replace("-1#", "-0#").replace("-x#", "-1#")
    tale.put(replace(line, session=other, is_marked=False), line)
    return {"duplicate_unmarked": 1}


def unmarked_duplicate_after_a_marked_first(tale: Tale) -> Expected:
    """Both copies say the wrong thing; only the second one is a fault."""
    first = tale.random.choice([one for one in tale.firsts("ledger") if not one.is_marked])
    marked = replace(first, is_marked=True)
    tale.change(lambda line: marked if line is first else line)
    tale.put(first, marked)
    return {"duplicate_unmarked": 1}


def all_marks_missing(tale: Tale) -> Expected:
    count = check(tale.lines).duplicates_marked
    tale.change(lambda line: replace(line, is_marked=False) if isinstance(line, Received) else line)
    return {"duplicate_unmarked": count}


def duplicate_in_the_replay(tale: Tale) -> Expected:
    line = tale.random.choice(tale.receipts("replay"))
    tale.put(line, line)
    return {"duplicate_unmarked": 1}


def settled_and_delivered_again(tale: Tale) -> Expected:
    line = tale.random.choice([one for one in tale.lines if isinstance(one, Settled)])
    (first, *_) = [
        one
        for one in tale.lines
        if isinstance(one, Received) and (one.session, one.seq) == (line.session, line.seq)
    ]
    tale.put(replace(first, is_marked=True), line)
    return {"settled_again": 1}


def settled_and_delivered_again_after_a_restart(tale: Tale) -> Expected:
    early = [one for one in tale.lines if isinstance(one, Settled) and one.session == "workers-0#0"]
    chosen = tale.random.choice(early)
    copy = next(line for line in tale.receipts("workers-0#0") if line.seq == chosen.seq)
    (joined,) = (
        one for one in tale.lines if isinstance(one, Joined) and one.session == "workers-1#2"
    )
    tale.put(replace(copy, session="workers-1#2", is_marked=True), joined)
    return {"settled_again": 1}


def skip(tale: Tale) -> Expected:
    for reader in TOPIC_READERS:
        tale.forget(reader, [tale.unknown()])
    return {"skip": len(TOPIC_READERS)}


def divergence(tale: Tale) -> Expected:
    tale.forget(tale.random.choice(TOPIC_READERS), [tale.unknown()])
    return {"divergence": 1}


def divergence_of_all_but_one(tale: Tale) -> Expected:
    for reader in TOPIC_READERS[1:]:
        tale.forget(reader, [tale.unknown()])
    return {"divergence": len(TOPIC_READERS) - 1}


def divergence_at_the_end(tale: Tale) -> Expected:
    """The last entry was never acknowledged, and only one reader has it."""
    tale.lines.insert(0, Attempted(1.0, "late", TOPIC, "late-1", 1))
    tale.append("late-1")
    for reader in TOPIC_READERS[:-1]:
        tale.forget(reader, ["late-1"])
    return {"divergence": len(TOPIC_READERS) - 1}


def neighbours(tale: Tale, reader: str, is_lane: Callable[[Received], str]) -> list[Received]:
    """Two copies that arrived one after the other in one session, both for the first time."""
    lanes: dict[str, list[Received]] = {}
    for line in tale.firsts(reader):
        if not line.is_marked:
            lanes.setdefault(f"{line.session} {is_lane(line)}", []).append(line)
    pairs = [pair for lane in lanes.values() for pair in pairwise(lane)]
    return list(tale.random.choice(pairs))


def reorder_within_a_session(tale: Tale) -> Expected:
    tale.swap(*neighbours(tale, "ledger", lambda line: ""))
    return {"non_monotonic_poll": 1}


def reorder_within_the_mailbox(tale: Tale) -> Expected:
    tale.swap(*neighbours(tale, "box", lambda line: ""))
    return {"non_monotonic_poll": 1}


def reorder_within_the_replay(tale: Tale) -> Expected:
    tale.swap(*neighbours(tale, "replay", lambda line: ""))
    return {"non_monotonic_poll": 1}


def reorder_across_a_restart(tale: Tale) -> Expected:
    """One entry was passed over in the first life and came as the first one of the second."""
    late = tale.random.choice(tale.receipts("ledger-0#0")[1:-5])
    tale.forget("ledger", [late.id])
    joined = next(
        one for one in tale.lines if isinstance(one, Joined) and one.session == "ledger-0#1"
    )
    tale.put(replace(late, session="ledger-0#1", is_marked=True), joined)
    return {"order_break_stream": 1}


def reorder_of_a_key(tale: Tale) -> Expected:
    tale.swap(*neighbours(tale, "routes", lambda line: tale.key_of[line.id]))
    return {"order_break_key": 1}


def reorder_of_a_key_across_a_restart(tale: Tale) -> Expected:
    """The key's new owner got an entry that its old owner had passed over."""
    keys: dict[str, list[Received]] = {}
    for line in tale.firsts("routes"):
        if line.session.endswith("#0"):
            keys.setdefault(tale.key_of[line.id], []).append(line)
    late = tale.random.choice(list(keys.values()))[0]
    tale.forget("routes", [late.id])
    joined = next(
        one for one in tale.lines if isinstance(one, Joined) and one.session == "routes-1#1"
    )
    tale.put(replace(late, session="routes-1#1", is_marked=True), joined)
    return {"order_break_key": 1}


def reorder_of_what_was_sent(tale: Tale) -> Expected:
    """The log itself has two messages of one producer the wrong way round."""
    sent = [one for one in tale.certain(TOPIC) if one.startswith("north")]
    first, second = tale.random.choice(list(pairwise(sent)))
    places = {first: tale.seq_of(second), second: tale.seq_of(first)}
    names = {first: second, second: first}

    def exchanged(line: Line) -> Line:
        if isinstance(line, Acked) and line.id in places:
            return replace(line, seq=places[line.id])
        if isinstance(line, Received) and line.id in names:
            return replace(line, id=names[line.id])
        return line

    tale.change(exchanged)
    return {"order_break_sent": 1}


def seq_reuse(tale: Tale) -> Expected:
    seq = tale.random.randint(2, len(tale.log[TOPIC]) - 1)
    tale.lines.insert(0, Attempted(1.0, "late", TOPIC, "late-1", 1))
    tale.lines.insert(1, Acked(1.1, "late-1", EPOCH, seq))
    tale.append("late-1", seq)
    return {"seq_reuse": 1}


def seq_reuse_after_a_lost_tail(tale: Tale) -> Expected:
    """Two were acknowledged at one position, and only the second one was ever delivered."""
    seq = tale.seq_of(tale.random.choice(tale.certain(TOPIC)[5:-5]))
    tale.lines.insert(0, Attempted(1.0, "late", TOPIC, "late-1", 1))
    tale.lines.insert(1, Acked(1.1, "late-1", EPOCH, seq))
    return {"seq_reuse": 1, "lost_middle": len(TOPIC_READERS)}


def double_append(tale: Tale) -> Expected:
    tale.append(tale.random.choice(tale.certain(TOPIC)))
    return {"double_append": 1}


def two_positions_in_two_acks(tale: Tale) -> Expected:
    message_id = tale.certain(TOPIC)[-1]
    tale.lines.append(Acked(tale.lines[-1].at + 1, message_id, EPOCH, 9_999))
    return {"double_append": 1}


def phantom(tale: Tale) -> Expected:
    tale.append("nobody-1")
    return {"phantom": len(TOPIC_READERS)}


def delivered_to_the_wrong_stream(tale: Tale) -> Expected:
    tale.lines.insert(0, Attempted(1.0, "late", MAILBOX, "late-1", 1))
    tale.append("late-1")
    return {"phantom": len(TOPIC_READERS)}


def refused_and_delivered(tale: Tale) -> Expected:
    tale.lines.insert(0, Attempted(1.0, "late", TOPIC, "late-1", 1))
    tale.lines.insert(1, Refused(1.1, "late-1", "storage_full"))
    tale.append("late-1")
    return {"refused_delivered": len(TOPIC_READERS)}


def ack_without_position(tale: Tale) -> Expected:
    chosen = tale.random.choice([line for line in tale.lines if isinstance(line, Acked)])
    tale.change(lambda line: replace(line, epoch=None, seq=None) if line is chosen else line)
    return {"ack_without_position": 1}


def gap_admitted(tale: Tale) -> Expected:
    chosen = tale.random.choice([line for line in tale.lines if isinstance(line, Joined)])
    tale.change(lambda line: replace(line, is_recovered=False) if line is chosen else line)
    return {"gap_admitted": 1}


LIES: list[Callable[[Tale], Expected]] = [
    lost_prefix,
    lost_middle,
    lost_postfix,
    lost_at_both_ends,
    lost_to_all_readers,
    lost_in_the_log_after_delivery,
    lost_from_the_mailbox,
    a_reader_that_got_nothing,
    a_whole_life_that_vanished,
    unmarked_duplicate,
    unmarked_duplicate_after_a_restart,
    unmarked_duplicate_at_another_consumer,
    unmarked_duplicate_after_a_marked_first,
    all_marks_missing,
    duplicate_in_the_replay,
    settled_and_delivered_again,
    settled_and_delivered_again_after_a_restart,
    skip,
    divergence,
    divergence_of_all_but_one,
    divergence_at_the_end,
    reorder_within_a_session,
    reorder_within_the_mailbox,
    reorder_within_the_replay,
    reorder_across_a_restart,
    reorder_of_a_key,
    reorder_of_a_key_across_a_restart,
    reorder_of_what_was_sent,
    seq_reuse,
    seq_reuse_after_a_lost_tail,
    double_append,
    two_positions_in_two_acks,
    phantom,
    delivered_to_the_wrong_stream,
    refused_and_delivered,
    ack_without_position,
    gap_admitted,
]
