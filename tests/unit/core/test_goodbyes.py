"""The planned stop: everybody is told, and everybody is expected back."""

from __future__ import annotations

from tests.memory_shell import MemoryShell, envelope


def test_draining_tells_everybody_why_and_closes_all_sockets() -> None:
    shell = MemoryShell()
    peers = [shell.join("@(local/a)"), shell.connect("@(local/b)"), shell.open()]
    for peer in peers:
        peer.take()

    shell.perform(shell.hub.drain(shell.now))

    for peer in peers:
        (notice,) = peer.take()
        assert notice["type"] == "hub:disconnect"
        assert notice["payload"]["reason"] == "server_shutdown"
        assert notice["correlationId"] is None
        assert peer.closed == (1001, "server_shutdown")
    assert not shell.hub.sessions
    assert len(shell.hub.registry) == 0


def test_the_rows_of_a_drained_hub_stay_for_the_next_one() -> None:
    shell = MemoryShell()
    shell.join("@(local/a)")
    shell.perform(shell.hub.drain(shell.now))

    successor = shell.restarted()
    (reply,) = successor.connect("@(local/b)").send("@(local/a)", pattern="ask")

    assert shell.rows.keys() == {"@(local/a)"}
    assert reply["payload"]["code"] == "actor_reconnecting"


def test_sockets_that_close_after_the_goodbye_change_nothing() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    shell.perform(shell.hub.drain(shell.now))

    peer.drop()
    peer.write(envelope("hub:unregister", {"actorAddress": "@(local/a)"}))

    assert shell.rows.keys() == {"@(local/a)"}
    assert shell.tally.connections_closed == 1


def test_asks_on_their_way_to_a_drained_session_are_settled() -> None:
    shell = MemoryShell()
    target = shell.join("@(local/a)")
    asker = shell.connect("@(local/b)")
    target.stall()
    asker.send("@(local/a)", pattern="ask")

    shell.perform(shell.hub.drain(shell.now))

    assert shell.hub.asks == {}
