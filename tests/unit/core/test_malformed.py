"""Frames that are no messages: what is answered, and what costs the socket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from signalhub.settings.model import Settings
from signalhub.wire.names import NOBODY
from tests.support.memory.shell import MemoryShell, Peer, envelope

NOT_JSON = [b"", b"{", b"hello", b'{"id":}', b"[1,]", b"\x00", b"NaN", b'{"x":Infinity}']
TOO_DEEP = [b"[" * 5_000 + b"]" * 5_000, b'{"payload":' + b"[" * 5_000, b'{"x":' * 3_000]
NO_ENVELOPES = [b"null", b"1", b"[]", b'"text"', b"{}", b"true", b'{"id":"x"}']


def good() -> dict[str, Any]:
    message: dict[str, Any] = json.loads(envelope("hub:heartbeat", id="m-1"))
    return message


def answer_to(peer: Peer, frame: bytes) -> dict[str, Any]:
    peer.take()
    peer.write(frame)
    (answer,) = peer.take()
    return answer


@pytest.mark.parametrize("frame", NOT_JSON)
def test_what_is_not_json_is_answered_once_and_costs_the_socket(frame: bytes) -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")

    answer = answer_to(peer, frame)

    assert answer["type"] == "hub:error"
    assert answer["payload"]["code"] == "malformed_message"
    assert peer.closed == (1011, "not JSON")
    assert len(shell.hub.registry) == 0


@pytest.mark.parametrize("frame", TOO_DEEP, ids=["array", "payload", "object"])
def test_json_nested_too_deeply_costs_the_socket_and_nothing_else(frame: bytes) -> None:
    shell = MemoryShell()
    bystander = shell.join("@(local/b)")
    peer = shell.join("@(local/a)")

    answer = answer_to(peer, frame)

    assert answer["payload"]["code"] == "malformed_message"
    assert peer.closed == (1011, "not JSON")
    assert bystander.ask("hub:heartbeat")["type"] == "hub:heartbeat_ack"


@pytest.mark.parametrize("frame", NO_ENVELOPES)
def test_json_that_is_no_envelope_is_answered_and_the_socket_stays(frame: bytes) -> None:
    peer = MemoryShell().join("@(local/a)")

    answer = answer_to(peer, frame)

    assert answer["payload"]["code"] == "internal_error"
    assert answer["to"] == "@(local/a)"
    assert peer.closed is None
    assert peer.ask("hub:heartbeat")["type"] == "hub:heartbeat_ack"


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("id", 7),
        ("id", None),
        ("id", "x" * 257),
        ("from", "local/a"),
        ("from", 1),
        ("from", "@(" + "x" * 300 + ")"),
        ("to", "hub"),
        ("to", None),
        ("type", None),
        ("type", "x" * 257),
        ("pattern", "shout"),
        ("pattern", None),
        ("correlationId", 5),
        ("timestamp", "now"),
        ("timestamp", None),
        ("timestamp", True),
        ("ttl", "1"),
        ("ttl", False),
        ("signature", 1),
    ],
)
def test_a_member_of_the_wrong_type_is_refused_and_the_socket_stays(
    member: str, value: object
) -> None:
    peer = MemoryShell().connect()

    answer = answer_to(peer, json.dumps(good() | {member: value}).encode())

    assert answer["payload"]["code"] == "internal_error"
    assert answer["payload"]["retryable"] is False
    assert peer.closed is None


@pytest.mark.parametrize(
    "member",
    ["id", "from", "to", "type", "pattern", "correlationId", "timestamp", "ttl", "signature"],
)
def test_a_missing_member_is_refused(member: str) -> None:
    peer = MemoryShell().connect()
    message = good()
    del message[member]

    answer = answer_to(peer, json.dumps(message).encode())

    assert answer["payload"]["code"] == "internal_error"
    assert member in answer["payload"]["message"]


@pytest.mark.parametrize("member", ["payload", "metadata"])
def test_payload_and_metadata_may_be_missing(member: str) -> None:
    peer = MemoryShell().connect()
    message = good()
    del message[member]

    assert answer_to(peer, json.dumps(message).encode())["type"] == "hub:heartbeat_ack"


def test_unknown_members_are_ignored() -> None:
    peer = MemoryShell().connect()

    answer = answer_to(peer, json.dumps(good() | {"priority": 9, "x": [1]}).encode())

    assert answer["type"] == "hub:heartbeat_ack"


def test_the_answer_names_the_sender_and_the_message_as_far_as_they_could_be_read() -> None:
    peer = MemoryShell().connect("@(local/a)")

    both = answer_to(peer, b'{"id":"x-1","from":"@(local/b)"}')
    neither = answer_to(peer, b'{"id":5,"from":[]}')

    assert (both["to"], both["correlationId"]) == ("@(local/b)", "x-1")
    assert (neither["to"], neither["correlationId"]) == ("@(local/a)", None)


def test_a_stranger_is_answered_under_a_neutral_address() -> None:
    peer = MemoryShell().open()

    assert answer_to(peer, b"{}")["to"] == NOBODY


@pytest.mark.parametrize("type", ["hub:nonsense", "app:hello", "", "hub:pause", "hub:connected"])
def test_an_unknown_type_is_refused_by_name(type: str) -> None:
    peer = MemoryShell().connect()

    reply = peer.ask(type)

    assert reply["payload"]["code"] == "internal_error"
    assert reply["payload"]["details"] == {"type": type}
    assert peer.closed is None


def test_a_message_of_exactly_the_limit_passes_and_one_byte_more_is_refused() -> None:
    limit = 4_096
    peer = MemoryShell(Settings(message_bytes_max=limit)).connect("@(local/somebody)")
    missing = limit - len(envelope("hub:heartbeat", ""))
    fits = envelope("hub:heartbeat", "x" * missing)
    too_long = envelope("hub:heartbeat", "x" * (missing + 1))

    assert answer_to(peer, fits)["type"] == "hub:heartbeat_ack"
    refused = answer_to(peer, too_long)

    assert refused["payload"]["code"] == "message_too_large"
    assert (refused["to"], refused["correlationId"]) == ("@(local/somebody)", "m")
    assert refused["payload"]["details"] == {"actualSize": limit + 1, "maxSize": limit}
    assert peer.closed is None


@pytest.mark.parametrize(
    "members",
    [
        b'"timestamp":1e999',
        b'"timestamp":0,"ttl":-1e999',
        b'"timestamp":' + b"9" * 5_000,
    ],
    ids=["timestamp", "ttl", "digits"],
)
def test_a_number_out_of_range_is_json_and_keeps_the_socket(members: bytes) -> None:
    peer = MemoryShell().connect()
    frame = envelope("hub:heartbeat", ttl=None).replace(b'"timestamp":0', members)

    answer = answer_to(peer, frame)

    assert answer["payload"]["code"] == "internal_error"
    assert peer.closed is None


@pytest.mark.parametrize(
    "number", [b"1e999", b"-1e999", b"9" * 5_000], ids=["above", "below", "digits"]
)
def test_a_heartbeat_with_a_number_out_of_range_is_answered(number: bytes) -> None:
    peer = MemoryShell().connect()
    frame = envelope("hub:heartbeat", ["number"]).replace(b'"number"', number)

    assert answer_to(peer, frame)["type"] in ("hub:error", "hub:heartbeat_ack")


@pytest.mark.parametrize("type", ["hub:send", "hub:publish", "hub:broadcast"])
@pytest.mark.parametrize(
    "members",
    [
        b'"timestamp":' + b"9" * 400 + b',"ttl":0.5',
        b'"timestamp":1e308,"ttl":1e308',
        b'"timestamp":0,"ttl":-' + b"9" * 400,
        b'"timestamp":-' + b"9" * 400 + b',"ttl":0.5',
    ],
    ids=["far future", "sum", "negative ttl", "far past"],
)
def test_a_message_with_absurd_times_is_answered(type: str, members: bytes) -> None:
    peer = MemoryShell().join("@(local/a)")
    payload = {"to": "@(local/a)", "topic": "t", "type": "news"}
    frame = envelope(type, payload, sender="@(local/a)")
    frame = frame.replace(b',"ttl":null', b"").replace(b'"timestamp":0', members)

    peer.write(frame)

    assert peer.take() != []
    assert peer.closed is None
