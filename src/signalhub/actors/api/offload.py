"""Names of the async functions that do work outside actors; the host runs them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any


def name_of(function: Callable[..., Any]) -> str:
    """The name an async function is stored under; raises `TypeError` if it has none."""
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"offload runs async functions, not {function!r}")
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    try:
        is_found = find(name) is function
    except LookupError:
        is_found = False
    if not is_found:
        raise TypeError(
            f"{function!r} cannot be found by name after a crash: use a function of a module"
        )
    return name


def find(name: str) -> Callable[..., Any]:
    """The async function `module:qualified.name`; raises `LookupError`."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise LookupError(f"function {name} no longer exists: {error}") from error
    if not inspect.iscoroutinefunction(found):
        raise LookupError(f"{name} is no longer an async function")
    return found  # type: ignore[no-any-return]
