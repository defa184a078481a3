"""Retention: what it gives up, what it must not, and what the log needs before it is cut."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.core import refusals
from signalhub.core.effects import FindTime
from signalhub.server.startup import window_of
from signalhub.settings.model import LogSettings, Settings
from tests.support.memory.engine import Shelf
from tests.support.memory.shell import MemoryShell, Peer
from tests.support.memory.topics import (
    NAMED,
    commit_all,
    create,
    publish,
    seqs,
    subscribe,
    subscription_of,
    topic_of,
    working,
)

MEGABYTE = 2**20


def filled(shell: MemoryShell, count: int = 5, **definition: Any) -> Peer:
    writer = shell.connect("@(a/writer)")
    create(writer, **definition)
    for _ in range(count):
        publish(writer)
    return writer


def test_retention_keeps_what_is_young_and_everything_while_the_log_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = MemoryShell()
    writer = filled(shell, 3, retention={"ageSeconds": 10})
    shell.clock.advance(60)
    publish(writer)
    monkeypatch.setattr(shell.engine, "find_time", lambda find, done: done(None))

    shell.perform(shell.hub.retention.expire_topics(shell.now))
    assert topic_of(shell).first == 1
    monkeypatch.undo()
    shell.perform(shell.hub.retention.expire_topics(shell.now))

    assert topic_of(shell).first == 4


def test_a_topic_may_keep_its_messages_longer_than_times_reach() -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    create(writer, retention={"ageSeconds": 1e306})
    publish(writer)

    (find,) = shell.hub.retention.expire_topics(shell.now)

    assert isinstance(find, FindTime)
    assert find.time_ms == 0


@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_cut_ends_at_the_head_and_is_not_of_a_topic_made_again(is_made_again: bool) -> None:
    shell = MemoryShell()
    writer = filled(shell, 3)
    old = topic_of(shell).id
    if is_made_again:
        writer.ask("hub:topic_delete", {"topic": "t"})
        create(writer)
    reader = shell.connect("@(a/reader)")
    subscribe(reader)
    reader.take()

    shell.perform(shell.hub.retention.cut({old: 40}, shell.now))
    publish(writer)

    assert topic_of(shell).first == (1 if is_made_again else 4)
    assert seqs(reader) == [topic_of(shell).first]


def test_what_retention_removed_is_reported_and_no_longer_lag() -> None:
    shell = MemoryShell()
    writer, reader = working(shell, 1)
    reader.ask("hub:ack", NAMED | {"seq": 1})
    reader.drop()
    for _ in range(99):
        publish(writer)
    cut = next(one for one in shell.engine.entries if one.stream == "t" and one.seq == 51)
    topic_of(shell).recent.clear()

    shell.engine.cut(cut.offset)
    reader = shell.connect("@(a/reader)")
    subscribe(reader)

    shown = writer.ask("hub:sub_info", NAMED)["payload"]
    assert (shown["lag"], shown["floor"], shown["lost"], shown["first"]) == (50, 50, 49, 51)
    assert shell.tally.lost == 49
    assert seqs(reader)[0] == 51
    assert [note.facts["lost"] for note in shell.notes] == [49]


def test_nothing_may_be_cut_until_all_anchors_of_a_stream_are_on_disk() -> None:
    shell = MemoryShell()
    filled(shell, 1)
    reader = shell.connect("@(a/reader)")
    subscribe(reader)
    reader.drop()
    shell.engine.is_prompt = False
    before = shell.hub.anchors.anchored()

    shell.perform(shell.hub.anchors.anchor(shell.engine.head, shell.now))
    shell.engine.commit(1)
    shell.engine.refuse(refusals.storage_full())
    commit_all(shell)

    assert shell.hub.anchors.anchored() == before
    check_after_cut(shell)


def test_a_log_cut_up_to_its_anchors_still_defines_everything() -> None:
    shell = MemoryShell()
    writer = filled(shell, 1, deadLetter="dead")
    reader = shell.connect("@(a/reader)")
    subscribe(reader, ackTimeoutMs=1_234)
    reader.ask("hub:ack", NAMED | {"seq": 1})
    writer.ask("hub:purge", {"topic": "t", "seqs": [1]})
    end = shell.engine.head

    shell.perform(shell.hub.anchors.anchor(end, shell.now))

    assert shell.hub.anchors.anchored() >= end
    again = check_after_cut(shell)
    assert subscription_of(again).definition.ack_timeout_ms == 1_234
    assert subscription_of(again).position.floor == 1
    assert (topic_of(again).head, list(topic_of(again).removed)) == (1, [(1, 1)])


def check_after_cut(shell: MemoryShell) -> MemoryShell:
    """Delete as much of the log as may be, and the snapshots, too."""
    shell.engine.cut(shell.hub.anchors.anchored())
    shell.shelf = Shelf()
    again = shell.restarted()
    assert list(topic_of(again).subscriptions) == ["s"]
    return again


def test_retention_by_bytes_counts_what_earlier_processes_wrote() -> None:
    shell = MemoryShell(Settings(message_rate=0.0))
    writer = shell.connect("@(a/writer)")
    create(writer, retention={"bytes": 2 * MEGABYTE})
    for _ in range(4):
        for _ in range(15):
            publish(writer, "y" * 100_000)
        shell.save_snapshot()
        shell = shell.restarted()
        writer = shell.connect("@(a/writer)")
        shell.perform(shell.hub.retention.expire_topics(shell.now))

    topic = topic_of(shell)
    assert topic.head == 60
    assert 20 <= topic.head - topic.first + 1 <= 32


def test_a_snapshot_that_cannot_be_decoded_is_made_again_from_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shell = MemoryShell()
    filled(shell, 3)
    shell.save_snapshot()
    spoiled = dict.fromkeys(shell.shelf._streams, b"\xc1\xff")
    shell.shelf._streams.update(spoiled)

    again = shell.restarted()

    assert topic_of(again).head == 3
    assert "snapshot" in caplog.text
    assert again.shelf.load_snapshot(again.now, window_of(again.hub.settings)) is None


def test_a_lagging_subscription_reads_no_further_ahead_than_its_window() -> None:
    shell = MemoryShell(Settings(log=LogSettings(cache_bytes=1), message_rate=0.0))
    writer = filled(shell, 300)
    readers = [shell.connect(f"@(a/{number})") for number in range(3)]
    for reader, window in zip(readers, (1, 10, 100), strict=True):
        subscribe(reader, name=f"w{window}", window=window)
        shell.pass_time(1)

        backlog = subscription_of(shell, name=f"w{window}").backlog
        assert len(backlog._ahead) <= window + 16
        assert len(seqs(reader)) == window
    assert publish(writer) == 301
