"""What has ended is forgotten, although the collector does not look into every object."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from signalhub.core.sessions.session import Session
from tests.support.memory.shell import MemoryShell, Peer
from tests.support.memory.topics import code_of


def delete_a_topic(shell: MemoryShell, peer: Peer) -> None:
    peer.ask("hub:topic_create", {"topic": "t"})
    assert peer.ask("hub:topic_delete", {"topic": "t"})["type"] == "hub:topic_deleted"


def fail_to_create_a_topic(shell: MemoryShell, peer: Peer) -> None:
    shell.engine.is_full = True
    assert code_of(peer.ask("hub:topic_create", {"topic": "t"})) == "storage_full"


@pytest.mark.parametrize("act", [delete_a_topic, fail_to_create_a_topic])
def test_no_circle_keeps_a_session_after_it_changed_topics(
    act: Callable[[MemoryShell, Peer], None],
) -> None:
    """The collector finds a hub that is gone, and everything of it."""
    address = f"@(forgotten/{act.__name__})"
    shell = MemoryShell()
    peer = shell.connect(address)
    act(shell, peer)
    assert address in addresses()

    del shell, peer

    assert address not in addresses()


def addresses() -> list[str]:
    """The addresses of all sessions that something refers to."""
    gc.collect()
    return [one.address for one in gc.get_objects() if type(one) is Session]
