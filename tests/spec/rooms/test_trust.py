"""With authentication, strangers who know the name of a room can do nothing to it or with it."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.auth.tokens import Claims
from tests.support.socket.guest import TurnedAway, offer, sealed
from tests.support.socket.http import Answer
from tests.support.socket.rooms import (
    APPEND,
    INBOX,
    LIMITED,
    MESSAGES,
    OTHER_INBOX,
    ROOM,
    House,
    OpenHouse,
    accepted,
    default_inbox,
    exact_clock,
    open_house,
    page_of,
    refused,
)
from tests.support.socket.tokens import AUTH, odd_token, token_for

DERIVED = default_inbox(ROOM)
METADATA, PROPOSALS = "/v1/room/metadata", "/v1/room/proposals"
AUTHENTICATED: dict[str, Any] = {"auth": AUTH}

# What a stranger may try with, who knows the name of the room.
STRANGERS: dict[str, dict[str, str]] = {
    "nothing": {},
    "the derived id": {"X-Inbox-ID": DERIVED},
    "the clear name": {"X-Inbox-ID": f"tenant:{ROOM}"},
    "an invented id": {"X-Inbox-ID": OTHER_INBOX},
}
strangers = pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS.keys())


def bearer(house: OpenHouse, *rooms: str, lifetime_s: float = 3600) -> dict[str, str]:
    """The header of somebody whose token covers these rooms."""
    clock = house.hub.clock
    permissions = {"rooms": list(rooms)}
    token = token_for("local/member", clock, permissions=permissions, lifetime_s=lifetime_s)
    return {"Authorization": f"Bearer {token}"}


async def furnished(house: OpenHouse, inbox: str | None = None) -> dict[str, str]:
    """A room with a message, a blob and a proposal; its member's headers."""
    member = bearer(house, ROOM) | ({} if inbox is None else {"X-Inbox-ID": inbox})
    accepted(await house.send("first", headers=member))
    proposal: dict[str, Any] = {"type": "mls_proposal", "proposalId": "p"}
    accepted(await house.send("proposal", headers=member, **proposal))
    put = await house.web.put(METADATA, b"blob", {"X-Room-ID": ROOM} | member)
    assert put.status == 204, put
    return member


async def every_answer(house: House, headers: dict[str, str]) -> dict[str, Answer]:
    """Whatever can be asked about a room, asked with these headers."""
    web, named = house.web, {"X-Room-ID": ROOM} | headers
    deposit = {"messageId": "d", "ciphertext": "AAAA"}
    inbox = {"X-Inbox-ID": DERIVED} | headers
    answers = {
        "send": await house.send("x", headers=headers, pseudonymId="somebody-else"),
        "reject": await house.send("r", headers=headers, type="mls_rejection", proposalId="p"),
        "repeat": await house.send("first", headers=headers),
        "append": await web.post(APPEND, deposit, inbox),
        "put": await web.put(METADATA, b"replaced", named),
        "get": await web.get(METADATA, named),
        "proposals": await web.get(PROPOSALS, named),
        "proposal": await web.get(f"{PROPOSALS}/p", named),
        "no proposal": await web.get(f"{PROPOSALS}/q", named),
    }
    if headers.get("X-Inbox-ID") != OTHER_INBOX:
        # An unknown inbox looks like an empty one.
        answers["fetch"] = await web.get(MESSAGES, inbox)
    for path in ("/room", f"/ws/tenant/{ROOM}?pseudonym=p-1"):
        room = {"X-Room-ID": ROOM, "X-Pseudonym-ID": "p-1"} if path == "/room" else {}
        try:
            guest = await house.enter(path, room | headers)
        except TurnedAway as away:
            answers[path] = away.answer
        else:
            raise AssertionError(f"{path} let somebody in: {guest.welcome}")
    return answers


