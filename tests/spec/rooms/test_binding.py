"""Which inbox a room writes to: bound once, by whoever names both first, and for good."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.socket.guest import TurnedAway, offer
from tests.support.socket.http import Headers
from tests.support.socket.mailboxes import held_disk
from tests.support.socket.rooms import (
    INBOX,
    OTHER_INBOX,
    ROOM,
    House,
    OpenHouse,
    accepted,
    at_once,
    default_inbox,
    open_house,
    refused,
)

DEFAULT = default_inbox(ROOM)
METADATA, QUORUM, PROPOSALS = "/v1/room/metadata", "/v1/room/quorum", "/v1/room/proposals"


async def turned_away(house: House, path: str, headers: Headers, status: int) -> str:
    with pytest.raises(TurnedAway) as caught:
        await house.enter(path, headers)
    return refused(caught.value.answer, status)


def headers_of(room: str, inbox: str | None = None) -> dict[str, str]:
    """All the headers a request about a room can have."""
    named = {} if inbox is None else {"X-Inbox-ID": inbox}
    return {"X-Room-ID": room, "X-Pseudonym-ID": "p-1"} | named


async def is_refused_everywhere(house: House, room: str, inbox: str | None, status: int) -> str:
    """Whatever asks for a room with an inbox is refused; the one code it is refused with."""
    headers = headers_of(room, inbox)
    blob = [await house.web.put(path, b"blob", headers) for path in (METADATA, QUORUM)]
    reads = (METADATA, QUORUM, PROPOSALS, f"{PROPOSALS}/p")
    codes = {
        refused(await house.send("refused", room, inbox=inbox), status),
        await turned_away(house, "/room", headers, status),
        *(refused(answer, status) for answer in blob),
        *[refused(await house.web.get(path, headers), status) for path in reads],
    }
    assert len(codes) == 1, codes
    return codes.pop()


async def test_room_without_a_binding_has_an_inbox_named_after_it() -> None:
    async with open_house() as house:
        await house.sent("a")
        await house.sent("b", inbox=DEFAULT)

        assert DEFAULT == "Z2VuZXJhbA"
        assert (await house.read(DEFAULT)).ids == ["a", "b"]


async def test_first_message_with_both_ids_binds() -> None:
    async with open_house() as house:
        await house.sent("a", inbox=INBOX)

        assert await house.sent("b") == 2
        guest = await house.join()
        assert guest.welcome["lastSeq"] == 2
        assert await guest.accepted("c") == 3

        assert (await house.read(INBOX)).ids == ["a", "b", "c"]
        assert (await house.read(DEFAULT)).messages == []


@pytest.mark.parametrize("way", ["headers", "subprotocols", "path"])
async def test_first_socket_with_both_ids_binds(way: str) -> None:
    tenant = "acme" if way == "path" else None
    async with open_house() as house:
        match way:
            case "headers":
                await house.join(inbox=INBOX)
            case "subprotocols":
                await house.join_as_browsers_do(room=ROOM, pseudonym="p-1", inbox=INBOX)
            case _:
                await house.enter("/ws/acme/general?pseudonym=p-1", {"X-Inbox-ID": INBOX})

        await house.sent("a", tenantId=tenant)

        assert (await house.read(INBOX)).ids == ["a"]
        answer = await house.send("b", inbox=OTHER_INBOX, tenantId=tenant)
        assert refused(answer, 409) == "CONFLICT"


async def test_room_that_was_used_without_a_binding_keeps_its_sequence() -> None:
    async with open_house() as house:
        await house.sent("a")

        assert refused(await house.send("b", inbox=INBOX), 409) == "CONFLICT"

        assert await house.sent("b") == 2
        assert (await house.read(DEFAULT)).ids == ["a", "b"]
        assert (await house.read(INBOX)).messages == []


async def test_bound_room_is_refused_with_another_inbox_and_nothing_happens() -> None:
    async with open_house() as house:
        guest = await house.join(inbox=INBOX)
        await house.sent("a", inbox=INBOX)
        await guest.receive("message")

        assert await is_refused_everywhere(house, ROOM, OTHER_INBOX, 409) == "CONFLICT"
        assert await is_refused_everywhere(house, ROOM, DEFAULT, 409) == "CONFLICT"

        await guest.nothing_more()
        assert (await house.read(INBOX)).ids == ["a"]
        for inbox in (OTHER_INBOX, DEFAULT):
            assert (await house.read(inbox)).messages == []
        assert await house.sent("b", inbox=INBOX) == 2
        # The inbox it could not have is still free.
        assert await house.sent("a", "another", inbox=OTHER_INBOX) == 1


async def test_bound_inbox_is_refused_with_another_room_and_nothing_happens() -> None:
    async with open_house() as house:
        await house.sent("a", inbox=INBOX)

        assert await is_refused_everywhere(house, "another", INBOX, 409) == "CONFLICT"

        assert (await house.read(INBOX)).ids == ["a"]
        assert (await house.read(default_inbox("another"))).messages == []
        # The room it could not have is still free.
        assert await house.sent("a", "another", inbox=OTHER_INBOX) == 1


async def test_refusal_comes_before_the_look_for_repeats() -> None:
    async with open_house() as house:
        await house.sent("a", inbox=INBOX)

        assert refused(await house.send("a", inbox=OTHER_INBOX), 409) == "CONFLICT"


async def is_bound(house: OpenHouse, last: int) -> None:
    """The bindings of the test below hold."""
    assert refused(await house.send("x", "by-message", inbox=OTHER_INBOX), 409) == "CONFLICT"
    assert refused(await house.send("x", "another", inbox=INBOX), 409) == "CONFLICT"
    assert refused(await house.send("x", "by-socket", inbox="sixth"), 409) == "CONFLICT"
    assert refused(await house.send("x", "sixth", inbox="by-socket-inbox"), 409) == "CONFLICT"
    assert await house.sent(f"m-{last}", "by-message", inbox=INBOX) == last
    assert await house.sent(f"n-{last}", "by-message") == last + 1
    assert (await house.read(INBOX)).seqs[-1] == last + 1


async def test_binding_cannot_be_changed_before_or_after_a_restart() -> None:
    async with open_house() as house:
        await house.join("by-socket", inbox="by-socket-inbox")
        await house.sent("a", "by-message", inbox=INBOX)
        await is_bound(house, 2)

        for life in (1, 2):
            await house.restart()
            await is_bound(house, 2 + 2 * life)


async def test_of_several_first_messages_one_binds_and_the_others_conform() -> None:
    inboxes = [f"inbox-{number}" for number in range(8)]
    async with open_house() as house:
        webs = [house.another_web() for _ in inboxes]

        answers = await at_once(
            *(
                house.send(inbox, inbox=inbox, web=web)
                for inbox, web in zip(inboxes, webs, strict=True)
            )
        )

        good = [answer for answer in answers if answer.status == 200]
        assert len(good) == 1
        for answer in answers:
            assert answer in good or refused(answer, 409) == "CONFLICT"
        winner = good[0].json["messageId"]
        for inbox in inboxes:
            expected = [inbox] if inbox == winner else []
            assert (await house.read(inbox)).ids == expected


async def test_socket_that_binds_is_welcomed_when_the_binding_is_on_disk() -> None:
    async with open_house() as house:
        other = await house.join("other")
        with held_disk() as disk:
            disk.hold()
            joining = asyncio.create_task(house.join(inbox=INBOX))
            await disk.wait()
            rival = asyncio.create_task(house.send("x", inbox=OTHER_INBOX, web=house.another_web()))
            await other.nothing_more()
            assert not joining.done()
            disk.release()
            guest = await joining
            assert refused(await rival, 409) == "CONFLICT"

        assert guest.welcome == {"action": "welcome", "lastSeq": 0, "oldestBufferedSeq": 1}
        assert await guest.accepted("a") == 1
        assert (await guest.receive("message"))["seq"] == 1


async def test_socket_whose_binding_cannot_be_written_is_told_so(broken: OpenHouse) -> None:
    await broken.sent("a", "other")
    with held_disk() as disk:
        disk.hold()
        guest = await broken.enter("/room", headers_of(ROOM, INBOX), is_welcome=False)
        await disk.wait()
        disk.break_down()
        disk.release()

        assert (await guest.error())["errorCode"] == "UNAVAILABLE"
        assert await guest.until_closed() == 1013

    # Whether it was written after all is unknown; it must not be in the way.
    await broken.restart()
    assert await broken.sent("a", inbox=INBOX) == 1


async def test_inbox_in_another_spelling_is_the_same_inbox() -> None:
    plain, url = "+/" + "A" * 41, "-_" + "A" * 41
    async with open_house() as house:
        await house.sent("a", inbox=url)
        await house.sent("b", inbox=plain)
        await house.sent("c", inbox=f"{plain}=")

        assert (await house.read(url)).ids == ["a", "b", "c"]


async def test_tenant_and_room_are_one_name() -> None:
    async with open_house() as house:
        await house.sent("a", tenantId="acme")
        await house.sent("b", "acme:general")
        await house.enter("/ws/acme/general?pseudonym=p-1")

        assert (await house.read(default_inbox(ROOM, "acme"))).ids == ["a", "b"]
        assert (await house.read("acme:general")).ids == ["a", "b"]
        assert await house.sent("a") == 1
        assert await house.sent("a", tenantId="other") == 1
        assert (await house.read(DEFAULT)).ids == ["a"]


async def test_blind_hub_knows_a_room_by_its_inbox_alone() -> None:
    async with open_house(mode="blind") as house:
        guest = await house.join(INBOX)
        named = await house.join(INBOX, inbox=INBOX)

        await house.sent("a", INBOX)
        await house.sent("b", INBOX, inbox=INBOX)
        assert await house.appended(INBOX, "c") == 3

        for one in (guest, named):
            assert [told["messageId"] for told in await one.messages(2)] == ["a", "b"]
            await one.nothing_more()
        assert (await house.read(INBOX)).ids == ["a", "b", "c"]
        assert (await house.read(default_inbox(INBOX))).messages == []


async def test_blind_hub_binds_nothing() -> None:
    async with open_house(mode="blind") as house:
        answer = await house.send("a", INBOX, inbox=OTHER_INBOX)

        assert answer.status in (400, 409)
        assert await house.sent("a", INBOX) == 1
        assert (await house.read(OTHER_INBOX)).messages == []


async def test_capability_is_needed_where_it_is_required() -> None:
    async with open_house(require_capability=True) as house:
        assert await is_refused_everywhere(house, ROOM, None, 400) == "BAD_REQUEST"
        assert await turned_away(house, "/room", offer(room=ROOM, pseudonym="p-1"), 400)
        assert await turned_away(house, "/ws/acme/general?pseudonym=p-1", {}, 400)

        guest = await house.join_as_browsers_do(room=ROOM, pseudonym="p-1", inbox=INBOX)
        assert accepted(await house.send("a", inbox=INBOX)) == 1
        assert await guest.accepted("b") == 2
        assert (await house.web.put(METADATA, b"blob", headers_of(ROOM, INBOX))).status == 204
        await house.enter("/ws/acme/general?pseudonym=p-1", {"X-Inbox-ID": OTHER_INBOX})

        assert (await house.read(INBOX)).ids == ["a", "b"]
        assert await is_refused_everywhere(house, ROOM, "guessed", 409) == "CONFLICT"
        assert await is_refused_everywhere(house, ROOM, None, 400) == "BAD_REQUEST"
