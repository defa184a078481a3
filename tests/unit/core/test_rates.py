"""What the specification leaves open about the rate of messages."""

from __future__ import annotations

import pytest

from signalhub.settings.model import Settings
from tests.support.memory.shell import MemoryShell


def limited(rate: float = 10.0, burst: int = 11) -> MemoryShell:
    return MemoryShell(Settings(message_rate=rate, message_burst=burst))


def test_a_refusal_says_exactly_how_long_to_wait() -> None:
    shell = limited()
    peer = shell.connect()
    for _ in range(11):
        assert peer.ask("hub:metrics")["type"] == "hub:metrics_response"

    refused = peer.ask("hub:metrics")["payload"]

    assert (refused["code"], refused["retryable"]) == ("rate_limited", True)
    assert refused["details"] == {
        "retryAfter": 1,
        "retryAfterMs": 100,
        "limit": "10 messages per second",
        "code": "RATE_LIMIT_EXCEEDED",
    }
    assert shell.tally.rate_limited == 1
    shell.clock.advance(0.099)
    assert peer.ask("hub:metrics")["type"] == "hub:error"
    shell.clock.advance(0.001)
    assert peer.ask("hub:metrics")["type"] == "hub:metrics_response"


def test_a_rate_limited_frame_renews_no_lease() -> None:
    shell = limited(rate=0.001, burst=1)
    peer = shell.join("@(local/a)", ttlSeconds=10)

    shell.clock.advance(9)
    refused = peer.ask("hub:metrics")
    shell.clock.advance(1)

    assert refused["payload"]["code"] == "rate_limited"
    assert shell.hub.registry.find("@(local/a)", shell.now) is None


def subscribe_to_a_wide_tree(shell: MemoryShell) -> None:
    crowd = shell.connect("@(a/crowd)")
    crowd.session.bucket.rate_s = 0
    for number in range(128):
        crowd.ask("hub:subscribe", {"topic": "/".join("a+"[int(bit)] for bit in f"{number:07b}")})


def test_a_publish_that_searches_many_wildcards_is_charged_like_several_messages() -> None:
    shell = limited(burst=100)
    subscribe_to_a_wide_tree(shell)
    peer = shell.connect("@(a/peer)")
    news = {"topic": "a/a/a/a/a/a/x", "type": "news"}

    peer.ask("hub:publish", {"topic": "few", "type": "news"})
    cheap = 100 - peer.session.bucket.tokens
    peer.ask("hub:publish", news)
    first = 100 - peer.session.bucket.tokens
    peer.ask("hub:publish", news)

    assert cheap == 1
    # It visits 191 nodes: all prefixes of six levels, and those that end with a wildcard.
    assert first == 1 + 1 + 191 // 64
    # The audience is known now.
    assert 100 - peer.session.bucket.tokens == first + 1


@pytest.mark.parametrize("pattern", ["a/#", "a/a/a/a/a/a/x"])
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("changes", [1, 70])
def test_who_changes_subscriptions_pays_for_the_searches_that_follow(
    pattern: str, durable: bool, changes: int
) -> None:
    shell = limited(burst=1_000)
    subscribe_to_a_wide_tree(shell)
    peer, fickle = shell.connect("@(a/peer)"), shell.connect("@(a/fickle)")
    news = {"topic": "a/a/a/a/a/a/x", "type": "news", "durable": durable}
    peer.ask("hub:publish", news)
    had = peer.session.bucket.tokens

    for number in range(changes):
        change = "hub:unsubscribe" if number % 2 else "hub:subscribe"
        fickle.ask(change, {"topic": pattern})
    paid = fickle.session.bucket.tokens
    peer.ask("hub:publish", news)

    assert had - peer.session.bucket.tokens == 1
    assert paid - fickle.session.bucket.tokens == 191 // 64


@pytest.mark.parametrize("durable", [False, True])
def test_a_publish_that_searches_many_wildcards_ends_the_turn_of_its_socket(durable: bool) -> None:
    shell = limited(burst=100)
    subscribe_to_a_wide_tree(shell)
    peer = shell.connect("@(a/peer)")
    news = {"topic": "a/a/a/a/a/a/x", "type": "news", "durable": durable}

    peer.ask("hub:publish", news | {"topic": "few"})
    assert shell.gave_way == []
    peer.ask("hub:publish", news)
    assert shell.gave_way == [peer.session]
    peer.ask("hub:publish", news)
    assert shell.gave_way == [peer.session]
