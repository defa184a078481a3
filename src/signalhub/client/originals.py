"""Messages to be sent again by a replay, and what the hub says about them."""

from __future__ import annotations

from typing import Any

import msgspec


class Original(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was accepted before, and where it is in the log it was accepted in."""

    epoch: int
    offset: int
    id: str
    type: str
    shard: int = 0
    sender: str | None = msgspec.field(name="from", default=None)
    key: str | None = None
    headers: dict[str, str] | None = None
    data: Any = None  # JSON that is ready may be given as `msgspec.Raw`.


class OriginalPosition(msgspec.Struct, frozen=True):
    """Where an original is."""

    shard: int
    epoch: int
    offset: int


class Republished(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replay has come; `None` before its first message."""

    job: str = ""
    position: OriginalPosition | None = None
    appended: int = 0
    skipped: int = 0  # This replay had appended them before.


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """Of a copy: which replay sent it, and the original's place and id."""

    job: str
    shard: int = 0
    epoch: int = 0
    offset: int = 0
    id: str = ""
