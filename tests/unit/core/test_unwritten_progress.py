"""Progress counts as written when the log has it, not when it is on its way there."""

from __future__ import annotations

from signalhub.core import refusals
from signalhub.core.subscriptions.progress import has_unwritten, is_progress_unwritten
from signalhub.core.subscriptions.subscription import Subscription
from tests.support.memory.shell import MemoryShell
from tests.support.memory.topics import (
    NAMED,
    commit_all,
    create,
    publish,
    subscribe,
    subscription_of,
)


def settled(shell: MemoryShell) -> Subscription:
    """A subscription whose only message was just settled; the disk waits to be told."""
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer)
    subscribe(reader)
    publish(writer)
    shell.settle()
    shell.advance(60_000)
    found = subscription_of(shell)
    assert not is_progress_unwritten(found)
    shell.engine.is_prompt = False
    reader.tell("hub:ack", NAMED | {"seq": 1})
    return found


def test_a_settlement_or_cursor_on_its_way_is_not_written() -> None:
    shell = MemoryShell()
    found = settled(shell)

    shell.settle()
    assert has_unwritten(found)
    assert is_progress_unwritten(found)
    while has_unwritten(found):
        shell.settle()
        assert shell.engine.commit(1)
    shell.advance(60_000)
    assert not found.is_cursor_dirty
    assert is_progress_unwritten(found)
    commit_all(shell)

    assert not is_progress_unwritten(found)


def test_what_the_log_refuses_is_not_written() -> None:
    shell = MemoryShell()
    found = settled(shell)
    shell.settle()

    shell.engine.refuse(refusals.storage_full())
    assert is_progress_unwritten(found)
    shell.advance(60_000)
    commit_all(shell)

    assert not is_progress_unwritten(found)
