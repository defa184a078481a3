"""Sections 6.15 and 6.16: statistics, and tokens exchanged for later ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.stage import InProcess, code_of, run_stage
from tests.support.socket.tokens import AUTH, token_for


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


@pytest.fixture
async def guarded() -> AsyncIterator[InProcess]:
    """A hub that asks for tokens."""
    async with run_stage(FakeClock(), auth=AUTH) as stage:
        yield stage


@pytest.mark.parametrize("payload", [None, {}, [], "ignored", 7])
async def test_6_15_queue_stats_shows_an_empty_queue_and_the_thresholds(
    stage: InProcess, payload: object
) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:queue_stats", payload)

    assert reply["type"] == "hub:queue_stats_response"
    assert reply["payload"]["queueDepth"] == 0
    assert reply["payload"]["processingRate"] >= 0
    assert reply["payload"]["pauseThreshold"] == 1000
    assert reply["payload"]["resumeThreshold"] == 500


@pytest.mark.parametrize("type", ["hub:pause", "hub:resume"])
async def test_6_15_pause_and_resume_are_unknown_when_sent_to_the_hub(
    stage: InProcess, type: str
) -> None:
    peer = await stage.connect()

    assert code_of(await peer.ask(type, {"reason": "x"})) == "internal_error"


@pytest.mark.parametrize("payload", [None, {}, [], "ignored"])
async def test_6_15_metrics_count_what_happened(stage: InProcess, payload: object) -> None:
    peer, target = await stage.connect(), await stage.join("@(local/b)")
    before = (await peer.ask("hub:metrics", payload))["payload"]

    peer.tell("@(local/b)", "note")
    await target.receive("note")
    await peer.ask("hub:nonsense")
    (await stage.connect()).abort()
    reply = await peer.ask("hub:metrics", payload)

    after = reply["payload"]
    assert reply["type"] == "hub:metrics_response"
    assert set(after) >= {
        "messages_received",
        "messages_sent",
        "errors",
        "connections_opened",
        "connections_closed",
        "windowStart",
        "timestamp",
    }
    assert after["messages_received"] >= before["messages_received"] + 3
    assert after["messages_sent"] >= before["messages_sent"] + 2
    assert after["errors"] == before["errors"] + 1
    assert after["connections_opened"] == before["connections_opened"] + 1
    assert after["windowStart"] <= after["timestamp"]


async def test_6_16_without_authentication_the_hubs_own_token_is_exchanged() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer = await stage.dial()
        token = (await peer.connect())["metadata"]["sessionToken"]
        clock.advance(60)

        reply = await peer.ask("hub:refresh_token", {"token": token})

        payload = reply["payload"]
        assert reply["type"] == "hub:token_refreshed"
        assert payload["token"] != token
        assert payload["expiresAt"] == payload["tokenExpiresAt"] == clock.now_ms() + 3_600_000
        again = await peer.ask("hub:refresh_token", {"token": payload["token"]})
        assert again["type"] == "hub:token_refreshed"


async def test_6_16_session_token_is_good_for_its_session_and_time_only() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer, other = await stage.dial(), await stage.connect()
        token = (await peer.connect())["metadata"]["sessionToken"]

        assert code_of(await other.ask("hub:refresh_token", {"token": token})) == "invalid_token"
        clock.advance(3600)
        assert code_of(await peer.ask("hub:refresh_token", {"token": token})) == "invalid_token"


@pytest.mark.parametrize(
    "payload", [None, {}, {"token": None}, {"token": ""}, {"token": "garbage"}, {"token": "stkn-"}]
)
async def test_6_16_anything_else_is_an_invalid_token(stage: InProcess, payload: object) -> None:
    peer = await stage.connect()

    assert code_of(await peer.ask("hub:refresh_token", payload)) == "invalid_token"
    await peer.nothing_more()


@pytest.mark.parametrize("kid", [None, "shared", "signed"])
@pytest.mark.parametrize("place", ["payload", "metadata"])
async def test_6_16_token_may_be_in_payload_or_metadata(
    guarded: InProcess, kid: str | None, place: str
) -> None:
    token = token_for("@(local/a)", guarded.clock, kid=kid, lifetime_s=600)
    peer = await guarded.connect("@(local/a)", authToken=token)
    members: dict[str, Any] = {"metadata": {"authToken": token}} if place == "metadata" else {}
    payload = None if place == "metadata" else {"token": f"Bearer {token}"}

    reply = await peer.ask("hub:refresh_token", payload, **members)

    assert reply["type"] == "hub:token_refreshed"
    assert reply["payload"]["expiresAt"] == reply["payload"]["tokenExpiresAt"]
    # Only a shared secret lets the hub sign a longer one.
    lifetime_ms = 600_000 if kid == "signed" else 3_600_000
    assert reply["payload"]["expiresAt"] == guarded.clock.now_ms() + lifetime_ms


async def test_6_16_token_of_another_actor_is_refused(guarded: InProcess) -> None:
    mine = token_for("@(local/a)", guarded.clock)
    peer = await guarded.connect("@(local/a)", authToken=mine)

    reply = await peer.ask("hub:refresh_token", {"token": token_for("@(local/b)", guarded.clock)})

    assert code_of(reply) == "invalid_token"
    assert (await peer.register("@(local/a)"))["type"] == "hub:registered"


async def test_6_16_refreshed_token_keeps_the_permissions(guarded: InProcess) -> None:
    token = token_for("@(local/a)", guarded.clock, permissions={"publish": ["news"]})
    peer = await guarded.connect("@(local/a)", authToken=token)

    await peer.ask("hub:refresh_token", {"token": token})

    allowed = await peer.ask("hub:publish", {"topic": "news", "type": "note"})
    denied = await peer.ask("hub:publish", {"topic": "other", "type": "note"})
    assert allowed["type"] == "hub:published"
    assert code_of(denied) == "unauthorized"


@pytest.mark.parametrize("token", ["garbage", "a.b.c", "", "stkn-abc"])
async def test_6_16_bad_token_does_not_end_the_session(guarded: InProcess, token: str) -> None:
    good = token_for("@(local/a)", guarded.clock)
    peer = await guarded.connect("@(local/a)", authToken=good)

    assert code_of(await peer.ask("hub:refresh_token", {"token": token})) == "invalid_token"
    await peer.nothing_more()
