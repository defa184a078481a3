"""The truth table of lag: what is to be shown, and whether there is anything to read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.memory.shell import MemoryShell, Message, Peer


def publish(peer: Peer, count: int) -> None:
    for number in range(count):
        payload = {"topic": "t", "type": "news", "data": number, "durable": True}
        reply = peer.ask("hub:publish", payload)
        assert reply["type"] == "hub:published", reply


def subscribe(peer: Peer, start: Any = "earliest", **options: Any) -> Message:
    payload = {"topic": "t", "subscription": "s", "from": start} | options
    return peer.ask("hub:subscribe", payload)


def info(peer: Peer) -> Message:
    reply = peer.ask("hub:sub_info", {"topic": "t", "subscription": "s"})
    payload: Message = reply["payload"]
    return payload


@pytest.mark.parametrize(
    ("before", "start", "after", "acked", "floor", "lag"),
    [
        pytest.param(0, "earliest", 0, [], 0, 0, id="an empty log"),
        pytest.param(3, "earliest", 0, [], 0, 3, id="three, from the earliest"),
        pytest.param(100, "latest", 0, [], 100, 0, id="a hundred, from the latest"),
        pytest.param(100, "latest", 1, [], 100, 1, id="from the latest, one since"),
        pytest.param(1, "earliest", 0, [1], 1, 0, id="the only one is acked"),
        pytest.param(5, "earliest", 0, [1], 1, 4, id="the first of five"),
        pytest.param(5, "earliest", 0, [1, 2, 3, 4, 5], 5, 0, id="all five"),
        pytest.param(10, "earliest", 0, [1, 2, 3, 4, 5, 6], 6, 4, id="six of ten"),
        pytest.param(5, "earliest", 0, [3, 5], 0, 3, id="with gaps"),
        pytest.param(5, "earliest", 0, [2, 3, 1], 3, 2, id="out of order"),
        pytest.param(9, {"seq": 4}, 0, [], 3, 6, id="from a position"),
        pytest.param(9, {"last": 2}, 0, [], 7, 2, id="the last two"),
    ],
)
def test_the_lag_is_what_is_not_settled(
    before: int, start: object, after: int, acked: list[int], floor: int, lag: int
) -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    writer.ask("hub:topic_create", {"topic": "t", "durable": True})
    publish(writer, before)

    name = subscribe(reader, start)["payload"]["subscriptionId"]
    publish(writer, after)
    for seq in acked:
        reader.ask("hub:ack", {"subscriptionId": name, "seq": seq})

    shown = info(writer)
    assert (shown["floor"], shown["lag"], shown["head"]) == (floor, lag, before + after)
    assert len(reader.heard()) == before + after - (floor if not acked else 0)


def test_lag_is_shown_while_nobody_reads() -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    publish(writer, 2)
    subscribe(reader)
    reader.drop()

    publish(writer, 5)

    assert info(writer)["lag"] == 7
    assert info(writer)["inFlight"] == 0


def test_a_subscription_at_the_latest_stays_caught_up_over_a_restart() -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    publish(writer, 100)
    subscribe(reader, "latest")

    again = shell.restarted()
    writer = again.connect("@(a/writer)")

    assert info(writer)["lag"] == 0
    publish(writer, 1)
    assert info(writer)["lag"] == 1
    assert info(writer)["floor"] == 100


def test_what_retention_removed_is_reported_and_no_longer_lag() -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    publish(writer, 1)
    name = subscribe(reader)["payload"]["subscriptionId"]
    reader.ask("hub:ack", {"subscriptionId": name, "seq": 1})
    reader.drop()
    publish(writer, 99)
    topic = shell.hub.streams.topics["t"]
    cut = next(one for one in shell.engine.entries if one.stream == "t" and one.seq == 51)
    topic.recent.clear()

    shell.engine.cut(cut.offset)
    reader = shell.connect("@(a/reader)")
    subscribe(reader)

    shown = info(writer)
    assert (shown["lag"], shown["floor"], shown["lost"], shown["first"]) == (50, 50, 49, 51)
    assert shell.tally.lost == 49
    assert reader.heard()[0]["metadata"]["delivery"]["seq"] == 51
    assert [note.facts["lost"] for note in shell.notes] == [49]
