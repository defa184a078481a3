"""What `/metrics` and `/health` say about the log, subscriptions and mailboxes of a real hub."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import signalhub
from signalhub import Client, Consumer, Message
from signalhub.client.client import Connecting
from signalhub.observe.exposition import PROCESS, Declaration
from signalhub.observe.subscriptions import SUBSCRIPTIONS
from signalhub.server.metrics import DECLARATIONS
from signalhub.testing import FakeClock, RunningHub, run_hub

ALICE = "@(demo/alice)"
BOB = "@(demo/bob)"
PATIENCE_S = 20.0
NEVER_AGAIN: dict[str, Any] = {"backoff_s": 60.0, "backoff_cap_s": 60.0}


def connect(hub: RunningHub, address: str = ALICE, **options: Any) -> Connecting:
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


class Page:
    """The metrics at one moment; names are given without their prefix."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    @property
    def names(self) -> set[str]:
        return {name for name, _, _ in self._samples}

    def value(self, name: str, **labels: str) -> float:
        """The one sample of that name with these labels among its own."""
        (found,) = self.values(name, **labels)
        return found

    def values(self, name: str, **labels: str) -> list[float]:
        return [
            value
            for full_name, own, value in self._samples
            if full_name == f"signal_hub_{name}" and labels.items() <= own.items()
        ]


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


async def publish(
    client: Client, count: int, topic: str = "orders", key: str | None = None
) -> None:
    for number in range(count):
        await client.publish(topic, "order", number, durable=True, key=key)


async def leave_behind(client: Client, name: str, topic: str = "orders") -> None:
    """A subscription that nobody consumes from."""
    async with await client.consume(topic, name, mode="shared"):
        pass


async def take(consumer: Consumer, count: int) -> list[Message]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(consumer) for _ in range(count)]


def no_room(descriptor: int, data: bytes, position: int) -> int:
    raise OSError(errno.ENOSPC, "no space left")


def spoil(log: Path) -> None:
    """Write over the beginning of its only segment."""
    (segment,) = log.glob("*.log")
    with segment.open("r+b") as file:
        file.write(b"not a segment")


async def test_everything_declared_is_on_the_page_of_a_fresh_hub() -> None:
    async with run_hub() as hub:
        page = await scrape(hub)

    suffix = {"histogram": "_count"}
    declarations: list[Declaration[Any]] = [*DECLARATIONS, *SUBSCRIPTIONS]
    declared = {one.name + suffix.get(one.kind, "") for one in declarations}
    assert declared <= page.names
    assert PROCESS.keys() <= page.names


async def test_lag_is_shown_when_nobody_consumes() -> None:
    clock = FakeClock()
    async with run_hub(clock) as hub, connect(hub) as alice:
        await alice.create_topic("orders")
        await leave_behind(alice, "billing")
        await publish(alice, 3)
        clock.advance(40.0)
        await publish(alice, 2)
        clock.advance(2.0)

        page = await scrape(hub)

    of = {"topic": "orders", "subscription": "billing", "mode": "shared"}
    assert page.value("subscription_lag_messages", **of) == 5
    assert page.value("subscription_lag_seconds", **of) == 42.0
    assert page.value("subscription_consumers", **of) == 0
    assert page.value("subscription_oldest_unacked_seconds", **of) == 0


async def test_the_age_of_what_is_not_in_memory_is_read_from_the_log() -> None:
    clock = FakeClock()
    async with run_hub(clock) as hub:
        async with connect(hub) as alice:
            await alice.create_topic("orders")
            await leave_behind(alice, "billing")
            await publish(alice, 3)
        await hub.stop()
        clock.advance(3_600.0)
        await hub.start()

        page = await scrape(hub)
        clock.advance(60.0)
        later = await scrape(hub)

    assert page.value("subscription_lag_messages", topic="orders") == 3
    assert page.value("subscription_lag_seconds", topic="orders") == 3_600.0
    assert later.value("subscription_lag_seconds", topic="orders") == 3_660.0


