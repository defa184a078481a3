"""Rooms and inboxes of the Python client against the real hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

import signalhub
from signalhub import Hub, Room
from signalhub.client import RoomMessage
from signalhub.client.lifecycle import Opening
from signalhub.testing import ChaosProxy, FakeClock, run_hub
from tests.support.socket.clients import QUICK, run_guide, take
from tests.support.socket.tokens import AUTH, token_for

SECRET_INBOX = "pw1oQgdmuN2WQLXM3CpAZaVIVGvyJRwpcv9QG4XsHfg"
DEFAULT_INBOX = "Z2VuZXJhbA"


@asynccontextmanager
async def hub_of(clock: FakeClock | None = None, **rooms: Any) -> AsyncIterator[Hub]:
    """The client's view of a hub with these settings of rooms."""
    async with run_hub(clock, rooms=rooms) as running, signalhub.hub(running.http_url) as hub:
        yield hub


def join(hub: Hub, room: str = "general", **options: Any) -> Opening[Room]:
    chosen: dict[str, Any] = {"reconnect": QUICK} | options
    return hub.room(room, **chosen)


async def words(room: Room, count: int) -> list[bytes]:
    """What the next messages say."""
    return [message.ciphertext for message in await take(room, count)]


async def test_every_block_of_the_guide_runs() -> None:
    async with run_hub() as running:
        await run_guide("rooms.md", 5, url=running.http_url, signalhub=signalhub)


@pytest.mark.parametrize("echo_to_sender", [True, False])
async def test_members_hear_each_other_and_themselves_in_one_order(echo_to_sender: bool) -> None:
    async with (
        hub_of(echo_to_sender=echo_to_sender) as hub,
        join(hub, pseudonym="p1") as one,
        join(hub, pseudonym="p2") as other,
    ):
        inbox = hub.inbox(DEFAULT_INBOX)
        sent = await one.send(b"hello", message_id="a")
        again = await one.send(b"hello", message_id="a")
        await other.send(b"well met", type="mls_commit", proposal_id="x")
        stored = await inbox.append(b"aside", message_id="b")
        stored_again = await inbox.append(b"aside", message_id="b")
        await one.send(b"indeed")

        assert [(each.seq, each.is_repeat) for each in (sent, again)] == [(1, False), (1, True)]
        repeats = [(each.seq, each.is_repeat) for each in (stored, stored_again)]
        assert repeats == [(3, False), (3, True)]
        for room in (one, other):
            heard: list[RoomMessage] = await take(room, 4)
            said = [message.ciphertext for message in heard]
            assert said == [b"hello", b"well met", b"aside", b"indeed"]
            assert [message.pseudonym for message in heard][:2] == ["p1", "p2"]
            assert [message.type for message in heard][:2] == ["mls_app", "mls_commit"]
            assert (room.last_seq, room.missed) == (4, ())


async def test_who_was_away_reads_what_was_said_and_goes_on_live() -> None:
    async with hub_of() as hub, join(hub) as speaker:
        async with join(hub) as early:
            await speaker.send(b"1")
            assert await words(early, 1) == [b"1"]
            position = early.last_seq
        await asyncio.gather(*(speaker.send(b"%d" % n) for n in range(2, 9)))

        async with join(hub, since=position) as back, join(hub, since=None) as late:
            await speaker.send(b"9")

            heard = await take(back, 8)
            assert sorted(each.ciphertext for each in heard) == [b"%d" % n for n in range(2, 10)]
            assert [message.seq for message in heard] == list(range(2, 10))
            assert await words(late, 1) == [b"9"]
            assert back.missed == late.missed == ()


async def test_an_inbox_is_read_page_by_page() -> None:
    async with hub_of(rate=10_000) as hub, join(hub, inbox=SECRET_INBOX) as room:
        for count in (800, 400):
            await asyncio.gather(*(room.send(b"x") for _ in range(count)))
        inbox = hub.inbox(SECRET_INBOX)

        page = await inbox.fetch(from_seq=1150, limit=20)
        messages = inbox.messages()
        everything = [message.seq async for message in messages]

        assert ([one.seq for one in page][-1], page.next_seq, page.oldest_seq) == (1169, 1170, 1)
        assert everything == list(range(1, 1201))
        assert messages.next_seq == 1201
        assert len(await inbox.fetch(from_seq=1201)) == 0
        assert len(await hub.inbox("an-unknown-one").fetch()) == 0


