"""A message becomes one dead letter, whenever the hub is killed; the counter agrees with the log.

The hub dies after every number of entries on disk, with and without a snapshot before.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from signalhub.wire.entry import (
    SETTLING,
    DeadLetterOrigin,
    Kind,
    MessageBody,
    Outcome,
    SettledBody,
    decode_body,
)
from tests.support.memory.shell import SETTLING_HELLO, MemoryShell, Peer
from tests.support.memory.topics import (
    ACTOR,
    NAMED,
    commit_all,
    create,
    mailbox_of,
    publish,
    subscribe,
    subscription_of,
)

MESSAGES = 3
# After this many entries of the last part of the story nothing is left to be cut off.
CUTS = range(14)
OPTIONS: dict[str, Any] = {"poison": "dead_letter", "maxDeliveries": 1}


def letters_in(shell: MemoryShell) -> list[DeadLetterOrigin]:
    """The dead letters in the log, in order."""
    found = [
        decode_body(MessageBody, one.body).dead
        for one in shell.engine.entries
        if one.kind == Kind.PUBLISHED
    ]
    return [dead for dead in found if dead is not None]


def ends_in(shell: MemoryShell) -> Counter[tuple[int, int]]:
    """How often each position was settled in the log, and how."""
    return Counter(
        (one.seq, one.outcome)
        for entry in shell.engine.entries
        if entry.kind == Kind.SETTLED
        for one in decode_body(SettledBody, entry.body).deliveries
        if one.outcome in SETTLING
    )


def consume(shell: MemoryShell) -> Peer:
    reader = shell.connect("@(a/reader)")
    subscribe(reader, **OPTIONS)
    return reader


def give_up(shell: MemoryShell, reader: Peer, named: dict[str, Any]) -> None:
    """The consumer terminates whatever it has got."""
    for one in reader.heard():
        seq = one["metadata"]["delivery"]["seq"]
        reader.tell("hub:term", named | {"seq": seq, "reason": "cannot be read"})
    shell.settle()


def cut_off(shell: MemoryShell, entries: int, *, has_snapshot: bool) -> MemoryShell:
    """The disk takes this many entries more, and the hub is killed."""
    for number in range(entries):
        shell.engine.commit(1)
        shell.settle()
        if has_snapshot and number == entries // 2:
            shell.save_snapshot()
    again = shell.restarted()
    again.engine.is_prompt = True
    return again


@pytest.mark.parametrize("has_snapshot", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_a_subscription_writes_one_letter_for_a_message(cut: int, has_snapshot: bool) -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    create(writer)
    reader = consume(shell)
    for _ in range(MESSAGES):
        publish(writer)
    shell.engine.is_prompt = False
    give_up(shell, reader, NAMED)

    shell = cut_off(shell, cut, has_snapshot=has_snapshot)
    counted = subscription_of(shell).position.dead_lettered
    assert counted == len(letters_in(shell))
    if not has_snapshot:
        # What was missing is written without a consumer.
        commit_all(shell)
    # Another kill, before anybody consumes; the letters are before a snapshot now.
    shell.save_snapshot()
    shell = shell.restarted()
    reader = consume(shell)
    give_up(shell, reader, NAMED)
    commit_all(shell)

    assert [dead.seq for dead in letters_in(shell)] == [1, 2, 3]
    assert subscription_of(shell).position.dead_lettered == MESSAGES
    assert subscription_of(shell).lag == 0
    # A snapshot may know of a settlement that the log does not have.
    once = Counter({(seq, Outcome.DEAD_LETTERED): 1 for seq in (1, 2, 3)})
    assert ends_in(shell) <= once if has_snapshot else ends_in(shell) == once
    assert subscription_of(shell.restarted()).position.dead_lettered == MESSAGES


@pytest.mark.parametrize("cut", CUTS)
def test_a_mailbox_writes_one_letter_for_a_message(cut: int) -> None:
    shell = MemoryShell()
    sender = shell.connect("@(a/sender)")
    owner = shell.connect(ACTOR, metadata=SETTLING_HELLO)
    owner.register(durable=True)
    for number in range(MESSAGES):
        sender.send(ACTOR, number, pattern="ask")
    shell.engine.is_prompt = False
    give_up(shell, owner, {"stream": ACTOR})

    shell = cut_off(shell, cut, has_snapshot=False)
    owner = shell.connect(ACTOR, metadata=SETTLING_HELLO)
    owner.register(durable=True)
    give_up(shell, owner, {"stream": ACTOR})
    commit_all(shell)

    assert sorted(dead.seq for dead in letters_in(shell)) == [1, 2, 3]
    assert mailbox_of(shell).subscription.position.dead_lettered == MESSAGES
    assert mailbox_of(shell).subscription.lag == 0


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_cursor_from_before_a_snapshot_takes_no_letter_back(is_settled: bool) -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    create(writer)
    reader = consume(shell)
    for _ in range(MESSAGES):
        publish(writer)
    shell.engine.is_prompt = False
    give_up(shell, reader, NAMED)
    # It is on its way when the letters get to the disk, and does not know them.
    subscription_of(shell).write_cursor_soon()
    shell.hub.dispatcher.wake(subscription_of(shell))
    shell.settle()
    shell.engine.commit(shell.engine.pending - 1)
    shell.save_snapshot()
    shell.engine.commit(1)
    assert shell.engine.entries[-1].kind == Kind.CURSOR
    if is_settled:
        shell.settle()
        shell.engine.commit(1)

    shell = shell.restarted()

    assert subscription_of(shell).position.dead_lettered == len(letters_in(shell)) == MESSAGES
    shell.engine.is_prompt = True
    give_up(shell, consume(shell), NAMED)
    commit_all(shell)
    assert [dead.seq for dead in letters_in(shell)] == [1, 2, 3]
