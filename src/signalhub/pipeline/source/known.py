"""What the rest of a data folder knows about the end of its log.

The file `head` lies in the log's folder and is lost with it. The snapshot of the hub, in
`state.db`, and the status of the pipeline lie elsewhere, and are never ahead of what the log has
committed; unless it syncs every commit, a power cut may take that from it.
"""

from __future__ import annotations

from pathlib import Path

from signalhub.clock import SystemClock
from signalhub.log.disk import SystemDisk
from signalhub.log.folder import examine, is_gone
from signalhub.log.head import Head
from signalhub.log.recovery import LogRecovery
from signalhub.pipeline.run.status import read_status
from signalhub.pipeline.source.plan import LOG_FOLDER
from signalhub.state.losses import Loss
from signalhub.state.store import FILE, saved_position
from signalhub.wire.errors import SignalHubError


class LogGone(SignalHubError):
    """There was a log, and nothing of it is left."""

    code = "log_entries_lost"

    def __init__(self, data: Path, loss: Loss) -> None:
        folder = data / LOG_FOLDER
        state = "is empty" if folder.is_dir() else "does not exist"
        super().__init__(
            f"the log is gone: {folder} {state}, but it had {loss.extent}; mount its disk, or"
            " restore a backup; if it is lost for good, run"
            f" `signalhub log acknowledge --data {data}`, after which the hub starts with an empty"
            " log"
        )


def known_head(data: Path) -> Head | None:
    """How far the log of a data folder has been; read this before the log, which may grow.

    `None` if nothing else than the log tells.
    """
    head = _head(saved_position(data / FILE))
    if not is_gone(data / LOG_FOLDER):
        return head
    # A position of the pipeline is worth less, but everything if `state.db` is lost, too.
    status = read_status(data)
    landed = None if status is None else _head((status.epoch, status.position))
    found = [one for one in (head, landed) if one is not None]
    return max(found, key=lambda one: (one.epoch, one.shown), default=None)


def lost_log(data: Path) -> Loss | None:
    """What is known to be lost if the log is gone; `None` if it is there or there never was one."""
    if not is_gone(data / LOG_FOLDER) or (head := known_head(data)) is None:
        return None
    now_ms = SystemClock().now_ms()
    return Loss(epoch=head.epoch, first=0, last=head.shown - 1, found_ms=now_ms, is_whole=True)


def check_log(data: Path) -> None:
    """Raise `LogGone` if there was a log and nothing of it is left."""
    if (loss := lost_log(data)) is not None:
        raise LogGone(data, loss)


def examined(data: Path) -> LogRecovery:
    """What a start would make of the log; nothing is changed."""
    known = known_head(data)
    return examine(SystemDisk(data / LOG_FOLDER, read_only=True), known)[1]


def _head(position: tuple[int, int] | None) -> Head | None:
    if position is None or not all(position):
        return None
    epoch, offset = position
    return Head(epoch, offset, offset)
