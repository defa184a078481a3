"""Chromium, driven by Playwright, and a page that nothing escapes from unnoticed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from tests.browser.scripted_hub import Scene, ScriptedHub

ARGUMENTS: Final = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
]
Theme = Literal["dark", "light"]


@dataclass
class Observed:
    """A page, and what it did besides showing something."""

    page: Page
    hub: str
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def open(self, fragment: str = "") -> Page:
        """Go to a page of the dashboard and wait until it shows something."""
        self.page.goto(f"{self.hub}/ui/#/{fragment}")
        # A change of the fragment is shown a moment later.
        self.page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => setTimeout(done, 60)))"
        )
        self.page.wait_for_selector("main h1", timeout=10_000)
        self.settle()
        return self.page

    def settle(self) -> None:
        """Wait until nothing is being loaded."""
        expect(self.page.locator(".shape")).to_have_count(0, timeout=10_000)

    def violations(self) -> list[str]:
        """What the content security policy has refused."""
        found: list[str] = self.page.evaluate("window.refusedByPolicy ?? []")
        return found

    def is_clean(self) -> bool:
        """No error, no violation, nothing asked of others."""
        assert self.errors == []
        assert self.violations() == []
        assert self.foreign == []
        return True


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.fail("Chromium is missing: install it, with `apt-get install chromium` on Debian")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()


Look = Callable[..., Observed]


@pytest.fixture
def look(browser: Browser) -> Iterator[Look]:
    """Open a browser window at a hub."""
    with ExitStack() as stack:

        def at(
            hub: str,
            *,
            width: int = 1280,
            theme: Theme = "dark",
            timezone: str | None = None,
            allowed_errors: tuple[str, ...] = (),
        ) -> Observed:
            context = browser.new_context(
                viewport={"width": width, "height": 800 if width > 639 else 844},
                color_scheme=theme,
                timezone_id=timezone,
                reduced_motion="reduce",
            )
            stack.callback(context.close)
            context.add_init_script(
                "window.refusedByPolicy = []; document.addEventListener('securitypolicyviolation',"
                " (e) => window.refusedByPolicy.push(`${e.violatedDirective} ${e.blockedURI}`));"
            )
            page = context.new_page()
            seen = Observed(page, hub)

            def requested(request: Request) -> None:
                one = urlsplit(request.url)
                if one.scheme not in ("data", "blob") and one.netloc != urlsplit(hub).netloc:
                    seen.foreign.append(request.url)

            page.on("request", requested)
            page.on("pageerror", lambda error: seen.errors.append(str(error)))
            page.on(
                "console",
                lambda message: (
                    seen.errors.append(message.text)
                    if message.type == "error"
                    and not any(one in message.text for one in allowed_errors)
                    else None
                ),
            )
            return seen

        yield at


Stage = Callable[[Scene], ScriptedHub]


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Start a scripted hub."""
    hubs: list[ScriptedHub] = []

    def start(scene: Scene) -> ScriptedHub:
        hubs.append(ScriptedHub(scene))
        return hubs[-1]

    yield start
    for one in hubs:
        one.close()
