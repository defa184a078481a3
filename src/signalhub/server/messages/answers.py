"""HTTP responses of the API for messages."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from signalhub.server.callers import CallRefused
from signalhub.server.messages.bodies import AnswerBody, BatchItem, Refused
from signalhub.server.port.http import Response
from signalhub.server.rooms.answers import JSON, REPLAY, RETRY_AFTER

_NOT_STORED: Final = {"Cache-Control": "no-store"}


def answered(status: int, body: AnswerBody, *, is_repeat: bool = False) -> Response:
    """Return a response; a repeat says so."""
    headers = _NOT_STORED | {REPLAY: "true"} if is_repeat else _NOT_STORED
    return Response(status, msgspec.json.encode(body), JSON, headers)


def refusal(error: CallRefused) -> Response:
    """Return the response for a refusal, with the time to wait if trying again makes sense."""
    headers = dict(_NOT_STORED)
    wait_ms = error.retry_after_ms
    if wait_ms is not None:
        headers[RETRY_AFTER] = str(-(-wait_ms // 1000))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(error.status, msgspec.json.encode(_refused(error)), JSON, headers)


def item_refused(error: CallRefused) -> BatchItem:
    """What became of one message of a batch that was refused."""
    return BatchItem(error.status, **msgspec.structs.asdict(_refused(error)))


def _refused(error: CallRefused) -> Refused:
    wait_ms = error.retry_after_ms
    return Refused(
        error.message,
        error.code,
        error.resolution,
        error.details,
        UNSET if wait_ms is None else wait_ms,
    )
