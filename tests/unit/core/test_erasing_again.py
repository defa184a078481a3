"""`hub:erase` when something comes in between: restarts, full disks, requesters that leave."""

from __future__ import annotations

import pytest

from signalhub.core import refusals
from signalhub.core.erasure import Wanted
from signalhub.ranges import Ranges
from signalhub.wire.entry import Kind, StoredEntry
from tests.support.memory.erasure import ADA, BOB, entries, erase, erased, holds, two_senders
from tests.support.memory.shell import MemoryShell, Message, Peer
from tests.support.memory.topics import (
    ACTOR,
    NAME,
    code_of,
    create,
    publish,
    seqs,
    subscribe,
    subscription_of,
    topic_of,
)


class TestRestarts:
    @pytest.mark.parametrize("is_saved", [False, True])
    def test_streams_are_as_they_were(self, is_saved: bool) -> None:
        shell = MemoryShell()
        ada, bob = two_senders(shell)
        subscribe(bob)
        bob.drop()
        if is_saved:
            shell.save_snapshot()
        erased(ada, actor=ADA)

        again = shell.restarted()

        assert topic_of(again).head == topic_of(shell).head == 6
        assert subscription_of(again).lag == 3
        bob = again.connect(BOB)
        publish(bob, "next")
        subscribe(bob)
        assert seqs(bob) == [2, 4, 6, 7]

    @pytest.mark.parametrize("is_saved", [False, True])
    def test_a_mailbox_stays_dropped_though_nothing_in_the_log_names_it(
        self, is_saved: bool
    ) -> None:
        shell = MemoryShell()
        ada, bob = shell.join(ADA, durable=True), shell.connect(BOB)
        ada.drop()
        bob.send(ADA, "for ada", pattern="ask")
        if is_saved:
            shell.save_snapshot()
        erased(bob, actor=ADA)

        again = shell.restarted()

        assert again.hub.streams.mailboxes == {}
        assert again.hub.streams.next_id == shell.hub.streams.next_id

    def test_a_mailbox_dropped_before_the_erasure_does_not_come_back(self) -> None:
        shell = MemoryShell()
        ada = shell.join(ADA, durable=True)
        shell.save_snapshot()
        ada.register(durable=False)

        erased(ada, actor=ADA)

        assert shell.restarted().hub.streams.mailboxes == {}

    def test_a_crash_before_the_segments_are_written_anew_is_made_good(self) -> None:
        shell = MemoryShell()
        ada, _ = two_senders(shell)
        wait_for_erase(shell, ada)
        assert holds(shell, "of ada")

        again = read_on(shell.restarted())
        bob = again.connect(BOB)
        subscribe(bob)

        assert seqs(bob) == [2, 4, 6]
        again.pass_time(1)
        assert not holds(again, "of ada")
        assert again.engine.erasures == 1

    def test_it_is_made_good_even_if_a_snapshot_came_in_between(self) -> None:
        shell = MemoryShell()
        ada, _ = two_senders(shell)
        wait_for_erase(shell, ada)
        shell.save_snapshot()
        shell.save_snapshot()

        again = read_on(shell.restarted())
        again.pass_time(1)

        assert not holds(again, "of ada")

    def test_what_is_done_is_not_done_again_for_ever(self) -> None:
        shell = MemoryShell()
        ada, _ = two_senders(shell)
        erased(ada, actor=ADA)
        shell.save_snapshot()
        shell.save_snapshot()

        again = shell.restarted()
        again.pass_time(5)

        assert again.engine.erasures == 0

    def test_a_repeat_after_a_crash_before_the_search_finds_it(self) -> None:
        shell = MemoryShell()
        ada, _ = two_senders(shell)
        shell.engine.is_readable = False
        ada.request("hub:erase", {"actor": ADA})

        again = read_on(shell.restarted())

        assert erased(again.connect(BOB), actor=ADA)["entries"] == 3


