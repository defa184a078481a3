"""The lake of an earlier release is continued."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import signalhub
from signalhub.testing import run_hub
from tests.pipeline.command import Command
from tests.upgrade.folder import SETTINGS
from tests.upgrade.unpacked import ARCHIVES, Folder


async def publish(folder: Folder) -> None:
    async with (
        run_hub(data=str(folder.data), **SETTINGS) as hub,
        signalhub.connect(hub.url, "@(shop/till)") as till,
    ):
        await till.publish("orders", "order", {"id": "new"}, durable=True)


@pytest.mark.parametrize(
    "archive", ARCHIVES, ids=[one.name.removesuffix(".tar.xz") for one in ARCHIVES]
)
def test_the_lake_takes_what_is_new_and_is_proven_whole(
    archive: Path, tmp_path: Path, command: Command
) -> None:
    folder = Folder(archive, tmp_path)
    asyncio.run(publish(folder))

    landed = command("pipeline", "once", "--data", str(folder.data))
    audit = command("audit", "--data", str(folder.data), "--json")

    assert landed.code == 0, landed.err
    assert audit.code == 0, audit.out + audit.err
    *hours, closing = audit.rows()
    assert hours
    assert closing["sentence"].startswith("Proven: ")
