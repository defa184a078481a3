"""Ada, whose messages are erased, and Bob, who keeps his."""

from __future__ import annotations

from pathlib import Path

import signalhub
from signalhub.log.disk import SystemDisk
from signalhub.log.verify import verify
from signalhub.testing import RunningHub

ADA = "@(people/ada)"
BOB = "@(people/bob)"
SECRET = "theanalyticalengineweaves"
PLAIN = "ploughmen-homeward-plod"


async def converse(hub: RunningHub) -> None:
    """Ada and Bob publish, and Bob writes to Ada, who is away."""
    async with signalhub.connect(hub.url, BOB) as bob:
        await bob.create_topic("orders")
        async with signalhub.connect(hub.url, ADA, durable=True) as ada:
            await ada.publish("orders", "note", SECRET, durable=True)
        await bob.publish("orders", "note", PLAIN, durable=True)


def entries(data: Path) -> tuple[bool, int]:
    """Is the log sound, and how much of it is erased?"""
    report = verify(SystemDisk(data / "log", read_only=True))
    return report.is_sound, report.erased
