"""The guide to authentication: all its commands, in their order, against a real hub."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.process.command import unused_url

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "authentication.md"
PATIENCE_S = 180.0


def script() -> str:
    """The commands of the guide, each block followed by a line with its number."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 10
    numbered = []
    for number, block in enumerate(blocks, 1):
        numbered.append(block)
        numbered.append(f"echo '=== {number}'\n")
    # If a command fails, the hub must not outlive the script.
    return (
        "set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
        + "".join(numbered)
        + "kill %1 && wait\n"
    )


_MISSING = [name for name in ("bash", "curl", "openssl") if shutil.which(name) is None]


@pytest.mark.skipif(bool(_MISSING), reason=f"not installed: {', '.join(_MISSING)}")
@pytest.mark.timeout(2 * PATIENCE_S)
async def test_every_command_of_the_guide_works(tmp_path: Path) -> None:
    port = unused_url().rsplit(":", 1)[1].split("/")[0]
    shim = tmp_path / "bin" / "signalhub"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m signalhub "$@"\n')
    shim.chmod(0o700)
    folder = tmp_path / "folder"
    folder.mkdir()
    variables = {k: v for k, v in os.environ.items() if not k.startswith("SIGNALHUB_")}
    variables |= {
        "PATH": f"{shim.parent}:{os.environ['PATH']}",
        "SIGNALHUB_PORT": port,
        "SIGNALHUB_URL": f"ws://127.0.0.1:{port}/ws",
        "no_proxy": "127.0.0.1",
    }

    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", script().replace("8787", port)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env=variables,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            out, err = (one.decode() for one in await process.communicate())
    finally:
        if process.returncode is None:
            # The hub that the script has started, too.
            os.killpg(process.pid, 9)

    assert process.returncode == 0, f"{out}\n{err}"
    blocks = re.split(r"=== \d+\n", out)
    said = "\n".join(blocks)
    assert "verdict\tvalid" in said
    assert "lost laptop" in said
    assert "@(ops/olga)" in said
    assert "closed 1 session" in said
    assert "closed_by_operator" in err
    assert "signal_hub_actors_total" in said
    assert '{"status":"ok","degradations":[]}' in said
    assert "\n421\n" in said
    assert "The token has been revoked" in err
