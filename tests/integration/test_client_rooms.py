"""Rooms and inboxes of the Python client against the real hub."""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

import signalhub
from signalhub import Hub, Reconnect, Room
from signalhub.client import Missed, RoomMessage
from signalhub.client.lifecycle import Opening
from signalhub.testing import ChaosProxy, FakeClock, run_hub, spawn_hub

QUICK = Reconnect(first_jitter_s=0.02, base_s=0.02)
PATIENCE_S = 60.0
SECRET_INBOX = "pw1oQgdmuN2WQLXM3CpAZaVIVGvyJRwpcv9QG4XsHfg"


def join(hub: Hub, room: str = "general", **options: Any) -> Opening[Room]:
    chosen: dict[str, Any] = {"reconnect": QUICK} | options
    return hub.room(room, **chosen)


async def take(room: Room, count: int) -> list[RoomMessage]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(room) for _ in range(count)]


def words(messages: list[RoomMessage]) -> list[bytes]:
    return [message.ciphertext for message in messages]


async def test_members_hear_each_other_and_themselves_in_one_order() -> None:
    async with (
        run_hub() as running,
        signalhub.hub(running.http_url) as hub,
        join(hub, pseudonym="p1") as one,
        join(hub, pseudonym="p2") as other,
    ):
        sent = await one.send(b"hello", message_id="a")
        again = await one.send(b"hello", message_id="a")
        await other.send(b"well met", type="mls_commit", proposal_id="x")

        assert (sent.seq, sent.is_repeat) == (1, False)
        assert (again.seq, again.is_repeat) == (1, True)
        for room in (one, other):
            heard = await take(room, 2)
            assert words(heard) == [b"hello", b"well met"]
            assert [message.pseudonym for message in heard] == ["p1", "p2"]
            assert [message.type for message in heard] == ["mls_app", "mls_commit"]
            assert room.last_seq == 2


async def test_who_was_away_reads_what_was_said_and_goes_on_live() -> None:
    async with run_hub() as running, signalhub.hub(running.url) as hub, join(hub) as speaker:
        async with join(hub) as early:
            await speaker.send(b"1")
            assert words(await take(early, 1)) == [b"1"]
            position = early.last_seq
        await asyncio.gather(*(speaker.send(b"%d" % n, message_id=f"m{n}") for n in range(2, 9)))

        async with join(hub, since=position) as back, join(hub, since=None) as late:
            await speaker.send(b"9")

            heard = await take(back, 8)
            assert sorted(words(heard)) == [b"%d" % n for n in range(2, 10)]
            assert [message.seq for message in heard] == list(range(2, 10))
            assert words(await take(late, 1)) == [b"9"]
            assert back.missed == late.missed == ()


async def test_what_is_appended_is_read_in_its_place() -> None:
    async with run_hub() as running, signalhub.hub(running.url) as hub, join(hub) as room:
        inbox = hub.inbox("Z2VuZXJhbA")
        await room.send(b"1")
        stored = await inbox.append(b"2", message_id="a")
        again = await inbox.append(b"2", message_id="a")
        await room.send(b"3")

        assert (stored.seq, stored.is_repeat) == (2, False)
        assert (again.seq, again.is_repeat) == (2, True)
        assert words(await take(room, 3)) == [b"1", b"2", b"3"]


async def test_a_hub_without_echoes_is_read_without_gaps() -> None:
    async with (
        run_hub(rooms={"echo_to_sender": False, "fetch_rate": 1}) as running,
        signalhub.hub(running.url) as hub,
        join(hub) as room,
        join(hub) as other,
    ):
        for number in range(10):
            await (room, other)[number % 2].send(b"%d" % number)

        assert words(await take(room, 10)) == [b"%d" % number for number in range(10)]


async def test_an_inbox_is_read_page_by_page() -> None:
    async with (
        run_hub(rooms={"rate": 10_000}) as running,
        signalhub.hub(running.url) as hub,
        join(hub, inbox=SECRET_INBOX) as room,
    ):
        await asyncio.gather(*(room.send(b"x") for _ in range(800)))
        await asyncio.gather(*(room.send(b"x") for _ in range(400)))
        inbox = hub.inbox(SECRET_INBOX)

        page = await inbox.fetch(from_seq=1150, limit=20)
        messages = inbox.messages()
        everything = [message.seq async for message in messages]

        assert ([one.seq for one in page][-1], page.next_seq, page.oldest_seq) == (1169, 1170, 1)
        assert everything == list(range(1, 1201))
        assert messages.next_seq == 1201
        assert len(await inbox.fetch(from_seq=1201)) == 0
        assert len(await hub.inbox("an-unknown-one").fetch()) == 0


async def test_a_room_that_is_too_fast_for_the_hub_gets_everything_in() -> None:
    async with (
        run_hub(rooms={"rate": 10, "rate_window_s": 0.2}) as running,
        signalhub.hub(running.url) as hub,
        join(hub) as room,
    ):
        sent = await asyncio.gather(*(room.send(b"x") for _ in range(60)))

        assert sorted(one.seq for one in sent) == list(range(1, 61))


async def test_a_room_that_stays_too_fast_is_refused() -> None:
    async with (
        run_hub(rooms={"rate": 1, "rate_window_s": 600.0}) as running,
        signalhub.hub(running.url) as hub,
        join(hub) as room,
    ):
        await room.send(b"x", message_id="a")

        with pytest.raises(signalhub.Refused) as caught:
            await room.send(b"x")

        assert (caught.value.code, caught.value.retryable) == ("RATE_LIMIT_EXCEEDED", True)
        assert (await room.send(b"x", message_id="a")).is_repeat


