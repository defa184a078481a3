"""Erasing: what an actor sent and its mailbox leave the log; restarts, refusals, offsets."""

from __future__ import annotations

import pytest

from signalhub.core import refusals
from signalhub.core.erasure import Wanted
from signalhub.ranges import Ranges
from signalhub.wire.entry import (
    ErasedBody,
    Kind,
    MessageBody,
    Outcome,
    StoredEntry,
    decode_body,
)
from tests.support.memory.erasure import (
    ADA,
    BOB,
    entries,
    erase,
    erased,
    holds,
    outcomes,
    two_senders,
)
from tests.support.memory.shell import SETTLING_HELLO, MemoryShell, Message, Peer, envelope
from tests.support.memory.topics import (
    ACTOR,
    NAME,
    TOPIC,
    code_of,
    create,
    position_of,
    publish,
    seqs,
    subscribe,
    subscription_of,
    topic_of,
)

LETTERS = f"{TOPIC}.dlq"


def test_what_an_actor_sent_is_taken_out_of_the_log_and_the_rest_is_not() -> None:
    shell = MemoryShell()
    ada, bob = two_senders(shell)
    offsets = [one.offset for one in entries(shell, Kind.PUBLISHED)][::2]

    answer = erased(bob, actor=ADA)
    assert not holds(shell, ADA)
    publish(ada, "later")

    assert (answer["entries"], answer["segments"], answer["at"]) == (3, 1, shell.now)
    published = entries(shell, Kind.PUBLISHED)
    assert [one.is_erased for one in published] == [True, False] * 3 + [False]
    assert not holds(shell, "of ada")
    # The log says how far it reaches and which offsets it took, and names nobody.
    marks = entries(shell, Kind.ERASED)
    assert (answer["epoch"], answer["through"]) == (shell.engine.epoch, marks[0].offset)
    mark, found = (decode_body(ErasedBody, one.body) for one in marks)
    assert mark.ranges == []
    assert found.ranges == [(one, one) for one in offsets]
    # A blank message is never taken for a real one.
    held = topic_of(shell).recent[1]
    assert held.is_erased
    assert held.message == MessageBody("", b"", "", "", b"null")
    # Neither who comes later nor who reads history gets it.
    subscribe(bob)
    assert seqs(bob) == [2, 4, 6, 7]
    reply = bob.ask("hub:replay", {"topic": TOPIC, "fromSeq": 1})
    assert seqs(bob) == [2, 4, 6, 7]
    assert (reply["payload"]["complete"], reply["payload"]["count"]) == (True, 4)


def test_a_subscription_with_nobody_there_has_it_settled_as_erased() -> None:
    shell = MemoryShell()
    ada, bob = two_senders(shell)
    subscribe(bob)
    bob.drop()
    shell.advance(1)

    assert erased(ada, actor=ADA)["settled"] == 3

    assert subscription_of(shell).lag == 3
    done = [(seq, outcome) for _, seq, outcome in outcomes(shell)]
    assert [one for one in done if one[1] == Outcome.ERASED] == [
        (seq, Outcome.ERASED) for seq in (1, 3, 5)
    ]


def test_what_a_consumer_has_in_flight_is_settled_and_its_ack_ignored() -> None:
    shell = MemoryShell()
    ada, bob = two_senders(shell)
    consumer = subscribe(bob)
    assert seqs(bob) == [1, 2, 3, 4, 5, 6]

    assert erased(ada, actor=ADA)["settled"] == 3

    acked = bob.ask("hub:ack", {"subscriptionId": consumer, "seqs": [1, 2, 3, 4, 5, 6]})
    assert acked["payload"]["accepted"] == 3
    assert subscription_of(shell).lag == 0
    shell.advance(600_000)
    assert seqs(bob) == []


@pytest.mark.parametrize(("mode", "delivered"), [("exclusive", [2, 4, 6]), ("key-shared", [2])])
def test_nothing_is_delivered_from_the_moment_of_the_request(
    mode: str, delivered: list[int]
) -> None:
    shell = MemoryShell()
    ada, bob = two_senders(shell)
    shell.engine.is_prompt = False

    ada.request("hub:erase", {"actor": ADA})
    shell.engine.is_prompt = True
    subscribe(bob, mode=mode)

    assert seqs(bob) == delivered


