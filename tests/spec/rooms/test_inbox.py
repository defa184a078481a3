"""`GET /v1/inbox/messages`: pages in order, cursors that skip nothing, and nothing given away."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.support.socket.guest import sealed
from tests.support.socket.rooms import (
    HOUR,
    INBOX,
    LIMITED,
    MESSAGES,
    ROOM,
    OpenHouse,
    allowed,
    default_inbox,
    exact_clock,
    fill,
    oldest_of,
    open_house,
    page_of,
    refused,
    wait_ms,
)

DEFAULT = default_inbox(ROOM)
SAMPLE = "tenant-123:room-456"
BEYOND = 2**53


async def is_paged(house: OpenHouse) -> None:
    """2 500 messages are three pages and an empty one."""
    page = await house.read(INBOX, limit=1000)
    assert (page.seqs, page.next_seq) == (list(range(1, 1001)), 1001)
    page = await house.read(INBOX, page.next_seq, 1000)
    assert (page.seqs, page.next_seq) == (list(range(1001, 2001)), 2001)
    page = await house.read(INBOX, page.next_seq, 1000)
    assert (page.seqs, page.next_seq) == (list(range(2001, 2501)), 2501)
    assert page.oldest == 1
    page = await house.read(INBOX, page.next_seq, 1000)
    assert (page.seqs, page.next_seq) == ([], 2501)

    assert len(await house.read_all(INBOX, 700)) == 2500


async def test_2500_messages_are_three_pages_and_an_empty_one_before_and_after_a_restart() -> None:
    async with open_house(rate=10_000, hub={"message_rate": 0}) as house:
        await fill(await house.join(inbox=INBOX), 2500)
        await is_paged(house)

        await house.restart()

        await is_paged(house)
        messages = await house.read_all(INBOX)
        assert [message["messageId"] for message in messages] == [f"m-{n}" for n in range(1, 2501)]
        assert messages[700]["ciphertext"] == sealed("m-701")


async def test_page_has_100_messages_by_default_and_1000_at_most() -> None:
    async with open_house(rate=10_000, hub={"message_rate": 0}) as house:
        await fill(await house.join(), 1200)

        for query, last in [
            ("", 100),
            ("?limit=1", 1),
            ("?limit=007", 7),
            ("?limit=999", 999),
            ("?limit=1000", 1000),
            ("?limit=1001", 1000),
            ("?limit=5000", 1000),
            (f"?limit={BEYOND - 1}", 1000),
        ]:
            page = page_of(await house.fetch(DEFAULT, query))
            assert page.seqs == list(range(1, last + 1)), query
            assert page.next_seq == last + 1


async def test_first_position_is_included_and_the_next_is_behind_the_last() -> None:
    async with open_house() as house:
        for number in range(1, 11):
            await house.sent(f"m-{number}")

        for from_seq, limit, expected in [
            (0, 3, [1, 2, 3]),
            (1, 3, [1, 2, 3]),
            (4, 3, [4, 5, 6]),
            (10, 3, [10]),
            (8, 100, [8, 9, 10]),
        ]:
            page = await house.read(DEFAULT, from_seq, limit)
            assert page.seqs == expected
            assert page.next_seq == expected[-1] + 1


@pytest.mark.parametrize("inbox", [DEFAULT, "never-heard-of"])
async def test_page_beyond_the_end_is_empty_and_does_not_move_the_cursor(inbox: str) -> None:
    async with open_house() as house:
        await house.sent("a")

        for from_seq in (2, 3, 10_000, BEYOND - 1):
            page = await house.read(inbox, from_seq)
            assert (page.messages, page.next_seq) == ([], from_seq)


async def test_page_ends_early_where_it_would_grow_too_large() -> None:
    async with open_house(page_bytes_max=5_000, fetch_rate=1000) as house:
        large, huge = "A" * 2_000, "A" * 20_000
        for number in range(1, 13):
            await house.sent(f"m-{number}", ciphertext=huge if number == 6 else large)

        messages = await house.read_all(DEFAULT)
        page = await house.read(DEFAULT)

        assert [message["seq"] for message in messages] == list(range(1, 13))
        assert 1 <= len(page.messages) < 6


@pytest.mark.parametrize("name", ["fromSeq", "limit"])
async def test_number_that_is_none_is_refused(name: str) -> None:
    values = ["-1", "abc", "1.0", "1e2", "+5", "", " 5", "5 ", "0x10", "٣", "1_0", f"{BEYOND}"]
    async with open_house() as house:
        for value in values:
            answer = await house.fetch(DEFAULT, f"?{name}={quote(value)}")
            assert refused(answer, 400) == "BAD_REQUEST", value


async def test_other_bad_queries_are_refused() -> None:
    async with open_house() as house:
        for query in ("limit=0", "fromSeq=1&fromSeq=1", "limit=5&fromSeq=1&limit=5", "fromSeq"):
            assert refused(await house.fetch(DEFAULT, f"?{query}"), 400) == "BAD_REQUEST", query


async def test_parameters_nobody_knows_are_ignored() -> None:
    async with open_house() as house:
        await house.sent("a")

        page = page_of(await house.fetch(DEFAULT, "?x=1&fromSeq=1&FROMSEQ=9&x=2&limit=1"))

        assert page.seqs == [1]


async def test_inbox_id_that_is_none_is_refused() -> None:
    async with open_house() as house:
        for inbox in ("", "a/b", "..", "a..b", "x" * 345, "a b", "na\xefve", "a,b"):
            assert refused(await house.fetch(inbox), 400) == "BAD_REQUEST", inbox


async def test_inbox_id_must_be_given_once_and_in_the_header() -> None:
    async with open_house() as house:
        for headers in ([], [("X-Inbox-ID", "a"), ("X-Inbox-ID", "b")]):
            answer = await house.web.get(MESSAGES, headers)
            assert refused(answer, 400) == "BAD_REQUEST"
        answer = await house.web.get(f"{MESSAGES}?inboxId=a&X-Inbox-ID=a")
        assert refused(answer, 400) == "BAD_REQUEST"


async def test_inbox_is_only_read_at_this_path() -> None:
    async with open_house() as house:
        for method in ("POST", "PUT", "DELETE"):
            answer = await house.web.request(method, MESSAGES, {"X-Inbox-ID": DEFAULT}, b"{}")
            assert "GET" in allowed(answer)
            assert refused(answer, 405) == "METHOD_NOT_ALLOWED"


async def test_head_is_a_fetch_without_its_body() -> None:
    async with open_house() as house:
        await house.sent("a")

        head = await house.web.request("HEAD", MESSAGES, {"X-Inbox-ID": DEFAULT})
        get = await house.fetch(DEFAULT)

        assert head.body == b""
        assert head.undated[:2] == get.undated[:2]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (SAMPLE, "dGVuYW50LTEyMzpyb29tLTQ1Ng"),
        (SAMPLE, "dGVuYW50LTEyMzpyb29tLTQ1Ng=="),
        ("dGVuYW50LTEyMzpyb29tLTQ1Ng==", SAMPLE),
        (INBOX, f"{INBOX}="),
        ("+/" + "A" * 41, "-_" + "A" * 41),
        ("+/" + "A" * 41 + "=", "-_" + "A" * 41),
        ("-_" + "A" * 41, "+/" + "A" * 41 + "="),
    ],
)
async def test_inbox_id_may_be_written_in_several_ways(written: str, read: str) -> None:
    async with open_house() as house:
        await house.appended(written, "a")

        assert (await house.read(read)).ids == ["a"]


async def test_inbox_of_the_longest_name_can_be_read() -> None:
    tenant, room = "t" * 128, "r" * 128
    async with open_house() as house:
        await house.sent("a", room, tenantId=tenant)

        assert (await house.read(default_inbox(room, tenant))).ids == ["a"]
        assert (await house.read(f"{tenant}:{room}")).ids == ["a"]


async def test_inbox_ids_are_compared_exactly() -> None:
    async with open_house() as house:
        await house.appended(INBOX, "a")

        for other in (INBOX.lower(), INBOX[:-1], f"{INBOX}A", f"{INBOX[:-1]}h", f"x{INBOX[1:]}"):
            assert (await house.read(other)).messages == []


async def test_sixty_fetches_a_minute_and_the_next_is_refused() -> None:
    clock = exact_clock()
    async with open_house(clock) as house:
        await house.sent("a")
        for _ in range(5):
            refused(await house.fetch(DEFAULT, "?limit=0"), 400)
        for _ in range(60):
            assert (await house.read(DEFAULT)).ids == ["a"]

        answer = await house.fetch(DEFAULT)

        assert answer.status == 429
        assert answer.json == {
            "error": "Rate limit exceeded",
            "errorCode": LIMITED,
            "retryAfterMs": 60_000,
        }
        assert answer.header("Retry-After") == "60"
        assert (await house.read("another-inbox")).messages == []
        assert await house.sent("b") == 2
        clock.advance(60)
        assert (await house.read(DEFAULT)).ids == ["a", "b"]


async def test_limit_of_fetches_does_not_depend_on_how_an_inbox_is_written() -> None:
    async with open_house(exact_clock(), fetch_rate=2) as house:
        await house.read(SAMPLE)
        await house.read("dGVuYW50LTEyMzpyb29tLTQ1Ng==")

        assert wait_ms(await house.fetch("dGVuYW50LTEyMzpyb29tLTQ1Ng")) == 60_000


@pytest.mark.parametrize("query", ["", "?fromSeq=7", "?limit=5&fromSeq=1"])
async def test_unknown_inbox_answers_exactly_like_an_empty_one(query: str) -> None:
    clock = exact_clock()
    async with open_house(clock, fetch_rate=3, retention={"short": 60.0}) as house:
        await house.join("bound", inbox=INBOX)
        await house.join("joined")
        await house.sent("a", "short")
        clock.advance(2 * 60)

        unknown = await house.fetch("never-heard-of", query)
        empty = [
            await house.fetch(inbox, query)
            for inbox in (INBOX, default_inbox("joined"), default_inbox("short"))
        ]

        assert unknown.status == 200
        assert unknown.json["messages"] == []
        assert oldest_of(unknown) is None
        assert [answer.undated for answer in empty] == [unknown.undated] * 3
        limited = []
        for inbox in ("never-heard-of", INBOX, default_inbox("short")):
            for _ in range(2):
                await house.fetch(inbox, query)
            limited.append((await house.fetch(inbox, query)).undated)
        assert limited[0][0] == 429
        assert limited == [limited[0]] * 3


async def test_reader_who_comes_late_is_told_where_the_inbox_begins() -> None:
    clock = exact_clock()
    async with open_house(clock, retention_s=HOUR) as house:
        for number in range(1, 4):
            await house.sent(f"m-{number}")
        clock.advance(HOUR - 600)
        for number in range(4, 6):
            await house.sent(f"m-{number}")
        assert (await house.read(DEFAULT)).oldest == 1
        clock.advance(1200)

        for from_seq in (None, 0, 1, 3, 4):
            page = await house.read(DEFAULT, from_seq)
            assert (page.seqs, page.next_seq, page.oldest) == ([4, 5], 6, 4)
        page = await house.read(DEFAULT, 100)
        assert (page.seqs, page.next_seq, page.oldest) == ([], 100, 4)
