"""What `/metrics` and `/health` of a real hub say: everything declared, and what happened."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import http.client
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import signalhub
from signalhub import Client, Consumer, Message
from signalhub.client.client import Connecting
from signalhub.counters import Histogram
from signalhub.observe.exposition import PROCESS, Declaration
from signalhub.observe.subscriptions import SUBSCRIPTIONS
from signalhub.server.metrics import DECLARATIONS
from signalhub.testing import FakeClock, RunningHub, run_hub
from signalhub.wire.errors import Code

BOB = "@(demo/bob)"
PATIENCE_S = 20.0
NEVER_AGAIN: dict[str, Any] = {"backoff_s": 60.0, "backoff_cap_s": 60.0}
DECLARED: list[Declaration[Any]] = [*DECLARATIONS, *SUBSCRIPTIONS]


class Page:
    """The metrics at one moment; names are given without their prefix."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {
            family.name + ("_total" if family.type == "counter" else ""): family
            for family in text_string_to_metric_families(text)
        }

    def value(self, name: str, **labels: str) -> float:
        """The one sample of that name with these labels among its own."""
        (found,) = self.values(name, **labels)
        return found

    def values(self, name: str, **labels: str) -> list[float]:
        return [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == f"signal_hub_{name}" and labels.items() <= sample.labels.items()
        ]

    def of_orders(self, *names: str) -> list[float]:
        """What the only subscription to `orders` shows under these names."""
        return [self.value(f"subscription_{name}", topic="orders") for name in names]

    def by_label(self, name: str, label: str) -> dict[str, float]:
        samples = self.families[f"signal_hub_{name}"].samples
        return {sample.labels[label]: sample.value for sample in samples}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def hub(clock: FakeClock) -> AsyncIterator[RunningHub]:
    async with run_hub(clock) as running:
        yield running


@pytest.fixture
async def alice(hub: RunningHub) -> AsyncIterator[Client]:
    async with connect(hub) as client:
        yield client


def connect(hub: RunningHub, address: str = "@(demo/alice)", **options: Any) -> Connecting:
    return signalhub.connect(hub.url, address, **options)


async def get(hub: RunningHub, path: str) -> tuple[int, str]:
    """Status and body."""

    def fetch() -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    return await asyncio.to_thread(fetch)


async def scrape(hub: RunningHub) -> Page:
    status, text = await get(hub, "/metrics")
    assert status == 200
    return Page(text)


async def scrape_until(hub: RunningHub, holds: Callable[[Page], bool]) -> Page:
    async with asyncio.timeout(PATIENCE_S):
        while not holds(page := await scrape(hub)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return page


async def health(hub: RunningHub) -> tuple[int, str, list[str]]:
    status, text = await get(hub, "/health")
    body = json.loads(text)
    return status, body["status"], body["degradations"]


async def publish(client: Client, count: int, key: str | None = None) -> None:
    for number in range(count):
        await client.publish("orders", "order", number, durable=True, key=key)


async def leave_behind(client: Client, name: str = "billing", **definition: Any) -> None:
    """A subscription that nobody consumes from."""
    await client.create_topic("orders", **definition)
    async with await client.consume("orders", name, mode="shared"):
        pass


async def take(consumer: Consumer, count: int) -> list[Message]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(consumer) for _ in range(count)]


def no_room(descriptor: int, data: bytes, position: int) -> int:
    raise OSError(errno.ENOSPC, "no space left")


def fields_of(tally: object) -> Iterator[tuple[object, str, object]]:
    """Every number and histogram of a tally and of those within it, with its owner."""
    assert dataclasses.is_dataclass(tally)
    for field in dataclasses.fields(tally):
        value = getattr(tally, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, Histogram):
            yield from fields_of(value)
        else:
            yield tally, field.name, value


async def test_exactly_what_is_declared_is_exported_with_its_labels(hub: RunningHub) -> None:
    kinds = {one.name: one.kind for one in DECLARED}
    labels = {one.name: {*one.labels} for one in DECLARED}

    found = (await scrape(hub)).families

    processes = {name: kind for name, (kind, _) in PROCESS.items()}
    assert {name: family.type for name, family in found.items()} == kinds | processes
    for name, family in found.items():
        shown = {label for sample in family.samples for label in sample.labels}
        assert shown - {"le"} == labels.get(name, set())


