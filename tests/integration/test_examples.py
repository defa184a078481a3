"""The examples as their readers run them: programs against a hub."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from examples import shop
from signalhub.actors import Host
from signalhub.testing import run_hub
from tests.support.process.command import Done, command, unused_url

EXAMPLES = Path(__file__).parents[2] / "examples"
WORDS = ["we meet on Friday", "bring the second chapter", "and tea", "I will be there"]


async def run(name: str, *arguments: str, **variables: str) -> Done:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", str(EXAMPLES / name), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **variables},
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


async def lines_of(name: str, *arguments: str) -> list[str]:
    """What an example prints, if it ends well and complains of nothing."""
    done = await run(name, *arguments)
    assert (done.code, done.err) == (0, "")
    return done.out.splitlines()


async def test_two_actors_meet() -> None:
    async with run_hub() as hub:
        lines = await lines_of("hello.py", "--url", hub.url)

    assert lines == [
        "@(demo/worker) can do sums",
        "the task was delivered",
        "@(demo/worker) says 6",
        "1 reader of sums/today got 6",
    ]


async def test_members_read_what_the_hub_and_an_outsider_cannot() -> None:
    async with run_hub() as hub:
        lines = await lines_of("encrypted_room.py", "--url", hub.http_url)
        assert await lines_of("encrypted_room.py", "--url", hub.url), "each run has its own room"

    by_whom: dict[str, list[str]] = {}
    for line in lines:
        by_whom.setdefault(line[:16].strip(), []).append(line[19:])
    assert by_whom["a member says"] == WORDS
    assert by_whom["who was away"] == WORDS[:3]
    stored, heard = by_whom["the hub has"], by_whom["an outsider"]
    assert len(stored) == 3
    assert heard[:3] == [f"{ciphertext}  cannot be opened" for ciphertext in stored]
    assert len(heard) == 4


async def test_orders_end_well_or_are_taken_back(tmp_path: Path) -> None:
    async with (
        run_hub() as hub,
        Host(shop.Order, data=tmp_path / "orders", url=hub.url, name="orders"),
        Host(shop.Stock, shop.Payment, data=tmp_path / "goods", url=hub.url, name="goods"),
    ):
        lines = await lines_of("shop.py", hub.url)
        # The first order of the README.
        filled = await command(hub.url, "actors", "call", "stock/blue-mug", "deliver", "10")
        checkout = ("actors", "call", "order/17", "checkout", '"blue-mug"', "--json")
        done = await command(hub.url, *checkout)

    assert lines == [
        "2 on card 0077: confirmed",
        "1 on card 0002: cancelled the bank declines 9.95",
        "2 on card 0077: cancelled it is sold out",
        "1 on card 0119: cancelled the bank is silent",
        "{'free': 1, 'held': 0, 'sold': 2}",
    ]
    assert filled.out == "10\n"
    assert done.rows() == [{"value": {"order": "17", "status": "confirmed", "why": ""}}]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("encrypted_room.py", []),
        ("shop.py", []),
        ("shop.py", ["--url", "ws://127.0.0.1:9/ws"]),
        ("shop.py", ["ws://127.0.0.1:9/ws"]),
    ],
)
async def test_without_a_hub_there_is_one_line_and_exit_code_1(
    name: str, arguments: list[str]
) -> None:
    done = await run(name, *arguments, SIGNALHUB_URL=unused_url())

    assert done.code == 1
    assert re.match("no hub at (http|ws)://127.0.0.1:", done.err)
    assert done.err.startswith(f"no hub at {(arguments or [''])[-1]}")
    assert done.err.count("\n") == 1


async def test_the_example_explains_its_options() -> None:
    done = await run("shop.py", "--help")

    assert done.code == 0
    assert "--url" in done.out
