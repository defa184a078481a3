"""Durable subscriptions and dead letters on the command line: processes against a real hub."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

import signalhub
from signalhub import Client
from signalhub.testing import RunningHub, run_hub
from tests.support.process.command import (
    PATIENCE_S,
    SENDER,
    cli,
    columns,
    environment,
    fill,
    line_of,
    sheet,
    started,
)


@pytest.fixture
async def hub() -> AsyncIterator[RunningHub]:
    async with run_hub() as running:
        yield running


@pytest.fixture
async def me(hub: RunningHub) -> AsyncIterator[Client]:
    async with signalhub.connect(hub.url, SENDER) as client:
        yield client


async def bury(me: Client, count: int, topic: str = "orders", **definition: Any) -> None:
    """A durable topic whose first messages were given up by the subscription `billing`."""
    await fill(me, count, topic, **{"poison": "dead_letter"} | definition)
    async with me.consume(topic, "billing") as consumer:
        for _ in range(count):
            message = await anext(consumer)
            await message.term(reason="no such item", wait=True)
    async with asyncio.timeout(10):
        while (await me.subscription(topic, "billing")).dead_lettered < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def answered(url: str, answer: str, *command: str) -> tuple[int, str]:
    """A command at a terminal where somebody types an answer: its exit code and what it asked."""
    typist, terminal = os.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "signalhub",
            *command,
            stdin=terminal,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(url),
        )
        os.write(typist, f"{answer}\n".encode())
        try:
            async with asyncio.timeout(PATIENCE_S):
                _, asked = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    finally:
        os.close(typist)
        os.close(terminal)
    assert process.returncode is not None
    return process.returncode, asked.decode()


async def test_a_subscription_goes_on_where_it_was(hub: RunningHub, me: Client) -> None:
    await fill(me, 4)
    consume = ("subscribe", "orders", "--as", "billing", "--type", "shared")

    first = await cli(hub.url, *consume, "--from", "seq:2", "--count", "1")
    second = await cli(hub.url, *consume, "--from", "earliest", "--count", "2", "--json")
    info = await me.subscription("orders", "billing")

    assert columns(first) == [["orders", "2", "1", SENDER, "n", "2"]]
    assert "consuming orders as billing, lag 3 messages" in first.err
    assert [row["seq"] for row in second.rows()] == [3, 4]
    assert second.rows()[0]["redelivered"] is True
    assert second.err == ""
    assert (info.mode, info.floor, info.lag) == ("shared", 4, 0)


@pytest.mark.parametrize(
    ("start", "seq"), [("earliest", 1), ("last:2", 4), ("5", 5), ("time:2020-01-01T00:00Z", 1)]
)
async def test_a_new_subscription_begins_where_it_is_told(
    hub: RunningHub, me: Client, start: str, seq: int
) -> None:
    await fill(me, 5)

    place = ("--as", "billing", "--from", start)
    done = await cli(hub.url, "subscribe", "orders", *place, "--count", "1", "--json")

    assert [row["seq"] for row in done.rows()] == [seq]


async def test_latest_prints_only_what_comes(hub: RunningHub, me: Client) -> None:
    await fill(me, 2)

    consume = ("subscribe", "orders", "--as", "billing", "--from", "latest", "--count", "1")
    async with started(hub.url, *consume) as reader:
        await line_of(reader.stderr, "lag 0 messages")
        await me.publish("orders", "n", 3, durable=True)

        assert (await line_of(reader.stdout, "orders")).split("\t")[1] == "3"
        assert await reader.wait() == 0


async def test_what_is_not_acknowledged_stays(hub: RunningHub, me: Client) -> None:
    await fill(me, 2)

    looked = await cli(hub.url, "subscribe", "orders", "--as", "a", "--no-ack", "--count", "2")
    timed = await cli(hub.url, "subscribe", "orders", "--as", "b", "--for", "1.5", "--json")

    assert (looked.code, timed.code) == (0, 0)
    assert (await me.subscription("orders", "a")).lag == 2
    assert [row["seq"] for row in timed.rows()] == [1, 2]
    assert (await me.subscription("orders", "b")).lag == 0


async def test_a_refused_message_comes_again_with_a_higher_attempt(
    hub: RunningHub, me: Client
) -> None:
    await fill(me, 1)
    consume = ("subscribe", "orders", "--as", "billing", "--count", "1", "--backoff", "1ms")

    refused = await cli(hub.url, *consume, "--nack", "not today", "--delay", "1ms")
    taken = await cli(hub.url, *consume, "--json")

    assert refused.code == 0, refused.err
    assert [(row["seq"], row["redelivered"]) for row in taken.rows()] == [(1, True)]
    # It may have come once more while the first command was leaving.
    assert taken.rows()[0]["attempt"] > 1


async def test_the_options_of_a_subscription_reach_the_hub(hub: RunningHub, me: Client) -> None:
    await fill(me, 1)
    options = (
        "--window",
        "3",
        "--rate",
        "50",
        "--strict",
        "--ack-timeout",
        "2s",
        "--poison",
        "drop",
    )

    done = await cli(hub.url, "subscribe", "orders", "--as", "billing", *options, "--count", "1")
    changed = await cli(hub.url, "sub", "set", "orders", "billing", "--window", "5", "--no-strict")

    definition = hub.app.hub.streams.topics["orders"].subscriptions["billing"].definition
    assert (done.code, changed.code) == (0, 0), done.err
    assert (definition.window, definition.strict, definition.rate_s) == (5, False, 50)
    assert (definition.ack_timeout_ms, definition.poison) == (2000, "drop")


async def test_only_one_consumes_exclusively_and_its_name_takes_over(
    hub: RunningHub, me: Client
) -> None:
    await fill(me, 0)
    consume = ("subscribe", "orders", "--as", "billing")

    async with started(hub.url, *consume, "--consumer", "one") as one:
        await line_of(one.stderr, "consuming")
        busy = await cli(hub.url, *consume, "--consumer", "two")
        other = await cli(hub.url, *consume, "--type", "shared")
        async with started(hub.url, *consume, "--consumer", "one") as heir:
            await line_of(heir.stderr, "consuming")
            code = await one.wait()
            assert one.stderr is not None
            said = (await one.stderr.read()).decode()

    assert (busy.code, other.code, code) == (1, 1, 1)
    assert "held by one" in busy.err
    assert "--type" in other.err
    assert "--consumer" in said


async def test_ctrl_c_keeps_what_was_acknowledged(hub: RunningHub, me: Client) -> None:
    await fill(me, 3)
    async with started(hub.url, "subscribe", "orders", "--as", "billing") as reader:
        await line_of(reader.stderr, "consuming")
        for _ in range(3):
            await line_of(reader.stdout, "orders")
        reader.send_signal(signal.SIGINT)

        assert await reader.wait() == 130

    again = await cli(hub.url, "subscribe", "orders", "--as", "billing", "--for", "0.3", "--json")
    seqs = [row["seq"] for row in again.rows()]
    assert seqs in ([], [3]), "the last acknowledgement may have been on its way"


async def test_subscriptions_are_listed_paused_and_resumed(hub: RunningHub, me: Client) -> None:
    await fill(me, 3)
    await fill(me, 0, "news")
    async with me.consume("orders", "billing", mode="shared", consumer="one"):
        listed = await cli(hub.url, "sub", "ls", "orders")
        info = await cli(hub.url, "sub", "info", "orders", "billing", "--json")
    async with me.consume("news", "audit"):
        pass

    paused = await cli(hub.url, "sub", "pause", "orders", "billing")
    everything = await cli(hub.url, "sub", "ls", "--json")
    resumed = await cli(hub.url, "sub", "resume", "orders", "billing", "--json")

    assert columns(listed) == [["orders", "billing", "shared", "active", "1", "3", "3", "0", "0"]]
    assert [one["name"] for one in info.rows()[0]["consumers"]] == ["one"]
    assert (sheet(paused)["state"], sheet(paused)["lag"]) == ("paused", "3")
    assert [(row["topic"], row["state"]) for row in everything.rows()] == [
        ("news", "idle"),
        ("orders", "paused"),
    ]
    assert resumed.rows()[0]["paused"] is False


async def test_seek_says_what_it_means_before_it_does_it(hub: RunningHub, me: Client) -> None:
    await fill(me, 5)
    async with me.consume("orders", "billing") as consumer:
        for _ in range(3):
            await (await anext(consumer)).ack(wait=True)
    seek = ("sub", "seek", "orders", "billing")

    rehearsed = await cli(hub.url, *seek, "earliest", "--dry-run")
    data = await cli(hub.url, *seek, "latest", "--dry-run", "--json")
    unconfirmed = await cli(hub.url, *seek, "earliest")
    before = await me.subscription("orders", "billing")
    done = await cli(hub.url, *seek, "seq:2", "--yes", "--json")
    after = await me.subscription("orders", "billing")

    assert rehearsed.out.startswith("would continue at seq 1 of epoch ")
    assert (data.rows()[0]["will_skip"], data.rows()[0]["done"]) == (2, False)
    assert unconfirmed.code == 2
    assert "replay 3, skip 0" in unconfirmed.err
    assert (before.floor, after.floor) == (3, 1)
    assert (done.rows()[0]["next"], done.rows()[0]["done"]) == (2, True)


async def test_at_a_terminal_seek_asks_and_takes_no_for_an_answer(
    hub: RunningHub, me: Client
) -> None:
    await fill(me, 2)
    async with me.consume("orders", "billing") as consumer:
        for _ in range(2):
            await (await anext(consumer)).ack(wait=True)
    seek = ("sub", "seek", "orders", "billing", "earliest")

    refused, asked = await answered(hub.url, "n", *seek)
    before = await me.subscription("orders", "billing")
    agreed, _ = await answered(hub.url, "y", *seek)
    after = await me.subscription("orders", "billing")

    assert "About to move billing to seq 1 of orders (replay 2, skip 0). Continue? [y/N]" in asked
    assert "nothing was changed" in asked
    assert (refused, before.floor) == (1, 2)
    assert (agreed, after.floor) == (0, 0)


async def test_a_subscription_is_deleted_and_then_unknown(hub: RunningHub, me: Client) -> None:
    await fill(me, 1)
    async with me.consume("orders", "billing"):
        pass

    refused = await cli(hub.url, "sub", "delete", "orders", "billing")
    deleted = await cli(hub.url, "sub", "delete", "orders", "billing", "--yes")
    gone = await cli(hub.url, "sub", "pause", "orders", "billing")

    assert (refused.code, deleted.code, gone.code) == (2, 0, 1)
    assert "a lag of 1 message" in refused.err
    assert deleted.out == "deleted subscription billing of orders\n"
    assert "signalhub sub ls" in gone.err


async def test_dead_letters_are_listed_and_shown(hub: RunningHub, me: Client) -> None:
    await bury(me, 2)

    listed = await cli(hub.url, "dlq", "ls", "orders")
    rows = await cli(hub.url, "dlq", "ls", "orders.dlq", "--limit", "1", "--json")
    shown = await cli(hub.url, "dlq", "show", "orders", "2")
    missing = await cli(hub.url, "dlq", "show", "orders", "9")

    assert [(row[0], *row[2:]) for row in columns(listed)] == [
        ("1", "orders 1 for billing", "1", "no such item", "n", "1"),
        ("2", "orders 2 for billing", "1", "no such item", "n", "2"),
    ]
    (letter,) = rows.rows()
    assert (letter["seq"], letter["reason"], letter["payload"]) == (1, "no such item", 1)
    assert (letter["origin"]["topic"], letter["origin"]["seq"]) == ("orders", 1)
    assert json.loads(rows.err) == {"has_more": True}
    assert sheet(shown)["payload"] == "2"
    assert missing.code == 1
    assert "signalhub dlq ls orders" in missing.err


async def test_dead_letters_are_put_back_for_the_subscription_that_gave_them_up(
    hub: RunningHub, me: Client
) -> None:
    await bury(me, 3)

    some = await cli(hub.url, "dlq", "redrive", "orders", "--seq", "2", "--seq", "9", "--json")
    rest = await cli(hub.url, "dlq", "redrive", "orders.dlq", "--all")
    none = await cli(hub.url, "dlq", "redrive", "orders", "--all")
    again = await cli(hub.url, "subscribe", "orders", "--as", "billing", "--count", "3", "--json")

    assert (some.code, some.rows()) == (1, [{"redriven": 1}])
    assert json.loads(some.err)["error"] == "unknown_dead_letter"
    assert (rest.code, rest.out) == (0, "2 dead letters redriven\n")
    assert (none.code, none.out) == (0, "0 dead letters redriven\n")
    assert [row["payload"] for row in again.rows()] == [2, 1, 3]


async def test_dead_letters_are_thrown_away_when_that_is_confirmed(
    hub: RunningHub, me: Client
) -> None:
    await bury(me, 3)
    purge = ("dlq", "purge", "orders")

    refused = await cli(hub.url, *purge, "--all")
    one = await cli(hub.url, *purge, "--seq", "1", "--yes")
    listed = await cli(hub.url, "dlq", "ls", "orders", "--json")
    rest = await cli(hub.url, *purge, "--all", "--yes", "--json")
    empty = await cli(hub.url, "dlq", "ls", "orders")

    assert (refused.code, one.code) == (2, 0)
    assert one.out == "1 dead letter deleted\n"
    assert [row["seq"] for row in listed.rows()] == [2, 3]
    assert rest.rows() == [{"purged": 2}]
    assert (empty.code, empty.out) == (0, "")


async def test_a_topic_named_for_dead_letters_is_found_from_both_sides(
    hub: RunningHub, me: Client
) -> None:
    await bury(me, 1, dead_letter="graveyard")

    by_origin = await cli(hub.url, "dlq", "ls", "orders", "--json")
    by_name = await cli(hub.url, "dlq", "ls", "graveyard", "--json")

    assert [row["topic"] for row in (*by_origin.rows(), *by_name.rows())] == ["graveyard"] * 2


async def test_a_topic_without_dead_letters_loses_nothing_to_purge(
    hub: RunningHub, me: Client
) -> None:
    await fill(me, 3)

    purged = await cli(hub.url, "dlq", "purge", "orders", "--all", "--yes")
    listed = await cli(hub.url, "dlq", "ls", "orders")

    assert (purged.code, purged.out) == (0, "0 dead letters deleted\n")
    assert (listed.code, listed.out) == (0, "")
    assert [one.payload async for one in me.replay("orders")] == [1, 2, 3]
