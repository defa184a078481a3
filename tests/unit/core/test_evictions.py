"""Two sessions, one address: the last to register it wins."""

from __future__ import annotations

import pytest

from tests.support.memory.shell import MemoryShell


def test_the_older_session_is_told_why_and_closed() -> None:
    shell = MemoryShell()
    old = shell.join("@(local/a)", capabilities=["old"])
    new = shell.connect("@(local/temporary)")

    registered = new.register("@(local/a)", capabilities=["new"])

    (notice,) = old.take()
    assert notice["type"] == "hub:disconnect"
    assert notice["to"] == "@(local/a)"
    assert notice["correlationId"] is None
    assert notice["payload"]["reason"] == "duplicate_connection"
    assert notice["payload"]["message"]
    assert old.closed == (1000, "duplicate_connection")
    assert registered["payload"]["version"] == 2
    found = new.ask("hub:discover", {"pattern": "*"})["payload"]["actors"]
    assert found == [{"address": "@(local/a)", "capabilities": ["new"]}]


def test_everybody_who_goes_by_the_address_is_evicted_registered_or_not() -> None:
    shell = MemoryShell()
    impostors = [shell.connect("@(local/a)") for _ in range(3)]
    bystander = shell.join("@(local/b)")
    owner = shell.connect("@(local/c)")

    owner.register("@(local/a)")

    assert [one.closed for one in impostors] == [(1000, "duplicate_connection")] * 3
    assert bystander.closed is None
    assert bystander.take() == []


def test_connecting_under_a_taken_name_evicts_nobody() -> None:
    shell = MemoryShell()
    owner = shell.join("@(local/a)")

    shell.connect("@(local/a)")

    assert owner.closed is None
    assert owner.take() == []


def test_registering_again_on_the_same_session_evicts_nobody_and_keeps_subscriptions() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    first = peer.register()["payload"]
    peer.ask("hub:subscribe", {"topic": "prices"})

    second = peer.register(capabilities=["x"])["payload"]
    published = peer.ask("hub:publish", {"topic": "prices", "type": "t", "data": 1})

    assert peer.closed is None
    assert second["version"] == first["version"] + 1
    assert second["renewalToken"] != first["renewalToken"]
    assert published["payload"]["subscriberCount"] == 1


def test_a_refused_registration_evicts_nobody() -> None:
    shell = MemoryShell()
    owner = shell.join("@(local/a)")
    rival = shell.connect("@(local/b)")

    refused = rival.ask("hub:register", {"actorAddress": "@(local/a)", "capabilities": "all"})

    assert refused["type"] == "hub:error"
    assert owner.closed is None
    assert shell.hub.registry.get("@(local/a)") is owner.session.registrations["@(local/a)"]


def test_an_evicted_session_loses_all_its_addresses_and_the_new_row_stays() -> None:
    shell = MemoryShell()
    old = shell.connect("@(local/x)")
    old.register("@(local/b)")
    old.register("@(local/a)")

    shell.join("@(local/a)")

    assert shell.hub.registry.get("@(local/b)") is None
    assert shell.rows.keys() == {"@(local/a)"}
    assert shell.rows["@(local/a)"].version == 2


def test_an_owner_that_goes_by_another_name_keeps_its_socket_but_not_the_address() -> None:
    shell = MemoryShell()
    old = shell.join("@(local/a)")
    old.register("@(local/b)")
    new = shell.connect("@(local/c)")
    old.take()

    version = new.register("@(local/a)")["payload"]["version"]
    new.take()
    new.send("@(local/a)", "for the new owner")
    new.send("@(local/b)", "for the old one")

    assert version == 2
    assert old.closed is None
    assert [one["payload"] for one in new.heard()] == ["for the new owner"]
    assert [one["payload"] for one in old.heard()] == ["for the old one"]


def test_closing_the_former_owner_leaves_the_moved_address_alone() -> None:
    shell = MemoryShell()
    old = shell.join("@(local/a)")
    old.register("@(local/b)")
    new = shell.join("@(local/a)")

    old.drop()

    assert shell.hub.registry.find("@(local/a)", shell.now) is not None
    assert new.closed is None
    assert shell.rows.keys() == {"@(local/a)"}


@pytest.mark.parametrize("does_new_owner_subscribe", [True, False])
def test_a_moved_address_is_heard_by_its_new_owner_only(does_new_owner_subscribe: bool) -> None:
    shell = MemoryShell()
    old = shell.join("@(local/a)")
    old.ask("hub:subscribe", {"topic": "prices"})
    old.register("@(local/b)")
    new = shell.join("@(local/a)")
    if does_new_owner_subscribe:
        new.ask("hub:subscribe", {"topic": "prices"})
    old.take()
    new.take()

    shell.connect().ask("hub:publish", {"topic": "prices", "type": "t"})

    assert old.heard() == []
    assert len(new.heard()) == does_new_owner_subscribe


def test_rivals_that_keep_coming_back_evict_each_other_without_leaving_anything_behind() -> None:
    shell = MemoryShell()

    for _ in range(20):
        shell.join("@(local/a)")

    assert len(shell.hub.sessions) == len(shell.hub.registry) == 1
    assert shell.rows["@(local/a)"].version == 20
    assert shell.tally.connections_opened - shell.tally.connections_closed == 1
