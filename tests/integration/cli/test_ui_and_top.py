"""`signalhub ui` and `signalhub top`: how people get to see a hub."""

from __future__ import annotations

import asyncio
import webbrowser
from pathlib import Path

import pytest

from signalhub import Client
from signalhub.cli.hub import ui
from signalhub.cli.hub.top import SORTS, TopView, keys_of
from signalhub.client.transport.live import Picture, pictures
from signalhub.testing import RunningHub, run_hub
from tests.support.process.command import Run, command, unused_url
from tests.support.socket.http import Web
from tests.support.socket.tokens import SECRET


@pytest.fixture
def guarded(tmp_path: Path) -> Path:
    file = tmp_path / "hub.toml"
    file.write_text(f'[auth]\nenabled = true\nsecret = "{SECRET}"\n')
    return file


async def test_the_address_of_the_page_is_printed_or_opened(
    run: Run, hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def opening(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", opening)
    page = f"http://127.0.0.1:{hub.port}/ui/"

    assert (await run("ui", "--no-browser")).out == f"{page}\n"
    assert (await run("ui", "--no-browser", "--json")).rows()[0]["url"] == page
    assert opened == []
    done = await run("ui")
    assert (done.code, done.out, opened) == (0, "", [page])
    assert (await run("ui", "--url", "ftp://x")).code == 2


async def test_a_hub_with_authentication_lets_the_minted_role_in(guarded: Path) -> None:
    auth = {"enabled": True, "secret": SECRET}
    async with run_hub(auth=auth) as hub:
        for role in ("viewer", "operator", "admin"):
            arguments = ("ui", "--no-browser", "--role", role, "--config", str(guarded))
            address = (await command(hub.url, *arguments)).out.strip()
            page, _, token = address.partition("#t=")
            assert page == f"http://127.0.0.1:{hub.port}/ui/"
            web = Web(hub.port)
            answer = await web.get("/api/admin/v1/me", {"Authorization": f"Bearer {token}"})
            assert answer.json["role"] == role
            assert answer.json["principal"].startswith("@(ui/")
            web.close()
        refused = await command(hub.url, "top", "--once")
        assert (refused.code, "token" in refused.err) == (1, True)
    assert (await command(hub.url, *arguments, "--lifetime", "0")).code == 2
    file = guarded.with_name("token")
    file.write_text(f"{token}\n")
    done = await command("ws://far.example/ws", "ui", "--no-browser", "--token-file", str(file))
    assert done.out == f"http://far.example/ui/#t={token}\n"


def is_there(url: str) -> bool:
    return Path(url.removeprefix("file://")).exists()


async def test_no_token_is_among_the_arguments_of_the_browser(
    guarded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    pages: list[tuple[str, int]] = []

    def opening(url: str) -> bool:
        opened.append(url)
        file = Path(url.removeprefix("file://"))
        pages.append((file.read_text(), file.stat().st_mode & 0o777))
        return True

    monkeypatch.setattr(webbrowser, "open", opening)
    monkeypatch.setattr(ui, "_OPENING_S", 0.0)
    await command("ws://127.0.0.1:8787/ws", "ui", "--config", str(guarded))

    ((page, mode),) = pages
    assert "http://127.0.0.1:8787/ui/#t=ey" in page
    assert mode == 0o600
    assert "#t=" not in opened[0]
    assert not is_there(opened[0])


async def test_top_prints_one_picture_or_lines(run: Run, me: Client) -> None:
    await me.create_topic("orders")
    await me.publish("orders", "order:new", {"n": 1}, durable=True)
    async with me.consume("orders", "billing", start="earliest"):
        done = await run("top", "--once", "--json")
        (line,) = done.rows()
        assert line["overview"]["status"] == "ok"
        assert line["subscriptions"]["orders/billing"]["lag"] == 1
        text = (await run("top")).out
        assert "orders" in text
        assert "billing" in text
    assert (await command(unused_url(), "top", "--once")).code == 3


async def test_pictures_follow_what_happens(hub: RunningHub, me: Client) -> None:
    await me.create_topic("orders")
    async with me.consume("orders", "billing"), asyncio.timeout(20):
        async for picture in pictures(hub.url):
            row = picture.subscriptions.get("orders/billing")
            if row is None or row["head"] < 1:
                await me.publish("orders", "order:new", 1, durable=True)
                continue
            break
    assert row is not None
    assert row["topic"] == "orders"


def row(topic: str, lag: int, rate: float) -> dict[str, object]:
    return {
        "topic": topic, "subscription": "s", "state": "behind", "lag": lag, "trend": 1.0,
        "inFlight": 1, "consumers": 1, "settledRate": rate, "redeliveredRate": None,
    }  # fmt: skip


def picture() -> Picture:
    rows = {f"{name}/s": row(name, lag, rate) for name, lag, rate in (
        ("a", 1, 5.0), ("b", 9, 1.0), ("c", 5, 9.0),
    )}  # fmt: skip
    attention = [{"level": "error", "text": f"trouble \x1b[31m{number}"} for number in range(7)]
    overview = {
        "at": 1_760_000_000_000, "status": "degraded", "sample": {"in": 1234.5}, "limits": [],
        "attention": attention, "attentionTotal": 9,
    }  # fmt: skip
    me = {"hub": {"label": "PRODUCTION", "version": "1"}, "role": "viewer"}
    return Picture(me, overview, rows)


def drawn(view: TopView, width: int = 120, height: int = 24) -> str:
    from rich.console import Console

    console = Console(width=width, height=height, no_color=True)
    with console.capture() as captured:
        console.print(view.render(picture(), width, height))
    return captured.get()


def test_keys_sort_filter_choose_and_open() -> None:
    view = TopView()

    def topics() -> list[object]:
        return [one["topic"] for one in view.rows(picture())]

    assert topics() == ["b", "c", "a"]
    for expected in (["c", "a", "b"], ["a", "b", "c"], ["b", "c", "a"]):
        view.press("s")
        assert topics() == expected
    assert view.sort == SORTS[0]
    for key in keys_of("/b\r"):
        assert view.press(key) is False
    assert topics() == ["b"]
    view.press("escape")
    for key in keys_of("\x1b[B\x1b[B\x1b[B\x1b[B"):
        view.press(key)
    view.rows(picture())
    assert view.chosen == 2
    view.press("enter")
    assert "settledRate" in drawn(view)
    view.press("p")
    assert "paused" in drawn(view)
    assert view.press("q") is True


def test_a_picture_fits_and_holds_no_control_characters() -> None:
    for width in (80, 120):
        text = drawn(TopView(), width)
        assert len(text.splitlines()) <= 24
        assert all(len(line) <= width for line in text.splitlines())
        assert "\x1b" not in text
        assert "PRODUCTION" in text
        assert "and 4 more" in text
