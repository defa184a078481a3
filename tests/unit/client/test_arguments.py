"""What callers pass in: mistakes are named before anything is sent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

import signalhub
from signalhub.client.arguments import checked_actor, checked_url, wire_position
from signalhub.client.protocol.frame import FrameWriter
from signalhub.client.requests import Ask, Broadcast, Discover, Publish, Register, Subscribe, Tell
from signalhub.client.stream_requests import (
    Credit,
    Erase,
    ListSubscriptions,
    Move,
    Pause,
    defined,
    destination,
    served,
    terms,
)
from signalhub.clock import Ids
from signalhub.wire.release import __version__

ALICE = "@(demo/alice)"
BOB = "@(demo/bob)"
URL = "ws://127.0.0.1:1/ws"
LONG = "x" * 257
NEW_YEAR = datetime(2026, 1, 2, tzinfo=UTC)


def written(payload: Any, **options: Any) -> Any:
    return json.loads(FrameWriter(ALICE, Ids()).request(payload, 0, **options).frame)["payload"]


def asked(**serving: Any) -> dict[str, Any]:
    options = {"mode": "shared", "start": "earliest", "consumer": "c"}
    own = {name: serving.pop(name, default) for name, default in options.items()}
    return terms(serving=serving, **own)


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
def test_invalid_urls_are_refused_without_repeating_secrets(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        signalhub.connect(url, ALICE)

    assert not any(secret in str(caught.value) for secret in ("abc", "pass@"))


@pytest.mark.parametrize("address", ["alice", "", "@()", "@(a\nb)", "demo/alice", "@(" + "x" * 300])
def test_an_invalid_address_is_refused_with_an_example(address: str) -> None:
    attempts: list[Callable[[], object]] = [
        partial(signalhub.connect, URL, address),
        partial(Tell, address, "note", None),
        partial(Register, address, [], {}),
        partial(Erase, address),
        partial(Move, "order/1", 3, address),
        partial(destination, actor=address),
        partial(written, Tell(BOB, "note", None), sender=address),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match=r"looks like @\(demo/alice\)"):
            attempt()


WRONG_HEADERS: Any = {"a": 1}
WRONG_POSITIONS: tuple[Any, ...] = (
    *("now", 0, -1, True, None, 1.5),
    *({}, {"seq": 0}, {"seq": 1, "last": 1}, {"offset": 1}),
)
PUBLISH = Publish("orders", "order", 1, durable=True)
WRONG: list[tuple[Callable[[], object], str]] = [
    *[
        (partial(make, type), "type")
        for type in ("", LONG, "hub:send", "hub:")
        for make in (partial(Tell, BOB, data=None), partial(Publish, "news", data=None))
    ],
    (partial(Broadcast, "", None, False), "type"),
    *[(partial(Subscribe, topic), "subscribed") for topic in ("", "a/#/b", LONG)],
    (partial(ListSubscriptions, LONG), "topic"),
    (partial(Pause, "", "billing"), "topic"),
    (partial(Pause, "orders", ""), "subscription"),
    (partial(Discover, "", 10), "pattern"),
    (partial(signalhub.connect, URL, ALICE, capabilities="chat"), r"\('chat',\)"),
    (partial(signalhub.connect, URL, ALICE, lease_s=0), "lease"),
    *[
        (partial(signalhub.connect, URL, ALICE, register=False, **profile), "registered")
        for profile in ({"capabilities": ("chat",)}, {"metadata": {"a": 1}}, {"lease_s": 60.0})
    ],
    *[(partial(written, Tell(BOB, "note", None), ttl_ms=ttl), "lifetime") for ttl in (0, -1)],
    (partial(written, Ask(BOB, "task", None), timeout_s=0), "ask"),
    (partial(written, PUBLISH, attempts=0), "publish"),
    (partial(written, PUBLISH, message_id=""), "message id"),
    (partial(written, PUBLISH, message_id=LONG), "message id"),
    (partial(Publish, "orders", "order", 1, headers=WRONG_HEADERS), "headers"),
    (partial(Publish, "orders", "order", 1, deliver_at=datetime(2026, 1, 2)), "time zone"),
    (partial(wire_position, datetime(2026, 1, 2)), "time zone"),
    *[(partial(wire_position, each), "'earliest', 'latest'") for each in WRONG_POSITIONS],
    *[
        (partial(asked, **{name: value}), complaint)
        for name, value, complaint in (
            ("mode", "all", "mode"),
            ("consumer", "", "consumer"),
            ("window", 0, "at least 1"),
            ("max_deliveries", 0, "at least 1"),
            ("ack_timeout_s", 0, "at least 0.001"),
            ("backoff_s", -1, "at least 0"),
            ("heartbeat_s", -1, "at least 0"),
            ("rate_per_s", -1, "at least 0"),
            ("poison", "ignore", "poison policy"),
            ("dead_letter", "", "topic"),
        )
    ],
    (partial(defined, {"retention_s": 0}), "keep nothing"),
    (partial(defined, {"retention_bytes": -1}), "keep nothing"),
    *[(partial(Credit, "s", *pair), "credit") for pair in ((None, None), (-1, None), (None, -1))],
    *[
        (partial(checked_actor, name), "kind/key")
        for name in ("order", "order/", "Order/1", "order/a\n", "/1", "")
    ],
    (partial(destination), "a replay goes to"),
    (partial(destination, topic="t", actor=BOB), "a replay goes to"),
    (partial(destination, subscription="s", actor=BOB), "a replay goes to"),
]


@pytest.mark.parametrize(("attempt", "complaint"), WRONG, ids=[each[1] for each in WRONG])
def test_an_invalid_argument_is_refused_and_named(
    attempt: Callable[[], object], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        attempt()


def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="'windows' of a durable subscription"):
        served({"windows": 1})
    with pytest.raises(TypeError, match="'window' of a durable topic"):
        defined({"window": 1})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize(
    ("position", "wire"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        (7, {"seq": 7}),
        ({"seq": 1}, {"seq": 1}),
        ({"last": 3}, {"last": 3}),
        ({"time": 1767312000000}, {"time": 1767312000000}),
        (NEW_YEAR, {"time": 1767312000000}),
    ],
)
def test_a_position_in_a_topic_can_be_given_in_several_ways(position: Any, wire: Any) -> None:
    assert wire_position(position) == wire


def test_the_terms_of_a_consumer_are_given_in_the_words_of_the_wire() -> None:
    plain = {"mode": "shared", "from": "earliest", "consumer": "c"}
    rows: list[tuple[str, Any, str, Any]] = [
        ("mode", "failover", "mode", "failover"),
        ("start", {"last": 2}, "from", {"last": 2}),
        ("window", 1, "window", 1),
        ("strict", True, "strict", True),
        ("auto_ack", False, "autoAck", False),
        ("ack_timeout_s", 1.5, "ackTimeoutMs", 1500),
        ("max_deliveries", 3, "maxDeliveries", 3),
        ("backoff_s", 0.1, "backoffMs", 100),
        ("backoff_cap_s", 2, "backoffCapMs", 2000),
        ("heartbeat_s", 0, "heartbeatMs", 0),
        ("rate_per_s", 5, "ratePerSecond", 5),
        ("idle_expiry_s", 0.5, "idleExpiryMs", 500),
        ("backlog_max", 10, "backlogMax", 10),
        ("backlog_policy", "refuse", "backlogPolicy", "refuse"),
        ("poison", "drop", "poison", "drop"),
        ("dead_letter", "bad", "deadLetter", "bad"),
    ]

    assert asked(window=None) == plain
    for option, value, member, written_value in rows:
        assert asked(**{option: value}) == plain | {member: written_value}


class Opaque:
    """Something JSON has no word for."""


ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize("payload", [Opaque(), {"a": [Opaque()]}, {(1, 2): 3}, "\ud800", ITSELF])
def test_a_payload_that_is_not_json_is_a_type_error_naming_the_message(payload: object) -> None:
    with pytest.raises(TypeError, match=r"note to @\(demo/bob\) cannot be written as JSON"):
        written(Tell(BOB, "note", payload))


@pytest.mark.parametrize("payload", [None, True, -1.5, "é\u2028", [], {"a": [1, {"b": None}]}])
def test_any_json_value_is_a_payload(payload: object) -> None:
    assert written(Tell(BOB, "note", payload))["data"] == payload


def test_importing_the_package_loads_no_sockets_and_no_server() -> None:
    heavy = "asyncio", "picows", "uvloop", "apsw", "rich", "jwt", "prometheus_client"
    program = f"import sys, signalhub; print([m for m in {heavy} if m in sys.modules])"

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "[]"


def test_every_public_name_can_be_imported() -> None:
    assert set(dir(signalhub)) >= set(signalhub.__all__)
    assert signalhub.__version__ == __version__
    for name in set(signalhub.__all__) - {"__version__"}:
        assert getattr(signalhub, name).__name__.removeprefix("signalhub.") == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = signalhub.nothing  # type: ignore[attr-defined]
