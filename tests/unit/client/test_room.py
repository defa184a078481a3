"""Rooms and inboxes of the client against a hub that follows a script."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import signalhub
from signalhub import Hub, Room, pacing
from signalhub.client import Missed
from signalhub.client.rooms import inbox, protocol
from tests.support.memory.client import QUICK
from tests.support.socket.scripted_rooms import Exchange, RoomPeer, ScriptedRooms, http_answer

INBOX = "secret-inbox"
APPEND = "/v1/inbox/append"
LIMITED = {"error": "Rate limit exceeded", "errorCode": "RATE_LIMIT_EXCEEDED", "retryAfterMs": 1}
BAD = {"error": "no", "errorCode": "BAD_REQUEST"}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "BASE_S", 0.001)
    monkeypatch.setattr(protocol, "PAUSE_S", 0.001)
    monkeypatch.setattr(protocol, "PARTIAL_S", 0.001)
    monkeypatch.setattr(inbox, "PARTIAL_S", 0.001)


class Rooms(ScriptedRooms):
    """A scripted hub, and the client's view of it."""

    hub: Hub

    @asynccontextmanager
    async def joined(
        self, last_seq: int = 0, **options: Any
    ) -> AsyncIterator[tuple[RoomPeer, Room]]:
        """A room that was just joined."""
        chosen: dict[str, Any] = {"inbox": INBOX, "reconnect": QUICK} | options
        task = asyncio.ensure_future(self.hub.room("general", **chosen))
        peer = await self.accept(last_seq)
        async with await task as room:
            yield peer, room


@pytest.fixture
async def rooms() -> AsyncIterator[Rooms]:
    async with Rooms() as rooms, signalhub.hub(rooms.url) as rooms.hub:
        yield rooms


async def take(room: Room, count: int) -> list[int]:
    async with asyncio.timeout(10):
        return [(await anext(room)).seq for _ in range(count)]


async def test_ids_travel_in_headers_and_nowhere_else(rooms: Rooms) -> None:
    async with rooms.joined(last_seq=1, tenant="acme", pseudonym="p1") as (peer, room):
        assert peer.path == "/room"
        assert peer.headers["x-room-id"] == "acme:general"
        assert peer.headers["x-pseudonym-id"] == room.pseudonym == "p1"
        assert peer.headers["x-inbox-id"] == INBOX

        reading = asyncio.ensure_future(take(room, 1))
        exchange = await rooms.request()
        assert exchange.request.headers["x-inbox-id"] == INBOX
        assert exchange.request.query == "fromSeq=1&limit=1000"
        exchange.page(1)

        assert await reading == [1]
        shown = repr((room, rooms.hub, rooms.hub.inbox(INBOX)))
        assert not any(word in shown for word in ("acme", "general", INBOX, "p1"))


async def test_without_ids_the_default_inbox_is_read_under_a_new_pseudonym(rooms: Rooms) -> None:
    async with (
        rooms.joined(last_seq=1, inbox=None) as (peer, room),
        rooms.joined() as (_, other),
    ):
        assert "x-inbox-id" not in peer.headers
        assert room.pseudonym != other.pseudonym

        reading = asyncio.ensure_future(take(room, 1))
        exchange = await rooms.request()
        exchange.page(1)

        assert exchange.request.headers["x-inbox-id"] == "Z2VuZXJhbA"
        assert await reading == [1]


async def test_a_welcome_in_the_same_segment_as_the_handshake_is_heard(rooms: Rooms) -> None:
    rooms.greeting = 3

    async with rooms.hub.room("general", inbox=INBOX) as room:
        assert room.is_joined


