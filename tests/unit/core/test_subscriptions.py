"""Subscribing and unsubscribing: whose ears, which topics, how many."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.settings.model import Settings
from tests.support.memory.shell import MemoryShell, Peer


def subscribe(peer: Peer, topic: str, **members: Any) -> str:
    reply = peer.ask("hub:subscribe", {"topic": topic}, **members)
    assert reply["type"] == "hub:subscribed", reply
    assert reply["payload"]["topic"] == topic
    subscription_id: str = reply["payload"]["subscriptionId"]
    return subscription_id


def listeners(shell: MemoryShell, topic: str) -> int:
    publisher = shell.connect("@(local/publisher)")
    reply = publisher.ask("hub:publish", {"topic": topic, "type": "t"})
    publisher.drop()
    count: int = reply["payload"]["subscriberCount"]
    return count


def test_every_subscription_gets_an_id_of_its_own_but_only_one_copy() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")

    first, second = subscribe(peer, "t"), subscribe(peer, "t")

    assert first != second
    assert listeners(shell, "t") == 1


@pytest.mark.parametrize(
    ("wildcard", "heard"),
    [
        ("prices/eu", {"prices/eu"}),
        ("prices/+", {"prices/eu", "prices/us"}),
        ("+", {"prices", "orders"}),
        ("+/+", {"prices/eu", "prices/us"}),
        ("prices/#", {"prices", "prices/eu", "prices/us", "prices/eu/de"}),
        ("#", {"prices", "orders", "prices/eu", "prices/us", "prices/eu/de"}),
        ("+/eu/#", {"prices/eu", "prices/eu/de"}),
        ("+/+/+", {"prices/eu/de"}),
        ("prices/+/+/#", {"prices/eu/de"}),
    ],
)
def test_plus_stands_for_one_level_and_a_final_hash_for_a_subtree(
    wildcard: str, heard: set[str]
) -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    subscribe(peer, wildcard)

    topics = ["prices", "orders", "prices/eu", "prices/us", "prices/eu/de"]

    assert {topic for topic in topics if listeners(shell, topic)} == heard


def test_overlapping_subscriptions_give_one_copy_per_address() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    for topic in ("a/b", "a/+", "+/b", "a/#", "#"):
        subscribe(peer, topic, sender="@(local/a)")
    peer.register("@(local/b)")
    subscribe(peer, "a/#", sender="@(local/b)")
    peer.take()

    count = listeners(shell, "a/b")

    assert count == 2
    assert [one["to"] for one in peer.heard()] == ["@(local/a)", "@(local/b)"]


def test_a_subscription_belongs_to_the_sender_if_it_is_registered_here_else_to_the_identity() -> (
    None
):
    shell = MemoryShell()
    peer = shell.join("@(local/x)")
    peer.register("@(local/y)")
    subscribe(peer, "as-x", sender="@(local/x)")
    subscribe(peer, "as-stranger", sender="@(local/z)")
    peer.take()

    listeners(shell, "as-x")
    listeners(shell, "as-stranger")

    assert [one["to"] for one in peer.heard()] == ["@(local/x)", "@(local/y)"]


def test_an_unregistered_session_hears_under_its_identity() -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/temporary)")
    subscribe(peer, "t")
    peer.take()

    assert listeners(shell, "t") == 1
    assert [one["to"] for one in peer.heard()] == ["@(local/temporary)"]


@pytest.mark.parametrize("topic", ["", "x" * 257, "#/a", "a/#/b", "#/#", None, 5, ["t"]], ids=str)
def test_a_topic_that_cannot_be_heard_is_refused(topic: object) -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")

    reply = peer.ask("hub:subscribe", {"topic": topic})

    assert reply["payload"]["code"] == "internal_error"
    assert peer.session.subscriptions is None


@pytest.mark.parametrize("by", ["topic", "id", "topic as id", "both"])
def test_unsubscribe_finds_the_topic_by_name_or_by_id(by: str) -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    subscription_id = subscribe(peer, "t")
    subscribe(peer, "other")
    payload = {
        "topic": {"topic": "t"},
        "id": {"subscriptionId": subscription_id},
        "topic as id": {"subscriptionId": "t"},
        "both": {"topic": "t", "subscriptionId": subscription_id},
    }[by]

    replies = peer.tell("hub:unsubscribe", payload)

    assert replies == []
    assert listeners(shell, "t") == 0
    assert listeners(shell, "other") == 1


def test_unsubscribing_a_wildcard_takes_only_the_wildcard() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    subscribe(peer, "a/+")
    subscribe(peer, "a/b")

    peer.tell("hub:unsubscribe", {"topic": "a/+"})

    assert listeners(shell, "a/b") == 1
    assert listeners(shell, "a/c") == 0


def test_unsubscribe_is_confirmed_to_those_who_ask() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    subscription_id = subscribe(peer, "t")

    reply = peer.ask("hub:unsubscribe", {"subscriptionId": subscription_id})

    assert reply["type"] == "hub:unsubscribed"
    assert reply["payload"] == {"topic": "t", "unsubscribedAt": shell.now}


def test_unsubscribing_what_was_never_subscribed_is_harmless() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    subscribe(peer, "t")

    replies = peer.tell("hub:unsubscribe", {"topic": "unknown"})
    replies += peer.tell("hub:unsubscribe", {"subscriptionId": "sub-unknown"})

    assert replies == []
    assert listeners(shell, "t") == 1


@pytest.mark.parametrize("payload", [None, {}, {"topic": ""}, {"topic": 5}])
def test_unsubscribe_needs_a_topic_or_an_id(payload: object) -> None:
    peer = MemoryShell().connect()

    (reply,) = peer.tell("hub:unsubscribe", payload)

    assert reply["payload"]["code"] == "internal_error"


def test_nobody_can_unsubscribe_somebody_else() -> None:
    shell = MemoryShell()
    owner = shell.join("@(local/a)")
    subscription_id = subscribe(owner, "t")
    other = shell.connect("@(local/other)")

    other.tell("hub:unsubscribe", {"subscriptionId": subscription_id}, sender="@(local/a)")
    other.tell("hub:unsubscribe", {"topic": "t"}, sender="@(local/a)")

    assert listeners(shell, "t") == 1


def test_a_topic_subscribed_under_an_earlier_identity_can_be_unsubscribed() -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/temporary)")
    subscribe(peer, "t")
    peer.register("@(local/a)")

    peer.tell("hub:unsubscribe", {"subscriptionId": "t"}, sender="@(local/a)")

    assert listeners(shell, "t") == 0


def test_a_session_may_hear_only_so_many_topics_over_all_its_addresses() -> None:
    shell = MemoryShell(Settings(subscriptions_max=3))
    peer = shell.join("@(local/a)")
    subscribe(peer, "1", sender="@(local/a)")
    peer.register("@(local/b)")
    subscribe(peer, "1", sender="@(local/b)")
    subscribe(peer, "2", sender="@(local/b)")

    refused = peer.ask("hub:subscribe", {"topic": "3"})
    peer.tell("hub:unsubscribe", {"topic": "2"}, sender="@(local/b)")
    accepted = peer.ask("hub:subscribe", {"topic": "3"})

    assert refused["payload"]["code"] == "limit_exceeded"
    assert refused["payload"]["details"] == {"limit": 3}
    assert accepted["type"] == "hub:subscribed"


def test_a_session_at_its_limit_may_subscribe_again_to_what_it_hears() -> None:
    shell = MemoryShell(Settings(subscriptions_max=1))
    peer = shell.join("@(local/a)")
    subscribe(peer, "t")

    again = peer.ask("hub:subscribe", {"topic": "t"})

    assert again["type"] == "hub:subscribed"


@pytest.mark.parametrize("which", [0, 1, 4])
def test_every_id_issued_for_a_topic_ends_it(which: int) -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    issued = [subscribe(peer, "t") for _ in range(5)]

    peer.tell("hub:unsubscribe", {"subscriptionId": issued[which]})

    assert listeners(shell, "t") == 0


def test_nothing_is_kept_of_topics_nobody_hears_any_more() -> None:
    shell = MemoryShell(Settings(message_rate=0))
    peer = shell.join("@(local/a)")
    for number in range(200):
        topic = f"{number % 5}/{'+' if number % 2 else number}/x"
        subscribe(peer, topic)
        peer.tell("hub:unsubscribe", {"topic": topic})

    assert peer.session.subscriptions == {}
    assert shell.hub.topics._exact == {}
    assert shell.hub.topics._wildcards.below == {}
