"""Durable messaging on the command line: real processes against a real hub."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import signalhub
from signalhub import Client
from signalhub.testing import RunningHub, run_hub, spawn_hub
from tests.integration.test_cli import SECRET, Done, cli, hub_knows, line_of, started, unused_url

SENDER = "@(demo/alice)"
FROM = ("--from", "demo/alice")
MANY = [str(number).encode() for number in range(1, 301)]


@pytest.fixture
async def hub() -> AsyncIterator[RunningHub]:
    async with run_hub() as running:
        yield running


@pytest.fixture
async def me(hub: RunningHub) -> AsyncIterator[Client]:
    async with signalhub.connect(hub.url, SENDER) as client:
        yield client


async def fill(me: Client, count: int, topic: str = "orders", **definition: Any) -> None:
    """A durable topic with the numbers from 1 on."""
    await me.create_topic(topic, **definition)
    for number in range(1, count + 1):
        await me.publish(topic, "n", number, durable=True)


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


def columns(done: Done) -> list[list[str]]:
    return [line.split("\t") for line in done.out.splitlines()]


def sheet(done: Done) -> dict[str, str]:
    return dict(line.split("\t") for line in done.out.splitlines())


# Topics.


async def test_a_topic_is_made_once_and_refused_with_another_definition(hub: RunningHub) -> None:
    create = ("topic", "create", "orders", "--durable", "--retention", "7d", "--poison", "drop")
    made = await cli(hub.url, *create)
    again = await cli(hub.url, *create, "--json")
    other = await cli(hub.url, "topic", "create", "orders", "--retention", "6d")
    failure = await cli(hub.url, "topic", "create", "orders", "--json")

    assert made.code == again.code == 0, made.err
    assert made.out.startswith("orders is there, epoch ")
    assert made.out.endswith(", 0 messages\n")
    assert again.rows()[0]["topic"] == "orders"
    assert (other.code, failure.code) == (1, 1)
    assert "signalhub topic set" in other.err
    assert json.loads(failure.err)["error"] == "topic_conflict"


async def test_topics_are_listed_shown_and_changed(hub: RunningHub, me: Client) -> None:
    await fill(me, 2, retention_s=3600, poison="drop")
    await fill(me, 1, "orders.eu")
    await fill(me, 0, "invoices")

    listed = await cli(hub.url, "topic", "ls", "orders*")
    rows = await cli(hub.url, "topic", "ls", "--json")
    changed = await cli(hub.url, "topic", "set", "orders", "--retention-bytes", "1G")
    shown = await cli(hub.url, "topic", "info", "orders", "--json")

    assert columns(listed) == [
        ["orders", "1", "2", "1h", "drop", ""],
        ["orders.eu", "1", "1", "", "block", ""],
    ]
    assert [row["topic"] for row in rows.rows()] == ["invoices", "orders", "orders.eu"]
    assert sheet(changed)["retention_bytes"] == str(2**30)
    (facts,) = shown.rows()
    assert (facts["head"], facts["retention_s"], facts["retention_bytes"]) == (2, 3600, 2**30)


async def test_ls_pages_through_all_topics(hub: RunningHub, me: Client) -> None:
    names = [f"many.{number:03d}" for number in range(130)]
    await asyncio.gather(*(me.create_topic(name) for name in names))

    listed = await cli(hub.url, "topic", "ls", "--json")

    assert [row["topic"] for row in listed.rows()] == names


async def test_read_prints_a_part_and_says_where_to_go_on(hub: RunningHub, me: Client) -> None:
    await fill(me, 5)

    part = await cli(hub.url, "topic", "read", "orders", "--from", "2", "--limit", "2")
    whole = await cli(hub.url, "topic", "read", "orders", "--from", "2", "--to", "4", "--json")
    beyond = await cli(hub.url, "topic", "read", "orders", "--from", "9")

    assert columns(part) == [["orders", str(n), "1", SENDER, "n", str(n)] for n in (2, 3)]
    assert "--from 4" in part.err
    assert [(row["seq"], row["payload"]) for row in whole.rows()] == [(2, 2), (3, 3), (4, 4)]
    assert (whole.err, beyond.out, beyond.code) == ("", "", 0)


async def test_a_topic_is_deleted_only_when_that_is_confirmed(hub: RunningHub, me: Client) -> None:
    await fill(me, 3)

    refused = await cli(hub.url, "topic", "delete", "orders")
    kept = await cli(hub.url, "topic", "info", "orders")
    deleted = await cli(hub.url, "topic", "delete", "orders", "--yes")
    gone = await cli(hub.url, "topic", "info", "orders")

    assert (refused.code, kept.code, deleted.code, gone.code) == (2, 0, 0, 1)
    assert "everything up to seq 3" in refused.err
    assert "--yes" in refused.err
    assert deleted.out == "orders is deleted\n"
    assert "signalhub topic ls" in gone.err


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "info", "nothing"),
        ("topic", "set", "nothing", "--retention", "1d"),
        ("topic", "read", "nothing"),
        ("topic", "delete", "nothing", "--yes"),
        ("subscribe", "nothing", "--as", "billing"),
        ("sub", "ls", "nothing"),
        ("sub", "info", "nothing", "billing"),
        ("sub", "seek", "nothing", "billing", "earliest"),
        ("dlq", "ls", "nothing"),
        ("dlq", "purge", "nothing.dlq", "--all", "--yes"),
    ],
    ids=" ".join,
)
async def test_an_unknown_topic_is_exit_code_1(hub: RunningHub, command: tuple[str, ...]) -> None:
    done = await cli(hub.url, *command, "--json")

    assert (done.code, done.out) == (1, "")
    assert json.loads(done.err)["error"] == "unknown_topic"
    assert "signalhub topic ls" in json.loads(done.err)["resolution"]


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "ls"),
        ("publish", "orders", "1", "--durable"),
        ("subscribe", "orders", "--as", "billing"),
        ("sub", "ls"),
        ("dlq", "redrive", "orders", "--all"),
    ],
    ids=" ".join,
)
async def test_without_a_hub_the_exit_code_is_3(command: tuple[str, ...]) -> None:
    done = await cli(unused_url(), *command)

    assert done.code == 3
    assert "signalhub serve" in done.err


# Publishing.


async def test_a_durable_publish_prints_its_position(hub: RunningHub, me: Client) -> None:
    options = ("--durable", "--key", "k", "--header", "a=b", "--header", "c=d=e", "--type", "order")
    text = await cli(hub.url, "publish", "orders", "1", *options)
    data = await cli(hub.url, "publish", "orders", "2", "--json")
    plain = await cli(hub.url, "publish", "news", "3", "--json")
    (first, _) = [one async for one in me.replay("orders")]

    (facts,) = data.rows()
    assert text.code == 0, text.err
    assert text.out == f"seq 1 of epoch {facts['epoch']}, fsync, 0 subscribers\n"
    assert (facts["seq"], facts["durability"], facts["duplicate"]) == (2, "fsync", False)
    assert (plain.rows()[0]["seq"], plain.rows()[0]["subscribers"]) == (None, 0)
    assert (first.key, first.headers, first.type) == ("k", {"a": "b", "c": "d=e"}, "order")


async def test_the_same_id_again_counts_once(hub: RunningHub, me: Client) -> None:
    await fill(me, 0)
    command = ("publish", "orders", "1", "--durable", "--id", "order-1", *FROM)

    await cli(hub.url, *command)
    text = await cli(hub.url, *command)
    data = await cli(hub.url, *command, "--json")

    assert text.out.endswith("; it was there already\n")
    assert (data.rows()[0]["seq"], data.rows()[0]["duplicate"]) == (1, True)
    assert (await me.topic("orders")).head == 1


async def test_every_line_becomes_a_message_in_order(hub: RunningHub, me: Client) -> None:
    command = ("publish", "orders", "-", "--lines", "--durable", "--id", "import", *FROM)
    text = await cli(hub.url, *command, stdin=b"\n".join(MANY) + b"\n\n")
    again = await cli(hub.url, *command, stdin=b"\n".join(MANY))
    data = await cli(hub.url, "publish", "orders", "-", "--lines", "--json", stdin=b"a\n[1]\n")
    nothing = await cli(hub.url, *command, stdin=b"\n")
    payloads = [one.payload async for one in me.replay("orders")]

    assert text.out.startswith("300 messages, the last is seq 300 of epoch ")
    assert "300 were there already" in again.out
    assert payloads == [*range(1, 301), "a", [1]]
    assert [row["seq"] for row in data.rows()] == [301, 302]
    assert nothing.code == 2
    assert text.err == "", "there is no bar in a pipe"


async def test_a_refused_line_ends_the_command_with_1() -> None:
    async with run_hub(message_bytes_max=1000) as hub:
        lines = b"1\n" + b"x" * 2000 + b"\n3\n"
        done = await cli(hub.url, "publish", "orders", "-", "--lines", "--durable", stdin=lines)

    assert (done.code, done.out) == (1, "")


async def test_a_delayed_message_is_delivered_when_it_is_due(hub: RunningHub, me: Client) -> None:
    await fill(me, 0)
    due = datetime.now(UTC) + timedelta(hours=1)
    later = await cli(hub.url, "publish", "orders", "1", "--deliver-at", due.isoformat())
    soon = await cli(hub.url, "publish", "orders", "2", "--delay", "50ms", "--ttl", "1h")

    done = await cli(hub.url, "subscribe", "orders", "--as", "billing", "--count", "1", "--json")
    info = await me.subscription("orders", "billing")

    assert (later.code, soon.code, done.code) == (0, 0, 0)
    assert [row["payload"] for row in done.rows()] == [2]
    assert (info.parked, info.lag) == (1, 0)


# Consuming.


async def test_a_subscription_goes_on_where_it_was(hub: RunningHub, me: Client) -> None:
    await fill(me, 4)
    consume = ("subscribe", "orders", "--as", "billing", "--type", "shared")

    first = await cli(hub.url, *consume, "--from", "seq:2", "--count", "1")
    second = await cli(hub.url, *consume, "--from", "earliest", "--count", "2", "--json")
    info = await me.subscription("orders", "billing")

    assert columns(first) == [["orders", "2", "1", SENDER, "n", "2"]]
    assert "consuming orders as billing, 3 messages to go" in first.err
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
        await line_of(reader.stderr, "0 messages to go")
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


# Subscriptions.


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

    assert rehearsed.out.startswith("will replay 3, skip 0: it would go on at seq 1 of epoch ")
    assert (data.rows()[0]["will_skip"], data.rows()[0]["done"]) == (2, False)
    assert unconfirmed.code == 2
    assert "replay 3, skip 0" in unconfirmed.err
    assert (before.floor, after.floor) == (3, 1)
    assert (done.rows()[0]["next"], done.rows()[0]["done"]) == (2, True)


async def test_a_subscription_is_deleted_and_then_unknown(hub: RunningHub, me: Client) -> None:
    await fill(me, 1)
    async with me.consume("orders", "billing"):
        pass

    refused = await cli(hub.url, "sub", "delete", "orders", "billing")
    deleted = await cli(hub.url, "sub", "delete", "orders", "billing", "--yes")
    gone = await cli(hub.url, "sub", "pause", "orders", "billing")

    assert (refused.code, deleted.code, gone.code) == (2, 0, 1)
    assert "1 message to go" in refused.err
    assert deleted.out == "billing of orders is deleted\n"
    assert "signalhub sub ls" in gone.err


# Dead letters.


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
    assert (rest.code, rest.out) == (0, "2 dead letters put back\n")
    assert (none.code, none.out) == (0, "0 dead letters put back\n")
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
    assert one.out == "1 dead letter thrown away\n"
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

    assert (purged.code, purged.out) == (0, "0 dead letters thrown away\n")
    assert (listed.code, listed.out) == (0, "")
    assert [one.payload async for one in me.replay("orders")] == [1, 2, 3]


# Mailboxes.


async def test_an_ask_to_a_mailbox_is_queued_and_found_later(hub: RunningHub) -> None:
    register = await cli(hub.url, "listen", "demo/bob", "--durable", "--for", "0.1")
    text = await cli(hub.url, "ask", "demo/bob", "1")
    data = await cli(hub.url, "ask", "demo/bob", "2", "--json", "--id", "two", *FROM)
    again = await cli(hub.url, "ask", "demo/bob", "2", "--id", "two", *FROM)
    found = await cli(hub.url, "listen", "demo/bob", "--ack", "--count", "2", "--json")
    empty = await cli(hub.url, "listen", "demo/bob", "--for", "0.3")

    (facts,) = data.rows()
    assert register.code == 0, register.err
    assert text.out == f"queued, seq 1 of epoch {facts['epoch']}, fsync\n"
    assert (facts["status"], facts["seq"], facts["duplicate"]) == ("queued", 2, False)
    assert again.out.endswith("; it was there already\n")
    assert [(row["seq"], row["payload"]) for row in found.rows()] == [(1, 1), (2, 2)]
    assert empty.out == ""


async def test_a_mailbox_is_dropped_on_request(hub: RunningHub) -> None:
    await cli(hub.url, "listen", "demo/bob", "--durable", "--for", "0.1")
    dropped = await cli(hub.url, "listen", "demo/bob", "--no-durable", "--for", "0.1")
    asked = await cli(hub.url, "ask", "demo/bob", "1")

    assert dropped.code == 0, dropped.err
    assert asked.code == 1
    assert "@(demo/bob)" in asked.err


async def test_what_was_not_printed_stays_in_the_mailbox(hub: RunningHub) -> None:
    async with started(hub.url, "listen", "demo/bob", "--durable", "--ack") as bob:
        await hub_knows(hub, "@(demo/bob)")
        assert bob.stdout is not None
        bob.stdout._transport.close()  # type: ignore[attr-defined]
        await cli(hub.url, "ask", "demo/bob", "1")
        assert await bob.wait() == 0

    again = await cli(hub.url, "listen", "demo/bob", "--ack", "--count", "1", "--json")

    assert [(row["payload"], row["attempt"]) for row in again.rows()] == [(1, 2)]


# Permissions and the log.


async def test_making_topics_needs_the_permission_to_create() -> None:
    settings = {"SIGNALHUB_AUTH_ENABLED": "true", "SIGNALHUB_AUTH_SECRET": SECRET}
    async with run_hub(auth={"enabled": True, "secret": SECRET}) as hub:
        minted = await cli(
            hub.url, "token", "mint", "ops/a", "--create", "orders*", variables=settings
        )
        token = {"SIGNALHUB_TOKEN": minted.out.strip()}
        allowed = await cli(hub.url, "topic", "create", "orders", variables=token)
        refused = await cli(hub.url, "topic", "create", "news", variables=token)

    assert allowed.code == 0, allowed.err
    assert refused.code == 1
    assert "a token that allows it" in refused.err


async def test_the_log_is_read_while_the_hub_runs_and_after_it_was_killed() -> None:
    async with spawn_hub() as hub:
        folder = ("--data", str(hub.data))
        async with signalhub.connect(hub.url, SENDER) as me:
            await fill(me, 3)
            ls = await cli("", "log", "ls", *folder, "--json")
            view = ("log", "view", *folder, "--kind", "published", "--json")
            seen = await cli("", *view)
            async with started("", *view, "--from", "4", "--follow", "--limit", "1") as follower:
                await me.publish("orders", "n", 4, durable=True)
                followed = json.loads(await line_of(follower.stdout, "published"))
                assert await follower.wait() == 0
            running = await cli("", "log", "verify", *folder)
        await hub.kill()
        killed = await cli("", "log", "verify", *folder, "--json")
        info = await cli("", "log", "info", *folder, "--json")
        segment = next((Path(hub.data) / "log").glob("*.log"))
        content = bytearray(segment.read_bytes())
        content[30] ^= 0xFF
        segment.write_bytes(content)
        damaged = await cli("", "log", "verify", *folder)

    assert ls.rows()[0]["entries"] == 4
    assert [row["body"]["data"] for row in seen.rows()] == [1, 2, 3]
    assert (followed["seq"], followed["stream"]) == (4, "orders")
    assert (running.code, killed.code, info.code) == (0, 0, 0)
    assert killed.rows()[0]["sound"] is True
    assert info.rows()[0]["durable_head"] == info.rows()[0]["head"]
    assert damaged.code == 1
    assert segment.name in damaged.err
