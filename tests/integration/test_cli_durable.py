"""Durable topics, mailboxes and the log on the command line: processes against a real hub."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import signalhub
from signalhub import Client
from signalhub.testing import RunningHub, run_hub, spawn_hub
from tests.support.process.command import (
    SECRET,
    SENDER,
    cli,
    columns,
    fill,
    hub_knows,
    line_of,
    sheet,
    started,
    unused_url,
)

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


async def test_a_topic_is_made_once_and_refused_with_another_definition(hub: RunningHub) -> None:
    create = ("topic", "create", "orders", "--durable", "--retention", "7d", "--poison", "drop")
    made = await cli(hub.url, *create)
    again = await cli(hub.url, *create, "--json")
    other = await cli(hub.url, "topic", "create", "orders", "--retention", "6d")
    failure = await cli(hub.url, "topic", "create", "orders", "--json")

    assert made.code == again.code == 0, made.err
    assert made.out.startswith("topic orders is ready (epoch ")
    assert made.out.endswith(", 0 messages)\n")
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
    assert "messages up to seq 3" in refused.err
    assert "--yes" in refused.err
    assert deleted.out == "deleted topic orders\n"
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

    assert text.out.endswith(" (duplicate)\n")
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
    assert "300 duplicates" in again.out
    assert payloads == [*range(1, 301), "a", [1]]
    assert [row["seq"] for row in data.rows()] == [301, 302]
    assert nothing.code == 2
    assert text.err == "", "there is no bar in a pipe"


async def test_a_refused_line_ends_the_command_with_1_and_is_named() -> None:
    async with run_hub(message_bytes_max=1000) as hub:
        lines = b"1\n" + b"x" * 2000 + b"\n3\n"
        done = await cli(hub.url, "publish", "orders", "-", "--lines", "--durable", stdin=lines)

    assert (done.code, done.out) == (1, "")
    assert "message 2 failed; all before it are published" in done.err


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
    assert again.out.endswith(" (duplicate)\n")
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
    assert "a token that permits it" in refused.err


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