async def test_everything_in_the_tally_is_exported_once(hub: RunningHub) -> None:
    tally = hub.app.hub.tally
    numbers, sums = set(), []
    for number, (owner, name, value) in enumerate(fields_of(tally), 1_000):
        if isinstance(value, Histogram):
            value.sum_s = float(number)
            sums.append(value.sum_s)
        elif isinstance(value, int):
            setattr(owner, name, number)
            numbers.add(number)

    page = Page(b"".join(hub.app._opened_metrics().pieces()).decode())

    counters = [one.name for one in DECLARATIONS if one.kind == "counter" and not one.labels]
    shown = [page.families[name].samples[0].value for name in counters]
    shown = [value for value in shown if value >= 1_000]
    assert len(shown) == len(set(shown))
    # Losses are shown together with those the log itself has met; mailboxes drop nothing else.
    assert numbers - set(shown) == {tally.loss_events, tally.mailboxes.dropped}
    assert page.value("loss_events") == tally.loss_events + tally.log.epoch_changes
    histograms = [page.families[one.name] for one in DECLARATIONS if one.kind == "histogram"]
    samples = [sample for family in histograms for sample in family.samples]
    assert sorted(one.value for one in samples if one.name.endswith("_sum")) == sorted(sums)


async def test_errors_and_states_are_labelled_from_closed_sets(hub: RunningHub) -> None:
    for code in (Code.RATE_LIMITED, Code.RATE_LIMITED, "invented by a stranger", "another one"):
        hub.app.hub.tally.count_error(code)

    page = await scrape(hub)

    counted = {Code.RATE_LIMITED: 2.0, "other": 2.0}
    assert page.by_label("errors_total", "code") == dict.fromkeys(Code, 0.0) | counted
    states = {"open": 1, "full": 0, "failed": 0, "damaged": 0}
    assert page.by_label("log_state", "state") == states
    lake = [one.name for one in DECLARATIONS if "_pipeline_" in one.name]
    assert {sample.value for name in lake for sample in page.families[name].samples} == {0.0}


async def test_the_hub_as_it_stands_is_shown(hub: RunningHub, alice: Client) -> None:
    before = await scrape(hub)
    await publish(alice, 10)
    await scrape(hub)
    page, app, log = await scrape(hub), hub.app, hub.app._engine.log

    def grown(name: str) -> float:
        return page.value(name) - before.value(name)

    for name, value in {
        "actors_total": 1,
        "capacity_utilization": app.hub.registry.utilization,
        "connections_active": 1,
        "message_queue_depth": 0,
        "dedup_ids": app.hub.dedup.count,
        "dedup_window_seconds": app.settings.dedup.window_s,
        "dedup_memory_bytes": app.hub.dedup.memory_bytes,
        "storage_errors": 0,
        "loss_events": 0,
        "log_head_offset": log.head,
        "log_durable_head_offset": log.durable_head,
        "log_durable_distance": 0,
        "log_waiting_entries": 0,
        "log_waiting_bytes": 0,
        "log_segments": 1,
        "log_size_bytes": log.segments[0].bytes,
        "cursor_age_seconds": 0,
        **dict.fromkeys(("mailboxes", "mailbox_waiting", "placements", "rooms", "inboxes"), 0),
    }.items():
        assert page.value(name) == value, name
    assert min(app.hub.registry.utilization, app.hub.dedup.count, log.head) > 0
    assert page.value("storage_usage_bytes") > 0
    assert grown("log_entries_total") == grown("log_head_offset") >= 10
    assert min(grown("log_batches_total"), page.value("log_fsync_seconds_count")) >= 10
    assert min(grown("log_bytes_total"), grown("log_size_bytes")) > 0


