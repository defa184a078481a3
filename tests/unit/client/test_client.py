"""The asyncio face against a hub that follows a script, for what a real hub never does."""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha1
from pathlib import Path
from typing import Any

import msgspec
import pytest
from picows import ws_connect

import signalhub
from signalhub import Reconnect
from signalhub.client.protocol.pending import Unread
from signalhub.client.transport import runner
from signalhub.client.transport.link import SHORT_BYTES, masked_text
from signalhub.testing import ScriptedHub
from tests.support.memory.client import (
    ALICE,
    BOB,
    caught_up,
    connecting,
    conversation,
    exchange,
    reconnected,
)
from tests.support.socket.certificates import certificates


@asynccontextmanager
async def serving(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Anything that listens on a port; its URL."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/ws"


async def test_nobody_listening_is_unavailable_and_names_the_url() -> None:
    async with ScriptedHub() as hub:
        url = hub.url

    with pytest.raises(signalhub.Unavailable, match=url):
        await connecting(url)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "404 Not Found"),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "503 Service"),
        (b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 60\r\n\r\n", "try again in 60 s"),
        (b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:1/ws\r\n\r\n", "302 Found"),
        (b"220 mail.example ESMTP\r\n\r\n", "does not speak WebSocket"),
        (b"", r"."),
    ],
    ids=["404", "503", "429 with a time", "a redirect", "another protocol", "nothing"],
)
async def test_an_answer_that_is_not_a_websocket_is_unavailable_at_once(
    answer: bytes, text: str
) -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    async with serving(serve) as url:
        with pytest.raises(signalhub.Unavailable, match=text):
            await connecting(url, token="secret")

    assert len(heads) == 1
    assert b"secret" not in heads[0]


async def test_a_handshake_that_succeeds_after_we_left_is_ended() -> None:
    asked, go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await go.wait()
        key = head.split(b"Sec-WebSocket-Key: ")[1].split(b"\r\n")[0]
        digest = sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + b64encode(digest) + b"\r\n\r\n"
        )
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    async with serving(serve) as url:
        opening = connecting(url)
        await asked.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

        go.set()

        async with asyncio.timeout(3):
            await ended.wait()


async def test_a_connection_that_is_cancelled_as_its_handshake_ends_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cancelled(*args: Any, **options: Any) -> Any:
        connected = await ws_connect(*args, **options)
        opening.cancel()
        await asyncio.sleep(0)
        return connected

    monkeypatch.setattr("signalhub.client.transport.link.ws_connect", cancelled)
    async with ScriptedHub() as hub:
        opening = connecting(hub.url)
        peer = await hub.accept()
        with pytest.raises(asyncio.CancelledError):
            await opening

        async with asyncio.timeout(3):
            await peer.gone.wait()


async def test_a_first_hello_that_comes_to_nothing_leaves_no_connection_behind() -> None:
    async with ScriptedHub() as hub:
        opening = connecting(hub.url)
        peer = await hub.accept()
        peer.refuse(await peer.receive("hub:connect"), "version_mismatch")
        with pytest.raises(signalhub.Refused) as caught:
            await opening
        assert caught.value.code == "version_mismatch"
        await peer.gone.wait()

        opening = connecting(hub.url)
        peer = await hub.accept()
        await peer.receive("hub:connect")
        peer.close(1013, "come back later")
        with pytest.raises(signalhub.Unavailable, match=r"1013 \(come back later\)"):
            await opening

        opening = connecting(hub.url)
        peer = await hub.accept()
        await peer.receive("hub:connect")
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await peer.gone.wait()
        assert hub.upgrades == 3


async def test_without_registering_the_hello_is_all_it_takes() -> None:
    async with ScriptedHub() as hub:
        opening = connecting(hub.url, register=False)
        for number in (1, 2):
            peer = await hub.accept()
            hello = await peer.receive("hub:connect")
            peer.answer(hello, "hub:connected", {"sessionId": f"s-{number}"})
            client = await opening
            await client.tell(BOB, "note", number)
            assert (await peer.receive("hub:send"))["from"] == ALICE
            assert client.session_id == f"s-{number}"
            peer.abort()
        await client.close()


