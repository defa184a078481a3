"""Publishes that are read from several sockets one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from signalhub import native
from signalhub.core.effects import Append, AppendRun
from signalhub.server.sockets.native import NativeConnection
from signalhub.settings.model import OutboundSettings, Settings
from signalhub.wire.envelope import decode
from tests.fuzz.publishes import Crowd
from tests.fuzz.twins import SENDER, TARGETS, Kernel, Way
from tests.support.memory.shell import envelope
from tests.support.socket.frames import CLOSE, TEXT, FrameReader, masked_frame

if not native.IS_ON:
    pytest.skip("needs the native part", allow_module_level=True)

_, SECOND, THIRD, _ = Crowd.senders


@contextmanager
def ways(kind: Crowd) -> Iterator[Way]:
    kernel = Kernel()
    with kernel.in_place():
        way = Way(kind, 0, kernel, is_native=True)
        for address in Crowd.senders:
            # The first message of a session says as whom it speaks, and is handled alone.
            feed(way, (address, publish("first", address, "kept/b")))
            way.loop.run_dry()
            way.heard(address)
        yield way


@pytest.fixture
def way() -> Iterator[Way]:
    with ways(Crowd()) as way:
        yield way


def publish(id: str, sender: str, topic: str = "kept/a") -> bytes:
    payload = {"topic": topic, "type": "news", "data": 1}
    return masked_frame(TEXT, envelope("hub:publish", payload, id=id, sender=sender))


def lookup(sender: str) -> bytes:
    return masked_frame(TEXT, envelope("hub:ping", {}, id="p", sender=sender))


def feed(way: Way, *reads: tuple[str, bytes]) -> None:
    for address, data in reads:
        way.feed(way.wires[address], data)


def appended(way: Way) -> list[Append]:
    """What is added to the log at the end of this pass."""
    found: list[Append] = []
    add = way.engine.append

    def append(one: Append) -> None:
        found.append(one)
        add(one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(way.engine, "append", append)
        way.loop.run_dry()
    return found


def answers(way: Way, address: str) -> list[Any]:
    return [decode(frame.payload) for frame in FrameReader().feed(way.heard(address))]


def seq_of(answer: Any) -> int:
    return int(bytes(answer.payload).partition(b'"seq":')[2].split(b",")[0])


def test_they_are_one_run_and_everyone_is_answered_for_its_own(way: Way) -> None:
    feed(way, (SENDER, publish("a", SENDER)), (SECOND, publish("b", SECOND)))
    feed(way, (THIRD, publish("c", THIRD) + publish("d", THIRD)))

    (one,) = appended(way)

    assert isinstance(one, AppendRun)
    assert one.entry.count == 4
    told = {
        address: [(answer.correlation_id, seq_of(answer)) for answer in answers(way, address)]
        for address in (SENDER, SECOND, THIRD)
    }
    assert told == {SENDER: [("a", 1)], SECOND: [("b", 2)], THIRD: [("c", 3), ("d", 4)]}


def test_those_to_another_topic_are_another_run(way: Way) -> None:
    feed(way, (SENDER, publish("a", SENDER)), (SECOND, publish("b", SECOND, "kept/b")))
    feed(way, (THIRD, publish("c", THIRD)))

    assert [one.entry.stream for one in appended(way)] == ["kept/a", "kept/b", "kept/a"]


def test_a_repeat_is_handled_alone_and_the_others_are_not_lost(way: Way) -> None:
    feed(way, (SENDER, publish("a", SENDER)), (SECOND, publish("a", SENDER)))
    feed(way, (THIRD, publish("c", THIRD)))
    way.loop.run_dry()

    told = {address: answers(way, address) for address in (SENDER, SECOND, THIRD)}
    assert [seq_of(one) for some in told.values() for one in some] == [1, 1, 2]
    assert b'"duplicate":true' in bytes(told[SECOND][0].payload)


def test_what_is_read_after_them_happens_after_them(way: Way) -> None:
    feed(way, (SENDER, publish("a", SENDER)))
    assert not way.hub.pending

    feed(way, (SECOND, lookup(SECOND)))

    assert len(way.hub.pending) == 1


def test_a_fault_in_the_core_is_answered_and_does_not_stop_the_others(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("a fault")

    monkeypatch.setattr(way.hub, "received_publishes", fail)
    feed(way, (SENDER, publish("a", SENDER)), (SECOND, publish("b", SECOND)))
    way.loop.run_dry()

    told = [seq_of(one) for address in (SENDER, SECOND) for one in answers(way, address)]
    assert told == [1, 2]


def test_what_was_sent_before_a_close_is_stored(way: Way) -> None:
    feed(way, (SENDER, publish("a", SENDER)), (SENDER, masked_frame(CLOSE, b"\x03\xe8")))

    way.loop.run_dry()

    assert way.hub.streams.topics["kept/a"].head == 1


def test_a_session_speaks_as_whoever_it_named_last(way: Way) -> None:
    feed(way, (SENDER, publish("a", SECOND)), (SENDER, publish("b", SENDER)))
    way.loop.run_dry()

    assert way.wires[SENDER].connection.session.claimed == SENDER


def test_what_is_gathered_is_handled_before_the_connection_closes_or_begins_a_long_message(
    way: Way,
) -> None:
    reader = TARGETS[0]
    way.say(reader, "hub:subscribe", {"topic": "plain"})
    way.heard(reader)
    wire, parts = way.wires[SENDER], masked_frame(TEXT, b"{")
    begun = bytes([parts[0] & 0x7F]) + parts[1:]

    # Both are read before the tick of the publishes has ended.
    feed(way, (SENDER, publish("a", SENDER, "plain")), (SENDER, begun))
    assert not wire.connection.is_closing
    feed(way, (SECOND, publish("b", SECOND, "plain")))
    feed(way, (SECOND, masked_frame(CLOSE, (1_000).to_bytes(2))))
    way.loop.run_dry()

    assert way.heard(reader).count(b'"publication"') == 2
    assert not wire.connection.is_closing


def test_what_is_gathered_is_handled_before_the_connection_is_lost(way: Way) -> None:
    reader = TARGETS[0]
    way.say(reader, "hub:subscribe", {"topic": "plain"})
    way.heard(reader)

    feed(way, (SENDER, publish("a", SENDER, "plain")))
    connection = way.wires[SENDER].connection
    assert isinstance(connection, NativeConnection)
    connection.connection_lost(None)
    way.loop.run_dry()

    assert way.heard(reader).count(b'"publication"') == 1


class Narrow(Crowd):
    """Connections may hold little."""

    def settings(self, number: int) -> Settings:
        return replace(super().settings(number), outbound=OutboundSettings(bytes_max=16_384))


def test_who_reads_nothing_takes_no_answers_from_others() -> None:
    with ways(Narrow()) as way:
        slow = way.wires[SENDER]
        slow.room = 0
        for turn in range(100):
            many = b"".join(publish(f"{turn}-{one}", SENDER) for one in range(40))
            feed(way, (SENDER, many), (SECOND, publish(f"b{turn}", SECOND)))
            way.loop.run_dry()
            assert len(answers(way, SECOND)) == 1
            assert not way.hub.pending
            if slow.connection.is_closing:
                return
        pytest.fail("it was never too much")
