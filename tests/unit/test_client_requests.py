"""What callers pass in, and what is said about it before anything is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

import signalhub
from signalhub.client.arguments import checked_url
from signalhub.client.protocol.frame import FrameWriter
from signalhub.client.requests import Ask, Broadcast, Publish, Subscribe, Tell
from signalhub.clock import Ids

ALICE = "@(demo/alice)"
BOB = "@(demo/bob)"


@pytest.fixture
def frames() -> FrameWriter:
    return FrameWriter(ALICE, Ids())


@pytest.mark.parametrize(
    "url",
    ["ws://127.0.0.1:8787/ws", "wss://hub.example/ws", "ws://[::1]:1/", "ws://h/ws?shard=2"],
)
def test_plain_urls_are_accepted(url: str) -> None:
    assert checked_url(url) == url


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://127.0.0.1/ws", "looks like"),
        ("127.0.0.1:8787", "looks like"),
        ("ws:///ws", "looks like"),
        ("", "looks like"),
        ("ws://me:pass@hub/ws", "user name"),
        ("ws://me@hub/ws", "user name"),
        ("ws://hub/ws?token=abc", "token"),
        ("ws://hub/ws?a=1&Access_Token=abc", "token"),
        ("ws://hub/ws?token", "token"),
        ("ws://hub/ws#x", "fragment"),
    ],
)
def test_urls_that_cannot_be_used_are_refused_without_repeating_secrets(
    url: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        signalhub.connect(url, ALICE)

    assert "abc" not in str(caught.value)
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize("address", ["alice", "", "@()", "@(a\nb)", "demo/alice", "@(" + "x" * 300])
def test_a_bad_address_is_refused_with_an_example(frames: FrameWriter, address: str) -> None:
    with pytest.raises(ValueError, match=r"looks like @\(demo/alice\)"):
        signalhub.connect("ws://127.0.0.1:1/ws", address)
    with pytest.raises(ValueError, match=r"looks like @\(demo/alice\)"):
        Tell(address, "note", None)
    with pytest.raises(ValueError, match=r"looks like @\(demo/alice\)"):
        frames.request(Tell(BOB, "note", None), 0, sender=address)


@pytest.mark.parametrize("type", ["", "x" * 257, "hub:send", "hub:"])
def test_a_bad_message_type_is_refused(type: str) -> None:
    with pytest.raises(ValueError, match="type"):
        Tell(BOB, type, None)
    with pytest.raises(ValueError, match="type"):
        Publish("news", type, None)
    with pytest.raises(ValueError, match="type"):
        Broadcast(type, None, False)


@pytest.mark.parametrize("topic", ["", "a/#/b", "x" * 257])
def test_a_bad_subscription_is_refused(topic: str) -> None:
    with pytest.raises(ValueError, match="subscribed"):
        Subscribe(topic)


def test_one_capability_is_not_a_list_of_letters() -> None:
    with pytest.raises(ValueError, match=r"\('chat',\)"):
        signalhub.connect("ws://127.0.0.1:1/ws", ALICE, capabilities="chat")


class Opaque:
    """Something JSON has no word for."""


ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize("payload", [Opaque(), {"a": [Opaque()]}, {(1, 2): 3}, "\ud800", ITSELF])
def test_a_payload_that_is_no_json_is_a_type_error_naming_the_message(
    frames: FrameWriter, payload: object
) -> None:
    with pytest.raises(TypeError, match=r"note to @\(demo/bob\) cannot be written as JSON"):
        frames.request(Tell(BOB, "note", payload), 0)


@pytest.mark.parametrize(
    "payload", [None, True, 0, -1.5, "é\u2028", [], {}, {"a": [1, {"b": None}]}, 2**53]
)
def test_any_json_value_is_a_payload(frames: FrameWriter, payload: object) -> None:
    request = frames.request(Tell(BOB, "note", payload), 0)

    assert json.loads(request.frame)["payload"]["data"] == payload


@pytest.mark.parametrize("ttl_ms", [0, -1])
def test_a_lifetime_must_be_one(frames: FrameWriter, ttl_ms: int) -> None:
    with pytest.raises(ValueError, match="lifetime"):
        frames.request(Tell(BOB, "note", None), 0, ttl_ms=ttl_ms)


@pytest.mark.parametrize(("timeout_s", "attempts"), [(0, 1), (1, 0)])
def test_an_ask_must_try_at_least_once(
    frames: FrameWriter, timeout_s: float, attempts: int
) -> None:
    with pytest.raises(ValueError, match="ask"):
        frames.request(Ask(BOB, "task", None), 0, timeout_s=timeout_s, attempts=attempts)


def test_the_members_of_a_request_are_where_the_hub_looks_for_them(frames: FrameWriter) -> None:
    request = frames.request(Ask(BOB, "task", {"n": 1}), 77, ttl_ms=500, metadata={"traceId": "t"})

    message = json.loads(request.frame)
    assert message == {
        "id": request.id,
        "from": ALICE,
        "to": "@(cloudflare/signal-hub)",
        "type": "hub:send",
        "payload": {"to": BOB, "type": "task", "data": {"n": 1}},
        "pattern": "ask",
        "correlationId": None,
        "timestamp": 77,
        "metadata": {"traceId": "t"},
        "ttl": 500,
        "signature": None,
    }


def test_importing_the_package_loads_no_sockets_and_no_server() -> None:
    import subprocess
    import sys

    heavy = "asyncio", "picows", "uvloop", "apsw", "rich", "jwt", "prometheus_client"
    program = f"import sys, signalhub; print([m for m in {heavy} if m in sys.modules])"

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "[]"


def test_every_public_name_can_be_had() -> None:
    assert set(dir(signalhub)) >= set(signalhub.__all__)
    for name in signalhub.__all__:
        assert getattr(signalhub, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = signalhub.nothing  # type: ignore[attr-defined]
