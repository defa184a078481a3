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
from tests.support.process.command import cli, unused_url

EXAMPLES = Path(__file__).parents[2] / "examples"
WORDS = ["we meet on Friday", "bring the second chapter", "and tea", "I shall be there"]


async def lines_of(name: str, *arguments: str) -> list[str]:
    """What an example prints, if it ends well and complains of nothing."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "error",
        str(EXAMPLES / name),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert (process.returncode, err.decode()) == (0, "")
    return out.decode().splitlines()


async def test_two_actors_meet() -> None:
    async with run_hub() as hub:
        lines = await lines_of("hello.py", hub.url)

    assert lines[-1] == "1 reader of sums/today got 6"


async def test_members_read_what_the_hub_and_an_outsider_cannot() -> None:
    async with run_hub() as hub:
        lines = await lines_of("encrypted_room.py", "--url", hub.http_url)

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

    assert lines == [
        "2 on card 0077: confirmed",
        "1 on card 0002: cancelled the bank declines 9.95",
        "2 on card 0077: cancelled it is sold out",
        "1 on card 0119: cancelled the bank is silent",
        "{'free': 1, 'held': 0, 'sold': 2}",
    ]


async def test_the_first_order_of_the_readme_is_confirmed(tmp_path: Path) -> None:
    async with (
        run_hub() as hub,
        Host(shop.Order, shop.Stock, shop.Payment, data=tmp_path / "shop", url=hub.url),
    ):
        filled = await cli(hub.url, "actors", "call", "stock/blue-mug", "deliver", "10")
        call = ("actors", "call", "order/17", "checkout", '"blue-mug"', "--json")
        done = await cli(hub.url, *call)

    assert filled.out == "10\n"
    assert done.rows() == [{"value": {"order": "17", "status": "confirmed", "why": ""}}]


@pytest.mark.parametrize("name", ["encrypted_room.py", "shop.py"])
async def test_without_a_hub_there_is_one_line_and_exit_code_1(name: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / name),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "SIGNALHUB_URL": unused_url()},
    )
    _, err = await process.communicate()

    assert process.returncode == 1
    assert re.match("no hub at (http|ws)://127.0.0.1:", err.decode())
    assert err.count(b"\n") == 1


async def test_a_second_run_has_a_room_of_its_own() -> None:
    async with run_hub() as hub:
        for _ in range(2):
            assert await lines_of("encrypted_room.py", "--url", hub.url)