def read_on(shell: MemoryShell) -> MemoryShell:
    shell.engine.is_readable = True
    return shell


def wait_for_erase(shell: MemoryShell, peer: Peer) -> None:
    """The request has come as far as the segments, and no further."""
    shell.engine.is_readable = False
    peer.request("hub:erase", {"actor": ADA})
    shell.engine.read()
    shell.settle()
    assert len(entries(shell, Kind.ERASED)) == 2


class TestRefusals:
    def test_a_full_disk_refuses_the_request_which_may_be_repeated(self) -> None:
        shell = MemoryShell()
        ada, _ = two_senders(shell)
        shell.engine.is_full = True

        reply = erase(ada, actor=ADA)
        assert code_of(reply) == "storage_full"
        assert reply["payload"]["retryable"]

        shell.engine.is_full = False
        assert erased(ada, actor=ADA)["entries"] == 3

    def test_without_room_for_the_segments_it_is_done_later(self) -> None:
        shell = MemoryShell()
        ada, _ = two_senders(shell)
        wait_for_erase(shell, ada)
        shell.engine.is_full, shell.engine.is_readable = True, True
        shell.settle()
        assert code_of(ada.take()[-1]) == "storage_full"

        shell.engine.is_full = False
        shell.pass_time(70)

        assert not holds(shell, "of ada")

    def test_a_log_that_has_stopped_erases_nothing(self) -> None:
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
    def test_a_request_that_says_nothing_definite_is_refused(self, payload: Message) -> None:
        shell = MemoryShell()
        peer = shell.connect(BOB)

        assert code_of(peer.ask("hub:erase", payload)) == "internal_error"
        assert entries(shell, Kind.ERASED) == []

    def test_a_requester_that_has_left_is_not_answered(self) -> None:
        shell = MemoryShell()
        _, bob = two_senders(shell)
        shell.engine.is_readable = False
        bob.request("hub:erase", {"actor": ADA})
        bob.drop()
        shell.engine.is_readable = True
        shell.settle()

        assert not holds(shell, "of ada")


class TestOffsets:
    def test_further_entries_may_be_named_by_offset(self) -> None:
        shell = MemoryShell()
        _, bob = two_senders(shell)
        last = entries(shell, Kind.PUBLISHED)[-1].offset

        answer = erased(bob, actor=ADA, offsets=[[last, last]], epoch=shell.engine.epoch)

        assert answer["entries"] == 4
        assert not holds(shell, "of bob 2")
        assert holds(shell, "of bob 1")

    def test_only_messages_are_erased_by_offset(self) -> None:
        shell = MemoryShell()
        _, bob = two_senders(shell)
        subscribe(bob)
        head = shell.engine.head

        erased(bob, actor=ACTOR, offsets=[[0, head], [2, 5]], epoch=shell.engine.epoch)

        again = shell.restarted()
        assert NAME in topic_of(again).subscriptions
        assert topic_of(again).head == 6
        assert all(
            one.is_erased == (one.kind == Kind.PUBLISHED) for one in shell.engine.entries[:head]
        )

    def test_many_entries_come_in_pages(self) -> None:
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


def test_a_topic_of_that_name_that_was_deleted_does_not_come_back() -> None:
    shell = MemoryShell()
    bob = shell.connect(BOB)
    create(bob, ADA)
    shell.save_snapshot()
    bob.ask("hub:topic_delete", {"topic": ADA})

    erased(bob, actor=ADA)

    assert shell.restarted().hub.streams.topics == {}


def test_an_entry_that_cannot_be_read_goes_if_it_holds_the_name() -> None:
    wanted = Wanted(ADA, None, None, False, Ranges())

    def choose(body: bytes) -> bool:
        return wanted.choose(StoredEntry(0, Kind.PUBLISHED, "t", 1, 1, 0, body)) is not None

    assert choose(b"\xc1" + ADA.encode())
    assert not choose(b"\xc1")
