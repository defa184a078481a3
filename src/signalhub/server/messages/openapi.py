"""The OpenAPI document of the API for messages, made from the structs that read and write it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from signalhub.server.messages import bodies
from signalhub.server.messages.bodies import (
    ACTORS_MAX,
    BATCH_MAX,
    KEY_CHARS_MAX,
    NUMBER_MAX,
    PAGE_MAX,
    Actors,
    Batch,
    ExtendBody,
    History,
    NackBody,
    PublishBody,
    Published,
    PullBody,
    Pulled,
    Receipt,
    Refused,
    Reply,
    RequestBody,
    SendBody,
    SettleBody,
    Settled,
    StoredPublish,
    TermBody,
    Told,
)
from signalhub.server.messages.pages import PAGE_DEFAULT, START
from signalhub.server.rooms import answers
from signalhub.wire.envelope import PROTOCOL_VERSION
from signalhub.wire.names import ADDRESS_CHARS_MAX, TOPIC_CHARS_MAX

BASE: Final = "/api/hub/v1"
PUBLISH: Final = f"{BASE}/publish"
BATCH: Final = f"{BASE}/publish/batch"
TELL: Final = f"{BASE}/tell"
ASK: Final = f"{BASE}/ask"
REQUEST: Final = f"{BASE}/request"
MESSAGES: Final = f"{BASE}/topics/{{topic}}/messages"
SUBSCRIPTION: Final = f"{BASE}/topics/{{topic}}/subscriptions/{{subscription}}"
PULL: Final = f"{SUBSCRIPTION}/pull"
ACTORS: Final = f"{BASE}/actors"

Json = dict[str, Any]

_ABOUT_ERRORS: Final = {
    400: "The request is invalid; `error` says why.",
    401: "The token is missing or invalid.",
    403: "The token does not permit it.",
    404: "The topic, subscription or actor does not exist.",
    409: "It conflicts with how things are; `errorCode` says with what.",
    410: "The message expired before it was delivered.",
    413: "The message or batch is too large.",
    415: "The body is not declared as JSON.",
    429: "Too many messages, or a queue or quota is full; nothing was done.",
    500: "Internal error, or `outcome_unknown`: the hub's log failed during the request.",
    502: "The actor answered that it failed, or disconnected without a reply.",
    503: "The hub cannot do it now.",
    504: "No reply, or no answer, came in time; it is unknown what was done.",
}
_COMMON: Final = (400, 409, 413, 415, 429, 500, 503, 504)
_BODIES: Final = (
    PublishBody,
    SendBody,
    RequestBody,
    PullBody,
    SettleBody,
    NackBody,
    ExtendBody,
    TermBody,
    StoredPublish,
    Published,
    Told,
    Receipt,
    Reply,
    Refused,
    Batch,
    History,
    Pulled,
    Settled,
    Actors,
)
_REFERENCES: Final = "#/components/schemas/{name}"
_TOKEN: Final[Json] = {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}


def describe(others: Json | None = None, *, is_checked: bool = False) -> Json:
    """Return the document, with that of `others`; tokens are described if they are needed."""
    paths: Json = {
        PUBLISH: {"post": _publish()},
        BATCH: {"post": _batch()},
        TELL: {"post": _tell()},
        ASK: {"post": _ask()},
        REQUEST: {"post": _request()},
        MESSAGES: {"get": _read()},
        PULL: {"post": _pull()},
        ACTORS: {"get": _actors()},
    }
    for name, (body, about) in _SETTLEMENTS.items():
        paths[f"{SUBSCRIPTION}/{name}"] = {"post": _settle(name, body, about)}
    if is_checked:
        for operation in (one for path in paths.values() for one in path.values()):
            operation["responses"] |= _errors(401, 403)
            operation["security"] = [{"token": []}]
    _, schemas = msgspec.json.schema_components(_BODIES, ref_template=_REFERENCES)
    document: Json = others or {
        "openapi": "3.1.0",
        "servers": [{"url": "/"}],
        "paths": {},
        "components": {"schemas": {}},
    }
    document["info"] = _info(others)
    document["paths"] |= paths
    components = document["components"]
    assert not schemas.keys() & components["schemas"].keys(), "two schemas with one name"
    components["schemas"] |= schemas
    if is_checked:
        components["securitySchemes"] = _TOKEN | components.get("securitySchemes", {})
    return document


def _info(others: Json | None) -> Json:
    about = (
        f"Below `{BASE}`: publish, send, ask, read and pull without a socket. Each request is one "
        "of the wire protocol, with the same permissions, rates and limits.\n"
    )
    if others is None:
        return {"title": "Signal Hub", "version": PROTOCOL_VERSION, "description": about}
    known = others["info"]["description"]
    return {
        "version": PROTOCOL_VERSION,
        "title": "Signal Hub: messages, rooms and inboxes",
        "description": f"{about}\n{known}",
    }


def _publish() -> Json:
    return {
        "operationId": "publish",
        "summary": "Publish to a topic",
        "description": "A message of a durable topic is on disk when the request is answered. A "
        "repeat with the same id, of the same sender, gets the position of the first one.",
        "parameters": [_key()],
        "requestBody": _body(PublishBody),
        "responses": {
            "200": _answer("On disk, in a durable topic.", StoredPublish, is_repeatable=True),
            "202": _answer("Handed to the subscribers of a plain topic.", Published),
            **_errors(*_COMMON, 404, 410),
        },
    }


def _batch() -> Json:
    # Whatever an item is, the others are handled.
    item = {
        "description": "A message as `/publish` takes it. What is wrong with one is said in its "
        "result.",
        "examples": [{"topic": "orders", "type": "order:placed", "data": {"sku": 7}}],
    }
    lines = {"schema": {"type": "string"}}
    array = {"schema": {"type": "array", "maxItems": BATCH_MAX, "items": item}}
    return {
        "operationId": "publishBatch",
        "summary": "Publish many messages in order",
        "description": f"Up to {BATCH_MAX} messages and {bodies.BATCH_BYTES_MAX} bytes: an array, "
        "or a message in each line. Each is answered for itself, so some may fail while others do "
        "not. With `Idempotency-Key` the ids follow from it and the place in the batch.",
        "parameters": [_key()],
        "requestBody": {
            "required": True,
            "content": {answers.JSON: array, "application/x-ndjson": lines},
        },
        "responses": {"200": _answer("What became of each.", Batch), **_errors(*_COMMON)},
    }


def _tell() -> Json:
    return {
        "operationId": "tell",
        "summary": "Send a message to an actor, at most once",
        "description": "It is forwarded if the actor is there, and lost if not.",
        "parameters": [_key()],
        "requestBody": _body(SendBody),
        "responses": {"202": _answer("Accepted.", Told), **_errors(*_COMMON)},
    }


def _ask() -> Json:
    return {
        "operationId": "ask",
        "summary": "Send a message to an actor, at least once",
        "description": "It is on disk when the request is answered, and delivered or in the "
        "mailbox of the actor. A repeat with the same id, of the same sender, gets the first "
        "receipt.",
        "parameters": [_key()],
        "requestBody": _body(SendBody),
        "responses": {
            "200": _answer("Delivered or queued.", Receipt, is_repeatable=True),
            **_errors(*_COMMON, 404, 410),
        },
    }


def _request() -> Json:
    return {
        "operationId": "request",
        "summary": "Ask an actor and wait for its reply",
        "description": "The actor gets the message with `metadata.expectsReply`, and replies with "
        "one whose `metadata.inReplyTo` is its id. A repeat with the same id reaches the actor "
        "once, and gets the same reply as long as the hub remembers it.",
        "parameters": [_key()],
        "requestBody": _body(RequestBody),
        "responses": {
            "200": _answer("The reply.", Reply),
            **_errors(*_COMMON, 404, 502),
        },
    }


def _read() -> Json:
    return {
        "operationId": "readTopic",
        "summary": "Read messages of a durable topic",
        "description": "Oldest first, without taking them from anybody. Continue with `from` set "
        "to `next` until a page is `complete`.",
        "parameters": [
            _topic(),
            _query("after", {"type": "integer", "minimum": 0, "maximum": NUMBER_MAX - 1}, 0),
            _query("from", {"type": "string", "pattern": START}, "earliest"),
            _query(
                "limit",
                {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT},
                10,
            ),
        ],
        "responses": {
            "200": _answer("A page.", History),
            **_errors(400, 404, 409, 429, 500, 503, 504),
        },
    }


def _pull() -> Json:
    return {
        "operationId": "pull",
        "summary": "Take messages of a durable subscription",
        "description": "The subscription is made if there is none: `shared` unless `mode` says "
        "otherwise. With nothing to take, the request waits for the first message. What is not "
        "settled comes again after the ack timeout. Pulls at the same time are consumers of their "
        "own; where only one gets messages (exclusive, failover), a pull waits for its turn for "
        "up to waitMs and is then refused with 409.",
        "parameters": [_topic(), _subscription()],
        "requestBody": _body(PullBody),
        "responses": {
            "200": _answer("The messages, oldest first.", Pulled),
            **_errors(*_COMMON, 404),
        },
    }


_SETTLEMENTS: Final[dict[str, tuple[type[Any], str]]] = {
    "ack": (SettleBody, "Acknowledge messages: they are done"),
    "nack": (NackBody, "Have messages delivered again"),
    "extend": (ExtendBody, "Work longer on messages than the ack timeout"),
    "term": (TermBody, "Give messages up: they never come again"),
}


def _settle(name: str, body: type[Any], about: str) -> Json:
    return {
        "operationId": name,
        "summary": about,
        "description": "Answered once it is on disk. Messages that nobody waits for are listed in "
        "`ignored`.",
        "parameters": [_topic(), _subscription()],
        "requestBody": _body(body),
        "responses": {"200": _answer("What was settled.", Settled), **_errors(*_COMMON, 404)},
    }


def _actors() -> Json:
    text = {"type": "string", "minLength": 1, "maxLength": ADDRESS_CHARS_MAX}
    return {
        "operationId": "findActors",
        "summary": "Find actors that are registered",
        "parameters": [
            _query("pattern", text, "@(shop/*)"),
            _query("capability", text, "prices"),
            _query("limit", {"type": "integer", "minimum": 1, "maximum": ACTORS_MAX}, 10),
        ],
        "responses": {
            "200": _answer("Those that match.", Actors),
            **_errors(400, 429, 500, 503, 504),
        },
    }


def _key() -> Json:
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "Makes repeats safe, as `id` in the body does.",
        "schema": {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX},
        "example": "order-17",
    }


def _topic() -> Json:
    schema = {"type": "string", "minLength": 1, "maxLength": TOPIC_CHARS_MAX}
    return {
        "name": "topic",
        "in": "path",
        "required": True,
        "description": "The topic; a slash in it is written %2F.",
        "schema": schema,
        "example": "orders",
    }


def _subscription() -> Json:
    return {
        "name": "subscription",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": 256},
        "example": "billing",
    }


def _query(name: str, schema: Json, example: object) -> Json:
    return {"name": name, "in": "query", "schema": schema, "example": example}


def _reference(kind: type[Any]) -> str:
    return _REFERENCES.format(name=kind.__name__)


def _body(kind: type[Any]) -> Json:
    schema: Json = {"$ref": _reference(kind)}
    return {"required": True, "content": {answers.JSON: {"schema": schema}}}


def _answer(about: str, kind: type[Any], *, is_repeatable: bool = False) -> Json:
    headers: Json = {"Cache-Control": {"schema": {"const": "no-store"}}}
    if is_repeatable:
        headers[answers.REPLAY] = {
            "description": "Only if the id was a repeat.",
            "schema": {"const": "true"},
        }
    content = {answers.JSON: {"schema": {"$ref": _reference(kind)}}}
    return {"description": about, "headers": headers, "content": content}


def _errors(*statuses: int) -> Json:
    return {
        str(status): {
            "description": _ABOUT_ERRORS[status],
            "content": {answers.JSON: {"schema": {"$ref": _reference(Refused)}}},
        }
        for status in sorted(statuses)
    }
