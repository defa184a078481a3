"""Looking at every subscription a few at a time, and what is noticed by it."""

from __future__ import annotations

from signalhub.core.overview.survey import GROWN_MINUTES, KEPT_MAX, Survey, state_of
from signalhub.settings.model import MailboxSettings, Settings
from tests.support.memory.shell import MemoryShell
from tests.support.memory.topics import NAMED, create, publish, subscribe, subscription_of, working


def survey_of(shell: MemoryShell) -> Survey:
    return Survey(shell.hub.streams, shell.hub.sessions, shell.hub.settings)


def go_round(survey: Survey, shell: MemoryShell, size: int = 10_000) -> int:
    """Look at everything once; how many steps that took."""
    steps = 1
    while not survey.step(size, shell.now, with_sessions=True):
        steps += 1
    return steps


def test_a_step_looks_at_no_more_than_it_may() -> None:
    shell = MemoryShell()
    writer, reader = working(shell)
    for number in range(30):
        subscribe(reader, name=f"s{number}", mode="shared")
    survey = survey_of(shell)

    # The topic, its subscriptions and two sessions, and one more to see that this was all.
    assert go_round(survey, shell, size=5) == -(-(1 + 31 + 2 + 1) // 5)
    assert go_round(survey, shell, size=1_000) == 1
    assert survey.rounds == 2
    assert not writer.session.is_over


def test_totals_are_those_of_the_last_whole_round() -> None:
    shell = MemoryShell()
    writer, _ = working(shell, 3)
    survey = survey_of(shell)
    survey.step(2, shell.now, with_sessions=False)
    assert survey.totals.lag == 0
    go_round(survey, shell)
    totals = survey.totals
    assert (totals.lag, totals.worst_lag, totals.in_flight) == (3, 3, 3)
    assert (totals.worst, totals.oldest_ms) == (("t", "s"), shell.now)
    publish(writer)
    assert survey.totals.lag == 3
    go_round(survey, shell)
    assert survey.totals.lag == 4


def test_rates_are_between_two_looks() -> None:
    shell = MemoryShell()
    writer, reader = working(shell, 4)
    survey = survey_of(shell)
    go_round(survey, shell)
    subscription = subscription_of(shell)
    seen = survey.seen(subscription)
    assert seen is not None
    assert (seen.settled_rate, survey.rate_of("t")) == (None, None)

    shell.advance(2_000)
    reader.ask("hub:ack", NAMED | {"upTo": 4})
    publish(writer)
    go_round(survey, shell)

    assert (seen.settled_rate, seen.delivered_rate, seen.trend) == (2.0, 0.5, -1.5)
    assert survey.rate_of("t") == 0.5
    assert survey.totals.busy_topics == [(0.5, "t")]


def test_every_state_has_its_word() -> None:
    shell = MemoryShell()
    writer, reader = working(shell, 1, maxDeliveries=1, window=1)
    subscription = subscription_of(shell)
    assert state_of(subscription) == "current"
    publish(writer)
    assert state_of(subscription) == "behind"
    writer.ask("hub:sub_pause", NAMED)
    assert state_of(subscription) == "paused"
    writer.ask("hub:sub_resume", NAMED)
    reader.ask("hub:nack", NAMED | {"seq": 1})
    assert state_of(subscription) == "blocked"
    reader.ask("hub:ack", NAMED | {"seq": 1})
    reader.drop()
    assert state_of(subscription) == "idle"


def test_a_lag_that_grows_each_minute_is_noticed_and_one_that_shrinks_is_not() -> None:
    shell = MemoryShell()
    writer, reader = working(shell, 1, ackTimeoutMs=86_400_000)
    survey = survey_of(shell)
    for _ in range(GROWN_MINUTES):
        go_round(survey, shell)
        assert survey.totals.alarming == []
        publish(writer)
        shell.advance(60_000)
    go_round(survey, shell)

    ((subscription, seen),) = survey.totals.alarming
    assert (subscription.name, seen.is_growing) == ("s", True)
    reader.ask("hub:ack", NAMED | {"seq": 1})
    shell.advance(60_000)
    go_round(survey, shell)
    assert survey.totals.alarming == []


def test_charts_are_kept_of_those_furthest_behind() -> None:
    shell = MemoryShell()
    writer, reader = working(shell, 1)
    for number in range(3):
        create(writer, f"quiet-{number}")
        subscribe(reader, f"quiet-{number}")
    survey = survey_of(shell)
    for _ in range(4):
        go_round(survey, shell)
        shell.advance(10_000)
    kept = [one for one in shell.hub.streams.subscriptions() if _history(survey, one)]
    assert [one.stream.name for one in kept] == ["t"]
    history = _history(survey, kept[0])
    assert [lag for _, lag, _ in history] == [1, 1, 1, 1]
    assert KEPT_MAX == 200


def _history(survey: Survey, subscription: object) -> list[tuple[int, int, int]]:
    seen = survey.seen(subscription)  # type: ignore[arg-type]
    return [] if seen is None or seen.history is None else list(seen.history)


def test_what_is_gone_is_forgotten() -> None:
    shell = MemoryShell()
    writer, _ = working(shell, 1)
    survey = survey_of(shell)
    go_round(survey, shell)
    subscription = subscription_of(shell)
    writer.ask("hub:topic_delete", {"topic": "t"})
    go_round(survey, shell)
    assert survey.seen(subscription) is None
    assert (survey.totals.lag, survey.worst_lag_of("t")) == (0, 0)


def test_dead_letters_full_mailboxes_and_paused_senders_are_named() -> None:
    shell = MemoryShell(Settings(mailbox=MailboxSettings(limit=2)))
    _, reader = working(shell, 1, definition={"poison": "dead_letter"})
    reader.ask("hub:term", NAMED | {"seq": 1})
    alice = shell.connect("@(a/alice)")
    alice.register(durable=True)
    alice.drop()
    for _ in range(2):
        reader.ask("hub:send", {"to": "@(a/alice)", "type": "t:t"})
    survey = survey_of(shell)
    go_round(survey, shell)

    assert [(one.name, waiting) for one, waiting in survey.totals.letters] == [("t.dlq", 1)]
    assert [one.name for one in survey.totals.full] == ["@(a/alice)"]
    assert survey.totals.mailbox_waiting == 2


def test_settling_for_others_counts_what_was_sent_and_is_recorded_once() -> None:
    shell = MemoryShell()
    writer, _ = working(shell, 3)
    reply = writer.ask("hub:sub_settle", NAMED | {"seqs": [1, 3, 7], "verdict": "ack"})
    assert reply["payload"] == {"floor": 1, "accepted": 2, "ignored": [7]}
    assert subscription_of(shell).lag == 1
    again = shell.restarted()
    assert subscription_of(again).lag == 1
    other = shell.connect("@(a/other)")
    stale = NAMED | {"seqs": [2], "verdict": "ack", "generation": 9}
    assert other.ask("hub:sub_settle", stale)["payload"]["code"] == "subscription_conflict"
    for payload in ({"seqs": [], "verdict": "ack"}, {"seqs": [1], "verdict": "x"}, {}):
        assert other.ask("hub:sub_settle", NAMED | payload)["type"] == "hub:error"
