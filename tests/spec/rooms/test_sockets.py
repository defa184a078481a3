"""What is said on a room's socket, and how it ends."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from tests.support.socket import frames
from tests.support.socket.guest import sealed, send_frame
from tests.support.socket.rooms import (
    INBOX,
    LIMITED,
    ROOM,
    default_inbox,
    exact_clock,
    is_replay,
    open_house,
)

DEFAULT = default_inbox(ROOM)
ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
# Not JSON, not an object, or of no known action.
BAD_FRAMES: list[Any] = [
    "",
    "nonsense",
    "{",
    '{"action":"ping"} x',
    '{"action":"ping","t":NaN}',
    "[]",
    "null",
    "7",
    '"ping"',
    {},
    {"action": None},
    {"action": 7},
    {"action": "unknown"},
    {"action": "PING"},
    {"action": "welcome", "lastSeq": 1, "oldestBufferedSeq": 1},
    {"action": "message", "seq": 1},
    {"messageId": "a", "ciphertext": "QUJD"},
]
BAD_SENDS: list[dict[str, Any]] = [
    {"ciphertext": None},
    {"ciphertext": ""},
    {"ciphertext": 7},
    {"ciphertext": "A"},
    {"ciphertext": "no base64"},
    {"type": "mls_unknown"},
    {"type": 7},
    {"type": "mls_proposal"},
    {"type": "mls_commit", "proposalId": "a/b"},
    {"roomId": "another"},
    {"tenantId": "another"},
    {"pseudonymId": "another"},
]


async def test_sender_hears_its_message_and_then_the_ack() -> None:
    async with open_house() as house:
        sender, listener = await house.join(), await house.join(pseudonym="p-2")

        sender.send("a", sealed("text"))

        message = {
            "action": "message",
            "seq": 1,
            "messageId": "a",
            "ciphertext": sealed("text"),
            "type": "mls_app",
            "pseudonymId": "p-1",
        }
        assert await sender.receive() == message
        assert await sender.receive() == {"action": "ack", "messageId": "a", "seq": 1}
        assert await listener.receive() == message
        await sender.nothing_more()
        await listener.nothing_more()
        assert (await house.read(DEFAULT)).ids == ["a"]


async def test_sender_need_not_hear_itself() -> None:
    async with open_house(echo_to_sender=False) as house:
        sender, twin = await house.join(), await house.join()

        sender.send("a")

        assert (await sender.receive())["action"] == "ack"
        assert (await twin.receive())["action"] == "message"
        await house.sent("b", pseudonymId="p-1")
        for guest in (sender, twin):
            assert (await guest.receive("message"))["messageId"] == "b"
            await guest.nothing_more()


async def test_repeat_is_acknowledged_as_one_and_nobody_hears_it() -> None:
    async with open_house() as house:
        sender, listener = await house.join(), await house.join()
        await sender.accepted("a")
        for guest in (sender, listener):
            await guest.receive("message")

        for _ in range(2):
            repeat = await sender.submit("a", sealed("something else"))
            assert repeat == {"action": "ack", "messageId": "a", "seq": 1, "duplicate": True}

        for guest in (sender, listener):
            await guest.nothing_more()
        assert is_replay(await house.send("a"))
        assert (await house.read(DEFAULT)).messages[0]["ciphertext"] == sealed("a")


async def test_hub_makes_an_id_where_the_client_gave_none() -> None:
    async with open_house() as house:
        guest = await house.join()

        ack = await guest.submit(None, "QUJD")

        assert ack["action"] == "ack"
        assert ULID.fullmatch(ack["messageId"]), ack
        assert (await guest.receive("message"))["messageId"] == ack["messageId"]


async def test_acks_come_in_the_order_of_what_was_sent() -> None:
    async with open_house() as house:
        guest = await house.join()

        for number in range(100):
            guest.send(f"m-{number}")

        acks = [await guest.reply() for _ in range(100)]
        assert [(ack["messageId"], ack["seq"]) for ack in acks] == [
            (f"m-{number}", number + 1) for number in range(100)
        ]


async def test_ciphertext_is_given_out_in_one_form() -> None:
    async with open_house() as house:
        guest = await house.join()

        await guest.accepted("a", "+/+/+w==")

        assert (await guest.receive("message"))["ciphertext"] == "-_-_-w"


async def test_frame_nobody_understands_is_answered_with_an_error() -> None:
    async with open_house() as house:
        guest = await house.join()

        for frame in BAD_FRAMES:
            guest.say(frame)
            assert (await guest.error())["errorCode"] == "BAD_FRAME", frame
            await guest.nothing_more()

        assert await guest.accepted("a") == 1


async def test_bad_message_is_answered_with_its_id() -> None:
    async with open_house() as house:
        guest = await house.join()

        for members in BAD_SENDS:
            guest.say(send_frame("a") | members)
            told = await guest.error()
            assert (told["errorCode"], told["messageId"]) == ("BAD_ENVELOPE", "a"), members
            await guest.nothing_more()

        assert await guest.accepted("a") == 1


async def test_message_may_name_its_own_room_and_pseudonym() -> None:
    async with open_house() as house:
        guest = await house.enter("/ws/acme/general?pseudonym=p-1")

        assert await guest.accepted("a", pseudonymId="p-1") == 1
        assert await guest.accepted("b", tenantId="acme", roomId=ROOM) == 2


async def test_bad_id_is_refused() -> None:
    bad: list[Any] = ["", "a/b", "..", "a" * 129, "a:b", 7, ["a"]]
    async with open_house() as house:
        guest = await house.join()

        for message_id in bad:
            guest.say(send_frame("good") | {"messageId": message_id})
            assert (await guest.error())["errorCode"] == "BAD_ENVELOPE", message_id

        assert await guest.accepted("a") == 1


async def test_too_large_a_ciphertext_is_refused_and_the_socket_stays() -> None:
    async with open_house() as house:
        guest = await house.join()
        await guest.accepted("a", "A" * 87_382)

        told = await guest.submit("b", "A" * 87_383)

        assert (told["errorCode"], told["messageId"]) == ("TOO_LARGE", "b")
        assert await guest.accepted("b") == 2


async def test_frame_beyond_every_bound_closes_the_socket_with_1009() -> None:
    async with open_house() as house:
        guest, other = await house.join(), await house.join()

        guest.send("a", "A" * 2**20)

        assert await guest.until_closed() == 1009
        await other.nothing_more()
        assert await other.accepted("a") == 1


async def test_limited_sender_is_told_how_long_and_the_socket_stays() -> None:
    clock = exact_clock()
    async with open_house(clock, rate=2) as house:
        guest, other = await house.join(), await house.join(pseudonym="p-2")
        for message_id in ("a", "b"):
            await guest.accepted(message_id)
        await guest.messages(2)
        await other.messages(2)

        for _ in range(15):
            clock.advance(0.001)
            told = await guest.submit("c")

        assert told == {
            "action": "error",
            "error": "Rate limit exceeded",
            "errorCode": LIMITED,
            "messageId": "c",
            "retryAfterMs": 4985,
        }
        assert (await other.submit("d"))["errorCode"] == LIMITED
        assert (await guest.submit("a"))["duplicate"] is True
        clock.advance(4.985)
        assert await guest.accepted("c") == 3
        assert (await other.receive("message"))["messageId"] == "c"


async def test_ping_is_answered_with_what_it_carried() -> None:
    values: list[Any] = [0, -1.5, "text", None, True, [1, {"deep": "ünï"}], {"a": {}}, 2**53]
    async with open_house() as house:
        guest = await house.join()

        for t in values:
            guest.say({"action": "ping", "t": t})
            assert await guest.receive() == {"action": "pong", "t": t}


async def test_ping_without_a_value_and_pong_from_a_client() -> None:
    async with open_house() as house:
        guest = await house.join()

        guest.say({"action": "pong"})
        guest.say({"action": "pong", "t": 7})
        guest.say({"action": "ping"})

        assert await guest.receive() == {"action": "pong"}
        await guest.nothing_more()


async def test_pings_of_the_protocol_are_answered_too() -> None:
    async with open_house() as house:
        guest = await house.join()

        guest.write(frames.masked_frame(frames.PING, b"alive?"))

        frame = await guest.next_frame()
        assert (frame.opcode, frame.payload) == (frames.PONG, b"alive?")


async def test_binary_and_fragmented_frames_are_read_like_text() -> None:
    async with open_house() as house:
        guest = await house.join()

        guest.write(frames.masked_frame(frames.BINARY, b'{"action":"ping","t":1}'))
        for part in frames.fragments(b'{"action":"ping","t":2}', 5, 11):
            guest.write(part)

        for t in (1, 2):
            assert await guest.receive() == {"action": "pong", "t": t}


async def test_ten_bad_frames_in_a_row_close_the_socket_with_1008() -> None:
    async with open_house() as house:
        guest, other = await house.join(), await house.join()

        for _ in range(9):
            guest.say("nonsense")
        for _ in range(9):
            assert (await guest.error())["errorCode"] == "BAD_FRAME"
        await guest.nothing_more()
        for _ in range(10):
            guest.say("nonsense")

        for _ in range(9):
            assert (await guest.error())["errorCode"] == "BAD_FRAME"
        assert await guest.until_closed() == 1008
        await other.nothing_more()


async def test_everybody_is_sent_away_with_1012_when_the_hub_stops() -> None:
    async with open_house() as house:
        guests = [await house.join(f"room-{number % 3}") for number in range(9)]
        await guests[0].accepted("a")

        async with asyncio.TaskGroup() as group:
            codes = [group.create_task(guest.until_closed()) for guest in guests]
            await house.stop()

        assert [code.result() for code in codes] == [1012] * 9
        await house.hub.start()
        assert (await house.join("room-0")).welcome["lastSeq"] == 1


async def test_who_has_left_is_not_missed() -> None:
    async with open_house() as house:
        polite, rude, last = [await house.join(inbox=INBOX) for _ in range(3)]
        await polite.leave()
        rude.abort()

        for number in range(1, 6):
            assert await last.accepted(f"m-{number}") == number

        assert len(await last.messages(5)) == 5
        await last.leave()
        assert await house.sent("m-6") == 6
        assert (await house.join()).welcome["lastSeq"] == 6
