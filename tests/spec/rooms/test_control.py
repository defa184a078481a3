"""Control messages: passed on like any other, and proposals remembered until they are settled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.guest import sealed
from tests.support.socket.rooms import (
    DAY,
    INBOX,
    ROOM,
    House,
    Members,
    OpenHouse,
    accepted,
    allowed,
    default_inbox,
    exact_clock,
    is_replay,
    open_house,
    refused,
)

DEFAULT = default_inbox(ROOM)
TYPES = [
    *("mls_app", "mls_proposal", "mls_approval", "mls_rejection", "mls_commit", "mls_group_info")
]
PATH = "/v1/room/proposals"
LOOKS, LOOK_AGAIN_S = 400, 0.05
# Without an archive the log alone remembers, as long as it is kept.
KEPT: dict[str, Any] = {"log": {"retention_s": 100.0 * DAY}}


async def say(
    house: House, type: str, proposal: str, message_id: str = "", pseudonym: str = "p-1"
) -> int:
    """Send one message about a proposal; its position."""
    message_id = message_id or f"{type}-{proposal}"
    members = {"type": type, "proposalId": proposal, "pseudonymId": pseudonym}
    return await house.sent(message_id, **members)


async def proposals(house: House, room: str = ROOM) -> list[Members]:
    """All proposals of a room, each one the same as when it is asked for alone."""
    answer = await house.web.get(PATH, {"X-Room-ID": room})
    assert answer.status == 200, answer
    assert set(answer.json) == {"proposals"}
    found: list[Members] = answer.json["proposals"]
    for record in found:
        assert await proposal(house, record["proposalId"], room) == record
    return found


async def proposal(house: House, name: str, room: str = ROOM) -> Members:
    answer = await house.web.get(f"{PATH}/{name}", {"X-Room-ID": room})
    assert answer.status == 200, answer
    record: Members = answer.json
    return record


async def status_of(house: House, name: str) -> str:
    status: str = (await proposal(house, name))["status"]
    return status


async def until_expired(house: House, name: str) -> None:
    """Alarms go off behind everybody's back, within a second or so."""
    for _ in range(LOOKS):
        if await status_of(house, name) == "expired":
            return
        await asyncio.sleep(LOOK_AGAIN_S)
    raise AssertionError("it has not expired")


@pytest.mark.parametrize("type", TYPES)
async def test_every_type_is_passed_on_and_kept_without_it(type: str) -> None:
    async with open_house() as house:
        guest = await house.join()

        assert await house.sent("by-http", type=type, proposalId="p") == 1
        assert await guest.accepted("by-socket", type=type, proposalId="q") == 2

        for told in await guest.messages(2):
            assert told["type"] == type
            assert told["ciphertext"] == sealed(told["messageId"])
        page = await house.read(DEFAULT)
        assert page.ids == ["by-http", "by-socket"]
        assert all(not {"type", "proposalId", "pseudonymId"} & set(one) for one in page.messages)


async def test_proposal_is_remembered_with_who_made_it_and_when_it_ends() -> None:
    async with open_house(exact_clock()) as house:
        await say(house, "mls_proposal", "add-carol", "a", "alice")

        assert await proposals(house) == [
            {
                "proposalId": "add-carol",
                "proposerPseudonymId": "alice",
                "encryptedContent": sealed("a"),
                "encryptedApprovals": [],
                "status": "pending",
                "createdAt": "2025-10-09T08:53:20Z",
                "expiresAt": "2025-10-10T08:53:20Z",
            }
        ]


async def test_proposal_of_nobody_in_particular_names_nobody() -> None:
    async with open_house(timestamps="none") as house:
        await house.sent("a", type="mls_proposal", proposalId="p")

        assert await proposals(house) == [
            {
                "proposalId": "p",
                "encryptedContent": sealed("a"),
                "encryptedApprovals": [],
                "status": "pending",
            }
        ]


async def test_proposal_on_a_socket_is_that_of_its_pseudonym() -> None:
    async with open_house() as house:
        guest = await house.join(pseudonym="bob")

        await guest.accepted("a", type="mls_proposal", proposalId="p")

        assert (await proposal(house, "p"))["proposerPseudonymId"] == "bob"


@pytest.mark.parametrize("end", ["mls_commit", "mls_rejection"])
async def test_proposal_collects_approvals_until_it_is_settled(end: str) -> None:
    settled = {"mls_commit": "committed", "mls_rejection": "rejected"}[end]
    async with open_house() as house:
        await say(house, "mls_proposal", "p")
        for message_id in ("yes-1", "yes-2"):
            await say(house, "mls_approval", "p", message_id)
        before = await proposal(house, "p")
        assert before["status"] == "pending"
        assert before["encryptedApprovals"] == [sealed("yes-1"), sealed("yes-2")]

        await say(house, end, "p")

        after = before | {"status": settled}
        assert await proposal(house, "p") == after
        for type in TYPES[1:5]:
            await say(house, type, "p", f"late-{type}")
        assert await proposals(house) == [after]
        await house.restart()
        assert await proposals(house) == [after]


async def test_second_proposal_of_a_name_and_repeats_change_nothing() -> None:
    async with open_house() as house:
        guest = await house.join()
        await say(house, "mls_proposal", "p", "first", "alice")
        await say(house, "mls_approval", "p", "yes")
        before = await proposals(house)

        await say(house, "mls_proposal", "p", "second", "bob")
        assert is_replay(await house.send("yes", type="mls_approval", proposalId="p"))

        assert await proposals(house) == before
        assert [told["messageId"] for told in await guest.messages(3)] == ["first", "yes", "second"]


