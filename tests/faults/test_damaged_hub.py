"""A whole hub on a damaged log: it never passes off what is left as everything there is.

Every door is tried with every kind of damage. What could lie behind the damage is refused with
`storage_failed`; what needs no log goes on.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import signalhub
from signalhub.engine import local
from signalhub.log.segment import BATCHES_BEGIN
from signalhub.wire.errors import Unavailable
from tests.support.process.command import columns, command
from tests.support.socket.http import Answer, Web
from tests.support.socket.peer import Envelope, Peer
from tests.support.socket.rooms import APPEND, MESSAGE, MESSAGES, default_inbox
from tests.support.socket.stage import InProcess, code_of, run_stage
from tests.support.socket.topics import TOPIC, create, publish

COUNT = 60
SETTINGS: dict[str, Any] = {
    "message_rate": 0,
    "connection_rate": 0,
    "log": {"segment_bytes": 2**16, "cache_bytes": 1},
}
OF_WORK = {"topic": TOPIC, "subscription": "work"}
ROOM = {"X-Room-ID": "general"}
INBOX = {"X-Inbox-ID": default_inbox()}
AWAY, HERE = "@(local/away)", "@(local/here)"
METADATA, PROPOSALS = "/v1/room/metadata", "/v1/room/proposals"


def segments(folder: Path) -> list[Path]:
    found = sorted((folder / "log").glob("*.log"))
    assert len(found) > 3, "the damage needs something before and behind it"
    return found


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def forget_state(folder: Path) -> None:
    """Without a snapshot the start reads the whole log."""
    for one in folder.glob("state.db*"):
        one.unlink()


def in_the_active_segment(folder: Path) -> None:
    flip(segments(folder)[-1], BATCHES_BEGIN + 60)


def header_of_the_active_segment(folder: Path) -> None:
    flip(segments(folder)[-1], 3)


def in_a_sealed_segment(folder: Path) -> None:
    flip(segments(folder)[1], BATCHES_BEGIN + 60)
    forget_state(folder)


def header_of_a_sealed_segment(folder: Path) -> None:
    flip(segments(folder)[1], 3)
    forget_state(folder)


def first_segment_missing(folder: Path) -> None:
    segments(folder)[0].unlink()
    forget_state(folder)


def last_segment_missing(folder: Path) -> None:
    segments(folder)[-1].unlink()


def every_segment_missing(folder: Path) -> None:
    for one in segments(folder):
        one.unlink()
    forget_state(folder)


HIDING = [
    in_the_active_segment,
    header_of_the_active_segment,
    in_a_sealed_segment,
    header_of_a_sealed_segment,
    first_segment_missing,
    last_segment_missing,
    every_segment_missing,
]


@pytest.fixture(autouse=True)
def told_soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(local, "_RETRY_S", 0.01)


@asynccontextmanager
async def damaged(damage: Callable[[Path], None], *, restarts: int = 0) -> AsyncIterator[InProcess]:
    """A hub with a topic, a subscription, a mailbox and a room, restarted on a damaged log."""
    async with run_stage(**SETTINGS) as stage:
        await fill(stage)
        for _ in range(restarts):
            await stage.stop()
            await stage.start()
        await stage.stop()
        stage.send_everybody_away()
        damage(Path(stage.hub.settings.data))
        await stage.start()
        yield stage


async def fill(stage: InProcess) -> None:
    peer = await stage.connect()
    owner = await stage.connect()
    await ok(owner.ask("hub:register", {"actorAddress": AWAY, "capabilities": [], "durable": True}))
    await ok(owner.ask("hub:disconnect"))
    await create(peer)
    await ok(peer.ask("hub:subscribe", OF_WORK))
    web = Web(stage.port)
    for number in range(COUNT):
        await publish(peer, f"{number} {'x' * 4_000}")
        await ok(peer.ask("hub:send", {"to": AWAY, "type": "note", "data": number}))
        message = {"messageId": f"m-{number}", "roomId": "general", "ciphertext": "q83v"}
        assert (await web.post(MESSAGE, message)).status == 200
    assert (await web.put(METADATA, b"blob", ROOM)).status == 204
    web.close()


async def ok(asking: Any) -> Envelope:
    reply: Envelope = await asking
    assert not reply["type"].endswith(("error", "unknown_actor")), reply
    return reply


def requests() -> list[tuple[str, dict[str, Any]]]:
    """Requests whose answer depends on what the log holds."""
    publication = {"type": "note", "data": 1}
    return [
        ("hub:topic_info", {"topic": TOPIC}),
        ("hub:topic_info", {"topic": "never-made"}),
        ("hub:topic_create", {"topic": TOPIC}),
        ("hub:list_topics", {}),
        ("hub:replay", {"topic": TOPIC, "fromSeq": 1}),
        ("hub:replay", {"topic": "never-made", "fromSeq": 1}),
        ("hub:sub_info", OF_WORK),
        ("hub:sub_info", {"topic": TOPIC, "subscription": "never-made"}),
        ("hub:list_subs", {}),
        ("hub:subscribe", OF_WORK),
        ("hub:publish", {"topic": TOPIC, "durable": True} | publication),
        ("hub:publish", {"topic": TOPIC} | publication),
        ("hub:seek", OF_WORK | {"to": {"seq": 1}, "dryRun": True}),
        ("hub:send", {"to": AWAY, "type": "note", "data": 1}),
        ("hub:send", {"to": "@(local/nobody)", "type": "note", "data": 1}),
        ("hub:register", {"actorAddress": AWAY, "capabilities": [], "durable": True}),
        ("hub:register", {"actorAddress": AWAY, "capabilities": [], "durable": False}),
        ("hub:discover", {"pattern": "*", "includeAway": True}),
        ("hub:place", {"actors": ["order/1"]}),
    ]


async def answers(web: Web) -> list[Answer]:
    """The same for rooms."""
    message = {"messageId": "m-new", "ciphertext": "q83v"}
    return [
        await web.get(f"{MESSAGES}?fromSeq=0", INBOX),
        await web.get(f"{MESSAGES}?fromSeq=0", {"X-Inbox-ID": default_inbox("never-used")}),
        await web.get(METADATA, ROOM),
        await web.get("/v1/room/quorum", ROOM),
        await web.get(PROPOSALS, ROOM),
        await web.get(f"{PROPOSALS}/never-made", ROOM),
        await web.put(METADATA, b"new", ROOM | {"If-Match": '"7"'}),
        await web.post(MESSAGE, message | {"roomId": "general"}),
        await web.post(APPEND, message, INBOX),
    ]


@pytest.mark.parametrize("damage", HIDING)
async def test_what_could_lie_behind_the_damage_is_refused_at_every_door(
    damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "signalhub.server")
    async with damaged(damage) as stage:
        # The hub has started twice: before the damage and after it.
        said = [line for line in caplog.messages if line.startswith("the log is recovered")]
        assert said[-1] == "the log is recovered up to the damage"
        peer = await stage.connect()
        replies = {
            f"{type} {payload}": code_of(await peer.ask(type, payload))
            for type, payload in requests()
        }
        web = Web(stage.port)
        told = await answers(web)
        web.close()

        sent = await command(stage.hub.http_url, "room", "send", "general", "x")

        owner = await stage.join("@(local/owner)")
        replies["own address"] = code_of(await owner.ask("hub:unregister", None))

        assert replies == dict.fromkeys(replies, "storage_failed")
        assert [one.status for one in told] == [503] * len(told)
        codes = [one.json["errorCode"] for one in told]
        assert codes == ["storage_failed"] * (len(told) - 2) + ["UNAVAILABLE"] * 2
        assert sent.code == 1
        assert "log is damaged" in sent.err
        assert "try again in 10 s — nothing was done; see the hub's /health" in sent.err
        await works_without_the_log(stage)


@pytest.mark.parametrize("damage", [in_the_active_segment, header_of_a_sealed_segment])
async def test_a_damaged_start_says_nothing_that_has_not_happened(
    damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with damaged(damage) as stage:
        reasons = [one.__dict__["reason"] for one in caplog.records if "reason" in one.__dict__]
        assert reasons
        assert not any("it is missing;" in reason for reason in reasons), "the file is there"
        assert await stage.metric("signal_hub_log_torn_tails_total") == 0, "nothing was cut"


async def works_without_the_log(stage: InProcess, *, is_marked: bool = True) -> None:
    health = await stage.get("/health")
    assert health.status == 503
    said = await stage.health()
    assert "storage_damaged" in said["degradations"]
    assert said["storage"]["segment"].endswith(".log")
    assert "signalhub log verify" in said["storage"]["resolution"]
    sender, here = await stage.connect("@(local/sender)"), await stage.join(HERE)
    sender.tell(HERE, "note", "tells need no log")
    assert (await here.receive("note"))["payload"] == "tells need no log"
    await is_delivered_unrecorded(sender, here, is_marked)


async def is_delivered_unrecorded(sender: Peer, here: Peer, is_marked: bool) -> None:
    """An ask reaches whoever is there; its ack does not claim that it is stored."""
    for attempt in range(2):
        question = {"to": HERE, "type": "question", "data": 7}
        ack = await ok(sender.ask("hub:send", question, id="ask-7"))
        assert ack["payload"]["status"] == "delivered"
        assert ack["payload"]["durability"] == "none"
        assert ack["payload"].get("duplicate", False) is (attempt > 0)
    copy = await here.receive("question")
    delivery = copy["metadata"].get("delivery", {})
    assert delivery.get("redelivered", False) is is_marked
    await here.nothing_more()


async def readable(web: Web) -> tuple[list[int], Answer]:
    """The positions in the room from the first page on, and the answer that ends them."""
    seqs: list[int] = []
    while (page := await web.get(f"{MESSAGES}?fromSeq={len(seqs) + 1}", INBOX)).status == 200:
        seqs += [one["seq"] for one in page.json["messages"]]
        assert page.json["nextSeq"] == seqs[-1] + 1
        assert (page.json["partial"], page.json["reason"]) == (True, "storage_failed")
    return seqs, page


@pytest.mark.parametrize("damage", [in_a_sealed_segment, header_of_a_sealed_segment])
async def test_a_page_of_a_room_ends_before_the_damage_and_says_so(
    damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "forget_state", lambda folder: None)
    async with damaged(damage, restarts=2) as stage, signalhub.hub(stage.hub.http_url) as hub:
        inbox = hub.inbox(INBOX["X-Inbox-ID"])
        web = Web(stage.port)
        seqs, _ = await readable(web)
        behind = await web.get(f"{MESSAGES}?fromSeq={COUNT}", INBOX)
        web.close()
        page = await inbox.fetch(1)
        messages = inbox.messages(timeout_s=1)
        heard = [(await anext(messages)).seq for _ in seqs]
        with pytest.raises(Unavailable, match="log is damaged"):
            await anext(messages)
        done = await command(stage.hub.http_url, "inbox", "fetch", INBOX["X-Inbox-ID"])

        assert seqs
        assert [one["seq"] for one in behind.json["messages"]] == [COUNT]
        assert "partial" not in behind.json
        assert heard == [one.seq for one in page] == seqs
        assert (page.is_partial, page.reason) == (True, "storage_failed")
        assert [int(line[0]) for line in columns(done)] == seqs
        assert (done.code, "its log is damaged" in done.err) == (1, True)


@pytest.mark.parametrize(
    "damage", [in_a_sealed_segment, header_of_a_sealed_segment, first_segment_missing]
)
async def test_a_hub_that_knows_everything_refuses_only_what_it_cannot_read(
    damage: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Snapshot and accepted ids are newer than the damage, which may be found late."""
    monkeypatch.setitem(globals(), "forget_state", lambda folder: None)
    async with damaged(damage, restarts=2) as stage:
        peer = await stage.connect()
        info = await ok(peer.ask("hub:topic_info", {"topic": TOPIC}))
        unknown = await peer.ask("hub:topic_info", {"topic": "never-made"})
        last = await ok(peer.ask("hub:replay", {"topic": TOPIC, "fromSeq": COUNT}))
        whole = await peer.ask("hub:replay", {"topic": TOPIC, "fromSeq": 1})
        web = Web(stage.port)
        seqs, end = await readable(web)
        blob = await web.get(METADATA, ROOM)
        web.close()

        assert info["payload"]["head"] == COUNT
        assert code_of(unknown) == "unknown_topic"
        assert last["payload"]["complete"] is True
        assert code_of(whole) == "storage_failed"
        met = [one for one in caplog.records if one.message == "the log could not be read"]
        assert sum(one.exc_info is not None for one in met) <= 1, "the first time it is news"
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) < COUNT
        assert (end.status, end.json["errorCode"]) == (503, "storage_failed")
        assert blob.body == b"blob"
        await works_without_the_log(stage, is_marked=False)
        for sent in ("first", "second"):
            mail = {"to": AWAY, "type": "note", "data": sent}
            assert code_of(await peer.ask("hub:send", mail)) == "storage_failed"
