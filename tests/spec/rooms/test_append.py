"""`POST /v1/inbox/append`: into the inbox, past the room."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.socket.guest import sealed
from tests.support.socket.rooms import (
    APPEND,
    INBOX,
    LIMITED,
    ROOM,
    accepted,
    allowed,
    at_once,
    default_inbox,
    exact_clock,
    is_replay,
    named_inbox,
    open_house,
    refused,
    stored,
    wait_ms,
)

DEFAULT = default_inbox(ROOM)
NAMED = {"X-Inbox-ID": INBOX}


async def test_appended_message_is_readable_at_once_and_nobody_hears_it() -> None:
    async with open_house() as house:
        guest = await house.join(inbox=INBOX)

        answer = await house.append(INBOX, "a", sealed("direct"))

        assert answer.status == 202
        assert answer.json["seq"] == 1
        page = await house.read(INBOX)
        assert page.ids == ["a"]
        assert page.messages[0]["ciphertext"] == sealed("direct")
        assert page.messages[0]["createdAt"] == answer.json["storedAt"]
        await guest.nothing_more()


async def test_append_and_room_share_one_sequence() -> None:
    async with open_house() as house:
        guest = await house.join(inbox=INBOX)

        assert await house.sent("a") == 1
        assert await house.appended(INBOX, "b") == 2
        assert await guest.accepted("c") == 3
        assert await house.appended(INBOX, "d") == 4

        assert [told["seq"] for told in await guest.messages(2)] == [1, 3]
        await guest.nothing_more()
        assert (await house.read(INBOX)).ids == ["a", "b", "c", "d"]
        assert (await house.join()).welcome["lastSeq"] == 4


@pytest.mark.parametrize("inbox", [None, INBOX])
async def test_inbox_may_be_written_to_before_its_room_is(inbox: str | None) -> None:
    written = inbox or DEFAULT
    async with open_house() as house:
        assert await house.appended(written, "a") == 1

        assert await house.sent("b", inbox=inbox) == 2

        assert (await house.read(written)).ids == ["a", "b"]


async def test_repeated_append_gets_the_position_of_the_original() -> None:
    async with open_house() as house:
        for message_id in ("a", "b"):
            await house.appended(INBOX, message_id)

        repeat = await house.append(INBOX, "a", sealed("something else"))

        assert stored(repeat) == 1
        assert is_replay(repeat)
        await house.restart()
        repeat = await house.append(INBOX, "b", sealed("something else"))
        assert stored(repeat) == 2
        assert is_replay(repeat)
        page = await house.read(INBOX)
        assert page.ids == ["a", "b"]
        assert page.messages[0]["ciphertext"] == sealed("a")


async def test_appends_made_at_the_same_time_are_one_message() -> None:
    async with open_house() as house:
        webs = [house.another_web() for _ in range(10)]
        body = {"messageId": "a", "ciphertext": sealed("a")}

        answers = await at_once(*(web.post(APPEND, body, NAMED) for web in webs))

        assert {stored(answer) for answer in answers} == {1}
        assert len([answer for answer in answers if not is_replay(answer)]) == 1


async def test_one_id_sent_and_appended_is_one_message() -> None:
    async with open_house() as house:
        guest = await house.join(inbox=INBOX)
        await house.sent("sent")
        await guest.receive("message")
        await house.appended(INBOX, "appended")

        append = await house.append(INBOX, "sent")
        send = await house.send("appended")

        assert (stored(append), is_replay(append)) == (1, True)
        assert (accepted(send, "appended"), is_replay(send)) == (2, True)
        ack = {"action": "ack", "messageId": "appended", "seq": 2, "duplicate": True}
        assert await guest.submit("appended") == ack
        await guest.nothing_more()


async def test_120_appends_a_minute_and_the_next_is_refused() -> None:
    clock = exact_clock()
    async with open_house(clock) as house:
        for number in range(1, 121):
            assert await house.appended(INBOX, f"m-{number}") == number
        assert is_replay(await house.append(INBOX, "m-1"))

        answer = await house.append(INBOX, "m-121")

        assert answer.status == 429
        assert answer.json == {
            "error": "Rate limit exceeded",
            "errorCode": LIMITED,
            "retryAfterMs": 60_000,
        }
        assert answer.header("Retry-After") == "60"
        repeat = await house.append(INBOX, "m-60")
        assert (stored(repeat), is_replay(repeat)) == (60, True)
        assert await house.appended("another-inbox", "m-121") == 1
        clock.advance(60)
        assert await house.appended(INBOX, "m-121") == 121


async def test_appends_and_messages_have_limits_of_their_own() -> None:
    async with open_house(exact_clock(), rate=2, append_rate=4) as house:
        for number in range(4):
            await house.appended(DEFAULT, f"append-{number}")
        assert wait_ms(await house.append(DEFAULT, "excess")) == 60_000

        for number in range(2):
            await house.sent(f"send-{number}")
        assert wait_ms(await house.send("excess")) == 5_000

        assert (await house.read(DEFAULT)).seqs == [1, 2, 3, 4, 5, 6]


async def test_append_is_accepted_while_the_room_is_limited() -> None:
    async with open_house(exact_clock(), rate=1) as house:
        await house.sent("a")
        wait_ms(await house.send("b"))

        assert await house.appended(DEFAULT, "b") == 2


BAD_BODIES: list[Any] = [
    b"",
    b"{",
    b"[]",
    b"null",
    {"messageId": "a"},
    {"ciphertext": "QUJD"},
    {"messageId": None, "ciphertext": "QUJD"},
    {"messageId": "a", "ciphertext": None},
    {"messageId": 1, "ciphertext": "QUJD"},
    {"messageId": "a", "ciphertext": 1},
    {"messageId": "", "ciphertext": "QUJD"},
    {"messageId": "a", "ciphertext": ""},
    {"messageId": "a", "ciphertext": "A"},
    {"messageId": "a", "ciphertext": "not base64"},
    {"messageId": "../a", "ciphertext": "QUJD"},
    {"messageId": "a/b", "ciphertext": "QUJD"},
    {"messageId": "a:b", "ciphertext": "QUJD"},
    {"messageId": "a" * 129, "ciphertext": "QUJD"},
]


async def test_bad_body_is_refused() -> None:
    async with open_house() as house:
        for body in BAD_BODIES:
            answer = await house.web.post(APPEND, body, NAMED)
            assert refused(answer, 400) == "BAD_ENVELOPE", body

        assert await house.appended(INBOX, "good") == 1
        assert house.web.connects == 1


async def test_bad_inbox_is_refused() -> None:
    body = {"messageId": "a", "ciphertext": "QUJD"}
    async with open_house() as house:
        for inbox in (None, "", "a/b", "..", "x" * 345, "a b", "na\xefve"):
            answer = await house.web.post(APPEND, body, named_inbox(inbox))
            assert refused(answer, 400) == "BAD_REQUEST", inbox


async def test_body_must_be_said_to_be_json() -> None:
    async with open_house() as house:
        for headers in (NAMED, NAMED | {"Content-Type": "text/plain"}):
            answer = await house.web.request("POST", APPEND, headers, b"nonsense")
            assert refused(answer, 415) == "UNSUPPORTED_MEDIA_TYPE"


async def test_ciphertext_has_the_same_limit_and_form_as_in_a_room() -> None:
    async with open_house() as house:
        await house.appended(INBOX, "a", "A" * 87_382)
        await house.appended(INBOX, "b", "+/+/+w==")

        answer = await house.append(INBOX, "c", "A" * 87_383)

        assert refused(answer, 413) == "TOO_LARGE"
        page = await house.read(INBOX)
        assert page.ids == ["a", "b"]
        assert page.messages[1]["ciphertext"] == "-_-_-w"


async def test_other_methods_are_told_which_one_there_is() -> None:
    async with open_house() as house:
        for method in ("GET", "PUT", "DELETE"):
            answer = await house.web.request(method, APPEND, NAMED)
            assert "POST" in allowed(answer)
            assert refused(answer, 405) == "METHOD_NOT_ALLOWED"
