"""One good message of every kind a client can send, in pieces that can be exchanged."""

from __future__ import annotations

import json
from typing import Any

Members = dict[str, bytes]  # Names and their values, already JSON.

VICTIM = "@(fuzz/victim)"
ATTACKER = "@(fuzz/attacker)"
LOGGED = "orders"


def members(**values: object) -> Members:
    return {name: json.dumps(value).encode() for name, value in values.items()}


NOTHING = members()

REQUESTS: list[tuple[str, Members | None, Members]] = [
    (
        "hub:connect",
        None,
        members(protocolVersion="0.1.0", capabilities=["send"], authToken="a.b.c"),
    ),
    ("hub:heartbeat", members(timestamp=1_760_000_000_000), NOTHING),
    ("hub:heartbeat", None, NOTHING),
    ("hub:disconnect", None, NOTHING),
    ("hub:disconnect", members(reason="tired"), NOTHING),
    ("hub:refresh_token", members(token="stkn-x"), members(authToken="a.b.c")),
    ("hub:queue_stats", None, NOTHING),
    ("hub:metrics", None, NOTHING),
    ("hub:limits", members(identity="ann", limit=3), NOTHING),
    (
        "hub:register",
        members(
            actorAddress=ATTACKER, capabilities=["x", "y"], metadata={"a": [1]}, ttlSeconds=300
        ),
        NOTHING,
    ),
    ("hub:unregister", members(actorAddress=ATTACKER), NOTHING),
    ("hub:unregister", None, NOTHING),
    ("hub:renew", members(renewalToken="renewal-x"), members(renewalToken="renewal-y")),
    ("hub:renew", None, NOTHING),
    ("hub:discover", members(pattern="fuzz/*", capability="x", limit=50), NOTHING),
    ("hub:list_actors", members(offset=0, limit=100), NOTHING),
    ("hub:list_actors", None, NOTHING),
    (
        "hub:send",
        members(to=VICTIM, type="news", data={"points": [3, 5.5, None, "é"]}),
        members(traceId="t-1", spanId="s-1", via="me", forwarded=False),
    ),
    ("hub:send", members(to=ATTACKER, type="news", data="x"), members(custom={"deep": [[]]})),
    (
        "hub:broadcast",
        members(type="alarm", data=[1, 2], excludeSelf=True),
        members(targetCapability="x"),
    ),
    ("hub:broadcast", members(type="alarm", data=None), NOTHING),
    ("hub:subscribe", members(topic="prices/+", durable=False), NOTHING),
    ("hub:subscribe", members(topic="prices/eu"), NOTHING),
    ("hub:unsubscribe", members(topic="prices/+", subscriptionId="sub-1"), NOTHING),
    ("hub:unsubscribe", members(subscriptionId="prices/eu"), NOTHING),
    ("hub:publish", members(topic="prices/eu", type="price", data={"v": 12}), NOTHING),
    ("hub:register", members(actorAddress=ATTACKER, capabilities=[], durable=True), NOTHING),
    ("hub:discover", members(pattern="*", includeAway=True), NOTHING),
    (
        "hub:topic_create",
        members(
            topic=LOGGED,
            durable=True,
            retention={"ageSeconds": 60, "bytes": 100_000},
            poison="dead_letter",
            deadLetter="graves",
            heartbeatMs=500,
        ),
        NOTHING,
    ),
    ("hub:topic_update", members(topic=LOGGED, poison="drop"), NOTHING),
    ("hub:topic_info", members(topic=LOGGED), NOTHING),
    ("hub:topic_delete", members(topic=LOGGED), NOTHING),
    ("hub:list_topics", members(pattern="*", limit=10, offset=0), NOTHING),
    *[
        (
            "hub:publish",
            members(
                topic=LOGGED,
                type="order",
                data={"v": 1},
                durable=True,
                key="k",
                headers={"a": "b"},
                deliverAt=1_760_000_001_000,
            ),
            NOTHING,
        ),
        ("hub:publish", members(topic=LOGGED, type="order", data=[2], durable=True), NOTHING),
    ]
    * 2,
    *[
        (
            "hub:subscribe",
            members(
                topic=LOGGED,
                subscription=mode,
                mode=mode,
                consumer="one",
                window=8,
                ackTimeoutMs=50,
                maxDeliveries=2,
                backoffMs=5,
                backoffCapMs=50,
                heartbeatMs=100,
                poison="dead_letter",
                resume={"seq": 1},
                **{"from": {"seq": 1}},
            ),
            NOTHING,
        )
        for mode in ("exclusive", "shared", "failover", "key-shared")
    ],
    (
        "hub:subscribe",
        members(topic=LOGGED, subscription="exclusive", strict=True, autoAck=True, ratePerSecond=5),
        NOTHING,
    ),
    ("hub:unsubscribe", members(topic=LOGGED, subscription="shared"), NOTHING),
    ("hub:ack", members(topic=LOGGED, subscription="exclusive", upTo=3), NOTHING),
    ("hub:ack", members(topic=LOGGED, subscription="shared", seqs=[1, 2, 3]), NOTHING),
    ("hub:ack", members(stream=ATTACKER, seq=1), NOTHING),
    (
        "hub:nack",
        members(topic=LOGGED, subscription="shared", seq=2, delayMs=10, reason="no", id="1.2.1"),
        NOTHING,
    ),
    ("hub:extend", members(topic=LOGGED, subscription="failover", seq=1, ms=1_000), NOTHING),
    ("hub:term", members(topic=LOGGED, subscription="key-shared", seq=1, reason="x"), NOTHING),
    ("hub:credit", members(subscriptionId="sub-1", messages=5, bytes=1_000), NOTHING),
    ("hub:replay", members(topic=LOGGED, fromSeq=1, toSeq=9, limit=5), NOTHING),
    ("hub:seek", members(topic=LOGGED, subscription="shared", to={"last": 2}), NOTHING),
    (
        "hub:seek",
        members(topic=LOGGED, subscription="exclusive", to={"time": 1_760_000_000_500}),
        NOTHING,
    ),
    ("hub:seek", members(topic=LOGGED, subscription="shared", to="earliest", dryRun=True), NOTHING),
    ("hub:sub_info", members(topic=LOGGED, subscription="shared"), NOTHING),
    ("hub:sub_update", members(topic=LOGGED, subscription="shared", window=3), NOTHING),
    ("hub:sub_pause", members(topic=LOGGED, subscription="shared"), NOTHING),
    ("hub:sub_resume", members(topic=LOGGED, subscription="shared"), NOTHING),
    ("hub:sub_delete", members(topic=LOGGED, subscription="failover"), NOTHING),
    ("hub:list_subs", members(topic=LOGGED, limit=5, offset=0), NOTHING),
    ("hub:list_subs", None, NOTHING),
    ("hub:redrive", members(topic="graves", all=True), NOTHING),
    ("hub:purge", members(topic="graves", seqs=[1]), NOTHING),
    ("app:unknown", members(anything=True), NOTHING),
]

