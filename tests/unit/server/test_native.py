"""What the native part hands over, and what happens if it fails."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from signalhub import native
from signalhub.core import requests
from signalhub.core.messages.dedup import plain_fingerprint
from signalhub.server.sockets import native as sockets
from signalhub.wire import envelope as wire
from signalhub.wire.entry import MessageBody, encode_body
from signalhub.wire.frames import Opcode, text_frames
from tests.fuzz.tells import Tells as Kind
from tests.fuzz.twins import SENDER, TARGETS, Kernel, Twins
from tests.support.memory.shell import envelope
from tests.support.socket.frames import CLOSE, PING, TEXT, FrameReader, masked_frame
from tests.support.socket.stage import run_stage
from tests.support.volume import volume
from tools.native import CRATE

if native.IS_ON:
    from signalhub_native import Ask, Reader, Tells, send_joined
else:
    pytest.skip("needs the native part", allow_module_level=True)

VICTIM, OTHER, _ = TARGETS
_MANY = volume(200, 2_000)


def tell(number: int, to: str = VICTIM, sender: str = SENDER, **members: Any) -> bytes:
    """A frame with a usual tell."""
    payload = {"to": to, "type": "news", "data": number}
    members.setdefault("pattern", "tell")
    text = envelope("hub:send", payload, id=f"m{number}", sender=sender, **members)
    return masked_frame(TEXT, text)


def read(*frames: bytes, units: int = 1_000) -> list[Any]:
    return Reader(2**20, 2**16).read(b"".join(frames), units, 1)[0]


def ids_of(item: Tells | Ask | bytes) -> list[str]:
    messages = [item] if isinstance(item, bytes) else item.messages()
    return [wire.decode(message).id for message in messages]


@pytest.fixture
def twins() -> Iterator[Twins]:
    kernel = Kernel()
    with kernel.in_place():
        yield Twins(Kind(), 0, kernel)


def test_a_run_holds_the_tells_to_one_target() -> None:
    first, second = read(tell(1), tell(2, OTHER), tell(3))

    assert (first.sender, first.to, first.count) == (SENDER, VICTIM, 2)
    assert (second.to, second.count) == (OTHER, 1)
    assert ids_of(first) == ["m1", "m3"]


def test_what_is_sent_to_one_target_stays_in_order_whoever_it_is_from() -> None:
    items = read(tell(1), tell(2, sender="@(fuzz/second)"), tell(3))

    assert [ids_of(item) for item in items] == [["m1"], ["m2"], ["m3"]]


def test_an_ask_is_a_run_by_itself() -> None:
    first, one, other, last = read(tell(1), tell(2, pattern="ask"), tell(3, pattern="ask"), tell(4))

    assert (ids_of(first), ids_of(last)) == (["m1"], ["m4"])
    assert isinstance(one, Ask)
    assert isinstance(other, Ask)
    assert (one.sender, one.to, one.id, one.deadline) == (SENDER, VICTIM, "m2", None)
    assert (other.id, other.count, ids_of(*other.messages())) == ("m3", 1, ["m3"])


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"ttl": 0},
        {"ttl": 60_000, "timestamp": 17},
        {"metadata": {"a": [1], "b": "ä"}},
        {"metadata": None},
    ],
)
def test_an_ask_becomes_the_same_entry_copy_and_answer_as_in_python(members: Any) -> None:
    (ask,) = read(tell(7, pattern="ask", **members))
    message = wire.decode(ask.messages()[0])
    request = requests.parse(requests.SendRequest, message.payload)
    metadata, ttl, copy_id = message.metadata, message.ttl, b"c" * 36
    expires_at = None if not ttl else int(message.timestamp + ttl) + 5
    stored = MessageBody(
        message.id, copy_id, SENDER, "news", bytes(request.data), bytes(metadata), ttl or None
    )
    stored.expires_at = expires_at
    sender, to, data = wire.encode(SENDER), wire.encode(OTHER), request.data
    copy = wire.forwarded(copy_id, message, sender, to, "news", data, 99, metadata)
    answer = wire.from_hub(
        message_id=b"a" * 36,
        type="hub:delivery_ack",
        to=SENDER,
        payload=b'{"messageId":"m7","status":1}',
        now_ms=99,
        correlation_id="m7",
    )

    assert ask.key() == plain_fingerprint(SENDER, "m7")
    assert ask.body(copy_id, expires_at) == encode_body(stored)
    assert Ask.copies([ask], copy_id, [to], 99) == [copy]
    (framed,) = Ask.answers([ask], b"a" * 36, [b',"status":1'], 99)
    assert list(text_frames(framed)) == [answer]


@pytest.mark.parametrize(
    "odd",
    [
        *(b'"metadata":{ "a":1}', b'"metadata":{ }', b'"metadata":{"via":1}', b'"metadata":7'),
        *(b'"ttl":1.5', b'"ttl":-1', b'"signature":"x"'),
    ],
)
def test_an_ask_that_is_not_usual_is_for_python(odd: bytes) -> None:
    name = odd.split(b":")[0]
    text = envelope("hub:send", {"to": VICTIM, "type": "news"}, id="m1", sender=SENDER, ttl=1)
    changed = re.sub(name + rb":(\{\}|null|1)", odd.replace(b"\\", b""), text)
    assert changed != text

    assert read(masked_frame(TEXT, changed)) == [changed]


def test_a_repeat_of_an_ask_on_another_socket_is_answered_there_too(twins: Twins) -> None:
    data = tell(7, OTHER, pattern="ask")
    heard = []
    for way in (twins.native, twins.python):
        for address in (SENDER, VICTIM):
            way.heard(address)
            way.feed(way.wires[address], data)
        way.loop.run_dry()
        heard.append([way.heard(SENDER), way.heard(VICTIM)])

    assert heard[0] == heard[1]
    assert b'"duplicate":true' not in heard[0][0]
    assert b'"duplicate":true' in heard[0][1]


def test_a_message_that_is_no_usual_tell_ends_all_runs() -> None:
    items = read(tell(1), tell(2, OTHER), tell(3, ttl=0.5), tell(4), masked_frame(PING))

    assert [ids_of(item) for item in items[:4]] == [["m1"], ["m2"], ["m3"], ["m4"]]
    assert items[4] == (Opcode.PING, True, False, b"")


def test_each_copy_gets_its_own_id() -> None:
    (run,) = read(*(tell(number) for number in range(3)))
    ids = [b"%036d" % number for number in range(3)]

    copies = text_frames(run.copies(b"".join(ids), b'"s"', b'"t"', 5))

    assert [re.findall(rb'"(?:id|originalMessageId)":"([^"]*)"', copy) for copy in copies] == [
        [ids[number], b"m%d" % number] for number in range(3)
    ]


@pytest.mark.parametrize("space", [b"", b" ", b"\n\t  "])
@pytest.mark.parametrize("name", [b"data", b"timestamp"])
def test_white_space_before_a_value_moves_nothing(name: bytes, space: bytes) -> None:
    usual = envelope("hub:send", {"data": 1, "to": VICTIM, "type": "news"}, pattern="tell")
    spaced = usual.replace(b'"%b":' % name, b'"%b":%b' % (name, space))

    (run,) = read(masked_frame(TEXT, usual), masked_frame(TEXT, spaced))
    first, second = text_frames(run.copies(b"0" * 72, b'"s"', b'"t"', 5))

    assert first == second


def test_members_that_only_the_hub_may_add_are_known() -> None:
    source = (CRATE / "src" / "envelope.rs").read_text()
    listed = re.search(r"OURS: \[[^=]*= \[(.*?)\];", source, re.DOTALL)

    assert listed is not None
    assert set(re.findall(r'\\"(\w+)\\"', listed[1])) == wire._OURS


def test_messages_before_a_violation_are_handled() -> None:
    items = read(tell(1), tell(2, ttl=0.5), b"\x81\x02{}")

    assert [ids_of(item) for item in items[:2]] == [["m1"], ["m2"]]
    assert items[2][0] == 1002


def test_nothing_is_read_after_a_violation() -> None:
    reader = Reader(2**20, 2**16)

    (violation,), *_ = reader.read(b"\x81\x02{}", 1, 1)
    assert violation == (1002, "frames of a client must be masked")
    assert reader.read(tell(1) * _MANY, 1_000, 1)[0] == []
    assert reader.held_bytes < 5_000


def test_a_violation_is_not_lost_while_messages_wait(twins: Twins) -> None:
    for way in (twins.native, twins.python):
        wire = way.wires[SENDER]
        wire.connection._wait(0.0)
        wire.is_reading = True
        way.read([b"\x81\x02{}"])

        told = FrameReader().feed(bytes(wire.heard))
        assert [frame.payload[:2] for frame in told if frame.opcode == CLOSE] == [b"\x03\xea"]


class Broken(Reader if False else object):  # type: ignore[misc]
    """A run whose copies cannot be made."""

    def __init__(self, run: Tells) -> None:
        self._run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def copies(self, *_: object) -> bytes:
        raise RuntimeError("the native part has panicked")


def test_a_run_that_fails_is_handled_message_by_message(
    twins: Twins, caplog: pytest.LogCaptureFixture
) -> None:
    way = twins.native
    (run,) = read(tell(1), tell(2))
    connection: Any = way.wires[SENDER].connection

    connection._handle_run(Broken(run))
    way.loop.run_dry()

    assert bytes(way.wires[VICTIM].heard).count(b'"originalMessageId"') == 2
    assert [record.message for record in caplog.records] == ["a run could not be handled"]


class Failing:
    """A reader that fails on one message."""

    def __init__(self, frame_bytes_max: int, run_bytes_max: int) -> None:
        self._reader = Reader(frame_bytes_max, run_bytes_max)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def read(self, data: bytes, units: int, share: int) -> Any:
        found = self._reader.read(data, units, share)
        if any(type(item) is bytes and b"fail here" in item for item in found[0]):
            raise RuntimeError("the native part has panicked; stderr says where")
        return found


async def test_if_the_native_part_fails_only_that_socket_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sockets, "Reader", Failing)
    async with run_stage() as stage:
        one, other = await stage.join("@(one/actor)"), await stage.join("@(other/actor)")

        one.send("hub:heartbeat", {"why": "fail here"})
        await one.until_closed()
        other.tell("@(other/actor)", "note", 1)

        assert (await other.receive("note"))["payload"] == 1
        again = await stage.join("@(one/actor)")
        again.tell("@(other/actor)", "note", 2)
        assert (await other.receive("note"))["payload"] == 2
    assert any("the native part has panicked" in str(record.exc_info) for record in caplog.records)


def test_frames_for_many_sockets_differ_in_the_address_only() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    pieces, addresses = [b"<1 ", b"><2 ", b">"], [b"a/1", b"b/2", b"c/3"]
    assert send_joined(pieces, [one.fileno() for one, _ in pairs], addresses) == []
    for (one, other), address in zip(pairs, addresses, strict=True):
        assert other.recv(100) == address.join(pieces)
        one.close()
        other.close()


def test_who_does_not_take_everything_or_is_gone_is_reported() -> None:
    (full, slow), (lost, gone), (open_, other) = (socket.socketpair() for _ in range(3))
    gone.close()
    large = [b"x" * 2**20, b"y"]
    short = send_joined(large, [full.fileno(), lost.fileno()], [b"1", b"2"])
    assert [at for at, _ in short] == [0, 1]
    taken, broken = short[0][1], short[1][1]
    assert 0 < taken < 2**20
    assert broken == -1
    fds = [full.fileno(), open_.fileno()]
    full.setblocking(False)
    while True:
        try:
            full.send(b"x" * 2**16)
        except BlockingIOError:
            break
    assert send_joined([b"<", b">"], fds, [b"1", b"2"]) == [(0, 0)]
    assert other.recv(10) == b"<2>"
    for one in (full, slow, lost, open_, other):
        one.close()


def test_addresses_of_different_lengths_are_refused() -> None:
    one, other = socket.socketpair()
    with pytest.raises(ValueError, match="same length"):
        send_joined([b"<", b">"], [one.fileno()] * 2, [b"1", b"22"])
    with pytest.raises(ValueError, match="for each socket"):
        send_joined([b"<", b">"], [one.fileno()] * 2, [b"1"])
    one.close()
    other.close()
