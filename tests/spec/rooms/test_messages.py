"""`POST /api/v1/message`: what is accepted, and what a repeat of it gets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.socket.guest import sealed
from tests.support.socket.rooms import (
    LIMITED,
    ROOM,
    accepted,
    at_once,
    default_inbox,
    exact_clock,
    fill,
    is_replay,
    open_house,
    refused,
    wait_ms,
)

INBOX = default_inbox(ROOM)
ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


async def test_accepted_message_has_its_id_and_position() -> None:
    async with open_house() as house:
        first = await house.send("a")
        second = await house.send("b")

        assert first.status == 200
        assert first.header("Content-Type") == "application/json"
        assert first.json == {"messageId": "a", "seq": 1}
        assert second.json == {"messageId": "b", "seq": 2}
        assert not is_replay(first)
        assert house.web.connects == 1


async def test_accepted_message_can_be_fetched_at_once() -> None:
    async with open_house() as house:
        for number in range(1, 11):
            seq = await house.sent(f"m-{number}", ciphertext=sealed(f"text {number}"))

            page = await house.read(INBOX, seq)

            assert page.seqs == [number]
            assert page.ids == [f"m-{number}"]
            assert page.messages[0]["ciphertext"] == sealed(f"text {number}")


async def test_accepted_message_is_on_every_socket_of_its_room() -> None:
    async with open_house() as house:
        guests = [await house.join(pseudonym=f"p-{number}") for number in range(3)]
        elsewhere = await house.join("elsewhere")

        seq = await house.sent("a", pseudonymId="sender")

        for guest in guests:
            assert await guest.receive() == {
                "action": "message",
                "seq": seq,
                "messageId": "a",
                "ciphertext": sealed("a"),
                "type": "mls_app",
                "pseudonymId": "sender",
            }
        await elsewhere.nothing_more()


async def test_message_without_a_pseudonym_is_announced_without_one() -> None:
    async with open_house() as house:
        guest = await house.join()

        await house.sent("a")

        assert "pseudonymId" not in await guest.receive("message")


async def test_hub_makes_an_id_where_the_client_gave_none() -> None:
    async with open_house() as house:
        answers = [await house.send(None, ciphertext="QUJD") for _ in range(3)]

        ids = [answer.json["messageId"] for answer in answers]
        assert all(ULID.fullmatch(made) for made in ids), ids
        assert len(set(ids)) == 3
        assert [accepted(answer) for answer in answers] == [1, 2, 3]
        assert (await house.read(INBOX)).ids == ids


async def test_repeat_gets_the_position_of_the_original_and_nobody_hears_it() -> None:
    async with open_house() as house:
        guest = await house.join()
        for message_id in ("a", "b"):
            await house.sent(message_id)
        await guest.messages(2)

        repeat = await house.send("a")

        assert accepted(repeat, "a") == 1
        assert is_replay(repeat)
        await guest.nothing_more()
        assert (await house.read(INBOX)).ids == ["a", "b"]
        assert await house.sent("c") == 3


async def test_repeat_with_another_ciphertext_changes_nothing() -> None:
    async with open_house() as house:
        guest = await house.join()
        await house.sent("a", ciphertext=sealed("the original"))
        await guest.receive("message")

        repeat = await house.send("a", ciphertext=sealed("something else"))

        assert accepted(repeat, "a") == 1
        assert is_replay(repeat)
        await guest.nothing_more()
        page = await house.read(INBOX)
        assert [message["ciphertext"] for message in page.messages] == [sealed("the original")]


async def test_repeat_is_answered_while_the_room_is_limited_and_costs_nothing() -> None:
    clock = exact_clock()
    async with open_house(clock, rate=3) as house:
        for message_id in ("a", "b"):
            await house.sent(message_id)
        for _ in range(5):
            assert is_replay(await house.send("a"))
        assert await house.sent("c") == 3
        assert refused(await house.send("d"), 429) == LIMITED

        repeat = await house.send("b")

        assert accepted(repeat, "b") == 2
        assert is_replay(repeat)
        assert refused(await house.send("d"), 429) == LIMITED
        clock.advance(5)
        assert await house.sent("d") == 4


async def test_repeat_is_known_after_a_restart() -> None:
    async with open_house() as house:
        for message_id in ("a", "b"):
            await house.sent(message_id)

        await house.restart()
        guest = await house.join()

        for seq, message_id in enumerate(("a", "b"), start=1):
            repeat = await house.send(message_id)
            assert accepted(repeat, message_id) == seq
            assert is_replay(repeat)
        await guest.nothing_more()
        assert await house.sent("c") == 3
        assert (await house.read(INBOX)).ids == ["a", "b", "c"]


async def test_repeat_is_known_when_the_original_has_left_the_buffer() -> None:
    async with open_house(rate=10_000) as house:
        guest = await house.join()
        await fill(guest, 1_100)

        repeat = await house.send("m-1")

        assert accepted(repeat, "m-1") == 1
        assert is_replay(repeat)


async def test_repeats_made_at_the_same_time_are_one_message() -> None:
    async with open_house() as house:
        guest = await house.join()
        webs = [house.another_web() for _ in range(20)]

        answers = await at_once(
            *(house.send("a", ciphertext=sealed(f"{n}"), web=web) for n, web in enumerate(webs))
        )

        assert {accepted(answer, "a") for answer in answers} == {1}
        originals = [n for n, answer in enumerate(answers) if not is_replay(answer)]
        assert len(originals) == 1
        assert (await guest.receive("message"))["ciphertext"] == sealed(f"{originals[0]}")
        await guest.nothing_more()
        assert (await house.read(INBOX)).ids == ["a"]


async def test_one_id_in_two_rooms_is_two_messages() -> None:
    async with open_house() as house:
        assert await house.sent("a", "one") == 1
        assert await house.sent("b", "one") == 2

        assert await house.sent("a", "two") == 1

        assert (await house.read(default_inbox("two"))).ids == ["a"]


async def test_room_and_pseudonym_may_come_as_headers() -> None:
    headers = {"X-Room-ID": ROOM, "x-pseudonym-id": "by-header"}
    async with open_house() as house:
        guest = await house.join()

        answer = await house.send("a", None, headers=headers)

        assert accepted(answer, "a") == 1
        assert (await guest.receive("message"))["pseudonymId"] == "by-header"


async def test_header_and_body_may_say_the_same() -> None:
    headers = {"X-Room-ID": ROOM, "X-Pseudonym-ID": "both"}
    async with open_house() as house:
        guest = await house.join()

        await house.sent("a", pseudonymId="both", headers=headers)

        assert (await guest.receive("message"))["pseudonymId"] == "both"


@pytest.mark.parametrize(
    "headers",
    [{"X-Room-ID": "another"}, {"X-Room-ID": ROOM, "X-Pseudonym-ID": "another"}],
    ids=["room", "pseudonym"],
)
async def test_header_and_body_must_not_disagree(headers: dict[str, str]) -> None:
    async with open_house() as house:
        guest = await house.join()

        answer = await house.send("a", pseudonymId="p-1", headers=headers)

        assert refused(answer, 400) in ("BAD_ENVELOPE", "BAD_REQUEST")
        await guest.nothing_more()
        assert await house.sent("a", pseudonymId="p-1") == 1


@pytest.mark.parametrize(
    "members",
    [
        {"sequence": 77, "timestamp": 1},
        {"sequence": "7", "timestamp": {"deep": [None]}},
        {"nobody": "knows this", "seq": 99, "createdAt": "2020-01-01T00:00:00Z"},
        {"type": None, "pseudonymId": None, "tenantId": None, "proposalId": None},
        {"proposalId": "of no interest here"},
    ],
)
async def test_members_that_mean_nothing_here_are_ignored(members: dict[str, Any]) -> None:
    async with open_house() as house:
        guest = await house.join()

        assert await house.sent("a", **members) == 1

        told = await guest.receive("message")
        assert (told["seq"], told["type"], told.get("pseudonymId")) == (1, "mls_app", None)
        assert not {"sequence", "timestamp", "nobody"} & set(told)
        (message,) = (await house.read(INBOX)).messages
        assert not {"sequence", "timestamp", "nobody"} & set(message)


async def test_last_of_two_members_with_one_name_counts() -> None:
    body = b'{"roomId":"other","messageId":"a","ciphertext":"QUJD","roomId":"general"}'
    async with open_house() as house:
        answer = await house.web.post("/api/v1/message", body)

        assert accepted(answer, "a") == 1
        assert (await house.read(INBOX)).ids == ["a"]
        assert (await house.read(default_inbox("other"))).ids == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("QUJD", "QUJD"),
        ("QQ", "QQ"),
        ("QQ==", "QQ"),
        ("QUI", "QUI"),
        ("QUI=", "QUI"),
        ("-_-_", "-_-_"),
        ("+/+/", "-_-_"),
        ("+/+/+w==", "-_-_-w"),
        ("-_-_-w==", "-_-_-w"),
        # Bits that decode to nothing are none of the hub's business.
        ("QR", "QR"),
        ("QUJ", "QUJ"),
    ],
)
async def test_ciphertext_is_given_out_as_base64url_without_padding(given: str, kept: str) -> None:
    async with open_house() as house:
        guest = await house.join()

        await house.sent("a", ciphertext=given)
        await house.sent("b", ciphertext=kept)

        for told in await guest.messages(2):
            assert told["ciphertext"] == kept
        for message in (await house.read(INBOX)).messages:
            assert message["ciphertext"] == kept


async def test_five_hundred_messages_are_accepted_and_the_next_is_not() -> None:
    clock = exact_clock()
    async with open_house(clock) as house:
        guest = await house.join()
        for number in range(1, 501):
            assert await house.sent(f"m-{number}") == number
        await guest.messages(500)

        answer = await house.send("m-501")

        assert answer.status == 429
        assert answer.json == {
            "error": "Rate limit exceeded",
            "errorCode": "RATE_LIMIT_EXCEEDED",
            "retryAfterMs": 5000,
        }
        assert answer.header("Retry-After") == "5"
        assert house.web.connects == 1
        await guest.nothing_more()
        assert (await house.read(INBOX, 501)).messages == []
        assert await house.sent("m-501", "elsewhere") == 1
        clock.advance(5)
        assert await house.sent("m-501") == 501


async def test_limit_is_one_for_all_senders_over_http_and_sockets() -> None:
    async with open_house(exact_clock(), rate=6) as house:
        guests = [await house.join(pseudonym=f"p-{number}") for number in range(2)]
        for number in range(2):
            await house.sent(f"web-{number}", pseudonymId=f"p-{number}")
            for guest in guests:
                await guest.accepted(f"{id(guest)}-{number}")

        assert wait_ms(await house.send("excess")) == 5000
        for guest in guests:
            assert (await guest.submit("excess"))["errorCode"] == LIMITED
