"""`hub:erase`: what an actor got and sent is gone, and everything else is as it was."""

from __future__ import annotations

import pytest

from signalhub.wire.entry import ErasedBody, Kind, MessageBody, Outcome, decode_body
from tests.support.memory.erasure import ADA, BOB, entries, erased, holds, outcomes, two_senders
from tests.support.memory.shell import MemoryShell, envelope
from tests.support.memory.topics import (
    TOPIC,
    create,
    position_of,
    publish,
    seqs,
    subscribe,
    subscription_of,
    topic_of,
)


class TestWhatAnActorSent:
    def test_it_is_taken_out_of_the_log_and_the_rest_is_not(self) -> None:
        shell = MemoryShell()
        _, bob = two_senders(shell)

        answer = erased(bob, actor=ADA)

        assert (answer["entries"], answer["segments"]) == (3, 1)
        published = entries(shell, Kind.PUBLISHED)
        assert [one.is_erased for one in published] == [True, False] * 3
        assert not holds(shell, "of ada")

    def test_the_answer_says_how_far_it_reaches(self) -> None:
        shell = MemoryShell()
        ada, bob = two_senders(shell)

        answer = erased(bob, actor=ADA)
        publish(ada, "later")

        mark = entries(shell, Kind.ERASED)[0]
        assert (answer["epoch"], answer["through"]) == (shell.engine.epoch, mark.offset)
        assert answer["at"] == shell.now
        assert not entries(shell, Kind.PUBLISHED)[-1].is_erased

    def test_the_log_says_which_offsets_and_names_nobody(self) -> None:
        shell = MemoryShell()
        _, bob = two_senders(shell)
        offsets = [one.offset for one in entries(shell, Kind.PUBLISHED)][::2]

        erased(bob, actor=ADA)

        mark, found = (decode_body(ErasedBody, one.body) for one in entries(shell, Kind.ERASED))
        assert mark.ranges == []
        assert found.ranges == [(one, one) for one in offsets]
        assert not holds(shell, ADA)

    def test_a_consumer_that_comes_later_gets_only_the_others(self) -> None:
        shell = MemoryShell()
        _, bob = two_senders(shell)

        erased(bob, actor=ADA)
        subscribe(bob)

        assert seqs(bob) == [2, 4, 6]

    def test_a_subscription_with_nobody_there_has_it_settled_as_erased(self) -> None:
        shell = MemoryShell()
        ada, bob = two_senders(shell)
        subscribe(bob)
        bob.drop()
        shell.advance(1)

        answer = erased(ada, actor=ADA)

        assert answer["settled"] == 3
        assert subscription_of(shell).lag == 3
        done = [(seq, outcome) for _, seq, outcome in outcomes(shell)]
        assert [one for one in done if one[1] == Outcome.ERASED] == [
            (seq, Outcome.ERASED) for seq in (1, 3, 5)
        ]

    def test_what_a_consumer_has_in_flight_is_settled_and_its_ack_ignored(self) -> None:
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
        self, mode: str, delivered: list[int]
    ) -> None:
        shell = MemoryShell()
        ada, bob = two_senders(shell)
        shell.engine.is_prompt = False

        ada.request("hub:erase", {"actor": ADA})
        shell.engine.is_prompt = True
        subscribe(bob, mode=mode)

        assert seqs(bob) == delivered

    def test_what_is_being_read_from_the_log_meanwhile_is_not_delivered(self) -> None:
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

    def test_delayed_messages_go_too(self) -> None:
        shell = MemoryShell()
        ada, bob = shell.connect(ADA), shell.connect(BOB)
        create(ada)
        subscribe(bob)
        publish(ada, "later", deliverAt=shell.now + 60_000)

        assert erased(bob, actor=ADA)["settled"] == 1
        shell.advance(120_000)

        assert seqs(bob) == []
        assert position_of(shell).parked == {}

    def test_a_message_to_another_mailbox_is_settled_there(self) -> None:
        shell = MemoryShell()
        ada = shell.connect(ADA)
        bob = shell.join(BOB, durable=True)
        bob.drop()
        ada.send(BOB, "secret", pattern="ask")

        answer = erased(ada, actor=ADA)
        bob = shell.connect(BOB)
        bob.register(durable=True)

        assert (answer["entries"], answer["settled"]) == (1, 1)
        assert bob.heard() == []
        assert (BOB, 1, Outcome.ERASED) in outcomes(shell)
        assert entries(shell, Kind.MAIL)[0].stream == BOB

    def test_a_broadcast_as_ask_goes_too(self) -> None:
        shell = MemoryShell()
        ada = shell.connect(ADA)
        shell.join(BOB)
        ada.ask("hub:broadcast", {"type": "news", "data": "secret"})

        erased(ada, actor=ADA)

        assert entries(shell, Kind.BROADCAST)[0].is_erased

    def test_reading_history_passes_over_it(self) -> None:
        shell = MemoryShell()
        ada, bob = two_senders(shell)

        erased(ada, actor=ADA)
        answer = bob.ask("hub:replay", {"topic": TOPIC, "fromSeq": 1})

        assert seqs(bob) == [2, 4, 6]
        assert answer["payload"]["complete"]
        assert answer["payload"]["count"] == 3

    def test_dead_letters_of_it_are_neither_put_back_nor_buried(self) -> None:
        shell = MemoryShell()
        ada, bob = shell.connect(ADA), shell.connect(BOB)
        create(ada, poison="dead_letter")
        consumer = subscribe(bob)
        publish(ada, "of ada")
        publish(bob, "of bob")
        for seq in (1, 2):
            bob.ask("hub:term", {"subscriptionId": consumer, "seq": seq})
        assert topic_of(shell, f"{TOPIC}.dlq").head == 2

        assert erased(bob, actor=ADA)["entries"] == 2
        answer = bob.ask("hub:redrive", {"topic": f"{TOPIC}.dlq", "all": True})

        assert answer["payload"] == {"count": 1}
        assert not holds(shell, "of ada")

    def test_what_is_about_to_become_a_dead_letter_does_not(self) -> None:
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

        assert f"{TOPIC}.dlq" not in shell.hub.streams.topics
        assert subscription_of(shell).lag == 0


