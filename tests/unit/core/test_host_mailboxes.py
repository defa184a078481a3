"""The mailboxes of hosts: larger, patient, in order, and kept while actors are placed there."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.core import refusals
from signalhub.settings.model import ActorsSettings, MailboxSettings, Settings
from tests.support.memory.hosts import ACTOR, A, B, cut, host, hosted, place, register, send
from tests.support.memory.shell import SETTLING_HELLO, MemoryShell, Peer
from tests.support.memory.topics import attempts, code_of, commit_all, mailbox_of

SMALL = Settings(
    mailbox=MailboxSettings(limit=2, idle_s=3_600.0, max_deliveries=2),
    actors=ActorsSettings(mailbox_limit=5),
    message_rate=0.0,
)
OF_HOST = ["actor-host", "actor:order"]


def fill(sender: Peer, count: int, to: str = A, **members: Any) -> list[str]:
    """Send `count` asks; the result of each."""
    replies = [send(sender, to, **members) for _ in range(count)]
    return [
        one["payload"]["code"] if one["type"] == "hub:error" else one["payload"]["status"]
        for one in replies
    ]


def age(shell: MemoryShell, hours: int) -> None:
    for _ in range(hours * 60):
        shell.clock.advance(60)
        shell.tick()


def is_host(shell: MemoryShell, address: str = A) -> bool:
    box = shell.hub.streams.mailboxes.get(address)
    return box is not None and box.is_host


# How much they hold.


def test_a_host_that_is_away_is_kept_more_than_another_actor() -> None:
    shell = MemoryShell(SMALL)
    sender = shell.connect("@(a/sender)")
    host(shell).drop()
    shell.join("@(a/plain)", durable=True).drop()

    assert fill(sender, 4, "@(a/plain)") == ["queued"] * 2 + ["queue_full"] * 2
    assert fill(sender, 6) == ["queued"] * 5 + ["queue_full"]
    refused = send(sender)["payload"]
    assert refused["details"] == {"limit": 5, "waiting": 5}
    assert "actors.mailbox_limit" in refused["resolution"]
    # While it is there, nothing is refused.
    host(shell)
    assert fill(sender, 10) == ["delivered"] * 10


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_host_is_still_one_after_a_restart(has_snapshot: bool) -> None:
    shell = MemoryShell(SMALL)
    owner = host(shell)
    shell.save_snapshot()
    register(owner, "order", "stock")
    if has_snapshot:
        shell.save_snapshot()

    again = shell.restarted()

    assert mailbox_of(again, A).kinds == ("order", "stock")
    assert fill(again.connect("@(a/sender)"), 5) == ["queued"] * 5
    assert mailbox_of(cut(again), A).kinds == ("order", "stock")


def test_hosts_that_are_away_are_found_by_what_they_serve_after_a_restart_too() -> None:
    shell = MemoryShell()
    host(shell)
    again = shell.restarted()
    caller = again.connect("@(a/caller)")

    reply = caller.ask(
        "hub:discover", {"pattern": "*", "capability": "actor:order", "includeAway": True}
    )

    assert reply["payload"]["actors"] == [{"address": A, "capabilities": OF_HOST, "away": True}]


@pytest.mark.parametrize("has_actors", [False, True])
def test_a_mailbox_stays_a_hosts_only_while_actors_live_there(has_actors: bool) -> None:
    shell, caller, owner = hosted(SMALL)
    if has_actors:
        place(caller)

    owner.register(capabilities=[], durable=True)
    reply = caller.ask("hub:place", {"actors": ["order/18"]})
    owner.drop()

    assert reply["payload"]["unplaced"][0]["code"] == "no_host"
    if has_actors:
        assert fill(caller, 5) == ["queued"] * 5
        assert mailbox_of(shell.restarted(), A).kinds == ("order",)
    else:
        assert fill(caller, 3) == ["queued", "queued", "queue_full"]
        assert not is_host(shell.restarted())


# How they deliver.


def test_what_a_host_refuses_comes_again_at_once_and_never_becomes_a_dead_letter() -> None:
    shell, sender, owner = hosted(SMALL)
    send(sender)

    for _ in range(50):
        owner.ask("hub:nack", {"stream": A, "seq": 1, "delayMs": 60_000})

    assert attempts(owner) == [(1, number) for number in range(1, 52)]
    assert not shell.hub.streams.topics
    assert mailbox_of(shell, A).subscription.lag == 1


def test_what_a_host_does_not_settle_in_time_comes_again_in_order_and_for_ever() -> None:
    shell, sender, owner = hosted(SMALL)
    for _ in range(3):
        send(sender)
    assert attempts(owner) == [(1, 1), (2, 1), (3, 1)]

    for attempt in range(2, 12):
        shell.pass_time(15)
        owner.ask("hub:heartbeat")
        shell.pass_time(15)
        assert attempts(owner) == [(seq, attempt) for seq in (1, 2, 3)]
    assert not shell.hub.streams.topics


def test_what_a_host_had_comes_again_in_order_when_it_is_back() -> None:
    shell, sender, owner = hosted(SMALL)
    for _ in range(3):
        send(sender)
    for _ in range(5):
        owner.ask("hub:nack", {"stream": A, "seq": 1})
    owner.ask("hub:ack", {"stream": A, "seq": 2})
    owner.drop()
    send(sender)

    again = shell.connect(A, metadata=SETTLING_HELLO)
    register(again, "order")
    assert attempts(again) == [(1, 7), (3, 2), (4, 1)]

    # Failures from before a restart do not count against a message.
    shell = shell.restarted()
    again = shell.connect(A, metadata=SETTLING_HELLO)
    register(again, "order")
    assert [seq for seq, _ in attempts(again)] == [1, 3, 4]
    again.ask("hub:nack", {"stream": A, "seq": 1})
    assert mailbox_of(shell, A).subscription.lag == 3
    assert not shell.hub.streams.topics


def test_a_host_may_still_give_a_message_up() -> None:
    shell, sender, owner = hosted()
    send(sender)

    owner.ask("hub:term", {"stream": A, "seq": 1, "reason": "unreadable"})

    assert list(shell.hub.streams.topics) == ["dead.mailboxes"]


def test_a_host_has_a_window_of_its_own_also_if_it_becomes_one_later() -> None:
    shell = MemoryShell(
        Settings(
            mailbox=MailboxSettings(window=2), actors=ActorsSettings(window=4), message_rate=0.0
        )
    )
    sender = shell.connect("@(a/sender)")
    owner = shell.connect(A, metadata=SETTLING_HELLO)
    owner.register(durable=True)
    fill(sender, 6)
    assert len(owner.heard()) == 2

    register(owner, "order")

    assert len(owner.heard()) == 2
    assert mailbox_of(shell, A).subscription.lag == 6


def test_copies_for_a_host_say_when_the_hub_accepted_them() -> None:
    shell, sender, owner = hosted()
    accepted = shell.now
    send(sender)
    shell.pass_time(5)
    owner.ask("hub:nack", {"stream": A, "seq": 1})
    first, second = owner.heard()

    shell = shell.restarted()
    shell.pass_time(5)
    owner = shell.connect(A, metadata=SETTLING_HELLO)
    register(owner, "order")
    (third,) = owner.heard()

    deliveries = [one["metadata"]["delivery"] for one in (first, second, third)]
    assert [one["acceptedAt"] for one in deliveries] == [accepted] * 3
    assert [one["redelivered"] for one in deliveries] == [False, True, True]
    assert {(one["stream"], one["seq"]) for one in deliveries} == {(A, 1)}
    # Copies for others say nothing of it.
    plain = shell.join("@(a/plain)", durable=True)
    send(shell.connect("@(a/sender)"), "@(a/plain)")
    assert "acceptedAt" not in plain.heard()[0]["metadata"]["delivery"]


# How long they last.


def test_a_host_that_stays_away_keeps_its_mailbox_while_actors_live_there() -> None:
    shell, caller, owner = hosted(SMALL)
    other = host(shell, B)
    place(owner, ACTOR, "order/18", host=A)
    owner.ask("hub:move", {"actor": ACTOR, "token": 1, "to": B})
    for one in (owner, other):
        one.drop()
    host(shell, "@(h/c)").drop()
    send(caller)

    age(shell, 3)

    assert sorted(name for _, name in shell.hub.streams.hosts("order")) == [A, B]
    assert (mailbox_of(shell, A).subscription.lag, shell.tally.mailbox_dropped) == (1, 0)
    # One whose actors have all moved away is given up in the end.
    owner = host(shell)
    owner.ask("hub:move", {"actor": "order/18", "token": 1, "to": B})
    owner.drop()
    age(shell, 3)
    assert [name for _, name in shell.hub.streams.hosts("order")] == [B]


def test_a_host_that_gives_its_mailbox_up_is_none_until_it_registers_again() -> None:
    shell, caller, owner = hosted()
    place(caller)

    owner.ask("hub:unregister")
    gone = caller.ask("hub:place", {"actors": ["order/18"]})["payload"]["unplaced"]
    host(shell)

    assert [one["code"] for one in gone] == ["no_host"]
    assert place(caller, ACTOR, "order/18") == {ACTOR: (A, 1), "order/18": (A, 1)}


# Lifetimes of what waits.


def test_what_expires_in_a_large_mailbox_makes_room_in_the_order_it_expires() -> None:
    shell = MemoryShell(SMALL)
    sender = shell.connect("@(a/sender)")
    host(shell).drop()
    for ttl in (30_000, 10_000, 20_000):
        assert fill(sender, 1, ttl=ttl) == ["queued"]
    assert fill(sender, 3) == ["queued", "queued", "queue_full"]

    shell.pass_time(11)
    assert fill(sender, 2) == ["queued", "queue_full"]
    shell.pass_time(10)
    assert fill(sender, 2) == ["queued", "queue_full"]
    assert sorted(mailbox_of(shell, A).expiries) == [1]

    again = shell.restarted()
    again.pass_time(10)
    assert fill(again.connect("@(a/sender)"), 2) == ["queued", "queue_full"]


def test_what_is_at_a_host_expires_only_when_it_comes_back() -> None:
    shell, sender, owner = hosted()
    send(sender, ttl=1_000)
    shell.pass_time(5)

    busy = mailbox_of(shell, A).waiting(shell.now)
    owner.drop()

    assert busy == 1
    assert mailbox_of(shell, A).waiting(shell.now) == 0


def test_times_of_settled_messages_do_not_gather() -> None:
    shell, sender, owner = hosted(Settings(message_rate=0.0))

    for number in range(1, 501):
        send(sender, ttl=3_600_000)
        owner.ask("hub:ack", {"stream": A, "seq": number})

    assert len(mailbox_of(shell, A)._dues) < 100


# Registering.


def test_the_answer_to_a_host_waits_until_its_kinds_are_on_disk() -> None:
    shell = MemoryShell()
    owner = host(shell)
    shell.engine.is_prompt = False

    capabilities = ["actor-host", "actor:stock"]
    payload = {"actorAddress": A, "capabilities": capabilities, "durable": True}
    early = owner.request("hub:register", payload)
    commit_all(shell)

    assert early == []
    assert [one["type"] for one in owner.take()] == ["hub:registered"]
    assert mailbox_of(shell.restarted(), A).kinds == ("stock",)


def test_a_snapshot_holds_no_kinds_that_are_not_on_disk() -> None:
    shell = MemoryShell()
    owner = host(shell)
    shell.engine.is_prompt = False
    owner.request("hub:register", {"actorAddress": A, "capabilities": [], "durable": True})
    shell.save_snapshot()

    assert mailbox_of(shell.restarted(), A).kinds == ("order",)


def test_kinds_the_log_refuses_are_not_served() -> None:
    shell = MemoryShell()
    owner = host(shell)
    shell.engine.is_prompt = False
    payload = {"actorAddress": A, "capabilities": [], "durable": True}
    owner.request("hub:register", payload)
    owner.request("hub:register", payload | {"capabilities": ["actor-host", "actor:stock"]})

    shell.engine.refuse(refusals.storage_full())
    shell.engine.is_prompt = True

    assert [code_of(one) for one in owner.take()] == ["storage_full"] * 2
    assert mailbox_of(shell, A).kinds == ("order",)
    assert register(owner, "order")["type"] == "hub:registered"


def test_a_failed_log_refuses_other_kinds_and_leaves_the_host_as_it_is() -> None:
    shell, caller, owner = hosted()
    place(caller)
    shell.engine.refuse(refusals.storage_failed(), is_final=True)

    assert code_of(register(owner, "stock")) == "storage_failed"
    assert register(owner, "order")["type"] == "hub:registered"


def test_registering_the_same_again_writes_nothing() -> None:
    shell = MemoryShell()
    owner = host(shell, A, "order", "stock")
    before = len(shell.engine.entries)

    register(owner, "stock", "order", "stock")

    assert len(shell.engine.entries) == before


def test_another_instance_of_a_host_that_is_there_is_refused() -> None:
    shell = MemoryShell()
    owner = host(shell, metadata={"instance": "one"})
    other = shell.connect("@(a/other)", metadata=SETTLING_HELLO)
    payload = {"actorAddress": A, "capabilities": OF_HOST, "durable": True}

    refused = other.ask("hub:register", payload | {"metadata": {"instance": "two"}})
    nameless = other.ask("hub:register", payload)

    assert (code_of(refused), code_of(nameless)) == ("duplicate_host", "duplicate_host")
    assert refused["payload"]["retryable"] is True
    assert owner.closed is None
    assert send(shell.connect("@(a/sender)"))["payload"]["status"] == "delivered"


def test_a_host_is_replaced_by_its_own_instance_or_when_it_is_gone() -> None:
    replaced = (1000, "duplicate_connection")
    shell = MemoryShell()
    # An actor that is no host is replaced by anybody.
    plain = shell.join(A, durable=True, metadata={"instance": "none"})
    first = host(shell, metadata={"instance": "one"})
    same = host(shell, metadata={"instance": "one"})
    assert (plain.closed, first.closed, same.closed) == (replaced, replaced, None)

    same.drop()
    second = host(shell, metadata={"instance": "two"})
    # Silent for so long that its lease has ended, though its socket is open.
    shell.clock.advance(3_600)
    third = host(shell, metadata={"instance": "three"})
    assert (second.closed, third.closed) == (replaced, None)