@pytest.mark.parametrize("type", ["mls_approval", "mls_rejection", "mls_commit"])
async def test_message_about_an_unknown_proposal_is_only_passed_on(type: str) -> None:
    async with open_house() as house:
        guest = await house.join()

        assert await say(house, type, "unknown") == 1

        assert (await guest.receive("message"))["type"] == type
        assert await proposals(house) == []


async def test_types_without_a_proposal_make_none() -> None:
    async with open_house() as house:
        for type in ("mls_app", "mls_group_info"):
            await say(house, type, "p")
        await house.appended(DEFAULT, "appended")

        assert await proposals(house) == []


async def test_proposals_are_listed_oldest_first_and_by_room() -> None:
    async with open_house() as house:
        names = ["zebra", "ant", "mole", "bee"]
        for name in names:
            await say(house, "mls_proposal", name)
        await say(house, "mls_commit", "ant")
        await house.sent("x", "elsewhere", type="mls_proposal", proposalId="ant")

        assert [one["proposalId"] for one in await proposals(house)] == names
        assert [one["status"] for one in await proposals(house, "elsewhere")] == ["pending"]
        await house.restart()
        assert [one["proposalId"] for one in await proposals(house)] == names


async def test_unknown_proposal_is_not_found() -> None:
    async with open_house() as house:
        await say(house, "mls_proposal", "p")

        for name, room in (("q", ROOM), ("P", ROOM), ("p", "elsewhere"), ("p", "nowhere")):
            answer = await house.web.get(f"{PATH}/{name}", {"X-Room-ID": room})
            assert refused(answer, 404) == "NOT_FOUND"
        assert await proposals(house, "nowhere") == []


async def test_proposals_are_asked_for_by_room_and_only_read() -> None:
    async with open_house() as house:
        for path in (PATH, f"{PATH}/p"):
            for headers in ({}, {"X-Room-ID": ""}, {"X-Room-ID": "a/b"}):
                assert refused(await house.web.get(path, headers), 400) == "BAD_REQUEST"
            for method in ("POST", "PUT", "DELETE"):
                answer = await house.web.request(method, path, {"X-Room-ID": ROOM}, b"x")
                assert "GET" in allowed(answer)
                assert refused(answer, 405) == "METHOD_NOT_ALLOWED"


async def made_at_midnight(house: OpenHouse, clock: FakeClock) -> None:
    """One proposal that stays pending, one that is settled, and a later one."""
    await say(house, "mls_proposal", "pending")
    await say(house, "mls_approval", "pending", "yes")
    await say(house, "mls_proposal", "settled")
    await say(house, "mls_commit", "settled")
    clock.advance(60)
    await say(house, "mls_proposal", "later")


async def is_over(house: OpenHouse) -> None:
    """The first has expired and nothing moves it any more; the others are as they were."""
    await until_expired(house, "pending")
    assert await status_of(house, "settled") == "committed"
    assert await status_of(house, "later") == "pending"
    for type in TYPES[2:5]:
        await say(house, type, "pending", f"too-late-{type}")
    record = await proposal(house, "pending")
    assert record["status"] == "expired"
    assert record["encryptedApprovals"] == [sealed("yes")]


async def test_proposal_expires_after_a_day() -> None:
    clock = exact_clock()
    async with open_house(clock, hub=KEPT) as house:
        guest = await house.join()
        await made_at_midnight(house, clock)
        await guest.messages(5)

        clock.advance(DAY - 60 - 10)
        await asyncio.sleep(1.5)
        assert await status_of(house, "pending") == "pending"

        clock.advance(20)
        await is_over(house)
        # Expiry is nothing that was sent: nobody hears of it and it has no position.
        assert [told["seq"] for told in await guest.messages(3)] == [6, 7, 8]
        await house.restart()
        assert await status_of(house, "pending") == "expired"
        clock.advance(60)
        await until_expired(house, "later")


async def test_proposal_expires_though_the_hub_was_away_at_that_moment() -> None:
    clock = exact_clock()
    async with open_house(clock, hub=KEPT) as house:
        await made_at_midnight(house, clock)
        await house.stop()
        clock.advance(DAY - 60 + 10)
        await house.hub.start()

        await is_over(house)


async def test_proposal_that_waits_through_a_restart_expires_in_time() -> None:
    clock = exact_clock()
    async with open_house(clock, hub=KEPT) as house:
        await made_at_midnight(house, clock)
        clock.advance(DAY / 2)
        await house.restart()
        assert await status_of(house, "pending") == "pending"
        clock.advance(DAY / 2 - 60 + 10)

        await is_over(house)


async def test_proposals_and_inbox_go_together() -> None:
    async with open_house() as house:
        await house.sent("a", inbox=INBOX, type="mls_proposal", proposalId="p")

        headers = {"X-Room-ID": ROOM, "X-Inbox-ID": INBOX}
        answer = await house.web.get(f"{PATH}/p", headers)

        assert answer.status == 200
        assert accepted(await house.send("a", inbox=INBOX, type="mls_commit", proposalId="p")) == 1
        assert await status_of(house, "p") == "pending"