@strangers
@pytest.mark.parametrize("inbox", [None, INBOX], ids=["by name", "by capability"])
async def test_stranger_cannot_write_read_listen_or_look(
    stranger: dict[str, str], inbox: str | None
) -> None:
    async with open_house(hub=AUTHENTICATED) as house:
        asked = await every_answer(house, stranger)
        before = {name: refused(one, 401) for name, one in asked.items()}
        member = await furnished(house, inbox)

        found = await every_answer(house, stranger)

        # Nothing tells whether the room exists.
        assert {name: refused(one, 401) for name, one in found.items()} == before
        assert set(before.values()) == {"UNAUTHORIZED"}
        assert {one.header("WWW-Authenticate") for one in found.values()} == {"Bearer"}
        page = page_of(await house.web.get(MESSAGES, {"X-Inbox-ID": DERIVED} | member))
        assert page.ids == ["first", "proposal"]
        kept = await house.web.get(METADATA, {"X-Room-ID": ROOM} | member)
        assert kept.body == b"blob"
        states = await house.web.get(PROPOSALS, {"X-Room-ID": ROOM} | member)
        assert [one["status"] for one in states.json["proposals"]] == ["pending"]
        assert accepted(await house.send("x", headers=member)) == 3


async def test_token_opens_the_rooms_it_covers_and_no_other() -> None:
    async with open_house(hub=AUTHENTICATED) as house:
        await furnished(house)
        other = bearer(house, "another", "lobby/*")
        found = await every_answer(house, other)
        # The inbox that follows from the name is the room's.
        assert {refused(one, 403) for one in found.values()} == {"FORBIDDEN"}

        for headers in (bearer(house, "gen*"), bearer(house, "*")):
            guest = await house.enter("/room", {"X-Room-ID": ROOM, "X-Pseudonym-ID": "p"} | headers)
            assert guest.welcome["lastSeq"] == 2
            read = await house.web.get(MESSAGES, {"X-Inbox-ID": DERIVED} | headers)
            assert page_of(read).ids == ["first", "proposal"]


@pytest.mark.parametrize("claims", [{"exp": 1}, {"iss": "somebody"}, {"nbf": 2**33}])
async def test_bad_token_is_refused_even_with_the_capability(claims: dict[str, Any]) -> None:
    async with open_house(hub=AUTHENTICATED) as house:
        await furnished(house, INBOX)
        token = odd_token(house.hub.clock, permissions={"rooms": ["*"]}, **claims)
        for bad in (token, "nonsense", f"{token[:-2]}AA"):
            headers = {"Authorization": f"Bearer {bad}", "X-Inbox-ID": INBOX}
            found = await every_answer(house, headers)
            assert {refused(one, 401) for one in found.values()} == {"UNAUTHORIZED"}
            assert not any(bad in one.body.decode() for one in found.values())


async def test_capability_opens_its_room_without_a_token() -> None:
    async with open_house(hub=AUTHENTICATED) as house:
        await furnished(house, INBOX)
        guest = await house.join(inbox=INBOX)
        browser = await house.join_as_browsers_do(room=ROOM, pseudonym="p-2", inbox=INBOX)

        assert await house.sent("a", inbox=INBOX) == 3
        assert await guest.accepted("b") == 4
        assert (await browser.receive("message"))["messageId"] == "a"
        assert await house.appended(INBOX, "c") == 5
        assert (await house.read(INBOX)).ids == ["first", "proposal", "a", "b", "c"]
        blob = await house.web.get(METADATA, {"X-Room-ID": ROOM, "X-Inbox-ID": INBOX})
        assert blob.body == b"blob"
        # A token for other rooms takes nothing away.
        other = bearer(house, "another")
        assert accepted(await house.send("d", inbox=INBOX, headers=other)) == 6


async def test_stranger_reserves_no_name_and_no_inbox() -> None:
    async with open_house(hub=AUTHENTICATED) as house:
        for inbox in (DERIVED, OTHER_INBOX):
            answer = await house.send("x", "thief", inbox=inbox)
            assert refused(answer, 401) == "UNAUTHORIZED"
            assert refused(await house.append(inbox, "x"), 401) == "UNAUTHORIZED"
        thief = bearer(house, "thief")
        taken = await house.send("x", "thief", inbox=DERIVED, headers=thief)
        assert refused(taken, 409) == "CONFLICT"

        assert accepted(await house.send("x", headers=bearer(house, ROOM))) == 1
        assert house.hub.app.hub.rooms.directory.rooms.keys() == {
            house.hub.app.hub.rooms.directory.names.room(ROOM)
        }