async def test_a_client_joins_rooms_of_its_own_hub() -> None:
    async with run_hub() as running:
        async with signalhub.connect(running.url, "@(demo/alice)") as alice:
            room = await alice.room("general", pseudonym="p1")
            await room.send(b"x")

            assert [one.seq async for one in alice.inbox(DEFAULT_INBOX).messages()] == [1]
        assert not room.is_joined


async def test_a_token_opens_rooms_and_a_new_one_is_asked_for_at_each_connection() -> None:
    clock = FakeClock()
    async with run_hub(clock, auth=AUTH) as running:

        def token() -> str:
            permissions = {"rooms": ["general"]}
            return token_for("local/a", clock, permissions=permissions, lifetime_s=60)

        async with signalhub.hub(running.url, token=token) as hub, join(hub) as room:
            assert (await room.send(b"1")).seq == 1
            clock.advance(61)
            app = running.app
            app.runner.perform(app.hub.rooms.tick(clock.now_ms()), clock.now_ms())
            # It was turned out, and has come back with a new token.
            assert (await room.send(b"2")).seq == 2
            assert await words(room, 2) == [b"1", b"2"]
            assert len(await hub.inbox(DEFAULT_INBOX).fetch()) == 2
        async with signalhub.connect(running.url, "@(local/a)", token=token()) as client:
            async with client.room("general") as room:
                assert room.is_joined
            with pytest.raises(signalhub.Refused, match="FORBIDDEN"):
                await client.room("another")
        async with signalhub.hub(running.url) as stranger:
            with pytest.raises(signalhub.Refused, match="UNAUTHORIZED"):
                await stranger.room("general")
            with pytest.raises(signalhub.Refused, match="UNAUTHORIZED"):
                await stranger.inbox(DEFAULT_INBOX).fetch()


async def test_cut_again_and_again_nothing_is_missed_or_doubled() -> None:
    async with (
        run_hub(rooms={"rate": 10_000, "fetch_rate": 10_000}) as running,
        ChaosProxy(running.port) as network,
        signalhub.hub(running.url) as stable,
        signalhub.hub(network.url) as shaky,
        join(stable) as speaker,
        join(shaky) as talker,
        join(shaky) as listener,
    ):
        sending = asyncio.gather(_speak(speaker, "s"), _speak(talker, "t"))
        reading = asyncio.ensure_future(take(listener, 400))
        for _ in range(8):
            await asyncio.sleep(0.1)
            network.cut()
        seqs = [seq for spoken in await sending for seq in spoken]
        heard = await reading

        assert sorted(seqs) == list(range(1, 401))
        assert [message.seq for message in heard] == list(range(1, 401))
        assert len({message.message_id for message in heard}) == 400
        assert listener.missed == ()


async def _speak(room: Room, name: str) -> list[int]:
    """Two hundred messages one after another; their positions."""
    seqs = []
    for number in range(200):
        seqs.append((await room.send(b"x", message_id=f"{name}{number}", timeout_s=60)).seq)
        await asyncio.sleep(0.002)
    assert seqs == sorted(seqs)
    return seqs


async def test_a_hub_that_restarts_is_found_again() -> None:
    async with run_hub() as running, signalhub.hub(running.url) as hub, join(hub) as room:
        await room.send(b"1")
        await running.stop()
        sending = asyncio.ensure_future(room.send(b"2"))
        await asyncio.sleep(0)
        await running.start()

        assert (await sending).seq == 2
        assert await words(room, 2) == [b"1", b"2"]


async def test_a_reader_who_pauses_loses_nothing() -> None:
    async with hub_of(rate=100_000) as hub, join(hub) as speaker, join(hub) as reader:
        for _ in range(3):
            await asyncio.gather(*(speaker.send(b"x") for _ in range(1_000)))

        assert [message.seq for message in await take(reader, 3_000)] == list(range(1, 3_001))


@pytest.mark.parametrize(
    "scenario", [test_an_inbox_is_read_page_by_page, test_a_hub_that_restarts_is_found_again]
)
def test_the_same_holds_on_uvloop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(scenario())
