"""Ruling 21: a disk that fails. Nothing is acknowledged any more until a restart has looked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.support.socket.mailboxes import (
    ask,
    data_of,
    held_disk,
    join_durable,
    keep_away,
    take_until_asked,
)
from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, addresses, code_of, run_stage

A = "@(local/a)"


@pytest.fixture
async def broken(caplog: pytest.LogCaptureFixture) -> AsyncIterator[InProcess]:
    """A hub whose disk is going to fail; it may say so in its log."""
    async with run_stage() as stage:
        yield stage
    caplog.get_records("call").clear()


async def fail(stage: InProcess) -> tuple[Peer, str]:
    """One message is stored, and the disk fails under the next; its sender and its id."""
    sender = await stage.connect("@(local/sender)")
    await keep_away(stage, A)
    await ask(sender, A, "stored")
    with held_disk() as disk:
        disk.hold()
        asked = sender.tell(A, "note", "unknown", pattern="ask")
        await disk.wait()
        disk.break_down()
        disk.release()
        reply = await sender.reply_to(asked)
    assert code_of(reply) == "storage_failed"
    assert reply["payload"]["retryable"] is False
    return sender, asked


async def test_r21_ask_in_flight_is_told_that_the_storage_failed(broken: InProcess) -> None:
    await fail(broken)


async def test_r21_nothing_is_acknowledged_though_the_disk_would_work_again(
    broken: InProcess,
) -> None:
    sender, _ = await fail(broken)

    for _ in range(3):
        reply = await sender.ask_actor(A, "note", "later")
        assert code_of(reply) == "storage_failed"


async def test_r21_hub_stays_up_and_says_that_it_is_unwell(broken: InProcess) -> None:
    target = await broken.join("@(local/plain)")
    sender, _ = await fail(broken)

    response = await broken.get("/health")

    assert response.status == 503
    assert json.loads(response.body)["service"] == "signal-hub"
    sender.tell("@(local/plain)", "note", "still here")
    assert (await target.receive("note"))["payload"] == "still here"
    assert await addresses(sender) == ["@(local/plain)"]


async def test_r21_restart_checks_the_log_and_goes_on(broken: InProcess) -> None:
    _, asked = await fail(broken)
    await broken.hub.stop()
    await broken.hub.start()
    sender = await broken.connect("@(local/sender)")

    again = await ask(sender, A, "unknown", id=asked)

    assert again["seq"] == 2
    target = await join_durable(broken, A)
    heard = await take_until_asked(target, sender)
    assert data_of(heard) == ["stored", "unknown"]
