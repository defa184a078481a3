"""Rooms of a real hub that is killed under load: what was answered is there, where it was said.

There is a fifth of the kills of the other loop; `SIGNALHUB_CHAOS_SEED` is the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from random import Random

import pytest

from signalhub.testing import HubProcess, spawn_hub
from tests.support.socket.guest import Guest, encoded, knock
from tests.support.socket.http import HungUp, Web
from tests.support.socket.peer import Closed
from tests.support.volume import KILLS

CYCLES = max(1, KILLS // 5)
SEED = int(os.environ.get("SIGNALHUB_CHAOS_SEED", "1"))
ROOMS = ("harbour", "market", "mill")
# Half of them over HTTP, half of them on sockets.
SENDERS = 6
KILL_AFTER_S = (0.05, 0.6)
PAUSE_S = 0.02
UNLIMITED = {"rate": 10**6, "fetch_rate": 10**6, "append_rate": 10**6}

CUT_OFF = (HungUp, Closed, ConnectionError, TimeoutError, asyncio.IncompleteReadError)


class Evidence:
    """What clients saw."""

    def __init__(self) -> None:
        # Room and message id to the position an answer gave it.
        self.answered: dict[tuple[str, str], int] = {}
        # Room and position to the id a socket heard there.
        self.heard: dict[tuple[str, int], str] = {}
        self.repeats = 0
        self.is_over = False

    def note_answer(self, room: str, message_id: str, seq: int) -> None:
        self.repeats += (room, message_id) in self.answered
        known = self.answered.setdefault((room, message_id), seq)
        assert known == seq, f"an id was answered with {known} and with {seq}"

    def note_heard(self, room: str, seq: int, message_id: str) -> None:
        known = self.heard.setdefault((room, seq), message_id)
        assert known == message_id, f"two messages were heard at {seq}"


async def send(hub: HubProcess, evidence: Evidence, number: int, random: Random) -> None:
    """Send one message after the other; each until it is answered, some of them once more."""
    web = Web(hub.port)
    for turn in count():
        if evidence.is_over:
            break
        room, message_id = random.choice(ROOMS), f"s{number}-{turn}"
        answered = partial(_submitted, hub) if number % 2 else partial(_posted, web)
        while not await answered(evidence, room, message_id):
            pass
        if random.random() < 0.1:
            await answered(evidence, room, message_id)
    web.close()


async def _posted(web: Web, evidence: Evidence, room: str, message_id: str) -> bool:
    try:
        body = {"roomId": room, "messageId": message_id, "ciphertext": "q83v"}
        answer = await web.post("/api/v1/message", body)
    except CUT_OFF:
        await asyncio.sleep(PAUSE_S)
        return False
    assert answer.status == 200, answer
    evidence.note_answer(room, message_id, answer.json["seq"])
    return True


async def _submitted(hub: HubProcess, evidence: Evidence, room: str, message_id: str) -> bool:
    try:
        async with _joined(hub, room) as guest:
            ack = await guest.submit(message_id)
    except CUT_OFF:
        await asyncio.sleep(PAUSE_S)
        return False
    evidence.note_answer(room, message_id, ack["seq"])
    return True


async def listen(hub: HubProcess, evidence: Evidence, room: str) -> None:
    """Listen in a room, again and again; on one socket positions only rise."""
    while not evidence.is_over:
        try:
            async with _joined(hub, room) as guest:
                last = guest.welcome["lastSeq"]
                while not evidence.is_over:
                    told = await guest.receive("message")
                    assert told["seq"] > last
                    last = told["seq"]
                    evidence.note_heard(room, last, told["messageId"])
        except CUT_OFF:
            await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def _joined(hub: HubProcess, room: str) -> AsyncIterator[Guest]:
    headers = {"X-Room-ID": room, "X-Pseudonym-ID": "listener"}
    guest = await knock(hub.port, "/room", headers)
    try:
        yield guest
    finally:
        guest.abort()


async def whole_inbox(hub: HubProcess, inbox: str) -> list[tuple[int, str]]:
    """Everything in it, page by page."""
    web = Web(hub.port)
    found: list[tuple[int, str]] = []
    next_seq = 0
    while True:
        path = f"/v1/inbox/messages?fromSeq={next_seq}&limit=1000"
        page = (await web.get(path, {"X-Inbox-ID": inbox})).json
        if not page["messages"]:
            web.close()
            return found
        found += [(one["seq"], one["messageId"]) for one in page["messages"]]
        next_seq = page["nextSeq"]


@pytest.mark.timeout(900)
async def test_rooms_of_a_hub_that_is_killed_lose_and_move_nothing() -> None:
    random = Random(SEED)
    evidence = Evidence()
    async with spawn_hub(rooms=UNLIMITED, connection_rate=0) as hub:
        clients = [
            *(send(hub, evidence, number, Random(f"{SEED} {number}")) for number in range(SENDERS)),
            *(listen(hub, evidence, room) for room in ROOMS),
        ]
        tasks = [asyncio.create_task(client) for client in clients]
        try:
            for _ in range(CYCLES):
                await asyncio.sleep(random.uniform(*KILL_AFTER_S))
                await hub.restart()
        finally:
            evidence.is_over = True
            for task in tasks[SENDERS:]:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        faults = [one for one in outcomes if isinstance(one, Exception)]
        assert not faults, faults
        inboxes = {room: await whole_inbox(hub, encoded(room)) for room in ROOMS}

    places = {(room, seq): one for room in ROOMS for seq, one in inboxes[room]}
    for found in inboxes.values():
        assert [seq for seq, _ in found] == list(range(1, len(found) + 1))
        assert len({message_id for _, message_id in found}) == len(found)
        assert len(found) > CYCLES
    assert {(room, places[room, seq]): seq for room, seq in places} == evidence.answered
    assert evidence.heard.items() <= places.items()
    assert evidence.heard
    assert evidence.repeats
