"""The OpenAPI document of rooms and inboxes, generated from the limits in code and settings."""

from __future__ import annotations

from typing import Any, Final

from signalhub.core.rooms.values import (
    ABOUT_PROPOSALS,
    APP,
    BLOBS,
    COMMITTED,
    EXPIRED,
    PENDING,
    PROPOSAL,
    REJECTED,
    TYPES,
)
from signalhub.server.rooms import answers
from signalhub.server.rooms.envelopes import (
    FROM_SEQ,
    INTEGER_MAX,
    LIMIT,
    MESSAGE_ID,
    PAGE_MAX,
    PROPOSAL_ID,
    PSEUDONYM_ID,
    ROOM_ID,
    TENANT_ID,
    Parameter,
    ciphertext_chars_max,
)
from signalhub.server.rooms.state_api import TAG_CHARS
from signalhub.settings.model import RoomsSettings as RoomSettings
from signalhub.wire.envelope import PROTOCOL_VERSION
from signalhub.wire.errors import RoomCode
from signalhub.wire.room_ids import CAPABILITY_CHARS, INBOX, Form

MESSAGE: Final = "/api/v1/message"
MESSAGES: Final = "/v1/inbox/messages"
APPEND: Final = "/v1/inbox/append"
ROOM: Final = "/v1/room"
PROPOSALS: Final = "/v1/room/proposals"
DESCRIPTION: Final = "/openapi.json"

Json = dict[str, Any]

_INTRODUCTION: Final = """\
Clients encrypt the messages of rooms and inboxes; the hub orders, stores and delivers them \
without reading them. An inbox id is a capability: anyone who has it may read and append.

Live messages travel over WebSockets at `/room` and `/ws/{tenant}/{room}`.

HEAD is supported wherever GET is; other methods get 405 with `Allow`. Invalid HTTP, and requests \
above the size limits of the port, are refused in plain text. Pages of allowed origins get CORS \
headers.
"""
_ABOUT_ERRORS: Final = {
    400: "The request is invalid; `error` says why.",
    404: "Not found.",
    401: "The token is missing or invalid, and no inbox id permits the request.",
    403: "The token does not cover the room.",
    409: (
        "The room is bound to another inbox, the inbox to another room, or the `messageId` belongs "
        "to another message."
    ),
    412: "The version of the blob does not meet the condition.",
    413: "The ciphertext or blob is too large.",
    415: "The body is not declared as JSON.",
    429: "Rate limit exceeded; nothing was done.",
    500: "Internal error, or `outcome_unknown`: the hub's log failed during the request, which may "
    "have been stored. Once the hub was restarted, send a message again with the same id; read a "
    "blob before writing it again.",
    503: "The hub cannot write or read now; `storage_failed`: its log is damaged, and the answer "
    "could lie behind the damage.",
}

_INBOX: Final = rf"^(?:[A-Za-z0-9+/]{{{CAPABILITY_CHARS}}}=?|{INBOX.pattern}={{0,2}})$"
_TAG: Final = rf'(?:W/)?"[{TAG_CHARS}]*"'
_TAGS: Final = rf"^(?:\*|{_TAG}(?:, ?{_TAG})*)$"


def _pattern(form: Form) -> str:
    return f"^{form.pattern}$"


def _base64(last_two: str) -> str:
    one = f"[A-Za-z0-9{last_two}]"
    return f"(?:{one}{{4}})*(?:{one}{{4}}|{one}{{2}}(?:==)?|{one}{{3}}=?)"


_CIPHERTEXT: Final = f"^(?:{_base64('_-')}|{_base64('+/')})$"
_EXAMPLE: Final = "c2VjcmV0"
_EXAMPLE_ID: Final = "01K9ZC3V7M8R2D5T6W1X4Y0ABE"
_EXAMPLE_PROPOSAL: Final = "proposal-1"
_DEPOSIT: Final[Json] = {"messageId": _EXAMPLE_ID, "ciphertext": _EXAMPLE}
_ENVELOPES: Final[Json] = {
    "message": _DEPOSIT,
    "proposal": {"type": PROPOSAL, "proposalId": _EXAMPLE_PROPOSAL, "ciphertext": _EXAMPLE},
}

_BINARY: Final[Json] = {"type": "string", "format": "binary"}
_PROPOSAL_ID: Final[Json] = {"type": "string", "pattern": _pattern(PROPOSAL_ID.form)}
_SEQ: Final[Json] = {"type": "integer", "minimum": 1}
_TIME: Final[Json] = {"type": "string", "format": "date-time", "examples": ["2026-01-31T12:00:05Z"]}
_STORED: Final[Json] = {"type": "string", "pattern": "^[A-Za-z0-9_-]+$", "examples": [_EXAMPLE]}