async def test_messages_have_everything_that_is_known(rooms: Rooms) -> None:
    async with rooms.joined(last_seq=9, since=2) as (peer, room):
        reading = asyncio.ensure_future(anext(room))
        exchange = await rooms.request()
        old = {"seq": 9, "messageId": "a", "ciphertext": "-_8", "createdAt": "2026-01-31T12:00:05Z"}
        exchange.answer(200, {"messages": [old], "nextSeq": 10})
        first = await reading
        peer.live(10)
        second = await anext(room)

        assert (room.last_seq, room.missed) == (10, (Missed(3, 8),))
    assert (first.message_id, first.ciphertext) == ("a", b"\xfb\xff")
    assert (first.type, first.pseudonym) == (None, None)
    assert first.created_at is not None
    assert first.created_at.isoformat() == "2026-01-31T12:00:05+00:00"
    assert (second.message_id, second.ciphertext) == ("m10", b"c10")
    assert (second.type, second.pseudonym, second.created_at) == ("mls_app", "p2", None)


async def test_a_send_survives_losses_and_limits_under_one_id(rooms: Rooms) -> None:
    async with rooms.joined() as (peer, room):
        cancelled = asyncio.ensure_future(room.send(b"x", message_id="cancelled"))
        await peer.receive("send")
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        sending = asyncio.ensure_future(
            room.send(b"\xfb\xff", message_id="a", type="mls_proposal", proposal_id="x")
        )
        first = await peer.receive("send")
        with pytest.raises(ValueError, match="already being sent"):
            await room.send(b"x", message_id="a")
        peer.say("error", messageId="a", **LIMITED)
        again = await peer.receive("send")
        peer.close(1012)
        peer = await rooms.accept()
        third = await peer.receive("send")
        peer.say("ack", messageId="a", seq=7, duplicate=True)
        sent = await sending

    assert first == again == third
    members = {"ciphertext": "-_8", "type": "mls_proposal", "proposalId": "x"}
    assert first == {"action": "send", "messageId": "a"} | members
    assert (sent.message_id, sent.seq, sent.is_repeat) == ("a", 7, True)


async def test_limited_partial_and_broken_pages_are_asked_for_again(rooms: Rooms) -> None:
    answers: list[Callable[[Exchange], None]] = [
        lambda exchange: exchange.answer(429, LIMITED, Retry_After="1"),
        lambda exchange: exchange.answer(503, {"error": "x", "errorCode": "UNAVAILABLE"}),
        lambda exchange: exchange.page(2, partial=True, nextSeq=1),
        lambda exchange: exchange.hang_up(),
        lambda exchange: exchange.answer(500),
        lambda exchange: exchange.answer(408),
        lambda exchange: exchange.page(1, 2),
    ]
    async with rooms.joined(last_seq=2, since=0) as (_, room):
        reading = asyncio.ensure_future(take(room, 2))
        for answer in answers:
            exchange = await rooms.request()
            assert exchange.from_seq == 1
            answer(exchange)

        assert await reading == [1, 2]
        assert room.missed == ()


async def test_an_inbox_that_cannot_be_read_at_all_ends_the_room_also_while_it_is_away(
    rooms: Rooms, caplog: pytest.LogCaptureFixture
) -> None:
    async with rooms.joined(last_seq=1) as (peer, room):
        reading = asyncio.ensure_future(take(room, 1))
        exchange = await rooms.request()
        rooms.refusal = http_answer(503)
        peer.abort()
        await rooms.refused.wait()

        exchange.answer(400, BAD)
        with pytest.raises(signalhub.GaveUp, match="no"):
            await reading
        with pytest.raises(signalhub.GaveUp):
            await room.send(b"x")
        rooms.refusal = None

        keepers = [one for one in asyncio.all_tasks() if one.get_name() == "signalhub room"]
        if keepers:
            await asyncio.wait(keepers, timeout=10)
        assert all(one.done() for one in keepers)
    assert "The client failed" not in caplog.messages