@pytest.mark.parametrize("size", [2**16 + 1, 2**20])
async def test_what_is_too_large_is_refused_and_the_room_lives_on(size: int) -> None:
    async with run_hub() as running, signalhub.hub(running.url) as hub, join(hub) as room:
        with pytest.raises(signalhub.Refused) as caught:
            await room.send(b"x" * size)

        assert caught.value.code == "TOO_LARGE"
        assert (await room.send(b"x" * 2**16)).seq == 1
        assert len((await take(room, 1))[0].ciphertext) == 2**16


async def test_a_room_has_one_inbox_and_stays_with_it() -> None:
    async with run_hub() as running, signalhub.hub(running.url) as hub:
        async with join(hub, inbox=SECRET_INBOX) as room:
            await room.send(b"x")

        with pytest.raises(signalhub.Refused) as caught:
            await join(hub, inbox="another")
        async with join(hub) as guest:
            await guest.send(b"y")
            async with asyncio.timeout(PATIENCE_S):
                await anext(guest)

            assert caught.value.code == "CONFLICT"
            assert guest.missed == (Missed(1, 1),)


async def test_a_hub_may_want_the_inbox_with_everything() -> None:
    async with (
        run_hub(rooms={"require_capability": True}) as running,
        signalhub.hub(running.url) as hub,
    ):
        with pytest.raises(signalhub.Refused) as caught:
            await join(hub)
        async with join(hub, inbox=SECRET_INBOX) as room:
            assert (await room.send(b"x")).seq == 1

        assert caught.value.code == "BAD_REQUEST"


async def test_a_blind_hub_knows_only_the_inbox() -> None:
    async with (
        run_hub(rooms={"mode": "blind"}) as running,
        signalhub.hub(running.url) as hub,
        join(hub, SECRET_INBOX, inbox=SECRET_INBOX) as early,
    ):
        await early.send(b"x")

        async with join(hub, SECRET_INBOX, inbox=SECRET_INBOX) as late:
            assert words(await take(late, 1)) == [b"x"]
            assert late.missed == ()


async def test_tenants_have_rooms_of_their_own() -> None:
    async with (
        run_hub() as running,
        signalhub.hub(running.url) as hub,
        join(hub, tenant="acme") as ours,
        join(hub, tenant="umbra") as theirs,
        join(hub, "acme:general") as same,
    ):
        await ours.send(b"ours")
        await theirs.send(b"theirs")

        assert words(await take(same, 1)) == [b"ours"]
        assert words(await take(theirs, 1)) == [b"theirs"]


async def test_what_expired_is_told_as_missed() -> None:
    clock = FakeClock()
    async with (
        run_hub(clock, rooms={"retention_s": 60.0}) as running,
        signalhub.hub(running.url) as hub,
        join(hub) as room,
    ):
        for number in range(3):
            await room.send(b"%d" % number)
        clock.advance(120)
        await room.send(b"3")

        async with join(hub) as late:
            assert words(await take(late, 1)) == [b"3"]
            assert late.missed == (Missed(1, 3),)
        messages = hub.inbox("Z2VuZXJhbA").messages()
        assert [message.seq async for message in messages] == [4]
        assert messages.missed == (Missed(1, 3),)


async def test_a_client_joins_rooms_of_its_own_hub() -> None:
    async with run_hub() as running:
        async with signalhub.connect(running.url, "@(demo/alice)") as alice:
            room = await alice.room("general", pseudonym="p1")
            await room.send(b"x")

            assert [one.seq async for one in alice.inbox("Z2VuZXJhbA").messages()] == [1]
        assert not room.is_joined


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
        assert words(await take(room, 2)) == [b"1", b"2"]


async def test_a_hub_that_is_killed_keeps_what_it_said_it_has() -> None:
    async with (
        spawn_hub(rooms={"rate": 10_000}) as running,
        signalhub.hub(running.url) as hub,
        join(hub) as room,
    ):
        sending = [
            asyncio.ensure_future(room.send(b"x", message_id=f"m{n}", timeout_s=60))
            for n in range(300)
        ]
        await sending[50]
        await running.restart()
        sent = await asyncio.gather(*sending)
        heard = await take(room, 300)

        assert sorted(one.seq for one in sent) == list(range(1, 301))
        assert {one.message_id: one.seq for one in sent} == {
            message.message_id: message.seq for message in heard
        }


async def test_a_reader_who_pauses_loses_nothing() -> None:
    async with (
        run_hub(rooms={"rate": 100_000}) as running,
        signalhub.hub(running.url) as hub,
        join(hub) as speaker,
        join(hub) as reader,
    ):
        for _ in range(3):
            await asyncio.gather(*(speaker.send(b"x") for _ in range(1_000)))

        heard = await take(reader, 3_000)

        assert [message.seq for message in heard] == list(range(1, 3_001))


async def test_every_block_of_the_guide_runs() -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "rooms.md"
    blocks = re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    body = textwrap.indent("\n".join(blocks), "    ")
    names: dict[str, Any] = {}
    exec(f"async def run(url, signalhub):\n{body}", names)

    async with run_hub() as running:
        await names["run"](running.http_url, signalhub)


@pytest.mark.parametrize(
    "scenario",
    [
        test_who_was_away_reads_what_was_said_and_goes_on_live,
        test_an_inbox_is_read_page_by_page,
        test_a_hub_that_restarts_is_found_again,
    ],
)
def test_the_same_holds_on_uvloop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(scenario())