_NOT_STORED: Final[Json] = {"Cache-Control": {"schema": {"const": "no-store"}}}
_REPLAY: Final[Json] = {
    answers.REPLAY: {
        "description": "Only if the `messageId` was a repeat.",
        "schema": {"const": "true"},
    }
}
_OLDEST: Final[Json] = {
    answers.OLDEST_SEQ: {
        "description": "The oldest readable position, if any.",
        "schema": _SEQ,
    }
}
_ETAG: Final[Json] = {
    answers.ETAG: {
        "description": "The version: counted from 1, and far higher after the hub has lost the end "
        "of its log. No version stands for two contents.",
        "required": True,
        "schema": {"type": "string", "pattern": '^"[1-9][0-9]*"$', "examples": ['"1"']},
    }
}
_RETRY_AFTER: Final[Json] = {
    answers.RETRY_AFTER: {
        "description": "Seconds, rounded up.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    }
}


# A token, or the inbox id of the room.
_SECURITY: Final[Json] = {
    "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
    "capability": {"type": "apiKey", "in": "header", "name": "X-Inbox-ID"},
}


def describe(settings: RoomSettings, *, is_checked: bool = False) -> Json:
    """Return the document for a hub with these settings, and one that checks who asks or not."""
    paths: Json = {
        MESSAGE: {"post": _send(settings)},
        MESSAGES: {"get": _fetch(settings)},
        APPEND: {"post": _append(settings)},
    }
    for name in BLOBS:
        paths[f"{ROOM}/{name}"] = {
            "get": _read_blob(name, settings),
            "put": _write_blob(name, settings),
        }
    paths[PROPOSALS] = {"get": _list_proposals(settings)}
    paths[f"{PROPOSALS}/{{proposalId}}"] = {"get": _read_proposal(settings)}
    components: Json = {"schemas": _schemas(settings)}
    document: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "Signal Hub: rooms and inboxes",
            "version": PROTOCOL_VERSION,
            "description": _INTRODUCTION,
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": components,
    }
    if is_checked:
        components["securitySchemes"] = _SECURITY
        document["security"] = [{name: []} for name in _SECURITY]
        for operation in (one for path in paths.values() for one in path.values()):
            operation["responses"] |= _errors(401, 403)
    return document


def _send(settings: RoomSettings) -> Json:
    return {
        "operationId": "sendMessage",
        "summary": "Send a message to a room",
        "description": (
            "The room is named by `roomId` or `X-Room-ID`, the sender by `pseudonymId` or "
            "`X-Pseudonym-ID`; if both are given, they must agree. When the request is answered, "
            "the message is on disk, readable in the room's inbox, and sent to every socket in the "
            "room. "
            "A repeated `messageId` gets the position of the original; with another ciphertext or "
            "sender it is refused. "
            f"A room accepts {settings.rate} messages in {settings.rate_window_s:g} s."
        ),
        "parameters": [
            _room(required=False),
            _header("X-Pseudonym-ID", "The sender.", _pattern(PSEUDONYM_ID.form), "p1"),
            _capability(settings),
        ],
        "requestBody": {"required": True, "content": _json("Envelope", **_ENVELOPES)},
        "responses": {
            "200": _answer("The message is in its room.", _REPLAY, _json("Sent")),
            **_errors(400, 409, 413, 415, 429, 500, 503),
        },
    }


def _fetch(settings: RoomSettings) -> Json:
    return {
        "operationId": "readInbox",
        "summary": "Read messages of an inbox",
        "description": (
            "Messages are in ascending order and without gaps; continue from `nextSeq` until a "
            "page is empty and not `partial`. An inbox that was never written to is empty. "
            f"A client can read an inbox {settings.fetch_rate} times per minute."
        ),
        "parameters": [
            _inbox(required=True),
            _query(FROM_SEQ, "The first position."),
            _query(LIMIT, f"The maximum number of messages; above {PAGE_MAX}, {PAGE_MAX} is used."),
        ],
        "responses": {
            "200": _answer("A page.", _OLDEST | _NOT_STORED, _json("Page")),
            **_errors(400, 429, 500, 503),
        },
    }


def _append(settings: RoomSettings) -> Json:
    return {
        "operationId": "appendToInbox",
        "summary": "Append a message to an inbox without its room",
        "description": (
            "The message is readable at once; no socket receives it. A repeated `messageId` gets "
            "the position of the original. "
            f"An inbox accepts {settings.append_rate} appends per minute."
        ),
        "parameters": [_inbox(required=True)],
        "requestBody": {"required": True, "content": _json("Deposit", deposit=_DEPOSIT)},
        "responses": {
            "202": _answer("The message is in its inbox.", _REPLAY, _json("Stored")),
            **_errors(400, 409, 413, 415, 429, 500, 503),
        },
    }