async def test_lag_is_shown_when_nobody_consumes_and_read_from_the_log_after_a_restart(
    hub: RunningHub, clock: FakeClock
) -> None:
    async with connect(hub) as alice:
        await leave_behind(alice)
        await publish(alice, 3)
        clock.advance(40.0)
        await publish(alice, 2)
        clock.advance(2.0)
        page = await scrape(hub)
    await hub.stop()
    clock.advance(3_600.0)
    await hub.start()
    restarted = await scrape(hub)
    clock.advance(60.0)
    later = await scrape(hub)

    of = {"topic": "orders", "subscription": "billing", "mode": "shared"}
    assert page.value("subscription_lag_messages", **of) == 5
    shown = ("lag_seconds", "consumers", "oldest_unacked_seconds")
    assert page.of_orders(*shown) == [42.0, 0, 0]
    assert restarted.of_orders("lag_messages", "lag_seconds") == [5, 3_642.0]
    assert later.of_orders("lag_seconds") == [3_702.0]


async def test_what_a_consumer_holds_is_shown_until_it_settles_it(
    hub: RunningHub, alice: Client, clock: FakeClock
) -> None:
    await publish(alice, 3)
    async with await alice.consume("orders", "billing", window=4) as consumer:
        messages = await take(consumer, 3)
        clock.advance(7.0)
        held = await scrape(hub)
        for message in messages:
            await message.ack(wait=True)
        settled = await scrape(hub)

    shown = ("window_utilization", "oldest_unacked_seconds", "consumers", "delivered_total")
    assert held.of_orders(*shown) == [0.75, 7.0, 1, 3]
    shown = ("window_utilization", "oldest_unacked_seconds", "settled_total", "lag_seconds")
    assert settled.of_orders(*shown) == [0, 0, 3, 0]
    assert settled.value("dispatcher_notifier_polls_total", topic="orders") > 0


async def test_failures_and_dead_letters_are_counted_by_subscription() -> None:
    async with run_hub() as hub, connect(hub) as alice:
        await alice.create_topic("orders", poison="dead_letter")
        await publish(alice, 2)
        retries: dict[str, Any] = {"backoff_s": 0.01, "backoff_cap_s": 0.01, "max_deliveries": 2}
        async with await alice.consume("orders", "billing", **retries) as consumer:
            for _ in range(2):
                for message in await take(consumer, 2):
                    await message.nack()
            page = await scrape_until(hub, lambda page: page.of_orders("settled_total") == [2])
            with pytest.raises(signalhub.StaleDelivery):
                await message.ack(wait=True)
            after = await scrape(hub)

    shown = ("nacks_total", "redelivered_total", "exhausted_total", "dead_lettered_total")
    assert page.of_orders(*shown) == [4, 2, 2, 2]
    assert after.of_orders("ignored_settlements_total") == [1]


@pytest.mark.parametrize(("mode", "blocked"), [("exclusive", [1, 0]), ("key-shared", [0, 1])])
async def test_a_poisoned_message_shows_its_subscription_or_its_key_as_blocked(
    hub: RunningHub, alice: Client, mode: Any, blocked: list[float]
) -> None:
    await publish(alice, 2, key="red")
    await publish(alice, 2, key="blue")
    poison = {"max_deliveries": 1, **NEVER_AGAIN}
    async with await alice.consume("orders", "billing", mode=mode, **poison) as consumer:
        (message,) = await take(consumer, 1)
        before = await scrape(hub)
        await message.nack(wait=True)
        page = await scrape(hub)

    assert before.of_orders("blocked", "blocked_keys") == [0, 0]
    assert page.of_orders("blocked", "blocked_keys") == blocked


async def test_mailboxes_are_counted_together_and_never_named() -> None:
    async with run_hub(mailbox={"backoff_ms": 60_000, "limit": 4}) as hub, connect(hub) as alice:
        async with connect(hub, BOB, durable=True, acknowledge=True) as bob:
            await alice.ask(BOB, "task", 0)
            await alice.ask(BOB, "task", 1)
            first, second = [await anext(bob.messages()) for _ in range(2)]
            await first.ack(wait=True)
            await second.nack(wait=True)
        for number in range(3):
            await alice.ask(BOB, "task", number)
        with pytest.raises(signalhub.Refused):
            await alice.ask(BOB, "task", "too many", timeout_s=0.1, attempts=1)
        full = await scrape(hub)
        await alice.register(BOB, durable=False)
        dropped = await scrape(hub)

    for name, before, after in (
        ("mailboxes", 1, 0),
        ("mailbox_waiting", 4, 0),
        ("asks_queued_total", 3, 3),
        ("mailbox_delivered_total", 2, 2),
        ("mailbox_settled_total", 1, 1),
        ("mailbox_nacks_total", 1, 1),
        ("mailbox_dropped_total", 0, 4),
    ):
        assert (full.value(name), dropped.value(name)) == (before, after), name
    assert full.value("mailbox_full_total") >= 1
    assert "demo" not in dropped.text


