"""`signalhub limits` against a hub."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import pytest

from signalhub import Client
from signalhub.cli.hub.limits import COLUMNS, rows_of
from signalhub.cli.terminal.output import Output
from signalhub.client.answers import ResourceUsage, UsedBy
from signalhub.settings.model import LimitsSettings
from signalhub.testing import run_hub
from tests.support.process.command import Run, columns, command
from tests.support.socket.tokens import AUTH, token_for


async def test_it_shows_totals_and_the_largest_users(run: Run, me: Client) -> None:
    await me.create_topic("orders")

    rows = (await run("limits", "--json")).rows()
    of_ann = (await run("limits", "--identity", "ann", "--json")).rows()

    by_resource = {(row["resource"], row["of"]): row for row in rows}
    assert by_resource["topics", "all"]["used"] == 1
    assert by_resource["topics", "all"]["limit"] == 10_000
    assert by_resource["topics", "source"]["name"] == "127.0.0.1"
    assert {row["of"] for row in of_ann} == {"identity"}
    assert {row["used"] for row in of_ann} == {0}
    shown = columns(await run("limits"))
    assert ["topics", "all", "", "1", "10000"] in shown


async def test_whoever_exceeds_a_quota_is_told_which_and_what_to_do(tmp_path: Path) -> None:
    limits = LimitsSettings(
        rooms_per_identity=2, plain_subscriptions_per_identity=1, mailboxes_per_identity=1
    )
    async with run_hub(auth=AUTH, limits=limits) as hub:
        eve = tmp_path / "eve.token"
        permissions = {"rooms": ["*"], "subscribe": ["*"], "register": ["*"]}
        eve.write_text(token_for("demo/eve", hub.clock, permissions=permissions))
        run = partial(command, hub.url, variables={"SIGNALHUB_TOKEN": eve.read_text()})
        await run("listen", "demo/eve", "--durable", "--for", "0.1")
        mailbox = await run("listen", "demo/other", "--durable", "--for", "0.1")
        passing = await run("subscribe", "prices/eu", "prices/us", "--for", "0.1")
        await run("room", "send", "one", "x")
        room = await run("room", "send", "two", "x")

    assert (mailbox.code, passing.code, room.code) == (1, 1, 1)
    assert "limit of mailboxes for one identity is 1, and demo/eve has 1 — give up" in mailbox.err
    assert "raise limits.mailboxes_per_identity" in mailbox.err
    assert "limit of plain subscriptions for one identity is 1" in passing.err
    assert "raise limits.plain_subscriptions_per_identity" in passing.err
    assert "(limits.rooms_per_identity) — use a room that exists" in room.err


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_its_table_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = _Terminal()
    usage = ResourceUsage(
        resource="subscriptions",
        used=100_000,
        limit=100_000,
        per_identity=25_000,
        identities=(UsedBy(identity="https://accounts.example/users/0123456789-abcdef", used=9),),
        sources=(UsedBy(source="2001:db8:1234:5678::/64", used=9),),
    )

    Output(False, terminal).table(COLUMNS, [*rows_of(usage, None)])

    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "subscriptions" in terminal.getvalue()
    assert "100000" in terminal.getvalue()