def _read_blob(name: str, settings: RoomSettings) -> Json:
    headers = _ETAG | _NOT_STORED
    return {
        "operationId": f"read{name.title()}",
        "summary": f"Read the {name} blob of a room",
        "parameters": [
            _room(),
            _capability(settings),
            _header("If-None-Match", "Versions the client has.", _TAGS, '"1"'),
        ],
        "responses": {
            "200": _answer("The blob.", headers, {answers.BINARY: {"schema": _BINARY}}),
            "304": _answer("The client has this version.", headers),
            **_errors(400, 404, 409, 429, 500, 503),
        },
    }


def _write_blob(name: str, settings: RoomSettings) -> Json:
    data = _BINARY | {"minLength": 1, "maxLength": settings.blob_bytes_max}
    return {
        "operationId": f"write{name.title()}",
        "summary": f"Write the {name} blob of a room",
        "description": "Overwrites without a condition. The content type is ignored.",
        "parameters": [
            _room(),
            _capability(settings),
            _header("If-Match", "Versions that may be overwritten; `*` is any.", _TAGS, '"1"'),
            _header("If-None-Match", "Versions to keep; `*` creates only.", _TAGS, "*"),
        ],
        "requestBody": {"required": True, "content": {answers.BINARY: {"schema": data}}},
        "responses": {
            "204": _answer("The new version was written.", _ETAG),
            **_errors(400, 409, 412, 413, 429, 500, 503),
        },
    }


def _list_proposals(settings: RoomSettings) -> Json:
    return {
        "operationId": "listProposals",
        "summary": "List the proposals of a room, oldest first",
        "description": "Proposals are made, approved, rejected and committed by messages.",
        "parameters": [_room(), _capability(settings)],
        "responses": {
            "200": _answer("The proposals.", _NOT_STORED, _json("Proposals")),
            **_errors(400, 409, 429, 500, 503),
        },
    }


def _read_proposal(settings: RoomSettings) -> Json:
    wanted = {"name": PROPOSAL_ID.name, "in": "path", "required": True, "schema": _PROPOSAL_ID}
    return {
        "operationId": "readProposal",
        "summary": "Read one proposal of a room",
        "parameters": [wanted | {"example": _EXAMPLE_PROPOSAL}, _room(), _capability(settings)],
        "responses": {
            "200": _answer("The proposal.", _NOT_STORED, _json("Proposal")),
            **_errors(400, 404, 409, 429, 500, 503),
        },
    }


def _header(name: str, about: str, pattern: str, example: str, required: bool = False) -> Json:
    return {
        "name": name,
        "in": "header",
        "required": required,
        "description": about,
        "schema": {"type": "string", "pattern": pattern},
        "example": example,
    }


def _room(required: bool = True) -> Json:
    return _header("X-Room-ID", "The room.", _pattern(ROOM_ID.form), "general", required)


def _inbox(required: bool, about: str = "The inbox; preferably 32 bytes in base64url.") -> Json:
    example = "pw1oQgdmuN2WQLXM3CpAZaVIVGvyJRwpcv9QG4XsHfg"
    return _header("X-Inbox-ID", about, _INBOX, example, required)


def _capability(settings: RoomSettings) -> Json:
    about = (
        "The room's inbox. The first one used is bound to the room permanently."
        if settings.mode == "linked"
        else "The room's inbox, which is the room id."
    )
    return _inbox(settings.require_capability is True, about)


def _query(parameter: Parameter, about: str) -> Json:
    bounds = {"minimum": parameter.least, "maximum": INTEGER_MAX, "default": parameter.default}
    return {
        "name": parameter.name,
        "in": "query",
        "description": about,
        "schema": {"type": "integer"} | bounds,
        "example": 1,
    }


def _json(schema: str, **examples: Json) -> Json:
    content = {"schema": _ref(schema)}
    if examples:
        content["examples"] = {name: {"value": one} for name, one in examples.items()}
    return {answers.JSON: content}


def _ref(schema: str) -> Json:
    return {"$ref": f"#/components/schemas/{schema}"}


def _answer(about: str, headers: Json, content: Json | None = None) -> Json:
    answer: Json = {"description": about, "headers": headers}
    return answer if content is None else answer | {"content": content}


def _errors(*statuses: int) -> Json:
    return {str(status): _error(status) for status in statuses}