async def test_closing_ends_the_iteration_and_waits_for_no_answer(rooms: Rooms) -> None:
    async with rooms.joined() as (peer, room):
        reading = asyncio.ensure_future(take(room, 1))
        sending = asyncio.ensure_future(room.send(b"x"))
        await peer.receive("send")

        await rooms.hub.close()

        with pytest.raises(StopAsyncIteration):
            await reading
        with pytest.raises(signalhub.OutcomeUnknown):
            await sending
        await peer.gone.wait()
    with pytest.raises(signalhub.Unavailable, match="closed"):
        await rooms.hub.room("general")


async def test_every_send_to_a_room_that_was_left_raises_an_error_of_its_own(rooms: Rooms) -> None:
    async with rooms.joined() as (_, room):
        await room.close()
        errors: list[BaseException] = []
        for _ in range(2):
            with pytest.raises(signalhub.Unavailable, match="the room was left") as caught:
                await room.send(b"x")
            errors.append(caught.value)

    assert errors[0] is not errors[1], "an error that is raised again collects tracebacks"


async def test_a_hub_that_is_closed_while_a_room_is_joined_leaves_it(rooms: Rooms) -> None:
    joining = asyncio.ensure_future(rooms.hub.room("general").__aenter__())
    peer = await rooms.accept(last_seq=None)
    await rooms.hub.close()
    peer.say("welcome", lastSeq=0)

    with pytest.raises(signalhub.Unavailable, match="closed"):
        await joining
    await peer.gone.wait()


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (
            409,
            {"error": "another", "errorCode": "CONFLICT"},
            signalhub.Refused,
            "CONFLICT: another",
        ),
        (400, BAD, signalhub.Refused, "BAD_REQUEST: no"),
        (404, {"error": "x", "errorCode": "NOT_FOUND"}, signalhub.Refused, "NOT_FOUND"),
        (404, None, signalhub.Unavailable, "answered HTTP 404"),
        (429, LIMITED | {"retryAfterMs": 7000}, signalhub.Unavailable, "try again in 7 s"),
        (
            503,
            {"error": "Damaged: wait.", "errorCode": "storage_failed", "retryAfterMs": 10_000},
            signalhub.Unavailable,
            "^Damaged: wait; try again in 10 s$",
        ),
    ],
)
async def test_a_room_that_cannot_be_joined_says_why(
    rooms: Rooms,
    status: int,
    body: dict[str, Any] | None,
    kind: type[Exception],
    words: str,
) -> None:
    rooms.refusal = http_answer(status, body)

    with pytest.raises(kind, match=words) as caught:
        await rooms.hub.room("general")
    assert rooms.upgrades == 1
    if isinstance(caught.value, signalhub.Unavailable):
        assert caught.value.is_answered == (status == 503), "only the hub itself says so"


async def test_a_busy_hub_is_tried_again_and_one_that_refuses_is_given_up(rooms: Rooms) -> None:
    async with rooms.joined() as (peer, room):
        rooms.refusal = http_answer(503)
        peer.abort()
        await rooms.refused.wait()
        rooms.refusal = None
        peer = await rooms.accept(last_seq=0)
        peer.live(1)
        assert await take(room, 1) == [1]
        rooms.refusal = http_answer(409, {"error": "another inbox", "errorCode": "CONFLICT"})
        peer.abort()

        with pytest.raises(signalhub.GaveUp, match="another inbox"):
            await anext(room)


async def test_attempts_to_come_back_may_be_limited(rooms: Rooms) -> None:
    async with rooms.joined(reconnect=None) as (peer, room):
        peer.close(1013)

        with pytest.raises(signalhub.GaveUp, match="1013"):
            await anext(room)


async def test_no_log_line_names_anybody(rooms: Rooms, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)
    async with rooms.joined(last_seq=2, pseudonym="whoiswho") as (peer, room):
        reading = asyncio.ensure_future(take(room, 1))
        (await rooms.request()).answer(429, LIMITED)
        (await rooms.request()).page(2)
        await reading
        peer.say("error", messageId="whatwhat", error="x", errorCode="BAD_FRAME")
        peer.abort()
        peer = await rooms.accept()
    lines = [logging.Formatter().format(record) + repr(vars(record)) for record in caplog.records]

    ours = [line for line in lines if "asyncio" not in line]
    assert any("Messages were deleted before they could be read" in line for line in ours)
    words = (INBOX, "general", "whoiswho", "whatwhat", "Z2VuZXJhbA")
    assert [line for line in ours if any(word in line for word in words)] == []


