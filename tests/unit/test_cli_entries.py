"""Entries of the log in words."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.cli.hub.log import entry_facts, kind_name
from signalhub.wire import entry
from signalhub.wire.entry import Kind, Outcome, StoredEntry, encode_body

LETTER = entry.DeadLetterOrigin("orders", "billing", "1.1", 7, 6, "bad", 1, 2, ["a"])


def stored(kind: int, body: bytes, *, is_erased: bool = False) -> StoredEntry:
    return StoredEntry(9, kind, "orders", 1, 3, 1000, body, is_erased)


def body_of(kind: int, body: entry.Body) -> Any:
    return entry_facts(stored(kind, encode_body(body)))["body"]


def test_an_entry_is_one_object_with_the_name_of_its_kind() -> None:
    body = encode_body(entry.LostBody("billing", 1, 5))

    assert entry_facts(stored(Kind.LOST, body)) == {
        "offset": 9,
        "kind": "lost",
        "stream": "orders",
        "stream_epoch": 1,
        "seq": 3,
        "at_ms": 1000,
        "erased": False,
        "body": {"subscription": "billing", "first": 1, "last": 5},
    }


def test_a_message_shows_its_data_and_metadata_as_json() -> None:
    message = entry.MessageBody(
        "m-1",
        b"c-1",
        "@(demo/a)",
        "text",
        b'{"n":[1]}',
        b'{"x":1}',
        headers={"a": "b"},
        dead=LETTER,
    )

    body = body_of(Kind.PUBLISHED, message)

    assert (body["id"], body["copy_id"], body["data"]) == ("m-1", "c-1", {"n": [1]})
    assert (body["metadata"], body["headers"]) == ({"x": 1}, {"a": "b"})
    assert body["dead"]["reason"] == "bad"
    assert body["dead"]["consumers"] == ["a"]


def test_a_settlement_shows_its_outcomes_as_words() -> None:
    deliveries = [entry.Settlement(1, 0, Outcome.DEAD_LETTERED), entry.Settlement(2, 1, 250)]

    body = body_of(Kind.SETTLED, entry.SettledBody("billing", 1, deliveries))

    assert [one["outcome"] for one in body["deliveries"]] == ["dead-lettered", "250"]


@pytest.mark.parametrize(
    ("kind", "body", "member", "value"),
    [
        (Kind.MAIL, entry.MessageBody("m", b"c", "@(a)", "t", b"no json"), "data", "no json"),
        (Kind.BROADCAST, entry.BroadcastBody("b", "@(a)", b'{"n":1}'), "ack", {"n": 1}),
        (
            Kind.CURSOR,
            entry.CursorBody("billing", 1, 5, 9, [(7, 8)], {6: 99}, {}),
            "above",
            [[7, 8]],
        ),
        (Kind.STREAM_CREATED, entry.StreamDefinitionBody(True, 60.0), "retention_s", 60.0),
        (Kind.REMOVED, entry.RemovedBody([(1, 2)], "purged"), "ranges", [[1, 2]]),
    ],
)
def test_every_kind_has_its_body(kind: Kind, body: entry.Body, member: str, value: object) -> None:
    assert body_of(kind, body)[member] == value


def test_every_kind_can_be_shown() -> None:
    for kind in Kind:
        name = kind_name(kind)

        assert entry_facts(stored(kind, b""))["kind"] == name
        assert not name.isdigit()


def test_an_entry_without_a_body_has_none() -> None:
    assert body_of(Kind.STREAM_DELETED, entry.Body()) == []
    assert entry_facts(stored(Kind.STREAM_DELETED, b""))["body"] is None


def test_what_is_erased_shows_its_digest() -> None:
    facts = entry_facts(stored(Kind.PUBLISHED, b"\xab\xcd", is_erased=True))

    assert (facts["erased"], facts["body"]) == (True, {"digest": "abcd"})


@pytest.mark.parametrize("kind", [Kind.PUBLISHED, Kind.STREAM_DELETED, 200])
def test_a_body_of_another_shape_is_shown_as_it_is(kind: int) -> None:
    assert entry_facts(stored(kind, b"\xc1"))["body"] == {"unreadable": "c1"}


def test_a_kind_of_a_newer_program_is_a_number() -> None:
    facts = entry_facts(stored(200, encode_body(entry.LostBody("billing", 1, 5))))

    assert (facts["kind"], facts["body"]) == ("200", ["billing", 1, 5])
