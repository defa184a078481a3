"""Limits over HTTP and sockets, on a clock that moves only when told to."""

from __future__ import annotations

from tests.support.socket.http import Answer
from tests.support.socket.rooms import (
    INBOX,
    LIMITED,
    accepted,
    exact_clock,
    is_replay,
    open_house,
    refused,
    wait_ms,
)


def announced(answer: Answer) -> tuple[int, str | None]:
    """How long a limited sender is to wait, in the body and in the header."""
    return wait_ms(answer), answer.header("Retry-After")


async def test_vector_of_the_specification_holds_to_the_millisecond() -> None:
    clock = exact_clock()
    async with open_house(clock) as house:
        guest = await house.join()
        for number in range(1, 501):
            assert await house.sent(f"m-{number}", pseudonymId="loud") == number
            clock.advance(0.001)
        await guest.messages(500)
        # The first was accepted 500 ms ago, which the specification calls t = 1000.
        clock.advance(4.153 - 1.500)

        answer = await house.send("refused")

        assert (answer.status, answer.header("Retry-After")) == (429, "2")
        assert answer.json == {
            "error": "Rate limit exceeded",
            "errorCode": LIMITED,
            "retryAfterMs": 1847,
        }
        assert is_replay(await house.send("m-1"))
        assert await house.sent("refused", "elsewhere") == 1
        clock.advance(5.999 - 4.153)
        assert announced(await house.send("refused")) == (1, "1")
        clock.advance(0.001)
        assert await house.sent("m-501") == 501
        assert announced(await house.send("refused")) == (1, "1")
        await guest.receive("message")
        await guest.nothing_more()
        assert house.web.connects == 1


async def test_limited_socket_is_told_how_long_and_stays() -> None:
    clock = exact_clock()
    async with open_house(clock, rate=3) as house:
        guest, other = await house.join(), await house.join(pseudonym="p-2")
        for message_id in ("a", "b"):
            await guest.accepted(message_id)
        # The limit is one for all senders, over HTTP and sockets.
        await house.sent("by-http")
        await guest.messages(3)
        await other.messages(3)

        for _ in range(15):
            clock.advance(0.001)
            told = await guest.submit("c")

        assert told == {
            "action": "error",
            "error": "Rate limit exceeded",
            "errorCode": LIMITED,
            "messageId": "c",
            "retryAfterMs": 4985,
        }
        assert (await other.submit("d"))["errorCode"] == LIMITED
        assert wait_ms(await house.send("e")) == 4985
        assert (await guest.submit("a"))["duplicate"] is True
        clock.advance(4.985)
        assert await guest.accepted("c") == 4
        assert (await other.receive("message"))["messageId"] == "c"


async def test_appends_and_fetches_have_limits_of_their_own() -> None:
    clock = exact_clock()
    async with open_house(clock, rate=1, pseudonym_rate=1) as house:
        await house.sent("a", inbox=INBOX, pseudonymId="loud")
        assert wait_ms(await house.send("b", pseudonymId="loud")) == 5000
        for number in range(120):
            assert await house.appended(INBOX, f"m-{number}") == 2 + number
        refused(await house.fetch(INBOX, "?limit=0"), 400)
        for _ in range(60):
            await house.read(INBOX, 1, 1)
        clock.advance(58.999)

        assert announced(await house.append(INBOX, "late")) == (1001, "2")
        assert announced(await house.fetch(INBOX)) == (1001, "2")

        assert is_replay(await house.append(INBOX, "m-60"))
        assert await house.appended("another-inbox", "a") == 1
        # The wall clock does not matter.
        clock.jump(-3_600)
        clock.advance(1.001)
        assert await house.appended(INBOX, "late") == 122
        assert (await house.read(INBOX, 122)).ids == ["late"]


async def test_window_is_remembered_across_a_restart() -> None:
    clock = exact_clock()
    async with open_house(clock, rate=5, timestamps="exact") as house:
        for number in range(5):
            await house.sent(f"m-{number}")
            clock.advance(0.5 if number == 2 else 0)
        await house.stop()
        clock.advance(1.25)
        await house.hub.start()

        assert wait_ms(await house.send("after")) == 3250
        clock.advance(3.25)
        for number in range(3):
            assert await house.sent(f"after-{number}") == 6 + number
        assert wait_ms(await house.send("refused")) == 500
        await house.stop()
        clock.advance(5)
        await house.hub.start()
        assert accepted(await house.send("refused")) == 9
