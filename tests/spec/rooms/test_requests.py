"""The three requests for messages over HTTP: send to a room, append to an inbox, fetch."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from tests.support.socket.guest import sealed
from tests.support.socket.http import JSON, read_answer, request_bytes
from tests.support.socket.rooms import (
    APPEND,
    INBOX,
    MESSAGE,
    MESSAGES,
    ROOM,
    OpenHouse,
    accepted,
    allowed,
    at_once,
    default_inbox,
    exact_clock,
    fill,
    is_replay,
    named_inbox,
    oldest_of,
    open_house,
    page_of,
    refused,
    stored,
)

DEFAULT = default_inbox(ROOM)
NAMED = {"X-Inbox-ID": INBOX}
LARGEST = "A" * 87_382
ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")

# What is accepted.


async def test_accepted_message_can_be_fetched_at_once_and_is_on_every_socket_of_its_room() -> None:
    async with open_house() as house:
        guests = [await house.join(pseudonym=f"p-{number}") for number in range(2)]
        elsewhere = await house.join("elsewhere")

        answer = await house.send("a", pseudonymId="sender")
        # Members that mean nothing here are ignored, null is absent.
        ignored: dict[str, Any] = {
            "sequence": 77,
            "timestamp": {"deep": [None]},
            "type": None,
            "tenantId": None,
        }
        by_header = {"X-Room-ID": ROOM, "x-pseudonym-id": "by-header"}
        second = await house.send("b", None, ciphertext="+/+/+w==", headers=by_header, **ignored)

        assert (answer.status, answer.json) == (200, {"messageId": "a", "seq": 1})
        assert (accepted(second, "b"), is_replay(second)) == (2, False)
        page = await house.read(DEFAULT)
        assert [one["ciphertext"] for one in page.messages] == [sealed("a"), "-_-_-w"]
        alike = {"action": "message", "type": "mls_app"}
        first = alike | {"seq": 1, "messageId": "a", "ciphertext": sealed("a")}
        for guest in guests:
            told = await guest.messages(2)
            assert told[0] == first | {"pseudonymId": "sender"}
            assert (told[1]["pseudonymId"], told[1]["ciphertext"]) == ("by-header", "-_-_-w")
        await elsewhere.nothing_more()
        made = [await house.send(None, "elsewhere") for _ in range(2)]
        assert [accepted(one) for one in made] == [1, 2]
        assert all(ULID.fullmatch(one.json["messageId"]) for one in made)
        assert "pseudonymId" not in await elsewhere.receive("message")
        assert house.web.connects == 1


async def test_appended_message_has_the_next_position_and_nobody_hears_it() -> None:
    async with open_house() as house:
        guest = await house.join(inbox=INBOX)
        await house.sent("a")

        answer = await house.append(INBOX, "b", "+/+/+w==")

        assert await guest.accepted("c") == 3
        assert [told["seq"] for told in await guest.messages(2)] == [1, 3]
        await guest.nothing_more()
        assert (answer.status, stored(answer), is_replay(answer)) == (202, 2, False)
        page = await house.read(INBOX)
        assert page.ids == ["a", "b", "c"]
        assert page.messages[1]["ciphertext"] == "-_-_-w"
        assert page.messages[1]["createdAt"] == answer.json["storedAt"]


async def test_repeat_gets_the_position_of_the_original_and_nobody_hears_it() -> None:
    async with open_house() as house:
        await house.sent("sent", inbox=INBOX)
        await house.appended(INBOX, "appended")
        for _ in range(2):
            guest = await house.join(inbox=INBOX)
            for seq, message_id in enumerate(("sent", "appended"), start=1):
                send = await house.send(message_id)
                append = await house.append(INBOX, message_id)
                ack = await guest.submit(message_id)
                assert (accepted(send, message_id), is_replay(send)) == (seq, True)
                assert (stored(append), is_replay(append)) == (seq, True)
                assert (ack["seq"], ack["duplicate"]) == (seq, True)
            await guest.nothing_more()
            await house.restart()
        page = await house.read(INBOX)
        assert [one["ciphertext"] for one in page.messages] == [sealed("sent"), sealed("appended")]
        assert await house.sent("next") == 3
        assert await house.sent("sent", "another") == 1


@pytest.mark.parametrize("path", [MESSAGE, APPEND])
async def test_repeats_made_at_the_same_time_are_one_message(path: str) -> None:
    async with open_house(timestamps="none") as house:
        webs = [house.another_web() for _ in range(20)]
        body = {"messageId": "a", "roomId": ROOM}

        answers = await at_once(
            *(
                web.post(path, body | {"ciphertext": sealed(f"{number % 2}")}, NAMED)
                for number, web in enumerate(webs)
            )
        )

        good = [number for number, one in enumerate(answers) if one.status != 409]
        assert {answers[number].json["seq"] for number in good} == {1}
        assert "storedAt" not in answers[good[0]].json
        (first,) = [number for number in good if not is_replay(answers[number])]
        # Those with another ciphertext are told.
        assert good == [number for number in range(20) if number % 2 == first % 2]
        (message,) = (await house.read(INBOX)).messages
        assert message["ciphertext"] == sealed(f"{first % 2}")


# What is refused.

BAD_NUMBERS = ["-1", "abc", "1.0", "", "%2B5", "0x10", "%D9%A3", f"{2**53}"]
GOOD: dict[str, Any] = {"roomId": ROOM, "messageId": "a", "ciphertext": "QUJD"}
BAD_MEMBERS: list[dict[str, Any]] = [
    *({"roomId": value} for value in (None, 7, "", "a/b", "a" * 129)),
    *({"messageId": value} for value in (7, "", "..", "../../etc", "a:b", "a" * 129, "a\x00")),
    *({"ciphertext": value} for value in (None, 7, "", "A", "QU JD", "-+-+", "QUJÐ")),
    *({"type": value} for value in (7, "", "mls_App", "mls_proposal")),
    *({"pseudonymId": "a b"}, {"tenantId": "a:b"}, {"type": "mls_commit", "proposalId": "a/b"}),
]


async def test_bad_message_is_refused_and_uses_no_position() -> None:
    async with open_house() as house:
        guest = await house.join()
        for body in (b"", b"{", b"[]", b'{"a":NaN}', b"[" * 100_000, b'{"ciphertext":"\xff"}'):
            answer = await house.web.post(MESSAGE, body)
            assert refused(answer, 400) == "BAD_ENVELOPE", body[:20]
            assert refused(await house.web.post(APPEND, body, NAMED), 400) == "BAD_ENVELOPE"
        for members in BAD_MEMBERS:
            answer = await house.web.post(MESSAGE, GOOD | members)
            assert refused(answer, 400) == "BAD_ENVELOPE", members
            if members.keys() <= {"messageId", "ciphertext"}:
                answer = await house.web.post(APPEND, GOOD | members, NAMED)
                assert refused(answer, 400) == "BAD_ENVELOPE", members
        answer = await house.web.post(APPEND, {"ciphertext": "QUJD"}, NAMED)
        assert refused(answer, 400) == "BAD_ENVELOPE"
        for headers in (
            *({"X-Room-ID": "another"}, {"X-Pseudonym-ID": "another"}, {"X-Inbox-ID": ""}),
            *({"X-Inbox-ID": "a/b"}, {"X-Inbox-ID": "x" * 345}, {"X-Inbox-ID": "na\xefve"}),
        ):
            answer = await house.send("a", pseudonymId="p-1", headers=headers)
            assert refused(answer, 400) == "BAD_REQUEST", headers
        for path in (MESSAGE, APPEND):
            for kind in (None, "text/plain", "application/jsonx"):
                typed = NAMED | ({} if kind is None else {"Content-Type": kind})
                answer = await house.web.request("POST", path, typed, b"not looked at")
                assert refused(answer, 415) == "UNSUPPORTED_MEDIA_TYPE", kind

        await guest.nothing_more()
        assert (await house.read(DEFAULT)).messages == (await house.read(INBOX)).messages == []
        assert await house.appended(INBOX, "a") == 1
        typed = {"Content-Type": "Application/JSON; charset=utf-8"}
        answer = await house.web.request("POST", MESSAGE, typed, json.dumps(GOOD).encode())
        assert accepted(answer, "a") == 1
        assert house.web.connects == 1


async def test_ciphertext_has_64_kib_at_most_and_requests_have_a_bound() -> None:
    async with open_house() as house:
        assert await house.sent("a", ciphertext=f"{LARGEST}==") == 1

        assert refused(await house.send("b", ciphertext=f"{LARGEST}A"), 413) == "TOO_LARGE"
        assert refused(await house.append(DEFAULT, "b", f"{LARGEST}A"), 413) == "TOO_LARGE"
        assert (await house.web.post(MESSAGE, b" " * (3 * 2**20))).status == 413

        assert (await house.read(DEFAULT)).messages[0]["ciphertext"] == LARGEST
        assert await house.sent("b") == 2


async def test_bad_fetch_is_refused() -> None:
    async with open_house() as house:
        for query in (
            *(f"{name}={value}" for name in ("fromSeq", "limit") for value in BAD_NUMBERS),
            *("limit=0", "fromSeq=1&fromSeq=1", "fromSeq"),
        ):
            assert refused(await house.fetch(DEFAULT, f"?{query}"), 400) == "BAD_REQUEST", query
        for inbox in (None, "", "a/b", "..", "x" * 345, "na\xefve"):
            for answer in (
                await house.web.get(f"{MESSAGES}?inboxId=a", named_inbox(inbox)),
                await house.web.post(APPEND, GOOD, named_inbox(inbox)),
            ):
                assert refused(answer, 400) == "BAD_REQUEST", inbox
        twice = [("X-Inbox-ID", "a"), ("X-Inbox-ID", "b")]
        assert refused(await house.web.get(MESSAGES, twice), 400) == "BAD_REQUEST"


async def test_other_methods_and_paths_are_refused() -> None:
    async with open_house() as house:
        for path, good in [(MESSAGE, "POST"), (APPEND, "POST"), (MESSAGES, "GET")]:
            for method in {"GET", "POST", "PUT", "DELETE"} - {good}:
                answer = await house.web.request(method, path, NAMED | JSON, b"{}")
                assert good in allowed(answer)
                assert refused(answer, 405) == "METHOD_NOT_ALLOWED"
        for path in ("/deliver", "/api/v1/history", "/api/v1/message/", "/v1/inbox"):
            assert (await house.web.post(path, GOOD)).status == 404
            assert (await house.web.get(path)).status == 404

    async with open_house(enabled=False) as house:
        assert (await house.send("a")).status == (await house.fetch(INBOX)).status == 404


# Pages.


async def is_paged(house: OpenHouse) -> None:
    """2 500 messages are three pages and an empty one."""
    for from_seq, last in [(0, 1000), (1001, 2000), (2001, 2500), (2501, 2500)]:
        page = await house.read(INBOX, from_seq, 5_000)
        assert page.seqs == list(range(max(1, from_seq), last + 1))
        assert (page.next_seq, page.oldest) == (last + 1, 1)
    messages = await house.read_all(INBOX, 700)
    assert [one["messageId"] for one in messages] == [f"m-{n}" for n in range(1, 2501)]
    assert messages[700]["ciphertext"] == sealed("m-701")


async def test_2500_messages_are_three_pages_before_and_after_a_restart() -> None:
    async with open_house(rate=10_000, hub={"message_rate": 0}) as house:
        await fill(await house.join(inbox=INBOX), 2500)
        await is_paged(house)
        for query, seqs in [
            *(("", range(1, 101)), ("?limit=007&fromSeq=5", range(5, 12))),
            ("?x=1&fromSeq=1&FROMSEQ=9&x=2&limit=1", range(1, 2)),
        ]:
            assert page_of(await house.fetch(INBOX, query)).seqs == list(seqs)
        head = await house.web.request("HEAD", MESSAGES, NAMED)
        assert (head.undated[:2], head.body) == ((await house.fetch(INBOX)).undated[:2], b"")

        await house.restart()

        await is_paged(house)
        # The ids of messages that have left memory are known.
        assert is_replay(await house.send("m-1"))


@pytest.mark.parametrize("query", ["", "?limit=5&fromSeq=7"])
async def test_unknown_inbox_answers_exactly_like_an_empty_one(query: str) -> None:
    clock = exact_clock()
    async with open_house(clock, fetch_rate=1, retention={"short": 60.0}) as house:
        await house.join("bound", inbox=INBOX)
        await house.join("joined")
        await house.sent("a", "short")
        clock.advance(2 * 60)

        inboxes = ["never-heard-of", INBOX, default_inbox("joined"), default_inbox("short")]
        answers = [await house.fetch(inbox, query) for inbox in inboxes]
        limited = [await house.fetch(inbox, query) for inbox in inboxes]

        assert (answers[0].json["messages"], oldest_of(answers[0])) == ([], None)
        for same, status in ((answers, 200), (limited, 429)):
            assert same[0].status == status
            assert [one.undated for one in same] == [same[0].undated] * 4


# Requests that come in unusual ways.


def posted(message_id: str, ciphertext: str) -> bytes:
    """The bytes of a message over HTTP, with its body in two chunks."""
    body = json.dumps({"messageId": message_id, "roomId": ROOM, "ciphertext": ciphertext}).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in (body[:10], body[10:], b""))
    return request_bytes("POST", MESSAGE, JSON | {"Transfer-Encoding": "chunked"}) + chunks


@pytest.mark.parametrize("piece_bytes", [3, 2**20])
async def test_requests_written_at_once_are_answered_in_their_order(piece_bytes: int) -> None:
    fetch = request_bytes("GET", MESSAGES, {"X-Inbox-ID": DEFAULT})
    sends = [posted(f"m-{number}", "QUJD") for number in range(1, 11)]
    data = b"".join([*sends, fetch, posted("m-5", "QUJD"), posted("m-11", "no base64"), fetch])
    async with open_house() as house:
        reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
        for at in range(0, len(data), piece_bytes):
            writer.write(data[at : at + piece_bytes])
            # The hub looks at each piece.
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            answers = [await read_answer(reader) for _ in range(14)]
        writer.transport.abort()

        assert [accepted(answer) for answer in answers[:10]] == list(range(1, 11))
        assert page_of(answers[10]).seqs == page_of(answers[13]).seqs == list(range(1, 11))
        assert (accepted(answers[11]), is_replay(answers[11])) == (5, True)
        assert refused(answers[12], 400) == "BAD_ENVELOPE"
