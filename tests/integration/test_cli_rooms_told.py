"""What the commands about rooms say beside their results, and when they fail."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import signalhub
from signalhub import capability
from signalhub.cli.app import run
from signalhub.client.sealing import Sealing, new_key
from signalhub.testing import ChaosProxy, run_hub
from signalhub.wire.base64url import decoded, encoded
from tests.support.process.command import cli, line_of, started, unused_url
from tests.support.socket.scripted_rooms import ScriptedRooms

LIMITED = {"error": "Rate limit exceeded", "errorCode": "RATE_LIMIT_EXCEEDED"}


@pytest.fixture
def key(tmp_path: Path) -> tuple[str, bytes]:
    path, content = tmp_path / "general.key", new_key()
    path.write_text(encoded(content))
    return str(path), content


async def test_a_limit_says_how_long_it_lasts() -> None:
    async with ScriptedRooms() as server:
        fetching = asyncio.ensure_future(cli(server.url, "inbox", "fetch", "x"))
        (await server.request()).answer(429, {**LIMITED, "retryAfterMs": 20_300})
        fetched = await fetching
        asking = asyncio.ensure_future(cli(server.url, "inbox", "fetch", "x", "--json"))
        (await server.request()).answer(429, {**LIMITED, "retryAfterMs": 20_300})
        asked = await asking
        sending = asyncio.ensure_future(cli(server.url, "room", "send", "general", "x"))
        peer = await server.accept()
        sent_id = (await peer.receive("send"))["messageId"]
        peer.say("error", messageId=sent_id, **LIMITED, retryAfterMs=7_000)
        sent = await sending

    assert (fetched.code, sent.code) == (1, 1)
    assert "Rate limit exceeded — nothing was done; try again in 21 s" in fetched.err
    assert "try again in 7 s" in sent.err
    assert json.loads(asked.err)["retryAfterMs"] == 20_300


@pytest.mark.parametrize("command", [("inbox", "fetch", "x", "--all"), ("room", "listen", "x")])
async def test_waiting_for_a_limit_is_said_once(command: tuple[str, ...]) -> None:
    async with ScriptedRooms() as server, started(server.url, *command, "--json") as process:
        if command[0] == "room":
            await server.accept(last_seq=1)
        for _ in range(2):
            (await server.request()).answer(429, {**LIMITED, "retryAfterMs": 10})
        (await server.request()).page(1)
        await line_of(process.stdout, "m1")
        if command[0] == "inbox":
            (await server.request()).page()
        else:
            process.terminate()
        _, err = await process.communicate()

    assert [json.loads(line) for line in err.splitlines()] == [
        {"waiting_s": 1, "reason": "Rate limit exceeded"}
    ]


async def test_what_is_gone_is_said_though_nothing_follows() -> None:
    async with (
        ScriptedRooms() as server,
        started(server.url, "room", "listen", "general") as listener,
    ):
        await server.accept(last_seq=1)
        (await server.request()).page()

        await line_of(listener.stderr, "listening")
        line = await line_of(listener.stderr, "cannot be read")

    assert line == "note: seq 1 cannot be read: deleted, or in another inbox\n"


async def test_one_lost_message_is_singular() -> None:
    async with ScriptedRooms() as server:
        fetching = asyncio.ensure_future(cli(server.url, "inbox", "fetch", "x"))
        (await server.request()).page(2)
        done = await fetching

    assert done.err == "note: seq 1 is no longer stored\n"


async def test_a_position_beyond_the_end_is_said() -> None:
    async with run_hub() as hub, signalhub.hub(hub.url) as rooms:
        async with rooms.room("general") as room:
            await room.send(b"one")
        listen = ("room", "listen", "general", "--since", "9", "--count", "1")
        plain = await cli(hub.url, *listen)
        facts = await cli(hub.url, *listen, "--json")

    assert "note: the room ends at 1; reading from the beginning\n" in plain.err
    assert plain.out.endswith("one\n")
    assert json.loads(facts.err) == {"room_ends_at": 1}


async def test_programs_hear_of_losses_too() -> None:
    async with (
        run_hub() as hub,
        ChaosProxy(hub.port) as network,
        signalhub.hub(hub.url) as rooms,
        rooms.room("general") as room,
        started(network.url, "room", "listen", "general", "--json", "--count", "2") as listener,
    ):
        await room.send(b"before")
        await line_of(listener.stdout, "before")
        network.cut()
        lost = await line_of(listener.stderr, "lost")
        back = await line_of(listener.stderr, "back")
        await room.send(b"after")
        assert await listener.wait() == 0

    assert json.loads(lost)["connection"] == "lost"
    assert json.loads(lost)["reason"]
    assert json.loads(back) == {"connection": "back"}


async def test_a_blind_hub_is_used_with_the_inbox_id_as_room(key: tuple[str, bytes]) -> None:
    path, content = key
    inbox = capability.inbox_id(content)
    async with run_hub(rooms={"mode": "blind"}) as hub:
        refused = await cli(hub.url, "room", "send", "general", "x", "--key", path)
        sent = await cli(hub.url, "room", "send", inbox, "hello", "--key", path)
        fetched = await cli(hub.url, "inbox", "fetch", "--key", path, "--room", inbox)

    assert refused.code == 1
    assert refused.err.startswith("signalhub: This hub is blind: the inbox id is the room id")
    assert "give the inbox id" in refused.err
    assert (sent.code, sent.out) == (0, "seq 1\n")
    assert fetched.out.endswith("hello\n")


async def test_an_inbox_id_may_begin_with_a_dash_and_a_slip_is_no_id() -> None:
    inbox = "-" + capability.inbox_id(new_key())[1:]
    async with run_hub(rooms={"mode": "blind"}) as hub:
        sent = await cli(hub.url, "room", "send", inbox, "hello", "--inbox", inbox)
        fetched = await cli(hub.url, "inbox", "fetch", inbox)
        heard = await cli(hub.url, "room", "listen", inbox, "--inbox", inbox, "--count", "1")
        slips = [
            await cli(hub.url, "inbox", "fetch", "--jsno"),
            await cli(hub.url, "room", "listen", "--cuont", "1"),
            await cli(hub.url, "inbox", "append", "--jsno", "hello"),
        ]

    assert (sent.code, sent.out) == (0, "seq 1\n")
    assert fetched.out.endswith("hello\n")
    assert heard.out.endswith("hello\n")
    assert [(one.code, one.out) for one in slips] == [(2, "")] * 3
    assert all("unknown option" in one.err for one in slips)


async def test_a_hub_that_wants_the_inbox_says_so_once() -> None:
    async with run_hub(rooms={"require_capability": True}) as hub:
        done = await cli(hub.url, "room", "send", "general", "x")

    assert done.code == 1
    assert done.err.count("inbox id") == 1
    assert "--inbox, SIGNALHUB_INBOX or --key" in done.err
    assert "may" not in done.err


async def test_nobody_there_is_said_alike_and_without_numbers_of_errors() -> None:
    url = unused_url()
    sent = await cli(url, "room", "send", "general", "x")
    fetched = await cli(url, "inbox", "fetch", "x")

    told = sent.err.splitlines()[-1]
    assert told == fetched.err.splitlines()[-1]
    assert told.startswith("signalhub: no hub at http://127.0.0.1:")
    assert "nobody listens there — start one with `signalhub serve`" in told


async def test_a_hub_that_hangs_is_no_reason_to_start_one() -> None:
    async with ScriptedRooms() as server:
        for command in (("room", "send", "general", "x"), ("inbox", "fetch", "x")):
            done = await cli(server.url, *command, "--timeout", "0.5")

            assert done.code == 3
            assert "no answer" in done.err
            assert "--timeout" in done.err
            assert "signalhub serve" not in done.err


async def test_what_the_key_does_not_open_is_marked_for_programs(key: tuple[str, bytes]) -> None:
    path, content = key
    sealing = Sealing(content, "general")
    async with run_hub() as hub, signalhub.hub(hub.url) as rooms:
        inbox = rooms.inbox(capability.inbox_id(content))
        await inbox.append(b"never sealed", message_id="a")
        await inbox.append(sealing.seal("b", b"words"), message_id="b")
        await inbox.append(sealing.seal("c", b"\xfb\xff"), message_id="c")
        fetch = ("inbox", "fetch", "--key", path, "--room", "general")
        facts = (await cli(hub.url, *fetch, "--json")).rows()
        plain = await cli(hub.url, *fetch)

    shut, words, data = facts
    assert (shut["sealed"], "text" in shut) == (True, False)
    assert (words["text"], "sealed" in words) == ("words", False)
    assert (decoded(data["plaintext"]), "text" in data) == (b"\xfb\xff", False)
    assert [line.split("\t")[-1] for line in plain.out.splitlines()] == [
        "(cannot be decrypted with this key for this room)",
        "words",
        "-_8",
    ]


async def test_exact_times_keep_their_milliseconds() -> None:
    message = {"seq": 1, "messageId": "a", "ciphertext": "aGk"}
    async with ScriptedRooms() as server:
        for moment in ("2026-01-31T12:00:05.123Z", "2026-01-31T12:00:05Z"):
            fetching = asyncio.ensure_future(cli(server.url, "inbox", "fetch", "x"))
            page = {"messages": [{**message, "createdAt": moment}], "nextSeq": 2}
            (await server.request()).answer(200, page)
            done = await fetching

            assert done.out == f"1\t{moment}\thi\n"


async def test_the_other_commands_take_the_hub_s_http_url() -> None:
    async with run_hub() as hub:
        listed = await cli(hub.http_url, "ls")
        slashed = await cli(f"{hub.http_url}/", "ls")

    assert (listed.code, slashed.code) == (0, 0), listed.err


def test_a_wrong_http_url_is_blamed_on_where_it_was_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SIGNALHUB_URL", "http://127.0.0.1:99999")

    assert run(["ls"]) == 2

    assert "correct SIGNALHUB_URL" in capsys.readouterr().err