def test_what_is_being_read_from_the_log_meanwhile_is_not_delivered() -> None:
    shell = MemoryShell()
    two_senders(shell)
    again = shell.restarted()
    bob = again.connect(BOB)
    again.engine.is_readable = False
    subscribe(bob)

    bob.request("hub:erase", {"actor": ADA})
    again.engine.is_readable = True
    again.settle()

    assert seqs(bob) == [2, 4, 6]


def test_delayed_messages_and_broadcasts_as_asks_go_too() -> None:
    shell = MemoryShell()
    ada, bob = shell.connect(ADA), shell.join(BOB)
    create(ada)
    subscribe(bob)
    publish(ada, "later", deliverAt=shell.now + 60_000)
    ada.ask("hub:broadcast", {"type": "news", "data": "secret"})
    bob.take()

    assert erased(bob, actor=ADA)["settled"] == 1
    shell.advance(120_000)

    assert seqs(bob) == []
    assert position_of(shell).parked == {}
    assert entries(shell, Kind.BROADCAST)[0].is_erased


def test_a_message_to_another_mailbox_is_settled_there() -> None:
    shell = MemoryShell()
    ada = shell.connect(ADA)
    shell.join(BOB, durable=True).drop()
    ada.send(BOB, "secret", pattern="ask")

    answer = erased(ada, actor=ADA)
    bob = shell.connect(BOB)
    bob.register(durable=True)

    assert (answer["entries"], answer["settled"]) == (1, 1)
    assert bob.heard() == []
    assert (BOB, 1, Outcome.ERASED) in outcomes(shell)
    assert entries(shell, Kind.MAIL)[0].stream == BOB


def test_dead_letters_of_it_are_neither_put_back_nor_buried() -> None:
    shell = MemoryShell()
    ada, bob = shell.connect(ADA), shell.connect(BOB)
    create(ada, poison="dead_letter")
    consumer = subscribe(bob)
    publish(ada, "of ada")
    publish(bob, "of bob")
    for seq in (1, 2):
        bob.ask("hub:term", {"subscriptionId": consumer, "seq": seq})
    assert topic_of(shell, LETTERS).head == 2

    assert erased(bob, actor=ADA)["entries"] == 2
    answer = bob.ask("hub:redrive", {"topic": LETTERS, "all": True})

    assert answer["payload"] == {"count": 1}
    assert not holds(shell, "of ada")


def test_what_is_about_to_become_a_dead_letter_does_not() -> None:
    shell = MemoryShell()
    ada, bob = shell.connect(ADA), shell.connect(BOB)
    create(ada, poison="dead_letter")
    consumer = subscribe(bob)
    publish(ada, "of ada")
    terminate = envelope("hub:term", {"subscriptionId": consumer, "seq": 1}, sender=BOB)
    forget = envelope("hub:erase", {"actor": ADA}, sender=ADA, id="e")

    effects = [
        *shell.hub.received(bob.session, terminate, shell.now),
        *shell.hub.received(ada.session, forget, shell.now),
    ]
    shell.perform(effects)

    assert LETTERS not in shell.hub.streams.topics
    assert subscription_of(shell).lag == 0


# Mailboxes.


def mail_for_ada(shell: MemoryShell, count: int = 1, **registration: bool) -> Peer:
    """Mail that waits for her; who sent it."""
    shell.join(ADA, **{"durable": True} | registration).drop()
    bob = shell.connect(BOB)
    for _ in range(count):
        bob.send(ADA, "for ada", pattern="ask")
    return bob


def test_a_mailbox_is_dropped_with_everything_that_names_its_owner() -> None:
    shell = MemoryShell()
    bob = mail_for_ada(shell, 3)
    shell.pass_time(70)

    answer = erased(bob, actor=ADA)

    assert (answer["mailbox"], answer["settled"]) == (True, 3)
    assert ADA not in shell.hub.streams.mailboxes
    assert not holds(shell, ADA)
    assert not holds(shell, "for ada")
    (name,) = {one.stream for one in entries(shell, Kind.MAIL)}
    assert name.startswith("erased.")
    assert [one for *_, one in outcomes(shell)].count(Outcome.ERASED) == 3
    # An owner that comes back finds an empty one, and what it settled is not settled again.
    ada = shell.join(ADA, durable=True)
    bob.send(ADA, "new", pattern="ask")
    assert [one["payload"] for one in ada.heard()] == ["new"]
    assert erased(bob, actor=ADA)["settled"] == 0


