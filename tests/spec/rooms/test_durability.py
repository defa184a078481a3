"""Hubs that are killed the moment they have answered: what they said stays true."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.socket.guest import Guest, sealed
from tests.support.socket.http import HungUp
from tests.support.socket.peer import Closed
from tests.support.socket.rooms import (
    INBOX,
    OTHER_INBOX,
    ROOM,
    House,
    SpawnedHouse,
    accepted,
    is_replay,
    refused,
    spawn_house,
    stored,
)

METADATA, PROPOSALS = "/v1/room/metadata", "/v1/room/proposals"


async def test_message_survives_a_kill_right_after_its_answer() -> None:
    async with spawn_house() as house:
        for life in range(3):
            seq = await house.sent(f"m-{life}", inbox=INBOX, ciphertext=sealed(f"text {life}"))
            assert seq == life + 1

            await house.crash()

            page = await house.read(INBOX)
            assert page.seqs == list(range(1, life + 2))
            assert page.messages[life]["ciphertext"] == sealed(f"text {life}")
            repeat = await house.send(f"m-{life}", inbox=INBOX)
            assert (accepted(repeat), is_replay(repeat)) == (life + 1, True)


async def test_message_survives_a_kill_right_after_its_ack() -> None:
    async with spawn_house() as house:
        guest = await house.join(inbox=INBOX)
        seqs = [await guest.accepted(f"m-{number}") for number in range(1, 11)]

        await house.crash()

        assert seqs == list(range(1, 11))
        assert (await house.read(INBOX)).seqs == seqs
        guest = await house.join(inbox=INBOX)
        assert guest.welcome["lastSeq"] == 10
        for number in range(1, 11):
            ack = await guest.submit(f"m-{number}")
            assert (ack["seq"], ack["duplicate"]) == (number, True)
        assert await guest.accepted("m-11") == 11


async def test_append_survives_a_kill_right_after_its_answer() -> None:
    async with spawn_house() as house:
        assert await house.appended(INBOX, "a") == 1

        await house.crash()

        repeat = await house.append(INBOX, "a")
        assert (stored(repeat), is_replay(repeat)) == (1, True)
        assert await house.appended(INBOX, "b") == 2
        assert (await house.read(INBOX)).ids == ["a", "b"]


async def test_bindings_blobs_and_proposals_survive_a_kill() -> None:
    room = {"X-Room-ID": ROOM}
    async with spawn_house() as house:
        await house.join("joined", inbox=OTHER_INBOX)
        await house.crash()
        assert refused(await house.send("x", "joined", inbox="another"), 409) == "CONFLICT"
        assert refused(await house.send("x", "another", inbox=OTHER_INBOX), 409) == "CONFLICT"

        await house.sent("a", inbox=INBOX, type="mls_proposal", proposalId="p")
        await house.crash()
        assert refused(await house.send("x", inbox="another"), 409) == "CONFLICT"
        (record,) = (await house.web.get(PROPOSALS, room)).json["proposals"]
        assert (record["status"], record["encryptedContent"]) == ("pending", sealed("a"))

        await house.sent("b", type="mls_approval", proposalId="p")
        await house.sent("c", type="mls_commit", proposalId="p")
        assert (await house.web.put(METADATA, b"first", room)).status == 204
        assert (await house.web.put(METADATA, b"second", room)).header("ETag") == '"2"'
        await house.crash()
        (record,) = (await house.web.get(PROPOSALS, room)).json["proposals"]
        assert (record["status"], record["encryptedApprovals"]) == ("committed", [sealed("b")])
        blob = await house.web.get(METADATA, room)
        assert (blob.body, blob.header("ETag")) == (b"second", '"2"')
        answer = await house.web.put(METADATA, b"third", room | {"If-Match": '"2"'})
        assert answer.header("ETag") == '"3"'


class Sender:
    """Sends without end and writes down what it was told, until the hub is gone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: dict[str, int] = {}
        self.first_told = asyncio.Event()

    def learn(self, message_id: str, seq: int) -> None:
        self.told[message_id] = seq
        if len(self.told) == 20:
            self.first_told.set()

    async def post(self, house: House) -> None:
        web = house.another_web()
        try:
            for number in range(100_000):
                message_id = f"{self.name}-{number}"
                self.learn(message_id, accepted(await house.send(message_id, web=web), message_id))
        except (HungUp, ConnectionError):
            return

    async def submit(self, guest: Guest) -> None:
        try:
            for number in range(100_000):
                guest.send(f"{self.name}-{number}")
                if number >= 10:
                    ack = await guest.reply()
                    self.learn(ack["messageId"], ack["seq"])
        except Closed:
            return


async def crowd(house: SpawnedHouse) -> tuple[dict[str, int], dict[int, str]]:
    """Senders of both kinds until the hub is killed; what they were told, and what was heard."""
    listener = await house.join()
    guests = [await house.join() for _ in range(3)]
    senders = [Sender(f"s-{number}") for number in range(6)]
    heard: dict[int, str] = {}

    async def listen() -> None:
        try:
            while True:
                told = await listener.receive("message")
                heard[told["seq"]] = told["messageId"]
        except Closed:
            return

    async with asyncio.TaskGroup() as group:
        group.create_task(listen())
        for sender, guest in zip(senders, guests, strict=False):
            group.create_task(sender.submit(guest))
        for sender in senders[3:]:
            group.create_task(sender.post(house))
        for sender in senders:
            await sender.first_told.wait()
        await house.hub.kill()
    house.forget_connections()
    await house.hub.start()
    return {one: seq for sender in senders for one, seq in sender.told.items()}, heard


@pytest.mark.parametrize("attempt", range(2))
async def test_kill_amid_traffic_loses_nothing_that_anybody_was_told(attempt: int) -> None:
    async with spawn_house(rate=1_000_000, fetch_rate=10_000, hub={"message_rate": 0}) as house:
        await house.sent("first", inbox=INBOX)

        told, heard = await crowd(house)

        kept = {one["messageId"]: one["seq"] for one in await house.read_all(INBOX)}
        assert list(kept.values()) == list(range(1, len(kept) + 1))
        assert told.items() <= kept.items()
        assert {one: seq for seq, one in heard.items()}.items() <= kept.items()
        assert (await house.join()).welcome["lastSeq"] == len(kept)
        for message_id in list(told)[::25]:
            repeat = await house.send(message_id)
            assert (accepted(repeat), is_replay(repeat)) == (told[message_id], True)
        assert await house.sent("last") == len(kept) + 1
