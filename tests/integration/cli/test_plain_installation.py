"""An installation without the extra `pipeline`: the hub works, and the lake says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Makes the packages of the extra impossible to import, as if they were not installed.
WITHOUT_EXTRA = """
import sys
from signalhub.pipeline.packages import PACKAGES

sys.modules.update(dict.fromkeys(PACKAGES))
from signalhub.cli.app import run
"""
COMMANDS = {
    "pipeline once": ("pipeline", "once"),
    "pipeline up": ("pipeline", "up"),
    "pipeline status": ("pipeline", "status"),
    "pipeline maintain": ("pipeline", "maintain"),
    "pipeline redrive": ("pipeline", "redrive"),
    "sql": ("sql", "SELECT 1"),
    "sql shell": ("sql",),
    "audit": ("audit",),
    "erase": ("erase", "--actor", "@(demo/bob)", "--yes"),
    "replay": ("replay", "--where", "true", "--to", "orders", "--dry-run"),
    "serve": ("serve", "--pipeline", "--port", "0"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each command printed on standard error, after its exit code."""
    folder = tmp_path_factory.mktemp("plain")
    script = WITHOUT_EXTRA + (
        f"for name, command in {COMMANDS!r}.items():\n"
        "    print('name', name, file=sys.stderr)\n"
        "    code = run([*command, '--data', 'data'])\n"
        "    print(int(code), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    found = {}
    for part in done.stderr.split("name ")[1:]:
        name, *lines = part.splitlines()
        found[name] = lines
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_on_the_lake_names_the_extra_in_one_line_and_exits_with_2(
    name: str, answers: dict[str, list[str]]
) -> None:
    *said, code = answers[name]
    (line,) = (one for one in said if not one.startswith("{"))

    assert "this needs the packages of the extra `pipeline`, which are not installed" in line
    assert "pip install 'signalhub[pipeline]'" in line
    assert code == "2"


def test_the_hub_itself_needs_nothing_of_it(tmp_path: Path) -> None:
    script = WITHOUT_EXTRA + "sys.exit(run(['serve', '--port', '0', '--data', 'data']))"
    hub = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert hub.stdout is not None
        assert "listening" in hub.stdout.readline()
    finally:
        hub.terminate()
        _, said = hub.communicate(timeout=20)
    assert "pip install 'signalhub[pipeline]'" in said
    assert hub.returncode == 0
