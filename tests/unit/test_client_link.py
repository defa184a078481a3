"""The asyncio face against a hub that follows a script, for what a real hub never does."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest

import signalhub
from signalhub import Client, Reconnect
from signalhub.client.transport.link import SHORT_BYTES, masked_text
from signalhub.testing import Peer, ScriptedHub
from tests.support.socket.certificates import certificates

ALICE = "@(demo/alice)"
BOB = "@(demo/bob)"
QUICK = Reconnect(first_jitter_s=0.0, base_s=0.01)


@asynccontextmanager
async def conversation(**options: Any) -> AsyncIterator[tuple[ScriptedHub, Peer, Client]]:
    """A client that is connected to a scripted hub."""
    async with ScriptedHub() as hub:
        connecting = _connecting(hub, **options)
        peer = await hub.accept()
        await peer.welcome()
        async with await connecting as client:
            yield hub, peer, client


def _connecting(hub: ScriptedHub, **options: Any) -> asyncio.Future[Client]:
    return asyncio.ensure_future(_connect(hub.url, **options))


async def _connect(url: str, **options: Any) -> Client:
    return await signalhub.connect(url, ALICE, **({"reconnect": QUICK} | options))


async def test_nobody_listening_is_unavailable_and_names_the_url() -> None:
    async with ScriptedHub() as hub:
        url = hub.url

    with pytest.raises(signalhub.Unavailable, match=url):
        await _connect(url)


@pytest.mark.parametrize(("status", "text"), [(404, "404 Not Found"), (503, "503 Service")])
async def test_an_http_refusal_is_unavailable_and_names_the_status(status: int, text: str) -> None:
    async with ScriptedHub() as hub:
        hub.refusal = (status, {})

        with pytest.raises(signalhub.Unavailable, match=text):
            await _connect(hub.url)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_hub_is_unavailable_at_once_and_says_when_to_come_back(status: int) -> None:
    async with ScriptedHub() as hub:
        hub.refusal = (status, {"Retry-After": "60"})

        with pytest.raises(signalhub.Unavailable, match="try again in 60 s"):
            await _connect(hub.url)

        assert hub.upgrades == 1


async def test_without_registering_the_hello_is_all_it_takes() -> None:
    async with ScriptedHub() as hub:
        connecting = _connecting(hub, register=False)
        for number in (1, 2):
            peer = await hub.accept()
            hello = await peer.receive("hub:connect")
            peer.answer(hello, "hub:connected", {"sessionId": f"s-{number}"})
            client = await connecting

            await client.tell(BOB, "note", number)

            assert (await peer.receive("hub:send"))["from"] == ALICE
            peer.abort()

        await client.close()


@pytest.mark.parametrize(
    "profile", [{"capabilities": ("chat",)}, {"metadata": {"a": 1}}, {"lease_s": 60.0}]
)
def test_what_is_known_about_an_address_needs_it_registered(profile: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="registered"):
        signalhub.connect("ws://127.0.0.1:1/ws", ALICE, register=False, **profile)


async def test_one_word_is_no_list_of_capabilities() -> None:
    async with conversation() as (_, peer, client):
        with pytest.raises(ValueError, match="list of words"):
            await client.register("@(demo/second)", capabilities="chat")

        assert peer.has_heard_nothing()


async def test_a_server_that_hangs_up_during_the_handshake_is_unavailable() -> None:
    def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(signalhub.Unavailable):
            await _connect(f"ws://127.0.0.1:{port}/ws")


async def test_a_server_that_speaks_something_else_is_unavailable() -> None:
    def chat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(chat, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(signalhub.Unavailable, match="does not speak WebSocket"):
            await _connect(f"ws://127.0.0.1:{port}/ws")


async def test_a_redirect_is_not_followed() -> None:
    async with ScriptedHub() as elsewhere:

        def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(f"HTTP/1.1 302 Found\r\nLocation: {elsewhere.url}\r\n\r\n".encode())
            writer.close()

        server = await asyncio.start_server(redirect, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with pytest.raises(signalhub.Unavailable, match="302 Found"):
                await _connect(f"ws://127.0.0.1:{port}/ws", token="secret")

        assert elsewhere.upgrades == 0


async def test_a_handshake_that_succeeds_after_we_left_is_ended() -> None:
    heads: asyncio.Queue[bytes] = asyncio.Queue()
    go, ended = asyncio.Event(), asyncio.Event()

    async def shake_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.put_nowait(head)
        await go.wait()
        writer.write(_accepting(head))
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    server = await asyncio.start_server(shake_late, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        connecting = asyncio.ensure_future(_connect(f"ws://127.0.0.1:{port}/ws"))
        await heads.get()
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting

        go.set()

        async with asyncio.timeout(3):
            await ended.wait()


def _accepting(head: bytes) -> bytes:
    key = next(line for line in head.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key"))
    magic = key.split(b": ")[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + b64encode(sha1(magic).digest()) + b"\r\n\r\n"
    )


async def test_a_refused_hello_is_raised_with_its_code_and_the_link_is_closed() -> None:
    async with ScriptedHub() as hub:
        connecting = _connecting(hub)
        peer = await hub.accept()
        peer.refuse(await peer.receive("hub:connect"), "version_mismatch")

        with pytest.raises(signalhub.Refused) as caught:
            await connecting

        assert caught.value.code == "version_mismatch"
        await peer.gone.wait()
        assert hub.upgrades == 1


async def test_a_hub_that_leaves_during_the_hello_is_unavailable() -> None:
    async with ScriptedHub() as hub:
        connecting = _connecting(hub)
        peer = await hub.accept()
        await peer.receive("hub:connect")

        peer.close(1013, "come back later")

        with pytest.raises(signalhub.Unavailable, match=r"1013 \(come back later\)"):
            await connecting


async def test_cancelling_a_connect_leaves_no_connection_behind() -> None:
    async with ScriptedHub() as hub:
        connecting = _connecting(hub)
        peer = await hub.accept()
        await peer.receive("hub:connect")

        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting

        await peer.gone.wait()


async def test_leaving_says_goodbye_and_closes_with_1000() -> None:
    async with conversation() as (_, peer, client):
        await client.close()

        await peer.receive("hub:disconnect")
        await peer.gone.wait()
        assert peer.close_code == 1000
        assert not client.is_connected


async def test_a_hub_that_does_not_answer_a_goodbye_cannot_hold_us() -> None:
    async with conversation() as (_, peer, client):
        peer.is_polite = False

        async with asyncio.timeout(10):
            await client.close()
            await client.close()

        await peer.gone.wait()


async def test_closing_ends_the_messages_and_fails_the_calls() -> None:
    async with conversation() as (_, peer, client):
        reading = asyncio.create_task(anext(client.messages(), None))
        asking = asyncio.create_task(client.ask(BOB, "task"))
        waiting = asyncio.create_task(client.wait_closed())
        await peer.receive("hub:send")

        await client.close()

        assert await reading is None
        await waiting
        with pytest.raises(signalhub.OutcomeUnknown):
            await asking
        with pytest.raises(signalhub.Unavailable, match="closed"):
            await client.tell(BOB, "note")


async def test_the_token_is_asked_for_at_every_connection_and_sent_in_the_metadata() -> None:
    tokens = iter(["first", "second"])

    async def token() -> str:
        return next(tokens)

    async with ScriptedHub() as hub:
        connecting = _connecting(hub, token=token)
        seen = []
        for _ in range(2):
            peer = await hub.accept()
            hello = await peer.receive("hub:connect")
            seen.append(hello["metadata"]["authToken"])
            peer.answer(hello, "hub:connected", {"sessionId": "s"})
            peer.grant(await peer.receive("hub:register"))
            client = await connecting
            peer.abort()

        await client.close()

        assert seen == ["first", "second"]


async def test_a_failing_token_function_is_raised_at_first_and_retried_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcomes: list[str | Exception] = [OSError("sealed"), "a", OSError("sealed"), "b"]

    def token() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async with ScriptedHub() as hub:
        with pytest.raises(OSError, match="sealed"):
            await _connect(hub.url, token=token)
        connecting = _connecting(hub, token=token)
        peer = await hub.accept()
        await peer.welcome()
        async with await connecting:
            peer.abort()
            peer = await hub.accept()
            await peer.welcome()

    assert outcomes == []
    assert "No token for the next connection" in caplog.text


async def test_tokens_and_payloads_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with conversation(token="SECRET-TOKEN") as (hub, peer, client):
        await client.tell(BOB, "note", {"text": "SECRET-PAYLOAD"})
        peer.refuse(await peer.receive("hub:send"), "unauthorized")
        peer.send("note", "SECRET-PAYLOAD", sender=BOB)
        await anext(client.messages())
        peer.abort()
        await (await hub.accept()).welcome()

    texts = [str(vars(record)) for record in caplog.records if "signalhub" in record.name]
    assert any("The hub refused a tell" in text for text in texts)
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


async def test_giving_up_says_why_and_after_how_many_attempts() -> None:
    policy = Reconnect(first_jitter_s=0, attempts_max=2)
    async with conversation(reconnect=policy) as (hub, peer, client):
        reading = asyncio.create_task(anext(client.messages(), None))
        hub.refusal = (503, {})
        peer.abort()
        await hub.refused.wait()
        telling = asyncio.create_task(client.tell(BOB, "note"))

        for waiting in (reading, telling, client.wait_closed(), client.ask(BOB, "task")):
            with pytest.raises(signalhub.GaveUp, match=r"after 2 attempts .* 503"):
                await waiting
        assert hub.upgrades == 3


async def test_attempts_are_counted_anew_after_every_success() -> None:
    policy = Reconnect(first_jitter_s=0, base_s=0.01, attempts_max=1)
    async with conversation(reconnect=policy) as (hub, peer, client):
        for _ in range(3):
            peer.abort()
            peer = await hub.accept()
            await peer.welcome()
        pinging = asyncio.create_task(client.ping())
        peer.answer(await peer.receive("hub:heartbeat"), "hub:heartbeat_ack", {})

        assert await pinging >= 0


async def test_without_a_policy_a_loss_is_the_end() -> None:
    async with conversation(reconnect=None) as (hub, peer, client):
        peer.abort()

        with pytest.raises(signalhub.GaveUp, match="without reconnecting"):
            await client.wait_closed()
        assert hub.upgrades == 1


async def test_a_duplicate_is_told_so_and_stays_away() -> None:
    async with conversation() as (hub, peer, client):
        peer.send("hub:disconnect", {"reason": "duplicate_connection", "message": "moved"})

        with pytest.raises(signalhub.GaveUp, match="duplicate_connection: moved"):
            await client.wait_closed()
        await peer.gone.wait()
        assert hub.upgrades == 1


async def test_an_ask_cut_off_is_repeated_on_the_next_connection_with_its_id() -> None:
    async with conversation() as (hub, peer, client):
        asking = asyncio.create_task(client.ask(BOB, "task", {"n": 1}))
        first = await peer.receive("hub:send")
        peer.abort()
        peer = await hub.accept()
        await peer.welcome()
        second = await peer.receive("hub:send")
        peer.answer(second, "hub:delivery_ack", {"messageId": second["id"], "status": "queued"})

        receipt = await asking

        assert first == second
        assert (receipt.message_id, receipt.status, receipt.attempts) == (first["id"], "queued", 2)
        assert not receipt.is_delivered


async def test_a_cancelled_ask_is_not_repeated() -> None:
    async with conversation() as (hub, peer, client):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.ask(BOB, "task")
        await peer.receive("hub:send")
        peer.abort()

        peer = await hub.accept()
        await peer.welcome()
        await client.tell(BOB, "marker")

        assert (await peer.receive("hub:send"))["payload"]["type"] == "marker"


async def test_a_secured_hub_is_reached_with_certificates_of_ones_own(tmp_path: Path) -> None:
    served, trusting = certificates(tmp_path)
    async with ScriptedHub(served) as hub:
        with pytest.raises(signalhub.Unavailable, match="certificate"):
            await _connect(hub.url)

        connecting = _connecting(hub, ssl=trusting)
        peer = await hub.accept()
        await peer.welcome()
        async with await connecting as client:
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
    ("code", "frame"), [(1007, b'{"type":"\xff"}'), (1009, b" " * (16 * 2**20 + 1))]
)
async def test_a_hub_that_breaks_the_websocket_protocol_is_left(code: int, frame: bytes) -> None:
    async with conversation() as (hub, peer, _):
        peer.send_raw(frame)

        await peer.gone.wait()
        assert peer.close_code == code
        peer = await hub.accept()
        await peer.welcome()


async def test_a_continuation_without_a_beginning_is_left_with_1002() -> None:
    async with conversation() as (hub, peer, _):
        peer.send_raw(b"{}", is_continuation=True)

        await peer.gone.wait()
        assert peer.close_code == 1002
        await (await hub.accept()).welcome()


async def test_frames_of_one_turn_arrive_whole_and_in_order_whatever_their_size() -> None:
    sizes = [0, 1, 200, SHORT_BYTES, 70_000, 3, 66_000, SHORT_BYTES - 300, 5]
    async with conversation() as (_, peer, client):
        async with asyncio.TaskGroup() as group:
            for size in sizes:
                group.create_task(client.tell(BOB, "note", "é" * size))

        arrived = [(await peer.receive("hub:send"))["payload"]["data"] for _ in sizes]

        assert arrived == ["é" * size for size in sizes]


async def test_a_sender_in_a_loop_lets_others_run() -> None:
    async with conversation() as (_, peer, client):
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        for _ in range(1000):
            await client.tell(BOB, "note", "x")
        counting.cancel()

        assert turns > 5
        for _ in range(1000):
            await peer.receive("hub:send")


async def test_messages_nobody_wants_are_counted() -> None:
    async with conversation(inbox_max=2) as (_, peer, client):
        assert client.dropped == 0
        for number in range(5):
            peer.send("note", number, sender=BOB)
        pinging = asyncio.create_task(client.ping())
        peer.answer(await peer.receive("hub:heartbeat"), "hub:heartbeat_ack", {})
        await pinging

        assert client.dropped == 4
        assert (await anext(client.messages())).payload == 4


async def test_a_handler_can_be_attached_as_a_decorator_or_by_a_call() -> None:
    async with conversation() as (_, peer, client):
        served: asyncio.Queue[str] = asyncio.Queue()

        @client.on("a")
        async def on_a(message: signalhub.Message) -> None:
            await client.tell(message.sender, "reply", message.payload)

        client.on("b", lambda message: served.put_nowait(message.payload))
        peer.send("a", 1, sender=BOB)
        peer.send("b", "two", sender=BOB)

        reply = await peer.receive("hub:send")
        assert reply["payload"] == {"to": BOB, "type": "reply", "data": 1}
        assert await served.get() == "two"


@pytest.mark.parametrize("size", [0, 1, 4, 125, 126, 127, 65_535, 65_536])
def test_masked_frames_unmask_to_their_payload(size: int) -> None:
    payload, key = bytes(index % 251 for index in range(size)), b"\x01\xff\x00\x80"

    frame = masked_text(payload, key)

    assert frame[0] == 0x81
    head = 2 + (0 if size < 126 else 2 if size < 65_536 else 8)
    assert frame[1] == 0x80 | (size if size < 126 else 126 if size < 65_536 else 127)
    if size >= 126:
        assert int.from_bytes(frame[2:head], "big") == size
    assert frame[head : head + 4] == key
    masked = frame[head + 4 :]
    assert bytes(byte ^ key[index % 4] for index, byte in enumerate(masked)) == payload
