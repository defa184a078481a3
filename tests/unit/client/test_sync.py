"""The synchronous client offers everything that the asynchronous one does, under the same names."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest

import signalhub
from signalhub.client import Consumer, InboxAccess, InboxMessages, Replay, Subscription
from signalhub.client.sync import background
from signalhub.client.sync.background import acquire, release
from signalhub.sync import (
    SyncClient,
    SyncConsumer,
    SyncHub,
    SyncInboxAccess,
    SyncInboxMessages,
    SyncMessage,
    SyncReplay,
    SyncRoom,
    SyncSubscription,
)

PAIRS: list[tuple[type[Any], type[Any]]] = [
    (signalhub.Client, SyncClient),
    (signalhub.Hub, SyncHub),
    (signalhub.Room, SyncRoom),
    (signalhub.Message, SyncMessage),
    (Consumer, SyncConsumer),
    (Subscription, SyncSubscription),
    (Replay, SyncReplay),
    (InboxAccess, SyncInboxAccess),
    (InboxMessages, SyncInboxMessages),
]
# For the client itself, which schedules.
INTERNAL = {"serve", "fetch_once"}


def names(kind: type[Any]) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - INTERNAL


def parameters(function: object) -> list[tuple[str, object, object]]:
    """The names, kinds and defaults of what a function takes."""
    assert callable(function)
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default) for one in found]


@pytest.mark.parametrize(("kind", "sync"), PAIRS, ids=lambda kind: kind.__name__)
def test_every_name_is_there_with_the_same_arguments(kind: type[Any], sync: type[Any]) -> None:
    assert names(kind) - names(sync) == set()
    for name in names(kind):
        member = inspect.getattr_static(kind, name)
        if inspect.isfunction(member):
            assert parameters(getattr(sync, name)) == parameters(member), name
            assert not inspect.iscoroutinefunction(getattr(sync, name))


def test_connect_and_hub_take_the_same_arguments() -> None:
    assert parameters(signalhub.sync.connect) == parameters(signalhub.connect)
    assert parameters(signalhub.sync.hub) == parameters(signalhub.hub)


def test_there_is_one_thread_while_anybody_uses_it() -> None:
    first, second = acquire(), acquire()
    assert first is second
    release(first)
    assert "signalhub.sync" in {thread.name for thread in threading.enumerate()}

    release(second)

    assert "signalhub.sync" not in {thread.name for thread in threading.enumerate()}
    assert background._shared is None


def test_waiting_for_itself_is_an_error_and_not_a_deadlock() -> None:
    loop = acquire()

    async def work() -> None:
        loop.call(lambda: None)

    try:
        with pytest.raises(RuntimeError, match="wait for itself"):
            loop.run(work())
    finally:
        release(loop)
