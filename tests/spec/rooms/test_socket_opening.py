"""How a socket gets into a room: by headers, by subprotocols, by path; and how it is welcomed."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.support.socket.guest import PROTOCOL, TurnedAway, encoded, offer
from tests.support.socket.http import Headers
from tests.support.socket.rooms import INBOX, ROOM, House, exact_clock, fill, open_house, refused

HEADERS = {"X-Room-ID": ROOM, "X-Pseudonym-ID": "p-1"}
ANY_NUMBER = {"connection_rate": 0}
BAD_IDS = ["", "a/b", "..", "a..b", "x" * 129, "a b", "naïve"]


async def turned_away(house: House, path: str, headers: Headers, status: int = 400) -> str:
    """The code of the refusal an upgrade gets."""
    with pytest.raises(TurnedAway) as caught:
        await house.enter(path, headers)
    return refused(caught.value.answer, status)


async def test_socket_is_welcomed_before_anything_else() -> None:
    async with open_house() as house:
        guest = await house.enter("/room", HEADERS)

        assert guest.welcome == {"action": "welcome", "lastSeq": 0, "oldestBufferedSeq": 1}
        assert guest.protocol is None
        await guest.nothing_more()


async def test_welcome_says_where_the_room_stands() -> None:
    async with open_house(rate=10_000, hub={"message_rate": 0}) as house:
        first = await house.join()
        await fill(first, 3)
        expected = {"action": "welcome", "lastSeq": 3, "oldestBufferedSeq": 1}
        assert (await house.join()).welcome == expected

        await fill(first, 700, first=4)
        expected = {"action": "welcome", "lastSeq": 703, "oldestBufferedSeq": 1}
        assert (await house.join()).welcome == expected

        await house.restart()
        assert (await house.join()).welcome == expected


async def test_browser_gives_its_ids_as_subprotocols() -> None:
    async with open_house() as house:
        guest = await house.join_as_browsers_do(room=ROOM, pseudonym="tab", inbox=INBOX)

        assert guest.protocol == PROTOCOL
        await guest.accepted("a")
        assert (await guest.receive("message"))["pseudonymId"] == "tab"
        assert (await house.read(INBOX)).ids == ["a"]


async def test_protocol_is_chosen_only_if_it_was_offered() -> None:
    with_it = {"Sec-WebSocket-Protocol": f"chat, {PROTOCOL}"}
    items = [f"room.{encoded(ROOM)}", f"pseudonym.{encoded('p-1')}"]
    without = {"Sec-WebSocket-Protocol": ", ".join(items)}
    async with open_house() as house:
        assert (await house.enter("/room", HEADERS | with_it)).protocol == PROTOCOL
        assert (await house.enter("/room", without)).protocol is None
        assert (
            await house.enter("/room", {**HEADERS, "Sec-WebSocket-Protocol": "x"})
        ).protocol is None


async def test_ids_may_come_partly_as_headers_and_agree_where_they_come_twice() -> None:
    async with open_house() as house:
        for headers in (
            {"X-Room-ID": ROOM} | offer(pseudonym="p-1"),
            {"X-Pseudonym-ID": "p-1"} | offer(room=ROOM),
            HEADERS | offer(room=ROOM, pseudonym="p-1"),
        ):
            assert (await house.enter("/room", headers)).protocol == PROTOCOL


@pytest.mark.parametrize(
    "path",
    [
        "/ws/acme/general?pseudonym=p-1",
        "/ws/acme/general?x=1&pseudonym=p%2D1&y=2",
        "/ws/%61cme/gener%61l?pseudonym=p-1",
    ],
)
async def test_path_names_tenant_and_room(path: str) -> None:
    async with open_house() as house:
        guest = await house.enter(path)

        await house.sent("a", tenantId="acme", pseudonymId="p-2")
        await guest.accepted("b")

        heard = await guest.messages(2)
        assert [told["pseudonymId"] for told in heard] == ["p-2", "p-1"]
        assert (await house.read("acme:general")).ids == ["a", "b"]


async def test_path_takes_the_pseudonym_from_elsewhere_too() -> None:
    async with open_house() as house:
        by_header = await house.enter("/ws/acme/general", {"X-Pseudonym-ID": "p-1"})
        by_protocol = await house.enter("/ws/acme/general", offer(pseudonym="p-1"))

        await by_header.accepted("a")

        assert by_protocol.protocol == PROTOCOL
        assert (await by_protocol.receive("message"))["pseudonymId"] == "p-1"


async def test_all_ways_lead_into_one_room() -> None:
    name = "acme:general"
    async with open_house() as house:
        guests = [
            await house.join(name),
            await house.join_as_browsers_do(room=name, pseudonym="p-1"),
            await house.enter("/ws/acme/general?pseudonym=p-1"),
        ]

        await house.sent("a", name)
        await house.sent("b", tenantId="acme")

        for guest in guests:
            assert [told["messageId"] for told in await guest.messages(2)] == ["a", "b"]


async def test_room_and_pseudonym_are_needed() -> None:
    async with open_house(hub=ANY_NUMBER) as house:
        for headers in (
            {},
            {"X-Room-ID": ROOM},
            {"X-Pseudonym-ID": "p-1"},
            offer(),
            offer(room=ROOM),
            offer(pseudonym="p-1"),
            {"X-Inbox-ID": INBOX, "X-Room-ID": ROOM},
        ):
            assert await turned_away(house, "/room", headers) == "BAD_REQUEST", headers
        for query in ("", "?pseudonym", "?pseudonym=", "?Pseudonym=p-1"):
            code = await turned_away(house, f"/ws/acme/general{query}", {})
            assert code == "BAD_REQUEST", query


@pytest.mark.parametrize("name", ["room", "pseudonym", "inbox"])
async def test_bad_id_is_refused_however_it_comes(name: str) -> None:
    async with open_house(hub=ANY_NUMBER) as house:
        for value in BAD_IDS:
            ids = {"room": ROOM, "pseudonym": "p-1"} | {name: value * 3}
            named = {f"X-{key.title()}-ID": text for key, text in ids.items()}
            assert await turned_away(house, "/room", named) == "BAD_REQUEST", value
            assert await turned_away(house, "/room", offer(**ids)) == "BAD_REQUEST", value


async def test_bad_id_in_a_path_is_refused() -> None:
    async with open_house(hub=ANY_NUMBER) as house:
        for value in BAD_IDS[1:]:
            text = quote(value, safe="")
            for path in (
                f"/ws/{text}/general?pseudonym=p-1",
                f"/ws/acme/{text}?pseudonym=p-1",
                f"/ws/acme/general?pseudonym={text}",
            ):
                assert await turned_away(house, path, {}) == "BAD_REQUEST", path


async def test_subprotocol_that_is_no_base64url_of_text_is_refused() -> None:
    async with open_house(hub=ANY_NUMBER) as house:
        for item in ("room.!!!", "room.A", "room.", "room._w"):
            offered = f"{PROTOCOL}, {item}, pseudonym.{encoded('p-1')}"
            headers = {"Sec-WebSocket-Protocol": offered}
            assert await turned_away(house, "/room", headers) == "BAD_REQUEST", item


@pytest.mark.parametrize("ids", [{"room": "another"}, {"pseudonym": "another"}])
async def test_header_and_subprotocol_must_not_disagree(ids: dict[str, str]) -> None:
    headers = HEADERS | offer(**{"room": ROOM, "pseudonym": "p-1"} | ids)
    async with open_house() as house:
        assert await turned_away(house, "/room", headers) == "BAD_REQUEST"


@pytest.mark.parametrize("path", ["/room", "/ws/acme/general?pseudonym=p-1"])
async def test_plain_request_is_told_to_upgrade(path: str) -> None:
    async with open_house() as house:
        answer = await house.web.get(path, HEADERS)

        assert refused(answer, 426) == "UPGRADE_REQUIRED"
        assert (answer.header("Upgrade") or "").lower() == "websocket"


async def test_other_paths_lead_nowhere() -> None:
    async with open_house() as house:
        for path in ("/rooms", "/room/", "/room/general", "/ws/acme", "/ws/acme/general/x"):
            with pytest.raises(TurnedAway) as caught:
                await house.enter(path, HEADERS)
            assert caught.value.answer.status == 404


async def test_sockets_come_no_faster_than_those_of_actors() -> None:
    hub = {"connection_rate": 1, "connection_burst": 2}
    async with open_house(exact_clock(), hub=hub) as house:
        for _ in range(2):
            await house.join()

        with pytest.raises(TurnedAway) as caught:
            await house.join()

        assert caught.value.answer.status == 429
        assert caught.value.answer.header("Retry-After") == "1"


async def test_page_of_a_foreign_origin_is_turned_away() -> None:
    async with open_house() as house:
        with pytest.raises(TurnedAway) as caught:
            await house.enter("/room", HEADERS | {"Origin": "https://evil.example"})
        assert caught.value.answer.status == 403

        await house.enter("/room", HEADERS | {"Origin": "http://localhost:3000"})


async def test_nobody_is_asked_for_a_token() -> None:
    auth: dict[str, Any] = {"enabled": True, "secret": "a secret of more than sixteen bytes"}
    async with open_house(hub={"auth": auth}) as house:
        guest = await house.join(inbox=INBOX)

        assert await house.sent("a") == 1
        assert await house.appended(INBOX, "b") == 2

        assert (await guest.receive("message"))["messageId"] == "a"
        assert (await house.read(INBOX)).ids == ["a", "b"]


async def test_rooms_that_are_switched_off_are_not_there() -> None:
    async with open_house(enabled=False) as house:
        assert (await house.send("a")).status == 404
        assert (await house.fetch(INBOX)).status == 404
        with pytest.raises(TurnedAway) as caught:
            await house.join()
        assert caught.value.answer.status == 404
