"""What a room remembers over HTTP: two opaque blobs with versions, and proposals."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.socket.guest import sealed
from tests.support.socket.http import Answer, Headers, pairs
from tests.support.socket.rooms import (
    DAY,
    INBOX,
    KEPT,
    ROOM,
    House,
    Members,
    OpenHouse,
    allowed,
    default_inbox,
    exact_clock,
    is_replay,
    open_house,
    refused,
)

METADATA, QUORUM, PROPOSALS = "/v1/room/metadata", "/v1/room/quorum", "/v1/room/proposals"
BYTES = bytes(range(256)) + b'\r\n\r\n{"not": json'
ABOUT = ["mls_proposal", "mls_approval", "mls_rejection", "mls_commit"]
LOOKS, LOOK_AGAIN_S = 400, 0.05

# Blobs.


async def put(house: House, body: bytes, headers: Headers = (), path: str = METADATA) -> Answer:
    return await house.web.put(path, body, [("X-Room-ID", ROOM), *pairs(headers)])


async def get(house: House, headers: Headers = (), path: str = METADATA) -> Answer:
    return await house.web.get(path, [("X-Room-ID", ROOM), *pairs(headers)])


def written(answer: Answer) -> str | None:
    """The version a write has made."""
    assert (answer.status, answer.body) == (204, b""), answer
    return answer.header("ETag")


def read(answer: Answer) -> tuple[bytes, str | None]:
    assert answer.status == 200, answer
    assert answer.header("Content-Type") == "application/octet-stream"
    return answer.body, answer.header("ETag")


@pytest.mark.parametrize("path", [METADATA, QUORUM])
async def test_blob_is_kept_byte_by_byte_under_a_version_that_counts(path: str) -> None:
    async with open_house() as house:
        guest = await house.join()
        assert refused(await get(house, path=path), 404) == "NOT_FOUND"

        assert written(await put(house, BYTES, {"If-None-Match": "*"}, path)) == '"1"'
        assert read(await get(house, path=path)) == (BYTES, '"1"')
        for condition in ({"If-None-Match": "*"}, {"If-Match": '"3"'}):
            answer = await put(house, b"refused", condition, path)
            assert refused(answer, 412) == "PRECONDITION_FAILED"
        assert refused(await put(house, b"x", {"If-Match": "2"}, path), 400) == "BAD_REQUEST"
        for condition in ({"If-Match": '"7","1"'}, {"If-Match": "*"}):
            typed = condition | {"Content-Type": "application/json"}
            assert written(await put(house, b"second", typed, path)) is not None
        await guest.nothing_more()
        assert refused(await put(house, b"", path=path), 400) == "BAD_REQUEST"
        assert refused(await put(house, b"x" * 65_537, path=path), 413) == "TOO_LARGE"
        await house.restart()
        assert read(await get(house, {"If-None-Match": '"1"'}, path)) == (b"second", '"3"')
        known = await get(house, {"If-None-Match": 'W/"3"'}, path)
        assert (known.status, known.body, known.header("ETag")) == (304, b"", '"3"')
        head = await house.web.request("HEAD", path, {"X-Room-ID": ROOM})
        assert (head.status, head.header("ETag"), head.body) == (200, '"3"', b"")

        # It belongs to one room and one name, and is nothing that is sent.
        other = QUORUM if path == METADATA else METADATA
        assert refused(await get(house, path=other), 404) == "NOT_FOUND"
        answer = await house.web.get(path, {"X-Room-ID": "elsewhere"})
        assert refused(answer, 404) == "NOT_FOUND"
        assert await house.sent("a") == 1


async def test_state_is_asked_for_by_room_and_by_its_methods() -> None:
    async with open_house() as house:
        for path, methods in [
            *((METADATA, {"GET", "PUT"}), (QUORUM, {"GET", "PUT"})),
            *((PROPOSALS, {"GET"}), (f"{PROPOSALS}/p", {"GET"})),
        ]:
            for headers in ({}, {"X-Room-ID": ""}, {"X-Room-ID": "../x"}):
                for method in methods:
                    answer = await house.web.request(method, path, headers, b"x")
                    assert refused(answer, 400) == "BAD_REQUEST"
            for method in {"POST", "PUT", "DELETE", "PATCH"} - methods:
                answer = await house.web.request(method, path, {"X-Room-ID": ROOM}, b"x")
                assert methods <= allowed(answer)
                assert refused(answer, 405) == "METHOD_NOT_ALLOWED"


# Proposals.


async def say(house: House, type: str, proposal: str, message_id: str = "") -> int:
    """Send one message about a proposal; its position."""
    return await house.sent(message_id or f"{type}-{proposal}", type=type, proposalId=proposal)


async def proposal(house: House, name: str) -> Members:
    answer = await house.web.get(f"{PROPOSALS}/{name}", {"X-Room-ID": ROOM})
    assert answer.status == 200, answer
    record: Members = answer.json
    return record


async def proposals(house: House) -> list[Members]:
    """All proposals of the room, each one the same as when it is asked for alone."""
    answer = await house.web.get(PROPOSALS, {"X-Room-ID": ROOM})
    assert set(answer.json) == {"proposals"}, answer
    found: list[Members] = answer.json["proposals"]
    assert [await proposal(house, one["proposalId"]) for one in found] == found
    return found


async def test_every_type_is_passed_on_and_kept_without_it() -> None:
    async with open_house() as house:
        guest = await house.join()
        for type in ("mls_app", "mls_group_info", *ABOUT[1:], "mls_proposal"):
            # Nothing but a proposal makes one.
            assert await proposals(house) == []
            await house.sent(f"{type}-http", type=type, proposalId="p")
            await guest.accepted(f"{type}-socket", type=type, proposalId="q")
            assert [told["type"] for told in await guest.messages(2)] == [type, type]

        assert [one["proposalId"] for one in await proposals(house)] == ["p", "q"]
        assert (await house.read(default_inbox())).seqs == list(range(1, 13))


@pytest.mark.parametrize("end", ["mls_commit", "mls_rejection"])
async def test_proposal_collects_approvals_until_it_is_settled(end: str) -> None:
    settled = {"mls_commit": "committed", "mls_rejection": "rejected"}[end]
    async with open_house(exact_clock()) as house:
        alice = await house.join(pseudonym="alice", inbox=INBOX)
        await alice.accepted("a", type="mls_proposal", proposalId="add-carol")
        await say(house, "mls_proposal", "bee")
        for message_id in ("yes-1", "yes-2"):
            await say(house, "mls_approval", "add-carol", message_id)
        repeat = await house.send("yes-1", type="mls_approval", proposalId="add-carol")
        assert is_replay(repeat)
        record = {
            "proposalId": "add-carol",
            "proposerPseudonymId": "alice",
            "encryptedContent": sealed("a"),
            "encryptedApprovals": [sealed("yes-1"), sealed("yes-2")],
            "status": "pending",
            "createdAt": "2025-10-09T08:53:20Z",
            "expiresAt": "2025-10-10T08:53:20Z",
        }
        found = await proposals(house)
        assert found[0] == record
        assert "proposerPseudonymId" not in found[1]

        await say(house, end, "add-carol")

        for type in ABOUT:
            await say(house, type, "add-carol", f"late-{type}")
        for _ in range(2):
            assert await proposals(house) == [record | {"status": settled}, found[1]]
            answer = await house.web.get(f"{PROPOSALS}/unknown", {"X-Room-ID": ROOM})
            assert refused(answer, 404) == "NOT_FOUND"
            await house.restart()


async def until_expired(house: OpenHouse, name: str) -> None:
    """Alarms go off in the background, within a second or so."""
    for _ in range(LOOKS):
        if (await proposal(house, name))["status"] == "expired":
            return
        await asyncio.sleep(LOOK_AGAIN_S)
    raise AssertionError("it has not expired")


@pytest.mark.parametrize("is_away", [False, True])
async def test_proposal_expires_after_a_day_even_if_the_hub_is_away(is_away: bool) -> None:
    clock = exact_clock()
    async with open_house(clock, hub=KEPT) as house:
        await say(house, "mls_proposal", "pending")
        await say(house, "mls_approval", "pending", "yes")
        clock.advance(60)
        await say(house, "mls_proposal", "later")
        clock.advance(DAY / 2)
        await house.restart()
        clock.advance(DAY / 2 - 70)
        assert (await proposal(house, "pending"))["status"] == "pending"

        if is_away:
            await house.stop()
        clock.advance(20)
        if is_away:
            await house.hub.start()

        await until_expired(house, "pending")
        for type in ABOUT:
            await say(house, type, "pending", f"too-late-{type}")
        record = await proposal(house, "pending")
        assert record["status"] == "expired"
        assert record["encryptedApprovals"] == [sealed("yes")]
        # Expiry has no position: nothing was sent.
        assert (await house.read(default_inbox())).seqs == [1, 2, 3, 4, 5, 6, 7]
        assert (await proposal(house, "later"))["status"] == "pending"
        clock.advance(60)
        await until_expired(house, "later")
