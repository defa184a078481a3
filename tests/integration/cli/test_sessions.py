"""Sessions on the command line: who is connected, and closing them."""

from __future__ import annotations

import pytest

import signalhub
from signalhub.testing import RunningHub
from tests.support.process.command import Run, columns


async def test_sessions_are_listed_and_closed_by_identity_or_id(hub: RunningHub, run: Run) -> None:
    async with (
        signalhub.connect(hub.url, "@(demo/alice)", reconnect=None) as alice,
        signalhub.connect(hub.url, "@(demo/bob)", reconnect=None) as bob,
    ):
        listed = (await run("session", "ls", "demo/*", "--json")).rows()
        piped = await run("session", "ls", "demo/*")
        by_pattern = await run("session", "close", "demo/*")
        by_name = await run("session", "close", "demo/alice")
        with pytest.raises(signalhub.GaveUp, match="closed_by_operator"):
            await alice.wait_closed()
        by_id = await run("session", "close", bob.session_id, "--json")
        with pytest.raises(signalhub.GaveUp, match="closed_by_operator"):
            await bob.wait_closed()

    assert [(row["identity"], row["source"]) for row in listed] == [
        ("@(demo/alice)", "127.0.0.1"),
        ("@(demo/bob)", "127.0.0.1"),
    ]
    assert listed[0]["registrations"] == 1
    assert (listed[0]["subject"], columns(piped)[0][2]) == (None, "")
    assert (by_pattern.code, by_pattern.err.partition(" — ")[0]) == (
        1,
        "signalhub: @(demo/*) has no session",
    )
    assert by_name.out == "closed 1 session\n"
    assert by_id.rows() == [{"closed": [listed[1]["session"]]}]
    gone = await run("session", "close", listed[1]["session"])
    nobody = await run("session", "close", "demo/alice")
    assert (gone.code, nobody.code) == (1, 1)
    assert "no open session" in gone.err
    assert "@(demo/alice) has no session" in nobody.err
