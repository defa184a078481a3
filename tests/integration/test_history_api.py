"""What people ask about the past, by HTTP, of a hub whose reader is a real process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

import pytest

import signalhub
from signalhub.auth.permissions import ROLES
from signalhub.server.history.child import HistoryReader, ReadRefused
from signalhub.server.history.questions import ScrollQuestion
from signalhub.testing import FakeClock
from tests.support.socket.stage import eventually
from tests.support.socket.tokens import AUTH, EVERYTHING, token_for
from tests.support.socket.visitors import API, Person, open_hub

ALICE, BOB = "@(demo/alice)", "@(demo/bob)"


@pytest.fixture
async def ann() -> AsyncIterator[Person]:
    """Somebody at a hub without authentication, with three orders and a failed one."""
    async with open_hub() as hub, signalhub.connect(hub.url, ALICE) as me:
        for n in range(1, 4):
            data = {"n": n, "note": "näht" if n == 2 else "plain"}
            await me.publish("orders", "order:new", data, durable=True, key=f"c-{n}")
        yield Person(hub)


async def test_stored_messages_are_listed_the_newest_first(ann: Person) -> None:
    page = await ann.get("/history?stream=orders&limit=2")

    assert [row["key"] for row in page["rows"]] == ["c-3", "c-2"]
    newest = page["rows"][0]
    assert (newest["kind"], newest["type"], newest["sender"]) == ("published", "order:new", ALICE)
    assert (newest["seq"], newest["tier"], newest["cut"]) == (3, "log", False)
    assert json.loads(newest["payload"]) == {"n": 3, "note": "plain"}
    assert not page["complete"]
    rest = await ann.get(f"/history?stream=orders&before={page['next']}")
    assert [row["key"] for row in rest["rows"]] == ["c-1"]
    assert rest["complete"]
    newer = await ann.get(f"/history?stream=orders&after={rest['rows'][0]['position']}")
    assert [row["key"] for row in newer["rows"]] == ["c-3", "c-2"]


async def test_text_is_found_as_it_was_sent(ann: Person) -> None:
    page = await ann.get(f"/history?text={quote('näht')}")

    assert [row["key"] for row in page["rows"]] == ["c-2"]
    assert page["scanned"] >= 3


async def test_one_entry_is_whole(ann: Person) -> None:
    (row,) = (await ann.get("/history?key=c-2"))["rows"]

    entry = await ann.get(f"/history/0/{row['epoch']}/{row['offset']}")

    assert json.loads(entry["payload"]) == {"n": 2, "note": "näht"}
    assert entry["position"] == f"{row['epoch']}.{row['offset']}"
    assert entry == await ann.get(f"/history/{row['epoch']}/{row['offset']}")
    missing = await ann.ask(f"/history/0/{row['epoch']}/999999")
    assert (missing.status, missing.json["errorCode"]) == (404, "not_found")


BAD = {
    "/history?before=yesterday": 400,
    "/history?before=1.2&after=1.3": 400,
    "/history?kinds=nonsense": 400,
    "/history?limit=many": 400,
    "/history/0/1/x": 400,
    "/history/7/1/1": 404,
    "/letters": 400,
    "/letters?topic=nowhere": 404,
    "/lake/tables/nowhere": 400,
    "/history/counts?from=5&to=1": 400,
    "/calls/" + "x" * 300: 400,
    "/hosts/nobody/actors": 404,
}


async def test_a_bad_request_says_what_to_do(ann: Person) -> None:
    for path, status in BAD.items():
        answer = await ann.ask(path)
        assert answer.status == status, (path, answer.body)
        assert answer.json["error"], path
        assert answer.json["resolution"], path


async def test_dead_letters_are_listed_with_their_reasons(ann: Person) -> None:
    async with signalhub.connect(ann.hub.url, BOB) as me:
        consumer = await me.consume("orders", "billing", poison="dead_letter", start="earliest")
        async with asyncio.timeout(20):
            async for message in consumer:
                await message.term(reason="no such customer")
                if message.payload["n"] == 3:
                    break
        await consumer.close()
    await eventually(lambda: ann.hub.app.hub.streams.topics["orders.dlq"].head == 3)

    page = await ann.get("/letters?topic=orders.dlq&limit=2")

    assert [row["key"] for row in page["rows"]] == ["c-3", "c-2"]
    first = page["rows"][0]
    assert (first["source"], first["subscription"]) == ("orders", "billing")
    assert (first["reason"], first["originalSeq"]) == ("no such customer", 3)
    assert (page["waiting"], page["ever"], page["through"]) == (3, 3, 3)
    rest = await ann.get(f"/letters?topic=orders.dlq&before={page['next']}")
    assert [row["seq"] for row in rest["rows"]] == [1]
    assert rest["complete"]
    none = await ann.get("/letters?topic=orders.dlq&reason=another")
    assert none["rows"] == []
    (topic,) = (await ann.get("/letters/topics"))["topics"]
    assert topic == {"topic": "orders.dlq", "waiting": 3, "ever": 3}
    await ann.web.post(f"{API}/letters/purge", {"topic": "orders.dlq", "seqs": [2]})
    await eventually(lambda: 2 in ann.hub.app.hub.streams.topics["orders.dlq"].removed)
    left = await ann.get("/letters?topic=orders.dlq")
    assert [row["seq"] for row in left["rows"]] == [3, 1]
    assert left["waiting"] == 2
    assert (await ann.get("/history?kinds=published&key=c-2"))["rows"][-1]["became"] == [
        {"recipient": "orders/billing", "outcome": "dead_lettered"}
    ]
    (purged,) = (await ann.get("/actions?verb=delete"))["rows"]
    assert (purged["over"], purged["request"]) == ("orders.dlq", "hub:purge")


async def test_without_a_lake_the_api_says_so(ann: Person) -> None:
    lake = await ann.get("/lake")
    assert (lake["pipeline"], lake["state"], lake["tables"]) == ("off", "off", [])
    counts = await ann.get("/history/counts")
    assert counts["unit"] == "entries"
    assert sum(one["count"] for one in counts["buckets"]) >= 3
    assert (await ann.get("/lake/audit"))["hours"] == []
    series = await ann.get("/history/series?names=in&from=0&to=7200000")
    assert series["series"]["in"] == [None, None]
    for path, body in (("/lake/audit", {}), ("/replay", {"where": "true", "to": "topic:orders"})):
        refused = await ann.ask(path, body)
        assert (refused.status, refused.json["errorCode"]) == (409, "no_lake")


# Permissions.


async def test_who_may_not_read_sees_no_contents() -> None:
    clock = FakeClock()
    async with open_hub(clock=clock, auth=AUTH) as hub:
        own = token_for("demo/alice", clock, permissions=EVERYTHING | {"create": ["*"]})
        async with signalhub.connect(hub.url, ALICE, token=own) as me:
            await me.publish("orders", "order:new", {"secret": 1}, durable=True, key="c-1")
        viewer = Person(hub, token_for("ui/vera", clock, permissions=dict(ROLES["viewer"])))
        operator = Person(hub, token_for("ui/otto", clock, permissions=dict(ROLES["operator"])))
        nobody = Person(hub, token_for("ui/nemo", clock, permissions={}))

        (row,) = (await viewer.get("/history?stream=orders"))["rows"]
        assert row["withheld"]
        assert (row["payload"], row["key"], row["type"]) == (None, None, None)
        assert (await viewer.get("/history?text=secret"))["rows"] == []
        assert (await viewer.get("/history?key=c-1"))["rows"] == []
        place = f"/history/0/{row['epoch']}/{row['offset']}"
        assert (await viewer.get(place))["payload"] is None
        (seen,) = (await operator.get("/history?text=secret"))["rows"]
        assert json.loads(seen["payload"]) == {"secret": 1}
        for path in ("/history", place, "/letters/topics", "/actions", "/lake", "/hosts"):
            assert (await nobody.ask(path)).status == 403
            assert (await Person(hub).ask(path)).status == 401
        for path in ("/lake/audit", "/replay"):
            assert (await viewer.ask(path, {"where": "true", "to": "x"})).status == 403
        assert (await operator.ask("/replay", {"where": "true", "to": "x"})).status == 403


# The process.


async def test_the_process_runs_only_when_somebody_asks(ann: Person) -> None:
    reader = ann.desk.reader
    assert reader.pid is None

    await ann.get("/history")

    pid = reader.pid
    assert pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pid) == 10
    assert os.getsid(pid) != os.getsid(0)
    await ann.get("/history")
    assert reader.pid == pid
    reader._rest()
    await eventually(lambda: not Path(f"/proc/{pid}").exists())


async def test_a_killed_process_is_said_and_the_hub_goes_on(ann: Person) -> None:
    await ann.get("/history")
    pid = ann.desk.reader.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    search = asyncio.ensure_future(ann.ask("/history?text=nothing"))
    await eventually(lambda: ann.desk.reader.tally.questions == 2)

    os.kill(pid, signal.SIGKILL)
    answer = await search

    assert (answer.status, answer.json["errorCode"]) == (503, "history_unavailable")
    async with signalhub.connect(ann.hub.url, BOB) as me:
        await me.publish("orders", "order:new", {"n": 4}, durable=True)
    assert len((await ann.get("/history?stream=orders"))["rows"]) == 4
    assert ann.desk.reader.pid not in (pid, None)
    assert ann.desk.reader.tally.starts == 2


async def test_a_second_search_of_the_same_person_ends_the_first(ann: Person) -> None:
    await ann.get("/history")
    pid = ann.desk.reader.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    first = asyncio.ensure_future(Person(ann.hub).ask("/history?text=nothing"))
    await eventually(lambda: ann.desk.reader.tally.questions == 2)
    second = asyncio.ensure_future(Person(ann.hub).ask("/history?text=plain"))
    await eventually(lambda: ann.desk.reader._waiting == 2)

    os.kill(pid, signal.SIGCONT)

    assert (await second).status == 200
    ended = await first
    # It was over before it was asked to end, or not.
    assert ended.status in (200, 409)
    if ended.status == 409:
        assert ended.json["errorCode"] == "search_replaced"


SCRIPT = """
import socket, sys
from signalhub.server.history.questions import *
from signalhub.server.history.reader.process import HubLink
link = HubLink(socket.socket(fileno=int(sys.argv[-1])))
while (ask := link.next()) is not None:
    {body}
