"""Sockets in rooms: how they get in, what is said on them, and how they end."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.socket import frames
from tests.support.socket.guest import PROTOCOL, TurnedAway, encoded, offer, send_frame
from tests.support.socket.http import Answer, Headers
from tests.support.socket.rooms import (
    ROOM,
    House,
    default_inbox,
    exact_clock,
    fill,
    open_house,
    refused,
)

DEFAULT = default_inbox(ROOM)
HEADERS = {"X-Room-ID": ROOM, "X-Pseudonym-ID": "p-1"}
BY_PATH = "/ws/acme/general?pseudonym=p-1"
ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
BAD_IDS = ["", "a/b", "..", "x" * 345, "a b", "naïve"]

# Getting in.


async def turned_away(house: House, path: str, headers: Headers = ()) -> Answer:
    """What an upgrade is answered with instead of 101."""
    with pytest.raises(TurnedAway) as caught:
        await house.enter(path, headers)
    return caught.value.answer


async def test_welcome_comes_first_and_says_where_the_room_stands() -> None:
    async with open_house(rate=10_000, hub={"message_rate": 0}) as house:
        first = await house.enter("/room", HEADERS)
        assert first.welcome == {"action": "welcome", "lastSeq": 0, "oldestBufferedSeq": 1}
        await first.nothing_more()

        await fill(first, 703)

        for _ in range(2):
            welcome = (await house.join()).welcome
            assert welcome == {"action": "welcome", "lastSeq": 703, "oldestBufferedSeq": 1}
            await house.restart()


async def test_all_ways_lead_into_one_room() -> None:
    name = {"X-Room-ID": "acme:general"}
    ways: list[tuple[str, Headers]] = [
        ("/room", name | {"X-Pseudonym-ID": "p-1"}),
        ("/room", offer(room="acme:general", pseudonym="p-1")),
        ("/room", name | offer(pseudonym="p-1")),
        ("/room", name | offer(room="acme:general", pseudonym="p-1")),
        (BY_PATH, {}),
        ("/ws/%61cme/gener%61l?x=1&pseudonym=p%2D1&y=2", {}),
        ("/ws/acme/general", {"X-Pseudonym-ID": "p-1"}),
        ("/ws/acme/general", offer(pseudonym="p-1")),
    ]
    async with open_house() as house:
        guests = [await house.enter(path, headers) for path, headers in ways]

        await house.sent("a", tenantId="acme")
        await guests[0].accepted("b")

        for guest, (_, headers) in zip(guests, ways, strict=True):
            told = await guest.messages(2)
            assert [one.get("pseudonymId") for one in told] == [None, "p-1"]
            offered = "Sec-WebSocket-Protocol" in dict(headers)
            assert guest.protocol == (PROTOCOL if offered else None)
        assert (await house.read("acme:general")).ids == ["a", "b"]
        assert await house.sent("a") == 1
        # Only its own protocol is chosen, and only if it was offered.
        for items, chosen in [(f"chat, {PROTOCOL}", PROTOCOL), ("chat", None)]:
            guest = await house.enter("/room", HEADERS | {"Sec-WebSocket-Protocol": items})
            assert guest.protocol == chosen


async def test_upgrade_without_good_ids_is_refused() -> None:
    async with open_house(hub={"connection_rate": 0}) as house:
        asked: list[tuple[str, Headers]] = [
            *(("/room", headers) for headers in ({}, {"X-Room-ID": ROOM}, offer(pseudonym="p"))),
            *((f"/ws/acme/general{query}", {}) for query in ("", "?pseudonym=", "?Pseudonym=p")),
            # What is said twice must be said alike.
            ("/room", HEADERS | offer(room="another")),
            ("/room", HEADERS | offer(pseudonym="another")),
            (BY_PATH, {"X-Room-ID": "another"}),
        ]
        for name in ("room", "pseudonym", "inbox"):
            for value in BAD_IDS:
                ids = {"room": ROOM, "pseudonym": "p-1"} | {name: value}
                named = {f"X-{key.title()}-ID": text for key, text in ids.items()}
                asked += [("/room", named), ("/room", offer(**ids))]
        for value in map(quote, BAD_IDS[3:]):
            asked += [(f"/ws/{value}/general?pseudonym=p", {}), (f"/ws/a/{value}?pseudonym=p", {})]
        for item in ("room.!!!", "room.A", "room.", "room._w"):
            items = f"{PROTOCOL}, {item}, pseudonym.{encoded('p-1')}"
            asked.append(("/room", {"Sec-WebSocket-Protocol": items}))

        for path, headers in asked:
            answer = await turned_away(house, path, headers)
            assert refused(answer, 400) == "BAD_REQUEST", (path, headers)


async def test_refusals_of_an_upgrade_have_their_status() -> None:
    hub = {"connection_rate": 1, "connection_burst": 2}
    async with open_house(exact_clock(), hub=hub) as house:
        for path in ("/room", BY_PATH):
            answer = await house.web.get(path, HEADERS)
            assert refused(answer, 426) == "UPGRADE_REQUIRED"
            assert (answer.header("Upgrade") or "").lower() == "websocket"
        for path in ("/rooms", "/room/", "/room/general", "/ws/acme", "/ws/acme/general/x"):
            assert (await turned_away(house, path, HEADERS)).status == 404
        foreign = HEADERS | {"Origin": "https://evil.example"}
        assert (await turned_away(house, "/room", foreign)).status == 403
        await house.enter("/room", HEADERS | {"Origin": "http://localhost:3000"})
        await house.join()

        answer = await turned_away(house, "/room", HEADERS)

        assert refused(answer, 429) == "RATE_LIMIT_EXCEEDED"
        assert answer.header("Retry-After") == "1"
    async with open_house(enabled=False) as house:
        assert (await turned_away(house, "/room", HEADERS)).status == 404


# Frames.

# Not JSON, not an object, or of no known action.
BAD_FRAMES: list[Any] = [
    *("", "nonsense", "{", '{"action":"ping"} x', '{"action":"ping","t":NaN}', "[]", "7"),
    *({}, {"action": None}, {"action": "PING"}, {"action": "message", "seq": 1}),
    {"messageId": "a", "ciphertext": "QUJD"},
]
BAD_SENDS: list[dict[str, Any]] = [
    *({"ciphertext": value} for value in (None, "", 7, "A", "no base64")),
    *({"type": value} for value in ("mls_unknown", 7, "mls_proposal")),
    {"type": "mls_commit", "proposalId": "a/b"},
    *({name: "another"} for name in ("roomId", "tenantId", "pseudonymId")),
]


async def test_sender_hears_its_message_and_then_the_ack() -> None:
    async with open_house() as house:
        sender, listener = await house.join(), await house.join(pseudonym="p-2")

        sender.send("a", "+/+/+w==")

        message = {
            "action": "message",
            "seq": 1,
            "messageId": "a",
            "ciphertext": "-_-_-w",
            "type": "mls_app",
            "pseudonymId": "p-1",
        }
        assert await sender.receive() == await listener.receive() == message
        assert await sender.receive() == {"action": "ack", "messageId": "a", "seq": 1}
        for guest in (sender, listener):
            await guest.nothing_more()
        repeat = await sender.submit("a", "-_-_-w")
        assert repeat == {"action": "ack", "messageId": "a", "seq": 1, "duplicate": True}
        made = (await sender.submit(None))["messageId"]
        assert ULID.fullmatch(made)
        assert (await listener.receive("message"))["messageId"] == made
        for number in range(100):
            sender.send(f"m-{number}")
        acks = [await sender.reply() for _ in range(100)]
        assert [(ack["messageId"], ack["seq"]) for ack in acks] == [
            (f"m-{number}", number + 3) for number in range(100)
        ]


async def test_bad_frame_is_answered_with_an_error_and_the_socket_stays() -> None:
    async with open_house() as house:
        guest = await house.enter(BY_PATH)

        for frame in BAD_FRAMES:
            guest.say(frame)
            assert (await guest.error())["errorCode"] == "BAD_FRAME", frame
            await guest.nothing_more()
        for members in BAD_SENDS:
            guest.say(send_frame("a") | members)
            told = await guest.error()
            assert (told["errorCode"], told["messageId"]) == ("BAD_ENVELOPE", "a"), members
            await guest.nothing_more()
        for message_id in ("", "..", "a" * 129, "a:b", 7):
            guest.say(send_frame("good") | {"messageId": message_id})
            assert (await guest.error())["errorCode"] == "BAD_ENVELOPE", message_id
        told = await guest.submit("b", "A" * 87_383)
        assert (told["errorCode"], told["messageId"]) == ("TOO_LARGE", "b")

        assert await guest.accepted("a", "A" * 87_382, pseudonymId="p-1") == 1
        assert await guest.accepted("b", tenantId="acme", roomId=ROOM) == 2


async def test_pings_are_answered_with_what_they_carried() -> None:
    values: list[Any] = [0, -1.5, "text", None, True, [1, {"deep": "ünï"}], {"a": {}}, 2**53]
    async with open_house() as house:
        guest = await house.join()

        for t in values:
            guest.say({"action": "ping", "t": t})
            assert await guest.receive() == {"action": "pong", "t": t}
        for frame in ({"action": "pong"}, {"action": "pong", "t": 7}, {"action": "ping"}):
            guest.say(frame)
        assert await guest.receive() == {"action": "pong"}
        # Binary and fragmented frames are read like text.
        guest.write(frames.masked_frame(frames.BINARY, b'{"action":"ping","t":1}'))
        for part in frames.fragments(b'{"action":"ping","t":2}', 5, 11):
            guest.write(part)
        for number in (1, 2):
            assert await guest.receive() == {"action": "pong", "t": number}
        guest.write(frames.masked_frame(frames.PING, b"alive?"))
        pong = await guest.next_frame()
        assert (pong.opcode, pong.payload) == (frames.PONG, b"alive?")


# How they end.


async def test_frame_beyond_every_bound_closes_the_socket_with_1009() -> None:
    async with open_house() as house:
        guest, other = await house.join(), await house.join()

        guest.send("a", "A" * 2**20)

        assert await guest.until_closed() == 1009
        await other.nothing_more()
        assert await other.accepted("a") == 1


async def test_ten_bad_frames_in_a_row_close_the_socket_with_1008() -> None:
    async with open_house() as house:
        guest, other = await house.join(), await house.join()

        for good in ("a", "b", None):
            for _ in range(9 if good else 10):
                guest.say("nonsense")
            for _ in range(9):
                assert (await guest.error())["errorCode"] == "BAD_FRAME"
            if good:
                # A good frame resets the count.
                await guest.accepted(good)
                await guest.receive("message")

        assert await guest.until_closed() == 1008
        assert [told["messageId"] for told in await other.messages(2)] == ["a", "b"]


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
