"""The HTTP API of a room's state: two blobs to read and write, proposals to read.

The version of a blob is its entity tag; clients may make requests conditional (RFC 9110,
section 13).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from signalhub.core.effects import Answer, Effect
from signalhub.core.rooms import refusals
from signalhub.core.rooms.access import Requester
from signalhub.core.rooms.rooms import Rooms
from signalhub.core.rooms.values import Blob, Proposals, PutBlob, Result
from signalhub.server.port.http import HttpRequest, Response
from signalhub.server.rooms import answers, envelopes
from signalhub.settings.model import RoomsSettings as RoomSettings
from signalhub.wire.errors import RoomCode, RoomError

# A call of the core with the time, and what turns its result into a response.
Step = Callable[[int], list[Effect]]
Render = Callable[[Any], Response]

# The characters of an entity tag; non-ASCII bytes are accepted as well.
TAG_CHARS: Final = "!#-~"
_TAG: Final = rf'(?:W/)?"[{TAG_CHARS}\x80-\xff]*"'
_TAGS: Final = re.compile(rf"[ \t,]*{_TAG}(?:[ \t]*,[ \t,]*{_TAG})*[ \t,]*")
_OURS: Final = re.compile(r'(W/)?"([1-9][0-9]{0,18})"')


class Tags(msgspec.Struct, frozen=True):
    """The versions in a condition: some, or any existing one."""

    versions: frozenset[int] = frozenset()
    is_any: bool = False

    def name(self, version: int) -> bool:
        """Does the condition include this version? 0 stands for a blob that does not exist."""
        return version > 0 if self.is_any else version in self.versions


class StateApi:
    """Handlers for a room's state; each returns a call of the core and a renderer."""

    def __init__(self, rooms: Rooms, settings: RoomSettings, mono_ms: Callable[[], int]) -> None:
        self._rooms = rooms
        self._mono_ms = mono_ms
        self._bytes_max = settings.blob_bytes_max
        self._timestamps = settings.timestamps

    def blob(
        self, name: str, request: HttpRequest, caller: object, requester: Requester
    ) -> tuple[Step, Render]:
        """Read or write one of the blobs."""
        room, inbox = _room(request)
        known = _tags(request, "if-none-match", is_weak_good=True)
        if request.method == "PUT":
            write = PutBlob(caller, room, inbox, name, request.body, requester=requester)
            step = self._writing(request, write, known)
            self._look(room, inbox, requester)
            return step, answers.blob_written
        self._look(room, inbox, requester)

        def render(found: Blob) -> Response:
            if known is not None and known.name(found.version):
                return answers.blob_unchanged(found)
            return answers.blob(found)

        return _finding(caller, lambda now: self._rooms.blob(room, inbox, name, now)), render

    def proposals(
        self, request: HttpRequest, caller: object, requester: Requester
    ) -> tuple[Step, Render]:
        """Read all proposals of a room."""
        room, inbox = _room(request)
        self._look(room, inbox, requester)

        def find(now: int) -> Proposals:
            return Proposals(self._rooms.proposals(room, inbox, now))

        def render(found: Proposals) -> Response:
            return answers.proposals(found.proposals, self._timestamps)

        return _finding(caller, find), render

    def proposal(
        self, request: HttpRequest, caller: object, requester: Requester, text: str
    ) -> tuple[Step, Render]:
        """Read one proposal."""
        room, inbox = _room(request)
        wanted = envelopes.proposal_id(text)
        self._look(room, inbox, requester)

        def find(now: int) -> Proposals:
            return Proposals([self._rooms.proposal(room, inbox, wanted, now)])

        def render(found: Proposals) -> Response:
            return answers.proposal(found.proposals[0], self._timestamps)

        return _finding(caller, find), render

    def _look(self, room: str, inbox: str | None, requester: Requester) -> None:
        """Check and count a valid request; raises `RoomError`."""
        self._rooms.look(room, inbox, self._mono_ms(), requester)

    def _writing(self, request: HttpRequest, write: PutBlob, never: Tags | None) -> Step:
        only = _tags(request, "if-match")
        if not write.data:
            raise RoomError(RoomCode.BAD_REQUEST, "A blob must not be empty.")
        if len(write.data) > self._bytes_max:
            raise RoomError(RoomCode.TOO_LARGE, f"A blob may have at most {self._bytes_max} bytes.")

        def step(now: int) -> list[Effect]:
            try:
                expected = self._expected(write, only, never, now)
            except RoomError as error:
                return [Answer(write.caller, error)]
            checked = msgspec.structs.replace(write, if_version=expected)
            return self._rooms.put_blob(checked, now)

        return step

    def _expected(
        self, write: PutBlob, only: Tags | None, never: Tags | None, now: int
    ) -> int | None:
        """Return the version that may be overwritten, if the request is conditional.

        The core checks it again, because another write may already be pending; then this version is
        out of date.
        """
        if only is None and never is None:
            return None
        version = self._version(write, now)
        if (only is not None and not only.name(version)) or (
            never is not None and never.name(version)
        ):
            raise refusals.changed(version)
        return None if only is not None and only.is_any else version

    def _version(self, write: PutBlob, now: int) -> int:
        try:
            return self._rooms.blob(write.room, write.inbox, write.name, now).version
        except RoomError as error:
            if error.code != RoomCode.NOT_FOUND:
                raise
            return 0


def _finding(caller: object, find: Callable[[int], Result]) -> Step:
    """Return a call of the core that only reads."""

    def step(now: int) -> list[Effect]:
        try:
            return [Answer(caller, find(now))]
        except RoomError as error:
            return [Answer(caller, error)]

    return step


def _room(request: HttpRequest) -> tuple[str, str | None]:
    """Return the room of a request and its inbox, if given."""
    room, inbox = request.headers.get("x-room-id"), request.headers.get("x-inbox-id")
    if room is None:
        raise RoomError(RoomCode.BAD_REQUEST, "Name the room in the header X-Room-ID.")
    name = envelopes.room_name(None, room)
    return name, None if inbox is None else envelopes.inbox_id(inbox)


def _tags(request: HttpRequest, header: str, *, is_weak_good: bool = False) -> Tags | None:
    """Return the versions in a condition; tags that cannot be a version are ignored."""
    text = request.headers.get(header)
    if text is None:
        return None
    if text == "*":
        return Tags(is_any=True)
    if not _TAGS.fullmatch(text):
        raise RoomError(
            RoomCode.BAD_REQUEST,
            f'{header.title()} must be *, or entity tags like "1", separated by commas.',
        )
    found = _OURS.finditer(text)
    return Tags(frozenset(int(one[2]) for one in found if is_weak_good or not one[1]))
