"""Leases: how long an actor is seen without a sign of life, and what survives a restart."""

from __future__ import annotations

import pytest

from signalhub.settings.model import RegistrySettings, Settings
from tests.support.memory.shell import MemoryShell, Peer


def addresses(peer: Peer) -> list[str]:
    found = peer.ask("hub:discover", {"pattern": "*"})["payload"]["actors"]
    return [actor["address"] for actor in found]


@pytest.mark.parametrize(
    ("asked", "lease_s"),
    [(None, 300), (60, 60), (1, 1), (0, 1), (-5, 1), (3_600, 3_600), (10**6, 3_600), (1.5, 1.5)],
)
def test_a_lease_is_what_was_asked_for_within_bounds(asked: float | None, lease_s: float) -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/a)")

    reply = peer.register(ttlSeconds=asked)

    assert reply["payload"]["expiresAt"] == shell.now + lease_s * 1000


def test_a_lease_ends_to_the_millisecond_and_the_socket_stays() -> None:
    shell = MemoryShell()
    silent = shell.join("@(local/silent)", ttlSeconds=10)
    observer = shell.join("@(local/observer)")

    shell.clock.advance(9.999)
    before = addresses(observer)
    shell.clock.advance(0.001)
    after = addresses(observer)

    assert before == ["@(local/silent)", "@(local/observer)"]
    assert after == ["@(local/observer)"]
    assert silent.closed is None


@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("hub:heartbeat", None),
        ("hub:discover", {"pattern": "*"}),
        ("hub:send", {"to": "@(nobody/here)", "type": "t"}),
        ("hub:publish", {"topic": "t", "type": "t"}),
        ("hub:metrics", None),
        ("hub:subscribe", {"topic": "t"}),
    ],
)
def test_every_accepted_frame_renews_all_leases_of_its_session(type: str, payload: object) -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/host)")
    peer.register("@(local/short)", ttlSeconds=10)
    peer.register("@(local/long)", ttlSeconds=20)

    shell.clock.advance(9)
    peer.tell(type, payload, sender="@(local/host)")
    shell.clock.advance(9)

    observer = shell.connect("@(local/observer)")
    assert shell.hub.registry.find("@(local/short)", shell.now) is not None
    assert addresses(observer) == ["@(local/short)", "@(local/long)"]
    shell.clock.advance(1)
    assert shell.hub.registry.find("@(local/short)", shell.now) is None
    assert shell.hub.registry.find("@(local/long)", shell.now) is not None


def test_a_frame_that_is_no_envelope_renews_nothing() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)", ttlSeconds=10)

    shell.clock.advance(9)
    peer.write(b"{}")
    shell.clock.advance(1)

    assert shell.hub.registry.find("@(local/a)", shell.now) is None


def test_a_hidden_actor_cannot_be_reached_and_is_back_with_its_next_frame() -> None:
    shell = MemoryShell()
    actor = shell.join("@(local/a)", ttlSeconds=10)
    actor.ask("hub:subscribe", {"topic": "t"})
    sender = shell.connect("@(local/sender)")
    shell.clock.advance(10)

    hidden = sender.send("@(local/a)", pattern="ask")
    broadcast = sender.ask("hub:broadcast", {"type": "t"})
    actor.tell("hub:heartbeat")
    visible = sender.send("@(local/a)", pattern="ask")

    assert [one["type"] for one in hidden] == ["hub:unknown_actor"]
    assert broadcast["payload"]["deliveredCount"] == 0
    assert [one["type"] for one in visible] == ["hub:delivery_ack"]


def test_a_registration_is_written_when_it_is_made() -> None:
    shell = MemoryShell()

    peer = shell.join("@(local/a)")
    row = shell.rows["@(local/a)"]

    assert (row.version, row.expires_at_ms) == (1, shell.now + 300_000)
    peer.ask("hub:unregister", {"actorAddress": "@(local/a)"})
    assert shell.rows == {}


def test_a_renewed_registration_is_written_at_most_once_per_third_of_its_lease() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
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
    assert shell.rows["@(local/a)"].expires_at_ms >= began + 1_200_000 - 161_000 + 300_000


def test_a_silent_registration_is_not_written_again() -> None:
    shell = MemoryShell()
    shell.join("@(local/a)")

    shell.pass_time(700)

    assert shell.written == [("persist", "@(local/a)")]


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

    if is_registered_anew:
        assert shell.rows[address].version == 2
    else:
        assert address not in shell.rows


def test_after_a_restart_the_registrations_are_hidden_and_uncounted() -> None:
    shell = MemoryShell()
    shell.join("@(local/a)")
    successor = shell.restarted()
    observer = successor.connect("@(local/observer)")

    listed = observer.ask("hub:list_actors")["payload"]
    broadcast = observer.ask("hub:broadcast", {"type": "t"})["payload"]

    assert len(successor.hub.registry) == 0
    assert (listed["actors"], listed["total"]) == ([], 0)
    assert broadcast["deliveredCount"] == 0


def test_after_a_restart_an_ask_is_told_to_try_again_until_the_lease_ends() -> None:
    shell = MemoryShell()
    shell.join("@(local/a)")
    successor = shell.restarted()
    sender = successor.connect("@(local/sender)")

    (soon,) = sender.send("@(local/a)", pattern="ask")
    told = sender.send("@(local/a)")
    successor.clock.advance(300)
    (gone,) = sender.send("@(local/a)", pattern="ask")

    assert soon["payload"]["code"] == "actor_reconnecting"
    assert soon["payload"]["retryable"] is True
    assert told == []
    assert gone["type"] == "hub:unknown_actor"


def test_a_returning_owner_is_reachable_and_its_version_goes_on_counting() -> None:
    shell = MemoryShell()
    owner = shell.join("@(local/a)")
    owner.register()
    successor = shell.restarted()

    back = successor.connect("@(local/a)")
    version = back.register()["payload"]["version"]
    (ack,) = successor.connect("@(local/s)").send("@(local/a)", pattern="ask")

    assert version == 3
    assert ack["type"] == "hub:delivery_ack"


def test_restored_registrations_whose_owner_stays_away_are_forgotten() -> None:
    shell = MemoryShell()
    shell.join("@(local/a)")
    shell.join("@(local/b)")
    successor = shell.restarted()
    successor.join("@(local/b)", ttlSeconds=3_600)

    successor.pass_time(361)

    assert successor.rows.keys() == {"@(local/b)"}
    assert successor.written == [("persist", "@(local/b)"), ("forget", "@(local/a)")]


def test_a_clock_set_back_does_not_stop_the_writing_of_renewals() -> None:
    shell = MemoryShell(Settings(registry=RegistrySettings(sweep_s=60.0)))
    peer = shell.join("@(local/a)")
    shell.pass_time(61)

    shell.clock.jump(-3_600)
    peer.register()
    registered = len(shell.written)
    for _ in range(4):
        peer.tell("hub:heartbeat")
        shell.pass_time(50)

    assert len(shell.written) > registered


def test_a_clock_set_forward_hides_everybody_until_they_speak() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")

    shell.clock.jump(3_600)
    hidden = shell.hub.registry.find("@(local/a)", shell.now)
    peer.tell("hub:heartbeat")

    assert hidden is None
    assert shell.hub.registry.find("@(local/a)", shell.now) is not None
