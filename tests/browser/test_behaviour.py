"""What the dashboard does: keys, times, strangers' texts, tokens, and what its policy refuses."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, expect

from tests.browser import scenes
from tests.browser.conftest import Look, Stage
from tests.browser.scripted_hub import Asked, Refusal, Scene

# A night in which an hour comes twice, and one in which an hour is left out.
NIGHTS: Final = (
    datetime(2026, 11, 1, 0, 30, tzinfo=UTC),
    datetime(2026, 3, 8, 3, 0, tzinfo=UTC),
    datetime(2026, 10, 24, 23, 0, tzinfo=UTC),
)
ZONES: Final = ("UTC", "Asia/Kolkata", "America/St_Johns", "Europe/Berlin")
ALERT: Final = '<img src=x onerror="window.ran = true">\u202e'


def focused(page: Page) -> str:
    """The text of what has the focus."""
    text: str = page.evaluate(
        "document.activeElement?.ariaLabel || document.activeElement?.textContent || ''"
    )
    return text.strip()


def tab_to(page: Page, text: str, key: str = "Tab", limit: int = 80) -> None:
    """Press Tab until something with this text has the focus."""
    for _ in range(limit):
        if re.search(text, focused(page)):
            return
        page.keyboard.press(key)
    raise AssertionError(f"Tab does not reach {text!r}, but {focused(page)!r}")


def signed_out() -> Scene:
    """A busy hub that asks for a token."""
    scene = scenes.busy()
    scene.token = "let-me-in"
    return scene


def test_an_operator_needs_no_mouse(look: Look, stage: Stage) -> None:
    hub = stage(signed_out())
    seen = look(hub.url, allowed_errors=("401",))
    page = seen.page
    page.goto(f"{hub.url}/ui/#/")
    keys = page.keyboard

    # Sign in.
    expect(page.get_by_role("textbox", name="Token")).to_be_focused()
    keys.type("let-me-in")
    keys.press("Enter")
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()

    # Find a subscription.
    keys.press("/")
    expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
    keys.type("slow")
    expect(page.get_by_text("orders/slow-report")).to_be_visible()
    keys.press("ArrowDown")
    keys.press("Enter")
    expect(page.get_by_role("heading", name="slow-report", level=1)).to_be_visible()

    # Preview a seek, do it, and be where one was.
    tab_to(page, r"^Seek…$")
    keys.press("Enter")
    expect(page.get_by_text("Replays 4\u202f133 settled messages")).to_be_visible()
    tab_to(page, r"^Seek$")
    keys.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert focused(page) == "Seek…"
    sought = [json.loads(one.body) for one in hub.asked if one.path.endswith("/seek")]
    assert sought[0]["dryRun"] is True
    assert sought[-1]["plan"] == {"epoch": "e-1", "next": 3_850, "generation": 4}

    # Redrive two letters.
    keys.press("g")
    keys.press("d")
    expect(page.get_by_role("heading", name="Dead letters", level=1)).to_be_visible()
    seen.settle()
    expect(page.get_by_role("table", name="Dead letters")).to_be_visible()
    page.locator("[role=row][tabindex='0']").focus()
    keys.press(" ")
    keys.press("j")
    keys.press(" ")
    expect(page.get_by_text("2 selected")).to_be_visible()
    tab_to(page, r"^Redrive…$", "Shift+Tab")
    keys.press("Enter")
    expect(page.get_by_role("button", name="Redrive 2")).to_be_visible()
    tab_to(page, r"^Redrive 2$")
    keys.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    redriven = [json.loads(one.body) for one in hub.asked if one.path == "/letters/redrive"][-1]
    assert redriven["seqs"] == [1, 2]
    assert "dryRun" not in redriven

    # Open a call.
    keys.press("g")
    keys.press("c")
    tab_to(page, r"^Calls$")
    keys.press("Enter")
    expect(page.get_by_role("table", name="Calls")).to_be_visible()
    page.locator("[role=row][tabindex='0']").focus()
    keys.press("Enter")
    expect(page.get_by_role("heading", name="01M7JPRBBJ", level=1)).to_be_visible()
    expect(page.get_by_text("stock/blue-mug reserve").first).to_be_visible()
    assert seen.is_clean()


def test_escape_closes_what_is_above_and_the_focus_returns(look: Look, stage: Stage) -> None:
    page = look(stage(scenes.busy()).url).open("topics")
    page.locator("[role=row][tabindex='0']").focus()
    before = focused(page)

    for key, name in (("/", "Search"), ("?", "Keyboard")):
        page.keyboard.press(key)
        dialog = page.get_by_role("dialog", name=name)
        expect(dialog).to_be_visible()
        if name == "Search":
            page.keyboard.type("ord")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        assert focused(page) == before


def test_a_token_in_the_address_is_used_and_taken_out(look: Look, stage: Stage) -> None:
    hub = stage(signed_out())
    seen = look(hub.url)

    seen.page.goto(f"{hub.url}/ui/#t=let-me-in")

    expect(seen.page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    assert "let-me-in" not in seen.page.url
    stored = seen.page.evaluate("JSON.stringify(localStorage) + document.cookie")
    assert "let-me-in" not in stored
    assert seen.is_clean()


def test_a_token_that_has_ended_leaves_the_page_as_it_was(look: Look, stage: Stage) -> None:
    hub = stage(signed_out())
    seen = look(hub.url, allowed_errors=("401",))
    page = seen.page
    page.goto(f"{hub.url}/ui/#/topics?t=let-me-in")
    expect(page.get_by_role("table", name="Topics")).to_be_visible()

    hub.scene.token = "another"
    page.get_by_role("button", name="Refresh").click()

    expect(page.get_by_role("heading", name="Sign in again")).to_be_visible()
    expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()
    page.get_by_role("textbox", name="Token").fill("another")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Sign in again")).to_have_count(0)


@pytest.mark.parametrize("name", ZONES)
def test_times_say_their_zone_and_can_be_read_back(name: str, look: Look, stage: Stage) -> None:
    scene = scenes.busy()
    moments = [
        int((night + timedelta(minutes=13 * i)).timestamp() * 1000) + 7 * i
        for night in NIGHTS
        for i in range(20)
    ]
    rows = [scenes.action(i) | {"at": at} for i, at in enumerate(moments)]
    scene.on("GET", "/actions", scenes.actions(rows))
    hub = stage(scene)
    seen = look(hub.url, timezone=name)
    page = seen.open("actions")

    for switched in (False, True):
        if switched:
            page.get_by_role("button", name="Time zone").click()
        zone = ZoneInfo(name if switched else "UTC")
        shown = page.locator("[role=row] time").all_text_contents()
        assert len(shown) > 15
        for text, at in zip(shown, moments, strict=False):
            read = datetime.fromisoformat(text.strip())
            assert round(read.timestamp() * 1000) == at
            assert read.utcoffset() == datetime.fromtimestamp(at / 1000, zone).utcoffset()
        head = page.get_by_role("columnheader", name="Time").inner_text()
        # A zone may have another name in the browser: Asia/Calcutta.
        assert ("UTC" in head) is (not switched or name == "UTC")
    assert seen.is_clean()


def test_charts_and_clock_are_in_the_same_zone(look: Look, stage: Stage) -> None:
    seen = look(stage(scenes.busy()).url, timezone="Asia/Kolkata")
    page = seen.open()

    page.get_by_role("button", name="Values").first.click()
    utc = page.locator(".chart td").first.inner_text()
    page.get_by_role("button", name="Time zone").click()
    local = page.locator(".chart td").first.inner_text()

    assert utc.endswith("Z")
    assert local.endswith("+05:30")
    expect(page.get_by_role("button", name="Time zone")).to_contain_text("UTC+05:30")


def test_what_strangers_wrote_is_text(look: Look, stage: Stage) -> None:
    scene = scenes.busy(payload=scenes.HOSTILE)
    evil = [scenes.topic(ALERT), scenes.topic("<b>bold</b>")]
    scene.on("GET", "/topics", lambda asked: scenes.page(evil, asked.query))
    scene.on("GET", "/actors", lambda asked: scenes.page(
        [scenes.actor(0) | {"address": ALERT, "capabilities": [ALERT]}], asked.query,
        live=1, away=0, limit=9,
    ))  # fmt: skip
    seen = look(stage(scene).url)

    for fragment in ("topics", "actors", "log", "letters?topic=orders.dlq", "lake/messages"):
        page = seen.open(fragment)
        assert page.locator("main img, main b:has-text('bold'), main script").count() == 0
    page = seen.open("log?entry=1.93879")
    shown = page.locator(".drawer .payload pre").first.inner_text()

    assert page.evaluate("window.ran") is None
    assert '"big": 9007199254759461' in shown
    assert '"tiny": 1.0000000000000000001' in shown
    assert "⟨U+202E⟩" in shown
    assert "\u202e" not in page.locator("main").inner_text()
    assert seen.is_clean()


def test_the_policy_refuses_what_is_planted(look: Look, stage: Stage) -> None:
    seen = look(stage(scenes.busy()).url, allowed_errors=("Content Security Policy", "TrustedHTML"))
    page = seen.open()

    page.evaluate(
        """() => {
            const planted = document.createElement('script');
            try { planted.textContent = 'window.ran = 1'; } catch {}
            document.body.append(planted);
            try { document.body.insertAdjacentHTML('beforeend', '<img src=x>'); } catch {}
            const image = document.createElement('img');
            image.src = 'https://elsewhere.invalid/x.png';
            document.body.append(image);
            return fetch('https://elsewhere.invalid/').catch(() => null);
        }"""
    )

    refused = " ".join(seen.violations())
    assert page.evaluate("window.ran") is None
    for directive in ("require-trusted-types-for", "img-src", "connect-src"):
        assert directive in refused
    assert seen.foreign == [] or all("elsewhere" in one for one in seen.foreign)


def test_an_edited_letter_keeps_its_numbers(look: Look, stage: Stage) -> None:
    hub = stage(scenes.busy())
    seen = look(hub.url)
    page = seen.open("letters?topic=orders.dlq")
    page.get_by_role("checkbox", name="Select", exact=True).nth(1).check()
    page.get_by_role("button", name="Edit and redrive…").click()
    field = page.get_by_label("Data, as JSON")

    field.fill('{"order": 17, "big": 9007199254759463')
    expect(page.get_by_text("This is not JSON.")).to_be_visible()
    expect(page.get_by_role("button", name="Edit and redrive", exact=True)).to_be_disabled()
    field.fill('{"order": 17, "big": 9007199254759463}')
    page.get_by_role("button", name="Edit and redrive", exact=True).click()

    expect(page.get_by_role("dialog")).to_have_count(0)
    body = next(one.body for one in hub.asked if '"edits"' in one.body)
    assert '"edits":{"2":{"data":{"order": 17, "big": 9007199254759463}}}' in body


def test_deleting_asks_for_the_name(look: Look, stage: Stage) -> None:
    hub = stage(scenes.busy())
    hub.scene.on("DELETE", "/topics/orders", {"operation": "x", "target": "orders", "result": {}})
    seen = look(hub.url)
    page = seen.open("topics/orders")

    page.get_by_role("button", name="Delete topic…").click()
    act = page.get_by_role("button", name="Delete topic", exact=True)
    expect(act).to_be_disabled()
    page.get_by_label("Type orders to confirm").fill("orders")
    act.click()

    expect(page.get_by_role("table", name="Topics")).to_be_visible()
    assert [one.path for one in hub.asked if one.method == "DELETE"] == ["/topics/orders"]


def test_who_only_views_is_told_what_an_action_needs(look: Look, stage: Stage) -> None:
    seen = look(stage(scenes.busy(operations=scenes.VIEWER)).url)
    page = seen.open("subs/orders/slow-report")

    for name, needs in (("Pause…", "manage: orders"), ("Delete subscription…", "delete: orders")):
        button = page.get_by_role("button", name=name)
        expect(button).to_be_disabled()
        expect(button).to_have_attribute("title", f"Needs {needs}")


def test_a_refused_action_says_why_and_stays_open(look: Look, stage: Stage) -> None:
    hub = stage(scenes.busy())

    def refuse(asked: object) -> None:
        raise Refusal(409, "conflict", "The subscription was moved meanwhile.")

    hub.scene.on("POST", "/topics/orders/subscriptions/slow-report/pause", refuse)
    seen = look(hub.url, allowed_errors=("409",))
    page = seen.open("subs/orders/slow-report")

    page.get_by_role("button", name="Pause…").click()
    page.get_by_role("button", name="Pause", exact=True).click()

    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The subscription was moved meanwhile.")
    expect(alert).to_contain_text("conflict")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert focused(page) == "Pause…"


def test_a_search_that_another_one_ended_is_repeated_by_itself(look: Look, stage: Stage) -> None:
    scene = scenes.busy()
    answer = scenes.actions([scenes.action(i) for i in range(3)])
    refusals = iter([Refusal(409, "search_replaced", "The search was ended.")])

    def found(asked: Asked) -> object:
        for refusal in refusals:
            raise refusal
        return answer

    scene.on("GET", "/actions", found)
    hub = stage(scene)
    page = look(hub.url, allowed_errors=("409",)).open("actions")

    expect(page.locator("[data-index]")).to_have_count(3)
    expect(page.get_by_role("alert")).to_have_count(0)
    assert [one.path for one in hub.asked].count("/actions") == 2


def test_a_blocked_subscription_says_what_blocks_it(look: Look, stage: Stage) -> None:
    scene = scenes.busy()
    path = "/topics/orders/subscriptions/slow-report"
    shown = scene.answer(Asked("GET", path, {}, ""))
    blocked = {"state": "blocked", "blocked": True, "exhausted": 17}
    scene.on("GET", path, shown | blocked)
    page = look(stage(scene).url).open("subs/orders/slow-report")

    expect(page.get_by_text("It is blocked by 17 that failed too often")).to_be_visible()


def test_a_message_is_found_by_its_id_far_back(look: Look, stage: Stage) -> None:
    hub = stage(scenes.busy())
    wanted = scenes.entry(92_000)["id"]
    page = look(hub.url).open(f"log?id={wanted}")

    expect(page.locator("[data-index]")).to_have_count(1)
    expect(page.get_by_text("customer-0", exact=True)).to_be_visible()
    assert len([one for one in hub.asked if one.path == "/history"]) == 4


def test_a_link_to_a_time_shows_that_time(look: Look, stage: Stage) -> None:
    hub = stage(scenes.busy())
    look(hub.url).open("?range=1h&until=2026-11-16%2017:00:00Z")

    asked = [one.query for one in hub.asked if one.path == "/series"]
    end = datetime(2026, 11, 16, 17, tzinfo=UTC).timestamp() * 1000
    assert {(one["from"], one["to"]) for one in asked} == {
        (str(round(end - 3_600_000)), str(round(end)))
    }


def test_a_frozen_view_counts_what_came(look: Look, stage: Stage) -> None:
    scene = scenes.busy()
    numbers = iter(range(1_000))
    shown = scenes.overview([], sessions=5)
    scene.shows(
        "overview",
        lambda _: {"full": shown | {"sample": {"lag_worst": 70_000 + next(numbers)}}},
    )
    page = look(stage(scene).url).open()
    expect(page.get_by_text(re.compile("70\u202f0"))).to_be_visible()

    page.keyboard.press(".")
    freeze = page.get_by_role("button", name=re.compile("^Frozen; [1-9]"))
    expect(freeze).to_be_visible(timeout=5_000)
    before = page.get_by_text(re.compile("70\u202f0")).inner_text()
    expect(freeze).to_have_attribute("title", re.compile("Frozen; [3-9]"), timeout=5_000)
    assert page.get_by_text(re.compile("70\u202f0")).inner_text() == before
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("table", name="Topics")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.keyboard.press(".")

    expect(page.get_by_text(before, exact=True)).to_have_count(0, timeout=5_000)