@pytest.mark.parametrize("is_polite", [True, False])
async def test_closing_says_goodbye_ends_the_messages_and_fails_the_calls(
    is_polite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "GOODBYE_S", 2.0 if is_polite else 0.02)
    async with conversation() as (_, peer, client):
        peer.is_polite = is_polite
        reading = asyncio.create_task(anext(client.messages(), None))
        asking = asyncio.create_task(client.ask(BOB, "task"))
        waiting = asyncio.create_task(client.wait_closed())
        await peer.receive("hub:send")

        async with asyncio.timeout(10):
            await client.close()
            await client.close()

        await peer.receive("hub:disconnect")
        await peer.gone.wait()
        assert peer.close_code == 1000
        assert not client.is_connected
        assert "stopped" in repr(client)
        assert await reading is None
        await waiting
        with pytest.raises(signalhub.OutcomeUnknown):
            await asking
        with pytest.raises(signalhub.Unavailable, match="closed"):
            await client.tell(BOB, "note")


async def test_a_token_is_asked_for_at_every_connection_and_again_when_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcomes: list[str | Exception] = [OSError("sealed"), "a", OSError("sealed"), "b"]

    async def token() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async with ScriptedHub() as hub:
        with pytest.raises(OSError, match="sealed"):
            await connecting(hub.url, token=token)
        opening = connecting(hub.url, token=token)
        for expected in ("a", "b"):
            peer = await hub.accept()
            hello = await peer.receive("hub:connect")
            assert hello["metadata"]["authToken"] == expected
            peer.answer(hello, "hub:connected", {"sessionId": "s"})
            peer.grant(await peer.receive("hub:register"))
            client = await opening
            peer.abort()
        await client.close()

    assert "No token for the next connection" in caplog.text


async def test_tokens_and_payloads_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with conversation(token="SECRET-TOKEN") as (hub, peer, client):
        await client.tell(BOB, "note", {"text": "SECRET-PAYLOAD"})
        peer.refuse(await peer.receive("hub:send"), "unauthorized")
        peer.send("note", "SECRET-PAYLOAD", sender=BOB)
        await anext(client.messages())
        peer.abort()
        await reconnected(hub)

    texts = [str(vars(record)) for record in caplog.records if "signalhub" in record.name]
    assert any("The hub refused a message" in text for text in texts)
    assert not [text for text in texts if "SECRET" in text]


async def test_a_retry_after_is_honoured_when_reconnecting() -> None:
    async with conversation() as (hub, peer, _):
        loop = asyncio.get_running_loop()
        hub.refusal = (429, {"Retry-After": "1"})
        peer.abort()
        await hub.refused.wait()
        hub.refusal = None
        refused_at = loop.time()

        peer = await hub.accept()

        assert loop.time() - refused_at >= 0.9
        await peer.welcome()


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Reconnect(first_jitter_s=0, base_s=0.01, attempts_max=2), "after 2 attempts .* 503"),
        (None, "without reconnecting"),
    ],
)
async def test_giving_up_says_why_to_everybody(policy: Reconnect | None, text: str) -> None:
    async with conversation(reconnect=policy) as (hub, peer, client):
        for _ in range(3 if policy else 0):
            peer.abort()
            peer = await reconnected(hub)  # Attempts are counted anew after every success.
            await caught_up(peer, client)
        before = hub.upgrades
        reading = asyncio.create_task(anext(client.messages(), None))
        hub.refusal = (503, {})
        peer.abort()

        for waiting in (reading, client.wait_closed(), client.ask(BOB, "task")):
            with pytest.raises(signalhub.GaveUp, match=text):
                await waiting
        assert hub.upgrades - before == (2 if policy else 0)


async def test_an_ask_cut_off_is_repeated_unless_its_caller_has_gone() -> None:
    async with conversation() as (hub, peer, client):
        asking = asyncio.create_task(client.ask(BOB, "task", {"n": 1}))
        first = await peer.receive("hub:send")
        cancelled = asyncio.create_task(client.ask(BOB, "task", {"n": 2}))
        await peer.receive("hub:send")
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        peer.abort()
        peer = await reconnected(hub)
        facts = {"messageId": first["id"], "status": "queued"}

        assert await peer.receive("hub:send") == first
        peer.answer(first, "hub:delivery_ack", facts)
        receipt = await asking
        marker, _ = await exchange(
            client.ask(BOB, "marker"), peer, "hub:send", "hub:delivery_ack", facts
        )

        assert (receipt.message_id, receipt.status, receipt.attempts) == (first["id"], "queued", 2)
        assert marker["payload"]["type"] == "marker"


async def test_a_secured_hub_is_reached_with_certificates_of_ones_own(tmp_path: Path) -> None:
    served, trusting = certificates(tmp_path)
    async with ScriptedHub(served) as hub:
        with pytest.raises(signalhub.Unavailable, match="certificate"):
            await connecting(hub.url)

        opening = connecting(hub.url, ssl=trusting)
        peer = await reconnected(hub)
        async with await opening as client:
            async with asyncio.TaskGroup() as group:
                for n in range(100):
                    group.create_task(client.tell(BOB, "note", n))
            numbers = [(await peer.receive("hub:send"))["payload"]["data"] for _ in range(100)]

    assert numbers == list(range(100))


