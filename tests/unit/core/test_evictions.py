"""What an eviction leaves behind."""

from __future__ import annotations

from tests.support.memory.shell import MemoryShell

A, B = "@(local/a)", "@(local/b)"


def test_an_evicted_session_loses_all_its_addresses_and_the_new_row_stays() -> None:
    shell = MemoryShell()
    old = shell.connect("@(local/x)")
    old.register(B)
    old.register(A)

    shell.join(A)

    assert shell.hub.registry.get(B) is None
    assert {row.address: row.version for row in shell.rows.values()} == {A: 2}


def test_a_moved_address_belongs_to_its_new_owner_only() -> None:
    shell = MemoryShell()
    old, publisher = shell.join(A), shell.connect()
    old.ask("hub:subscribe", {"topic": "prices"})
    old.register(B)
    new = shell.join(A)
    old.take()

    publisher.ask("hub:publish", {"topic": "prices", "type": "t"})
    assert old.heard() == new.heard() == []
    new.ask("hub:subscribe", {"topic": "prices"})
    publisher.ask("hub:publish", {"topic": "prices", "type": "t"})

    assert (len(old.heard()), len(new.heard())) == (0, 1)
    old.drop()
    assert new.closed is None
    assert shell.hub.registry.find(A, shell.now) is not None
    assert shell.rows.keys() == {A}


def test_rivals_that_keep_coming_back_evict_each_other_without_leaving_anything_behind() -> None:
    shell = MemoryShell()

    for _ in range(20):
        shell.join(A)

    assert len(shell.hub.sessions) == len(shell.hub.registry) == 1
    assert shell.rows[A].version == 20
    assert shell.tally.connections_opened - shell.tally.connections_closed == 1
