"""A room's two opaque blobs, with versions that let writers notice each other."""

from __future__ import annotations

import pytest

from tests.support.socket.http import Answer, Headers, pairs
from tests.support.socket.rooms import (
    ROOM,
    House,
    allowed,
    at_once,
    default_inbox,
    open_house,
    refused,
)

METADATA, QUORUM = "/v1/room/metadata", "/v1/room/quorum"
BYTES = bytes(range(256)) + b'\r\n\r\n{"not": json'


async def put(house: House, body: bytes, headers: Headers = (), path: str = METADATA) -> Answer:
    return await house.web.put(path, body, [("X-Room-ID", ROOM), *pairs(headers)])


async def get(house: House, headers: Headers = (), path: str = METADATA) -> Answer:
    return await house.web.get(path, [("X-Room-ID", ROOM), *pairs(headers)])


def written(answer: Answer) -> str:
    """The version a write has made."""
    assert answer.status == 204, answer
    assert answer.body == b""
    tag = answer.header("ETag")
    assert tag is not None
    return tag


def read(answer: Answer) -> tuple[bytes, str | None]:
    assert answer.status == 200, answer
    assert answer.header("Content-Type") == "application/octet-stream"
    return answer.body, answer.header("ETag")


@pytest.mark.parametrize("path", [METADATA, QUORUM])
async def test_blob_is_kept_byte_by_byte_under_a_version_that_counts(path: str) -> None:
    async with open_house() as house:
        assert refused(await get(house, path=path), 404) == "NOT_FOUND"

        assert written(await put(house, BYTES, path=path)) == '"1"'
        assert read(await get(house, path=path)) == (BYTES, '"1"')
        assert written(await put(house, b"second", path=path)) == '"2"'
        assert read(await get(house, path=path)) == (b"second", '"2"')
        assert written(await put(house, b"second", path=path)) == '"3"'

        await house.restart()
        assert read(await get(house, path=path)) == (b"second", '"3"')
        assert written(await put(house, b"fourth", path=path)) == '"4"'


async def test_blobs_and_rooms_do_not_share_anything() -> None:
    async with open_house() as house:
        written(await put(house, b"metadata"))

        assert refused(await get(house, path=QUORUM), 404) == "NOT_FOUND"
        assert written(await put(house, b"quorum", path=QUORUM)) == '"1"'
        elsewhere = {"X-Room-ID": "elsewhere"}
        assert refused(await house.web.get(METADATA, elsewhere), 404) == "NOT_FOUND"
        assert written(await house.web.put(METADATA, b"other", elsewhere)) == '"1"'

        assert read(await get(house)) == (b"metadata", '"1"')
        assert read(await get(house, path=QUORUM)) == (b"quorum", '"1"')


async def test_blob_is_nothing_that_is_sent() -> None:
    async with open_house() as house:
        guest = await house.join()

        written(await put(house, b"metadata"))

        await guest.nothing_more()
        assert await house.sent("a") == 1
        assert (await house.read(default_inbox())).ids == ["a"]


