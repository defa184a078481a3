"""The synchronous client, used where a loop is running, as in a notebook, and in scripts."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

import signalhub
from signalhub.sync import SyncClient, SyncMessage
from signalhub.testing import RunningHub, run_hub

T = TypeVar("T")

ALICE, BOB = "@(demo/alice)", "@(demo/bob)"


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    """A hub in a thread of its own, because the programs here block theirs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    async def enter() -> RunningHub:
        return await running.__aenter__()

    async def leave() -> None:
        await running.__aexit__(None, None, None)

    running = run_hub(message_rate=0)
    yield run(enter())
    run(leave())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def alice(hub: RunningHub) -> Iterator[SyncClient]:
    with signalhub.sync.connect(hub.url, ALICE) as client:
        yield client


@pytest.fixture
def bob(hub: RunningHub) -> Iterator[SyncClient]:
    with signalhub.sync.connect(hub.url, BOB) as client:
        yield client


async def test_it_works_where_a_loop_is_running(alice: SyncClient, bob: SyncClient) -> None:
    assert asyncio.get_running_loop().is_running()

    alice.tell(BOB, "note", 1)
    assert alice.ask(BOB, "note", 2).is_delivered
    messages = bob.messages()

    assert [next(messages).payload, next(messages).payload] == [1, 2]
    assert alice.discover("demo/*").actors
    assert alice.ping() > 0


def test_handlers_run_in_threads_and_may_use_the_client(alice: SyncClient, bob: SyncClient) -> None:
    @bob.answers("double")
    def double(message: SyncMessage) -> int:
        assert threading.current_thread() is not threading.main_thread()
        return int(bob.request(message.sender, "known", message.payload).payload) * 2

    alice.answers("known", lambda message: message.payload)

    assert alice.request(BOB, "double", 21, timeout_s=5).payload == 42
    assert [one.payload for one in alice.request_many("double", 1, timeout_s=5)] == [2]
    with pytest.raises(signalhub.UnknownActor):
        alice.request("@(demo/nobody)", "double", timeout_s=5)


def test_a_program_replies_to_what_it_iterates_over(alice: SyncClient, bob: SyncClient) -> None:
    def serve() -> None:
        for message in bob.messages():
            if message.payload < 0:
                message.fail("too small", code="negative")
                return
            message.reply(message.payload + 1)

    thread = threading.Thread(target=serve)
    thread.start()

    assert alice.request(BOB, "add", 1, timeout_s=5).payload == 2
    with pytest.raises(signalhub.RequestFailed, match="too small"):
        alice.request(BOB, "add", -1, timeout_s=5)
    thread.join()


def test_durable_topics_are_read_and_settled(alice: SyncClient) -> None:
    alice.create_topic("orders")
    for number in range(3):
        alice.publish("orders", "order", number, durable=True)

    with alice.consume("orders", "billing") as orders:
        taken = [next(orders) for _ in range(3)]
        assert all(message.ack(wait=True) for message in taken)
        assert orders.topic == "orders"

    replay = alice.replay("orders")
    assert [message.payload for message in replay] == [0, 1, 2]
    assert replay.complete
    assert alice.subscription("orders", "billing").lag == 0


def test_rooms_inboxes_and_messages_over_http(hub: RunningHub) -> None:
    with signalhub.sync.hub(hub.http_url) as rooms:
        with rooms.room("general") as room:
            room.send(b"hello")
            assert next(room).ciphertext == b"hello"
        assert rooms.publish("jobs", "job", 1, durable=True).seq == 1
        assert [message.payload for message in rooms.messages("jobs")] == [1]
        (job,) = rooms.pull("jobs", "workers")
        assert job.ack(wait=True)
        inbox = rooms.inbox("A" * 43)
        inbox.append(b"later")
        assert [message.ciphertext for message in inbox.messages()] == [b"later"]


def test_a_handler_may_close_the_client_and_leaves_no_thread(hub: RunningHub) -> None:
    closed = threading.Event()
    before = threading.active_count()
    with signalhub.sync.connect(hub.url, "@(demo/sender)") as sender:
        last = signalhub.sync.connect(hub.url, "@(demo/leaver)")
        leaver = last.__enter__()

        @leaver.on("stop")
        def stop(message: SyncMessage) -> None:
            sender.close()
            leaver.close()
            closed.set()

        sender.tell("@(demo/leaver)", "stop")
        assert closed.wait(20)

    for thread in threading.enumerate():
        if thread.name.startswith(("signalhub.sync", "asyncio_")):
            thread.join(20)
    assert threading.active_count() <= before


def test_a_closed_client_says_so(hub: RunningHub) -> None:
    client = signalhub.sync.connect(hub.url, ALICE)
    client.close()
    client.close()

    with pytest.raises(signalhub.Unavailable, match=r"closed by the program; call signalhub\.sync"):
        client.tell(BOB, "note")
    with pytest.raises(signalhub.Unavailable, match="closed by the program"):
        client.messages()
    assert "signalhub.sync" not in {thread.name for thread in threading.enumerate()}


def test_a_connection_that_fails_leaves_no_thread() -> None:
    with pytest.raises(signalhub.Unavailable):
        signalhub.sync.connect("ws://127.0.0.1:9/ws", ALICE)

    assert "signalhub.sync" not in {thread.name for thread in threading.enumerate()}


SCRIPT = """
import sys
import signalhub

with signalhub.sync.connect(sys.argv[1], "@(demo/script)") as me:
    try:
        print("ready", flush=True)
        next(me.messages())
    except KeyboardInterrupt:
        print("interrupted", me.ping() > 0, flush=True)
"""


async def test_ctrl_c_interrupts_a_wait_and_the_client_goes_on(hub: RunningHub) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, hub.url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert await process.stdout.readline() == b"interrupted True\n"
        assert await process.wait() == 0
