"""`signalhub settings`: check the settings, and show where each value comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from signalhub.cli.failures import Exit, Failure
from signalhub.cli.output import AsJson, Column, Output
from signalhub.errors import SettingsError

if TYPE_CHECKING:
    from signalhub.settings_load import Loaded, Survey

Config = Annotated[str | None, Parameter(help="TOML file with settings.")]


def check(*, config: Config = None, as_json: AsJson = False) -> None:
    """Say whether the hub would start: exit code 0 or 2."""
    from signalhub.settings_load import DEFAULT

    loaded = loaded_settings(config)
    changed = sum(source != DEFAULT for source in loaded.sources.values())
    Output(as_json).fact(
        {"ok": True, "changed": changed},
        f"The settings are fine; {changed} of {len(loaded.sources)} differ from the default.",
    )


def show(*, config: Config = None, as_json: AsJson = False) -> None:
    """List every setting, its value and where that comes from.

    Values the hub would refuse are listed too; what is wrong with them follows,
    and the exit code is 2.
    """
    from signalhub.settings_load import survey

    found = survey(config, os.environ, {})
    columns = (Column("setting", style="bold"), Column("value"), Column("source", style="dim"))
    Output(as_json).table(columns, list(_rows(found, as_json=as_json)))
    if found.mistakes:
        raise _wrong("\n".join(found.mistakes), _REFERENCE)


def reference() -> None:
    """Print the reference of all settings as Markdown."""
    from signalhub.cli.settings_page import page

    print(page(), end="")


def loaded_settings(config: str | None, overrides: Mapping[str, object] | None = None) -> Loaded:
    """The settings of this machine, or a failure that says how to find what is wrong."""
    from signalhub.settings_load import load

    try:
        return load(config, os.environ, overrides or {})
    except SettingsError as error:
        # Of a file that is not there, there is nothing to show.
        is_there = config is not None and os.path.exists(config)
        option = f" --config {config}" if is_there else ""
        resolution = f"`signalhub settings show{option}` lists every value and its source"
        raise _wrong(str(error), resolution) from None


_REFERENCE = "`signalhub settings reference` says what each setting expects"


def _wrong(mistakes: str, resolution: str) -> Failure:
    return Failure(Exit.USAGE, SettingsError.code, mistakes, resolution)


def _rows(found: Survey, *, as_json: bool) -> Iterator[dict[str, Any]]:
    for path, source in found.sources.items():
        # A secret encodes as its disguise, because the hook asks it for its `str`.
        value = msgspec.to_builtins(found.values[path], enc_hook=str)
        if not as_json and not isinstance(value, int | float) and not value:
            value = msgspec.json.encode(value).decode()
        yield {"setting": path, "value": value, "source": source}
