"""The planned stop: everybody is told, and everybody is expected back."""

from __future__ import annotations

from tests.support.memory.shell import MemoryShell, envelope


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


def test_a_planned_stop_writes_the_renewals_that_were_not_written_yet() -> None:
    shell = MemoryShell()
    idle, active = shell.join("@(local/idle)"), shell.join("@(local/active)")
    shell.clock.advance(20)
    active.ask("hub:renew")
    before = len(shell.written)

    shell.perform(shell.hub.drain(shell.now))

    assert idle.closed == active.closed == (1001, "server_shutdown")
    assert shell.written[before:] == [("persist", "@(local/active)")]
    assert shell.rows["@(local/active)"].version == 2
    assert shell.rows["@(local/active)"].expires_at_ms == shell.now + 300_000


def test_a_planned_stop_writes_nothing_twice() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    shell.clock.advance(150)
    peer.ask("hub:renew")
    shell.pass_time(62)
    before = len(shell.written)

    shell.perform(shell.hub.drain(shell.now))

    assert shell.written == [("persist", "@(local/a)")] * 2
    assert len(shell.written) == before


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

    assert shell.hub.pending == {}
