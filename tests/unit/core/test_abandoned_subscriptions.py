"""A subscription that nobody consumes does not hold on to the log for ever."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.auth.permissions import Allowance, Permissions
from signalhub.core.streams.retention import Survey
from signalhub.core.streams.streams import Topic
from signalhub.settings.model import DispatchSettings, Settings
from signalhub.wire.entry import Kind
from tests.support.memory.engine import Shelf
from tests.support.memory.shell import MemoryShell
from tests.support.memory.topics import (
    NAMED,
    TOPIC,
    code_of,
    commit_all,
    create,
    publish,
    seqs,
    subscribe,
    subscription_of,
    topic_of,
    working,
)

DAY_S = 86_400
SHORT = Settings(dispatch=DispatchSettings(idle_expiry_s=2 * DAY_S))


def pass_days(shell: MemoryShell, days: float) -> None:
    """Time passes, with a few ticks at its end."""
    shell.clock.advance(days * DAY_S)
    for _ in range(3):
        shell.tick()
    commit_all(shell)


def surveyed(shell: MemoryShell) -> tuple[Survey, int]:
    """What retention finds, and how many slices it takes."""
    slices, count = shell.hub.retention.survey(), 0
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value, count
        count += 1


def is_there(shell: MemoryShell) -> bool:
    return bool(topic_of(shell).subscriptions)


def test_a_subscription_without_consumers_expires_and_says_so_when_it_is_made() -> None:
    shell = MemoryShell(SHORT)
    _, reader = working(shell, 3)
    reply = reader.ask("hub:subscribe", NAMED)
    assert reply["payload"]["idleExpiryMs"] == 2 * DAY_S * 1000

    reader.drop()
    pass_days(shell, 1.9)
    assert is_there(shell)
    pass_days(shell, 0.2)

    assert not is_there(shell)
    assert surveyed(shell)[0].unsettled == []
    assert shell.engine.entries[-1].kind == Kind.SUBSCRIPTION_DELETED


def test_a_consumer_keeps_its_subscription_however_long_it_has_nothing_to_do() -> None:
    shell = MemoryShell(SHORT)
    working(shell)

    for _ in range(10):
        pass_days(shell, 1)

    assert is_there(shell)


class Unwalked(dict[str, Topic]):
    """Topics that are looked up by name only."""

    def _walk(self) -> Any:
        raise AssertionError("all topics are gone through")

    values = items = keys = __iter__ = _walk


def test_topics_without_subscriptions_cost_nothing_when_those_without_consumers_are_sought() -> (
    None
):
    shell = MemoryShell(SHORT)
    client, reader = working(shell, 1)
    for number in range(20):
        create(client, f"other-{number}")
    streams = shell.hub.streams
    sought = [subscription_of(shell)]
    assert streams.subscriptions() == sought
    assert shell.restarted().hub.streams.subscriptions()[0].name == sought[0].name

    reader.drop()
    streams.topics = Unwalked(streams.topics)
    effects = shell.hub.subscriptions.expire(shell.now + 3 * DAY_S * 1000)

    assert len(effects) == 2
    shell.perform(effects)
    commit_all(shell)
    assert streams.subscriptions() == []


def test_a_deleted_topic_takes_its_subscriptions_with_it() -> None:
    shell = MemoryShell(SHORT)
    client, _ = working(shell, 1)

    client.ask("hub:topic_delete", {"topic": TOPIC})
    commit_all(shell)

    assert shell.hub.streams.subscriptions() == []


@pytest.mark.parametrize("keeps_snapshot", [True, False])
def test_a_restart_starts_the_time_anew_only_if_it_is_not_known(keeps_snapshot: bool) -> None:
    shell = MemoryShell(SHORT)
    _, reader = working(shell, 1)
    reader.drop()
    pass_days(shell, 1.5)
    if keeps_snapshot:
        shell.save_snapshot()
    else:
        shell.shelf = Shelf()

    again = shell.restarted()
    pass_days(again, 1)

    assert is_there(again) is not keeps_snapshot


def test_a_subscription_in_use_at_a_crash_has_its_whole_time_after_it() -> None:
    shell = MemoryShell(SHORT)
    working(shell, 1)
    pass_days(shell, 30)
    shell.save_snapshot()

    again = shell.restarted()
    pass_days(again, 1.9)

    assert is_there(again)


def test_a_subscription_may_choose_its_own_time_or_none() -> None:
    shell = MemoryShell(SHORT)
    _, reader = working(shell, idleExpiryMs=0)
    subscribe(reader, name="hourly", idleExpiryMs=3_600_000)

    reader.drop()
    pass_days(shell, 0.1)

    assert list(topic_of(shell).subscriptions) == ["s"]
    pass_days(shell, 400)
    assert is_there(shell)


def test_a_full_backlog_refuses_to_publish_and_names_the_subscription() -> None:
    shell = MemoryShell()
    writer, reader = working(shell, backlogMax=3, backlogPolicy="refuse")
    for _ in range(3):
        publish(writer)

    refused = writer.ask("hub:publish", {"topic": TOPIC, "type": "news", "durable": True})

    assert code_of(refused) == "queue_full"
    assert refused["payload"]["details"]["subscription"] == "s"
    assert refused["payload"]["retryable"] is True
    reader.ask("hub:ack", NAMED | {"upTo": 1})
    assert publish(writer) == 4


def test_a_limited_backlog_drops_its_oldest_messages_and_reports_them_as_lost() -> None:
    shell = MemoryShell()
    writer, reader = working(shell, backlogMax=10)
    subscribe(reader, name="other")
    reader.drop()

    for _ in range(12):
        publish(writer)

    limited, other = subscription_of(shell), subscription_of(shell, name="other")
    assert (limited.lag, limited.stats.lost) == (10, 2)
    assert (other.lag, other.stats.lost) == (12, 0)
    assert [one.kind for one in shell.engine.entries].count(Kind.LOST) == 1
    again = shell.restarted()
    late = again.connect("@(a/late)")
    subscribe(late)
    assert seqs(late) == list(range(3, 13))


def test_only_who_may_create_the_topic_may_let_its_subscription_refuse_messages() -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer)
    granted: dict[str, Any] = {"subscribe": ("*",), "register": ("*",)}
    reader.session.allowance = Allowance("@(a/reader)", Permissions(**granted))

    limited = {"backlogMax": 1, "backlogPolicy": "refuse"}
    assert code_of(reader.ask("hub:subscribe", NAMED | limited)) == "unauthorized"
    dropping = {"backlogMax": 1, "backlogPolicy": "drop_oldest"}
    assert reader.ask("hub:subscribe", NAMED | dropping)["type"] == "hub:subscribed"
    assert code_of(reader.ask("hub:sub_update", NAMED | limited)) == "unauthorized"


def test_a_policy_without_a_limit_is_refused_and_a_limit_can_be_lifted() -> None:
    shell = MemoryShell()
    _, reader = working(shell)

    refused = reader.ask("hub:sub_update", NAMED | {"backlogPolicy": "refuse"})
    assert "backlogMax" in refused["payload"]["message"]
    shown = reader.ask("hub:sub_update", NAMED | {"backlogMax": 1})["payload"]
    assert (shown["backlogMax"], shown["backlogPolicy"]) == (1, "drop_oldest")
    shown = reader.ask("hub:sub_update", NAMED | {"backlogMax": 0})["payload"]
    assert (shown["backlogMax"], shown["backlogPolicy"]) == (0, None)


def test_retention_looks_at_a_bounded_number_of_streams_at_once() -> None:
    shell = MemoryShell()
    working(shell, 1)
    away = shell.connect("@(a/crowd)")
    for number in range(200):
        away.register(f"@(crowd/{number})", durable=True)

    survey, slices = surveyed(shell)

    assert slices >= 4
    assert len(survey.streams) >= 201
    assert [(name, whose) for name, _, _, whose in survey.unsettled] == [(TOPIC, "s")]
    assert survey.defined_at == min(one.defined_at for one in shell.hub.streams.every())
