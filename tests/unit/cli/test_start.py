"""What commands import: a command that loads what it does not need makes its user wait.

These tests name modules instead of measuring time; `python -m bench.commands` measures.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

# Each takes milliseconds, and is for hubs, tokens, metrics, the lake or terminals.
_LIBRARIES = {
    *("apsw", "cryptography", "deltalake", "jwt", "numpy", "pandas", "prometheus_client"),
    *("pyarrow", "pyspark", "rich", "tomllib", "uvloop"),
}
_OF_THE_HUB = {f"signalhub.{part}" for part in ("core", "engine", "log", "server", "settings")}
_OF_CLIENTS = {"picows", "signalhub.client"}
_UNREACHABLE = ("--url", "ws://127.0.0.1:1/ws")

# Prints every module at exit.
_WATCHED = """
import atexit, sys
from signalhub.cli import main
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
main()
"""
# Presses Ctrl-C when a module is imported.
_IMPATIENT = """
import sys
from signalhub.cli import main

class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[-1]:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Impatient())
sys.argv[1:] = ["tell", "demo/bob", sys.argv[-1]]
main()
"""


def groups_of(modules: set[str]) -> set[str]:
    """The groups of commands whose modules are among these."""
    names = [name.split(".") for name in modules if name.startswith("signalhub.cli.")]
    return {name[2] for name in names if len(name) > 3} - {"terminal"}


def imported_by(*arguments: str) -> set[str]:
    """The modules at the end of a command."""
    command = [sys.executable, "-c", _WATCHED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment())
    return set(done.stderr.splitlines()[-1].split())


def _environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("SIGNALHUB_")}


@pytest.mark.parametrize(
    ("arguments", "groups"),
    [
        (("tell", "demo/bob", "hello", *_UNREACHABLE), {"messages"}),
        (("ask", "demo/bob", "hello", *_UNREACHABLE), {"messages"}),
        (("ls", *_UNREACHABLE), {"messages"}),
        (("publish", "prices", "1", *_UNREACHABLE), {"topics"}),
        (("topic", "ls", *_UNREACHABLE), {"topics", "messages"}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_for_a_running_hub_imports_its_client_and_nothing_of_the_hub(
    arguments: Sequence[str], groups: set[str]
) -> None:
    modules = imported_by(*arguments)

    assert modules >= _OF_CLIENTS
    assert not modules & (_LIBRARIES | _OF_THE_HUB - {"signalhub.log"})
    assert groups_of(modules) == groups


def test_a_hub_imports_neither_its_commands_nor_libraries_that_it_does_not_use(
    tmp_path: Path,
) -> None:
    command = [
        sys.executable,
        "-c",
        _WATCHED,
        "serve",
        "--port",
        "0",
        "--data",
        str(tmp_path / "d"),
    ]
    hub = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
    )
    assert hub.stdout is not None
    assert "listening on" in hub.stdout.readline()
    hub.send_signal(signal.SIGTERM)
    _, said = hub.communicate()
    modules = set(said.splitlines()[-1].split())

    assert modules >= {"apsw", "uvloop", "signalhub.server.app"}
    assert not modules & (_LIBRARIES - {"apsw", "uvloop"} | {"signalhub.client"})
    assert groups_of(modules) == {"hub"}


@pytest.mark.parametrize("arguments", [["--help"], ["topic", "--help"], ["tell", "--help"]])
def test_help_needs_none_of_the_heavy_modules(arguments: list[str]) -> None:
    modules = imported_by(*arguments)

    assert "signalhub.cli.app" in modules
    assert not modules & (_LIBRARIES - {"rich", "tomllib"} | _OF_CLIENTS | {"asyncio"})


def test_the_version_needs_no_command() -> None:
    assert groups_of(imported_by("--version")) == set()


@pytest.mark.parametrize(
    "module", ["signalhub.cli.app", "signalhub.cli.messages.messages", "signalhub.client"]
)
def test_ctrl_c_while_modules_are_imported_ends_the_command_without_a_traceback(
    module: str,
) -> None:
    command = [sys.executable, "-c", _IMPATIENT, module]
    done = subprocess.run(command, capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
