"""The optional native part: the byte work of hot paths, written in Rust.

It is a package of its own, `signalhub-native`, and never needed: every rule and every format is in
Python, and the native part does the same work on bytes faster. `SIGNALHUB_NATIVE` is `auto` (use it
if it is installed), `off`, or `require` (do not start without it).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from signalhub.wire.errors import SettingsError

if TYPE_CHECKING:
    from types import ModuleType

VARIABLE: Final = "SIGNALHUB_NATIVE"
# The version that fits; it changes whenever the interface does.
VERSION: Final = "0.1.0"
_CHOICES: Final = ("auto", "require", "off")


def _find(choice: str) -> tuple[ModuleType | None, str]:
    """The module, or why it is not used."""
    if choice == "off":
        return None, "it is turned off"
    try:
        import signalhub_native as found
    except ImportError:
        return None, "it is not installed"
    version = getattr(found, "VERSION", "unknown")
    if version != VERSION:
        return None, f"version {version} is installed, {VERSION} is needed"
    return found, ""


def check() -> None:
    """Raise `SettingsError` if `SIGNALHUB_NATIVE` is invalid or asks for more than there is."""
    if _choice not in _CHOICES:
        known = ", ".join(_CHOICES)
        raise SettingsError(f"{VARIABLE} is {_choice!r}, expected one of {known}")
    if _choice == "require" and not IS_ON:
        raise SettingsError(f"{VARIABLE} requires the native part, but {_reason}")


_choice = os.environ.get(VARIABLE, "auto")
_module, _reason = _find(_choice)
IS_ON: Final = _module is not None
STATUS: Final = "on" if IS_ON else "off"
