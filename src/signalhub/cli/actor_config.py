"""The file of `signalhub actors run --config`: what holds for a host and the kinds it serves."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from signalhub.cli.failures import usage

if TYPE_CHECKING:
    from signalhub.actors import Actor, DurableConfig

_KEYS = "the keys are in the guide of durable actors, each with its default"


def host_config(path: Path | None, classes: Sequence[type[Actor]]) -> DurableConfig:
    """The configuration in a file, or that of a host without one; the classes must fit it."""
    from signalhub.actors.config import DEFAULTS, merged
    from signalhub.actors.kinds import Kinds

    if path is None:
        return DEFAULTS
    try:
        config = merged(DEFAULTS, _read(path), where=str(path))
    except (TypeError, ValueError) as error:
        message, _, hint = str(error).partition(". ")
        raise usage(message, hint or _KEYS) from None
    try:
        Kinds(classes, config)
    except (TypeError, ValueError) as error:
        raise usage(f"{error}, with {path}", "correct the class, or that file") from None
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise usage(f"{path} {problem}", "name another file with --config") from None
    except ValueError as error:  # Of TOML, or of the text's encoding.
        raise usage(f"{path} is no TOML: {error}", "correct it") from None
