"""The load generator's frames: what a server would read from them."""

from __future__ import annotations

import json

import pytest

from bench.frames import BINARY, MASK, TEXT, masked, masked_run, upgrade
from bench.protocols import MARKER, Dialect, Nats, SignalHub, SocketIo, envelope
from tests.support.socket.frames import unmask

DIALECTS = (SignalHub(), Nats(), SocketIo())


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 125, 126, 127, 65_535, 65_536, 70_001])
def test_a_masked_frame_reads_back_at_every_length_form(size: int) -> None:
    payload = bytes(index % 251 for index in range(size))

    assert unmask(masked(payload)) == (TEXT, payload, b"")


def test_a_run_of_frames_is_its_frames_one_after_the_other() -> None:
    payloads = [b"first-one", b"other-two", b"third-too"]

    assert masked_run(payloads, BINARY) == b"".join(masked(each, BINARY) for each in payloads)


def test_masking_changes_the_payload() -> None:
    assert b"plain text" not in masked(b"plain text")
    assert MASK.count(0) == 0


def test_payloads_of_different_length_cannot_share_a_run() -> None:
    with pytest.raises(AssertionError, match="differ in length"):
        masked_run([b"one", b"three"])


def test_the_upgrade_names_path_and_port() -> None:
    request = upgrade("/ws", 4711)

    assert request.startswith(b"GET /ws HTTP/1.1\r\n")
    assert b"\r\nHost: 127.0.0.1:4711\r\n" in request
    assert request.endswith(b"\r\n\r\n")


def test_an_envelope_has_all_eleven_members() -> None:
    message = json.loads(envelope(7, "alice", "hub:send", '{"to":"@(bench/bob)"}'))

    assert set(message) == {
        *("id", "from", "to", "type", "payload", "pattern"),
        *("correlationId", "timestamp", "metadata", "ttl", "signature"),
    }
    assert message["from"] == "@(bench/alice)"
    assert message["payload"] == {"to": "@(bench/bob)"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_message_carries_the_marker_once_and_an_id_of_its_own(dialect: Dialect) -> None:
    rest = dialect.sends("s00001", "r00001", range(5, 8)) + dialect.publishes("s00001", range(2))
    payloads = []
    while rest:
        _, payload, rest = unmask(rest)
        payloads.append(payload)

    assert [payload.count(MARKER) for payload in payloads] == [1] * 5
    assert len(set(payloads)) == 5


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_server_gets_the_same_envelope(dialect: Dialect) -> None:
    _, payload, _ = unmask(dialect.sends("s00001", "r00001", range(1)))
    start, end = payload.index(b'{"id"'), payload.rindex(b"}") + 1
    message = json.loads(payload[start:end])

    assert message["type"] == "hub:send"
    assert message["payload"]["to"] == "@(bench/r00001)"
    assert message["ttl"] == 60_000
    assert 350 <= end - start <= 400


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_subscriber_does_all_a_registered_actor_does_first(dialect: Dialect) -> None:
    registered = dialect.registered(1, "f00001")
    subscribed = dialect.subscribed(1, "f00001")

    assert len(subscribed) >= len(registered) > len(dialect.upgraded(1))
    assert subscribed != registered
    assert subscribed[0] == registered[0]


def test_nats_announces_the_exact_length_of_its_payload() -> None:
    opcode, payload, _ = unmask(Nats().sends("s00001", "r00001", range(1)))
    head, _, body = payload.partition(b"\r\n")

    assert opcode == BINARY
    assert head == b"PUB to.r00001 %d" % len(body.removesuffix(b"\r\n"))


def test_the_hub_is_greeted_before_the_actor_registers() -> None:
    _, connect, register = SignalHub().registered(1, "alice")

    assert json.loads(unmask(connect.request)[1])["type"] == "hub:connect"
    assert json.loads(unmask(register.request)[1])["payload"]["actorAddress"] == "@(bench/alice)"
