"""A disk that hangs: what waits for it is limited, and whoever does not need it goes on."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator

import pytest

from tests.support.socket.http import Web
from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, eventually, run_stage

MIB = 2**20
BODY = "x" * 10_000
ALICE, BOB = "@(stalled/alice)", "@(stalled/bob)"


class Disk:
    """Syncs as usual, but not while it hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._changed = threading.Condition()
        self._hangs = self._may_sync_once = False
        sync = os.fdatasync

        def delayed(fd: int) -> None:
            with self._changed:
                self._changed.wait_for(lambda: not self._hangs or self._may_sync_once)
                self._may_sync_once = False
            sync(fd)

        monkeypatch.setattr(os, "fdatasync", delayed)

    def hang(self) -> None:
        self._hangs = True

    def sync_once(self) -> None:
        self._may_sync_once = True
        self._notify()

    def go_on(self) -> None:
        self._hangs = False
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def waiting_bytes_max() -> int:
    return 4 * MIB


@pytest.fixture
async def stage(disk: Disk, waiting_bytes_max: int) -> AsyncIterator[InProcess]:
    log = {"waiting_bytes_max": waiting_bytes_max}
    async with run_stage(message_rate=0, log=log) as stage:
        yield stage
        disk.go_on()


def ask(peer: Peer, number: int) -> str:
    return peer.send("hub:send", {"to": BOB, "type": "x", "data": [number, BODY]}, pattern="ask")


def waiting_bytes(stage: InProcess) -> int:
    return stage.hub.app._engine.unwritten.bytes


async def at_rest(stage: InProcess) -> int:
    """What waits for the disk when no more is read."""
    before = -1
    for _ in range(100):
        if before == (before := waiting_bytes(stage)):
            break
        await asyncio.sleep(0.1)
    return before


async def test_who_sends_more_than_a_hanging_disk_takes_is_not_read_until_it_goes_on(
    stage: InProcess, disk: Disk
) -> None:
    bob, alice = await stage.join(BOB), await stage.join(ALICE)
    disk.hang()

    asked = [ask(alice, number) for number in range(200)]
    alone = await at_rest(stage)
    crowd = [await stage.connect(f"@(stalled/{number})") for number in range(20)]
    for one in crowd:
        for number in range(100):
            ask(one, number)
    together = await at_rest(stage)

    assert alone < MIB // 2
    assert together < 4 * MIB
    disk.go_on()
    heard = [await bob.receive("x") for _ in range(200 + 20 * 100)]
    mine = [one["payload"][0] for one in heard if one["from"] == ALICE]
    assert mine == list(range(200))
    assert [(await alice.receive("hub:delivery_ack"))["correlationId"] for _ in asked] == asked
    await eventually(lambda: waiting_bytes(stage) == 0)


async def test_tells_behind_an_ask_that_is_not_on_disk_are_not_read_without_end_either(
    stage: InProcess, disk: Disk
) -> None:
    bob, alice = await stage.join(BOB), await stage.join(ALICE)
    before = stage.hub.app.hub.tally.received
    disk.hang()

    ask(alice, 0)
    for number in range(1, 201):
        alice.tell(BOB, "x", [number, BODY])
    await at_rest(stage)

    assert stage.hub.app.hub.tally.received - before < 100
    disk.go_on()
    assert [(await bob.receive("x"))["payload"][0] for _ in range(201)] == list(range(201))


@pytest.mark.parametrize("waiting_bytes_max", [16 * MIB])
async def test_who_sends_no_more_than_the_disk_takes_is_read_although_some_of_it_always_waits(
    stage: InProcess, disk: Disk
) -> None:
    await stage.join(BOB)
    alice = await stage.join(ALICE)
    unwritten = stage.hub.app._engine.unwritten
    before = unwritten.added
    disk.hang()

    for end in range(before + 10, before + 300, 10):
        for number in range(10):
            ask(alice, number)
        await eventually(lambda end=end: unwritten.added >= end)  # type: ignore[misc]
        disk.sync_once()
        await eventually(lambda end=end: unwritten.written >= end - 10)  # type: ignore[misc]
        assert unwritten.written < unwritten.added


async def test_who_is_not_read_because_of_the_disk_keeps_its_lease(
    stage: InProcess, disk: Disk
) -> None:
    await stage.join(BOB)
    alice = await stage.connect()
    await alice.register(ALICE, ttlSeconds=1)
    disk.hang()
    for number in range(200):
        ask(alice, number)
    await at_rest(stage)

    for number in range(20):
        alice.send("hub:heartbeat", {"timestamp": number}, pattern="ask")
        await asyncio.sleep(0.1)

    hub = stage.hub.app.hub
    await eventually(lambda: hub.registry.find(ALICE, stage.clock.now_ms()) is not None)


