"""Durable topics, publishing and mailboxes on the command line."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from signalhub import Client
from signalhub.testing import ScriptedHub, run_hub
from tests.support.process.command import SENDER, Run, columns, command, fill, sheet

FROM = ("--from", "demo/alice")
MANY = [str(number).encode() for number in range(1, 301)]


async def test_a_topic_is_made_once_and_refused_with_another_definition(run: Run) -> None:
    create = ("topic", "create", "orders", "--durable", "--retention", "7d", "--poison", "drop")
    made = await run(*create)
    again = await run(*create, "--json")
    other = await run("topic", "create", "orders", "--retention", "6d")

    assert made.code == again.code == 0, made.err
    assert made.out.startswith("topic orders is ready (epoch ")
    assert made.out.endswith(", 0 messages)\n")
    assert again.rows()[0]["topic"] == "orders"
    assert other.code == 1
    assert "signalhub topic set" in other.err


async def test_topics_are_listed_shown_and_changed(run: Run, me: Client) -> None:
    await fill(me, 2, retention_s=3600, poison="drop")
    await fill(me, 1, "orders.eu")

    listed = await run("topic", "ls", "orders*")
    changed = await run("topic", "set", "orders", "--retention-bytes", "1G")
    (facts,) = (await run("topic", "info", "orders", "--json")).rows()

    assert columns(listed) == [
        ["orders", "1", "2", "1h", "drop", ""],
        ["orders.eu", "1", "1", "", "block", ""],
    ]
    assert sheet(changed)["retention_bytes"] == str(2**30)
    assert (facts["head"], facts["retention_s"], facts["retention_bytes"]) == (2, 3600, 2**30)


async def test_ls_pages_through_all_topics(run: Run, me: Client) -> None:
    names = [f"many.{number:03d}" for number in range(130)]
    await asyncio.gather(*(me.create_topic(name) for name in names))

    listed = await run("topic", "ls", "--json")

    assert [row["topic"] for row in listed.rows()] == names


async def test_read_prints_a_part_and_says_where_to_go_on(run: Run, me: Client) -> None:
    await fill(me, 5)
    read = ("topic", "read", "orders", "--from")

    part = await run(*read, "2", "--limit", "2")
    whole = await run(*read, "2", "--to", "4", "--json")
    beyond = await run(*read, "9")

    assert columns(part) == [["orders", str(n), "1", SENDER, "n", str(n)] for n in (2, 3)]
    assert "--from 4" in part.err
    assert [(row["seq"], row["payload"]) for row in whole.rows()] == [(2, 2), (3, 3), (4, 4)]
    assert (whole.err, beyond.out, beyond.code) == ("", "", 0)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (2, "note: seq 1 to 3 are no longer stored\nthere may be more: continue with --from 6\n"),
        (3, "note: seq 1 to 3 are no longer stored\n"),
    ],
)
async def test_read_says_what_is_lost_and_also_where_to_continue(limit: int, words: str) -> None:
    async with ScriptedHub() as hub:
        running = command(hub.url, "topic", "read", "orders", "--limit", str(limit))
        reading = asyncio.create_task(running)
        peer = await hub.accept()
        peer.answer(await peer.receive("hub:connect"), "hub:connected", {"sessionId": "s-1"})
        request = await peer.receive("hub:replay")
        for seq in (4, 5):
            delivery = {"epoch": "e1", "seq": seq, "publishedAt": 1}
            metadata = {"topic": "orders", "replay": True, "delivery": delivery}
            peer.send("n", seq, sender=SENDER, metadata=metadata)
        end = {"complete": limit > 2, "next": 6, "lostFrom": 1, "lostTo": 3}
        peer.answer(request, "hub:replayed", {"count": 2} | end)
        peer.answer(await peer.receive("hub:disconnect"), "hub:disconnect", {"acknowledged": True})
        read = await reading

    assert [line[1] for line in columns(read)] == ["4", "5"]
    assert (read.code, read.err) == (0, words)


async def test_a_topic_is_deleted_only_when_that_is_confirmed(run: Run, me: Client) -> None:
    await fill(me, 3)

    refused = await run("topic", "delete", "orders")
    kept = await run("topic", "info", "orders")
    deleted = await run("topic", "delete", "orders", "--yes")

    assert (refused.code, kept.code, deleted.code) == (2, 0, 0)
    assert "messages up to seq 3" in refused.err
    assert "--yes" in refused.err
    assert deleted.out == "deleted topic orders\n"


async def test_an_unknown_topic_is_said_to_be_unknown_by_every_command(run: Run) -> None:
    for words in (
        "topic info nothing",
        "topic set nothing --retention 1d",
        "topic read nothing",
        "topic delete nothing --yes",
        "subscribe nothing --as billing",
        "sub ls nothing",
        "sub info nothing billing",
        "sub seek nothing billing earliest",
        "dlq ls nothing",
        "dlq purge nothing.dlq --all --yes",
    ):
        done = await run(*words.split(), "--json")
        (missing,) = (word for word in words.split() if word.startswith("nothing"))

        assert (done.code, done.out) == (1, ""), words
        assert json.loads(done.err)["error"] == "unknown_topic"
        assert json.loads(done.err)["message"] == f"There is no durable topic {missing!r}."
        assert "signalhub topic ls" in json.loads(done.err)["resolution"]


async def test_a_durable_publish_prints_its_position(run: Run, me: Client) -> None:
    options = ("--durable", "--key", "k", "--header", "a=b", "--header", "c=d=e", "--type", "order")
    text = await run("publish", "orders", "1", *options)
    (facts,) = (await run("publish", "orders", "2", "--json")).rows()
    (plain,) = (await run("publish", "news", "3", "--json")).rows()
    (first, _) = [one async for one in me.replay("orders")]

    assert text.code == 0, text.err
    assert text.out == f"seq 1 of epoch {facts['epoch']}, fsync, 0 subscribers\n"
    assert (facts["seq"], facts["durability"], facts["duplicate"]) == (2, "fsync", False)
    assert (plain["seq"], plain["subscribers"]) == (None, 0)
    assert (first.key, first.headers, first.type) == ("k", {"a": "b", "c": "d=e"}, "order")


async def test_every_line_becomes_a_message_in_order_and_counts_once(run: Run, me: Client) -> None:
    publish = ("publish", "orders", "-", "--lines", "--durable", "--id", "import", *FROM)
    text = await run(*publish, stdin=b"\n".join(MANY) + b"\n\n")
    again = await run(*publish, stdin=b"\n".join(MANY))
    data = await run("publish", "orders", "-", "--lines", "--json", stdin=b"a\n[1]\n")
    nothing = await run(*publish, stdin=b"\n")
    single = ("publish", "orders", "1", "--id", "order-1", *FROM)
    await run(*single)
    repeat = await run(*single)
    payloads = [one.payload async for one in me.replay("orders")]

    assert text.out.startswith("300 messages, the last is seq 300 of epoch ")
    assert text.err == "", "there is no bar in a pipe"
    assert "300 duplicates" in again.out
    assert [row["seq"] for row in data.rows()] == [301, 302]
    assert nothing.code == 2
    assert repeat.out.endswith(" (duplicate)\n")
    assert payloads == [*range(1, 301), "a", [1], 1]


async def test_a_refused_line_ends_the_command_and_is_named() -> None:
    async with run_hub(message_bytes_max=1000) as hub:
        lines = b"1\n" + b"x" * 2000 + b"\n3\n"
        done = await command(hub.url, "publish", "orders", "-", "--lines", "--durable", stdin=lines)

    assert (done.code, done.out) == (1, "")
    assert "message 2 failed; all before it are published" in done.err


async def test_only_newlines_end_a_line_of_the_input(run: Run, me: Client) -> None:
    texts = ["one\u2028still one", "two\x85\x0cstill two", "three"]
    given = "".join(f"{text}\r\n\n" for text in texts).encode()

    done = await run("publish", "orders", "-", "--lines", "--durable", stdin=given)

    assert done.out.startswith("3 messages")
    assert [one.payload async for one in me.replay("orders")] == texts


async def test_a_delayed_message_is_delivered_when_it_is_due(run: Run, me: Client) -> None:
    await fill(me, 0)
    due = datetime.now(UTC) + timedelta(hours=1)
    later = await run("publish", "orders", "1", "--deliver-at", due.isoformat())
    soon = await run("publish", "orders", "2", "--delay", "50ms", "--ttl", "1h")

    subscribe = ("subscribe", "orders", "--as", "billing", "--count", "1", "--json")
    done = await run(*subscribe)
    info = await me.subscription("orders", "billing")

    assert (later.code, soon.code, done.code) == (0, 0, 0)
    assert [row["payload"] for row in done.rows()] == [2]
    assert (info.parked, info.lag) == (1, 0)


async def test_a_mailbox_is_filled_emptied_and_dropped(run: Run) -> None:
    listen = ("listen", "demo/bob")
    made = await run(*listen, "--durable", "--for", "0.1")
    text = await run("ask", "demo/bob", "1")
    data = await run("ask", "demo/bob", "2", "--json", "--id", "two", *FROM)
    again = await run("ask", "demo/bob", "2", "--id", "two", *FROM)
    found = await run(*listen, "--ack", "--count", "2", "--json")
    empty = await run(*listen, "--for", "0.3")
    dropped = await run(*listen, "--no-durable", "--for", "0.1")
    gone = await run("ask", "demo/bob", "3")

    (facts,) = data.rows()
    assert (made.code, dropped.code, gone.code) == (0, 0, 1), made.err
    assert text.out == f"queued, seq 1 of epoch {facts['epoch']}, fsync\n"
    assert (facts["status"], facts["seq"], facts["duplicate"]) == ("queued", 2, False)
    assert again.out.endswith(" (duplicate)\n")
    assert [(row["seq"], row["payload"]) for row in found.rows()] == [(1, 1), (2, 2)]
    assert empty.out == ""
    assert "@(demo/bob)" in gone.err
