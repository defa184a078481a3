"""The dashboard of a real hub: what it shows is there, and what it does happens."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import expect

import signalhub
from tests.browser.conftest import Look
from tests.browser.places import PAGES
from tests.browser.scripted_hub import HEADERS, STATIC

MESSAGES: Final = 40
LETTERS: Final = 4
COMMAND: Final = (sys.executable, "-m", "signalhub")


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """A hub as a process of its own; the address of its page, without the path."""
    command = [*COMMAND, "serve", "--port", "0", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        found = (re.search(r"127\.0\.0\.1:(\d+)/", line) for line in process.stdout)
        port = next(one[1] for one in found if one)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)
        process.stdout.close()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A hub without authentication, with messages, a consumer and dead letters."""
    data = tmp_path_factory.mktemp("hub") / "data"
    with serving("--data", str(data)) as address:
        url = f"{address.replace('http', 'ws')}/ws"
        filling = threading.Thread(target=asyncio.run, args=(fill(url),))
        filling.start()
        filling.join()
        yield address


async def fill(url: str) -> None:
    """Publish orders, settle them for one subscription, and give some of them up."""
    async with await signalhub.connect(url, "@(shop/orders)") as me:
        await me.create_topic("orders", poison="dead_letter")
        billing = await me.consume("orders", "billing", start="earliest")
        for number in range(MESSAGES):
            await me.publish(
                "orders", "order:new", {"order": number}, durable=True, key=f"customer-{number % 7}"
            )
        settled = 0
        async for message in billing:
            if message.payload["order"] < LETTERS:
                await message.term(reason="no such customer")
            else:
                await message.ack()
            settled += 1
            if settled == MESSAGES:
                break
        await billing.close()


def test_files_come_with_the_headers_of_the_specification(hub: str) -> None:
    with urllib.request.urlopen(f"{hub}/ui/") as answer:
        assert answer.read() == (STATIC / "index.html").read_bytes()
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert answer.headers["Cache-Control"] == "no-cache"
    for path in STATIC.glob("app.*.js"):
        with urllib.request.urlopen(f"{hub}/ui/assets/{path.name}") as answer:
            assert answer.read() == path.read_bytes()
            assert "immutable" in answer.headers["Cache-Control"]


@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_of_a_real_hub_is_whole(hub: str, width: int, look: Look) -> None:
    seen = look(hub, width=width)

    for name, fragment in {**PAGES, "subscription": "subs/orders/billing"}.items():
        page = seen.open(fragment)
        assert page.get_by_role("alert").count() == 0, name
        assert seen.is_clean()


def test_a_seek_happens_and_is_on_record(hub: str, look: Look) -> None:
    seen = look(hub)
    page = seen.open("subs/orders/billing")

    page.get_by_role("button", name="Seek…").click()
    page.get_by_label("earliest message").check()
    expect(page.get_by_text(re.compile(f"Replays {MESSAGES} settled messages"))).to_be_visible()
    page.get_by_role("button", name="Seek", exact=True).click()

    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator(".stat", has_text="Lag").locator("dd").first).to_have_text(str(MESSAGES))
    page = seen.open("actions")
    expect(page.get_by_role("row", name=re.compile("hub:seek")).first).to_be_visible()
    assert seen.is_clean()


def test_a_letter_is_edited_and_put_back(hub: str, look: Look) -> None:
    seen = look(hub)
    page = seen.open("letters?topic=orders.dlq")
    expect(page.get_by_text("no such customer").first).to_be_visible()

    page.get_by_role("checkbox", name="Select", exact=True).first.check()
    page.get_by_role("button", name="Edit and redrive…").click()
    page.get_by_label("Data, as JSON").fill('{"order": 9007199254759461}')
    page.get_by_role("button", name="Edit and redrive", exact=True).click()

    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_text(re.compile(f"{LETTERS - 1} waiting"))).to_be_visible(timeout=10_000)
    page = seen.open("log?stream=orders")
    expect(page.get_by_text('{"order": 9007199254759461}').first).to_be_visible(timeout=10_000)
    assert seen.is_clean()


def test_what_is_published_appears_while_one_looks(hub: str, look: Look) -> None:
    seen = look(hub)
    page = seen.open("log?stream=orders&live=1")
    url = f"{hub.replace('http', 'ws')}/ws"

    async def publish() -> None:
        async with await signalhub.connect(url, "@(shop/late)") as me:
            await me.publish("orders", "order:late", {"order": "late"}, durable=True)

    publishing = threading.Thread(target=asyncio.run, args=(publish(),))
    publishing.start()
    publishing.join()

    expect(page.get_by_text("order:late")).to_be_visible(timeout=10_000)
    assert seen.is_clean()


def test_somebody_can_try_it(hub: str, look: Look) -> None:
    seen = look(hub)
    page = seen.open("try")

    page.get_by_role("button", name="Connect").click()
    expect(page.get_by_text("● connected", exact=True)).to_be_visible(timeout=15_000)
    page.get_by_role("button", name="publish", exact=True).click()
    page.get_by_label("Topic").fill("orders")
    page.get_by_role("button", name="Send").click()

    expect(page.get_by_text(re.compile("published in"))).to_be_visible(timeout=10_000)
    page.get_by_role("button", name="Disconnect").click()
    expect(page.get_by_role("button", name="Connect")).to_be_visible()
    assert seen.is_clean()


def test_a_role_sees_and_does_what_it_may(tmp_path: Path, look: Look) -> None:
    settings = tmp_path / "hub.toml"
    settings.write_text(f'[auth]\nenabled = true\nsecret = "{"s" * 44}"\n')
    settings.chmod(0o600)
    given = ("--config", str(settings))

    def token(role: str, name: str) -> str:
        mint = [*COMMAND, "token", "mint", name, "--role", role, *given]
        done = subprocess.run(mint, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip()

    with serving("--data", str(tmp_path / "data"), *given) as address:
        stranger = look(address, allowed_errors=("401",))
        stranger.page.goto(f"{address}/ui/#/topics")
        expect(stranger.page.get_by_role("textbox", name="Token")).to_be_visible()

        operator = look(address)
        operator.page.goto(f"{address}/ui/#/topics?t={token('operator', 'ui/anna')}")
        operator.page.get_by_role("button", name="Create topic…").click()
        operator.page.get_by_label("Name", exact=True).fill("orders")
        operator.page.get_by_role("button", name="Create topic", exact=True).click()
        expect(operator.page.get_by_role("heading", name="orders", level=1)).to_be_visible()
        # Operators delete nothing of others, but this topic is theirs.
        expect(operator.page.get_by_role("button", name="Delete topic…")).to_be_enabled()
        assert operator.is_clean()

        viewer = look(address, allowed_errors=("403",))
        viewer.page.goto(f"{address}/ui/#/topics/orders?t={token('viewer', 'ui/otto')}")
        expect(viewer.page.get_by_role("button", name="Change topic…")).to_be_disabled()
        expect(viewer.page.get_by_role("button", name="Delete topic…")).to_be_disabled()
        # The hub decides, whatever the page shows.
        status = viewer.page.evaluate(
            """() => fetch('../api/admin/v1/topics/orders', {
                method: 'DELETE',
                headers: {authorization: `Bearer ${sessionStorage.getItem('signalhub.token')}`},
            }).then((answer) => answer.status)"""
        )
        assert status == 403
        expect(viewer.page.get_by_text("● live")).to_be_visible()
        assert viewer.violations() == []


def test_the_built_page_is_part_of_the_package() -> None:
    assert Path(signalhub.__file__).parent / "web" / "static" == STATIC
