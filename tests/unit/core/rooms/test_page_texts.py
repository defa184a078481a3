"""A page that is cut from the texts in memory is the one of the messages one by one."""

from __future__ import annotations

from random import Random

import pytest

from signalhub.core.rooms.inbox import Buffer, Inbox, KeptMessage


def check(inbox: Inbox, now: int) -> None:
    recent, texts = inbox.recent, inbox.texts
    if not recent:
        return
    first, last = min(recent), max(recent)
    for start in range(first, last + 1):
        for end in (start, (start + last) // 2, last):
            pages = [recent[seq].json for seq in range(start, end + 1)]
            assert texts.between(start, end) == pages
    assert texts.longest >= max(len(one.json) for one in recent.values())
    has_expired = any(one.expires_ms <= now for one in recent.values())
    assert texts.has_expired(recent, now) or not has_expired
    # What is gone is looked for once more, so that it does not count for ever.
    assert texts.has_expired(recent, now) is has_expired


def test_what_is_before_a_gap_is_no_longer_in_memory() -> None:
    buffer, inbox = Buffer(10, 10_000), Inbox("a")

    for seq in (1, 3, 4, 5):
        buffer.keep(inbox, KeptMessage(seq, "", 100, b"%d" % seq))
        check(inbox, 0)

    assert [*inbox.recent] == [3, 4, 5]
    assert inbox.recent_first == 3
    buffer.expire(100)
    assert not inbox.recent


@pytest.mark.parametrize("seed", range(30))
def test_texts_follow_the_messages_in_memory(seed: int) -> None:
    chance = Random(seed)
    buffer = Buffer(chance.choice((1, 3, 200)), chance.choice((300, 10_000)))
    inboxes = [Inbox("a"), Inbox("b")]
    now = 0
    for _ in range(1_500):
        inbox = chance.choice(inboxes)
        now += chance.randrange(3)
        match chance.randrange(20):
            case 0:
                buffer.expire(now)
            case 1 if inbox.recent:
                buffer.blank(inbox, chance.choice(list(inbox.recent)))
            case 2:
                # Nobody was heard for a while.
                now += 50
            case _:
                inbox.head += 1
                text = b"x" * chance.randrange(1, 40)
                expires_ms = now + chance.choice((5, 60, 400))
                buffer.keep(inbox, KeptMessage(inbox.head, "", expires_ms, text))
        for one in inboxes:
            check(one, now)
