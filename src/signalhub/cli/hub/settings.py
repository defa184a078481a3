"""`signalhub settings`: check the settings, and show where each value comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from signalhub.cli.terminal.failures import Exit, Failure
from signalhub.cli.terminal.output import AsJson, Column, Output
from signalhub.settings.load import Leaf, leaves_of
from signalhub.settings.model import Group, Key, Settings
from signalhub.wire.errors import SettingsError

if TYPE_CHECKING:
    from signalhub.settings.load import Loaded, Survey

Config = Annotated[str | None, Parameter(help="TOML file with settings.")]


def check(*, config: Config = None, as_json: AsJson = False) -> None:
    """Say whether the hub would start: exit code 0 or 2."""
    from signalhub.settings.load import DEFAULT

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
    from signalhub.settings.load import survey

    found = survey(config, os.environ, {})
    columns = (Column("setting", style="bold"), Column("value"), Column("source", style="dim"))
    Output(as_json).table(columns, list(_rows(found, as_json=as_json)))
    if found.mistakes:
        raise _wrong("\n".join(found.mistakes), _REFERENCE)


def reference() -> None:
    """Print the reference of all settings as Markdown."""

    print(page(), end="")


def loaded_settings(config: str | None, overrides: Mapping[str, object] | None = None) -> Loaded:
    """The settings of this machine, or a failure that says how to find what is wrong."""
    from signalhub.settings.load import load

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


_INTRODUCTION = """\
# Settings

Signal Hub runs without any. What you set is read in this order, the later over the earlier:

1. the defaults below,
2. a TOML file: `signalhub serve --config hub.toml`,
3. variables: `SIGNALHUB_` and the setting's name in capitals, dots as underscores,
4. options of `signalhub serve`: `--host`, `--port`, `--data`, `--pipeline`.

A name nobody knows is refused, not ignored: the hub says which, and what may have been meant.
`signalhub settings check` tells whether the hub would start, `signalhub settings show` what every
value is and where it came from. Secrets are never printed.

In a variable, `true`, `1` and `on` are true, `false`, `0` and `off` are false, a list is written
with commas or as JSON, and `auth.keys` is JSON.

```toml
host = "0.0.0.0"
origins = ["https://app.example"]

[registry]
limit = 20_000

[auth]
enabled = true

[auth.keys.main]
algorithm = "HS256"
secret = "at least sixteen bytes"
```

This page is printed by `signalhub settings reference`.
"""

_RULES = """\
## Rules between settings

- Without `auth.enabled` the hub listens on loopback only.
- `auth.enabled` needs `auth.secret` or at least one of `auth.keys`.
- An HS256 secret has at least 16 bytes; an EdDSA key has a public key in PEM.
- `outbound.resume_messages` is below `outbound.pause_messages`, which is at most
  `outbound.messages_max`.
- `registry.warn_above` is at most `registry.refuse_above`.
- `registry.lease_s` is at most `registry.lease_max_s`.
- `message_bytes_max` is at most `frame_bytes_max`.
- `rooms.secret`, if it is set, has at least 16 bytes, and stays what it was when the data folder
  was first used.
"""


def page() -> str:
    """The page, ending with a newline."""
    sections = (_section(path, group) for path, group in _tables())
    return "\n".join((_INTRODUCTION, *sections, _RULES))


def _tables() -> Iterator[tuple[str, type[Group]]]:
    yield "", Settings
    for field in msgspec.structs.fields(Settings):
        if isinstance(field.type, type) and issubclass(field.type, Group):
            yield field.name, field.type
    yield "auth.keys.NAME", Key


def _section(table: str, group: type[Group]) -> str:
    prefix = f"{table}." if table else ""
    rows = (leaf for leaf in leaves_of(group, prefix) if "." not in leaf.path[len(prefix) :])
    title = f"`[{table}]`" if table else "Top level"
    lines = [f"## {title}", "", group.__doc__ or "", ""]
    lines += ["| setting | default | expects | what it is for |", "|---|---|---|---|"]
    return "\n".join([*lines, *map(_row, rows), ""])


def _row(leaf: Leaf) -> str:
    default = msgspec.json.encode(leaf.default, enc_hook=str).decode()
    return f"| `{leaf.path}` | `{default}` | {leaf.expected} | {leaf.about} |"
