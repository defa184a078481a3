"""The codec: whatever strings a sender uses, what leaves is valid, complete and faithful."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from time import process_time
from typing import Any, NoReturn

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec import Raw

from signalhub.wire import envelope as wire
from signalhub.wire.envelope import Envelope, NotEnvelope, NotJson
from signalhub.wire.names import HUB_ADDRESS, is_address
from tests.support.memory.shell import MEMBERS

NOW = 1_760_000_000_000
MESSAGE_ID = b"00000000-0000-4000-a000-000000000001"
OVERRIDDEN = {"forwarded": True, "via": HUB_ADDRESS}
# Members of metadata that only the hub writes.
OURS = (
    *("via", "forwarded", "originalMessageId", "delivery", "publication", "broadcast"),
    *("replay", "deadLetter", "original", "redriven"),
)

text = st.text(max_size=20)
addresses = st.text(min_size=1, max_size=20).map("@({})".format)
types = st.text(min_size=1, max_size=20)
ttls = st.one_of(st.none(), st.integers(0, 10**9), st.floats(0.001, 1e9))
spaces = st.sampled_from(["", "", "", " ", "\n", "\t \r\n"])


@st.composite
def spelled_strings(draw: st.DrawFn, values: st.SearchStrategy[str] = text) -> str:
    """A JSON string in one of its many spellings."""
    spelled = ['"']
    for character in draw(values):
        plain = json.dumps(character, ensure_ascii=False)[1:-1]
        escaped = json.dumps(character)[1:-1]
        as_unit = f"\\u{ord(character):04x}" if ord(character) < 0x10000 else escaped
        spelled.append(draw(st.sampled_from([plain, escaped, as_unit])))
    return "".join([*spelled, '"'])


numbers = st.one_of(
    st.integers(-(10**25), 10**25).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["0", "-0", "0.0", "-0.0e-0", "1E5", "1e+5", "2.50", "1e999", "-1e-999"]),
)
scalars = st.one_of(st.sampled_from(["null", "true", "false"]), numbers, spelled_strings())


def listed(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda items, space: "[" + f"{space},{space}".join(items) + space + "]",
        st.lists(children, max_size=4),
        spaces,
    )


def keyed(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    keys = spelled_strings(st.one_of(text, st.sampled_from(OURS)))
    return st.builds(
        lambda pairs, space: (
            "{" + space + ",".join(f"{key}{space}:{space}{one}" for key, one in pairs) + space + "}"
        ),
        st.lists(st.tuples(keys, children), max_size=4),
        spaces,
    )


json_texts = st.recursive(scalars, lambda inner: listed(inner) | keyed(inner), max_leaves=8)
metadata_texts = st.one_of(keyed(json_texts), json_texts)


def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def read(frame: bytes) -> dict[str, Any]:
    """Read a frame as a strict stranger would: the standard library, UTF-8, no NaN."""
    message = json.loads(frame.decode(), parse_constant=refuse)
    assert isinstance(message, dict)
    assert message.keys() == MEMBERS
    return message


class RawMembers(msgspec.Struct):
    """The two members that travel as bytes."""

    payload: Raw
    metadata: Raw


def raw_members(frame: bytes) -> RawMembers:
    return msgspec.json.decode(frame, type=RawMembers)


def send_frame(data: str, metadata: str, sender: str, message_id: str, ttl: object) -> bytes:
    """A `hub:send` written by hand, so that payload and metadata keep their spelling."""
    members = {
        "id": message_id,
        "from": sender,
        "to": HUB_ADDRESS,
        "type": "hub:send",
        "pattern": "tell",
        "correlationId": None,
        "timestamp": NOW,
        "ttl": ttl,
        "signature": None,
    }
    head = json.dumps(members, ensure_ascii=False)[:-1]
    return f'{head},"metadata":{metadata},"payload":{data}}}'.encode()


@given(json_texts, metadata_texts, addresses, addresses, types, text, ttls)
@example('"\\u0000"', '{"\\u0076ia":1}', '@("\\)', "@(\u2028)", "\U0001f600", '"', 0)
@example("1", '{ "via" : 1e999 }', "@(a)", "@(b)", "t", "m", 1)
@example("1", '{"via":{"via":"via"},"x":"\\"via\\""}', "@(a)", "@(b)", "t", "m", None)
@example("1", '{"deli\\u0076ery":{"seq":9},"x":{"replay":1}}', "@(a)", "@(b)", "t", "m", None)
def test_a_forwarded_copy_is_valid_complete_and_faithful(
    data: str, metadata: str, sender: str, to: str, type: str, message_id: str, ttl: float | None
) -> None:
    frame = send_frame(data, metadata, sender, message_id, ttl)
    message = wire.decode(frame)

    copy = wire.forwarded(
        MESSAGE_ID,
        message,
        wire.encode(sender),
        wire.encode(to),
        type,
        message.payload,
        NOW,
        message.metadata,
    )

    seen = read(copy)
    assert (seen["from"], seen["to"], seen["type"]) == (sender, to, type)
    assert (seen["id"], seen["pattern"], seen["correlationId"]) == (
        MESSAGE_ID.decode(),
        "tell",
        None,
    )
    assert seen["ttl"] == (ttl or None)
    assert bytes(raw_members(copy).payload) == data.encode()
    sent = json.loads(metadata)
    kept = sent if isinstance(sent, dict) else {}
    kept = {name: value for name, value in kept.items() if name not in OURS}
    assert seen["metadata"] == kept | OVERRIDDEN | {"originalMessageId": message_id}


@given(keyed(json_texts))
def test_metadata_without_the_hubs_own_members_is_passed_on_byte_for_byte(metadata: str) -> None:
    assume(json.loads(metadata).keys().isdisjoint(OURS))
    message = wire.decode(send_frame("1", metadata, "@(a)", "m", None))

    copy = wire.forwarded(
        MESSAGE_ID, message, b'"@(a)"', b'"@(b)"', "t", message.payload, NOW, message.metadata
    )

    inner = metadata[1:-1].strip().encode()
    assert bytes(raw_members(copy).metadata).startswith(b"{" + inner)


@pytest.mark.parametrize("size", [1, 5_000, 100_000])
@pytest.mark.parametrize("name", [*OURS, "repl\\u0061y", "\\u0076ia", "mine"])
def test_long_metadata_says_nothing_in_the_name_of_the_hub(name: str, size: int) -> None:
    metadata = f'{{"long":"{"x" * size}","{name}":{{"seq":9}},"deep":{{"via":1}}}}'
    message = wire.decode(send_frame("1", metadata, "@(a)", "m", None))

    copy = wire.forwarded(
        MESSAGE_ID, message, b'"@(a)"', b'"@(b)"', "t", message.payload, NOW, message.metadata
    )

    kept = {"long": "x" * size, "deep": {"via": 1}} if size < 2**16 or name == "mine" else {}
    mine = {"mine": {"seq": 9}} if name == "mine" else {}
    assert read(copy)["metadata"] == kept | mine | OVERRIDDEN | {"originalMessageId": "m"}


@given(json_texts, addresses, addresses, types, text, text, ttls)
def test_every_copy_of_a_publication_is_valid_complete_and_faithful(
    data: str, sender: str, to: str, type: str, topic: str, message_id: str, ttl: float | None
) -> None:
    head, tail = wire.copies(
        message_id=MESSAGE_ID,
        sender=sender,
        type=type,
        data=Raw(data.encode()),
        now_ms=NOW,
        correlation_id=message_id,
        metadata=wire.publication_metadata(topic),
        ttl=ttl,
    )

    copy = head + wire.encode(to) + tail

    seen = read(copy)
    assert (seen["from"], seen["to"], seen["type"]) == (sender, to, type)
    assert seen["correlationId"] == message_id
    assert seen["ttl"] == (ttl or None)
    assert seen["metadata"] == {"topic": topic, "publication": True, "via": HUB_ADDRESS}
    assert bytes(raw_members(copy).payload) == data.encode()


@given(text, text, st.one_of(st.none(), text), json_texts)
def test_a_message_of_the_hub_is_valid_and_complete(
    type: str, to: str, correlation_id: str | None, payload: str
) -> None:
    frame = wire.from_hub(
        message_id=MESSAGE_ID,
        type=type,
        to=to,
        payload=payload.encode(),
        now_ms=NOW,
        correlation_id=correlation_id,
    )

    seen = read(frame)
    assert (seen["type"], seen["to"], seen["correlationId"]) == (type, to, correlation_id)
    assert (seen["from"], seen["pattern"], seen["timestamp"]) == (HUB_ADDRESS, "tell", NOW)
    assert (seen["metadata"], seen["ttl"], seen["signature"]) == ({}, None, None)


@given(text, text, addresses, json_texts, json_texts, ttls)
def test_decoding_gives_back_what_was_sent(
    message_id: str, correlation_id: str, sender: str, data: str, metadata: str, ttl: float | None
) -> None:
    frame = send_frame(data, metadata, sender, message_id, ttl)

    message = wire.decode(frame)

    assert (message.id, message.sender, message.ttl) == (message_id, sender, ttl)
    assert bytes(message.payload) == data.encode()
    assert bytes(message.metadata) == metadata.encode()
    assert wire.is_object(message.metadata) is isinstance(json.loads(metadata), dict)


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """A frame cut, doubled or sprinkled with foreign text, still valid UTF-8."""
    frame = send_frame(draw(json_texts), draw(json_texts), "@(a)", "m", None).decode()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(frame)))
        until = draw(st.integers(at, min(len(frame), at + 30)))
        foreign = draw(st.one_of(st.just(""), st.just(frame[at:until] * 2), text, scalars))
        frame = frame[:at] + foreign + frame[until:]
    return frame.encode()


@pytest.mark.parametrize("space", [b"", b" " * 5_000], ids=["short", "long"])
@given(st.one_of(mangled(), json_texts.map(str.encode), st.text().map(str.encode)))
@example(b'"\\ud800"')
@example(b'["\\\\ud800", "\\udbff\\udfff", 1e999, {"a": "\\uD83d\\u0041"}]')
@example(b'{"id":"\\udc00","from":"@(a)"}')
@example(b"\xef\xbb\xbf{}")
@example(b"{\x00}\x00")
@example(b'{"id":NaN}')
@example(b"-")
def test_a_frame_is_an_envelope_or_json_or_neither_as_a_stranger_would_say(
    space: bytes, frame: bytes
) -> None:
    frame = space + frame
    try:
        json.loads(frame.decode(), parse_constant=refuse, parse_int=float)
        is_json = True
    except ValueError:
        is_json = False

    try:
        message: Envelope | None = wire.decode(frame)
    except NotJson:
        assert not is_json
        return
    except NotEnvelope as fault:
        message = None
        for salvaged in (fault.sender, fault.message_id):
            assert salvaged is None or salvaged.encode()
    assert is_json
    assert message is None or message.pattern in ("tell", "ask")


def fastest_s(work: Callable[[], object]) -> float:
    found = []
    for _ in range(5):
        began_s = process_time()
        with contextlib.suppress(NotJson, NotEnvelope):
            work()
        found.append(process_time() - began_s)
    return min(found)


@pytest.mark.parametrize("form", ["[%s]", '{"from":1,"a":[%s]}', '{"a":[%s'])
def test_a_long_frame_that_cannot_be_used_costs_about_as_much_as_one_that_can(form: str) -> None:
    objects = ",".join(["{}"] * 300_000)
    frame = send_frame(f"[{objects}]", "{}", "@(a)", "m", None)
    useless = (form % objects).encode()

    assert fastest_s(lambda: wire.decode(useless)) < 8 * fastest_s(lambda: wire.decode(frame))


@pytest.mark.parametrize("depth", [100, 900, 950, 980, 990, 1_000, 2_000, 100_000])
@pytest.mark.parametrize("member", ["payload", "metadata"])
def test_deep_nesting_is_refused_or_forwarded_but_never_raises(depth: int, member: str) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    data, metadata = (deep, "{}") if member == "payload" else ("1", deep)
    try:
        message = wire.decode(send_frame(data, metadata, "@(a)", "m", None))
    except NotJson:
        assert depth > 500
        return

    copy = wire.forwarded(
        MESSAGE_ID, message, b'"@(a)"', b'"@(b)"', "t", message.payload, NOW, message.metadata
    )

    assert deep[1:-1].encode() in copy


@given(addresses)
def test_an_address_survives_the_codec(address: str) -> None:
    assert msgspec.json.decode(wire.encode(address)) == address
    assert is_address(address) is address.isprintable()
