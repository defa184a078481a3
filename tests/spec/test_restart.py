"""Ruling 8: what is left of the registry after the hub was stopped or killed."""

from __future__ import annotations

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.stage import (
    Spawned,
    addresses,
    code_of,
    eventually,
    run_stage,
    spawn_stage,
)


async def until_on_disk(stage: Spawned, address: str) -> None:
    """Registrations are written behind the hub's back; a kill is fair only once that is done."""

    def is_written() -> bool:
        return any(address.encode() in file.read_bytes() for file in stage.hub.data.glob("state*"))

    await eventually(is_written)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
async def test_r8_restored_registrations_are_hidden_until_their_owner_returns(how: str) -> None:
    async with spawn_stage() as stage:
        owner = await stage.connect()
        await owner.register("@(local/a)", "plan")
        version = (await owner.register("@(local/a)", "plan"))["payload"]["version"]
        await owner.ask("hub:subscribe", {"topic": "news"})
        await owner.register("@(local/marker)")
        await until_on_disk(stage, "@(local/marker)")

        if how == "SIGTERM":
            assert await stage.hub.stop() == 0
        else:
            await stage.hub.kill()
        await stage.hub.start()

        asker = await stage.connect()
        assert await addresses(asker) == []
        listed = await asker.ask("hub:list_actors", {})
        assert listed["payload"]["total"] == 0
        reply = await asker.ask_actor("@(local/a)", "note", id="again")
        assert code_of(reply) == "actor_reconnecting"
        assert reply["payload"]["retryable"] is True
        asker.tell("@(local/a)", "note")
        await asker.nothing_more()
        broadcast = await asker.ask("hub:broadcast", {"type": "x"})
        assert broadcast["payload"]["deliveredCount"] == 0
        published = await asker.ask("hub:publish", {"topic": "news", "type": "x"})
        assert published["payload"]["subscriberCount"] == 0
        never = await asker.ask_actor("@(local/never)", "note")
        assert never["type"] == "hub:unknown_actor"

        back = await stage.connect()
        registered = await back.register("@(local/a)", "plan")
        assert registered["payload"]["version"] > version
        assert (await asker.ask_actor("@(local/a)", "note", id="again"))["type"] == (
            "hub:delivery_ack"
        )
        assert (await back.receive("note"))["metadata"]["originalMessageId"] == "again"
        assert await addresses(asker) == ["@(local/a)"]


async def test_r8_waiting_for_an_actor_ends_with_its_lease() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        await stage.join("@(local/a)")
        await stage.hub.stop()
        await stage.hub.start()
        asker = await stage.connect()

        clock.advance(299)
        assert code_of(await asker.ask_actor("@(local/a)", "note")) == "actor_reconnecting"
        clock.advance(2)
        assert (await asker.ask_actor("@(local/a)", "note"))["type"] == "hub:unknown_actor"


async def test_r8_renewed_lease_is_remembered_across_a_planned_stop() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        owner = await stage.join("@(local/a)")
        clock.advance(250)
        await owner.ask("hub:heartbeat")
        await stage.hub.stop()
        await stage.hub.start()
        asker = await stage.connect()

        clock.advance(100)

        assert code_of(await asker.ask_actor("@(local/a)", "note")) == "actor_reconnecting"


async def test_r8_version_goes_on_counting_after_renewals_too() -> None:
    async with run_stage() as stage:
        owner = await stage.join("@(local/a)")
        for _ in range(3):
            await owner.ask("hub:renew", sender="@(local/a)")
        listed = await owner.ask("hub:list_actors", {})
        version = listed["payload"]["actors"][0]["version"]

        await stage.hub.stop()
        await stage.hub.start()
        back = await stage.connect()

        assert (await back.register("@(local/a)"))["payload"]["version"] > version


async def test_r8_restored_registrations_do_not_count_against_the_limit() -> None:
    async with run_stage(registry={"limit": 2}) as stage:
        owner = await stage.connect()
        for address in ("@(local/a)", "@(local/b)"):
            await owner.register(address)
        await stage.hub.stop()
        await stage.hub.start()

        other = await stage.connect()

        assert (await other.register("@(local/c)"))["type"] == "hub:registered"
        assert (await stage.health())["status"] == "ok"


@pytest.mark.parametrize("how", ["disconnect", "unregister", "abort"])
async def test_r8_who_left_before_the_stop_is_not_expected_back(how: str) -> None:
    async with run_stage() as stage:
        witness = await stage.connect()
        owner = await stage.join("@(local/a)")
        match how:
            case "disconnect":
                await owner.ask("hub:disconnect")
            case "unregister":
                await owner.ask("hub:unregister", {"actorAddress": "@(local/a)"})
            case _:
                owner.abort()
                while await addresses(witness):
                    pass

        await stage.hub.stop()
        await stage.hub.start()
        asker = await stage.connect()

        assert (await asker.ask_actor("@(local/a)", "note"))["type"] == "hub:unknown_actor"


async def test_r8_many_lives_on_one_folder() -> None:
    async with run_stage() as stage:
        for life in range(1, 6):
            owner = await stage.connect()
            reply = await owner.register("@(local/a)")
            assert reply["payload"]["version"] == life
            await stage.hub.stop()
            assert (await owner.receive("hub:disconnect"))["payload"]["reason"] == "server_shutdown"
            await stage.hub.start()
