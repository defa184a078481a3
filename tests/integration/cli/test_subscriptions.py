"""Durable subscriptions and dead letters on the command line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from signalhub import Client
from signalhub.testing import RunningHub, ScriptedHub
from tests.support.process.command import (
    SENDER,
    Run,
    columns,
    fill,
    following,
    line_of,
    sheet,
)

SUBSCRIBE = ("subscribe", "orders", "--as", "billing")


async def bury(me: Client, count: int, **definition: Any) -> None:
    """A durable topic whose first messages were given up by the subscription `billing`."""
    await fill(me, count, **{"poison": "dead_letter"} | definition)
    async with me.consume("orders", "billing") as consumer:
        for _ in range(count):
            message = await anext(consumer)
            await message.term(reason="no such item", wait=True)
    async with asyncio.timeout(10):
        while (await me.subscription("orders", "billing")).dead_lettered < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def settle(me: Client, count: int) -> None:
    async with me.consume("orders", "billing") as consumer:
        for _ in range(count):
            await (await anext(consumer)).ack(wait=True)


async def test_a_subscription_goes_on_where_the_last_command_ended(run: Run, me: Client) -> None:
    await fill(me, 4)
    consume = (*SUBSCRIBE, "--type", "shared")

    first = await run(*consume, "--from", "seq:2", "--count", "1")
    second = await run(*consume, "--from", "earliest", "--count", "2", "--json")
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
    run: Run, me: Client, start: str, seq: int
) -> None:
    await fill(me, 5)

    done = await run(*SUBSCRIBE, "--from", start, "--count", "1", "--json")

    assert [row["seq"] for row in done.rows()] == [seq]


async def test_latest_prints_only_what_comes(hub: RunningHub, me: Client) -> None:
    await fill(me, 2)

    async with following(hub.url, *SUBSCRIBE, "--from", "latest", "--count", "1") as reader:
        await line_of(reader.stderr, "lag 0 messages")
        await me.publish("orders", "n", 3, durable=True)

        assert (await line_of(reader.stdout, "orders")).split("\t")[1] == "3"
        assert await reader.wait() == 0


async def test_what_is_printed_is_acknowledged_refused_given_up_or_left(
    run: Run, me: Client
) -> None:
    await fill(me, 2)
    refuse = (*SUBSCRIBE, "--count", "1", "--backoff", "1ms", "--nack", "not today")

    looked = await run("subscribe", "orders", "--as", "a", "--no-ack", "--count", "2")
    timed = await run("subscribe", "orders", "--as", "b", "--for", "1.5", "--json")
    too_few = await run("subscribe", "orders", "--as", "b", "--for", "0.1", "--count", "9")
    given_up = await run(
        "subscribe",
        "orders",
        "--as",
        "c",
        "--poison",
        "drop",
        "--term",
        "x",
        "--count",
        "2",
    )
    refused = await run(*refuse, "--delay", "1ms")
    taken = await run(*SUBSCRIBE, "--count", "1", "--json")

    assert "wait longer with --for, or see `signalhub sub info orders b`" in too_few.err
    codes = (looked.code, timed.code, given_up.code, refused.code)
    assert codes == (0, 0, 0, 0), refused.err
    assert [row["seq"] for row in timed.rows()] == [1, 2]
    lags = [(await me.subscription("orders", name)).lag for name in ("a", "b", "c")]
    assert lags == [2, 0, 0]
    ((seq, redelivered, attempt),) = [
        (row["seq"], row["redelivered"], row["attempt"]) for row in taken.rows()
    ]
    # It may have come once more while the first command was leaving.
    assert (seq, redelivered, attempt > 1) == (1, True, True)


async def test_the_options_of_a_subscription_reach_the_hub(
    hub: RunningHub, run: Run, me: Client
) -> None:
    await fill(me, 1)
    options = ("--window", "3", "--rate", "50", "--strict", "--ack-timeout", "2s")

    done = await run(*SUBSCRIBE, *options, "--poison", "drop", "--count", "1")
    set_ = ("sub", "set", "orders", "billing", "--window", "5", "--no-strict")
    changed = await run(*set_)

    definition = hub.app.hub.streams.topics["orders"].subscriptions["billing"].definition
    assert (done.code, changed.code) == (0, 0), done.err
    assert (definition.window, definition.strict, definition.rate_s) == (5, False, 50)
    assert (definition.ack_timeout_ms, definition.poison) == (2000, "drop")


async def test_only_one_consumes_exclusively_and_its_name_takes_over(
    hub: RunningHub, run: Run, me: Client
) -> None:
    await fill(me, 0)

    async with following(hub.url, *SUBSCRIBE, "--consumer", "one") as one:
        await line_of(one.stderr, "consuming")
        busy = await run(*SUBSCRIBE, "--consumer", "two")
        other = await run(*SUBSCRIBE, "--type", "shared")
        heir = await run(*SUBSCRIBE, "--consumer", "one", "--for", "0.5")
        assert await one.wait() == 1
        said = (await one.stderr.read()).decode()

    assert (busy.code, other.code, heir.code) == (1, 1, 0)
    assert "held by one" in busy.err
    assert "--type" in other.err
    assert "--consumer" in said


async def test_subscriptions_are_listed_paused_and_resumed(run: Run, me: Client) -> None:
    await fill(me, 3)
    await fill(me, 0, "news")
    async with me.consume("orders", "billing", mode="shared", consumer="one"):
        listed = await run("sub", "ls", "orders")
        info = await run("sub", "info", "orders", "billing", "--json")
    async with me.consume("news", "audit"):
        pass

    paused = await run("sub", "pause", "orders", "billing")
    everything = await run("sub", "ls", "--json")
    resumed = await run("sub", "resume", "orders", "billing", "--json")

    assert columns(listed) == [["orders", "billing", "shared", "active", "1", "3", "3", "0", "0"]]
    assert [one["name"] for one in info.rows()[0]["consumers"]] == ["one"]
    assert (sheet(paused)["state"], sheet(paused)["lag"]) == ("paused", "3")
    states = [(row["topic"], row["state"]) for row in everything.rows()]
    assert states == [("news", "idle"), ("orders", "paused")]
    assert resumed.rows()[0]["paused"] is False


async def test_seek_says_what_it_means_before_it_does_it(run: Run, me: Client) -> None:
    await fill(me, 5)
    await settle(me, 3)
    seek = ("sub", "seek", "orders", "billing")

    rehearsed = await run(*seek, "earliest", "--dry-run")
    (data,) = (await run(*seek, "latest", "--dry-run", "--json")).rows()
    unconfirmed = await run(*seek, "earliest")
    refused = await run(*seek, "earliest", typed="n\n")
    before = await me.subscription("orders", "billing")
    agreed = await run(*seek, "earliest", typed="y\n")
    earliest = await me.subscription("orders", "billing")
    (done,) = (await run(*seek, "seq:2", "--yes", "--json")).rows()
    after = await me.subscription("orders", "billing")

    assert rehearsed.out.startswith("would continue at seq 1 of epoch ")
    assert (data["will_skip"], data["done"]) == (2, False)
    assert (unconfirmed.code, refused.code, agreed.code) == (2, 1, 0)
    assert "replay 3, skip 0" in unconfirmed.err
    assert "About to move billing to seq 1 of orders (replay 3, skip 0)." in refused.err
    assert "nothing was changed" in refused.err
    assert [one.floor for one in (before, earliest, after)] == [3, 0, 1]
    assert (done["next"], done["done"]) == (2, True)


async def test_a_subscription_is_deleted_and_then_unknown(run: Run, me: Client) -> None:
    await fill(me, 1)
    async with me.consume("orders", "billing"):
        pass

    refused = await run("sub", "delete", "orders", "billing")
    deleted = await run("sub", "delete", "orders", "billing", "--yes")
    gone = await run("sub", "pause", "orders", "billing")

    assert (refused.code, deleted.code, gone.code) == (2, 0, 1)
    assert "a lag of 1 message" in refused.err
    assert deleted.out == "deleted subscription billing of orders\n"
    assert "signalhub sub ls" in gone.err


async def test_a_consumer_is_told_which_options_the_subscription_keeps_and_what_holds_it_up() -> (
    None
):
    async with ScriptedHub() as hub, following(hub.url, *SUBSCRIBE, "--rate", "5") as consumer:
        peer = await hub.accept()
        peer.answer(await peer.receive("hub:connect"), "hub:connected", {"sessionId": "s-1"})
        await peer.seat(subscriptionId="s-1", kept=["ratePerSecond"])
        await line_of(consumer.stderr, "consuming orders as billing")
        kept = await line_of(consumer.stderr, "keeps")
        held_up = {"code": "storage_failed", "message": "It waits.", "resolution": "Stay."}
        place = {"topic": "orders", "subscription": "billing", "seq": 3}
        peer.send("hub:error", held_up | {"details": place})
        waits = await line_of(consumer.stderr, "waits")
        peer.send("hub:disconnect", {"reason": "unauthorized", "message": "The token expired."})
        await consumer.wait()

    assert "note: the subscription keeps its own ratePerSecond" in kept
    assert waits == "note: It waits. Stay.\n"


async def test_dead_letters_are_listed_and_shown(run: Run, me: Client) -> None:
    await bury(me, 2)

    listed = await run("dlq", "ls", "orders")
    rows = await run("dlq", "ls", "orders.dlq", "--limit", "1", "--json")
    shown = await run("dlq", "show", "orders", "2")
    missing = await run("dlq", "show", "orders", "9")

    assert [(row[0], *row[2:]) for row in columns(listed)] == [
        (n, f"orders {n} for billing", "1", "no such item", "n", n) for n in ("1", "2")
    ]
    (letter,) = rows.rows()
    assert (letter["seq"], letter["reason"], letter["payload"]) == (1, "no such item", 1)
    assert (letter["origin"]["topic"], letter["origin"]["seq"]) == ("orders", 1)
    assert json.loads(rows.err) == {"has_more": True}
    assert sheet(shown)["payload"] == "2"
    assert missing.code == 1
    assert "signalhub dlq ls orders" in missing.err


async def test_dead_letters_are_put_back_for_the_subscription_that_gave_them_up(
    run: Run, me: Client
) -> None:
    await bury(me, 3)

    some = await run("dlq", "redrive", "orders", "--seq", "2", "--seq", "9", "--json")
    rest = await run("dlq", "redrive", "orders.dlq", "--all")
    none = await run("dlq", "redrive", "orders", "--all")
    again = await run(*SUBSCRIBE, "--count", "3", "--json")

    assert (some.code, some.rows()) == (1, [{"redriven": 1}])
    assert json.loads(some.err)["error"] == "unknown_dead_letter"
    assert (rest.code, rest.out) == (0, "2 dead letters redriven\n")
    assert (none.code, none.out) == (0, "0 dead letters redriven\n")
    assert [row["payload"] for row in again.rows()] == [2, 1, 3]


async def test_dead_letters_that_cannot_be_put_back_stay_and_are_not_called_missing(
    run: Run, me: Client
) -> None:
    await bury(me, 2)
    await me.delete_topic("orders")
    redrive = ("dlq", "redrive", "orders.dlq")

    named = await run(*redrive, "--seq", "1", "--seq", "2")
    mixed = await run(*redrive, "--seq", "1", "--seq", "9", "--json")
    every = await run(*redrive, "--all")

    assert (named.code, named.out) == (1, "0 dead letters redriven\n")
    assert "2 stay: their origin is gone or closed to you" in named.err
    assert "no dead letter" not in named.err
    assert (mixed.code, mixed.rows()) == (1, [{"redriven": 0, "skipped": 1}])
    assert "1 of the given positions holds no dead letter; 1 stays" in mixed.err
    assert every.code == 0
    assert "note: 2 stay" in every.err


async def test_dead_letters_are_chosen_previewed_and_edited(run: Run, me: Client) -> None:
    await bury(me, 3)
    redrive = ("dlq", "redrive", "orders")

    planned = await run(*redrive, "--where", "reason=no such item", "--through", "2", "--dry-run")
    plan = await run(*redrive, "--where", "reason=other", "--dry-run", "--json")
    listed = await run("dlq", "ls", "orders", "--json")
    edited = await run(*redrive, "--seq", "1", "--edit", '1={"data": 10, "key": "k"}')
    rest = await run(*redrive, "--where", "type=n", "--where", "from=2020-01-01T00:00Z")
    again = await run(*SUBSCRIBE, "--count", "3", "--json")

    assert planned.out == "2 dead letters up to 2 would be redriven\n2\tno such item\n"
    assert "--through 2" in planned.err
    (facts,) = plan.rows()
    assert (facts["count"], facts["through"], facts["byReason"]) == (0, 3, [])
    assert len(listed.rows()) == 3, "a preview changes nothing"
    assert (edited.code, edited.out) == (0, "1 dead letter redriven\n")
    assert (rest.code, rest.out) == (0, "2 dead letters redriven\n")
    assert [row["payload"] for row in again.rows()] == [10, 2, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "no dead letters chosen"),
        (("--where", "raeson=x"), "invalid --where 'raeson=x'"),
        (("--where", "reason"), "invalid --where"),
        (("--where", "type=a", "--where", "type=b"), "given twice"),
        (("--where", "from=yesterday"), "invalid time 'yesterday'"),
        (("--seq", "1", "--edit", "x={}"), "invalid --edit"),
        (("--seq", "1", "--edit", '2={"data":1}'), "add --seq 2"),
        (("--seq", "1", "--edit", '1={"data":}'), "begins like JSON"),
        (("--seq", "1", "--edit", '1={"payload":1}'), "data, type, key or headers"),
        (("--all", "--edit", '1={"data":1}'), "add --seq 1"),
    ],
)
async def test_a_choice_of_dead_letters_that_cannot_be_meant_is_refused(
    run: Run, options: tuple[str, ...], words: str
) -> None:
    refused = await run("dlq", "redrive", "orders", *options)

    assert refused.code == 2
    assert words in refused.err


async def test_dead_letters_are_deleted_when_that_is_confirmed(run: Run, me: Client) -> None:
    await bury(me, 3, dead_letter="graveyard")
    purge = ("dlq", "purge", "orders")

    refused = await run(*purge, "--all")
    one = await run(*purge, "--seq", "1", "--yes")
    listed = await run("dlq", "ls", "graveyard", "--json")
    rest = await run(*purge, "--all", "--yes", "--json")
    empty = await run("dlq", "ls", "orders")

    assert (refused.code, one.code) == (2, 0)
    assert one.out == "1 dead letter deleted\n"
    assert [(row["seq"], row["topic"]) for row in listed.rows()] == [
        (2, "graveyard"),
        (3, "graveyard"),
    ]
    assert rest.rows() == [{"purged": 2}]
    assert (empty.code, empty.out) == (0, "")


async def test_a_topic_without_dead_letters_loses_nothing_to_purge(run: Run, me: Client) -> None:
    await fill(me, 3)

    purged = await run("dlq", "purge", "orders", "--all", "--yes")
    listed = await run("dlq", "ls", "orders")

    assert (purged.code, purged.out) == (0, "0 dead letters deleted\n")
    assert (listed.code, listed.out) == (0, "")
    assert [one.payload async for one in me.replay("orders")] == [1, 2, 3]


async def test_a_pattern_is_consumed_listed_moved_and_deleted_as_a_whole(
    run: Run, me: Client
) -> None:
    for topic in ("orders/eu", "orders/us"):
        await fill(me, 2, topic)
    await fill(me, 1, "news")
    async with me.consume("news", "audit"):
        pass
    read = ("subscribe", "orders/#", "--as", "billing", "--count")

    taken = await run(*read, "4", "--json")
    listed = await run("sub", "ls", "--json")
    parts = await run("sub", "ls", "orders/#")
    info = await run("sub", "info", "orders/#", "billing")
    plan = await run("sub", "seek", "orders/#", "billing", "last:1", "--dry-run")
    asked = await run("sub", "seek", "orders/#", "billing", "earliest", typed="n\n")
    moved = await run("sub", "seek", "orders/#", "billing", "earliest", "--yes")
    single = await run("sub", "seek", "orders/#", "billing", "seq:2", "--yes")
    paused = await run("sub", "pause", "orders/#", "billing")
    changed = await run("sub", "set", "orders/#", "billing", "--window", "5")
    resumed = await run("sub", "resume", "orders/#", "billing")
    part = await run("sub", "delete", "orders/eu", "billing", "--yes")
    deleted = await run("sub", "delete", "orders/#", "billing", "--yes")
    left = await run("sub", "ls", "--json")

    found = sorted((row["topic"], row["seq"]) for row in taken.rows())
    assert found == [(topic, seq) for topic in ("orders/eu", "orders/us") for seq in (1, 2)]
    rows = [(row["topic"], row["subscription"], row["lag"]) for row in listed.rows()]
    assert rows == [("orders/#", "billing", 0), ("news", "audit", 1)]
    assert [row[0] for row in columns(parts)] == ["orders/eu", "orders/us"]
    assert (sheet(info)["topics"], sheet(info)["lag"]) == ("2", "0")
    assert plan.out == "would move 2 topics: will replay 2, skip 0\n"
    assert "About to move billing to earliest on 2 topics of orders/#" in asked.err
    assert moved.out == "moved 2 topics: will replay 4, skip 0\n"
    assert (single.code, "one of its topics" in single.err) == (1, True)
    states = [sheet(one)["state"] for one in (paused, changed, resumed)]
    assert (states, sheet(changed)["window"]) == (["paused", "paused", "idle"], "5")
    assert (part.code, "orders/#" in part.err) == (1, True)
    assert deleted.out == "deleted subscription billing of orders/#\n"
    assert [(row["topic"], row["subscription"]) for row in left.rows()] == [("news", "audit")]