def _error(status: int) -> Json:
    codes = [code for code, its_status in answers.STATUS.items() if its_status == status]
    # Only WebSocket frames use this code.
    told = sorted(code.value for code in codes if code is not RoomCode.BAD_FRAME)
    about, headers = _ABOUT_ERRORS[status], _NOT_STORED
    example: Json = {"error": about, "errorCode": told[0]}
    schema = _object(error={"type": "string"}, errorCode={"enum": told})
    if answers.is_retried(codes[0]):
        headers = _NOT_STORED | _RETRY_AFTER
        example["retryAfterMs"] = 1_847
        schema["properties"]["retryAfterMs"] = {"type": "integer", "minimum": 1}
        schema["required"].append("retryAfterMs")
    if status == 429:
        example["error"] = answers.RATE_LIMITED
        schema["properties"]["error"] = {"const": answers.RATE_LIMITED}
    return _answer(about, headers, {answers.JSON: {"schema": schema, "example": example}})


def _schemas(settings: RoomSettings) -> Json:
    ciphertext: Json = {
        "type": "string",
        "pattern": _CIPHERTEXT,
        "minLength": 2,
        "maxLength": ciphertext_chars_max(settings.ciphertext_bytes_max),
        "description": "Base64url or base64; the hub stores base64url without padding.",
        "examples": [_EXAMPLE],
    }
    message_id = {
        "type": "string",
        "pattern": _pattern(MESSAGE_ID.form),
        "examples": [_EXAMPLE_ID],
    }
    next_seq = {
        "type": "integer",
        "minimum": 0,
        "description": "Where to continue: after the last message, or `fromSeq` again.",
    }
    partial = {
        "const": True,
        "description": "What begins at `nextSeq` cannot be read now: ask again from there.",
    }
    reason = {
        "enum": [RoomCode.STORAGE_FAILED, RoomCode.UNAVAILABLE],
        "description": "Why the page is partial: the log is damaged at `nextSeq`, which is refused "
        "until the hub was restarted on a repaired log; or archive or log cannot be read now. With "
        "`UNAVAILABLE`, messages at or above `nextSeq` may be among these, with others missing.",
    }
    skipped = {
        "type": "array",
        "items": _object(fromSeq=_SEQ, toSeq=_SEQ),
        "description": "Positions without a message: the hub lost the end of its log, and with it "
        "the messages that had them, if any. Continue at `nextSeq`.",
    }
    messages = {"type": "array", "maxItems": PAGE_MAX, "items": _ref("Message")}
    return {
        "Envelope": _envelope(message_id, ciphertext),
        "Deposit": _object(messageId=message_id, ciphertext=ciphertext),
        "Sent": _object(messageId=message_id, seq=_SEQ),
        "Stored": _object({"storedAt": _TIME}, seq=_SEQ),
        "Message": _object(
            {"createdAt": _TIME}, seq=_SEQ, messageId=message_id, ciphertext=_STORED
        ),
        "Page": _object(
            {"partial": partial, "reason": reason, "skipped": skipped},
            messages=messages,
            nextSeq=next_seq,
        ),
        "Proposal": _object(
            {
                "proposerPseudonymId": {"type": "string", "pattern": _pattern(PSEUDONYM_ID.form)},
                "createdAt": _TIME,
                "expiresAt": _TIME,
            },
            proposalId=_PROPOSAL_ID,
            encryptedContent=_STORED,
            encryptedApprovals={"type": "array", "items": _STORED},
            status={"enum": [PENDING, COMMITTED, REJECTED, EXPIRED]},
        ),
        "Proposals": _object(proposals={"type": "array", "items": _ref("Proposal")}),
    }


def _envelope(message_id: Json, ciphertext: Json) -> Json:
    """Return the schema of a message for a room; some types require a proposal id."""
    or_null = {"type": ["string", "null"]}
    optional: Json = {
        MESSAGE_ID.name: message_id
        | or_null
        | {"description": "Needed to repeat the request; the hub generates one if absent."}
    }
    for member in (ROOM_ID, TENANT_ID, PSEUDONYM_ID):
        optional[member.name] = or_null | {"pattern": _pattern(member.form)}
    kind = {"enum": [*sorted(TYPES - ABOUT_PROPOSALS), None], "default": APP}
    plain = _object(optional | {"type": kind}, ciphertext=ciphertext)
    about_proposal = _object(
        optional,
        ciphertext=ciphertext,
        type={"enum": sorted(ABOUT_PROPOSALS)},
        proposalId=_PROPOSAL_ID,
    )
    return {"oneOf": [plain, about_proposal]}


def _object(optional: Json | None = None, /, **required: Json) -> Json:
    properties = required | (optional or {})
    return {"type": "object", "required": list(required), "properties": properties}