@pytest.mark.parametrize(
    ("room", "options"),
    [
        ("", {}),
        ("a/b", {}),
        ("a..b", {}),
        ("x" * 129, {}),
        ("ok", {"tenant": "a:b"}),
        ("x" * 100, {"tenant": "t" * 100}),
        ("ok", {"pseudonym": "two words"}),
        ("ok", {"inbox": "a/b"}),
        ("ok", {"inbox": ""}),
        ("ok", {"since": -1}),
        ("ok", {"since": True}),
    ],
)
async def test_invalid_ids_are_refused_at_once_and_not_repeated(
    rooms: Rooms, room: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"characters|number") as caught:
        rooms.hub.room(room, **options)

    assert not any(word in str(caught.value) for word in ("a/b", "xxx", "two words", "a:b"))


async def test_invalid_messages_are_refused_at_once(rooms: Rooms) -> None:
    attempts: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ("text", {}, TypeError, "bytes"),
        (b"", {}, ValueError, "at least one byte"),
        (b"x", {"message_id": "a:b"}, ValueError, "message id"),
        (b"x", {"type": "chat"}, ValueError, "invalid type"),
        (b"x", {"type": "mls_commit"}, ValueError, "needs a proposal"),
        (b"x", {"proposal_id": "a b"}, ValueError, "proposal id"),
    ]
    async with rooms.joined() as (_, room):
        for ciphertext, options, kind, complaint in attempts:
            with pytest.raises(kind, match=complaint):
                await room.send(ciphertext, **options)
        with pytest.raises(TypeError, match="unknown option"):
            rooms.hub.room("general", colour="red")  # type: ignore[call-arg]


async def test_an_inbox_is_fetched_in_pages(rooms: Rooms) -> None:
    standard = "+/" * 21 + "8="  # The same 32 bytes in the other alphabet of base64.
    task = asyncio.ensure_future(rooms.hub.inbox(standard).fetch(from_seq=4, limit=5000))
    exchange = await rooms.request()
    exchange.page(5, 6)
    page = await task

    assert exchange.request.headers["x-inbox-id"] == "-_" * 21 + "8"
    assert exchange.request.query == "fromSeq=4&limit=1000"
    assert [message.seq for message in page] == [5, 6]
    assert (page.next_seq, page.oldest_seq, page.is_partial, len(page)) == (7, 5, False, 2)


async def test_all_of_an_inbox_is_read_until_a_page_is_empty(rooms: Rooms) -> None:
    messages = rooms.hub.inbox(INBOX).messages(from_seq=1)

    async def read() -> list[int]:
        return [message.seq async for message in messages]

    task = asyncio.ensure_future(read())
    (await rooms.request()).page(3, 4)
    (await rooms.request()).answer(429, LIMITED)
    (await rooms.request()).page(9, partial=True, nextSeq=5)
    doubled = {"seq": 5, "messageId": "m4", "ciphertext": "eA"}
    (await rooms.request()).answer(200, {"messages": [doubled], "nextSeq": 6})
    last = await rooms.request()
    last.page()

    assert await task == [3, 4]
    assert last.from_seq == messages.next_seq == 6
    assert messages.missed == (Missed(1, 2),)


