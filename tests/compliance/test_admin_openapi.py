"""The admin API and its OpenAPI document say the same, as schemathesis finds out."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from signalhub.server.admin.api import PREFIX
from tests.support.socket.desk import open_office
from tests.support.volume import volume

ROOT = Path(__file__).resolve().parents[2]
# Of each operation.
EXAMPLES = volume(2, 300)

# What is named may not be there, or may be otherwise than its sender thought; a text in the query
# may be no number.
CONFIG = """
continue-on-failure = true
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "409", "413", "429"]
checks.negative_data_rejection.expected-statuses = [
    "2xx", "400", "404", "405", "409", "413", "415", "429",
]
generation.database = "none"
"""
# What there is, for every other round.
NAMED = """
[parameters]
topic = "orders"
subscription = "billing"
address = "@(demo/alice)"
"""


async def examined(folder: Path, url: str, seed: int) -> tuple[int, str]:
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG + (NAMED if seed % 2 else ""))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "--no-color"),
        *("run", f"{url}{PREFIX}/openapi.json", "--url", url, "--phases", "fuzzing"),
        *("--max-examples", str(EXAMPLES), "--seed", str(seed)),
        *(("--exclude-method", "DELETE") if seed % 2 else ()),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(errors="replace")


@pytest.mark.timeout(120 + 10 * EXAMPLES)
async def test_the_admin_api_does_what_its_document_says(tmp_path: Path) -> None:
    async with open_office() as office:
        await office.orders()
        for seed in range(1, volume(1, 5) + 1):
            code, output = await examined(tmp_path, f"http://127.0.0.1:{office.stage.port}", seed)
            assert code == 0, output
        warnings = [row.text for row in office.desk._warnings.kept if row.level != "warning"]
        assert warnings == []
        assert office.desk.api.answered > 29 * EXAMPLES // 2
