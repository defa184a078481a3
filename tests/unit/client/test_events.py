"""What a listener is told about a connection, and what the log says about it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import pytest

from signalhub.client.protocol.events import (
    ClientEvent,
    Connected,
    ConnectionLost,
    Disconnected,
    MessageRefused,
    ReconnectFailed,
    Reports,
)
from tests.support.memory.client import BOB, caught_up, conversation, reconnected


async def test_a_listener_is_told_of_losses_failed_attempts_and_returns_in_order() -> None:
    events: list[ClientEvent] = []
    async with conversation(listener=events.append) as (hub, peer, client):
        hub.refusal = (503, {})
        peer.abort()
        await hub.refused.wait()
        hub.refusal = None
        await caught_up(await reconnected(hub), client)

    kinds = [type(event) for event in events]
    assert kinds[:2] == [Connected, ConnectionLost]
    assert set(kinds[2:-2]) == {ReconnectFailed}
    assert kinds[-2:] == [Connected, Disconnected]
    assert all(event.url == hub.url for event in events if isinstance(event, Connected))


async def test_a_listener_is_told_of_a_tell_that_the_hub_refused() -> None:
    events: list[ClientEvent] = []
    async with conversation(listener=events.append) as (_, peer, client):
        await client.tell(BOB, "note", "hello")
        peer.refuse(await peer.receive("hub:send"), "unauthorized")
        await caught_up(peer, client)
        refused = [event for event in events if isinstance(event, MessageRefused)]

    assert [event.code for event in refused] == ["unauthorized"]


async def test_a_listener_that_fails_disturbs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: ClientEvent) -> None:
        raise RuntimeError("a listener's own fault")

    async with conversation(listener=fail) as (_, peer, client):
        await caught_up(peer, client)
        assert client.is_connected

    assert "A listener failed" in caplog.text


def test_a_failure_that_repeats_the_one_before_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "signalhub.client")
    told: list[ClientEvent] = []
    report = Reports(told.append)
    refused, slow = ReconnectFailed("ws://h/ws", "refused"), ReconnectFailed("ws://h/ws", "slow")
    for event in (refused, refused, slow, slow, Connected("ws://h/ws"), slow):
        report(event)

    levels = [logging.getLevelName(record.levelno) for record in caplog.records]
    assert levels == ["INFO", "DEBUG", "INFO", "DEBUG", "INFO", "INFO"]
    assert len(told) == 6


@pytest.mark.parametrize("kind", ClientEvent.__subclasses__(), ids=lambda kind: kind.__name__)
def test_every_event_can_be_logged_with_its_members(
    kind: Callable[..., ClientEvent], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "signalhub.client")
    fields = msgspec.structs.fields(kind)  # type: ignore[arg-type]
    event = kind(*(field.type() for field in fields))

    Reports()(event)

    (record,) = caplog.records
    assert record.getMessage() == event.SENTENCE != ""
    assert {field.name for field in fields} <= vars(record).keys()
