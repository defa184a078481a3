"""`signalhub settings`: check the settings, and show where each value comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from signalhub.cli.output import AsJson, Column, Output

if TYPE_CHECKING:
    from signalhub.settings_load import Loaded

Config = Annotated[str | None, Parameter(help="TOML file with settings.")]


def check(*, config: Config = None, as_json: AsJson = False) -> None:
    """Say whether the hub would start: exit code 0 or 2."""
    from signalhub.settings_load import DEFAULT, load

    loaded = load(config, os.environ, {})
    changed = sum(source != DEFAULT for source in loaded.sources.values())
    Output(as_json).fact(
        {"ok": True, "changed": changed},
        f"The settings are fine; {changed} of {len(loaded.sources)} differ from the default.",
    )


def show(*, config: Config = None, as_json: AsJson = False) -> None:
    """List every setting, its value and where that comes from."""
    from signalhub.settings_load import load

    columns = (Column("setting", style="bold"), Column("value"), Column("source", style="dim"))
    Output(as_json).table(columns, list(_rows(load(config, os.environ, {}))))


def reference() -> None:
    """Print the reference of all settings as Markdown."""
    from signalhub.cli.settings_page import page

    print(page(), end="")


def _rows(loaded: Loaded) -> Iterator[dict[str, Any]]:
    for path, source in loaded.sources.items():
        # A secret encodes as its disguise, because the hook asks it for its `str`.
        value = msgspec.to_builtins(attrgetter(path)(loaded.settings), enc_hook=str)
        yield {"setting": path, "value": value, "source": source}
