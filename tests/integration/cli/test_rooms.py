"""Rooms and inboxes on the command line, against real and scripted hubs."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

import signalhub
from signalhub import Hub, capability
from signalhub.cli.app import run as run_here
from signalhub.cli.rooms import room as room_commands
from signalhub.cli.rooms.encryption import read_key
from signalhub.client.arguments import TYPES
from signalhub.client.sealing import Sealing, new_key
from signalhub.testing import ChaosProxy, RunningHub, run_hub
from signalhub.wire.base64url import decoded, encoded
from tests.support.process.command import (
    Done,
    Run,
    columns,
    command,
    following,
    line_of,
    unused_url,
)
from tests.support.socket.scripted_rooms import Exchange, ScriptedRooms
from tests.support.socket.tokens import AUTH, token_for

GENERAL = "Z2VuZXJhbA"
INBOX = "pw1oQgdmuN2WQLXM3CpAZaVIVGvyJRwpcv9QG4XsHfg"
UNENCRYPTED = "note: sent unencrypted, so the hub can read it; use --key to encrypt\n"
UNOPENED = "(cannot be decrypted with this key for this room)"
LIMITED = {"error": "Rate limit exceeded", "errorCode": "RATE_LIMIT_EXCEEDED"}
SEND = ("room", "send", "general")
LISTEN = ("room", "listen", "general")


@pytest.fixture
async def rooms(hub: RunningHub) -> AsyncIterator[Hub]:
    async with signalhub.hub(hub.url) as rooms:
        yield rooms


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = str(tmp_path / "general.key")
    assert run_here(["room", "key", "--out", path]) == 0
    return path


def key_in(path: str) -> bytes:
    return decoded(Path(path).read_text().strip())


def texts(done: Done) -> list[str]:
    return [line[-1] for line in columns(done)]


async def fetched(server: ScriptedRooms, *options: str, **answer: Any) -> Done:
    """Fetch an inbox from a scripted hub that answers once; there is nothing behind that page."""
    fetching = asyncio.create_task(command(server.url, "inbox", "fetch", "x", *options))
    exchange: Exchange = await server.request()
    if "status" in answer:
        exchange.answer(**answer)
    else:
        exchange.page(*answer.pop("seqs"), **answer)
    more = asyncio.create_task(server.request())
    await asyncio.wait((fetching, more), return_when=asyncio.FIRST_COMPLETED)
    if more.done():
        more.result().page()
    more.cancel()
    return await fetching


async def test_what_one_sends_another_hears(hub: RunningHub, run: Run) -> None:
    async with following(hub.url, *LISTEN, "--count", "2") as listener:
        await line_of(listener.stderr, "listening; press Ctrl-C to stop")

        first = await run(*SEND, "hello", "--pseudonym", "p1")
        lines = b"two\nlines\n"
        second = await command(hub.http_url, *SEND, "-", "--pseudonym", "p2", stdin=lines)

        assert (first.code, first.out, first.err) == (0, "seq 1\n", UNENCRYPTED)
        assert (second.code, second.out) == (0, "seq 2\n")
        assert await line_of(listener.stdout, "hello") == "1\tp1\tmls_app\thello\n"
        assert await line_of(listener.stdout, "lines") == '2\tp2\tmls_app\t"two\\nlines"\n'
        assert await listener.wait() == 0


async def test_a_listener_starts_at_the_beginning_after_a_position_or_with_what_is_new(
    hub: RunningHub, run: Run, rooms: Hub
) -> None:
    async with rooms.room("general") as room:
        for word in (b"one", b"two", b"three"):
            await room.send(word)

        since = await run(*LISTEN, "--since", "1", "--count", "2")
        beyond = await run(*LISTEN, "--since", "9", "--count", "1")
        facts = await run(*LISTEN, "--since", "9", "--count", "1", "--json")
        async with following(hub.url, *LISTEN, "--new", "--count", "1") as late:
            await line_of(late.stderr, "listening")
            await room.send(b"four")
            out, _ = await late.communicate()

    assert texts(since) == ["two", "three"]
    assert texts(beyond) == ["one"]
    assert "note: the room ends at 3; reading from the beginning\n" in beyond.err
    assert json.loads(facts.err) == {"room_ends_at": 3}
    assert out.decode().splitlines()[0].split("\t")[-1] == "four"


async def test_token_or_inbox_opens_a_room_of_a_hub_with_authentication(tmp_path: Path) -> None:
    async with run_hub(auth=AUTH) as hub:
        run = partial(command, hub.url)
        good, other = tmp_path / "good.token", tmp_path / "other.token"
        for path, room in ((good, "general"), (other, "another")):
            path.write_text(token_for("local/me", hub.clock, permissions={"rooms": [room]}))
        refused = await run(*SEND, "hi")
        forbidden = await run(*SEND, "hi", "--token-file", str(other), "--json")
        sent = await run(*SEND, "hi", "--token-file", str(good), "--inbox", INBOX)
        heard = await run(*LISTEN, "--count", "1", "--inbox", INBOX)
        fetched = await run("inbox", "fetch", GENERAL)
        variables = {"SIGNALHUB_TOKEN": good.read_text()}
        by_token = await run("inbox", "fetch", GENERAL, variables=variables)

    assert (refused.code, forbidden.code) == (1, 1)
    assert "--token-file" in refused.err
    assert "FORBIDDEN" in forbidden.err
    assert sent.out == "seq 1\n"
    assert texts(heard) == ["hi"]
    assert (fetched.code, by_token.code, by_token.out) == (1, 0, "")


async def test_with_json_everything_is_an_object(run: Run) -> None:
    sent = await run(*SEND, "hi", "--id", "a", "--json")
    again = await run(*SEND, "hi", "--id", "a", "--json")
    said = await run(*SEND, "hi", "--id", "a")
    heard = await run(*LISTEN, "--count", "1", "--json")
    stored = await run("inbox", "append", GENERAL, "later", "--json")
    found = await run("inbox", "fetch", GENERAL, "--json")

    assert sent.rows() == [{"messageId": "a", "seq": 1, "duplicate": False}]
    assert json.loads(sent.err) == {"encrypted": False}
    assert again.rows()[0]["duplicate"] is True
    assert said.out == "seq 1 (duplicate)\n"
    (message,) = heard.rows()
    assert (message["seq"], message["messageId"], message["text"]) == (1, "a", "hi")
    assert (message["ciphertext"], heard.err) == ("aGk", "")
    assert stored.rows()[0]["seq"] == 2
    assert [row["text"] for row in found.rows()] == ["hi", "later"]
    assert found.rows()[0]["createdAt"].endswith("Z")


async def test_a_key_keeps_the_hub_from_reading(
    run: Run, rooms: Hub, key_file: str, tmp_path: Path
) -> None:
    other = str(tmp_path / "other.key")
    assert run_here(["room", "key", "--out", other]) == 0
    key = ("--tenant", "acme", "--key", key_file)
    inbox = capability.inbox_id(key_in(key_file))
    room = ("--room", "general", "--tenant", "acme")

    sent = await run(*SEND, "psst", *key)
    heard = await run(*LISTEN, *key, "--count", "1")
    found = await run("inbox", "fetch", "--key", key_file, *room)
    wrong = await run("inbox", "fetch", inbox, "--key", other, *room)
    raw = await run("inbox", "fetch", inbox, "--raw")
    keyed = await run("inbox", "fetch", "--key", key_file, "--raw")
    listened = await run(*LISTEN, *key, "--raw", "--count", "1")
    page = await rooms.inbox(inbox).fetch()

    assert (sent.code, sent.out, sent.err) == (0, "seq 1\n", "")
    assert [*texts(heard), *texts(found), *texts(wrong)] == ["psst", "psst", UNOPENED]
    assert b"psst" not in page.messages[0].ciphertext
    assert decoded(texts(raw)[0]) == page.messages[0].ciphertext
    assert columns(keyed) == columns(raw)
    assert texts(listened) == texts(raw)


async def test_what_the_key_does_not_open_is_marked(run: Run, rooms: Hub, key_file: str) -> None:
    sealing = Sealing(key_in(key_file), "general")
    inbox = rooms.inbox(capability.inbox_id(key_in(key_file)))
    await inbox.append(b"never sealed", message_id="a")
    await inbox.append(sealing.seal("b", b"words"), message_id="b")
    await inbox.append(sealing.seal("c", b"\xfb\xff"), message_id="c")
    fetch = ("inbox", "fetch", "--key", key_file, "--room", "general")

    shut, words, data = (await run(*fetch, "--json")).rows()

    assert (shut["sealed"], "text" in shut) == (True, False)
    assert (words["text"], "sealed" in words) == ("words", False)
    assert (decoded(data["plaintext"]), "text" in data) == (b"\xfb\xff", False)
    assert texts(await run(*fetch)) == [UNOPENED, "words", "-_8"]


def test_a_key_is_for_its_owner_alone_and_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "general.key"
    assert run_here(["room", "key", "--out", str(path)]) == 0
    before, inbox = path.read_text(), capsys.readouterr().out

    assert run_here(["room", "key", "--out", str(path)]) == 1
    assert "may contain a key in use" in capsys.readouterr().err
    assert run_here(["room", "key", "--show", str(path)]) == 0
    assert capsys.readouterr().out == inbox == capability.inbox_id(key_in(str(path))) + "\n"

    assert path.read_text() == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_is_bytes_hex_or_base64url(tmp_path: Path) -> None:
    path, key = tmp_path / "key", bytes(range(32))
    for content in (key, key.hex().encode() + b"\n", encoded(key).encode() + b"\n"):
        path.write_bytes(content)

        assert read_key(path) == key


async def test_a_fetch_goes_on_when_the_hub_ends_a_page_by_its_size() -> None:
    async with run_hub(rooms={"page_bytes_max": 1}) as hub:
        run = partial(command, hub.url)
        for word in ("one", "two", "three"):
            assert (await run("inbox", "append", GENERAL, word)).code == 0

        whole = await run("inbox", "fetch", GENERAL)
        part = await run("inbox", "fetch", GENERAL, "--limit", "2")

        assert (texts(whole), whole.err) == (["one", "two", "three"], "")
        assert texts(part) == ["one", "two"]
        assert "--from 3" in part.err


async def test_a_hub_that_takes_no_messages_now_is_not_called_unreachable() -> None:
    async with run_hub(rooms={"disk_bytes_max": 1}) as hub:
        append = ("inbox", "append", GENERAL, "word", "--timeout", "1")
        assert (await command(hub.url, *append)).code == 0
        refused = await command(hub.url, *append)

    assert refused.code == 1
    assert "rooms.disk_bytes_max" in refused.err
    assert "nothing was done; see the hub's /health" in refused.err


async def test_an_inbox_is_fetched_in_parts_or_as_a_whole(run: Run) -> None:
    variables = {"SIGNALHUB_INBOX": GENERAL}
    for word in ("one", "two", "three"):
        done = await run("inbox", "append", word, variables=variables)
        assert done.code == 0, done.err

    part = await run("inbox", "fetch", "--limit", "2", variables=variables)
    rest = await run("inbox", "fetch", GENERAL, "--from", "3")
    whole = await run("inbox", "fetch", GENERAL, "--all", "--json")
    empty = await run("inbox", "fetch", "nobody-knows-me")

    assert texts(part) == ["one", "two"]
    assert "--from 3" in part.err
    assert (texts(rest), rest.err) == (["three"], "")
    assert [row["seq"] for row in whole.rows()] == [1, 2, 3]
    assert (empty.code, empty.out) == (0, "")
    assert empty.err == "note: no messages; an unused inbox looks the same\n"


async def test_raw_bytes_and_kinds_of_messages_are_passed_on(run: Run, rooms: Hub) -> None:
    async with rooms.room("general") as room:
        raw = await run(*SEND, "-_8", "--raw")
        await run(*SEND, "x", "--type", "mls_proposal", "--proposal", "p")
        async with asyncio.timeout(20):
            first, second = await anext(room), await anext(room)

    assert (raw.code, raw.err) == (0, "")
    assert (first.ciphertext, second.type) == (b"\xfb\xff", "mls_proposal")
    assert texts(await run("inbox", "fetch", GENERAL))[0] == "-_8"
    assert get_args(room_commands.Kind) == TYPES


async def test_a_missing_or_other_inbox_is_refused_in_the_hub_s_own_words(
    run: Run, key_file: str
) -> None:
    assert (await run(*SEND, "x", "--inbox", "first")).code == 0

    other = await run(*SEND, "x", "--key", key_file)
    failure = await run(*LISTEN, "--inbox", "second", "--json")
    async with run_hub(rooms={"require_capability": True}) as hub:
        without = await command(hub.url, *SEND, "x")

    assert (other.code, failure.code, without.code) == (1, 1, 1)
    assert other.err.startswith("signalhub: The room or the inbox is bound to another one")
    assert "--inbox, SIGNALHUB_INBOX or --key" in other.err
    assert json.loads(failure.err)["error"] == "CONFLICT"
    assert without.err.count("inbox id") == 1
    assert "--inbox, SIGNALHUB_INBOX or --key" in without.err
    assert "may" not in without.err


async def test_what_is_gone_is_said() -> None:
    async with ScriptedRooms() as server:
        some = await fetched(server, seqs=(4, 5))
        one = await fetched(server, seqs=(2,))
        everything = asyncio.create_task(command(server.url, "inbox", "fetch", "x", "--all"))
        (await server.request()).page(4, 5)
        (await server.request()).page()
        listening = asyncio.create_task(command(server.url, *LISTEN, "--count", "1", "--json"))
        await server.accept(last_seq=4)
        (await server.request()).page(4)
        listened = await listening
        async with following(server.url, *LISTEN, "--for", "1") as listener:
            await server.accept(last_seq=1)
            (await server.request()).page()
            await line_of(listener.stderr, "listening")
            line = await line_of(listener.stderr, "cannot be read")

    assert some.err == (await everything).err == "note: seq 1 to 3 are no longer stored\n"
    assert one.err == "note: seq 1 is no longer stored\n"
    assert json.loads(listened.err) == {"lost_from": 1, "lost_to": 3}
    assert (some.code, one.code, listened.code) == (0, 0, 0)
    assert line == "note: seq 1 cannot be read: deleted, or in another inbox\n"


async def test_what_the_hub_has_lost_is_said() -> None:
    skipped = [{"fromSeq": 3, "toSeq": 8}]
    async with ScriptedRooms() as server:
        fetching = asyncio.create_task(command(server.url, "inbox", "fetch", "x"))
        (await server.request()).page(1, 2, 9, skipped=skipped)
        (await server.request()).page()
        some = await fetching
        everything = asyncio.create_task(command(server.url, "inbox", "fetch", "x", "--all"))
        (await server.request()).page(2, 9, skipped=skipped)
        (await server.request()).page()
        every = await everything

    lost = "note: seq 3 to 8 skipped: the hub has lost entries of its log\n"
    assert (some.code, some.err) == (0, lost)
    assert (every.code, every.err) == (0, f"note: seq 1 is no longer stored\n{lost}")


async def test_pages_are_shown_exactly_and_those_with_holes_are_failures() -> None:
    message = {"seq": 1, "messageId": "a", "ciphertext": "aGk"}
    async with ScriptedRooms() as server:
        holes = await fetched(server, seqs=(5,), partial=True, nextSeq=1)
        for moment in ("2026-01-31T12:00:05.123Z", "2026-01-31T12:00:05Z"):
            page = {"messages": [{**message, "createdAt": moment}], "nextSeq": 2}
            done = await fetched(server, status=200, body=page)
            assert done.out == f"1\t{moment}\thi\n"

    assert holes.code == 1
    assert "try again" in holes.err


async def test_what_lies_before_damage_is_shown_and_then_the_error() -> None:
    why = {"error": "The log is damaged.", "errorCode": "storage_failed"}
    damaged: Any = {"partial": True, "reason": "storage_failed"}
    async with ScriptedRooms() as server:
        one = await fetched(server, seqs=(3, 4), **damaged)
        fetching = asyncio.create_task(command(server.url, "inbox", "fetch", "x", "--json"))
        (await server.request()).page(1, 2)
        (await server.request()).answer(503, {**why, "retryAfterMs": 600_000})
        two = await fetching

    assert texts(one) == ["c3", "c4"]
    assert [row["seq"] for row in two.rows()] == [1, 2]
    assert (one.code, two.code) == (1, 1)
    gone, error = one.err.splitlines()
    assert gone == "note: seq 1 to 2 are no longer stored"
    assert "from seq 5 on" in error
    assert "its log is damaged" in error
    assert "damaged" in two.err


async def test_a_limit_says_how_long_it_lasts() -> None:
    limit = {**LIMITED, "retryAfterMs": 20_300}
    async with ScriptedRooms() as server:
        text = await fetched(server, status=429, body=limit)
        data = await fetched(server, "--json", status=429, body=limit)
        sending = asyncio.create_task(command(server.url, *SEND, "x"))
        peer = await server.accept()
        sent_id = (await peer.receive("send"))["messageId"]
        peer.say("error", messageId=sent_id, **LIMITED, retryAfterMs=7_000)
        sent = await sending

    assert (text.code, sent.code) == (1, 1)
    assert "Rate limit exceeded — nothing was done; try again in 21 s" in text.err
    assert "try again in 7 s" in sent.err
    assert json.loads(data.err)["retryAfterMs"] == 20_300


@pytest.mark.parametrize(
    "words", [("inbox", "fetch", "x", "--all"), ("room", "listen", "x", "--count", "1")]
)
async def test_waiting_for_a_limit_is_said_once(words: tuple[str, ...]) -> None:
    async with ScriptedRooms() as server:
        reading = asyncio.create_task(command(server.url, *words, "--json"))
        if words[0] == "room":
            await server.accept(last_seq=1)
        for _ in range(2):
            (await server.request()).answer(429, {**LIMITED, "retryAfterMs": 10})
        (await server.request()).page(1)
        if words[0] == "inbox":
            (await server.request()).page()
        done = await reading

    assert [row["messageId"] for row in done.rows()] == ["m1"]
    assert [json.loads(line) for line in done.err.splitlines()] == [
        {"waiting_s": 1, "reason": "Rate limit exceeded"}
    ]


@pytest.mark.parametrize("is_json", [False, True])
async def test_a_listener_survives_a_loss_and_says_so(
    hub: RunningHub, rooms: Hub, is_json: bool
) -> None:
    options = ("--count", "2", "--json") if is_json else ("--count", "2")
    async with (
        ChaosProxy(hub.port) as network,
        following(network.url, *LISTEN, *options) as listener,
        rooms.room("general") as room,
    ):
        await room.send(b"before")
        await line_of(listener.stdout, "before")
        network.cut()
        await room.send(b"after")
        await line_of(listener.stdout, "after")
        assert await listener.wait() == 0
        said = (await listener.stderr.read()).decode().splitlines()

    if is_json:
        lost, back = map(json.loads, said)
        assert (lost["connection"], bool(lost["reason"])) == ("lost", True)
        assert back == {"connection": "back"}
    else:
        assert [line.split(":")[0] for line in said[-2:]] == ["connection lost", "reconnected"]


@pytest.mark.parametrize("words", [(*SEND, "x"), ("inbox", "fetch", "x")])
async def test_a_hub_that_is_away_has_no_rooms_or_hangs_is_exit_code_3(
    words: tuple[str, ...],
) -> None:
    away = await command(unused_url(), *words)
    async with run_hub(rooms={"enabled": False}) as hub:
        without = await command(hub.url, *words)
    async with ScriptedRooms() as server:
        hanging = await command(server.url, *words, "--timeout", "0.5")

    assert (away.code, without.code, hanging.code) == (3, 3, 3)
    told = away.err.splitlines()[-1]
    assert told.startswith("signalhub: no hub at http://127.0.0.1:")
    assert "connection refused — start one with `signalhub serve`" in told
    assert "rooms.enabled" in without.err
    assert "no answer" in hanging.err
    assert "--timeout" in hanging.err
    assert "signalhub serve" not in hanging.err


async def test_no_answer_in_time_is_exit_code_4() -> None:
    async with ScriptedRooms() as server:
        sending = asyncio.create_task(command(server.url, *SEND, "x", "--timeout", "2"))
        await server.accept()
        appending = command(server.url, "inbox", "append", "x", "y", "--timeout", "2")
        sent, appended = await asyncio.gather(sending, appending)

    assert (sent.code, appended.code) == (4, 4)


async def test_a_blind_hub_is_used_with_the_inbox_id_as_room(key_file: str) -> None:
    inbox = capability.inbox_id(key_in(key_file))
    dashed = "-" + capability.inbox_id(new_key())[1:]
    async with run_hub(rooms={"mode": "blind"}) as hub:
        refused = await command(hub.url, *SEND, "x", "--key", key_file)
        sent = await command(hub.url, "room", "send", inbox, "hello", "--key", key_file)
        found = await command(hub.url, "inbox", "fetch", "--key", key_file, "--room", inbox)
        await command(hub.url, "room", "send", dashed, "hi", "--inbox", dashed)
        listen = ("room", "listen", dashed, "--inbox", dashed, "--count", "1")
        dashed_found = await command(hub.url, "inbox", "fetch", dashed)
        dashed_heard = await command(hub.url, *listen)

    assert refused.code == 1
    assert refused.err.startswith("signalhub: This hub is blind: the inbox id is the room id")
    assert "give the inbox id" in refused.err
    assert (sent.code, sent.out) == (0, "seq 1\n")
    assert texts(found) == ["hello"]
    assert texts(dashed_found) == texts(dashed_heard) == ["hi"], "an id may begin with a dash"
