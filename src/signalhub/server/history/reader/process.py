"""The process itself: it answers one question at a time, at low priority, until the hub is gone.

Everything is opened read-only. Errors are answers; only the end of the socket ends the process.
"""

from __future__ import annotations

import logging
import os
import resource
import select
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from signalhub.log.disk import SystemDisk
from signalhub.log.errors import LogDamaged, LogFailed
from signalhub.pipeline.source.plan import LOG_FOLDER
from signalhub.server.history import questions as asked
from signalhub.server.history.questions import LENGTH, Ask, Reply, Stop
from signalhub.server.history.reader import counts, detail, tables
from signalhub.server.history.reader.calls import call_of, calls_of
from signalhub.server.history.reader.letters import LettersPage, actions_of
from signalhub.server.history.reader.pace import PAGE_S, Pace, Stopped
from signalhub.server.history.reader.rows import BadQuestion
from signalhub.server.history.reader.scroll import Page
from signalhub.server.history.reader.tiers import LakeFailed, Sources
from signalhub.wire.errors import SignalHubError

log = logging.getLogger("signalhub.history")

NICE: Final = 10
_READ_BYTES: Final = 2**16


class Library:
    """Answers questions about one data folder."""

    def __init__(self, data: Path, lake: str | None) -> None:
        """`lake` is the location of the tables, empty for the default; `None` if there are none."""
        self._data = data
        disk = SystemDisk(data / LOG_FOLDER, read_only=True)
        if lake is None:
            self._sources = Sources(disk, None)
            return
        from signalhub.pipeline.lake import lake_of

        self._sources = Sources(disk, lake_of(data, lake))

    def answer(self, question: asked.AnyQuestion, pace: Pace) -> bytes:
        """The answer as JSON; raises what `Answerer` words."""
        self._sources.begin()
        return msgspec.json.encode(self._answer(question, pace))

    def _answer(self, question: asked.AnyQuestion, pace: Pace) -> Any:
        sources = self._sources
        match question:
            case asked.ScrollQuestion():
                return Page(sources, question, pace).make()
            case asked.EntryQuestion():
                return detail.entry_of(sources, question, pace)
            case asked.CountQuestion():
                return counts.counts_of(sources, question, pace)
            case asked.SeriesQuestion():
                return counts.series_of(sources, question)
            case asked.LettersQuestion():
                return LettersPage(sources, question, pace).make()
            case asked.ActionsQuestion():
                return actions_of(sources, question, pace)
            case asked.CallsQuestion():
                return calls_of(sources, question, pace)
            case asked.CallQuestion():
                return call_of(sources, question, pace)
            case asked.LakeQuestion():
                return tables.lake_of(sources, self._data, question)
            case asked.TableQuestion():
                return tables.rows_of(sources, question)
            case asked.AuditQuestion():
                return tables.audit_of(sources, question)
            case asked.ProofQuestion():
                return tables.proof_of(sources, question)

    def close(self) -> None:
        self._sources.close()


class HubLink:
    """The socket to the hub: frames in, frames out."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = bytearray()
        self._frames: deque[Ask | Stop] = deque()
        self.is_closed = False

    def next(self) -> Ask | None:
        """The next question; `None` if the hub is gone."""
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if isinstance(frame, Ask):
                    return frame
            if self.is_closed:
                return None
            self._read()

    def is_stopped(self, id: int) -> bool:
        """Does the hub no longer want this answer? What else has come is kept."""
        while not self.is_closed and select.select([self._connection], [], [], 0)[0]:
            self._read()
        return self.is_closed or any(isinstance(one, Stop) and one.id == id for one in self._frames)

    def send(self, reply: Reply) -> None:
        """Send an answer; the end of the hub is noticed by the next read."""
        try:
            self._connection.sendall(asked.framed(reply))
        except OSError:
            self.is_closed = True

    def _read(self) -> None:
        try:
            some = self._connection.recv(_READ_BYTES)
        except OSError:
            some = b""
        if not some:
            self.is_closed = True
            return
        self._data += some
        while len(self._data) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._data)[0]
            if len(self._data) < end:
                return
            self._frames.append(asked.decode_request(bytes(self._data[LENGTH.size : end])))
            del self._data[:end]


def serve(
    connection: socket.socket, data: Path, lake: str | None, *, page_s: float = PAGE_S
) -> None:
    """Answer questions until the hub closes the socket."""
    link = HubLink(connection)
    library: Library | None = None
    while (ask := link.next()) is not None:
        pace = Pace(page_s=page_s, is_stopped=_asker(link, ask.id))
        try:
            # Opened late, so that a fault of the log is an answer.
            library = library or Library(data, lake)
            reply = Reply(ask.id, library.answer(ask.question, pace))
        except Exception as error:
            reply = _refusal(ask.id, error)
            if not isinstance(error, (BadQuestion, Stopped, LakeFailed)):
                library = None
        link.send(msgspec.structs.replace(reply, resident_bytes=resident_bytes()))
    if library is not None:
        library.close()


def _asker(link: HubLink, id: int) -> Callable[[], bool]:
    return lambda: link.is_stopped(id)


def _refusal(id: int, error: Exception) -> Reply:
    """Why there is no answer."""
    match error:
        case detail.NotThere():
            return Reply(id, b"", "not_found", f"{error}.", "Check the position.")
        case BadQuestion():
            return Reply(id, b"", "bad_request", f"{error}.", "Correct the request.")
        case Stopped():
            return Reply(
                id,
                b"",
                "search_replaced",
                "The search was ended: nobody waits for it, or another one has begun.",
                "Search again.",
            )
        case LakeFailed():
            return Reply(
                id,
                b"",
                error.code,
                f"The lake cannot be read: {error}.",
                "Check its storage; what the log holds can be read all the same.",
            )
        case LogDamaged() | LogFailed():
            return Reply(id, b"", error.code, f"{error}.", "Run `signalhub log verify`.")
        case SignalHubError():
            return Reply(id, b"", error.code, f"{error}.", "Try again.")
    log.error("a question could not be answered", exc_info=error)
    return Reply(
        id,
        b"",
        "internal_error",
        "The process that reads history failed to answer.",
        "See the hub's log.",
    )


def resident_bytes() -> int:
    """The memory of this process."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


def run(descriptor: int, data: Path, lake: str | None) -> None:
    """The process of `signalhub admin-reader`."""
    os.nice(NICE)
    with socket.socket(fileno=descriptor) as connection:
        serve(connection, data, lake)
