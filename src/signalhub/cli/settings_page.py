"""The reference of all settings as a Markdown page, made from the struct itself."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from signalhub.settings import Group, Key, Settings
from signalhub.settings_load import Leaf, leaves_of

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
