"""How long mailboxes last, how many there are, and what they may hold in memory."""

from __future__ import annotations

import pytest

from signalhub.core.effects import Fetch
from signalhub.settings.model import LogSettings, MailboxSettings, Settings
from tests.support.memory.shell import HELLO, SETTLING_HELLO, MemoryShell, Message
from tests.support.memory.topics import ACTOR, answers, attempts, code_of, mailbox_of
from tests.support.memory.turns import TurningShell

IDLE = Settings(mailbox=MailboxSettings(idle_s=3_600.0))


def test_an_actor_that_never_left_keeps_its_mailbox_over_a_kill() -> None:
    shell = MemoryShell(IDLE)
    sender, actor = shell.connect("@(a/sender)"), shell.connect(ACTOR)
    actor.register(durable=True)
    for _ in range(3):
        shell.clock.advance(2_000)
        actor.ask("hub:heartbeat")
        shell.tick()
        shell.save_snapshot()
    actor.stall()
    sender.send(ACTOR, "last", pattern="ask")

    again = shell.restarted()
    again.pass_time(120)
    actor = again.connect(ACTOR)
    reply = actor.register()

    assert reply["payload"]["durable"] is True
    assert attempts(actor) == [(1, 2)]
    assert again.tally.mailbox_dropped == 0


def test_the_number_of_mailboxes_is_bounded_whether_their_owners_are_there_or_not() -> None:
    shell = MemoryShell(Settings(mailbox=MailboxSettings(count_max=3)))
    for number in range(3):
        actor = shell.connect(f"@(a/{number})")
        actor.register(durable=True)
        actor.drop()
    actor = shell.connect("@(a/3)")

    refused = actor.register(durable=True)

    assert code_of(refused) == "registry_full"
    assert actor.register()["payload"]["durable"] is False
    assert shell.connect("@(a/1)").register(durable=True)["type"] == "hub:registered"


@pytest.mark.parametrize("hello", [HELLO, SETTLING_HELLO])
@pytest.mark.parametrize("snapshots", ["none", "before", "between"])
def test_lifetimes_of_settled_mail_are_forgotten_and_do_not_come_back(
    hello: Message, snapshots: str
) -> None:
    shell = MemoryShell()
    sender, actor = shell.connect("@(a/sender)"), shell.connect(ACTOR, metadata=hello)
    actor.register(durable=True)
    for number in range(50):
        sender.send(ACTOR, number, pattern="ask", ttl=60_000)
    if snapshots != "none":
        shell.save_snapshot()
    if hello is SETTLING_HELLO:
        actor.ask("hub:ack", {"stream": ACTOR, "upTo": 50})
    if snapshots == "between":
        shell.save_snapshot()

    for found in (mailbox_of(shell), mailbox_of(shell.restarted())):
        assert found.subscription.lag == 0
        assert not found.expiries


def test_mail_that_expired_while_its_actor_was_away_is_settled_on_disk() -> None:
    shell = MemoryShell()
    sender, actor = shell.connect("@(a/sender)"), shell.connect(ACTOR)
    actor.register(durable=True)
    actor.drop()
    sender.send(ACTOR, "short-lived", pattern="ask", ttl=1_000)
    shell.pass_time(5)
    sender.send(ACTOR, "lasting", pattern="ask")
    shell.pass_time(5)

    position = mailbox_of(shell.restarted()).subscription.position

    assert position.is_settled(1)
    assert not position.is_settled(2)


def waiting(messages: int) -> MemoryShell:
    """A hub that keeps nothing in memory, with mail for an actor that is away."""
    shell = MemoryShell(Settings(log=LogSettings(cache_bytes=1)))
    sender, actor = shell.connect("@(a/sender)"), shell.connect(ACTOR)
    actor.register(durable=True)
    actor.drop()
    for number in range(messages):
        sender.send(ACTOR, number, pattern="ask")
    return shell


def test_a_mailbox_whose_mail_is_gone_is_not_read_in_circles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = waiting(3)
    shell.engine.cut(shell.engine.head)
    reads: list[Fetch] = []
    found = shell.engine._found

    def counted(fetch: Fetch) -> object:
        reads.append(fetch)
        return found(fetch)

    monkeypatch.setattr(shell.engine, "_found", counted)

    shell.connect(ACTOR).register()
    shell.pass_time(10)

    assert 1 <= len(reads) < 50


def test_what_retention_took_from_a_mailbox_is_a_counted_loss() -> None:
    shell = waiting(3)
    box = mailbox_of(shell)
    shell.save_snapshot()
    shell.engine.cut(shell.engine.head)

    shell.perform(shell.hub.retention.cut({box.id: 0}, shell.now))

    assert (box.first, box.subscription.lag, shell.tally.lost) == (4, 0, 3)
    assert mailbox_of(shell.restarted()).subscription.lag == 0


def test_an_ask_in_the_turn_of_a_return_comes_behind_what_waited() -> None:
    shell = TurningShell()
    sender, actor = shell.connect("@(a/sender)"), shell.connect(ACTOR)
    actor.register(durable=True)
    actor.drop()
    for number in range(3):
        sender.send(ACTOR, number, pattern="ask")
    sender.take()
    back = shell.connect(ACTOR)

    with shell.one_turn():
        back.request("hub:register", {"actorAddress": ACTOR, "capabilities": [], "durable": True})
        sender.send(ACTOR, 3, pattern="ask")

    assert [one["payload"] for one in back.heard()] == [0, 1, 2, 3]
    assert answers(sender) == ["hub:delivery_ack"]