async def test_stranger_cannot_fill_the_state_of_all() -> None:
    limits: dict[str, Any] = {"state_bytes_max": 2**16, "room_state_bytes_max": 2**16}
    async with open_house(hub=AUTHENTICATED, **limits) as house:
        for number in range(20):
            for headers in STRANGERS.values():
                named = {"X-Room-ID": f"room-{number}"} | headers
                put = await house.web.put(METADATA, bytes(2**13), named)
                assert put.status in (401, 429), put
        assert house.hub.app.hub.rooms.state.bytes == 0
        await furnished(house)


@strangers
async def test_refused_looks_use_up_nobodys_limit_but_their_own(stranger: dict[str, str]) -> None:
    clock = exact_clock()
    limits = {"fetch_rate": 3, "append_rate": 3, "state_rate": 3, "refused_rate": 30}
    async with open_house(clock, hub=AUTHENTICATED, **limits) as house:
        member = bearer(house, ROOM)
        for _ in range(5):
            await every_answer(house, stranger)
        named, inbox = {"X-Room-ID": ROOM} | member, {"X-Inbox-ID": DERIVED} | member
        looks = [await house.web.get(MESSAGES, {"X-Inbox-ID": DERIVED} | stranger) for _ in "12345"]
        is_limited = {one.status for one in looks} == {429}

        for number in range(3):
            assert (await house.web.get(MESSAGES, inbox)).status == 200
            assert (await house.web.get(PROPOSALS, named)).status == 200
            deposit = {"messageId": f"d{number}", "ciphertext": "AAAA"}
            assert (await house.web.post(APPEND, deposit, inbox)).status == 202
        assert refused(await house.web.get(MESSAGES, inbox), 429) == LIMITED
        # Another member has limits of its own.
        other = token_for("local/other", clock, permissions={"rooms": ["*"]})
        theirs = {"X-Inbox-ID": DERIVED, "Authorization": f"Bearer {other}"}
        assert (await house.web.get(MESSAGES, theirs)).status == 200
        assert is_limited or stranger.get("X-Inbox-ID") == OTHER_INBOX
        clock.advance(60)
        answer = await house.send("x", headers=stranger)
        assert refused(answer, 401) == "UNAUTHORIZED"


async def test_room_for_everybody_and_room_for_capabilities_alone() -> None:
    async with open_house(hub=AUTHENTICATED, public=True) as house:
        assert await house.sent("a") == 1
        await house.join()
        assert (await house.read(DERIVED)).ids == ["a"]
    async with open_house(hub=AUTHENTICATED, require_capability=True) as house:
        member = bearer(house, ROOM)
        for headers in (member, member | {"X-Inbox-ID": DERIVED}):
            assert refused(await house.send("a", headers=headers), 400) == "BAD_REQUEST"
            fetched = await house.web.get(MESSAGES, {"X-Inbox-ID": DERIVED} | headers)
            assert refused(fetched, 400) == "BAD_REQUEST"
        assert accepted(await house.send("a", inbox=INBOX, headers=member)) == 1
        assert refused(await house.send("b", inbox=OTHER_INBOX, headers=member), 409) == "CONFLICT"
        assert await house.sent("b", inbox=INBOX) == 2
    async with open_house(hub=AUTHENTICATED, require_capability=False) as house:
        assert refused(await house.send("a"), 401) == "UNAUTHORIZED"


async def test_blind_hub_takes_ids_that_are_long_enough_for_capabilities() -> None:
    async with open_house(hub=AUTHENTICATED, mode="blind") as house:
        for room in ("short", INBOX):
            assert refused(await house.send("a", room), 401) == "UNAUTHORIZED"
            assert accepted(await house.send("a", room, headers=bearer(house, room))) == 1
        assert refused(await house.send("b", "short"), 401) == "UNAUTHORIZED"
        assert refused(await house.fetch("short"), 401) == "UNAUTHORIZED"
        assert await house.sent("b", INBOX) == 2
        assert (await house.read(INBOX)).ids == ["a", "b"]