async def test_messages_removed_before_they_were_settled_are_a_loss_event(
    hub: RunningHub, alice: Client, clock: FakeClock
) -> None:
    await leave_behind(alice, retention_s=10)
    await publish(alice, 3)
    clock.advance(120.0)

    page = await scrape_until(hub, lambda page: page.value("loss_events") > 0)

    assert (page.value("loss_events"), page.value("messages_lost_total")) == (1, 3)
    assert page.of_orders("lost_total", "lag_messages") == [3, 0]


async def test_progress_that_the_log_does_not_take_shows_its_age(
    hub: RunningHub, alice: Client, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(alice, 1)
    async with await alice.consume("orders", "billing") as consumer:
        (message,) = await take(consumer, 1)
        clock.advance(5.0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", no_room)
            await message.ack()
            await scrape_until(hub, lambda page: page.value("log_refused_total") > 0)
            clock.advance(90.0)
            page = await scrape_until(hub, lambda page: page.value("cursor_age_seconds") >= 90)
        clock.advance(2.0)
        later = await scrape_until(hub, lambda page: page.value("cursor_age_seconds") == 0)

    # What is settled counts when it is on disk, once.
    assert page.of_orders("settled_total") + later.of_orders("settled_total") == [0, 1]


async def test_a_full_failed_or_damaged_log_is_told(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk has failed")

    seen = []
    async with connect(hub) as alice:
        for name, fault in (("pwrite", no_room), ("fdatasync", broken)):
            await publish(alice, 1)
            assert await health(hub) == (200, "ok", []), "there is room again"
            with monkeypatch.context() as patch:
                patch.setattr(os, name, fault)
                with pytest.raises(signalhub.SignalHubError):
                    await alice.publish("orders", "x", 2, durable=True, timeout_s=0.1, attempts=1)
            seen.append((await health(hub), await scrape(hub)))
    await hub.stop()
    (segment,) = await asyncio.to_thread(lambda: [*Path(hub.settings.data, "log").glob("*.log")])
    with open(segment, "r+b") as file:  # noqa: ASYNC230
        file.write(b"not a segment")
    await hub.start()
    seen.append((await health(hub), await scrape(hub)))

    for status, state, (told, page) in zip(
        (200, 503, 503), ("full", "failed", "damaged"), seen, strict=True
    ):
        assert told == (status, "degraded", [f"storage_{state}"])
        states = page.by_label("log_state", "state")
        assert [name for name, value in states.items() if value] == [state]
    assert seen[0][1].value("log_refused_total") >= 1


async def test_health_names_the_subscription_that_holds_up_retention(clock: FakeClock) -> None:
    """Nobody consumes it, and the log grows beyond what it may."""
    small = {"segment_bytes": 2**16, "retention_bytes": 2**17}
    async with run_hub(clock, message_rate=0, log=small) as hub, connect(hub) as me:
        await me.create_topic("orders")
        await (await me.consume("orders", "abandoned")).close()
        for _ in range(16):
            await me.publish("orders", "order", "x" * 2**15, durable=True)

        async with asyncio.timeout(PATIENCE_S):
            while (found := json.loads((await get(hub, "/health"))[1]))["status"] != "degraded":
                hub.app._retain(clock.now_ms())
                await asyncio.sleep(0.01)
        await me.delete_subscription("orders", "abandoned")
        async with asyncio.timeout(PATIENCE_S):
            while json.loads((await get(hub, "/health"))[1])["status"] == "degraded":
                hub.app._retain(clock.now_ms())
                await asyncio.sleep(0.01)

    assert found["degradations"] == ["retention_held_by_subscriptions"]
    held = found["details"]["retention"]
    assert (held["by"], held["count"]) == (["subscriptions"], 1)
    assert [(one["stream"], one["subscription"]) for one in held["oldest"]] == [
        ("orders", "abandoned")
    ]