def test_dead_letters_of_the_mailbox_go_too() -> None:
    shell = MemoryShell()
    ada, bob = shell.connect(ADA, metadata=SETTLING_HELLO), shell.connect(BOB)
    ada.register(durable=True)
    bob.send(ADA, "for ada", pattern="ask")
    ada.ask("hub:term", {"stream": ADA, "seq": 1})
    assert topic_of(shell, "dead.mailboxes").head == 1

    erased(bob, actor=ADA)

    assert not holds(shell, "for ada")
    assert not holds(shell, ADA)


def test_mail_to_an_actor_without_a_mailbox_goes_and_who_is_expected_back_is_forgotten() -> None:
    shell = MemoryShell()
    shell.join(ADA)
    shell.connect(BOB).send(ADA, "for ada", pattern="ask")
    shell = shell.restarted()
    assert ADA in shell.rows

    assert erased(shell.connect(BOB), actor=ADA)["mailbox"] is False

    assert not holds(shell, "for ada")
    assert ADA not in shell.rows
    assert not shell.hub.registry.is_away(ADA, shell.now)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_topic_of_that_name_is_left_as_it_is(is_deleted: bool) -> None:
    shell = MemoryShell()
    bob = shell.connect(BOB)
    create(bob, ADA)
    publish(bob, "of bob", ADA)
    shell.save_snapshot()
    if is_deleted:
        bob.ask("hub:topic_delete", {"topic": ADA})

    erased(bob, actor=ADA)

    found = {name: topic.head for name, topic in shell.restarted().hub.streams.topics.items()}
    assert found == ({} if is_deleted else {ADA: 1})


# Restarts.


@pytest.mark.parametrize("is_saved", [False, True])
def test_streams_are_as_they_were_and_a_dropped_mailbox_stays_dropped(is_saved: bool) -> None:
    shell = MemoryShell()
    ada, bob = two_senders(shell)
    subscribe(bob)
    bob.drop()
    mail_for_ada(shell)
    ada = shell.connect("@(a/keeper)")
    if is_saved:
        shell.save_snapshot()
    erased(ada, actor=ADA)

    again = shell.restarted()

    # Nothing in the log names the mailbox any more.
    assert again.hub.streams.mailboxes == {}
    assert again.hub.streams.next_id == shell.hub.streams.next_id
    assert topic_of(again).head == topic_of(shell).head == 6
    assert subscription_of(again).lag == 3
    bob = again.connect(BOB)
    publish(bob, "next")
    subscribe(bob)
    assert seqs(bob) == [2, 4, 6, 7]


def test_a_mailbox_dropped_before_the_erasure_does_not_come_back() -> None:
    shell = MemoryShell()
    ada = shell.join(ADA, durable=True)
    shell.save_snapshot()
    ada.register(durable=False)

    erased(ada, actor=ADA)

    assert shell.restarted().hub.streams.mailboxes == {}


def wait_for_erase(shell: MemoryShell, peer: Peer) -> None:
    """The request has come as far as the segments, and no further."""
    shell.engine.is_readable = False
    peer.request("hub:erase", {"actor": ADA})
    shell.engine.read()
    shell.settle()
    assert len(entries(shell, Kind.ERASED)) == 2


@pytest.mark.parametrize("snapshots", [0, 2])
def test_a_crash_before_the_segments_are_written_anew_is_made_good(snapshots: int) -> None:
    shell = MemoryShell()
    ada, _ = two_senders(shell)
    wait_for_erase(shell, ada)
    assert holds(shell, "of ada")
    for _ in range(snapshots):
        shell.save_snapshot()

    again = shell.restarted()
    again.engine.is_readable = True
    bob = again.connect(BOB)
    subscribe(bob)

    assert seqs(bob) == [2, 4, 6]
    again.pass_time(1)
    assert not holds(again, "of ada")
    assert again.engine.erasures == 1
    # What is done is not done again.
    for _ in range(2):
        again.save_snapshot()
    last = again.restarted()
    last.pass_time(5)
    assert last.engine.erasures == 0


