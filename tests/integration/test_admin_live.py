"""The live socket of a page: what it is told, how often, and what happens if it does not read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from signalhub.server.admin import sampler
from signalhub.server.admin.live import (
    COMPUTED_MAX,
    FRAME_BYTES_MAX,
    NAME_CHARS_MAX,
    TAIL_ROWS_MAX,
    TAIL_SEARCHED_BYTES,
    WAITING_MAX,
    WATCHES_MAX,
)
from tests.support.socket.desk import ADMIN, GUARDED, Looker, Office, open_office
from tests.support.socket.peer import Rejected
from tests.support.socket.stage import eventually

LIVE = f"{ADMIN}/live"


async def pushed(office: Office, seconds: float = 1.0) -> None:
    """A second passes, and everything that has changed is on its way."""
    office.tick(seconds)
    live = office.desk.live
    if live._pushing is not None:
        await live._pushing


async def test_a_page_is_welcomed_and_gets_all_then_what_has_changed() -> None:
    async with open_office() as office:
        peer = await office.orders()
        page = await office.looker()
        assert (page.me["op"], page.me["role"]) == ("welcome", "admin")
        first = await page.watch("subscription", topic="orders", name="billing")
        assert (first["id"], first["full"]["head"]) == (1, 3)

        await peer.ask("hub:publish", {"topic": "orders", "type": "t:t", "durable": True})
        await pushed(office)

        changed = (await page.next())["change"]
        assert changed["head"] == 4
        assert "mode" not in changed
        page.say(op="stop", id=1)
        page.peer.send_text('{"type":"ping"}')
        assert await page.next() == {"type": "pong"}
        await peer.ask("hub:publish", {"topic": "orders", "type": "t:t", "durable": True})
        await pushed(office)
        page.peer.send_text('{"type":"ping"}')
        assert await page.next() == {"type": "pong"}


async def test_every_watch_shows_what_the_route_of_that_name_shows() -> None:
    async with open_office() as office:
        await office.orders()
        await office.stage.join("@(demo/bob)")
        page, ann = await office.looker(), office.person()
        overview = (await page.watch("overview"))["full"]
        assert set(overview) == set(await ann.get("/overview"))
        topic = (await page.watch("topic", topic="orders"))["full"]
        assert topic == await ann.get("/topics/orders")
        rows = (await page.watch("subscriptions", topic="orders"))["full"]
        assert list(rows) == ["orders/billing"]
        named = (await page.watch("subscriptions", ids=["orders/billing", "gone/x"]))["full"]
        assert named == rows | {"gone/x": None}
        actors = (await page.watch("actors", addresses=["@(demo/bob)", "@(demo/nobody)"]))["full"]
        assert (actors["@(demo/bob)"]["state"], actors["@(demo/nobody)"]) == ("live", None)
        actions = (await page.watch("actions"))["full"]
        assert actions["offset"] == office.stage.hub.app._engine.head


async def test_ten_pages_with_one_view_cost_one_computation_a_second() -> None:
    async with open_office() as office:
        await office.orders()
        pages = [await office.looker() for _ in range(10)]
        for page in pages:
            await page.watch("topic", topic="orders")
            await page.watch("overview", 2)
        live = office.desk.live
        await pushed(office)
        before = live.computations
        await pushed(office)

        assert live.computations == before + 2


async def test_a_page_that_comes_later_sees_what_is_now() -> None:
    async with open_office() as office:
        peer = await office.orders()
        page = await office.looker()
        await page.watch("topic", topic="orders")
        page.peer.close()
        await page.peer.until_closed()
        await peer.ask("hub:publish", {"topic": "orders", "type": "t:t", "durable": True})
        office.stage.clock.advance(60)  # type: ignore[attr-defined]
        later = await office.looker()
        assert (await later.watch("topic", topic="orders"))["full"]["head"] == 4


async def test_nobody_looking_means_no_rounds_and_somebody_means_one_a_second() -> None:
    async with open_office() as office:
        survey = office.desk.sampler.survey
        await office.orders()
        for _ in range(10):
            office.tick()
        steps = survey.steps
        for _ in range(10):
            office.tick()
        assert survey.steps - steps == 10, "one small step a second"
        page = await office.looker()
        rounds = survey.rounds
        for _ in range(3):
            await pushed(office)
            await eventually(lambda: office.desk.sampler._round is None)
        assert survey.rounds - rounds == 3
        page.peer.close()
        await page.peer.until_closed()
        await eventually(lambda: not len(office.desk.live))
        assert office.desk.sampler.watchers == 0


async def test_a_look_at_very_many_subscriptions_takes_several_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampler, "STEP", 1)
    monkeypatch.setattr(sampler, "STEPS_MAX", 2)
    async with open_office() as office:
        await office.orders()
        await office.looker()
        survey = office.desk.sampler.survey
        await eventually(lambda: office.desk.sampler._round is None)
        before, rounds = survey.steps, survey.rounds
        for second in range(1, 5):
            await pushed(office)
            await eventually(lambda: office.desk.sampler._round is None)
            assert survey.steps - before <= 2 * second
        # The topic, its subscription, two sessions.
        assert survey.rounds - rounds in (1, 2)


async def test_nothing_is_queued_for_a_page_that_does_not_read() -> None:
    async with open_office() as office:
        peer = await office.orders()
        page = Looker(await office.stage.dial(LIVE, receive_bytes=4096))
        page.say(op="hello")
        await page.next()
        await page.watch("topic", topic="orders")
        (socket,) = office.desk.live._sockets
        page.peer.pause()
        while not socket.is_blocked:
            socket.say(b'"' + b"x" * 60_000 + b'"')
            await asyncio.sleep(0)
        held = socket.connection.unsent_bytes
        # Whoever reads nothing for ten seconds is closed, as on any socket.
        for _ in range(5):
            await peer.ask("hub:publish", {"topic": "orders", "type": "t:t", "durable": True})
            await pushed(office)
        assert socket.is_blocked
        assert socket.connection.unsent_bytes <= held
        assert socket.connection.waiting is None
        page.peer.resume()
        await eventually(lambda: not socket.is_blocked)
        await pushed(office)
        frame: Any = ""
        while isinstance(frame, str):
            frame = await page.next()
        assert frame["change"]["head"] == 8, "one frame with all that has changed"


async def test_a_tail_shows_new_messages_and_counts_the_others() -> None:
    async with open_office(**GUARDED) as office:
        peer = await office.orders(2)
        reader = office.person("viewer", read=["orders"])
        page = await office.looker(token=reader.token)
        blind = await office.looker(token=office.person("viewer").token)
        only = {"stream": "orders", "key": "c-7"}
        assert (await page.watch("tail", 1, filter={"stream": "orders"}))["full"] == {}
        await page.watch("tail", 2, filter=only)
        await blind.watch("tail", 1)
        for number in range(8):
            note = {"topic": "orders", "type": "t:t", "durable": True, "key": f"c-{number}"}
            await peer.ask("hub:publish", note | {"data": {"n": number}})
        await pushed(office)

        everything, chosen, seen = await page.next(), await page.next(), await blind.next()
        assert [row["seq"] for row in everything["rows"]] == [*range(3, 11)]
        assert everything["rows"][-1]["payload"] == '{"n": 7}'
        assert [row["key"] for row in chosen["rows"]] == ["c-7"]
        contents = ("payload", "key", "type")
        assert {tuple(row[one] for one in contents) for row in seen["rows"]} == {(None, None, None)}
        assert all(row["withheld"] for row in seen["rows"])
        for _ in range(TAIL_ROWS_MAX + 9):
            await peer.ask("hub:publish", {"topic": "orders", "type": "t:t", "durable": True})
        await pushed(office)
        many = await page.next()
        assert (len(many["rows"]), many["skipped"]) == (TAIL_ROWS_MAX, 9)


@pytest.mark.parametrize("wanted", [{"type": "t:t"}, {"key": "c-1"}, {"text": "secret"}])
async def test_a_tail_finds_nothing_by_contents_that_may_not_be_read(
    wanted: dict[str, str],
) -> None:
    async with open_office(**GUARDED) as office:
        peer = await office.orders(0)
        reader = await office.looker(token=office.person("viewer", read=["orders"]).token)
        blind = await office.looker(token=office.person("viewer").token)
        for page in (reader, blind):
            await page.watch("tail", filter=wanted)
        note = {"topic": "orders", "type": "t:t", "durable": True, "key": "c-1"}
        await peer.ask("hub:publish", note | {"data": {"s": "secret"}})
        await pushed(office)

        assert len((await reader.next())["rows"]) == 1
        blind.peer.send_text('{"type":"ping"}')
        assert await blind.next() == {"type": "pong"}


async def test_a_tail_searches_few_bytes_a_second_and_counts_the_other_messages() -> None:
    async with open_office() as office:
        peer = await office.orders(0)
        page = await office.looker()
        await page.watch("tail", filter={"text": "wanted"})
        note = {"topic": "orders", "type": "t:t", "durable": True}
        await peer.ask("hub:publish", note | {"data": "wanted, but the oldest"})
        large = "x" * (TAIL_SEARCHED_BYTES // 4)
        for _ in range(5):
            await peer.ask("hub:publish", note | {"data": large})
        await peer.ask("hub:publish", note | {"data": "wanted"})
        await pushed(office)

        found = await page.next()
        assert [row["payload"] for row in found["rows"]] == ['"wanted"']
        assert found["skipped"] == 3
        await peer.ask("hub:publish", note | {"data": 5 * large + "wanted"})
        await pushed(office)
        assert len((await page.next())["rows"]) == 1, "one message is searched whatever its size"
        other = await page.watch("tail", 2, filter={"text": "other"})
        assert other["error"]["errorCode"] == "bad_request"
        assert "full" in await page.watch("tail", 1, filter={"text": "other"})


async def test_only_so_much_is_computed_at_once_for_a_page_and_the_rest_a_second_later() -> None:
    async with open_office() as office:
        await office.orders()
        page = await office.looker()
        live = office.desk.live
        before = live.computations
        for number in range(COMPUTED_MAX + 5):
            page.say(op="watch", id=number, what="subscriptions", ids=[f"gone/{number}"])
        for number in range(COMPUTED_MAX):
            assert (await page.next())["id"] == number
        page.peer.send_text('{"type":"ping"}')
        assert await page.next() == {"type": "pong"}
        assert live.computations == before + COMPUTED_MAX
        await pushed(office)

        for number in range(COMPUTED_MAX, COMPUTED_MAX + 5):
            frame = await page.next()
            assert (frame["id"], frame["full"]) == (number, {f"gone/{number}": None})


async def test_frames_stay_small_however_much_is_watched() -> None:
    async with open_office() as office:
        peer = await office.stage.connect("@(demo/alice)")
        names = [f"@(many/{number:03})" for number in range(100)]
        for name in names:
            await peer.register(name, metadata={"text": "x" * 4_000})
        page = await office.looker()
        page.say(op="watch", id=1, what="actors", addresses=names)
        found: dict[str, Any] = {}
        while len(found) < len(names):
            text = await page.peer.receive_text()
            assert len(text) <= FRAME_BYTES_MAX
            frame = json.loads(text)
            found |= frame.get("full") or frame["change"]
        assert set(found) == set(names)


async def test_what_is_gone_ends_its_watch_with_a_reason() -> None:
    async with open_office() as office:
        peer = await office.orders()
        page = await office.looker()
        await page.watch("topic", topic="orders")
        await peer.ask("hub:topic_delete", {"topic": "orders"})
        await pushed(office)
        assert (await page.next())["error"]["errorCode"] == "not_found"
        missing = await page.watch("job", 2, job="none")
        assert missing["error"]["errorCode"] == "not_found"


async def test_a_page_must_say_hello_with_a_good_token_and_soon() -> None:
    async with open_office(**GUARDED) as office:
        for hello in ({}, {"token": "nonsense"}, {"token": office.person("none", admin=[]).token}):
            page = Looker(await office.stage.dial(LIVE))
            page.say(op="hello", **hello)
            assert "error" in await page.next()
            assert await page.peer.until_closed() == 1008
        early = Looker(await office.stage.dial(LIVE))
        early.say(op="watch", id=1, what="overview")
        assert await early.peer.until_closed() == 1008
        silent = await office.stage.dial(LIVE)
        await eventually(lambda: len(office.desk.live) == 1)
        office.tick(6)
        assert await silent.until_closed() == 1008


async def test_a_page_is_closed_when_its_token_ends_unless_it_renews_it() -> None:
    async with open_office(**GUARDED) as office:
        page = await office.looker(token=office.person("viewer").token)
        other = await office.looker(token=office.person("viewer").token)
        office.tick(3_000)
        other.say(op="token", token=office.person("viewer").token)
        assert (await other.next())["op"] == "renewed"
        office.tick(601)
        assert await page.peer.until_closed() == 4401
        await other.watch("overview")


async def test_a_renewed_token_shows_no_more_than_it_permits_in_what_is_watched_already() -> None:
    async with open_office(**GUARDED) as office:
        peer = await office.orders(0)
        page = await office.looker(token=office.person("viewer", read=["orders"]).token)
        await page.watch("tail", 1)
        await page.watch("actors", 2, addresses=["@(demo/alice)"])
        await peer.ask("hub:subscribe", {"topic": "orders", "subscription": "x", "window": 1})
        await page.watch("subscription", 3, topic="orders", name="x")
        note = {"topic": "orders", "type": "t:t", "durable": True, "key": "c-1"}
        await peer.ask("hub:publish", note | {"data": {"s": "secret"}})
        page.say(op="token", token=office.person("viewer", discover=[]).token)
        assert (await page.next())["op"] == "renewed"
        await pushed(office)

        tail, actors, subscription = [await page.next() for _ in range(3)]
        (row,) = tail["rows"]
        assert (row["payload"], row["key"], row["withheld"]) == (None, None, True)
        assert actors["change"] == {"@(demo/alice)": None}
        assert [one["key"] for one in subscription["change"]["flights"]] == [None]


async def test_foreign_pages_and_too_many_of_them_are_refused() -> None:
    async with open_office(ui={"live_max": 2}) as office:
        for origin in ("http://evil.example", "http://localhost:1"):
            with pytest.raises(Rejected, match="403"):
                await office.stage.dial(LIVE, headers={"Origin": origin})
        await office.looker()
        page = await office.looker()
        with pytest.raises(Rejected, match="503"):
            await office.stage.dial(LIVE)
        page.peer.close()
        await page.peer.until_closed()
        await eventually(lambda: len(office.desk.live) == 1)
        await office.looker()


async def test_strangers_take_no_place_of_a_page() -> None:
    async with open_office(**GUARDED, ui={"live_max": 1}) as office:
        strangers = [await office.stage.dial(LIVE) for _ in range(WAITING_MAX + 1)]
        assert await strangers[0].until_closed() == 1013
        page = await office.looker(token=office.person("viewer").token)
        assert page.me["op"] == "welcome"
        strangers[-1].send_text(json.dumps({"op": "hello", "token": office.person("viewer").token}))
        assert json.loads(await strangers[-1].receive_text())["error"]["errorCode"] == "too_many"


async def test_a_page_may_not_watch_too_much_or_send_too_much() -> None:
    async with open_office() as office:
        page = await office.looker()
        for number in range(WATCHES_MAX):
            await page.watch("overview", number)
        refused = await page.watch("overview", WATCHES_MAX)
        assert refused["error"]["errorCode"] == "bad_request"
        page.peer.send_text("{")
        assert "error" in await page.next()
        for _ in range(60):
            page.peer.send_text('{"type":"ping"}')
        assert await page.peer.until_closed() == 1008


async def test_a_name_that_no_topic_could_have_is_not_looked_for() -> None:
    async with open_office() as office:
        page = await office.looker()
        asked: dict[str, Any]
        for asked in (
            {"ids": ["/" * (NAME_CHARS_MAX + 1)]},
            {"topic": "t" * (NAME_CHARS_MAX + 1)},
        ):
            refused = await page.watch("subscriptions", **asked)
            assert refused["error"]["errorCode"] == "bad_request"
        known = await page.watch("subscriptions", 2, ids=["/" * NAME_CHARS_MAX])
        assert list(known["full"].values()) == [None]


async def test_stopping_the_hub_tells_the_pages() -> None:
    async with open_office() as office:
        page = await office.looker()
        await office.stage.stop()
        assert await page.peer.until_closed() == 1001
        await office.stage.start()
