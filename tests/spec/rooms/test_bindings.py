"""Which inbox a room writes to: the first request that names both binds them permanently."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.socket.disk import held_disk
from tests.support.socket.guest import TurnedAway, offer
from tests.support.socket.http import Headers
from tests.support.socket.rooms import (
    INBOX,
    OTHER_INBOX,
    ROOM,
    House,
    OpenHouse,
    default_inbox,
    named_inbox,
    open_house,
    refused,
)

DEFAULT = default_inbox(ROOM)
METADATA, QUORUM, PROPOSALS = "/v1/room/metadata", "/v1/room/quorum", "/v1/room/proposals"
BY_PATH = "/ws/acme/general?pseudonym=p-1"


async def turned_away(house: House, path: str, headers: Headers, status: int) -> str:
    with pytest.raises(TurnedAway) as caught:
        await house.enter(path, headers)
    return refused(caught.value.answer, status)


def headers_of(room: str, inbox: str | None = None) -> dict[str, str]:
    """All the headers a request about a room can have."""
    return {"X-Room-ID": room, "X-Pseudonym-ID": "p-1"} | named_inbox(inbox)


async def is_refused_everywhere(house: House, room: str, inbox: str | None, status: int) -> str:
    """Whatever asks for a room with an inbox is refused; the one code it is refused with."""
    headers = headers_of(room, inbox)
    blobs = [await house.web.put(path, b"blob", headers) for path in (METADATA, QUORUM)]
    reads = (METADATA, QUORUM, PROPOSALS, f"{PROPOSALS}/p")
    codes = {
        refused(await house.send("refused", room, inbox=inbox), status),
        await turned_away(house, "/room", headers, status),
        *(refused(answer, status) for answer in blobs),
        *[refused(await house.web.get(path, headers), status) for path in reads],
    }
    assert len(codes) == 1, codes
    return codes.pop()


@pytest.mark.parametrize("way", ["message", "headers", "subprotocols", "path"])
async def test_first_who_names_both_binds(way: str) -> None:
    tenant = "acme" if way == "path" else None
    async with open_house() as house:
        match way:
            case "message":
                await house.send("a", inbox=INBOX)
            case "headers":
                await house.join(inbox=INBOX)
            case "subprotocols":
                await house.join_as_browsers_do(room=ROOM, pseudonym="p-1", inbox=INBOX)
            case _:
                await house.enter(BY_PATH, {"X-Inbox-ID": INBOX})

        await house.send("a", tenantId=tenant)

        assert (await house.read(INBOX)).ids == ["a"]
        for inbox in (OTHER_INBOX, default_inbox(ROOM, tenant)):
            answer = await house.send("a", inbox=inbox, tenantId=tenant)
            assert refused(answer, 409) == "CONFLICT"
            assert (await house.read(inbox)).messages == []


async def test_bound_room_and_bound_inbox_are_refused_with_another_and_nothing_happens() -> None:
    async with open_house() as house:
        guest = await house.join(inbox=INBOX)
        await house.sent("a", inbox=INBOX)
        await house.sent("a", "unbound")
        await guest.receive("message")

        for room, inbox in [(ROOM, OTHER_INBOX), (ROOM, DEFAULT), ("another", INBOX)]:
            assert await is_refused_everywhere(house, room, inbox, 409) == "CONFLICT"
        assert refused(await house.send("b", "unbound", inbox=OTHER_INBOX), 409) == "CONFLICT"

        await guest.nothing_more()
        assert (await house.read(INBOX)).ids == ["a"]
        assert (await house.read(default_inbox("another"))).messages == []
        # The room and the inbox that could not be had are still free.
        assert await house.sent("a", "another", inbox=OTHER_INBOX) == 1
        assert await house.sent("b", "unbound") == 2


async def test_binding_cannot_be_changed_before_or_after_a_restart() -> None:
    async with open_house() as house:
        await house.join("by-socket", inbox="by-socket-inbox")
        for restart in range(3):
            assert await house.sent(f"m-{restart}", "by-message", inbox=INBOX) == 1 + 2 * restart
            assert await house.sent(f"n-{restart}", "by-message") == 2 + 2 * restart
            for room, inbox in [
                *(("by-message", OTHER_INBOX), ("another", INBOX)),
                *(("by-socket", "sixth"), ("sixth", "by-socket-inbox")),
            ]:
                assert refused(await house.send("x", room, inbox=inbox), 409) == "CONFLICT"
            await house.restart()


async def test_socket_that_binds_is_welcomed_when_the_binding_is_on_disk() -> None:
    async with open_house() as house:
        other = await house.join("other")
        with held_disk() as disk:
            disk.hold()
            guest = await house.enter("/room", headers_of(ROOM, INBOX), is_welcome=False)
            # What it says before its welcome is heard after it.
            guest.send("a")
            await disk.wait()
            rival = asyncio.create_task(house.send("x", inbox=OTHER_INBOX, web=house.another_web()))
            await other.nothing_more()
            disk.release()
            assert refused(await rival, 409) == "CONFLICT"

        assert await guest.receive() == {"action": "welcome", "lastSeq": 0, "oldestBufferedSeq": 1}
        assert await guest.reply() == {"action": "ack", "messageId": "a", "seq": 1}


async def test_socket_whose_binding_cannot_be_written_is_closed_with_1013(
    broken: OpenHouse,
) -> None:
    await broken.sent("a", "other")
    with held_disk() as disk:
        disk.hold()
        guest = await broken.enter("/room", headers_of(ROOM, INBOX), is_welcome=False)
        await disk.wait()
        disk.break_down()
        disk.release()

        assert (await guest.error())["errorCode"] == "outcome_unknown"
        assert await guest.until_closed() == 1013

    # Whether it was written after all is unknown; it must not be in the way.
    await broken.restart()
    assert await broken.sent("a", inbox=INBOX) == 1


async def test_capability_is_needed_where_it_is_required() -> None:
    async with open_house(require_capability=True) as house:
        assert await is_refused_everywhere(house, ROOM, None, 400) == "BAD_REQUEST"
        assert await turned_away(house, "/room", offer(room=ROOM, pseudonym="p-1"), 400)
        assert await turned_away(house, BY_PATH, {}, 400)

        guest = await house.join_as_browsers_do(room=ROOM, pseudonym="p-1", inbox=INBOX)
        assert await house.sent("a", inbox=INBOX) == 1
        assert await guest.accepted("b") == 2
        assert (await house.web.put(METADATA, b"blob", headers_of(ROOM, INBOX))).status == 204
        await house.enter(BY_PATH, {"X-Inbox-ID": OTHER_INBOX})

        assert (await house.read(INBOX)).ids == ["a", "b"]
        assert await is_refused_everywhere(house, ROOM, "guessed", 409) == "CONFLICT"