async def test_fragments_pings_and_broken_messages_are_survived() -> None:
    async with conversation() as (_, peer, client):
        peer.ping(b"are you there")
        peer.send_raw(b'{"type":"note",', fin=False)
        peer.send_raw(b'"payload":"gr', fin=False, is_continuation=True)
        peer.send_raw('üße"}'.encode(), is_continuation=True)
        peer.send_raw(b"no json")

        assert (await anext(client.messages())).payload == "grüße"
        assert (await peer.receive("pong"))["payload"] == b"are you there"
        assert client.is_connected


@pytest.mark.parametrize(
    ("code", "frame", "is_continuation"),
    [
        (1002, b"{}", True),
        (1007, b'{"type":"\xff"}', False),
        (1009, b" " * (16 * 2**20 + 1), False),
    ],
    ids=["without a beginning", "not text", "too long"],
)
async def test_a_hub_that_breaks_the_websocket_protocol_is_left(
    code: int, frame: bytes, is_continuation: bool
) -> None:
    async with conversation() as (hub, peer, _):
        peer.send_raw(frame, is_continuation=is_continuation)

        await peer.gone.wait()
        assert peer.close_code == code
        await reconnected(hub)


async def test_frames_of_one_turn_arrive_whole_and_in_order_whatever_their_size() -> None:
    sizes = [0, 1, 200, SHORT_BYTES, 33_000, 3, 20_000, SHORT_BYTES - 300, 5]
    async with conversation() as (_, peer, client):
        async with asyncio.TaskGroup() as group:
            for size in sizes:
                group.create_task(client.tell(BOB, "note", "é" * size))

        arrived = [(await peer.receive("hub:send"))["payload"]["data"] for _ in sizes]

        assert arrived == ["é" * size for size in sizes]


async def test_a_sender_in_a_loop_lets_others_run() -> None:
    async with conversation() as (_, peer, client):
        turns, count_max = 0, Unread.MESSAGES_MAX

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        for _ in range(count_max):
            await client.tell(BOB, "note", "x")
        counting.cancel()

        assert turns > 5
        types = [(await peer.receive())["type"] for _ in range(count_max + Unread.MARKS)]
        assert types.count("hub:send") == count_max


async def test_messages_go_to_handlers_and_those_nobody_wants_are_counted() -> None:
    async with conversation(inbox_max=2) as (_, peer, client):
        served: asyncio.Queue[str] = asyncio.Queue()

        @client.on("a")
        async def on_a(message: signalhub.Message) -> None:
            await client.tell(message.sender, "reply", message.payload)

        client.on("b", lambda message: served.put_nowait(message.payload))
        peer.send("a", 1, sender=BOB)
        reply = await peer.receive("hub:send")
        peer.send("b", "two", sender=BOB)
        assert await served.get() == "two"
        assert reply["payload"] == {"to": BOB, "type": "reply", "data": 1}
        for number in range(5):
            peer.send("note", number, sender=BOB)
        await caught_up(peer, client)

        assert client.dropped == 4
        assert (await anext(client.messages())).payload == 4


async def test_payloads_of_encoded_types_are_left_as_they_came() -> None:
    async with conversation(encoded_types=["parcel"]) as (_, peer, client):
        peer.send("parcel", {"number": 2**70, "text": "é"}, sender=BOB)
        peer.send("note", {"number": 1}, sender=BOB)
        parcel, note = await anext(client.messages()), await anext(client.messages())

    assert isinstance(parcel.payload, msgspec.Raw)
    assert json.loads(bytes(parcel.payload)) == {"number": 2**70, "text": "é"}
    assert (note.payload, note.sender) == ({"number": 1}, parcel.sender)


@pytest.mark.parametrize("size", [0, 1, 4, 125, 126, 127, 65_535, 65_536])
def test_masked_frames_unmask_to_their_payload(size: int) -> None:
    payload, key = bytes(index % 251 for index in range(size)), b"\x01\xff\x00\x80"
    extended = 0 if size < 126 else 2 if size < 65_536 else 8

    frame = masked_text(payload, key)

    short = {0: size, 2: 126, 8: 127}[extended]
    assert frame[:2] == bytes((0x81, 0x80 | short))
    assert frame[2 : 2 + extended] == (size.to_bytes(extended, "big") if extended else b"")
    assert frame[2 + extended : 6 + extended] == key
    masked = frame[6 + extended :]
    assert bytes(byte ^ key[index % 4] for index, byte in enumerate(masked)) == payload
