"""Requests that come in unusual ways: several at once, in pieces, and from clients that vanish."""

from __future__ import annotations

import asyncio
import json

from tests.support.socket.guest import sealed
from tests.support.socket.http import JSON, Answer, read_answer, request_bytes
from tests.support.socket.mailboxes import held_disk
from tests.support.socket.rooms import (
    MESSAGE,
    MESSAGES,
    ROOM,
    accepted,
    default_inbox,
    is_replay,
    open_house,
    page_of,
    refused,
)

DEFAULT = default_inbox(ROOM)


def posted(message_id: str, ciphertext: str | None = None) -> bytes:
    """The bytes of a message over HTTP."""
    envelope = {"messageId": message_id, "roomId": ROOM, "ciphertext": ciphertext or sealed("x")}
    return request_bytes("POST", MESSAGE, JSON, json.dumps(envelope).encode())


def fetched() -> bytes:
    return request_bytes("GET", MESSAGES, {"X-Inbox-ID": DEFAULT})


async def exchange(port: int, number: int, *pieces: bytes) -> list[Answer]:
    """Write pieces, each after the hub had a chance to look at the one before; read answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            return [await read_answer(reader) for _ in range(number)]
    finally:
        writer.transport.abort()


async def test_requests_written_at_once_are_answered_in_their_order() -> None:
    async with open_house() as house:
        requests = [posted(f"m-{number}") for number in range(1, 31)]
        requests[10:10] = [fetched()]
        requests.append(posted("m-5"))
        requests.append(posted("m-31", "no base64"))
        requests.append(fetched())

        answers = await exchange(house.port, len(requests), b"".join(requests))

        assert page_of(answers.pop(10)).seqs == list(range(1, 11))
        assert page_of(answers.pop()).seqs == list(range(1, 31))
        assert refused(answers.pop(), 400) == "BAD_ENVELOPE"
        repeat = answers.pop()
        assert (accepted(repeat, "m-5"), is_replay(repeat)) == (5, True)
        assert [accepted(answer) for answer in answers] == list(range(1, 31))


async def test_request_in_small_pieces_is_one_request() -> None:
    async with open_house() as house:
        data = posted("a") + fetched()

        answers = await exchange(
            house.port, 2, *(data[at : at + 3] for at in range(0, len(data), 3))
        )

        assert accepted(answers[0], "a") == 1
        assert page_of(answers[1]).ids == ["a"]


async def test_body_may_be_chunked() -> None:
    body = json.dumps({"messageId": "a", "roomId": ROOM, "ciphertext": sealed("a")}).encode()
    chunks = [body[:10], body[10:11], body[11:]]
    headers = JSON | {"Transfer-Encoding": "chunked"}
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    async with open_house() as house:
        data = request_bytes("POST", MESSAGE, headers) + framed + b"0\r\n\r\n"

        (answer,) = await exchange(house.port, 1, data)

        assert accepted(answer, "a") == 1
        assert (await house.read(DEFAULT)).messages[0]["ciphertext"] == sealed("a")


async def test_message_of_a_client_that_does_not_wait_for_its_answer_is_kept() -> None:
    async with open_house() as house:
        guest = await house.join()
        with held_disk() as disk:
            disk.hold()
            for data in (posted("a"), fetched(), posted("b")):
                _, writer = await asyncio.open_connection("127.0.0.1", house.port)
                writer.write(data)
                await writer.drain()
                if data == posted("a"):
                    await disk.wait()
                await guest.nothing_more()
                writer.transport.abort()
            disk.release()
            heard = [(await guest.receive("message"))["messageId"] for _ in range(2)]

        assert heard == ["a", "b"]
        assert (await house.read(DEFAULT)).ids == ["a", "b"]
        assert is_replay(await house.send("a"))


async def test_socket_that_leaves_before_its_ack_disturbs_nobody() -> None:
    async with open_house() as house:
        leaving, staying = await house.join(), await house.join()
        with held_disk() as disk:
            disk.hold()
            leaving.send("a")
            await disk.wait()
            leaving.abort()
            await staying.nothing_more()
            disk.release()
            assert (await staying.receive("message"))["messageId"] == "a"

        assert is_replay(await house.send("a"))


async def test_who_joins_while_a_message_is_being_written_misses_nothing() -> None:
    async with open_house() as house:
        early = await house.join()
        with held_disk() as disk:
            disk.hold()
            early.send("a")
            await disk.wait()
            joining = asyncio.create_task(house.join(pseudonym="p-2"))
            await early.nothing_more()
            disk.release()
            late = await joining
            assert (await early.reply())["seq"] == 1

        await early.accepted("b")
        heard = [told["seq"] for told in await late.messages(1 if late.welcome["lastSeq"] else 2)]
        held = (await house.read(DEFAULT, 1, late.welcome["lastSeq"] or 1)).seqs
        assert sorted({*heard, *held}) == [1, 2] or heard[0] == 1


async def test_upgrade_may_follow_other_requests_on_its_connection() -> None:
    async with open_house() as house:
        upgrade = request_bytes(
            "GET",
            "/room",
            {
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
                "X-Room-ID": ROOM,
                "X-Pseudonym-ID": "p-1",
            },
        )

        answers = await exchange(house.port, 3, posted("a") + fetched() + upgrade)

        assert accepted(answers[0], "a") == 1
        assert page_of(answers[1]).ids == ["a"]
        assert answers[2].status == 101
