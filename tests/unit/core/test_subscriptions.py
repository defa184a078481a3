"""Plain subscriptions: their limits, and what is kept of them."""

from __future__ import annotations

import pytest

from signalhub.settings.model import Settings
from tests.support.memory.shell import MemoryShell, Peer


def subscribe(peer: Peer, topic: str, sender: str | None = None) -> str:
    reply = peer.ask("hub:subscribe", {"topic": topic}, sender=sender or peer.address)
    assert reply["type"] == "hub:subscribed", reply
    subscription_id: str = reply["payload"]["subscriptionId"]
    return subscription_id


def listeners(shell: MemoryShell, topic: str) -> int:
    publisher = shell.connect("@(local/publisher)")
    reply = publisher.ask("hub:publish", {"topic": topic, "type": "t"})
    publisher.drop()
    count: int = reply["payload"]["subscriberCount"]
    return count


@pytest.mark.parametrize(
    ("wildcard", "heard"),
    [
        ("prices/eu", {"prices/eu"}),
        ("prices/+", {"prices/eu", "prices/us"}),
        ("+", {"prices", "orders"}),
        ("prices/#", {"prices", "prices/eu", "prices/us", "prices/eu/de"}),
        ("#", {"prices", "orders", "prices/eu", "prices/us", "prices/eu/de"}),
        ("+/eu/#", {"prices/eu", "prices/eu/de"}),
        ("prices/+/+/#", {"prices/eu/de"}),
    ],
)
def test_plus_stands_for_one_level_and_a_final_hash_for_a_subtree(
    wildcard: str, heard: set[str]
) -> None:
    shell = MemoryShell()
    subscribe(shell.join("@(local/a)"), wildcard)

    topics = ["prices", "orders", "prices/eu", "prices/us", "prices/eu/de"]

    assert {topic for topic in topics if listeners(shell, topic)} == heard


def test_only_its_session_ends_a_subscription_by_whatever_identity() -> None:
    shell = MemoryShell()
    owner, other = shell.connect("@(local/temporary)"), shell.connect("@(local/other)")
    subscription_id = subscribe(owner, "t")
    owner.register("@(local/a)")

    other.tell("hub:unsubscribe", {"subscriptionId": subscription_id}, sender="@(local/a)")
    other.tell("hub:unsubscribe", {"topic": "t"}, sender="@(local/a)")
    assert listeners(shell, "t") == 1
    owner.tell("hub:unsubscribe", {"subscriptionId": "t"}, sender="@(local/a)")
    assert listeners(shell, "t") == 0

    # Any id that was issued for a topic ends it, and only that.
    issued = [subscribe(owner, "t") for _ in range(3)]
    subscribe(owner, "other")
    owner.tell("hub:unsubscribe", {"subscriptionId": issued[1]})
    assert (listeners(shell, "t"), listeners(shell, "other")) == (0, 1)
    for payload in (None, {}, {"topic": ""}, {"topic": 5}):
        (reply,) = owner.tell("hub:unsubscribe", payload)
        assert reply["payload"]["code"] == "internal_error"


def test_a_session_may_hear_only_a_number_of_topics_over_all_its_addresses() -> None:
    shell = MemoryShell(Settings(subscriptions_max=3))
    peer = shell.join("@(local/a)")
    subscribe(peer, "1")
    peer.register("@(local/b)")
    subscribe(peer, "1", "@(local/b)")
    subscribe(peer, "2", "@(local/b)")

    refused = peer.ask("hub:subscribe", {"topic": "3"})
    # What it hears already may be subscribed again.
    subscribe(peer, "1")
    peer.tell("hub:unsubscribe", {"topic": "2"}, sender="@(local/b)")
    subscribe(peer, "3")

    assert refused["payload"]["code"] == "limit_exceeded"
    assert refused["payload"]["details"] == {"limit": 3}


@pytest.mark.parametrize("topic", ["", "x" * 257, "#/a", "a/#/b", "#/#", None, 5, ["t"]], ids=str)
def test_a_topic_that_cannot_be_heard_is_refused(topic: object) -> None:
    peer = MemoryShell().join("@(local/a)")

    assert peer.ask("hub:subscribe", {"topic": topic})["payload"]["code"] == "internal_error"
    assert peer.session.subscriptions is None


def test_nothing_is_kept_of_topics_nobody_hears_any_more() -> None:
    shell = MemoryShell(Settings(message_rate=0))
    peers = [shell.join("@(local/a)"), shell.join("@(local/b)")]
    for number in range(200):
        topic = f"{number % 5}/{'+' if number % 2 else number}/x"
        for peer in peers:
            subscribe(peer, topic)
        for peer in peers:
            peer.tell("hub:unsubscribe", {"topic": topic})

    assert [peer.session.subscriptions for peer in peers] == [{}, {}]
    assert shell.hub.topics._exact == {}
    assert shell.hub.topics._wildcards.below == {}