def test_a_repeat_after_a_crash_before_the_search_finds_it() -> None:
    shell = MemoryShell()
    ada, _ = two_senders(shell)
    shell.engine.is_readable = False
    ada.request("hub:erase", {"actor": ADA})

    again = shell.restarted()
    again.engine.is_readable = True

    assert erased(again.connect(BOB), actor=ADA)["entries"] == 3


# Refusals.


def test_a_full_disk_refuses_the_request_or_it_is_done_later() -> None:
    shell = MemoryShell()
    ada, _ = two_senders(shell)
    shell.engine.is_full = True
    reply = erase(ada, actor=ADA)
    assert code_of(reply) == "storage_full"
    assert reply["payload"]["retryable"]

    shell.engine.is_full = False
    wait_for_erase(shell, ada)
    shell.engine.is_full, shell.engine.is_readable = True, True
    shell.settle()
    assert code_of(ada.take()[-1]) == "storage_full"
    shell.engine.is_full = False
    shell.pass_time(70)

    assert not holds(shell, "of ada")


def test_a_log_that_has_stopped_erases_nothing() -> None:
    shell = MemoryShell()
    ada, _ = two_senders(shell)
    shell.hub.storage.stop(refusals.storage_failed())

    assert code_of(erase(ada, actor=ADA)) == "storage_failed"


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"actor": ADA, "inbox": "x"},
        {"actor": "ada"},
        {"actor": 3},
        {"inbox": ""},
        {"actor": ADA, "offsets": [[0, 1]]},
        {"actor": ADA, "offsets": [[0, 1]], "epoch": 99},
        {"actor": ADA, "offsets": [[0]], "epoch": 1},
        {"actor": ADA, "offsets": [[-1, 0]], "epoch": 1},
    ],
)
def test_a_request_that_says_nothing_definite_is_refused(payload: Message) -> None:
    shell = MemoryShell()

    assert code_of(shell.connect(BOB).ask("hub:erase", payload)) == "internal_error"
    assert entries(shell, Kind.ERASED) == []


def test_a_requester_that_has_left_is_not_answered() -> None:
    shell = MemoryShell()
    _, bob = two_senders(shell)
    shell.engine.is_readable = False
    bob.request("hub:erase", {"actor": ADA})
    bob.drop()
    shell.engine.is_readable = True
    shell.settle()

    assert not holds(shell, "of ada")


# Offsets.


def test_further_messages_may_be_named_by_offset_and_nothing_but_messages() -> None:
    shell = MemoryShell()
    _, bob = two_senders(shell)
    subscribe(bob)
    last = entries(shell, Kind.PUBLISHED)[-1].offset

    answer = erased(bob, actor=ADA, offsets=[[last, last]], epoch=shell.engine.epoch)
    assert answer["entries"] == 4
    assert not holds(shell, "of bob 2")
    assert holds(shell, "of bob 1")
    head = shell.engine.head
    erased(bob, actor=ACTOR, offsets=[[0, head], [2, 5]], epoch=shell.engine.epoch)

    again = shell.restarted()
    assert NAME in topic_of(again).subscriptions
    assert topic_of(again).head == 6
    for one in shell.engine.entries[:head]:
        assert one.is_erased == (one.kind == Kind.PUBLISHED)


def test_many_entries_come_in_pages() -> None:
    shell = MemoryShell()
    ada = shell.connect(ADA)
    create(ada)
    for number in range(2_100):
        if number % 500 == 0:
            shell.pass_time(1)
        publish(ada)

    assert erased(ada, actor=ADA)["entries"] == 2_100

    assert len(entries(shell, Kind.ERASED)) == 4
    assert all(one.is_erased for one in entries(shell, Kind.PUBLISHED))


def test_an_entry_that_cannot_be_read_goes_if_it_holds_the_name() -> None:
    wanted = Wanted(ADA, None, None, False, Ranges())

    def choose(body: bytes) -> bool:
        return wanted.choose(StoredEntry(0, Kind.PUBLISHED, "t", 1, 1, 0, body)) is not None

    assert choose(b"\xc1" + ADA.encode())
    assert not choose(b"\xc1")
