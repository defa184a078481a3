"""What a hub says about losses of log entries, and what its log says about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from signalhub.log.disk import SystemDisk
from signalhub.log.reader import Reader
from signalhub.wire.entry import Kind, OperatedBody, decode_body
from tests.support.socket.stage import InProcess

LOST = "log_entries_lost"


def data_of(stage: InProcess) -> Path:
    return Path(stage.hub.settings.data)


async def lost(stage: InProcess) -> list[dict[str, Any]]:
    """What `/health` says is lost; empty if it does not complain."""
    health = await stage.health()
    found: list[dict[str, Any]] = health.get("details", {}).get("lost", [])
    assert (LOST in health["degradations"]) == bool(found)
    return found


def operations(folder: Path) -> list[OperatedBody]:
    reader = Reader.of_folder(SystemDisk(folder / "log", read_only=True))
    found = [one for one in reader.scan(0) if one.kind == Kind.OPERATED]
    reader.close()
    return [decode_body(OperatedBody, one.body) for one in found]
