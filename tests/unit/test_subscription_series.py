"""Series per subscription: who has some of their own, and what the others share."""

from __future__ import annotations

import dataclasses

from prometheus_client.parser import text_string_to_metric_families

from signalhub.counters import SubscriptionTally
from signalhub.observe.subscriptions import SUBSCRIPTIONS, SubscriptionReading, SubscriptionSeries

LAG = "signal_hub_subscription_lag_messages"
DELIVERED = "signal_hub_subscription_delivered_total"
OTHER = ("other", "", "")

Series = dict[tuple[str, str, str], float]


def reading(
    topic: str, name: str = "work", mode: str = "shared", delivered: int = 0
) -> SubscriptionReading:
    return SubscriptionReading(topic, name, mode, SubscriptionTally(delivered=delivered))


def scrape(series: SubscriptionSeries, readings: list[SubscriptionReading]) -> dict[str, Series]:
    """Values by name of the sample and labels."""
    found: dict[str, Series] = {}
    page = b"".join(series.pieces(readings)).decode()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = sample.labels
            key = labels["topic"], labels["subscription"], labels["mode"]
            assert key not in found.setdefault(sample.name, {})
            found[sample.name][key] = sample.value
    return found


def test_a_subscription_is_labelled_by_topic_name_and_mode() -> None:
    one, two = reading("orders", "billing", "exclusive"), reading("orders", "audit", "key-shared")
    one.lag, two.lag = 7, 8

    found = scrape(SubscriptionSeries(10), [one, two])

    assert found[LAG] == {
        ("orders", "billing", "exclusive"): 7,
        ("orders", "audit", "key-shared"): 8,
        OTHER: 0,
    }


def test_every_number_of_a_reading_is_shown() -> None:
    one = SubscriptionReading("t", "s", "shared", SubscriptionTally(), 1, 2.5, 3.5, 0.4, 1, 5, 6)
    for number, field in enumerate(dataclasses.fields(SubscriptionTally), 100):
        setattr(one.tally, field.name, number)

    found = scrape(SubscriptionSeries(10), [one])

    shown = [found[declaration.name]["t", "s", "shared"] for declaration in SUBSCRIPTIONS]
    assert shown[:7] == [1, 2.5, 3.5, 0.4, 1, 5, 6]
    counters = len(dataclasses.fields(SubscriptionTally))
    assert sorted(shown[7:]) == list(range(100, 100 + counters))


def test_names_of_any_kind_arrive_as_they_are() -> None:
    topic, name = 'a "quoted" \\ back\\nslash\nand a line', "überall / 場所 }="

    found = scrape(SubscriptionSeries(10), [reading(topic, name, delivered=3)])

    assert found[DELIVERED][topic, name, "shared"] == 3


def test_an_unknown_age_is_not_shown_as_a_number() -> None:
    one = reading("orders")
    one.lag, one.lag_s = 5, None

    found = scrape(SubscriptionSeries(10), [one])

    assert found[LAG]["orders", "work", "shared"] == 5
    assert found["signal_hub_subscription_lag_seconds"] == {OTHER: 0}


def test_beyond_the_limit_subscriptions_share_sums_and_the_worst() -> None:
    readings = [reading(f"t{number}", delivered=10**number) for number in range(4)]
    for number, one in enumerate(readings):
        one.lag, one.lag_s, one.utilization = number, float(number), number / 10

    found = scrape(SubscriptionSeries(2), readings)

    assert found[DELIVERED].keys() == {("t0", "work", "shared"), ("t1", "work", "shared"), OTHER}
    assert found[DELIVERED][OTHER] == 1_100
    assert found[LAG][OTHER] == 5
    assert found["signal_hub_subscription_lag_seconds"][OTHER] == 3.0
    assert found["signal_hub_subscription_window_utilization"][OTHER] == 0.3


def test_shared_counters_never_fall_when_a_subscription_is_deleted() -> None:
    series = SubscriptionSeries(1)
    first, second, third = (reading(f"t{number}", delivered=10) for number in range(3))
    assert scrape(series, [first, second, third])[DELIVERED][OTHER] == 20
    second.tally.delivered += 5

    found = scrape(series, [first, third])

    assert found[DELIVERED][OTHER] == 25
    assert found[LAG][OTHER] == 0


def test_whoever_shares_goes_on_sharing_when_there_is_room_again() -> None:
    series = SubscriptionSeries(1)
    first, second = reading("t0", delivered=1), reading("t1", delivered=2)
    scrape(series, [first, second])

    found = scrape(series, [second, reading("t2", delivered=4)])

    assert found[DELIVERED] == {("t2", "work", "shared"): 4, OTHER: 2}


def test_a_subscription_made_again_under_its_old_name_starts_at_zero() -> None:
    series = SubscriptionSeries(10)
    scrape(series, [reading("orders", delivered=9)])

    found = scrape(series, [reading("orders")])

    assert found[DELIVERED] == {("orders", "work", "shared"): 0, OTHER: 0}