"""


def scripted(body: str, **options: Any) -> HistoryReader:
    """A reader whose process does what a test says."""
    return HistoryReader([sys.executable, "-c", SCRIPT.format(body=body)], **options)


async def test_a_process_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signalhub.server.history.child.START_S", 0.0)
    reader = scripted("pass", answer_s=0.3)

    with pytest.raises(ReadRefused) as refused:
        await reader.ask(ScrollQuestion())

    assert (refused.value.status, refused.value.code) == (504, "history_timeout")
    assert reader.pid is None
    await reader.stop()


async def test_a_process_that_has_grown_too_large_is_replaced() -> None:
    reader = scripted(
        "link.send(Reply(ask.id, b'{}', resident_bytes=10**9 * (ask.id == 2)))",
    )

    assert await reader.ask(ScrollQuestion()) == b"{}"
    assert reader.pid is not None
    assert await reader.ask(ScrollQuestion()) == b"{}"
    assert reader.pid is None
    assert await reader.ask(ScrollQuestion()) == b"{}"
    assert reader.tally.starts == 2
    await reader.stop()


async def test_an_idle_process_is_ended() -> None:
    reader = scripted("link.send(Reply(ask.id, b'{}'))", idle_s=0.05)
    await reader.ask(ScrollQuestion())

    await eventually(lambda: reader.pid is None)

    await reader.stop()


async def test_nobody_waits_for_an_answer_that_was_given_up() -> None:
    reader = scripted("link.send(Reply(ask.id, b'%d' % ask.id))")
    first = asyncio.ensure_future(reader.ask(ScrollQuestion()))
    await eventually(lambda: reader.tally.starts == 1)
    first.cancel()

    assert await reader.ask(ScrollQuestion()) == b"2"

    await reader.stop()


async def test_few_people_search_at_once() -> None:
    reader = scripted("pass", searches_max=2)
    ask = partial(reader.ask, ScrollQuestion(), is_long=True)
    searches = [asyncio.ensure_future(ask(search_of=name)) for name in ("ann", "bob", "ann")]
    await eventually(lambda: reader._waiting == 3)

    with pytest.raises(ReadRefused) as refused:
        await ask(search_of="carol")

    assert (refused.value.status, refused.value.code) == (429, "too_many_searches")
    for search in searches:
        search.cancel()
    await reader.stop()


async def test_the_hub_takes_the_same_steps_however_much_is_searched(ann: Person) -> None:
    await ann.get("/history")

    async def steps() -> int:
        count = 0

        def note(frame: FrameType, event: str, _: Any) -> None:
            nonlocal count
            count += event == "call" and "/server/history/" in frame.f_code.co_filename

        sys.setprofile(note)
        try:
            page = await ann.get("/history?text=nothing&limit=500")
        finally:
            sys.setprofile(None)
        scanned.append(page["scanned"])
        return count

    scanned: list[int] = []
    few = await steps()
    async with signalhub.connect(ann.hub.url, BOB) as me:
        notes = (me.publish("notes", "note", n, durable=True) for n in range(1_000))
        await asyncio.gather(*notes)

    many = await steps()

    assert many == few
    assert scanned[1] > 50 * scanned[0]