async def test_what_a_consumer_holds_is_shown_until_it_settles_it() -> None:
    clock = FakeClock()
    async with run_hub(clock) as hub, connect(hub) as alice:
        await publish(alice, 3)
        async with await alice.consume("orders", "billing", window=4) as consumer:
            messages = await take(consumer, 3)
            clock.advance(7.0)
            held = await scrape(hub)
            for message in messages:
                await message.ack(wait=True)
            settled = await scrape(hub)

    assert held.value("subscription_window_utilization", topic="orders") == 0.75
    assert held.value("subscription_oldest_unacked_seconds", topic="orders") == 7.0
    assert held.value("subscription_consumers", topic="orders") == 1
    assert held.value("subscription_delivered_total", topic="orders") == 3
    assert settled.value("subscription_window_utilization", topic="orders") == 0
    assert settled.value("subscription_oldest_unacked_seconds", topic="orders") == 0
    assert settled.value("subscription_settled_total", topic="orders") == 3
    assert settled.value("subscription_lag_seconds", topic="orders") == 0
    assert settled.value("dispatcher_notifier_polls_total", topic="orders") > 0


async def test_failures_and_dead_letters_are_counted_by_subscription() -> None:
    async with run_hub() as hub, connect(hub) as alice:
        await alice.create_topic("orders", poison="dead_letter")
        await publish(alice, 2)
        async with await alice.consume(
            "orders", "billing", backoff_s=0.01, backoff_cap_s=0.01, max_deliveries=2
        ) as consumer:
            for _ in range(2):
                for message in await take(consumer, 2):
                    await message.nack()
            page = await scrape_until(
                hub,
                lambda page: page.value("subscription_settled_total", topic="orders") == 2,
            )
            ignored = await message.ack(wait=True)
            assert ignored is not None
            assert ignored.accepted == 0
            after = await scrape(hub)

    of = {"topic": "orders", "subscription": "billing", "mode": "exclusive"}
    assert page.value("subscription_nacks_total", **of) == 4
    assert page.value("subscription_redelivered_total", **of) == 2
    assert page.value("subscription_exhausted_total", **of) == 2
    assert page.value("subscription_dead_lettered_total", **of) == 2
    assert after.value("subscription_ignored_settlements_total", **of) == 1


async def test_a_poisoned_message_shows_as_blocked() -> None:
    async with run_hub() as hub, connect(hub) as alice:
        await publish(alice, 2)
        async with await alice.consume(
            "orders", "billing", max_deliveries=1, window=1, **NEVER_AGAIN
        ) as consumer:
            (message,) = await take(consumer, 1)
            before = await scrape(hub)
            await message.nack(wait=True)
            page = await scrape(hub)

    assert before.value("subscription_blocked", topic="orders") == 0
    assert page.value("subscription_blocked", topic="orders") == 1
    assert page.value("subscription_blocked_keys", topic="orders") == 0


async def test_a_poisoned_key_shows_as_blocked_and_the_subscription_does_not() -> None:
    async with run_hub() as hub, connect(hub) as alice:
        await publish(alice, 2, key="red")
        await publish(alice, 2, key="blue")
        async with await alice.consume(
            "orders", "billing", mode="key-shared", max_deliveries=1, **NEVER_AGAIN
        ) as consumer:
            for message in await take(consumer, 2):
                if message.key == "red":
                    await message.nack(wait=True)
            page = await scrape(hub)

    assert page.value("subscription_blocked_keys", topic="orders", mode="key-shared") == 1
    assert page.value("subscription_blocked", topic="orders") == 0


async def test_beyond_the_limit_subscriptions_share_their_series() -> None:
    async with run_hub(metrics_subscriptions_max=2) as hub, connect(hub) as alice:
        await alice.create_topic("orders")
        for number in range(5):
            await leave_behind(alice, f"reader-{number}")
        await publish(alice, 2)

        page = await scrape(hub)

    assert len(page.values("subscription_lag_messages")) == 3
    assert page.values("subscription_lag_messages", topic="orders") == [2, 2]
    assert page.value("subscription_lag_messages", topic="other") == 6


