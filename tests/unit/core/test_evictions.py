"""What an eviction leaves behind."""

from __future__ import annotations

from tests.support.memory.shell import MemoryShell

A, B = "@(local/a)", "@(local/b)"


def test_everybody_who_goes_by_the_address_is_evicted_registered_or_not() -> None:
    shell = MemoryShell()
    impostors = [shell.connect(A) for _ in range(3)]
    bystander = shell.join(B)
    owner = shell.connect("@(local/c)")

    owner.register(A)

    assert [one.closed for one in impostors] == [(1000, "duplicate_connection")] * 3
    # Connecting under a taken name evicts nobody.
    shell.connect(A)
    assert (bystander.closed, owner.closed, bystander.take()) == (None, None, [])


def test_an_evicted_session_loses_all_its_addresses_and_the_new_row_stays() -> None:
    shell = MemoryShell()
    old = shell.connect("@(local/x)")
    old.register(B)
    old.register(A)

    shell.join(A)

    assert shell.hub.registry.get(B) is None
    assert {row.address: row.version for row in shell.rows.values()} == {A: 2}


def test_closing_the_former_owner_leaves_the_moved_address_alone() -> None:
    shell = MemoryShell()
    old = shell.join(A)
    old.register(B)
    new = shell.join(A)

    old.drop()

    assert shell.hub.registry.find(A, shell.now) is not None
    assert new.closed is None
    assert shell.rows.keys() == {A}


def test_a_moved_address_is_heard_by_its_new_owner_only() -> None:
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


def test_rivals_that_keep_coming_back_evict_each_other_without_leaving_anything_behind() -> None:
    shell = MemoryShell()

    for _ in range(20):
        shell.join(A)

    assert len(shell.hub.sessions) == len(shell.hub.registry) == 1
    assert shell.rows[A].version == 20
    assert shell.tally.connections_opened - shell.tally.connections_closed == 1
