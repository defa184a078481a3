"""Rate limits: what they cost, what is exempt, and what the refused are told."""

from __future__ import annotations

import pytest

from signalhub.settings.model import Settings
from signalhub.wire.envelope import RAW_PING
from tests.support.memory.shell import HELLO, MemoryShell


def limited(rate: float = 10.0, burst: int = 11) -> MemoryShell:
    return MemoryShell(Settings(message_rate=rate, message_burst=burst))


def test_a_burst_passes_and_the_next_message_is_refused_with_the_time_to_wait() -> None:
    shell = limited()
    peer = shell.connect()

    replies = [peer.ask("hub:metrics") for _ in range(12)]

    assert [one["type"] for one in replies] == ["hub:metrics_response"] * 11 + ["hub:error"]
    refused = replies[-1]["payload"]
    assert refused["code"] == "rate_limited"
    assert refused["retryable"] is True
    assert refused["details"] == {
        "retryAfter": 1,
        "retryAfterMs": 100,
        "limit": "10 messages per second",
        "code": "RATE_LIMIT_EXCEEDED",
    }
    assert peer.closed is None
    assert shell.tally.rate_limited == 1


def test_the_time_to_wait_is_exact() -> None:
    shell = limited()
    peer = shell.connect()
    for _ in range(11):
        peer.ask("hub:metrics")
    wait_ms = peer.ask("hub:metrics")["payload"]["details"]["retryAfterMs"]

    shell.clock.advance((wait_ms - 1) / 1000)
    sooner = peer.ask("hub:metrics")
    shell.clock.advance(0.001)
    later = peer.ask("hub:metrics")

    assert (sooner["type"], later["type"]) == ("hub:error", "hub:metrics_response")


def test_a_refused_send_is_not_delivered_and_may_be_sent_again() -> None:
    shell = limited(burst=1)
    target = shell.join("@(local/b)")
    peer = shell.connect("@(local/a)")
    peer.ask("hub:metrics")

    (refused,) = peer.send("@(local/b)", pattern="ask", id="a1")
    shell.clock.advance(1)
    (ack,) = peer.send("@(local/b)", pattern="ask", id="a1")

    assert refused["payload"]["code"] == "rate_limited"
    assert ack["type"] == "hub:delivery_ack"
    assert len(target.heard()) == 1


@pytest.mark.parametrize("type", ["hub:heartbeat", "hub:renew", "hub:connect"])
def test_signs_of_life_cost_nothing(type: str) -> None:
    shell = limited(burst=2)
    peer = shell.join("@(local/a)")
    peer.ask("hub:metrics")

    replies = [peer.ask(type, metadata=HELLO) for _ in range(20)]
    peer.write(RAW_PING)

    assert not [one for one in replies if one["type"] == "hub:error"]
    assert peer.received[-1]["type"] == "pong"
    assert peer.ask("hub:disconnect")["type"] == "hub:disconnect"


def test_frames_that_are_no_envelopes_cost_a_token_too() -> None:
    shell = limited(burst=3)
    peer = shell.connect()

    for _ in range(4):
        peer.write(b"{}")

    codes = [one["payload"]["code"] for one in peer.received[1:]]
    assert codes == ["internal_error"] * 3 + ["rate_limited"]


def test_a_rate_limited_frame_renews_no_lease() -> None:
    shell = limited(rate=0.001, burst=1)
    peer = shell.join("@(local/a)", ttlSeconds=10)

    shell.clock.advance(9)
    refused = peer.ask("hub:metrics")
    shell.clock.advance(1)

    assert refused["payload"]["code"] == "rate_limited"
    assert shell.hub.registry.find("@(local/a)", shell.now) is None


def test_sessions_do_not_share_a_bucket() -> None:
    shell = limited(burst=1)
    greedy, modest = shell.connect(), shell.connect()
    for _ in range(5):
        greedy.ask("hub:metrics")

    assert modest.ask("hub:metrics")["type"] == "hub:metrics_response"


def test_a_rate_of_zero_never_refuses() -> None:
    peer = limited(rate=0.0, burst=1).connect()

    replies = [peer.ask("hub:metrics") for _ in range(100)]

    assert {one["type"] for one in replies} == {"hub:metrics_response"}


def test_a_clock_set_back_neither_empties_nor_overfills_the_bucket() -> None:
    shell = limited(rate=1.0, burst=5)
    peer = shell.connect()
    peer.ask("hub:metrics")

    shell.clock.jump(-3_600)
    peer.ask("hub:metrics")
    shell.clock.jump(3_600)

    replies = [peer.ask("hub:metrics")["type"] for _ in range(6)]
    assert replies == ["hub:metrics_response"] * 5 + ["hub:error"]