@pytest.mark.parametrize("content_type", [None, "application/json", "text/plain", "nonsense"])
async def test_any_content_type_will_do(content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    async with open_house() as house:
        written(await put(house, b"blob", headers))

        assert read(await get(house)) == (b"blob", '"1"')


@pytest.mark.parametrize(
    ("condition", "is_met"),
    [
        ({"If-Match": '"2"'}, True),
        ({"If-Match": '"1", "2"'}, True),
        ({"If-Match": '"7","2" , "9"'}, True),
        ({"If-Match": "*"}, True),
        ({"If-Match": '"1"'}, False),
        ({"If-Match": '"3"'}, False),
        ({"If-Match": '"1", "3"'}, False),
        ({"If-Match": '"x"'}, False),
        ({"If-None-Match": "*"}, False),
    ],
)
async def test_write_happens_only_if_its_condition_is_met(
    condition: dict[str, str], is_met: bool
) -> None:
    async with open_house() as house:
        for body in (b"first", b"second"):
            written(await put(house, body))

        answer = await put(house, b"third", condition)

        if is_met:
            assert written(answer) == '"3"'
            assert read(await get(house)) == (b"third", '"3"')
        else:
            assert refused(answer, 412) == "PRECONDITION_FAILED"
            assert read(await get(house)) == (b"second", '"2"')


@pytest.mark.parametrize("condition", [{"If-Match": "*"}, {"If-Match": '"1"'}])
async def test_blob_that_is_not_there_matches_nothing(condition: dict[str, str]) -> None:
    async with open_house() as house:
        assert refused(await put(house, b"x", condition), 412) == "PRECONDITION_FAILED"

        assert refused(await get(house), 404) == "NOT_FOUND"


async def test_blob_can_be_made_only_once() -> None:
    async with open_house() as house:
        assert written(await put(house, b"mine", {"If-None-Match": "*"})) == '"1"'

        answer = await put(house, b"yours", {"If-None-Match": "*"})

        assert refused(answer, 412) == "PRECONDITION_FAILED"
        assert read(await get(house)) == (b"mine", '"1"')


async def test_of_writers_who_know_the_same_version_one_succeeds() -> None:
    async with open_house() as house:
        written(await put(house, b"first"))
        webs = [house.another_web() for _ in range(10)]
        headers = {"X-Room-ID": ROOM, "If-Match": '"1"'}

        answers = await at_once(
            *(web.put(METADATA, b"%d" % number, headers) for number, web in enumerate(webs))
        )

        winners = [number for number, answer in enumerate(answers) if answer.status == 204]
        assert len(winners) == 1
        for answer in answers:
            assert answer.status == 204 or refused(answer, 412) == "PRECONDITION_FAILED"
        assert read(await get(house)) == (b"%d" % winners[0], '"2"')


@pytest.mark.parametrize("name", ["If-Match", "If-None-Match"])
async def test_condition_that_is_malformed_is_refused(name: str) -> None:
    async with open_house() as house:
        for body in (b"first", b"second"):
            written(await put(house, body))

        for condition in ("2", '"2', "'2'", '"1" "2"', "", ",", "**"):
            answer = await put(house, b"third", {name: condition})
            assert refused(answer, 400) == "BAD_REQUEST", condition

        assert read(await get(house)) == (b"second", '"2"')


@pytest.mark.parametrize(
    ("known", "is_known"),
    [('"2"', True), ('"1", "2"', True), ("*", True), ('W/"2"', True), ('"1"', False)],
)
async def test_reader_who_knows_the_version_is_not_sent_it_again(
    known: str, is_known: bool
) -> None:
    async with open_house() as house:
        for body in (b"first", b"second"):
            written(await put(house, body))

        answer = await get(house, {"If-None-Match": known})

        if is_known:
            assert (answer.status, answer.body) == (304, b"")
            assert answer.header("ETag") == '"2"'
        else:
            assert read(answer) == (b"second", '"2"')


async def test_blob_has_a_byte_at_least_and_64_kib_at_most() -> None:
    async with open_house() as house:
        assert refused(await put(house, b""), 400) == "BAD_REQUEST"
        written(await put(house, b"x"))
        written(await put(house, b"x" * 65_536))

        assert refused(await put(house, b"x" * 65_537), 413) == "TOO_LARGE"

        assert read(await get(house)) == (b"x" * 65_536, '"2"')


async def test_room_must_be_named() -> None:
    async with open_house() as house:
        for headers in ({}, {"X-Room-ID": ""}, {"X-Room-ID": "../x"}):
            assert refused(await house.web.get(METADATA, headers), 400) == "BAD_REQUEST"
            assert refused(await house.web.put(METADATA, b"x", headers), 400) == "BAD_REQUEST"


async def test_blobs_are_read_and_written_and_nothing_else() -> None:
    async with open_house() as house:
        written(await put(house, b"blob"))
        for method in ("POST", "DELETE", "PATCH"):
            answer = await house.web.request(method, METADATA, {"X-Room-ID": ROOM}, b"x")
            assert {"GET", "PUT"} <= allowed(answer)
            assert refused(answer, 405) == "METHOD_NOT_ALLOWED"

        head = await house.web.request("HEAD", METADATA, {"X-Room-ID": ROOM})

        assert (head.status, head.header("ETag"), head.body) == (200, '"1"', b"")


async def test_state_that_grows_too_large_is_refused_and_what_is_there_stays() -> None:
    async with open_house(state_bytes_max=20_000) as house:
        written(await put(house, b"x" * 15_000))

        elsewhere = {"X-Room-ID": "elsewhere"}
        answer = await house.web.put(METADATA, b"x" * 15_000, elsewhere)

        assert refused(answer, 503) == "UNAVAILABLE"
        assert refused(await house.web.get(METADATA, elsewhere), 404) == "NOT_FOUND"
        assert written(await put(house, b"y" * 15_000)) == '"2"'