async def test_acks_that_are_not_read_because_of_the_disk_are_not_late(
    stage: InProcess, disk: Disk
) -> None:
    bob, alice = await stage.join(BOB), await stage.join(ALICE)
    named = {"topic": "work", "subscription": "done"}
    await bob.ask("hub:topic_create", {"topic": "work"})
    options = {"ackTimeoutMs": 1_000, "backoffMs": 0, "backoffCapMs": 0}
    await alice.ask("hub:subscribe", named | options)
    await bob.ask("hub:publish", {"topic": "work", "type": "job", "data": 1, "durable": True})
    await alice.receive("job")
    disk.hang()
    for number in range(200):
        ask(alice, number)
    await at_rest(stage)

    alice.send("hub:ack", named | {"seqs": [1]})
    await asyncio.sleep(2)
    disk.go_on()
    heard = [await alice.receive("hub:delivery_ack") for _ in range(200)]

    info = (await alice.ask("hub:sub_info", named))["payload"]
    assert len(heard) == 200, "and no copy of the job among it"
    assert (info["redelivered"], info["lag"]) == (0, 0)


@pytest.mark.parametrize("waiting_bytes_max", [20_000])
async def test_refused_messages_are_not_sent_again_while_no_more_may_wait_for_the_disk(
    stage: InProcess, disk: Disk
) -> None:
    alice = await stage.join(ALICE)
    named = {"topic": "work", "subscription": "done"}
    await alice.ask("hub:topic_create", {"topic": "work"})
    options = {"backoffMs": 0, "backoffCapMs": 0, "maxDeliveries": 10_000}
    await alice.ask("hub:subscribe", named | options)
    await alice.ask("hub:publish", {"topic": "work", "type": "job", "durable": True})
    await alice.receive("job")
    disk.hang()

    async def refuse_all() -> None:
        for _ in range(200):
            alice.send("hub:nack", named | {"seqs": [1]})
            await alice.receive("job")

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(refuse_all(), 3)

    assert waiting_bytes(stage) < 21_000
    disk.go_on()
    await alice.receive("job")


async def test_who_adds_nothing_to_the_log_does_not_notice_a_full_queue(
    stage: InProcess, disk: Disk
) -> None:
    bob = await stage.join(BOB)
    crowd = [await stage.connect(f"@(stalled/{number})") for number in range(30)]
    carol = await stage.connect("@(stalled/carol)")
    disk.hang()
    for one in crowd:
        for number in range(100):
            ask(one, number)
    assert await at_rest(stage) > 3 * MIB
    assert (await stage.health())["degradations"] == ["disk_behind"]

    for number in range(500):
        carol.tell(BOB, "y", number)

    assert [(await bob.receive("y"))["payload"] for _ in range(500)] == list(range(500))


async def test_a_crowd_that_sends_one_large_message_each_adds_no_more_than_may_wait(
    stage: InProcess, disk: Disk
) -> None:
    bob = await stage.join(BOB)
    crowd = [await stage.connect(f"@(stalled/{number})") for number in range(10)]
    disk.hang()

    asked = [
        one.send("hub:send", {"to": BOB, "type": "x", "data": BODY * 90}, pattern="ask")
        for one in crowd
    ]
    most = await at_rest(stage)
    disk.go_on()
    answers = [await one.reply_to(message) for one, message in zip(crowd, asked, strict=True)]

    assert most < 5 * MIB
    types = [one["type"] for one in answers]
    refused = [one["payload"] for one in answers if one["type"] == "hub:error"]
    assert types.count("hub:delivery_ack") == len(crowd) - len(refused) == 5
    assert {one["code"] for one in refused} == {"storage_full"}
    assert all(one["retryable"] and "log.waiting_bytes_max" in one["message"] for one in refused)
    for _ in range(5):
        await bob.receive("x")


@pytest.mark.parametrize("waiting_bytes_max", [1_000])
async def test_http_is_refused_while_the_queue_is_full(stage: InProcess, disk: Disk) -> None:
    clients = [Web(stage.port) for _ in range(10)]
    disk.hang()
    answers = [
        asyncio.create_task(client.post("/api/v1/message", posted(number)))
        for number, client in enumerate(clients)
    ]
    done, waiting = await asyncio.wait(answers, timeout=0.5)
    disk.go_on()

    assert {(await one).status for one in waiting} == {200}
    refused = [one.result() for one in done]
    assert {one.status for one in refused} == {503}
    assert all("log.waiting_bytes_max" in one.json["error"] for one in refused)
    for client in clients:
        client.close()


def posted(number: int) -> dict[str, str]:
    return {"roomId": "circle", "messageId": f"m-{number}", "ciphertext": "q83v"}


async def test_a_log_that_fails_lets_everybody_go_on(
    stage: InProcess, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.join(BOB)
    alice = await stage.join(ALICE)
    disk.hang()
    asked = [ask(alice, number) for number in range(200)]
    await at_rest(stage)

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    disk.go_on()

    answers = [await alice.receive() for _ in asked]
    assert {one["correlationId"] for one in answers} == set(asked)
    await eventually(lambda: waiting_bytes(stage) == 0)