class TestAMailbox:
    def test_it_is_dropped_with_everything_that_names_its_owner(self) -> None:
        shell = MemoryShell()
        ada, bob = shell.join(ADA, durable=True), shell.connect(BOB)
        ada.drop()
        for _ in range(3):
            bob.send(ADA, "for ada", pattern="ask")
        shell.pass_time(70)

        answer = erased(bob, actor=ADA)

        assert answer["mailbox"]
        assert answer["settled"] == 3
        assert ADA not in shell.hub.streams.mailboxes
        assert not holds(shell, ADA)
        assert not holds(shell, "for ada")
        names = {one.stream for one in entries(shell, Kind.MAIL)}
        assert len(names) == 1
        assert names.pop().startswith("erased.")
        assert [one for *_, one in outcomes(shell)].count(Outcome.ERASED) == 3

    def test_what_was_settled_there_is_not_settled_again(self) -> None:
        shell = MemoryShell()
        ada, bob = shell.join(ADA, durable=True), shell.connect(BOB)
        bob.send(ADA, "for ada", pattern="ask")
        assert len(ada.heard()) == 1

        assert erased(bob, actor=ADA)["settled"] == 0

    def test_an_owner_that_comes_back_finds_an_empty_one(self) -> None:
        shell = MemoryShell()
        ada, bob = shell.join(ADA, durable=True), shell.connect(BOB)
        ada.drop()
        bob.send(ADA, "old", pattern="ask")

        erased(bob, actor=ADA)
        ada = shell.join(ADA, durable=True)
        bob.send(ADA, "new", pattern="ask")

        assert [one["payload"] for one in ada.heard()] == ["new"]

    def test_dead_letters_of_the_mailbox_go_too(self) -> None:
        shell = MemoryShell()
        ada = shell.connect(ADA, metadata={"protocolVersion": "0.1.0", "capabilities": ["ack"]})
        ada.register(durable=True)
        bob = shell.connect(BOB)
        bob.send(ADA, "for ada", pattern="ask")
        (copy,) = ada.heard()
        delivery = copy["metadata"]["delivery"]
        ada.ask("hub:term", {"stream": ADA, "epoch": delivery["epoch"], "seq": 1})
        assert topic_of(shell, "dead.mailboxes").head == 1

        erased(bob, actor=ADA)

        assert not holds(shell, "for ada")
        assert not holds(shell, ADA)

    def test_mail_to_an_actor_without_a_mailbox_goes_too(self) -> None:
        shell = MemoryShell()
        shell.join(ADA)
        bob = shell.connect(BOB)
        bob.send(ADA, "for ada", pattern="ask")

        assert erased(bob, actor=ADA)["mailbox"] is False

        assert not holds(shell, "for ada")

    def test_an_actor_expected_back_is_forgotten(self) -> None:
        shell = MemoryShell()
        shell.join(ADA)
        shell = shell.restarted()
        assert ADA in shell.rows

        erased(shell.connect(BOB), actor=ADA)

        assert ADA not in shell.rows
        assert not shell.hub.registry.is_away(ADA, shell.now)

    def test_entries_about_a_topic_of_that_name_stay(self) -> None:
        shell = MemoryShell()
        bob = shell.connect(BOB)
        create(bob, ADA)
        publish(bob, "of bob", ADA)

        erased(bob, actor=ADA)

        assert shell.restarted().hub.streams.topics[ADA].head == 1


def test_a_blank_message_is_never_taken_for_a_real_one() -> None:
    shell = MemoryShell()
    ada, _ = two_senders(shell)
    erased(ada, actor=ADA)

    held = topic_of(shell).recent[1]

    assert held.is_erased
    assert held.message == MessageBody("", b"", "", "", b"null")
