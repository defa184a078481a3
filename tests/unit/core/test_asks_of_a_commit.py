"""Asks that one commit has written are delivered and answered together."""

from __future__ import annotations

import pytest

from signalhub.core.sessions.registry import Registration, Registry
from tests.support.memory.shell import MemoryShell, Peer
from tests.support.memory.write_path import Stage


def two_asks() -> tuple[MemoryShell, Peer, Peer, Peer]:
    """Alice has asked Bob and then Carol, and nothing of it is on disk."""
    shell = MemoryShell()
    alice, bob, carol = (shell.join(f"@(local/{name})") for name in ("alice", "bob", "carol"))
    shell.engine.is_prompt = False
    assert alice.send("@(local/bob)", pattern="ask", id="a1") == []
    assert alice.send("@(local/carol)", pattern="ask", id="a2") == []
    return shell, alice, bob, carol


def commit(shell: MemoryShell) -> None:
    shell.engine.is_prompt = True
    shell.settle()


def test_each_is_delivered_to_its_target_and_answered() -> None:
    shell, alice, bob, carol = two_asks()

    commit(shell)

    assert [one["metadata"]["originalMessageId"] for one in bob.take()] == ["a1"]
    assert [one["metadata"]["originalMessageId"] for one in carol.take()] == ["a2"]
    assert [one["payload"]["messageId"] for one in alice.take()] == ["a1", "a2"]
    assert shell.hub.pending == {}


def test_what_waits_behind_one_comes_before_the_next() -> None:
    shell, alice, bob, _ = two_asks()
    alice.send("@(local/bob)", data=3, id="t3")
    alice.send("@(local/bob)", pattern="ask", id="a4")

    commit(shell)

    copies = [one["metadata"]["originalMessageId"] for one in bob.take()]
    assert copies == ["a1", "t3", "a4"]


def test_one_that_fails_does_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    with Stage() as stage:
        alice, _, carol = (stage.join(f"@(local/{name})") for name in ("alice", "bob", "carol"))
        alice.ask("@(local/bob)", 1)
        second = alice.ask("@(local/carol)", 2)
        find = Registry.find

        def fails(registry: Registry, address: str, now_ms: int) -> Registration | None:
            if address == "@(local/bob)":
                raise RuntimeError("of a test")
            return find(registry, address, now_ms)

        monkeypatch.setattr(Registry, "find", fails)

        stage.loop.run_dry()

        assert carol.heard() == [2]
        (answer,) = alice.replies(second)
        assert answer["payload"]["status"] == "delivered"
