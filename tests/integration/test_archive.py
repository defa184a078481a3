"""Inboxes reach back into the lake, and the log lets go of nothing the lake does not hold.

The lake is made of real Delta tables; a small writer stands in for the pipeline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from signalhub.engine.archive import LakeArchive
from signalhub.engine.local import LocalEngine
from signalhub.log.footer import footer_name
from signalhub.pipeline.run.status import LastBatch, PipelineStatus, Totals, write_status
from signalhub.testing import FakeClock
from tests.support.lake.small_lake import SmallLake
from tests.support.socket.rooms import (
    DAY,
    HOUR,
    ROOM,
    OpenHouse,
    accepted,
    default_inbox,
    exact_clock,
    fill,
    open_house,
    refused,
)

INBOX = default_inbox(ROOM)
LARGE = "A" * 4_000
COUNT = 60
LOG: dict[str, Any] = {"segment_bytes": 2**16, "retention_s": HOUR}
PATIENCE_S = 20.0


class Scene:
    """A hub with a lake that is filled when a test says so, and a clock that it moves."""

    def __init__(self, house: OpenHouse, clock: FakeClock, lake: SmallLake) -> None:
        self.house = house
        self.clock = clock
        self.lake = lake

    @property
    def engine(self) -> LocalEngine:
        return self.house.hub.app._engine

    @property
    def archive(self) -> LakeArchive:
        lakeside = self.house.hub.app._lakeside
        assert lakeside is not None
        return lakeside.archive

    @property
    def data(self) -> Path:
        return Path(self.house.hub.settings.data)

    def segments(self) -> list[str]:
        return sorted(path.name for path in (self.data / "log").glob("*.log"))

    async def fill(self, count: int = COUNT, first: int = 1) -> None:
        """Messages in several commits, since one is never parted between two segments."""
        guest = await self.house.join()
        for start in range(first, first + count, 20):
            await fill(guest, min(20, first + count - start), start, LARGE)

    async def land(self) -> None:
        """What the pipeline does, for everything there is."""
        self.lake.land(self.engine)
        self.lake.archive(self.engine)

    async def turn(self, seconds: float = 6.0) -> None:
        """A moment passes, and the hub does what is due."""
        self.clock.advance(seconds)
        self.house.hub.app._tick()
        await asyncio.sleep(0.02)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await self.turn()

    async def turns(self, count: int = 12) -> None:
        """Long enough for the hub to do what it should not do."""
        for _ in range(count):
            await self.turn()

    async def cut(self) -> None:
        """Land everything, and let the log forget what it may."""
        await self.land()
        first = self.segments()[0]
        self.clock.advance(2 * HOUR)
        await self.until(lambda: first not in self.segments())

    async def health(self) -> list[str]:
        found: list[str] = (await self.house.web.get("/health")).json["degradations"]
        return found

    async def metric(self, name: str) -> float:
        text = (await self.house.web.get("/metrics")).body.decode()
        (line,) = (one for one in text.splitlines() if one.startswith(f"signal_hub_{name} "))
        return float(line.split()[1])

    def say(self, **status: Any) -> None:
        """The pipeline says this about itself."""
        said: dict[str, Any] = {"pid": 1, "state": "running", "epoch": self.engine.epoch}
        write_status(self.data, PipelineStatus(**said | {"position": self.engine.head} | status))


@asynccontextmanager
async def scene(hub: dict[str, Any] | None = None, **rooms: Any) -> AsyncIterator[Scene]:
    clock = exact_clock()
    chosen: dict[str, Any] = {"pipeline": {"run": "elsewhere"}, "log": LOG, "message_rate": 0}
    async with open_house(clock, hub=chosen | (hub or {}), **{"buffer": 2} | rooms) as house:
        yield Scene(house, clock, SmallLake(Path(house.hub.settings.data) / "lake"))


def ids(messages: list[dict[str, Any]]) -> list[str]:
    return [one["messageId"] for one in messages]


ALL = [f"m-{number}" for number in range(1, COUNT + 1)]


async def test_pages_go_on_from_the_lake_through_the_log_into_memory() -> None:
    async with scene(timestamps="exact") as it:
        await it.fill()
        before = await it.house.read_all(INBOX)
        await it.cut()
        assert it.engine.first > 0

        for limit in (7, 1000):
            assert await it.house.read_all(INBOX, limit) == before
        assert ids(before) == ALL
        assert {one["ciphertext"] for one in before} == {LARGE}
        assert (await it.house.read(INBOX, 1)).oldest == 1
        assert await it.metric("archive_consults_total") > 0
        assert await it.metric("archive_failures_total") == 0

        await it.house.restart()
        assert it.lake.lake.committed("inbox", 0, it.engine.epoch) == it.archive.position - 1
        assert ids(await it.house.read_all(INBOX)) == ALL


async def test_messages_expire_in_the_lake_too() -> None:
    async with scene(retention_s=DAY) as it:
        await it.fill(COUNT - 1)
        await it.cut()
        it.clock.advance(DAY - 3 * HOUR)
        await it.fill(1, COUNT)
        assert ids(await it.house.read_all(INBOX)) == ALL

        it.clock.advance(2 * HOUR)

        page = await it.house.read(INBOX)
        assert (page.ids, page.oldest) == ([ALL[-1]], COUNT)


async def test_a_message_that_log_and_lake_both_hold_is_read_once() -> None:
    async with scene(always_query_store=True) as it:
        await it.fill(20)
        await it.land()

        assert ids(await it.house.read_all(INBOX)) == ALL[:20]
        await it.house.restart()
        assert ids(await it.house.read_all(INBOX)) == ALL[:20]


async def test_files_replaced_under_a_reader_are_no_trouble() -> None:
    async with scene() as it:
        await it.fill(30)
        await it.land()
        await it.fill(30, 31)
        await it.cut()
        assert ids(await it.house.read_all(INBOX)) == ALL

        it.lake.compact("inbox")

        assert ids(await it.house.read_all(INBOX)) == ALL
        assert await it.metric("archive_failures_total") == 0


class TestLakeAway:
    async def test_pages_are_partial_and_nobody_skips_anything(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with scene() as it:
            await it.fill()
            await it.cut()
            with caplog.at_level(logging.INFO, "signalhub.lake"):
                it.lake.hide()
                for _ in range(3):
                    answer = await it.house.fetch(INBOX, "?fromSeq=1")
                    assert answer.status == 200
                    assert (answer.json["partial"], answer.json["nextSeq"]) == (True, 1)
                assert (await it.house.read(INBOX, COUNT - 1)).ids == ALL[-2:]
                assert await it.metric("archive_failures_total") > 0

                it.lake.show()
                assert ids(await it.house.read_all(INBOX)) == ALL
            it.lake.spoil("inbox")
            assert (await it.house.fetch(INBOX, "?fromSeq=1")).json["partial"] is True

        told = [one.getMessage() for one in caplog.records if one.name == "signalhub.lake"]
        assert told[:2] == ["the lake cannot be read", "the lake can be read again"]

    async def test_a_strict_hub_asks_to_come_again(self) -> None:
        async with scene(strict_store=True) as it:
            await it.fill()
            await it.cut()
            it.lake.hide()

            refused(await it.house.fetch(INBOX, "?fromSeq=1"), 503)

    async def test_a_hub_that_starts_without_its_lake_passes_nothing_over(self) -> None:
        async with scene() as it:
            await it.fill()
            await it.cut()
            await it.house.stop()
            it.lake.hide()
            await it.house.hub.start()

            answer = await it.house.fetch(INBOX, "?fromSeq=1")
            assert (answer.json["partial"], answer.json["nextSeq"]) == (True, 1)
            assert (await it.house.read(INBOX, COUNT)).ids == ALL[-1:]

            it.lake.show()
            assert ids(await it.house.read_all(INBOX)) == ALL

    async def test_a_lake_that_never_comes_costs_nobody_a_message(self) -> None:
        async with scene() as it:
            await it.fill()
            it.say(state="retrying", failures=6, inbox_failures=6, reason="no route to it")
            it.clock.advance(2 * DAY)
            await it.turns()

            assert it.engine.first == 0
            assert ids(await it.house.read_all(INBOX)) == ALL
            assert await it.health() == [
                "retention_held_by_pipeline",
                "pipeline_down",
                "archive_failing",
            ]

            await it.cut()
            it.say()
            await it.turns()
            assert ids(await it.house.read_all(INBOX)) == ALL
            assert await it.health() == []


class TestRetention:
    async def test_segments_wait_for_the_lake(self) -> None:
        async with scene() as it:
            await it.fill()
            before = it.segments()
            it.clock.advance(2 * HOUR)
            await it.until(lambda: it.archive.wanted > 0)
            await it.turns()
            assert it.segments() == before
            assert await it.metric("segments_waiting") == it.archive.wanted
            it.lake.land(it.engine)
            await it.turns()
            assert it.segments() == before, "entries alone are not enough for readers of inboxes"

            it.lake.archive(it.engine)
            await it.until(lambda: it.segments()[0] != before[0])
            await it.until(lambda: not it.archive.wanted)
            assert await it.metric("segments_waiting") == 0
            assert (it.data / "log" / footer_name(0)).exists()

    @pytest.mark.parametrize("fault", [{"lost": {3}}, {"twice": 3}], ids=["lost", "twice"])
    async def test_a_segment_the_lake_does_not_hold_as_it_should_stays(
        self, fault: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        async with scene() as it:
            await it.fill()
            before = it.segments()
            it.lake.land(it.engine, **fault)
            it.lake.archive(it.engine)
            it.clock.advance(2 * HOUR)
            await it.turns()

            assert it.segments() == before
            assert it.archive.landed == 0

        told = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
        assert told == [
            "the lake does not hold each entry of a segment exactly once; the segment is kept"
        ]
        caplog.clear()

    async def test_a_lake_that_was_deleted_keeps_everything_from_going(self) -> None:
        async with scene() as it:
            await it.fill()
            await it.land()
            await it.turn()
            it.lake.drop()
            before = it.segments()
            it.clock.advance(2 * HOUR)
            await it.turns()

            assert it.segments() == before

    async def test_without_a_pipeline_nothing_waits(self) -> None:
        async with scene({"pipeline": {"run": "off"}}, retention_s=HOUR) as it:
            await it.fill()
            before = it.segments()
            it.clock.advance(2 * HOUR)

            await it.until(lambda: it.segments()[0] != before[0])


class TestPosition:
    async def test_senders_wait_for_a_lake_that_is_far_behind(self) -> None:
        async with scene(unarchived_max=20) as it:
            await it.fill(20)
            refused(await it.house.send("one-more"), 503)

            await it.land()
            await it.until(lambda: it.archive.position >= it.engine.head)

            assert accepted(await it.house.send("one-more")) == 21
            assert await it.metric("inbox_unarchived") == 1
            assert await it.metric("archive_position_offset") == it.archive.position
            await it.land()
            await it.house.restart()
            await it.turns(2)
            await it.fill(20, 22)
            refused(await it.house.send("last"), 503)

    async def test_nobody_looks_when_everything_has_arrived(self) -> None:
        async with scene() as it:
            await it.fill(20)
            await it.land()
            await it.until(lambda: it.archive.position >= it.engine.head)
            it.lake.hide()

            await it.turns()

            assert await it.metric("archive_failures_total") == 0


class TestHealth:
    async def test_a_pipeline_nobody_has_heard_of_is_down_after_a_minute(self) -> None:
        async with scene() as it:
            await it.turns(8)
            assert await it.health() == []
            await it.turns(8)
            assert await it.health() == ["pipeline_down"]
            assert await it.metric("pipeline_down") == 1

            it.say()
            await it.turn()
            assert await it.health() == []

    @pytest.mark.parametrize("state", ["retrying", "stopped", "failed"])
    async def test_one_that_does_not_work_is_down(self, state: str) -> None:
        async with scene() as it:
            it.say(state=state)
            await it.turns(16)

            assert await it.health() == ["pipeline_down"]

    async def test_one_that_stands_still_is_down_though_it_says_otherwise(self) -> None:
        async with scene() as it:
            await it.fill(20)
            it.say(position=1, totals=Totals(batches=1))
            await it.turns(16)
            assert await it.health() == ["pipeline_down"]

            it.say()
            it.clock.advance(HOUR / 2)
            await it.turns(16)
            assert await it.health() == [], "with nothing to do it is well"
            assert await it.metric("pipeline_lag_seconds") == 0

    @pytest.mark.parametrize("state", ["starting", "running"])
    async def test_one_that_starts_has_five_minutes_to_land_something(self, state: str) -> None:
        async with scene() as it:
            await it.fill(20)
            it.say(state="stopped")
            await it.turns(8)
            it.say(pid=2, state=state, position=1)
            await it.turns(50)
            assert await it.health() == []

            await it.turns(26)
            assert await it.health() == ["pipeline_down"]

    async def test_one_that_starts_again_and_again_is_down(self) -> None:
        async with scene() as it:
            for pid in range(2, 6):
                it.say(pid=pid, state="failed", failures=1, reason="no memory")
                await it.turns(2)
                it.say(pid=pid + 1, state="starting", failures=1, reason="no memory")
                await it.turns(2)

            assert await it.health() == ["pipeline_down"]

    async def test_metrics_tell_what_it_says(self) -> None:
        async with scene() as it:
            await it.fill(20)
            last = LastBatch(at_ms=it.clock.now_ms(), rows=5, bytes=700, ms=850)
            totals = Totals(batches=3, rows=15, bytes=2_100, quarantined=1)
            behind = it.engine.head - 4
            it.say(position=behind, failures=2, last_batch=last, totals=totals)
            await it.turns(3)

            expected = {
                "pipeline_position_offset": behind,
                "pipeline_lag_entries": 4,
                "pipeline_lag_seconds": 12,
                "pipeline_failures": 2,
                "pipeline_batch_seconds": 0.85,
                "pipeline_batches_total": 3,
                "pipeline_rows_total": 15,
                "pipeline_bytes_total": 2_100,
                "pipeline_quarantined_total": 1,
                "pipeline_restarts_total": 0,
            }
            assert {name: await it.metric(name) for name in expected} == expected

            it.say(epoch=it.engine.epoch - 1, position=10**6)
            await it.turn()
            assert await it.metric("pipeline_lag_entries") == it.engine.head, "not this log"
