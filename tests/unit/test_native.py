"""The choice between the native part and Python."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from signalhub import native

_SHOW = "from signalhub import native; native.check(); print(native.STATUS)"
_MISSING = "import sys; sys.modules['signalhub_native'] = None; "
_OTHER = "import sys, types; sys.modules['signalhub_native'] = types.SimpleNamespace(VERSION='9'); "


def shown(choice: str | None, before: str = "") -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != native.VARIABLE}
    if choice is not None:
        environ[native.VARIABLE] = choice
    command = [sys.executable, "-c", before + _SHOW]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("choice", [None, "auto", "off"])
@pytest.mark.parametrize("before", [_MISSING, _OTHER])
def test_python_works_without_the_native_part(choice: str | None, before: str) -> None:
    assert shown(choice, before).stdout == "off\n"


def test_it_is_used_if_it_is_installed() -> None:
    pytest.importorskip("signalhub_native")

    assert shown(None).stdout == "on\n"
    assert shown("require").stdout == "on\n"


def test_it_can_be_turned_off() -> None:
    assert shown("off").stdout == "off\n"


@pytest.mark.parametrize(
    ("choice", "before", "reason"),
    [
        ("require", _MISSING, "requires the native part, but it is not installed"),
        ("require", _OTHER, f"but version 9 is installed, {native.VERSION} is needed"),
        ("fast", "", "SIGNALHUB_NATIVE is 'fast', expected one of auto, require, off"),
    ],
)
def test_what_cannot_be_had_is_an_error(choice: str, before: str, reason: str) -> None:
    done = shown(choice, before)

    assert done.returncode == 1
    assert reason in done.stderr
