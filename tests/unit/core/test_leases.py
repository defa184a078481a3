"""Leases in the durable tier: when a registration is written, and what a restart makes of it."""

from __future__ import annotations

import pytest

from signalhub.settings.model import Settings
from tests.support.memory.shell import MemoryShell, envelope

A = "@(local/a)"


def test_a_registration_is_written_when_it_is_made_and_forgotten_when_it_ends() -> None:
    shell = MemoryShell()

    peer = shell.join(A)
    row = shell.rows[A]
    shell.pass_time(700)
    silent = list(shell.written)
    peer.ask("hub:unregister", {"actorAddress": A})

    assert (row.version, row.expires_at_ms) == (1, shell.now - 400_000)
    assert silent == [("persist", A)]
    assert shell.rows == {}


def test_a_renewed_registration_is_written_at_most_once_per_third_of_its_lease() -> None:
    shell = MemoryShell()
    peer = shell.join(A)
    written_at: list[int] = []
    began = shell.now

    for second in range(1, 1_201):
        shell.clock.advance(1)
        peer.tell("hub:heartbeat")
        before = len(shell.written)
        shell.tick()
        if len(shell.written) > before:
            written_at.append(second)

    gaps = [later - sooner for sooner, later in zip([0, *written_at], written_at, strict=False)]
    assert all(100 <= gap <= 161 for gap in gaps), gaps
    assert shell.rows[A].expires_at_ms >= began + 1_200_000 - 161_000 + 300_000


@pytest.mark.parametrize("count", [59, 61, 119, 121, 250])
def test_every_renewed_registration_is_written_however_many_there_are(count: int) -> None:
    shell = MemoryShell(Settings(message_rate=0))
    host = shell.connect("@(local/host)")
    for number in range(count):
        host.register(f"@(local/{number})")
    first = dict(shell.rows)

    for _ in range(4):
        shell.clock.advance(50)
        host.tell("hub:heartbeat", sender="@(local/host)")
    shell.pass_time(122)

    stale = [row.address for row in shell.rows.values() if row == first[row.address]]
    assert stale == []


@pytest.mark.parametrize("is_registered_anew", [True, False])
def test_the_sweep_does_not_write_what_is_no_longer_registered(is_registered_anew: bool) -> None:
    shell = MemoryShell()
    host = shell.connect("@(local/host)")
    shell.tick()
    for number in range(90):
        host.register(f"@(local/{number})")
    address = "@(local/40)"
    shell.clock.advance(150)
    host.tell("hub:heartbeat", sender="@(local/host)")
    shell.tick()

    if is_registered_anew:
        host.register(address)
    else:
        host.tell("hub:unregister", {"actorAddress": address})
    shell.pass_time(60)

    assert (address in shell.rows) is is_registered_anew
    assert not is_registered_anew or shell.rows[address].version == 2


def test_restored_registrations_whose_owner_stays_away_are_forgotten() -> None:
    shell = MemoryShell()
    for address in (A, "@(local/b)"):
        shell.join(address)
    successor = shell.restarted()
    successor.join("@(local/b)", ttlSeconds=3_600)

    successor.pass_time(361)

    assert successor.rows.keys() == {"@(local/b)"}
    assert successor.written == [("persist", "@(local/b)"), ("forget", A)]


def test_a_planned_stop_writes_the_renewals_that_were_not_written_yet() -> None:
    shell = MemoryShell()
    idle, active = shell.join("@(local/idle)"), shell.join("@(local/active)")
    silent = shell.open()
    shell.clock.advance(20)
    active.ask("hub:renew")
    before = len(shell.written)

    shell.perform(shell.hub.drain(shell.now))

    for peer in (idle, active, silent):
        assert peer.take()[-1]["payload"]["reason"] == "server_shutdown"
        assert peer.closed == (1001, "server_shutdown")
    assert not shell.hub.sessions
    assert shell.written[before:] == [("persist", "@(local/active)")]
    assert shell.rows["@(local/active)"].version == 2
    assert shell.rows["@(local/active)"].expires_at_ms == shell.now + 300_000


def test_a_planned_stop_writes_nothing_twice_and_the_rows_stay_whatever_sockets_say_later() -> None:
    shell = MemoryShell()
    peer = shell.join(A)
    shell.clock.advance(150)
    peer.ask("hub:renew")
    shell.pass_time(62)

    shell.perform(shell.hub.drain(shell.now))
    peer.drop()
    peer.write(envelope("hub:unregister", {"actorAddress": A}))

    assert shell.written == [("persist", A)] * 2
    assert shell.tally.connections_closed == 1
    (reply,) = shell.restarted().connect("@(local/b)").send(A, pattern="ask")
    assert reply["payload"]["code"] == "actor_reconnecting"