async def test_browsers_token_is_a_subprotocol_that_is_never_told_back() -> None:
    async with open_house(hub=AUTHENTICATED) as house:
        ids = offer(room=ROOM, pseudonym="p-1")["Sec-WebSocket-Protocol"]
        guest = await house.enter("/room", protocols(ids, token(house, ROOM)))
        by_path = await house.enter(
            f"/ws/acme/{ROOM}?pseudonym=p", protocols(token(house, f"acme:{ROOM}"))
        )

        assert (guest.protocol, by_path.protocol) == ("tunnl3d.v1", None)
        with pytest.raises(TurnedAway) as away:
            await house.enter("/room", protocols(ids, token(house, "a"), token(house, "b")))
        assert refused(away.value.answer, 400) == "BAD_REQUEST"


def token(house: OpenHouse, room: str) -> str:
    return "token." + bearer(house, room)["Authorization"].removeprefix("Bearer ")


def protocols(*offered: str) -> dict[str, str]:
    return {"Sec-WebSocket-Protocol": ", ".join(offered)}


async def test_socket_ends_with_its_token_and_with_a_denial() -> None:
    clock = exact_clock()
    async with open_house(clock, hub=AUTHENTICATED) as house:
        await furnished(house, INBOX)
        named = {"X-Room-ID": ROOM, "X-Pseudonym-ID": "p-1"}
        short = await house.enter("/room", named | bearer(house, ROOM, lifetime_s=60))
        long = await house.enter("/room", named | bearer(house, ROOM))
        free = await house.join(inbox=INBOX)
        app = house.hub.app

        def tick() -> None:
            now = clock.now_ms()
            app.runner.perform(app.hub.rooms.tick(now), now)

        tick()
        await short.nothing_more()
        clock.advance(60)
        tick()
        assert (await short.error())["errorCode"] == "UNAUTHORIZED"
        assert await short.until_closed() == 1008
        await long.nothing_more()

        def is_denied(claims: Claims) -> bool:
            return claims.actor == "@(local/member)"

        effects = app.hub.rooms.end_matching(is_denied, "The token was revoked.")
        app.runner.perform(effects, clock.now_ms())
        assert (await long.error())["error"].startswith("The token was revoked.")
        assert await long.until_closed() == 1008
        # A capability is nobody's token.
        assert await free.accepted("still-there") == 3


@pytest.mark.parametrize("is_checked", [True, False])
async def test_known_message_id_with_other_content_is_a_conflict(is_checked: bool) -> None:
    async with open_house(hub=AUTHENTICATED if is_checked else {}) as house:
        member = bearer(house, ROOM) if is_checked else {}
        mine: dict[str, Any] = {"headers": member, "pseudonymId": "alice"}
        assert accepted(await house.send("m", **mine)) == 1
        named = {"X-Room-ID": ROOM, "X-Pseudonym-ID": "mallory"} | member

        for _ in range(2):
            mallory = await house.enter("/room", named)
            others = [
                await house.send("m", headers=member, pseudonymId="mallory"),
                await house.send("m", headers=member, ciphertext=sealed("no name")),
                await house.send("m", ciphertext=sealed("another"), **mine),
            ]
            assert [refused(one, 409) for one in others] == ["CONFLICT"] * 3
            inbox = {"X-Inbox-ID": DERIVED} | member
            deposit = {"messageId": "m", "ciphertext": sealed("another")}
            assert refused(await house.web.post(APPEND, deposit, inbox), 409) == "CONFLICT"
            assert (await house.send("m", **mine)).header("Idempotent-Replay") == "true"
            told = await mallory.submit("m")
            assert (told["errorCode"], told["messageId"]) == ("CONFLICT", "m")
            await house.restart()
