"""The guide to backups, command by command, from the folders of each earlier release.

So it also shows that the lake of an earlier release is continued.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest

import signalhub
from signalhub.testing import run_hub
from tests.pipeline.command import Command
from tests.upgrade.folder import SETTINGS
from tests.upgrade.unpacked import ARCHIVES, Folder

GUIDE = Path(__file__).parents[2] / "docs" / "operate" / "backup.md"


async def publish(data: Path, number: int) -> None:
    async with (
        run_hub(data=str(data), **SETTINGS) as hub,
        signalhub.connect(hub.url, "@(shop/till)") as till,
    ):
        await till.publish("orders", "order", {"id": number}, durable=True)


@pytest.mark.parametrize(
    "archive", ARCHIVES, ids=[one.name.removesuffix(".tar.xz") for one in ARCHIVES]
)
def test_the_guide_restores_a_hub_whose_lake_is_proven_whole(
    archive: Path, tmp_path: Path, command: Command
) -> None:
    folder = Folder(archive, tmp_path)
    asyncio.run(publish(folder.data, 1))
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    # Spark has a current folder of its own.
    text = re.sub(
        r"(?<=[ =])(backups|data|host|restored)(?=[\s/-])", rf"{tmp_path}/\1", "".join(blocks)
    )

    for line in text.splitlines():
        program, *words = shlex.split(line)
        done = command(*words)

        assert program == "signalhub"
        assert done.code == 0, f"{line}: {done.out}{done.err}"

    # What is accepted after the restoration belongs to another epoch, and lands as well.
    restored = str(tmp_path / "restored")
    asyncio.run(publish(tmp_path / "restored", 2))
    assert command("pipeline", "once", "--data", restored).code == 0
    audit = command("audit", "--data", restored, "--json")
    *hours, closing = audit.rows()
    assert closing["verdict"] == "proven", closing
    assert closing["sentence"].startswith("Proven: ")
    assert len({one["epoch"] for one in hours}) == 2
