"""Every page, wide and narrow, dark and light, of hubs in several states.

Nothing is refused by the policy, nothing is loaded from elsewhere, nothing overflows, and axe finds
nothing serious. `SCREENSHOTS=folder` keeps a picture of each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import expect

from tests.browser import scenes
from tests.browser.conftest import Look, Stage, Theme
from tests.browser.places import DETAILS, PAGES
from tests.browser.scripted_hub import Scene

AXE: Final = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
PICTURES: Final = os.environ.get("SCREENSHOTS")
LOOKS: Final[tuple[tuple[int, Theme], ...]] = (
    (1280, "dark"), (1280, "light"), (390, "dark"), (390, "light"),
)  # fmt: skip
STATES: Final[dict[str, tuple[Callable[[], Scene], tuple[tuple[int, Theme], ...]]]] = {
    "empty": (scenes.empty, LOOKS),
    "busy": (scenes.busy, LOOKS),
    "crowded": (lambda: scenes.busy(rows=10_000), ((1280, "light"), (390, "dark"))),
    "viewer": (lambda: scenes.busy(operations=scenes.VIEWER), ((1280, "dark"), (390, "light"))),
    "hostile": (lambda: scenes.busy(payload=scenes.HOSTILE), ((1280, "dark"), (390, "dark"))),
}
CASES: Final = [
    pytest.param(state, width, theme, id=f"{state}-{width}-{theme}")
    for state, (_, looks) in STATES.items()
    for width, theme in looks
]


@pytest.mark.parametrize(("state", "width", "theme"), CASES)
def test_every_page_is_whole(
    state: str, width: int, theme: Theme, look: Look, stage: Stage
) -> None:
    hub = stage(STATES[state][0]())
    seen = look(hub.url, width=width, theme=theme, allowed_errors=("status of 403",))

    for name, fragment in (PAGES if state == "empty" else PAGES | DETAILS).items():
        page = seen.open(fragment)
        if PICTURES:
            page.screenshot(path=f"{PICTURES}/{state}-{name}-{width}-{theme}.png")

        wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wider <= 0, f"{name} is {wider} px too wide"
        assert page.locator("h1").count() == 1, name
        assert page.locator("[role=row]").count() <= 130, name
        forbidden = state == "viewer" and name == "settings"
        assert page.get_by_role("alert").count() == int(forbidden), name
        assert seen.is_clean()
    if state == "hostile":
        assert seen.page.evaluate("document.querySelectorAll('main img, main script').length") == 0


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_axe_finds_nothing(width: int, theme: Theme, look: Look, stage: Stage) -> None:
    if not AXE.is_file():
        pytest.fail("axe-core is missing: run `npm ci` in web/, or `make test-browser`")
    seen = look(stage(scenes.busy()).url, width=width, theme=theme)
    found: list[str] = []

    for name, fragment in (PAGES | DETAILS).items():
        page = seen.open(fragment)
        # The policy of the page forbids a script in it; a devtools evaluation is none.
        page.evaluate(AXE.read_text())
        result: dict[str, Any] = page.evaluate(
            "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa',"
            " 'best-practice'], resultTypes: ['violations']})"
        )
        found += [
            f"{name}: {one['impact']} {one['id']} {one['nodes'][0]['html'][:160]}"
            for one in result["violations"]
            if one["impact"] in ("moderate", "serious", "critical")
        ]

    assert found == []


def test_a_hub_that_is_away_leaves_what_was_known_and_says_so(look: Look, stage: Stage) -> None:
    hub = stage(scenes.busy())
    seen = look(hub.url, allowed_errors=("ERR_", "WebSocket"))
    page = seen.open()

    hub.leave()

    expect(page.get_by_text("offline for")).to_be_visible(timeout=10_000)
    expect(page.get_by_text("Nothing new for")).to_be_visible(timeout=15_000)
    expect(page.get_by_text("16\u202f461", exact=True)).to_be_visible()
    hub.come_back()
    expect(page.locator(".status-live")).to_have_text("● live", timeout=30_000)
    expect(page.get_by_text("Nothing new for")).to_have_count(0, timeout=10_000)
