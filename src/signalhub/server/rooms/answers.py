"""HTTP responses for results of rooms and inboxes.

Valid ids and base64url ciphertexts need no escaping in JSON, so bodies on the hot path are
assembled from bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from signalhub.core.rooms import refusals
from signalhub.core.rooms.values import GRID_MS, Accepted, Blob, Page, rfc3339
from signalhub.server.port.http import ListedValues, Response
from signalhub.wire.entry import ProposalBody
from signalhub.wire.errors import RoomCode, RoomError

JSON: Final = "application/json"
BINARY: Final = "application/octet-stream"

REPLAY: Final = "Idempotent-Replay"
OLDEST_SEQ: Final = "X-Inbox-Oldest-Seq"
ETAG: Final = "ETag"
RETRY_AFTER: Final = "Retry-After"

RATE_LIMITED: Final = "Rate limit exceeded"
# The default for errors without a known delay.
RETRY_AFTER_MS: Final = 1_000

STATUS: Final = {
    RoomCode.BAD_ENVELOPE: 400,
    RoomCode.BAD_FRAME: 400,
    RoomCode.BAD_REQUEST: 400,
    RoomCode.UNAUTHORIZED: 401,
    RoomCode.FORBIDDEN: 403,
    RoomCode.NOT_FOUND: 404,
    RoomCode.METHOD_NOT_ALLOWED: 405,
    RoomCode.CONFLICT: 409,
    RoomCode.PRECONDITION_FAILED: 412,
    RoomCode.TOO_LARGE: 413,
    RoomCode.UNSUPPORTED_MEDIA_TYPE: 415,
    RoomCode.UPGRADE_REQUIRED: 426,
    RoomCode.RATE_LIMIT_EXCEEDED: 429,
    RoomCode.INTERNAL_ERROR: 500,
    RoomCode.OUTCOME_UNKNOWN: 500,
    RoomCode.UNAVAILABLE: 503,
    RoomCode.STORAGE_FAILED: 503,
}
_RETRIED = frozenset((RoomCode.RATE_LIMIT_EXCEEDED, RoomCode.UNAVAILABLE, RoomCode.STORAGE_FAILED))
_REPLAYED = {REPLAY: "true"}
_NOTHING: dict[str, str] = {}
# A header selects the inbox or room, so a cache could return the answer of another one.
_NOT_STORED = {"Cache-Control": "no-store"}
_CHALLENGE = {**_NOT_STORED, "WWW-Authenticate": "Bearer"}

Timestamps = Literal["exact", "coarse", "none"]


def is_retried(code: str) -> bool:
    """Does the error say when to try again?"""
    return code in _RETRIED


def error_response(error: RoomError) -> Response:
    """Return the response for an error, with the retry delay if there is one."""
    code = RoomCode(error.code)
    body: dict[str, object] = {"error": error.text, "errorCode": code.value}
    headers = _NOT_STORED
    if code is RoomCode.UNAUTHORIZED:
        headers = _CHALLENGE
    if code is RoomCode.RATE_LIMIT_EXCEEDED:
        body["error"] = RATE_LIMITED
    if is_retried(code):
        wait_ms = error.retry_after_ms or RETRY_AFTER_MS
        body["retryAfterMs"] = wait_ms
        headers = {**_NOT_STORED, RETRY_AFTER: str(-(-wait_ms // 1000))}
    return Response(STATUS[code], msgspec.json.encode(body), JSON, headers)


INTERNAL_ERROR: Final = error_response(refusals.broken())


def sent(accepted: Accepted) -> Response:
    """Return the response to an accepted message for a room."""
    body = b'{"messageId":"%b","seq":%d}' % (accepted.message_id.encode(), accepted.seq)
    return Response(200, body, JSON, _REPLAYED if accepted.is_repeat else _NOTHING)


def deposited(accepted: Accepted, timestamps: Timestamps) -> Response:
    """Return the response to an accepted deposit."""
    stored_at = time_text(accepted.created_ms, timestamps)
    if stored_at is None:
        body = b'{"seq":%d}' % accepted.seq
    else:
        body = b'{"seq":%d,"storedAt":"%b"}' % (accepted.seq, stored_at.encode())
    return Response(202, body, JSON, _REPLAYED if accepted.is_repeat else _NOTHING)


def page(found: Page) -> Response:
    """Return the response with a page of an inbox, whose messages are already JSON."""
    end = b'],"nextSeq":%d' % found.next_seq
    if found.reason is not None:
        end += b',"partial":true,"reason":"%b"' % found.reason.encode()
    if found.skipped:
        ranges = [{"fromSeq": first, "toSeq": last} for first, last in found.skipped]
        end += b',"skipped":' + msgspec.json.encode(ranges)
    headers = _NOT_STORED
    if found.oldest is not None:
        headers = {**_NOT_STORED, OLDEST_SEQ: str(found.oldest)}
    listed = ListedValues(found.messages, end + b"}")
    return Response(200, b'{"messages":[', JSON, headers, listed)


def etag(version: int) -> str:
    """Return the entity tag of a blob's version."""
    return f'"{version}"'


def blob(found: Blob) -> Response:
    """Return the response with a blob."""
    headers = {**_NOT_STORED, ETAG: etag(found.version)}
    return Response(200, found.data or b"", BINARY, headers)


def blob_unchanged(found: Blob) -> Response:
    """Return the response if the client already has this version."""
    return Response(304, headers={**_NOT_STORED, ETAG: etag(found.version)})


def blob_written(written: Blob) -> Response:
    """Return the response to a write."""
    return Response(204, headers={ETAG: etag(written.version)})


def proposal(found: ProposalBody, timestamps: Timestamps) -> Response:
    """Return the response with one proposal."""
    return Response(200, msgspec.json.encode(_record(found, timestamps)), JSON, _NOT_STORED)


def proposals(found: Sequence[ProposalBody], timestamps: Timestamps) -> Response:
    """Return the response with all proposals of a room."""
    records = [_record(one, timestamps) for one in found]
    return Response(200, msgspec.json.encode({"proposals": records}), JSON, _NOT_STORED)


def _record(one: ProposalBody, timestamps: Timestamps) -> dict[str, object]:
    record: dict[str, object] = {
        "proposalId": one.id,
        "encryptedContent": one.content.decode(),
        "encryptedApprovals": [approval.decode() for approval in one.approvals],
        "status": one.status,
    }
    if one.proposer:
        record["proposerPseudonymId"] = one.proposer
    if timestamps != "none":
        record["createdAt"] = time_text(one.created_ms, timestamps)
        record["expiresAt"] = time_text(one.expires_ms, timestamps)
    return record


def time_text(time_ms: int | None, timestamps: Timestamps) -> str | None:
    """Format a time in RFC 3339 with the configured precision; `None` if times are not shown."""
    if time_ms is None or timestamps == "none":
        return None
    time_ms -= time_ms % GRID_MS[timestamps]
    return rfc3339(time_ms, timestamps == "exact").decode()