async def test_what_an_inbox_has_before_damage_is_read_and_then_the_error_is_raised(
    rooms: Rooms,
) -> None:
    damaged = {"error": "The log is damaged.", "errorCode": "storage_failed"}
    messages = rooms.hub.inbox(INBOX).messages(timeout_s=2)

    reading = asyncio.ensure_future(anext(messages))
    (await rooms.request()).page(1, 2, partial=True, reason="storage_failed")
    found = [(await reading).seq, (await anext(messages)).seq]
    reading = asyncio.ensure_future(anext(messages))
    refused = await rooms.request()
    refused.answer(503, {**damaged, "retryAfterMs": 10_000})

    with pytest.raises(signalhub.Unavailable, match="damaged"):
        await reading
    assert (found, messages.next_seq, refused.from_seq) == ([1, 2], 3, 3)


async def test_positions_skipped_within_a_page_of_an_inbox_are_missed(rooms: Rooms) -> None:
    messages = rooms.hub.inbox(INBOX).messages(from_seq=1)

    async def read() -> list[int]:
        return [message.seq async for message in messages]

    task = asyncio.ensure_future(read())
    (await rooms.request()).page(3, 4, 9, skipped=[{"fromSeq": 5, "toSeq": 8}])
    (await rooms.request()).page()

    assert await task == [3, 4, 9]
    assert messages.missed == (Missed(1, 2), Missed(5, 8))
    assert messages.skipped == (Missed(5, 8),)


async def test_an_append_is_repeated_under_one_id(rooms: Rooms) -> None:
    task = asyncio.ensure_future(rooms.hub.inbox(INBOX).append(b"\xfb\xff"))
    first = await rooms.request(APPEND)
    first.answer(429, LIMITED)
    second = await rooms.request(APPEND)
    second.hang_up()
    third = await rooms.request(APPEND)
    third.answer(202, {"seq": 3, "storedAt": "2026-01-31T12:00:05.250Z"}, Idempotent_Replay="true")
    stored = await task

    assert first.body == second.body == third.body
    assert first.body["ciphertext"] == "-_8"
    assert first.request.headers["content-type"] == "application/json"
    assert (stored.message_id, stored.seq) == (first.body["messageId"], 3)
    assert stored.is_repeat
    assert stored.stored_at is not None


async def test_a_refusal_is_raised_when_waiting_would_not_help_or_take_too_long(
    rooms: Rooms,
) -> None:
    appending = asyncio.ensure_future(rooms.hub.inbox(INBOX).append(b"x"))
    too_large = {"error": "too large", "errorCode": "TOO_LARGE"}
    (await rooms.request(APPEND)).answer(413, too_large)
    with pytest.raises(signalhub.Refused, match="TOO_LARGE: too large"):
        await appending

    fetching = asyncio.ensure_future(rooms.hub.inbox(INBOX).fetch(timeout_s=30))
    (await rooms.request()).answer(429, LIMITED | {"retryAfterMs": 59_000})
    async with asyncio.timeout(10):
        with pytest.raises(signalhub.Refused) as caught:
            await fetching
    assert caught.value.retryable


async def test_a_hub_that_is_gone_can_be_given_up_at_once_and_a_doubt_stays(rooms: Rooms) -> None:
    appending = asyncio.ensure_future(rooms.hub.inbox(INBOX).append(b"x", attempts=2))
    exchange = await rooms.request(APPEND)
    await rooms.stop_listening()
    exchange.hang_up()

    with pytest.raises(signalhub.OutcomeUnknown):
        await appending
    with pytest.raises(signalhub.Unavailable, match=rooms.url):
        await rooms.hub.inbox(INBOX).fetch(attempts=1)
    with pytest.raises(signalhub.Unavailable, match="no hub at"):
        await rooms.hub.room("general")


@pytest.mark.parametrize("body", ["nonsense", {"messages": [{"seq": 1}], "nextSeq": 2}])
async def test_what_no_hub_would_say_is_unavailable(rooms: Rooms, body: Any) -> None:
    task = asyncio.ensure_future(rooms.hub.inbox(INBOX).fetch())
    (await rooms.request()).answer(200, body)

    with pytest.raises(signalhub.Unavailable, match="not from a hub"):
        await task
