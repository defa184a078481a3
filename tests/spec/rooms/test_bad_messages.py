"""`POST /api/v1/message`: everything it refuses, without using a position or telling anybody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.socket.guest import sealed
from tests.support.socket.http import JSON
from tests.support.socket.rooms import (
    MESSAGE,
    ROOM,
    OpenHouse,
    accepted,
    allowed,
    default_inbox,
    open_house,
    refused,
)

INBOX = default_inbox(ROOM)
LARGEST = "A" * 87_382
TOO_LARGE = "A" * 87_383
NOT_AN_ID = ["", "a/b", "..", "a..b", "../../etc", "a" * 129, "a b", "naïve", "a\n", "a\x00", "%2e"]
NOT_TEXT: list[Any] = [7, True, ["a"], {"a": "b"}]
ABOUT_A_PROPOSAL: dict[str, Any] = {"type": "mls_proposal", "proposalId": "p"}


NO_OBJECTS = [
    b"",
    b"{",
    b"nonsense",
    b'{"roomId":"general","ciphertext":"QUJD"',
    b'{"roomId":"general","ciphertext":"QUJD"} and more',
    b'{"roomId":"general","ciphertext":"\xff\xfe"}',
    b'{"roomId":"general","ciphertext":"QUJD","pseudonymId":NaN}',
    b"[]",
    b"null",
    b"7",
    b'"QUJD"',
    b'[{"roomId":"general","ciphertext":"QUJD"}]',
    b"[" * 100_000,
]
NO_CIPHERTEXTS = [
    *("", "=", "==", "A", "AAAAA", "AAAA=A", "QU JD", "QUJD\n"),
    *("-+-+", "_/_/", "QUJÐ", "QUJ.", "{}"),
]


@asynccontextmanager
async def untouched_house() -> AsyncIterator[OpenHouse]:
    """A hub that is only refused things to: the first good message is the first there is."""
    async with open_house() as house:
        guest = await house.join()
        yield house
        await guest.nothing_more()
        assert (await house.read(INBOX)).messages == []
        assert await house.sent("good") == 1
        assert house.web.connects == 1


async def test_body_that_is_no_json_object_is_refused() -> None:
    async with untouched_house() as house:
        for body in NO_OBJECTS:
            answer = await house.web.post(MESSAGE, body)
            assert refused(answer, 400) == "BAD_ENVELOPE", body[:100]


@pytest.mark.parametrize("name", ["roomId", "ciphertext"])
async def test_member_that_is_needed_must_be_there_as_text(name: str) -> None:
    async with untouched_house() as house:
        for value in (..., None, *NOT_TEXT):
            answer = await house.send("a", **{name: value})
            assert refused(answer, 400) == "BAD_ENVELOPE", value


@pytest.mark.parametrize("name", ["messageId", "pseudonymId", "tenantId", "type", "proposalId"])
async def test_optional_member_must_be_text_where_it_is_given(name: str) -> None:
    async with untouched_house() as house:
        for value in NOT_TEXT:
            answer = await house.send("a", **ABOUT_A_PROPOSAL | {name: value})
            assert refused(answer, 400) == "BAD_ENVELOPE", value


@pytest.mark.parametrize("name", ["messageId", "roomId", "pseudonymId", "tenantId", "proposalId"])
async def test_id_that_is_too_long_or_unsafe_in_a_path_is_refused(name: str) -> None:
    async with untouched_house() as house:
        for value in NOT_AN_ID:
            answer = await house.send("a", **ABOUT_A_PROPOSAL | {name: value})
            assert refused(answer, 400) == "BAD_ENVELOPE", value


async def test_colon_belongs_to_rooms_and_pseudonyms_alone() -> None:
    async with untouched_house() as house:
        for name in ("messageId", "tenantId", "proposalId"):
            answer = await house.send("a", **ABOUT_A_PROPOSAL | {name: "a:b"})
            assert refused(answer, 400) == "BAD_ENVELOPE", name

        assert await house.sent("a", "a:b", pseudonymId="a:b") == 1


@pytest.mark.parametrize("name", ["X-Room-ID", "X-Pseudonym-ID", "X-Inbox-ID"])
async def test_header_with_a_bad_id_is_refused(name: str) -> None:
    room = None if name == "X-Room-ID" else ROOM
    async with untouched_house() as house:
        for value in ("", "a/b", "..", "x" * 345, "a b", "na\xefve", "a,b"):
            answer = await house.send("a", room, headers={name: value})
            assert refused(answer, 400) in ("BAD_REQUEST", "BAD_ENVELOPE"), value


async def test_id_of_128_characters_of_every_allowed_kind_is_good() -> None:
    message_id = ("AZaz09._~-" * 13)[:128]
    async with open_house() as house:
        guest = await house.join()

        await house.sent(message_id, pseudonymId=f"{message_id[:-1]}:")

        told = await guest.receive("message")
        assert told["messageId"] == message_id
        assert told["pseudonymId"] == f"{message_id[:-1]}:"


async def test_ciphertext_that_is_no_base64_is_refused() -> None:
    async with untouched_house() as house:
        for ciphertext in NO_CIPHERTEXTS:
            answer = await house.send("a", ciphertext=ciphertext)
            assert refused(answer, 400) == "BAD_ENVELOPE", ciphertext


async def test_unknown_type_is_refused() -> None:
    async with untouched_house() as house:
        for type in ("", "mls_App", "app", "MLS_APP", "mls_unknown", "mls_app "):
            answer = await house.send("a", type=type, proposalId="p")
            assert refused(answer, 400) == "BAD_ENVELOPE", type


async def test_message_about_a_proposal_says_about_which() -> None:
    async with untouched_house() as house:
        for type in ("mls_proposal", "mls_approval", "mls_rejection", "mls_commit"):
            for proposal in (..., None):
                answer = await house.send("a", type=type, proposalId=proposal)
                assert refused(answer, 400) == "BAD_ENVELOPE", type


async def test_largest_ciphertext_is_64_kib_decoded() -> None:
    async with open_house() as house:
        assert await house.sent("a", ciphertext=LARGEST) == 1
        assert await house.sent("b", ciphertext=f"{LARGEST}==") == 2

        answer = await house.send("c", ciphertext=TOO_LARGE)

        assert refused(answer, 413) == "TOO_LARGE"
        page = await house.read(INBOX)
        assert [message["ciphertext"] for message in page.messages] == [LARGEST] * 2
        assert await house.sent("c") == 3
        assert house.web.connects == 1


async def test_largest_ciphertext_is_a_setting() -> None:
    async with open_house(ciphertext_bytes_max=3) as house:
        assert await house.sent("a", ciphertext="QUJD") == 1

        assert refused(await house.send("b", ciphertext="QUJDRA"), 413) == "TOO_LARGE"


async def test_body_that_is_larger_than_any_request_is_refused() -> None:
    async with open_house() as house:
        answer = await house.web.post(MESSAGE, b" " * (3 * 2**20))

        assert answer.status == 413
        assert await house.sent("a") == 1


async def test_body_must_be_said_to_be_json_before_it_is_looked_at() -> None:
    async with untouched_house() as house:
        for content_type in (None, "", "text/plain", "application/jsonx", "text/json; x=json"):
            headers = {} if content_type is None else {"Content-Type": content_type}
            for body in (b'{"roomId":"general","ciphertext":"QUJD"}', b"nonsense"):
                answer = await house.web.request("POST", MESSAGE, headers, body)
                assert refused(answer, 415) == "UNSUPPORTED_MEDIA_TYPE", content_type


async def test_content_type_may_have_parameters() -> None:
    body = b'{"roomId":"general","ciphertext":"QUJD"}'
    kinds = [
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "Application/JSON",
    ]
    async with open_house() as house:
        for number, kind in enumerate(kinds, start=1):
            answer = await house.web.request("POST", MESSAGE, {"Content-Type": kind}, body)
            assert accepted(answer) == number, kind


async def test_other_methods_are_told_which_one_there_is() -> None:
    body = b'{"roomId":"general","ciphertext":"QUJD"}'
    async with untouched_house() as house:
        for method in ("GET", "PUT", "DELETE", "PATCH"):
            answer = await house.web.request(method, MESSAGE, JSON, body)
            assert "POST" in allowed(answer)
            assert refused(answer, 405) == "METHOD_NOT_ALLOWED"


async def test_what_is_not_served_is_not_found() -> None:
    body = {"roomId": ROOM, "ciphertext": sealed("a")}
    async with open_house() as house:
        for path in ("/deliver", "/api/v1/history", "/api/v1/message/", "/v1/inbox"):
            assert (await house.web.post(path, body)).status == 404
            assert (await house.web.get(path)).status == 404


async def test_refusals_do_not_repeat_what_they_refuse() -> None:
    secret = "very-private-thing"
    async with open_house() as house:
        answers = [
            await house.send("a", roomId=f"{secret}/x"),
            await house.send(f"{secret}/x"),
            await house.send("a", pseudonymId=f"{secret}/x"),
            await house.send("a", type=secret),
            await house.send("a", ciphertext=f"{secret}!"),
            await house.send("a", pseudonymId=secret, headers={"X-Pseudonym-ID": f"{secret}2"}),
            await house.send("a", headers={"X-Inbox-ID": f"{secret}/x"}),
            await house.web.post(MESSAGE, f'{{"{secret}'.encode()),
        ]

        for answer in answers:
            assert answer.status == 400
            assert secret.encode() not in answer.body