ENVELOPE = members(
    id="m-1",
    to="@(cloudflare/signal-hub)",
    pattern="ask",
    correlationId=None,
    timestamp=1_760_000_000_000,
    ttl=None,
    signature=None,
) | {"from": json.dumps(ATTACKER).encode()}

# Values that have broken parsers, limits or assumptions somewhere.
ODD_VALUES = [
    *(b"null true false 0 -0 -1 1 1.5 1e5 1e308 1e999 -1e999 1e-999 9007199254740993".split()),
    *(b"123456789012345678901234567890 -9223372036854775809 0.1e-10".split()),
    b"9" * 400,
    b"-" + b"9" * 5_000,
    b"[]",
    b"{}",
    b"[[]]",
    b'[{"a":[{}]}]',
    b'{"":""}',
    b'{"a":1,"a":2}',
    *(json.dumps(text).encode() for text in ("", " ", "@(", "@()", "@(a", "x", "é", "\0", "\n")),
    *(json.dumps(text).encode() for text in ("*", "#", "+", "+/#", "a/#/b", "/", "//", "hub:")),
    *(json.dumps(text).encode() for text in ("hub:send", "hub:connect", "hub:disconnect")),
    *(json.dumps(text).encode() for text in (VICTIM, ATTACKER, "@(cloudflare/signal-hub)")),
    *(json.dumps(text).encode() for text in (LOGGED, "graves", "earliest", "latest", "shared")),
    *(json.dumps(text).encode() for text in ("tell", "ask", "TELL", "0", "0.1.0", "1.0", "-0")),
    json.dumps("é\U0001f600\u2028\ufffd", ensure_ascii=False).encode(),
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'"\\u0000\\u001f\\"\\\\\\/"',
    b'"' + b"x" * 255 + b'"',
    b'"' + b"x" * 256 + b'"',
    b'"' + b"x" * 257 + b'"',
    b'"' + b"/" * 256 + b'"',
    b'"' + b"*a" * 128 + b'"',
    b'"@(' + b"y" * 5_000 + b')"',
    b'["x","y","z"]',
    b"[" + b",".join([b'"c"'] * 65) + b"]",
    b'{"traceId":1e999,"via":{"via":1},"targetCapability":"x"}',
    b'{"protocolVersion":"0.1.0","capabilities":["x"]}',
]

# Text that is out of place wherever it is put.
ODD_TEXT = [
    *(b'{ } [ ] : , " \\ \\u \\ud800 / * + # @( ) hub: null 1e999 NaN Infinity - .'.split()),
    b'":"',
    b'","',
    b"}{",
    b"\x00",
    b"\x7f",
    b"\xc3\xa9",
    b"\xf0\x9f\x98\x80",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",
    b" \t\r\n",
    b'"via"',
    b'"traceId"',
    b'"targetCapability"',
    b'"originalMessageId":',
]

# Inputs that did harm once, by what they were sent to. They come first in every shard.
FOUND_PARCELS: list[tuple[bytes, dict[str, Any], str, bytes]] = [
    (b"\x81\xa5actor\xa2\xff\xff", {}, "actors:mark", b"{}"),
    (b"\x81\xa5inbox" + b"\x91" * 3_000, {}, "actors:mark", b"{}"),
]
FOUND_TOKENS: list[tuple[str, bytes | None]] = []
FOUND_LISTS: list[bytes] = []
_SHORT, _LONG = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"PUT / HTTP/1.1\r\nA: "
FOUND_REQUESTS: list[list[bytes]] = [
    [_LONG + b"b" * 40_000 + b"\r\n\r\n"],  # A head is much too long.
    [_SHORT + _LONG, b"b" * 3_000, b"b" * 13_370],  # A head that is not finished is near its limit.
]
_MESSAGE = b"\x81\x82\0\0\0\0{}"
FOUND_FRAMES: list[list[bytes]] = [
    [b"\x88\x83\0\0\0\0\x0b\xb8\xff", _MESSAGE],  # The reason of a close is no text.
    [b"\x81\xfe\x4e\x21\0\0\0\0", b"c" * 20_001, _MESSAGE],  # A frame is too long.
    [b"\x81\x02{}", _MESSAGE],  # A frame is not masked.
]
