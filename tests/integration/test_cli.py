"""The command line as its users run it: real processes against a real hub."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest

import signalhub
from signalhub.auth.tokens import mint
from signalhub.settings.model import Key
from signalhub.testing import ChaosProxy, Peer, ScriptedHub, run_hub, spawn_hub
from tests.support.process.command import SECRET, cli, hub_knows, line_of, started, unused_url

SENT_TO_BOB = "sent to the hub for @(demo/bob); a tell is not acknowledged, use ask for that\n"


async def greet(hub: ScriptedHub) -> Peer:
    """Let a one-shot command in."""
    peer = await hub.accept()
    peer.answer(await peer.receive("hub:connect"), "hub:connected", {"sessionId": "s-1"})
    return peer


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_serve_says_where_it_listens_and_stops_when_told(
    number: signal.Signals, tmp_path: Path
) -> None:
    async with started("", "serve", "--port", "0", "--data", str(tmp_path)) as process:
        line = await line_of(process.stdout, "Signal Hub 0.1.0 listening on ws://127.0.0.1:")
        url = line.split()[-1]
        assert not url.endswith(":0/ws")

        assert (await cli(url, "ping", "--count", "1")).code == 0
        process.send_signal(number)

        assert await process.wait() == 0


async def test_serve_says_that_its_port_is_taken(tmp_path: Path) -> None:
    async with run_hub() as hub:
        done = await cli("", "serve", "--port", str(hub.port), "--data", str(tmp_path))

    assert done.code == 1
    assert f"port {hub.port}" in done.err
    assert "--port" in done.err
    assert done.out == ""


async def test_listen_prints_what_tell_sends() -> None:
    async with run_hub() as hub, started(hub.url, "listen", "demo/bob", "--count", "2") as bob:
        await line_of(bob.stderr, "listening as @(demo/bob)")

        first = await cli(hub.url, "tell", "demo/bob", "hello", "--from", "demo/alice")
        second = await cli(hub.url, "tell", "@(demo/bob)", "-", "--type", "json", stdin=b"[1]\n")

        assert (first.code, first.out) == (0, SENT_TO_BOB)
        assert second.code == 0
        assert await line_of(bob.stdout, "hello") == "@(demo/alice)\ttext\thello\n"
        assert (await line_of(bob.stdout, "[1]")).split("\t")[1:] == ["json", "[1]\n"]
        assert await bob.wait() == 0


async def test_with_json_a_message_is_one_object() -> None:
    async with (
        run_hub() as hub,
        started(hub.url, "listen", "demo/bob", "--count", "1", "--json") as bob,
    ):
        await hub_knows(hub, "@(demo/bob)")

        asked = await cli(hub.url, "ask", "demo/bob", '{"a": 1}', "--json", "--from", "demo/alice")
        message = json.loads(await line_of(bob.stdout, "payload"))

    assert asked.rows()[0]["status"] == "delivered"
    assert message["id"] == asked.rows()[0]["id"]
    assert (message["from"], message["to"]) == ("@(demo/alice)", "@(demo/bob)")
    assert message["payload"] == {"a": 1}
    assert message["topic"] is None


async def test_speaking_as_somebody_does_not_take_the_address_away() -> None:
    async with run_hub() as hub, signalhub.connect(hub.url, "@(demo/alice)") as alice:
        done = await cli(hub.url, "ask", "demo/alice", "x", "--from", "demo/alice")

        assert done.code == 0
        assert alice.is_connected
        assert await alice.discover("demo/alice")


async def test_asking_nobody_is_exit_code_1_and_says_where_to_look() -> None:
    async with run_hub() as hub:
        text = await cli(hub.url, "ask", "demo/nobody", "x")
        data = await cli(hub.url, "ask", "demo/nobody", "x", "--json")

    assert text.code == data.code == 1
    assert "@(demo/nobody)" in text.err
    assert "signalhub ls" in text.err
    assert json.loads(data.err)["error"] == "unknown_actor"
    assert text.out == data.out == ""


async def test_no_hub_is_exit_code_3_and_says_how_to_start_one() -> None:
    url = unused_url()
    done = await cli(url, "ls")

    assert done.code == 3
    assert url in done.err
    assert "signalhub serve" in done.err


async def test_a_hub_that_does_not_greet_is_exit_code_3() -> None:
    async with ScriptedHub() as hub, started(hub.url, "ls", "--timeout", "0.3") as process:
        await hub.accept()

        assert await process.wait() == 3


async def test_an_ask_without_an_answer_is_exit_code_4() -> None:
    async with (
        ScriptedHub() as hub,
        started(hub.url, "ask", "demo/bob", "x", "--timeout", "1.5") as process,
    ):
        peer = await greet(hub)
        await peer.receive("hub:send")

        assert await process.wait() == 4
        assert process.stderr is not None
        assert b"check before you repeat it" in await process.stderr.read()


async def test_an_ask_whose_connection_breaks_is_exit_code_4() -> None:
    async with ScriptedHub() as hub, started(hub.url, "ask", "demo/bob", "x") as process:
        peer = await greet(hub)
        await peer.receive("hub:send")
        peer.abort()

        assert await process.wait() == 4


async def test_a_tell_the_hub_refuses_is_exit_code_1() -> None:
    async with (
        ScriptedHub() as hub,
        started(hub.url, "tell", "demo/bob", "x", "--from", "demo/alice") as process,
    ):
        peer = await greet(hub)
        peer.refuse(await peer.receive("hub:send"), "unauthorized")
        peer.answer(await peer.receive("hub:heartbeat"), "hub:heartbeat_ack", {})
        peer.answer(await peer.receive("hub:disconnect"), "hub:disconnect", {"acknowledged": True})

        assert await process.wait() == 1
        assert process.stderr is not None
        said = (await process.stderr.read()).decode()
        assert "unauthorized" in said
        assert "from @(demo/alice)" in said
        assert "--token-file" in said or "ask the test" in said


async def test_ctrl_c_is_exit_code_130() -> None:
    async with run_hub() as hub, started(hub.url, "listen", "demo/bob") as bob:
        await line_of(bob.stderr, "listening")

        bob.send_signal(signal.SIGINT)
        out, err = await bob.communicate()

    assert bob.returncode == 130
    assert (out, err) == (b"", b"")


async def test_too_few_messages_in_time_are_exit_code_1() -> None:
    async with run_hub() as hub:
        done = await cli(hub.url, "listen", "demo/bob", "--count", "1", "--for", "0.1")
        quiet = await cli(hub.url, "subscribe", "prices", "--for", "0.1")

    assert done.code == 1
    assert "0 of 1 messages" in done.err
    assert quiet.code == 0


async def test_a_reader_that_has_enough_ends_listen_without_noise() -> None:
    async with run_hub() as hub, started(hub.url, "listen", "demo/bob") as bob:
        await line_of(bob.stderr, "listening")
        assert bob.stdout is not None
        bob.stdout._transport.close()  # type: ignore[attr-defined]

        await cli(hub.url, "tell", "demo/bob", "one")

        assert await bob.wait() == 0
        assert bob.stderr is not None
        assert await bob.stderr.read() == b""


async def test_subscribe_hears_every_topic_its_wildcards_match() -> None:
    async with (
        run_hub() as hub,
        started(hub.url, "subscribe", "prices/#", "+/status", "--count", "2") as reader,
    ):
        await line_of(reader.stderr, "subscribed to prices/#, +/status")

        counts = [
            (await cli(hub.url, "publish", topic, "12", "--json", "--from", "demo/a")).rows()
            for topic in ("prices/eu", "news/x", "hub/status")
        ]
        lines = [await line_of(reader.stdout, "12") for _ in range(2)]

        assert [row["subscribers"] for [row] in counts] == [1, 0, 1]
        assert lines == ["prices/eu\t@(demo/a)\ttext\t12\n", "hub/status\t@(demo/a)\ttext\t12\n"]
        assert await reader.wait() == 0


async def test_ls_pages_through_all_actors_and_is_not_one_of_them() -> None:
    addresses = {f"@(many/{number:03d})" for number in range(230)}
    async with (
        run_hub(message_rate=0) as hub,
        signalhub.connect(hub.url, "@(demo/alice)", capabilities=("plan",)) as alice,
    ):
        await asyncio.gather(*(alice.register(address) for address in addresses))

        listed = await cli(hub.url, "ls", "--json")
        found = await cli(hub.url, "discover", "demo/*", "--capability", "plan")
        many = await cli(hub.url, "discover", "many/*")

    assert {row["address"] for row in listed.rows()} == addresses | {"@(demo/alice)"}
    assert len(listed.rows()) == 231
    assert all(0 < row["lease_s"] <= 300 for row in listed.rows())
    assert found.out == "@(demo/alice)\tplan\n"
    assert len(many.out.splitlines()) == 100
    assert "there are more" in many.err


async def test_discover_says_that_there_are_more_only_if_there_are() -> None:
    async with run_hub() as hub, signalhub.connect(hub.url, "@(demo/a)") as alice:
        await alice.register("@(demo/b)")

        whole = await cli(hub.url, "discover", "demo/*", "--limit", "2")
        part = await cli(hub.url, "discover", "demo/*", "--limit", "1")
        rows = await cli(hub.url, "discover", "demo/*", "--limit", "1", "--json")

    assert (whole.code, whole.err) == (0, "")
    assert part.code == 0
    assert "there are more" in part.err
    assert [row["address"] for row in rows.rows()] == ["@(demo/a)"]
    assert json.loads(rows.err) == {"has_more": True}


@pytest.mark.parametrize("status", [429, 503])
async def test_a_hub_that_is_busy_is_exit_code_3_and_says_how_long_to_wait(status: int) -> None:
    async with ScriptedHub() as hub:
        hub.refusal = (status, {"Retry-After": "7"})
        once = await cli(hub.url, "ls")
        staying = await cli(hub.url, "listen", "demo/bob")

    assert hub.upgrades == 2
    for done in (once, staying):
        assert done.code == 3
        assert "try again in 7 s" in done.err
        assert "nothing was sent" in done.err
        assert "signalhub serve" not in done.err


async def test_data_after_two_dashes_is_sent_as_it_stands() -> None:
    async with run_hub() as hub, signalhub.connect(hub.url, "@(demo/bob)") as bob:
        for words in (("--", "--json"), ("--type", "note", "--", "--tmeout"), ("--", "-")):
            done = await cli(hub.url, "tell", "demo/bob", *words)
            assert (done.code, done.out) == (0, SENT_TO_BOB), done.err
        messages = bob.messages()
        received = [await anext(messages) for _ in range(3)]

    assert [message.payload for message in received] == ["--json", "--tmeout", "-"]
    assert [message.type for message in received] == ["text", "note", "text"]


async def test_broadcast_counts_those_it_reached() -> None:
    async with (
        run_hub() as hub,
        signalhub.connect(hub.url, "@(demo/a)", capabilities=("chat",)) as a,
        signalhub.connect(hub.url, "@(demo/b)"),
    ):
        everybody = await cli(hub.url, "broadcast", "hi", "--json")
        chatters = await cli(hub.url, "broadcast", "hi", "--capability", "chat")
        message = await anext(a.messages())

    assert everybody.rows() == [{"delivered": 2, "failed": 0, "queued": 0}]
    assert chatters.out == "1 sent, 0 to follow in batches, 0 too slow\n"
    assert message.payload == "hi"


async def test_ping_prints_each_round_trip_and_a_summary() -> None:
    async with run_hub() as hub:
        done = await cli(hub.url, "ping", "--count", "2", "--interval", "0", "--json")

    first, second, summary = done.rows()
    assert [first["number"], second["number"]] == [1, 2]
    assert 0 < summary["min_ms"] <= summary["mean_ms"] <= summary["max_ms"]


async def test_the_timeout_is_for_each_answer_not_for_the_whole_command() -> None:
    async with run_hub() as hub:
        timing = ("--count", "3", "--interval", "1", "--timeout", "1.5")
        done = await cli(hub.url, "ping", *timing, "--json")

    assert done.code == 0, done.err
    assert len(done.rows()) == 4


async def test_a_request_without_an_answer_is_exit_code_4() -> None:
    async with (
        ScriptedHub() as hub,
        started(hub.url, "publish", "prices", "1", "--timeout", "1.5") as process,
    ):
        peer = await greet(hub)
        await peer.receive("hub:publish")

        assert await process.wait() == 4


async def test_a_token_opens_a_hub_with_authentication(tmp_path: Path) -> None:
    settings = {"SIGNALHUB_AUTH_ENABLED": "true", "SIGNALHUB_AUTH_SECRET": SECRET}
    async with spawn_hub(auth={"enabled": True, "secret": SECRET}) as hub:
        permissions = ("--send", "demo/*", "--register", "demo/*")
        minted = await cli(hub.url, "token", "mint", "ops/alice", *permissions, variables=settings)
        token = {"SIGNALHUB_TOKEN": minted.out.strip()}
        path = tmp_path / "token"
        path.write_text(minted.out)

        nobody = await cli(hub.url, "ls")
        garbage = await cli(hub.url, "ls", variables={"SIGNALHUB_TOKEN": "garbage"})
        foreign = await cli(hub.url, "ask", "demo/x", "1", "--from", "ops/bob", variables=token)
        known = await cli(hub.url, "ls", variables=token)
        asked = await cli(hub.url, "ask", "demo/x", "1", "--token-file", str(path))
        barred = await cli(hub.url, "tell", "other/x", "1", variables=token)

    assert nobody.code == garbage.code == 1
    for done in (nobody, garbage):
        assert "signalhub token mint" in done.err
        assert "SIGNALHUB_TOKEN" in done.err
    assert foreign.code == 1
    assert "--from" in foreign.err
    assert known.code == 0, known.err
    assert asked.code == 1
    assert "@(demo/x)" in asked.err
    assert barred.code == 1
    assert "does not permit to send to @(other/x)" in barred.err


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

        for command in (
            ("tell", "demo/service", "1"),
            ("ask", "demo/service", "2"),
            ("publish", "news", "3"),
            ("broadcast", "4"),
            ("discover",),
            ("ping", "--count", "1"),
        ):
            done = await cli(hub.url, *command, variables={"SIGNALHUB_TOKEN": token})
            assert done.code == 0, done.err
        listed = await cli(hub.url, "ls", "--json", variables={"SIGNALHUB_TOKEN": token})

        messages = service.messages()
        received = [await anext(messages) for _ in range(4)]
        assert [message.payload for message in received] == [1, 2, 3, 4]
        assert {message.sender for message in received} == {own}
        assert [(row["address"], row["version"]) for row in listed.rows()] == [(own, 1)]
        assert service.is_connected
        assert service.session_id == session


async def test_listen_comes_back_after_the_hub_was_away() -> None:
    async with (
        run_hub() as hub,
        ChaosProxy(hub.port) as proxy,
        started(proxy.url, "listen", "demo/bob", "--count", "1") as bob,
    ):
        await line_of(bob.stderr, "listening")

        proxy.cut()
        await line_of(bob.stderr, "lost")
        await line_of(bob.stderr, "reconnected")
        done = await cli(hub.url, "ask", "demo/bob", "back")

        assert done.code == 0
        await line_of(bob.stdout, "back")
        assert await bob.wait() == 0


async def test_listen_ends_when_its_address_is_taken() -> None:
    async with run_hub() as hub, started(hub.url, "listen", "demo/bob") as bob:
        await line_of(bob.stderr, "listening")

        async with signalhub.connect(hub.url, "@(demo/bob)"):
            assert await bob.wait() == 1

        assert bob.stderr is not None
        assert b"choose another address" in await bob.stderr.read()


async def test_listen_says_that_it_keeps_trying_while_the_hub_turns_it_away() -> None:
    async with ScriptedHub() as hub, started(hub.url, "listen", "demo/bob") as bob:
        peer = await hub.accept()
        await peer.welcome()
        await line_of(bob.stderr, "listening")

        hub.refusal = (404, {})
        peer.abort()

        await line_of(bob.stderr, "connection lost")
        line = await line_of(bob.stderr, "not connected")
        assert "HTTP 404" in line
        assert "retrying" in line


async def test_listen_ends_with_its_token_and_says_how_to_get_another() -> None:
    async with ScriptedHub() as hub, started(hub.url, "listen", "demo/bob") as bob:
        peer = await hub.accept()
        await peer.welcome()
        await line_of(bob.stderr, "listening")

        peer.send("hub:disconnect", {"reason": "unauthorized", "message": "The token has expired."})

        assert await bob.wait() == 1
        assert bob.stderr is not None
        assert b"signalhub token mint" in await bob.stderr.read()


async def test_a_wrong_path_is_not_answered_with_the_advice_to_start_a_hub() -> None:
    async with run_hub() as hub:
        done = await cli(hub.url.replace("/ws", "/wrong"), "ls")

    assert done.code == 3
    assert "HTTP 404" in done.err
    assert "/ws" in done.err
    assert "signalhub serve" not in done.err


async def test_an_ask_that_may_be_repeated_says_when_and_speaks_of_no_id() -> None:
    async with (
        ScriptedHub() as hub,
        started(hub.url, "ask", "demo/bob", "x", "--timeout", "2") as process,
    ):
        peer = await greet(hub)

        async def refuse_all() -> None:
            while True:
                ask = await peer.receive("hub:send")
                peer.refuse(ask, "actor_reconnecting", retryable=True)

        refusing = asyncio.create_task(refuse_all())
        code = await process.wait()
        refusing.cancel()
        await asyncio.gather(refusing, return_exceptions=True)

        assert code == 1
        assert process.stderr is not None
        said = await process.stderr.read()
        assert b"try again in a few seconds" in said
        assert b" id" not in said


async def test_a_second_hub_on_the_same_data_is_told_of_the_first(tmp_path: Path) -> None:
    serve = ("serve", "--port", "0", "--data", str(tmp_path))
    async with started("", *serve) as first:
        await line_of(first.stdout, "listening")

        second = await cli("", *serve)

    assert second.code == 2
    assert "probably by a running hub" in second.err
    assert "--port" in second.err


async def test_a_level_that_only_looks_like_a_wildcard_is_remarked() -> None:
    async with run_hub() as hub:
        text = await cli(hub.url, "subscribe", "pri#", "prices/+", "--for", "0.1")
        data = await cli(hub.url, "subscribe", "pri#", "--for", "0.1", "--json")

    assert text.code == data.code == 0
    assert text.err.count("is not a wildcard") == 1
    assert json.loads(data.err) == {"no_wildcard": "pri#"}


async def test_discover_without_a_match_shows_how_to_find_those_below() -> None:
    async with run_hub() as hub, signalhub.connect(hub.url, "@(demo/alice)"):
        without = await cli(hub.url, "discover", "demo")
        found = await cli(hub.url, "discover", "demo/*")

    assert (without.code, without.out) == (0, "")
    assert "'demo/*'" in without.err
    assert found.err == ""
