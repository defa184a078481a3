"""The client for JavaScript in Chromium, against a real hub that is killed."""

from __future__ import annotations

import functools
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.support.volume import volume

DIST = Path(__file__).parents[2] / "js" / "dist"
PUBLISHED = volume(200, 10_000)
KILLS = volume(2, 20)


class Hub:
    """A hub in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.run()

    def run(self) -> None:
        command = [sys.executable, "-m", "signalhub", "serve", "--port", str(self.port)]
        self._process = subprocess.Popen(
            [*command, "--data", str(self.folder / "data")],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=self.folder,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        listening = re.search(r"ws://[^/]*:(\d+)/", said)
        assert listening is not None, f"the hub did not start: {said}"
        self.port = int(listening[1])

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws"

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    hub = Hub(tmp_path)
    yield hub
    hub.kill()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/":
            page = b"<!doctype html><title>A page</title>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
        else:
            super().do_GET()


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """A site of another origin than the hub, with the small module."""
    if not (DIST / "signalhub.min.js").exists():
        pytest.fail("build the client first: make test-js")
    handler = functools.partial(_Quiet, directory=str(DIST))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(browser: Browser, site: str, hub: Hub) -> Iterator[Page]:
    """A page that has the client as `sdk` and the hub's address as `url`."""
    context = browser.new_context()
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(site)
    page.evaluate(
        "async (url) => { window.sdk = await import('/signalhub.min.js'); window.url = url;"
        " window.fast = {firstJitterMs: 50, capMs: 500}; }",
        hub.url,
    )
    yield page
    assert errors == []
    context.close()


def test_a_page_asks_requests_publishes_and_reads(page: Page) -> None:
    found = page.evaluate("""async () => {
        const alice = await sdk.connect(url, '@(demo/alice)', {durable: true, acknowledge: true});
        const bob = await sdk.connect(url, '@(demo/bob)');
        bob.answer('price:get', (m) => ({eur: m.payload.sku * 2}));
        const reply = await alice.request('@(demo/bob)', 'price:get', {sku: 6});
        const receipt = await bob.ask('@(demo/alice)', 'note', 'ünïcode 🙂');
        const mail = await alice.messages().next();
        await mail.ack({wait: true});
        await alice.publish('orders', 'order:new', {id: 8}, {durable: true, key: 'c-3'});
        const orders = await alice.consume('orders', 'billing');
        const order = await orders.next();
        await order.ack({wait: true});
        await orders.close();
        const missing = await alice.ask('@(demo/nobody)', 'x').catch((error) => error);
        await alice.close();
        await bob.close();
        return [reply.payload, receipt.status, mail.payload, order.payload, order.key,
            missing instanceof sdk.UnknownActor, missing.name, missing.code];
    }""")

    assert found == [
        *({"eur": 12}, "delivered", "ünïcode 🙂", {"id": 8}, "c-3"),
        *(True, "UnknownActor", "unknown_actor"),
    ]


def test_a_page_joins_a_room_and_reads_its_inbox_from_another_origin(page: Page, hub: Hub) -> None:
    found = page.evaluate("""async () => {
        const key = sdk.newKey();
        const access = sdk.hub(url);
        const options = {key, pseudonym: 'p1', inbox: await sdk.inboxId(key)};
        const room = await access.room('general', options);
        await room.send('we meet on Friday');
        await room.close();
        const again = await access.room('general', {...options, since: 0});
        const message = await again.next();
        const stranger = new sdk.Sealing(sdk.newKey(), 'general');
        const sealed = await stranger.open(message.messageId, message.ciphertext)
            .catch((error) => error.code);
        await access.close();
        return [message.text, message.seq, sealed];
    }""")

    assert found == ["we meet on Friday", 1, "unsealable"]


def test_publishes_survive_kills_of_the_hub(page: Page, hub: Hub) -> None:
    page.evaluate(
        """async (count) => {
        const me = await sdk.connect(url, '@(demo/alice)', {reconnect: fast});
        const orders = await me.consume('orders', 'billing').catch(async () => {
            await me.createTopic('orders');
            return me.consume('orders', 'billing');
        });
        window.seen = [];
        window.published = 0;
        window.reading = (async () => {
            for await (const message of orders) {
                seen.push(message.payload);
                await message.ack();
                if (message.payload === count) {
                    break;
                }
            }
        })();
        window.publishing = (async () => {
            for (let number = 1; number <= count; number++) {
                await me.publish('orders', 'n', number, {durable: true, attempts: 10});
                window.published = number;
            }
        })();
    }""",
        PUBLISHED,
    )
    for kill in range(1, KILLS + 1):
        page.wait_for_function(
            "(least) => published >= least", arg=kill * PUBLISHED // (KILLS + 1), timeout=60_000
        )
        hub.kill()
        hub.run()
    seen = page.evaluate("Promise.all([publishing, reading]).then(() => [...new Set(seen)])")

    assert seen == list(range(1, PUBLISHED + 1))


def test_a_consumer_that_does_not_read_gets_no_more_and_loses_nothing(page: Page) -> None:
    found = page.evaluate("""async () => {
        let paused;
        const isPaused = new Promise((resolve) => { paused = resolve; });
        class Observed extends WebSocket {
            send(text) {
                super.send(text);
                if (text.includes('hub:credit')) paused();
            }
        }
        const me = await sdk.connect(url, '@(demo/alice)', {WebSocket: Observed});
        await me.createTopic('many');
        const publish = (from, to) => Promise.all(Array.from({length: to - from + 1},
            (_, at) => me.publish('many', 'n', from + at, {durable: true})));
        await publish(1, 1500);
        const many = await me.consume('many', 'slow', {window: 5000});
        await isPaused;
        await me.ping();
        await publish(1501, 1800);
        const {inFlight} = await me.subscription('many', 'slow');
        const seen = [];
        for await (const message of many) {
            seen.push([message.delivery.seq, message.payload]);
            await message.ack();
            if (seen.length === 1800) {
                break;
            }
        }
        await me.close();
        return [inFlight, seen];
    }""")

    in_flight, seen = found
    assert 1_000 < in_flight <= 1_500
    # In the order of the topic; what was published at once may have been accepted in another one.
    assert [seq for seq, _ in seen] == list(range(1, 1_801))
    assert sorted(number for _, number in seen) == list(range(1, 1_801))
