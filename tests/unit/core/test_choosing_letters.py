"""Redrives and purges of some letters: a bound, a filter, a preview, and edited letters."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from signalhub.auth.matrix import VERBS
from signalhub.settings.model import Settings
from signalhub.wire.entry import Kind, MessageBody, OperatedBody, decode_body
from tests.support.memory.shell import SETTLING_HELLO, MemoryShell, Message, Peer
from tests.support.memory.tokens import admitted, guarded
from tests.support.memory.topics import (
    ACTOR,
    NAME,
    NAMED,
    code_of,
    create,
    publish,
    subscribe,
    topic_of,
)

LETTERS = "t.dlq"


def bury(shell: MemoryShell, *reasons: str) -> tuple[Peer, Peer]:
    """A topic with one dead letter for each reason; writer and reader."""
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer, poison="dead_letter")
    subscribe(reader)
    for number, reason in enumerate(reasons, 1):
        publish(writer, {"n": number}, type=f"type-{number}", key=f"key-{number}")
        reader.ask("hub:term", NAMED | {"seq": number, "reason": reason})
        shell.advance(1_000)
    reader.take()
    return writer, reader


def redrive(peer: Peer, **members: Any) -> Message:
    reply = peer.ask("hub:redrive", {"topic": LETTERS} | members)
    assert reply["type"] == "hub:redriven", reply
    payload: Message = reply["payload"]
    return payload


def refusal(peer: Peer, request: str = "hub:redrive", **members: Any) -> str:
    reply = peer.ask(request, {"topic": LETTERS} | members)
    assert reply["type"] == "hub:error", reply
    text: str = reply["payload"]["message"]
    return text


def removed(shell: MemoryShell) -> list[int]:
    ranges = topic_of(shell, LETTERS).removed
    return [seq for first, last in ranges for seq in range(first, last + 1)]


def numbers(peer: Peer) -> list[int]:
    return [one["payload"]["n"] for one in peer.heard()]


def records(shell: MemoryShell) -> list[OperatedBody]:
    found = [one.body for one in shell.engine.entries if one.kind == Kind.OPERATED]
    return [decode_body(OperatedBody, body) for body in found]


def test_nothing_beyond_the_bound_is_touched() -> None:
    shell = MemoryShell()
    writer, reader = bury(shell, "a", "b", "c")

    assert redrive(writer, all=True, through=2) == {"count": 2}

    assert (removed(shell), numbers(reader)) == ([1, 2], [1, 2])
    # A bound beyond the head is the head.
    assert redrive(writer, all=True, through=99) == {"count": 1}


def test_a_bound_of_another_epoch_is_refused() -> None:
    shell = MemoryShell()
    writer, _ = bury(shell, "a")

    reply = writer.ask("hub:redrive", {"topic": LETTERS, "all": True, "epoch": "other"})

    assert code_of(reply) == "wrong_epoch"
    assert redrive(writer, all=True, epoch=topic_of(shell, LETTERS).epoch) == {"count": 1}


@pytest.mark.parametrize(
    ("filter", "chosen"),
    [
        ({"reason": "busy"}, [1, 3]),
        ({"reason": "bus"}, []),
        ({"subscription": NAME}, [1, 2, 3]),
        ({"subscription": "other"}, []),
        ({"stream": "t", "type": "type-2"}, [2]),
        ({"stream": "u"}, []),
        ({"seqs": [1, 2]}, [1, 2]),
        ({"seqs": [1, 2], "reason": "busy"}, [1]),
    ],
)
@pytest.mark.parametrize("request_type", ["hub:redrive", "hub:purge"])
def test_a_filter_chooses_letters_and_the_others_stay(
    filter: Message, chosen: list[int], request_type: str
) -> None:
    shell = MemoryShell()
    writer, _ = bury(shell, "busy", "gone", "busy")

    reply = writer.ask(request_type, {"topic": LETTERS, "filter": filter})

    assert reply["payload"] == {"count": len(chosen)}
    assert removed(shell) == chosen


def test_a_filter_chooses_by_the_time_of_the_last_failure() -> None:
    shell = MemoryShell()
    start = shell.now
    writer, _ = bury(shell, "a", "b", "c")

    assert redrive(writer, filter={"from": start + 1_000, "to": start + 1_000}) == {"count": 1}
    assert removed(shell) == [2]
    assert redrive(writer, filter={"from": start + 1_001}) == {"count": 1}
    assert removed(shell) == [2, 3]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({}, "seqs, a filter or all"),
        ({"filter": {}}, "filter is empty"),
        ({"all": False}, "seqs, a filter or all"),
        ({"all": True, "seqs": [1]}, "excludes"),
        ({"seqs": [1], "filter": {"seqs": [1]}}, "excludes"),
        # Without the misspelt member it would choose every letter.
        ({"filter": {"raeson": "busy"}}, "raeson"),
        ({"all": True, "through": 0}, "through"),
        ({"seqs": [1], "edits": {"2": {"data": 1}}}, "position of each letter"),
        ({"all": True, "edits": {"1": {"data": 1}}}, "position of each letter"),
        ({"seqs": [1], "edits": {"1": {}}}, "data, type, key or headers"),
        ({"seqs": [1], "edits": {"1": {"payload": 1}}}, "payload"),
        ({"seqs": [1], "edits": {"1": {"type": "hub:x"}}}, "reserved"),
        ({"seqs": [1], "edits": {"1": {"type": "actors:batch"}}}, "reserved"),
        ({"seqs": [1], "edits": {"1": {"key": "k" * 257}}}, "key"),
        ({"seqs": [1], "edits": {str(n): {"data": 1} for n in range(1, 102)}}, "length <= 100"),
    ],
)
def test_a_choice_that_cannot_be_meant_is_refused(members: Message, words: str) -> None:
    shell = MemoryShell()
    writer, _ = bury(shell, "a", "b")

    assert words in refusal(writer, **members)
    assert removed(shell) == []


def test_a_purge_edits_nothing() -> None:
    shell = MemoryShell()
    writer, _ = bury(shell, "a")

    assert "hub:redrive only" in refusal(writer, "hub:purge", seqs=[1], edits={"1": {"data": 2}})


@pytest.mark.parametrize("type", ["hub:redrive", "hub:purge"])
def test_a_preview_says_what_would_happen_and_changes_nothing(type: str) -> None:
    shell = MemoryShell()
    start = shell.now
    writer, reader = bury(shell, "busy", "gone", "busy")
    before = len(shell.engine.entries)

    choice = {"topic": LETTERS, "filter": {"reason": "busy"}, "dryRun": True}
    plan = writer.ask(type, choice)["payload"]

    first = {
        "seq": 1,
        "stream": "t",
        "subscription": NAME,
        "attempts": 1,
        "lastFailure": start,
        "reason": "busy",
        "type": "type-1",
        "key": "key-1",
    }
    assert plan == {
        "count": 2,
        "dryRun": True,
        "epoch": topic_of(shell, LETTERS).epoch,
        "through": 3,
        "byReason": [{"reason": "busy", "count": 2}],
        "first": [
            first,
            first | {"seq": 3, "lastFailure": start + 2_000, "type": "type-3", "key": "key-3"},
        ],
    }
    assert (len(shell.engine.entries), removed(shell), reader.heard()) == (before, [], [])
    # What it says is what happens, whatever arrives meanwhile.
    publish(writer, {"n": 4})
    reader.ask("hub:term", NAMED | {"seq": 4, "reason": "busy"})
    bound = {"through": plan["through"], "epoch": plan["epoch"]}
    done = writer.ask(type, {"topic": LETTERS, "filter": {"reason": "busy"}} | bound)
    assert (done["payload"], removed(shell)) == ({"count": 2}, [1, 3])


def test_a_preview_counts_what_would_be_skipped_and_shows_twenty() -> None:
    shell = MemoryShell()
    writer, _ = bury(shell, *["busy"] * 25)

    plan = redrive(writer, all=True, dryRun=True)
    assert (plan["count"], len(plan["first"])) == (25, 20)

    writer.ask("hub:topic_delete", {"topic": "t"})
    plan = redrive(writer, all=True, dryRun=True)
    assert (plan["count"], plan["skipped"], plan["first"]) == (0, 25, [])


def test_an_edited_letter_goes_back_with_what_was_replaced_and_says_so() -> None:
    shell = MemoryShell()
    writer, reader = bury(shell, "a", "b", "c")
    edits = {
        "1": {"data": {"n": 10}},
        "3": {"data": None, "type": "fixed", "key": None, "headers": {"by": "olga"}},
    }

    assert redrive(writer, seqs=[1, 2, 3], edits=edits) == {"count": 3, "edited": 2}

    first, second, third = reader.heard()
    assert (first["payload"], first["type"]) == ({"n": 10}, "type-1")
    assert first["metadata"]["key"] == "key-1"
    assert first["metadata"]["redriven"]["edited"] is True
    assert "edited" not in second["metadata"]["redriven"]
    assert (third["payload"], third["type"]) == (None, "fixed")
    assert (third["metadata"].get("key"), third["metadata"]["headers"]) == (None, {"by": "olga"})
    assert first["from"] == "@(a/writer)"
    # Who edited what is on record, without the contents.
    _, one, other = [one for one in records(shell) if one.request == "hub:redrive"]
    before, after = (sha256(each).hexdigest() for each in (b'{"n":1}', b'{"n":10}'))
    assert one.detail == f"letter 1, edited data; sha256 of data {before}, then {after}"
    assert (one.verb, one.over) == ("manage", LETTERS)
    assert other.detail.startswith("letter 3, edited data, type, key, headers;")


def test_an_edited_copy_survives_a_restart_as_edited() -> None:
    shell = MemoryShell()
    writer, _ = bury(shell, "a")
    redrive(writer, seqs=[1], edits={"1": {"data": "new"}})

    again = shell.restarted()
    reader = again.connect("@(a/reader)")
    subscribe(reader)

    (copy,) = reader.heard()
    assert (copy["payload"], copy["metadata"]["redriven"]["edited"]) == ("new", True)


def test_calls_between_hosts_are_put_back_as_they_are_or_not_at_all() -> None:
    shell = MemoryShell()
    sender = shell.connect("@(a/sender)")
    actor = shell.connect(ACTOR, metadata=SETTLING_HELLO)
    actor.register(durable=True)
    sender.ask("hub:send", {"to": ACTOR, "type": "actors:batch", "data": {"v": 1}})
    actor.ask("hub:term", {"stream": ACTOR, "seq": 1})
    letters = {"topic": "dead.mailboxes", "seqs": [1]}

    edited = sender.ask("hub:redrive", letters | {"edits": {"1": {"data": {"v": 2}}}})
    plain = sender.ask("hub:redrive", letters)

    assert edited["payload"] == {"count": 0, "skipped": 1}
    assert plain["payload"] == {"count": 1}


def test_an_edit_that_makes_a_letter_too_large_leaves_it_where_it_is() -> None:
    shell = MemoryShell(Settings(message_bytes_max=65_536))
    writer, _ = bury(shell, "a")
    room = 65_536 - 1_024

    too_large = {"1": {"data": "x" * (room - 10)}}
    assert redrive(writer, seqs=[1], edits=too_large) == {"count": 0, "skipped": 1}
    assert redrive(writer, seqs=[1], edits={"1": {"data": "x" * (room - 200)}})["count"] == 1


ALL = {verb: ["*"] for verb in VERBS}
OPERATOR = {"manage": ["*"], "read": ["*"], "publish": ["*"], "create": ["*"]}


@pytest.mark.parametrize("missing", ["manage", "read"])
def test_edits_need_to_manage_and_to_read_the_letters(missing: str) -> None:
    shell = guarded()
    bury_guarded(shell)
    grants = OPERATOR | {missing: []} | {"subscribe": ["*"]}
    olga = admitted(shell, "ops/olga", grants)

    reply = olga.ask("hub:redrive", {"topic": LETTERS, "seqs": [1], "edits": {"1": {"data": 2}}})

    assert code_of(reply) == "unauthorized"
    assert reply["payload"]["details"] == {"action": missing, "target": LETTERS}
    assert removed(shell) == []


def test_an_edited_letter_goes_only_where_the_operator_may_publish() -> None:
    shell = guarded()
    bury_guarded(shell)
    olga = admitted(shell, "ops/olga", OPERATOR | {"publish": ["other"]})
    chosen = {"topic": LETTERS, "seqs": [1]}

    edited = olga.ask("hub:redrive", chosen | {"edits": {"1": {"data": 2}}})
    plain = olga.ask("hub:redrive", chosen)

    assert edited["payload"] == {"count": 0, "skipped": 1}
    assert plain["payload"] == {"count": 1}


def test_a_preview_for_somebody_who_may_not_read_has_no_contents() -> None:
    shell = guarded()
    bury_guarded(shell)
    olga = admitted(shell, "ops/olga", {"manage": ["*"], "read": []})

    plan = olga.ask("hub:redrive", {"topic": LETTERS, "all": True, "dryRun": True})["payload"]

    assert "byReason" not in plan
    (row,) = plan["first"]
    assert row.keys() == {"seq", "stream", "subscription", "attempts", "lastFailure"}


def bury_guarded(shell: MemoryShell) -> None:
    ann = admitted(shell, "people/ann", ALL)
    create(ann, poison="dead_letter")
    subscribe(ann)
    publish(ann)
    ann.ask("hub:term", NAMED | {"seq": 1})


def test_letters_are_read_by_those_who_may_and_messages_by_subscribers() -> None:
    shell = guarded()
    bury_guarded(shell)
    ann = admitted(shell, "people/ann", ALL)
    publish(ann, topic=LETTERS)
    ask = {"topic": LETTERS, "fromSeq": 1}

    def replayed(**grants: list[str]) -> tuple[list[bool], Message]:
        peer = admitted(shell, "people/eve", grants)
        reply = peer.ask("hub:replay", ask)
        found = ["deadLetter" in one["metadata"] for one in peer.heard()]
        return found, reply["payload"]

    # A token that does not mention `read` reads what it may subscribe to.
    assert replayed(subscribe=["*"])[0] == [True, False]
    reader, told = replayed(read=["t.*"])
    assert (reader, told["count"], told["withheld"], told["complete"]) == ([True], 1, 1, True)
    subscriber, told = replayed(subscribe=["*"], read=[])
    assert (subscriber, told["withheld"]) == ([False], 1)
    refused = replayed(read=["other"])[1]
    assert refused["details"] == {"action": "subscribe", "target": LETTERS}


def test_the_record_of_a_message_is_what_it_was_before_edits_were_known() -> None:
    shell = MemoryShell()
    writer, _ = bury(shell, "a")
    redrive(writer, all=True)

    (copy,) = [
        found
        for one in shell.engine.entries
        if one.kind == Kind.PUBLISHED
        and (found := decode_body(MessageBody, one.body)).redriven is not None
    ]
    assert copy.redriven is not None
    assert (copy.redriven.seq, copy.redriven.is_edited) == (1, False)
