"""Rooms and inboxes on the command line: processes against a real hub."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

import pytest

import signalhub
from signalhub import Hub, capability
from signalhub.cli.app import run
from signalhub.cli.rooms import room as room_commands
from signalhub.client.arguments import TYPES
from signalhub.client.sealing import Sealing
from signalhub.testing import ChaosProxy, RunningHub, run_hub
from signalhub.wire.base64url import decoded
from tests.support.process.command import Done, cli, line_of, started, unused_url
from tests.support.socket.scripted_rooms import ScriptedRooms

GENERAL = "Z2VuZXJhbA"
UNENCRYPTED = "note: sent unencrypted, so the hub can read it; use --key to encrypt\n"


@pytest.fixture
async def hub() -> AsyncIterator[RunningHub]:
    async with run_hub() as running:
        yield running


@pytest.fixture
async def rooms(hub: RunningHub) -> AsyncIterator[Hub]:
    async with signalhub.hub(hub.url) as rooms:
        yield rooms


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "general.key"
    assert run(["room", "key", "--out", str(path)]) == 0
    return str(path)


def key_in(path: str) -> bytes:
    return decoded(Path(path).read_text().strip())


def columns(done: Done) -> list[list[str]]:
    return [line.split("\t") for line in done.out.splitlines()]


async def test_what_one_sends_another_hears(hub: RunningHub) -> None:
    async with started(hub.url, "room", "listen", "general", "--count", "2") as listener:
        await line_of(listener.stderr, "listening; press Ctrl-C to stop")

        first = await cli(hub.url, "room", "send", "general", "hello", "--pseudonym", "p1")
        second = await cli(
            hub.http_url, "room", "send", "general", "-", "--pseudonym", "p2", stdin=b"two\nlines\n"
        )

        assert (first.code, first.out, first.err) == (0, "seq 1\n", UNENCRYPTED)
        assert (second.code, second.out) == (0, "seq 2\n")
        assert await line_of(listener.stdout, "hello") == "1\tp1\tmls_app\thello\n"
        assert await line_of(listener.stdout, "lines") == '2\tp2\tmls_app\t"two\\nlines"\n'
        assert await listener.wait() == 0


async def test_what_was_said_is_heard_first_and_with_new_not_at_all(
    hub: RunningHub, rooms: Hub
) -> None:
    async with rooms.room("general") as room:
        for word in (b"one", b"two", b"three"):
            await room.send(word)

        since = await cli(hub.url, "room", "listen", "general", "--since", "1", "--count", "2")
        async with started(hub.url, "room", "listen", "general", "--new", "--count", "1") as late:
            await line_of(late.stderr, "listening")
            await room.send(b"four")
            out, _ = await late.communicate()

    assert [line[-1] for line in columns(since)] == ["two", "three"]
    assert out.decode().splitlines()[0].split("\t")[-1] == "four"


async def test_with_json_everything_is_an_object(hub: RunningHub) -> None:
    sent = await cli(hub.url, "room", "send", "general", "hi", "--id", "a", "--json")
    again = await cli(hub.url, "room", "send", "general", "hi", "--id", "a", "--json")
    said = await cli(hub.url, "room", "send", "general", "hi", "--id", "a")
    heard = await cli(hub.url, "room", "listen", "general", "--count", "1", "--json")
    stored = await cli(hub.url, "inbox", "append", GENERAL, "later", "--json")
    fetched = await cli(hub.url, "inbox", "fetch", GENERAL, "--json")

    assert sent.rows() == [{"messageId": "a", "seq": 1, "duplicate": False}]
    assert json.loads(sent.err) == {"encrypted": False}
    assert again.rows()[0]["duplicate"] is True
    assert said.out == "seq 1 (duplicate)\n"
    (message,) = heard.rows()
    assert (message["seq"], message["messageId"], message["text"]) == (1, "a", "hi")
    assert (message["ciphertext"], heard.err) == ("aGk", "")
    assert stored.rows()[0]["seq"] == 2
    assert [row["text"] for row in fetched.rows()] == ["hi", "later"]
    assert fetched.rows()[0]["createdAt"].endswith("Z")


async def test_a_key_keeps_the_hub_from_reading(
    hub: RunningHub, rooms: Hub, key_file: str, tmp_path: Path
) -> None:
    other = str(tmp_path / "other.key")
    assert run(["room", "key", "--out", other]) == 0
    tenant = ("--tenant", "acme")
    sent = await cli(hub.url, "room", "send", "general", "psst", *tenant, "--key", key_file)
    heard = await cli(
        hub.url, "room", "listen", "general", *tenant, "--key", key_file, "--count", "1"
    )
    fetched = await cli(hub.url, "inbox", "fetch", "--key", key_file, "--room", "general", *tenant)
    inbox = capability.inbox_id(key_in(key_file))
    wrong = await cli(
        hub.url, "inbox", "fetch", inbox, "--key", other, "--room", "general", *tenant
    )
    raw = await cli(hub.url, "inbox", "fetch", inbox, "--raw")
    keyed = await cli(hub.url, "inbox", "fetch", "--key", key_file, "--raw")
    listened = await cli(
        hub.url, "room", "listen", "general", *tenant, "--key", key_file, "--raw", "--count", "1"
    )
    page = await rooms.inbox(inbox).fetch()

    assert (sent.code, sent.out, sent.err) == (0, "seq 1\n", "")
    assert columns(heard)[0][-1] == "psst"
    assert columns(fetched)[0][-1] == "psst"
    assert columns(wrong)[0][-1] == "(cannot be decrypted with this key for this room)"
    assert b"psst" not in page.messages[0].ciphertext
    assert decoded(columns(raw)[0][-1]) == page.messages[0].ciphertext
    assert columns(keyed) == columns(raw)
    assert columns(listened)[0][-1] == columns(raw)[0][-1]


async def test_the_command_line_and_programs_seal_alike(
    hub: RunningHub, rooms: Hub, key_file: str
) -> None:
    key = key_in(key_file)
    sealing = Sealing(key, "general")
    async with rooms.room("general", inbox=capability.inbox_id(key)) as room:
        await room.send(sealing.seal("a", b"from a program"), message_id="a")
        await cli(hub.url, "room", "send", "general", "from a shell", "--key", key_file)
        heard = await cli(hub.url, "room", "listen", "general", "--key", key_file, "--count", "2")
        async with asyncio.timeout(20):
            await anext(room)
            message = await anext(room)

    assert [line[-1] for line in columns(heard)] == ["from a program", "from a shell"]
    assert sealing.open(message.message_id, message.ciphertext) == b"from a shell"


def test_a_key_is_for_its_owner_alone_and_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "general.key"
    assert run(["room", "key", "--out", str(path)]) == 0
    before, inbox = path.read_text(), capsys.readouterr().out

    assert run(["room", "key", "--out", str(path)]) == 1

    assert "may contain a key in use" in capsys.readouterr().err
    assert path.read_text() == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert inbox == capability.inbox_id(key_in(str(path))) + "\n"
    assert run(["room", "key", "--show", str(path)]) == 0
    assert capsys.readouterr().out == inbox


@pytest.mark.parametrize(
    "content",
    [
        bytes(range(32)),
        bytes(range(32)).hex().encode() + b"\n",
        b"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8\n",
    ],
    ids=["bytes", "hex", "base64url"],
)
async def test_a_key_is_written_in_one_of_three_ways(
    hub: RunningHub, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)

    sent = await cli(hub.url, "room", "send", "general", "hi", "--key", str(path))
    variables = {"SIGNALHUB_INBOX": "pw1oQgdmuN2WQLXM3CpAZaVIVGvyJRwpcv9QG4XsHfg"}
    fetched = await cli(
        hub.url, "inbox", "fetch", "--key", str(path), "--room", "general", variables=variables
    )

    assert sent.code == 0
    assert columns(fetched)[0][-1] == "hi"


async def test_an_inbox_is_fetched_in_parts_or_as_a_whole(hub: RunningHub) -> None:
    variables = {"SIGNALHUB_INBOX": GENERAL}
    for word in ("one", "two", "three"):
        done = await cli(hub.url, "inbox", "append", word, variables=variables)
        assert done.code == 0, done.err

    part = await cli(hub.url, "inbox", "fetch", "--limit", "2", variables=variables)
    rest = await cli(hub.url, "inbox", "fetch", GENERAL, "--from", "3")
    whole = await cli(hub.url, "inbox", "fetch", GENERAL, "--all", "--json")
    empty = await cli(hub.url, "inbox", "fetch", "nobody-knows-me")

    assert [line[-1] for line in columns(part)] == ["one", "two"]
    assert "--from 3" in part.err
    assert [line[-1] for line in columns(rest)] == ["three"]
    assert rest.err == ""
    assert [row["seq"] for row in whole.rows()] == [1, 2, 3]
    assert (empty.code, empty.out) == (0, "")
    assert empty.err == "note: no messages; an unused inbox looks the same\n"


async def test_bytes_that_are_no_words_are_shown_as_base64url(hub: RunningHub, rooms: Hub) -> None:
    sent = await cli(hub.url, "room", "send", "general", "-_8", "--raw")
    shown = await cli(hub.url, "inbox", "fetch", GENERAL)
    page = await rooms.inbox(GENERAL).fetch()

    assert (sent.code, sent.err) == (0, "")
    assert page.messages[0].ciphertext == b"\xfb\xff"
    assert columns(shown)[0][-1] == "-_8"


async def test_kinds_of_messages_are_passed_on(hub: RunningHub, rooms: Hub) -> None:
    async with rooms.room("general") as room:
        await cli(
            hub.url, "room", "send", "general", "x", "--type", "mls_proposal", "--proposal", "p"
        )
        async with asyncio.timeout(20):
            message = await anext(room)

    assert message.type == "mls_proposal"
    assert get_args(room_commands.Kind) == TYPES


async def test_a_room_with_another_inbox_is_refused_in_the_hub_s_own_words(
    hub: RunningHub, key_file: str
) -> None:
    assert (await cli(hub.url, "room", "send", "general", "x", "--inbox", "first")).code == 0

    done = await cli(hub.url, "room", "send", "general", "x", "--key", key_file)
    failure = await cli(hub.url, "room", "listen", "general", "--inbox", "second", "--json")

    assert (done.code, failure.code) == (1, 1)
    assert done.err.startswith("signalhub: The room or the inbox is bound to another one")
    assert "--inbox, SIGNALHUB_INBOX or --key" in done.err
    assert json.loads(failure.err)["error"] == "CONFLICT"


async def test_what_was_gone_is_said() -> None:
    async with ScriptedRooms() as server:
        fetching = asyncio.ensure_future(cli(server.url, "inbox", "fetch", "x"))
        (await server.request()).page(4, 5)
        fetched = await fetching
        everything = asyncio.ensure_future(cli(server.url, "inbox", "fetch", "x", "--all"))
        (await server.request()).page(4, 5)
        (await server.request()).page()
        all_of_it = await everything
        listening = asyncio.ensure_future(
            cli(server.url, "room", "listen", "general", "--count", "1", "--json")
        )
        await server.accept(last_seq=4)
        (await server.request()).page(4)
        listened = await listening

    assert fetched.err == all_of_it.err == "note: seq 1 to 3 are no longer stored\n"
    assert json.loads(listened.err) == {"lost_from": 1, "lost_to": 3}
    assert (fetched.code, all_of_it.code, listened.code) == (0, 0, 0)


async def test_a_page_with_holes_is_a_failure() -> None:
    async with ScriptedRooms() as server:
        fetching = asyncio.ensure_future(cli(server.url, "inbox", "fetch", "x"))
        (await server.request()).page(5, partial=True, nextSeq=1)
        done = await fetching

    assert done.code == 1
    assert "try again" in done.err


async def test_too_few_messages_in_time_is_a_failure(hub: RunningHub) -> None:
    done = await cli(hub.url, "room", "listen", "general", "--count", "1", "--for", "0.2")
    silent = await cli(hub.url, "room", "listen", "general", "--for", "0.2")

    assert (done.code, silent.code) == (1, 0)
    assert "--for" in done.err


async def test_a_listener_survives_a_loss_and_says_so(hub: RunningHub, rooms: Hub) -> None:
    async with (
        ChaosProxy(hub.port) as network,
        started(network.url, "room", "listen", "general", "--count", "2") as listener,
        rooms.room("general") as room,
    ):
        await line_of(listener.stderr, "listening")
        await room.send(b"before")
        await line_of(listener.stdout, "before")
        network.cut()
        await room.send(b"after")

        await line_of(listener.stdout, "after")
        assert await listener.wait() == 0
        await line_of(listener.stderr, "connection lost")


async def test_nobody_there_is_exit_code_3() -> None:
    url = unused_url()
    for command in (
        ("room", "send", "general", "x"),
        ("room", "listen", "general"),
        ("inbox", "fetch", "x"),
        ("inbox", "append", "x", "y"),
    ):
        done = await cli(url, *command)

        assert done.code == 3, command
        assert "signalhub serve" in done.err


async def test_a_hub_without_rooms_is_exit_code_3() -> None:
    async with run_hub(rooms={"enabled": False}) as hub:
        done = await cli(hub.url, "room", "send", "general", "x")
        fetched = await cli(hub.url, "inbox", "fetch", "x")

    assert done.code == fetched.code == 3
    assert "rooms.enabled" in done.err
    assert "rooms.enabled" in fetched.err


async def test_no_answer_in_time_is_exit_code_4() -> None:
    async with ScriptedRooms() as server:
        sending = asyncio.ensure_future(
            cli(server.url, "room", "send", "general", "x", "--timeout", "3")
        )
        await server.accept()
        sent = await sending
        appended = await cli(server.url, "inbox", "append", "x", "y", "--timeout", "3")

    assert (sent.code, appended.code) == (4, 4)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["room", "send", "general"], "TEXT"),
        (["room", "send", "general", ""], "nothing to send"),
        (["room", "send", "general", "two", "words"], "quote the text"),
        (["room", "send", "a b", "x"], "a room id has"),
        (["room", "send", "general", "x", "--tenant", "a:b"], "a tenant id has"),
        (["room", "send", "general", "x", "--pseudonym", "a b"], "a pseudonym has"),
        (["room", "send", "general", "x", "--inbox", "a/b"], "an inbox id has"),
        (["room", "send", "general", "x", "--id", "a/b"], "a message id has"),
        (["room", "send", "general", "x", "--type", "chat"], "--type"),
        (["room", "send", "general", "x", "--type", "mls_commit"], "proposal"),
        (["room", "send", "general", "*", "--raw"], "base64url"),
        (["room", "send", "general", "x", "--key", "/no/such/file"], "/no/such/file"),
        (["room", "send", "general", "x", "--key", "/dev/null"], "invalid key file"),
        (["room", "send", "general", "x", "--url", "ftp://x"], "http://"),
        (["room", "send", "general", "x", "--url", "http://u:p@x"], "user name"),
        (["room", "send", "general", "x", "--timeout", "0"], "--timeout"),
        (["room", "listen", "general", "--since", "-1"], "--since"),
        (["room", "listen", "general", "--since", "1", "--new"], "exclude each other"),
        (["room", "listen", "general", "--count", "0"], "--count"),
        (["room", "key"], "--out"),
        (["room", "key", "--out", "a", "--show", "b"], "exactly one"),
        (["room", "key", "--show", "/no/such/file"], "--show"),
        (["room", "key", "--out", "/no/such/folder/key"], "/no/such/folder"),
        (["inbox", "fetch"], "SIGNALHUB_INBOX"),
        (["inbox", "fetch", "a/b"], "an inbox id has"),
        (["inbox", "fetch", "x", "--limit", "0"], "--limit"),
        (["inbox", "fetch", "x", "--from", "-1"], "--from"),
        (["inbox", "append", "x"], "INBOX or TEXT is missing"),
        (["inbox", "append", "x"], "SIGNALHUB_INBOX"),
        (["inbox", "append", "x", "y", "--id", "a b"], "a message id has"),
        (["inbox", "append", "x", "y", "z"], "quote the text"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_is_exit_code_2_and_says_what_to_do(
    command: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("signalhub: ")
    assert named in captured.err
    assert " — " in captured.err


def test_a_key_wants_to_know_its_room_and_is_no_raw_ciphertext(
    key_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsys.readouterr()
    assert run(["inbox", "fetch", "x", "--key", key_file]) == 2
    assert "--room" in capsys.readouterr().err
    assert run(["room", "send", "general", "x", "--key", key_file, "--raw"]) == 2
    assert "one of them" in capsys.readouterr().err
    monkeypatch.setenv("SIGNALHUB_INBOX", "my-inbox")
    assert run(["inbox", "append", "my-inbox"]) == 2
    assert "my-inbox" not in capsys.readouterr().err
