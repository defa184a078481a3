"""Clients of real hubs, and guides whose examples are run."""

from __future__ import annotations

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any

import signalhub
from signalhub import Reconnect
from signalhub.client.client import Connecting

ALICE = "@(demo/alice)"
BOB = "@(demo/bob)"
QUICK = Reconnect(first_jitter_s=0.02, base_s=0.02)
PATIENCE_S = 60.0

_GUIDES = Path(__file__).parents[3] / "docs" / "guides"


def connect(url: str, address: str, **options: Any) -> Connecting:
    """Connect with a policy that reconnects quickly."""
    return signalhub.connect(url, address, **({"reconnect": QUICK} | options))


async def take(source: Any, count: int) -> list[Any]:
    """The next messages of a client, a consumer or a room."""
    messages = source.messages() if isinstance(source, signalhub.Client) else source
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(messages) for _ in range(count)]


async def payloads(source: Any, count: int) -> list[Any]:
    """What the next messages say."""
    return [message.payload for message in await take(source, count)]


async def run_guide(name: str, count_min: int, **names: Any) -> None:
    """Run all Python blocks of a guide as one program that knows these names."""
    text = (_GUIDES / name).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= count_min
    body = textwrap.indent("\n".join(blocks), "    ")
    program: dict[str, Any] = {}
    exec(f"async def run({', '.join(names)}):\n{body}", program)
    await program["run"](**names)
