"""Messages, the directory and tokens on the command line, against real and scripted hubs."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

import signalhub
from signalhub import Client
from signalhub.auth.tokens import mint
from signalhub.settings.model import Key
from signalhub.testing import Peer, RunningHub, ScriptedHub, run_hub
from tests.support.process.command import (
    SECRET,
    Run,
    command,
    following,
    hub_knows,
    line_of,
    unused_url,
)

SENT_TO_BOB = "sent to the hub for @(demo/bob); a tell is not acknowledged, use ask for that\n"


async def greet(hub: ScriptedHub) -> Peer:
    """Let a one-shot command in."""
    peer = await hub.accept()
    peer.answer(await peer.receive("hub:connect"), "hub:connected", {"sessionId": "s-1"})
    return peer


async def test_listen_prints_what_tell_sends_as_a_line(hub: RunningHub, run: Run) -> None:
    async with following(hub.url, "listen", "demo/bob", "--count", "2") as bob:
        await line_of(bob.stderr, "listening as @(demo/bob)")

        first = await run("tell", "demo/bob", "hello", "--from", "demo/alice")
        second = await run("tell", "@(demo/bob)", "-", "--type", "x", stdin=b"[1]\n")

        assert (first.code, first.out) == (0, SENT_TO_BOB)
        assert second.code == 0
        assert await line_of(bob.stdout, "hello") == "@(demo/alice)\ttext\thello\n"
        assert (await line_of(bob.stdout, "[1]")).split("\t")[1:] == ["x", "[1]\n"]
        assert await bob.wait() == 0


async def test_with_json_a_message_is_one_object(hub: RunningHub, run: Run) -> None:
    async with following(hub.url, "listen", "demo/bob", "--count", "1", "--json") as bob:
        await hub_knows(hub, "@(demo/bob)")
        ask = ("ask", "demo/bob", '{"a": 1}', "--json", "--from", "demo/alice")
        (asked,) = (await run(*ask)).rows()
        message = json.loads(await line_of(bob.stdout, "payload"))

    assert asked["status"] == "delivered"
    assert message["id"] == asked["id"]
    assert (message["from"], message["to"]) == ("@(demo/alice)", "@(demo/bob)")
    assert (message["payload"], message["topic"]) == ({"a": 1}, None)


async def test_speaking_as_somebody_does_not_take_the_address_away(run: Run, me: Client) -> None:
    done = await run("ask", "demo/alice", "x", "--from", "demo/alice")

    assert done.code == 0
    assert me.is_connected
    assert await me.discover("demo/alice")


async def test_asking_nobody_fails_and_says_where_to_look(run: Run) -> None:
    text = await run("ask", "demo/nobody", "x")
    data = await run("ask", "demo/nobody", "x", "--json")

    assert (text.code, text.out) == (data.code, data.out) == (1, "")
    assert "@(demo/nobody)" in text.err
    assert "signalhub ls" in text.err
    assert json.loads(data.err)["error"] == "unknown_actor"


async def test_no_hub_is_exit_code_3_and_says_how_to_start_one() -> None:
    url = unused_url()
    for words in (
        "ls",
        "listen demo/bob",
        "topic ls",
        "publish orders 1 --durable",
        "subscribe orders --as billing",
        "sub ls",
        "dlq redrive orders --all",
        "room send general x",
        "room listen general",
        "inbox fetch x",
        "inbox append x y",
    ):
        done = await command(url, *words.split())

        assert (done.code, done.out) == (3, ""), words
        assert url.split("/")[2] in done.err
        assert "signalhub serve" in done.err


async def test_the_hub_s_http_url_will_do_but_not_a_wrong_path(hub: RunningHub) -> None:
    right = [await command(url, "ls") for url in (hub.http_url, f"{hub.http_url}/")]
    wrong = await command(hub.url.replace("/ws", "/wrong"), "ls")

    assert [done.code for done in right] == [0, 0]
    assert wrong.code == 3
    assert "HTTP 404" in wrong.err
    assert "/ws" in wrong.err
    assert "signalhub serve" not in wrong.err, "there is no need to start another hub"


async def test_a_hub_that_does_not_greet_is_exit_code_3() -> None:
    async with ScriptedHub() as hub:
        listing = asyncio.create_task(command(hub.url, "ls", "--timeout", "0.3"))
        await hub.accept()

        assert (await listing).code == 3


@pytest.mark.parametrize(
    ("words", "request_type"),
    [(("ask", "demo/bob", "x"), "hub:send"), (("publish", "prices", "1"), "hub:publish")],
)
@pytest.mark.parametrize("is_broken", [False, True])
async def test_no_answer_in_time_is_exit_code_4(
    words: tuple[str, ...], request_type: str, is_broken: bool
) -> None:
    async with ScriptedHub() as hub:
        timeout = "10" if is_broken else "1"
        asking = asyncio.create_task(command(hub.url, *words, "--timeout", timeout))
        peer = await greet(hub)
        await peer.receive(request_type)
        if is_broken:
            peer.abort()
        done = await asking

    assert done.code == 4
    assert "check before you repeat it" in done.err


async def test_a_tell_the_hub_refuses_fails_in_the_name_of_its_sender() -> None:
    async with ScriptedHub() as hub:
        tell = ("tell", "demo/bob", "x", "--from", "demo/alice")
        telling = asyncio.create_task(command(hub.url, *tell))
        peer = await greet(hub)
        peer.refuse(await peer.receive("hub:send"), "unauthorized")
        peer.answer(await peer.receive("hub:heartbeat"), "hub:heartbeat_ack", {})
        peer.answer(await peer.receive("hub:disconnect"), "hub:disconnect", {"acknowledged": True})
        done = await telling

    assert done.code == 1
    assert "unauthorized" in done.err
    assert "from @(demo/alice)" in done.err
    assert "ask the test" in done.err


async def test_an_ask_that_may_be_repeated_says_when_and_names_no_id() -> None:
    async with ScriptedHub() as hub:
        asking = asyncio.create_task(command(hub.url, "ask", "demo/bob", "x", "--timeout", "2"))
        peer = await greet(hub)

        async def refuse_all() -> None:
            while True:
                ask = await peer.receive("hub:send")
                peer.refuse(ask, "actor_reconnecting", retryable=True)

        refusing = asyncio.create_task(refuse_all())
        done = await asking
        refusing.cancel()
        await asyncio.gather(refusing, return_exceptions=True)

    assert done.code == 1
    assert "try again in a few seconds" in done.err
    assert " id" not in done.err


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_hub_is_exit_code_3_and_says_how_long_to_wait(status: int) -> None:
    async with ScriptedHub() as hub:
        hub.refusal = (status, {"Retry-After": "7"})
        once = await command(hub.url, "ls")
        staying = await command(hub.url, "listen", "demo/bob")

    assert hub.upgrades == 2
    for done in (once, staying):
        assert done.code == 3
        assert "try again in 7 s" in done.err
        assert "nothing was sent" in done.err
        assert "signalhub serve" not in done.err


async def test_subscribe_hears_every_topic_its_wildcards_match(hub: RunningHub, run: Run) -> None:
    async with following(hub.url, "subscribe", "prices/#", "+/status", "--count", "2") as reader:
        await line_of(reader.stderr, "subscribed to prices/#, +/status")
        half = await run("subscribe", "pri#", "prices/+", "--for", "0.1")

        counts = [
            (await run("publish", topic, "12", "--json", "--from", "demo/a")).rows()
            for topic in ("prices/eu", "news/x", "hub/status")
        ]

        assert [row["subscribers"] for [row] in counts] == [1, 0, 1]
        assert (half.code, half.err.count("is not a wildcard")) == (0, 1)
        for topic in ("prices/eu", "hub/status"):
            assert await line_of(reader.stdout, topic) == f"{topic}\t@(demo/a)\ttext\t12\n"
        assert await reader.wait() == 0


async def test_ls_pages_through_all_actors_and_is_not_one_of_them() -> None:
    addresses = {f"@(many/{number:03d})" for number in range(230)}
    async with (
        run_hub(message_rate=0) as hub,
        signalhub.connect(hub.url, "@(demo/alice)", capabilities=("plan",)) as alice,
    ):
        await asyncio.gather(*(alice.register(address) for address in addresses))

        listed = await command(hub.url, "ls", "--json")
        found = await command(hub.url, "discover", "demo/*", "--capability", "plan")
        many = await command(hub.url, "discover", "many/*")

    assert {row["address"] for row in listed.rows()} == addresses | {"@(demo/alice)"}
    assert len(listed.rows()) == 231
    assert all(0 < row["lease_s"] <= 300 for row in listed.rows())
    assert found.out == "@(demo/alice)\tplan\n"
    assert len(many.out.splitlines()) == 100
    assert "there are more" in many.err


async def test_discover_says_that_there_are_more_only_if_there_are(run: Run, me: Client) -> None:
    await me.register("@(demo/bob)")

    whole = await run("discover", "demo/*", "--limit", "2")
    rows = await run("discover", "demo/*", "--limit", "1", "--json")
    nothing = await run("discover", "demo")

    assert (whole.code, whole.err) == (0, "")
    assert [row["address"] for row in rows.rows()] == ["@(demo/alice)"]
    assert json.loads(rows.err) == {"has_more": True}
    assert (nothing.code, nothing.out) == (0, "")
    assert "'demo/*'" in nothing.err, "a pattern without a match shows one for those below"


async def test_data_after_two_dashes_is_sent_as_it_stands(hub: RunningHub, run: Run) -> None:
    async with signalhub.connect(hub.url, "@(demo/bob)") as bob:
        for words in (("--", "--json"), ("--type", "note", "--", "--tmeout"), ("--", "-")):
            done = await run("tell", "demo/bob", *words)
            assert (done.code, done.out) == (0, SENT_TO_BOB), done.err
        messages = bob.messages()
        received = [await anext(messages) for _ in range(3)]

    assert [message.payload for message in received] == ["--json", "--tmeout", "-"]
    assert [message.type for message in received] == ["text", "note", "text"]


async def test_broadcast_counts_those_it_reached(hub: RunningHub, run: Run) -> None:
    async with (
        signalhub.connect(hub.url, "@(demo/a)", capabilities=("chat",)) as a,
        signalhub.connect(hub.url, "@(demo/b)"),
    ):
        everybody = await run("broadcast", "hi", "--json")
        chatters = await run("broadcast", "hi", "--capability", "chat")
        message = await anext(a.messages())

    assert everybody.rows() == [{"delivered": 2, "failed": 0, "queued": 0}]
    assert chatters.out == "1 sent, 0 to follow in batches, 0 too slow\n"
    assert message.payload == "hi"


async def test_ping_prints_each_round_trip_within_its_own_timeout(run: Run) -> None:
    timing = ("--count", "3", "--interval", "0.8", "--timeout", "1.5")
    done = await run("ping", *timing, "--json")
    text = await run("ping", "--count", "1")

    *pings, summary = done.rows()
    assert [one["number"] for one in pings] == [1, 2, 3]
    assert 0 < summary["min_ms"] <= summary["mean_ms"] <= summary["max_ms"]
    assert text.out.splitlines()[-1].startswith("min / mean / max: ")


async def test_a_token_opens_a_hub_with_authentication(tmp_path: Path) -> None:
    settings = {"SIGNALHUB_AUTH_ENABLED": "true", "SIGNALHUB_AUTH_SECRET": SECRET}
    mint_one = ("token", "mint", "ops/alice", "--send", "demo/*", "--register", "demo/*")
    minted = await command("", *mint_one, "--create", "orders*", variables=settings)
    path = tmp_path / "token"
    path.write_text(minted.out)
    token = {"SIGNALHUB_TOKEN": minted.out.strip()}
    async with run_hub(auth={"enabled": True, "secret": SECRET}) as hub:
        nobody = await command(hub.url, "ls")
        garbage = await command(hub.url, "ls", variables={"SIGNALHUB_TOKEN": "garbage"})
        known = await command(hub.url, "ls", variables=token)
        asked = await command(hub.url, "ask", "demo/x", "1", "--token-file", str(path))
        foreign = await command(hub.url, "ask", "demo/x", "1", "--from", "ops/b", variables=token)
        barred = await command(hub.url, "tell", "other/x", "1", variables=token)
        created = await command(hub.url, "topic", "create", "orders", variables=token)
        refused = await command(hub.url, "topic", "create", "news", variables=token)

    assert (known.code, created.code) == (0, 0), known.err
    for done, words in (
        (nobody, "signalhub token mint"),
        (garbage, "SIGNALHUB_TOKEN"),
        (asked, "@(demo/x)"),
        (foreign, "--from"),
        (barred, "has no permission to send to @(other/x)"),
        (refused, "a token that permits it"),
    ):
        assert done.code == 1
        assert words in done.err


async def test_a_command_with_a_service_s_own_token_leaves_the_service_alone() -> None:
    token = mint(
        Key(secret=SECRET),
        kid=None,
        subject="tests",
        actor="demo/service",
        permissions={verb: ["*"] for verb in ("send", "broadcast", "publish", "subscribe")},
        lifetime_s=60.0,
        issuer="signal-hub",
        now_s=time.time(),
    )
    own = "@(demo/service)"
    async with (
        run_hub(auth={"enabled": True, "secret": SECRET}) as hub,
        signalhub.connect(hub.url, own, token=token, reconnect=None) as service,
    ):
        await service.subscribe("news")
        session = service.session_id

        for words in (
            ("tell", "demo/service", "1"),
            ("ask", "demo/service", "2"),
            ("publish", "news", "3"),
            ("broadcast", "4"),
            ("discover",),
            ("ping", "--count", "1"),
        ):
            done = await command(hub.url, *words, variables={"SIGNALHUB_TOKEN": token})
            assert done.code == 0, done.err
        listed = await command(hub.url, "ls", "--json", variables={"SIGNALHUB_TOKEN": token})

        messages = service.messages()
        received = [await anext(messages) for _ in range(4)]
        assert [message.payload for message in received] == [1, 2, 3, 4]
        assert {message.sender for message in received} == {own}
        assert [(row["address"], row["version"]) for row in listed.rows()] == [(own, 1)]
        assert service.is_connected
        assert service.session_id == session


async def test_listen_ends_when_its_address_is_taken(hub: RunningHub) -> None:
    async with following(hub.url, "listen", "demo/bob") as bob:
        await line_of(bob.stderr, "listening")

        async with signalhub.connect(hub.url, "@(demo/bob)"):
            assert await bob.wait() == 1

        assert b"choose another address" in await bob.stderr.read()


async def test_listen_keeps_trying_and_ends_with_its_token() -> None:
    async with ScriptedHub() as hub, following(hub.url, "listen", "demo/bob") as bob:
        peer = await hub.accept()
        await peer.welcome()
        await line_of(bob.stderr, "listening")

        hub.refusal = (404, {})
        peer.abort()
        await line_of(bob.stderr, "connection lost")
        line = await line_of(bob.stderr, "not connected")
        assert "HTTP 404" in line
        assert "retrying" in line

        hub.refusal = None
        again = await hub.accept()
        await again.welcome()
        await line_of(bob.stderr, "reconnected")
        again.send("hub:disconnect", {"reason": "unauthorized", "message": "The token expired."})
        assert await bob.wait() == 1
        assert b"signalhub token mint" in await bob.stderr.read()