async def test_mailboxes_are_counted_together_and_never_named() -> None:
    retrying = {"backoff_ms": 60_000, "limit": 4}
    async with run_hub(mailbox=retrying) as hub, connect(hub) as alice:
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

    assert full.value("mailboxes") == 1
    assert full.value("mailbox_waiting") == 4
    assert full.value("mailbox_full_total") >= 1
    assert full.value("asks_queued_total") == 3
    assert full.value("mailbox_delivered_total") == 2
    assert full.value("mailbox_settled_total") == 1
    assert full.value("mailbox_nacks_total") == 1
    assert dropped.value("mailboxes") == 0
    assert dropped.value("mailbox_waiting") == 0
    assert dropped.value("mailbox_dropped_total") == 4
    assert dropped.value("mailbox_delivered_total") == 2
    assert "demo" not in dropped.text


async def test_the_log_shows_what_it_wrote() -> None:
    async with run_hub() as hub, connect(hub) as alice:
        before = await scrape(hub)
        await publish(alice, 10)
        page = await scrape(hub)

    grown = page.value("log_entries_total") - before.value("log_entries_total")
    assert grown == page.value("log_head_offset") - before.value("log_head_offset")
    assert grown >= 10
    assert page.value("log_durable_head_offset") == page.value("log_head_offset")
    assert page.value("log_durable_distance") == 0
    assert page.value("log_batches_total") - before.value("log_batches_total") >= 10
    assert page.value("log_fsync_seconds_count") >= 10
    assert page.value("log_bytes_total") > before.value("log_bytes_total")
    assert page.value("log_size_bytes") > before.value("log_size_bytes")
    assert page.value("log_segments") == 1
    assert page.value("log_state", state="open") == 1
    assert page.value("loss_events") == 0


async def test_messages_removed_before_they_were_settled_are_a_loss_event() -> None:
    clock = FakeClock()
    async with run_hub(clock) as hub, connect(hub) as alice:
        await alice.create_topic("orders", retention_s=10)
        await leave_behind(alice, "billing")
        await publish(alice, 3)
        clock.advance(120.0)

        page = await scrape_until(hub, lambda page: page.value("loss_events") > 0)

    assert page.value("loss_events") == 1
    assert page.value("messages_lost_total") == 3
    assert page.value("subscription_lost_total", topic="orders") == 3
    assert page.value("subscription_lag_messages", topic="orders") == 0


async def test_a_failed_disk_is_503_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk has failed")

    async with run_hub() as hub, connect(hub) as alice:
        await publish(alice, 1)
        assert await health(hub) == (200, "ok", [])

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", broken)
            with pytest.raises(signalhub.SignalHubError):
                await alice.publish("orders", "order", 2, durable=True, attempts=1)

        assert await health(hub) == (503, "degraded", ["storage_failed"])
        page = await scrape(hub)
    caplog.clear()

    assert page.value("log_state", state="failed") == 1
    assert page.value("log_state", state="open") == 0
    assert page.value("log_refused_total") == 1


async def test_a_full_disk_is_degraded_until_there_is_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_hub() as hub, connect(hub) as alice:
        await publish(alice, 1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", no_room)
            with pytest.raises(signalhub.Refused) as caught:
                await alice.publish("orders", "order", 2, durable=True, timeout_s=0.1, attempts=1)
        assert caught.value.code == "storage_full"

        assert await health(hub) == (200, "degraded", ["storage_full"])
        page = await scrape(hub)
        await publish(alice, 1)

        assert await health(hub) == (200, "ok", [])
    caplog.clear()

    assert page.value("log_state", state="full") == 1
    assert page.value("log_refused_total") >= 1


async def test_progress_that_the_log_does_not_take_shows_its_age(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with run_hub(clock) as hub, connect(hub) as alice:
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
    caplog.clear()

    # What is settled counts when it is on disk, once.
    assert page.value("subscription_settled_total", topic="orders") == 0
    assert later.value("subscription_settled_total", topic="orders") == 1


async def test_a_damaged_log_is_503_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with run_hub() as hub:
        async with connect(hub) as alice:
            await publish(alice, 1)
        await hub.stop()
        spoil(Path(hub.settings.data, "log"))
        await hub.start()

        assert await health(hub) == (503, "degraded", ["storage_damaged"])
        page = await scrape(hub)
    caplog.clear()

    assert page.value("log_state", state="damaged") == 1
