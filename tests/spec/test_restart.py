"""Ruling 8: what is left of the registry after the hub was stopped or killed."""

from __future__ import annotations

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import code_of
from tests.support.stage import RunStage, Stage, addresses

A = "@(local/a)"


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_r8_restored_registrations_are_hidden_until_their_owner_returns(
    mortal: Stage, how: str
) -> None:
    stage, owner = mortal, await mortal.connect()
    await owner.register(A, "plan")
    version = (await owner.register(A, "plan"))["payload"]["version"]
    await owner.ask("hub:subscribe", {"topic": "news"})
    # Registrations are written behind the hub's back; a kill is fair only once that is done.
    await stage.pass_time(0.5)

    await stage.restart(how)

    asker = await stage.connect()
    assert await addresses(asker) == []
    assert (await asker.ask("hub:list_actors", {}))["payload"]["total"] == 0
    reply = await asker.ask_actor(A, "note", id="again")
    assert code_of(reply) == "actor_reconnecting"
    assert reply["payload"]["retryable"] is True
    asker.tell(A, "note")
    await asker.nothing_more()
    broadcast = await asker.ask("hub:broadcast", {"type": "x"})
    assert broadcast["payload"]["deliveredCount"] == 0
    published = await asker.ask("hub:publish", {"topic": "news", "type": "x"})
    assert published["payload"]["subscriberCount"] == 0
    assert (await asker.ask_actor("@(local/never)", "note"))["type"] == "hub:unknown_actor"

    back = await stage.connect()
    assert (await back.register(A, "plan"))["payload"]["version"] > version
    assert (await asker.ask_actor(A, "note", id="again"))["type"] == "hub:delivery_ack"
    assert (await back.receive("note"))["metadata"]["originalMessageId"] == "again"
    assert await addresses(asker) == [A]


async def test_r8_waiting_for_an_actor_ends_with_its_lease(run_stage: RunStage) -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        owner = await stage.join(A)
        # A renewed lease is remembered.
        clock.advance(250)
        await owner.ask("hub:heartbeat")
        await stage.restart()
        asker = await stage.connect()

        clock.advance(299)
        assert code_of(await asker.ask_actor(A, "note")) == "actor_reconnecting"
        clock.advance(2)
        assert (await asker.ask_actor(A, "note"))["type"] == "hub:unknown_actor"


@pytest.mark.also_over_sockets
async def test_r8_versions_go_on_counting_through_many_lives(run_stage: RunStage) -> None:
    async with run_stage(registry={"limit": 2}) as stage:
        version = 0
        for _ in range(3):
            owner = await stage.connect()
            again = (await owner.register(A))["payload"]["version"]
            assert again == version + 1
            for _ in range(3):
                await owner.ask("hub:renew", sender=A)
            listed = await owner.ask("hub:list_actors", {})
            version = listed["payload"]["actors"][0]["version"]
            await stage.stop()
            assert (await owner.receive("hub:disconnect"))["payload"]["reason"] == "server_shutdown"
            await stage.start()
        # Restored registrations do not count against the limit.
        other = await stage.connect()
        for address in ("@(local/b)", "@(local/c)"):
            assert (await other.register(address))["type"] == "hub:registered"


@pytest.mark.parametrize("how", ["disconnect", "unregister", "abort"])
async def test_r8_who_left_before_the_stop_is_not_expected_back(stage: Stage, how: str) -> None:
    witness, owner = await stage.connect(), await stage.join(A)
    match how:
        case "disconnect":
            await owner.ask("hub:disconnect")
        case "unregister":
            await owner.ask("hub:unregister", {"actorAddress": A})
        case _:
            owner.abort()
    async for _ in witness.polls():
        if not await addresses(witness):
            break

    await stage.restart()

    asker = await stage.connect()
    assert (await asker.ask_actor(A, "note"))["type"] == "hub:unknown_actor"
