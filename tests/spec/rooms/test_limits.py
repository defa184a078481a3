"""Sliding windows to the millisecond, on a clock that moves only when told to."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.http import Answer
from tests.support.socket.rooms import (
    HOUR,
    INBOX,
    LIMITED,
    House,
    OpenHouse,
    accepted,
    exact_clock,
    is_replay,
    open_house,
    page_of,
    refused,
    stored,
    wait_ms,
)


def announced(answer: Answer) -> tuple[int, str | None]:
    """How long a limited sender is to wait, as the body and as the header say it."""
    return wait_ms(answer), answer.header("Retry-After")


async def use_up(house: House, number: int, room: str = "general", name: str = "used") -> None:
    """Send so many messages, all accepted."""
    for index in range(number):
        await house.sent(f"{name}-{index}", room)


async def test_vector_of_the_specification_holds_to_the_millisecond() -> None:
    clock = exact_clock()
    async with open_house(clock) as house:
        for number in range(1, 501):
            assert await house.sent(f"m-{number}") == number
            clock.advance(0.001)
        # The first was accepted 500 ms ago, which the specification calls t = 1000.
        clock.advance(4.153 - 1.500)

        assert announced(await house.send("refused")) == (1847, "2")
        clock.advance(5.999 - 4.153)
        assert announced(await house.send("refused")) == (1, "1")
        clock.advance(0.001)
        assert await house.sent("m-501") == 501
        assert announced(await house.send("refused")) == (1, "1")
        clock.advance(0.001)
        assert await house.sent("m-502") == 502
        assert announced(await house.send("refused")) == (1, "1")


async def test_vector_holds_on_a_socket_too() -> None:
    clock = exact_clock()
    async with open_house(clock, rate=5) as house:
        guest = await house.join()
        for number in range(1, 6):
            assert await guest.accepted(f"m-{number}") == number
            clock.advance(0.001)

        clock.advance(3.148)
        assert (await guest.submit("refused"))["retryAfterMs"] == 1847
        clock.advance(1.846)
        assert (await guest.submit("refused"))["retryAfterMs"] == 1
        clock.advance(0.001)
        assert await guest.accepted("m-6") == 6
        assert (await guest.submit("refused"))["retryAfterMs"] == 1


async def test_refusals_do_not_count() -> None:
    clock = exact_clock()
    async with open_house(clock, rate=2) as house:
        await use_up(house, 2)
        for _ in range(49):
            clock.advance(0.1)
            wait_ms(await house.send("refused"))

        clock.advance(0.1)

        assert await house.sent("refused") == 3


@pytest.mark.parametrize("bad", [{"ciphertext": "!"}, {"type": "unknown"}])
async def test_bad_messages_do_not_count(bad: dict[str, Any]) -> None:
    async with open_house(exact_clock(), rate=2) as house:
        for _ in range(5):
            refused(await house.send("a", **bad), 400)

        await use_up(house, 2)


async def test_waiting_as_long_as_announced_is_enough() -> None:
    clock = exact_clock()
    async with open_house(clock, rate=3) as house:
        for number in range(20):
            answer = await house.send(f"m-{number}")
            while answer.status == 429:
                clock.advance(wait_ms(answer) / 1000)
                answer = await house.send(f"m-{number}")
            assert accepted(answer) == number + 1
            clock.advance(0.7)


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
async def test_wall_clock_that_is_set_does_not_matter(jump: int) -> None:
    clock = exact_clock()
    async with open_house(clock, rate=3, append_rate=1, fetch_rate=1) as house:
        await use_up(house, 3)
        await house.appended(INBOX, "a")
        await house.read(INBOX)
        clock.advance(1)

        clock.jump(jump)

        assert wait_ms(await house.send("refused")) == 4000
        assert wait_ms(await house.append(INBOX, "refused")) == 59_000
        assert wait_ms(await house.fetch(INBOX)) == 59_000
        clock.advance(4)
        assert await house.sent("after") == 4


async def test_each_room_has_its_own_window() -> None:
    async with open_house(exact_clock(), rate=2) as house:
        for room in ("one", "two", "acme:one"):
            await use_up(house, 2, room)
            wait_ms(await house.send("refused", room))
        assert wait_ms(await house.send("refused", "one", tenantId="acme")) == 5000


async def test_pseudonym_may_have_a_limit_of_its_own() -> None:
    clock = exact_clock()
    async with open_house(clock, rate=5, pseudonym_rate=2) as house:
        guest = await house.join(pseudonym="loud")
        await house.sent("a", pseudonymId="loud")
        clock.advance(1)
        await guest.accepted("b")

        for _ in range(10):
            assert wait_ms(await house.send("c", pseudonymId="loud")) == 4000
            assert (await guest.submit("c"))["retryAfterMs"] == 4000

        # What it may not send is left for the others.
        for message_id, pseudonym in [("c", "p-2"), ("d", "p-3"), ("e", "p-3")]:
            await house.sent(message_id, pseudonymId=pseudonym)
        assert wait_ms(await house.send("f", pseudonymId="p-4")) == 4000
        assert await house.sent("a", "elsewhere", pseudonymId="loud") == 1
        assert is_replay(await house.send("a", pseudonymId="loud"))
        clock.advance(4)
        assert await house.sent("f", pseudonymId="loud") == 6


async def test_pseudonyms_have_no_limit_of_their_own_by_default() -> None:
    async with open_house(exact_clock(), rate=50) as house:
        for number in range(50):
            await house.sent(f"m-{number}", pseudonymId="loud")


@pytest.mark.parametrize("kind", ["append", "fetch"])
async def test_inbox_limits_slide_over_a_minute(kind: str) -> None:
    clock = exact_clock()
    async with open_house(clock, append_rate=3, fetch_rate=3) as house:

        async def attempt(message_id: str) -> Answer:
            if kind == "fetch":
                return await house.fetch(INBOX)
            return await house.append(INBOX, message_id)

        def is_good(answer: Answer) -> None:
            if kind == "fetch":
                page_of(answer)
            else:
                stored(answer)

        for number in range(3):
            is_good(await attempt(f"m-{number}"))
            clock.advance(10)

        assert announced(await attempt("x")) == (30_000, "30")
        clock.advance(28.999)
        assert announced(await attempt("x")) == (1001, "2")
        clock.advance(1)
        assert announced(await attempt("x")) == (1, "1")
        clock.advance(0.001)
        is_good(await attempt("m-3"))
        assert announced(await attempt("x")) == (10_000, "10")
        clock.advance(10)
        is_good(await attempt("m-4"))


async def limited_after_a_restart(house: OpenHouse, clock: FakeClock, away_s: float) -> Answer:
    """What the next sender is told when the window was used up before the hub went away."""
    await use_up(house, 3)
    clock.advance(0.5)
    await use_up(house, 2, name="later")
    assert wait_ms(await house.send("refused")) == 4500
    await house.stop()
    clock.advance(away_s)
    await house.hub.start()
    return await house.send("after")


async def test_window_is_remembered_across_a_restart() -> None:
    clock = exact_clock()
    async with open_house(clock, rate=5, timestamps="exact") as house:
        answer = await limited_after_a_restart(house, clock, 1.25)

        assert wait_ms(answer) == 3250
        clock.advance(3.25)
        for number in range(3):
            assert await house.sent(f"after-{number}") == 6 + number
        assert wait_ms(await house.send("refused")) == 500


async def test_window_remembered_in_coarse_times_is_never_too_lax() -> None:
    clock = exact_clock()
    async with open_house(clock, rate=5) as house:
        answer = await limited_after_a_restart(house, clock, 1.25)

        assert 3250 <= wait_ms(answer) <= 5000
        clock.advance(wait_ms(answer) / 1000)
        assert await house.sent("after") == 6


async def test_window_is_over_when_the_hub_was_away_for_long_enough() -> None:
    clock = exact_clock()
    async with open_house(clock, rate=5) as house:
        answer = await limited_after_a_restart(house, clock, 5)

        assert accepted(answer) == 6


@pytest.mark.parametrize("jump", [-HOUR, -10])
async def test_clock_set_back_while_the_hub_was_away_locks_nobody_out(jump: int) -> None:
    clock = exact_clock()
    async with open_house(clock, rate=5) as house:
        await use_up(house, 5)
        await house.stop()
        clock.jump(jump)
        await house.hub.start()

        answer = await house.send("after")

        if answer.status == 429:
            assert wait_ms(answer) <= 5000
            clock.advance(5)
            answer = await house.send("after")
        assert accepted(answer) == 6


async def test_error_frame_has_what_the_specification_says_and_more() -> None:
    async with open_house(exact_clock(), rate=1) as house:
        guest = await house.join()
        await guest.accepted("a")

        told = await guest.submit("b")

        specified = {"action": "error", "error": "Rate limit exceeded", "errorCode": LIMITED}
        assert specified.items() <= told.items()
