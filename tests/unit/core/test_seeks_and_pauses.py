"""Seeks and pauses: what was confirmed holds after a kill, whatever else was on its way."""

from __future__ import annotations

import pytest

from tests.support.memory.shell import MemoryShell
from tests.support.memory.topics import (
    NAMED,
    attempts,
    code_of,
    commit_all,
    create,
    position_of,
    seqs,
    subscribe,
    subscription_of,
    topic_of,
    working,
)
from tests.support.memory.turns import TurningShell


def test_an_ack_in_the_turn_of_a_seek_settles_nothing_in_the_new_generation() -> None:
    shell = TurningShell()
    writer, reader = working(shell, 5)
    shell.engine.is_prompt = False
    writer.request("hub:seek", NAMED | {"to": "earliest"})

    with shell.one_turn():
        reader.request("hub:ack", NAMED | {"seq": 3})
        shell.engine.commit()
    commit_all(shell)
    again = shell.restarted()
    again.engine.is_prompt = True
    reader = again.connect("@(a/reader)")
    subscribe(reader)

    assert seqs(reader) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("first", ["hub:seek", "hub:sub_pause"])
def test_a_seek_and_a_pause_on_their_way_together_both_survive_a_kill(first: str) -> None:
    shell = MemoryShell()
    writer, reader = working(shell, 5)
    reader.ask("hub:ack", NAMED | {"upTo": 5})
    shell.engine.is_prompt = False
    payloads = {"hub:seek": NAMED | {"to": "earliest"}, "hub:sub_pause": NAMED}

    for type in sorted(payloads, key=lambda type: type != first):
        writer.request(type, payloads[type])
    commit_all(shell)

    for hub in (shell, shell.restarted()):
        position = position_of(hub)
        assert (position.floor, position.generation, position.is_paused) == (0, 2, True)


def test_a_periodic_cursor_takes_back_no_seek_that_is_on_its_way() -> None:
    shell = MemoryShell()
    writer, reader = working(shell, 5)
    reader.ask("hub:ack", NAMED | {"upTo": 4})
    shell.engine.is_prompt = False

    writer.request("hub:seek", NAMED | {"to": {"seq": 2}})
    reader.tell("hub:ack", NAMED | {"seq": 5})
    shell.advance(2_000)
    commit_all(shell)

    found = position_of(shell.restarted())
    assert (found.floor, list(found.above), found.generation) == (1, [], 2)


def test_of_two_seeks_on_their_way_the_later_one_holds() -> None:
    shell = MemoryShell()
    writer, _ = working(shell, 5)
    shell.engine.is_prompt = False

    writer.request("hub:seek", NAMED | {"to": "latest"})
    writer.request("hub:seek", NAMED | {"to": {"seq": 3}})
    commit_all(shell)

    for hub in (shell, shell.restarted()):
        assert (position_of(hub).floor, position_of(hub).generation) == (2, 3)


def test_a_resumption_holds_though_the_pause_before_it_was_written_apart() -> None:
    shell = MemoryShell()
    writer, reader = working(shell, 1)
    shell.pass_time(3)
    shell.engine.is_prompt = False
    writer.request("hub:sub_pause", NAMED)
    writer.request("hub:sub_resume", NAMED)

    shell.engine.commit(1)
    reader.tell("hub:ack", NAMED | {"seq": 1})
    shell.advance(1_500)
    commit_all(shell)

    for hub in (shell, shell.restarted()):
        assert position_of(hub).is_paused is False


@pytest.mark.parametrize("is_dry", [True, False])
def test_what_a_seek_skips_is_counted_without_looking_at_every_message(is_dry: bool) -> None:
    """A walk through a thousand million positions would not come to its end."""
    shell = MemoryShell()
    writer, reader = working(shell, 5)
    reader.ask("hub:ack", NAMED | {"seqs": [2, 4]})
    topic = topic_of(shell)
    topic.head = 10**9
    topic.next_seq = topic.head + 1

    reply = writer.ask("hub:seek", NAMED | {"to": "latest", "dryRun": is_dry})

    assert reply["payload"]["next"] == 10**9 + 1
    assert (reply["payload"]["willReplay"], reply["payload"]["willSkip"]) == (0, 10**9 - 2)


def test_what_a_seek_says_it_will_send_again_comes_again() -> None:
    shell = MemoryShell()
    writer, reader = working(shell, 5)
    reader.ask("hub:ack", NAMED | {"upTo": 3})
    reader.ask("hub:ack", NAMED | {"seq": 5})

    reply = writer.ask("hub:seek", NAMED | {"to": {"seq": 2}})

    assert (reply["payload"]["willReplay"], reply["payload"]["willSkip"]) == (3, 0)
    assert [seq for seq, _ in attempts(reader)] == [2, 3, 4, 5]


@pytest.mark.parametrize("is_old", [True, False], ids=["another epoch", "this epoch"])
def test_a_resume_beyond_the_head_is_never_guessed(is_old: bool) -> None:
    shell = MemoryShell()
    writer, _ = working(shell, 5)
    resume = {"epoch": topic_of(shell).epoch, "seq": 120}
    if is_old:
        writer.ask("hub:topic_delete", {"topic": "t"})
        create(writer)

    reply = writer.ask("hub:subscribe", NAMED | {"subscription": "other", "resume": resume})

    assert code_of(reply) == ("wrong_epoch" if is_old else "internal_error")
    if is_old:
        assert reply["payload"]["details"]["current"] == topic_of(shell).epoch
    assert "other" not in topic_of(shell).subscriptions


def test_a_settlement_is_counted_once_however_long_the_log_is_full() -> None:
    shell = MemoryShell()
    _, reader = working(shell, 1)
    shell.engine.is_full = True
    reader.tell("hub:ack", NAMED | {"seq": 1})

    shell.pass_time(30)
    while_full = subscription_of(shell).stats.settled
    shell.engine.is_full = False
    shell.pass_time(5)

    assert while_full == 0
    assert subscription_of(shell).stats.settled == 1


def test_a_replay_shows_neither_what_has_expired_nor_what_is_not_due() -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    payload = {"topic": "t", "type": "news", "durable": True}
    writer.ask("hub:publish", payload | {"data": "short-lived"}, ttl=1_000)
    writer.ask("hub:publish", payload | {"data": "later", "deliverAt": shell.now + 60_000})
    writer.ask("hub:publish", payload | {"data": "plain"})
    shell.pass_time(10)
    writer.take()

    reply = writer.ask("hub:replay", {"topic": "t", "fromSeq": 1})

    assert [one["payload"] for one in writer.heard()] == ["plain"]
    assert (reply["payload"]["count"], reply["payload"]["next"]) == (1, 4)
