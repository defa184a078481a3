"""The description of the API, made from its routes and the structs of their answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from signalhub.server.admin.answers import AdminError
from signalhub.server.admin.api import HEADERS, PREFIX, AdminApi, Endpoint
from signalhub.server.port.http import HttpRequest, Response
from signalhub.wire.release import __version__

Json = dict[str, Any]

PATH: Final = "/openapi.json"
_NAMES: Final = {
    "actors": "address",
    "sessions": "session",
    "topics": "topic",
    "subscriptions": "subscription",
    "jobs": "job",
    "hosts": "host",
    "calls": "call",
    "tables": "table",
}
_ERRORS: Final = {
    "400": "The request is invalid; `error` says why.",
    "401": "The token is missing, expired or revoked.",
    "403": "The token does not permit it (`details.needs`), or a page of another origin asks.",
    "404": "Not found.",
    "409": "It conflicts with what is there, or with what happened since the preview.",
    "413": "The request or its answer is too large.",
    "415": "The body is not declared as JSON.",
    "429": "Too many requests or jobs; `Retry-After` says when to try again.",
    "500": "Internal error, or it is unknown whether it happened (`outcome_unknown`).",
    "503": "The hub cannot do this now.",
    "504": "Somebody did not answer in time.",
}
_INTRODUCTION: Final = """\
What people need to watch and operate a hub. The page at `/ui/` uses nothing else.

Send a token as `Authorization: Bearer`; without authentication the setting `ui.role_without_auth` \
says what is permitted. Requests of pages of other origins are refused. All people together may \
send 50 requests a second. Lists continue with `cursor`, which is `next` of the page before. \
Actions take `dryRun`, and repeats with the same `Idempotency-Key` get the first answer for five \
minutes. Each action leaves an entry of the kind `operated` in the log.

Live data is sent by the WebSocket `/api/admin/v1/live`.
"""


def describe(endpoints: Sequence[Endpoint]) -> Json:
    """The OpenAPI document of these routes."""
    kinds: list[Any] = [AdminError]
    for one in endpoints:
        kinds += [kind for kind in (one.answer, one.body, one.preview) if kind is not None]
    _, components = msgspec.json.schema_components(
        list(dict.fromkeys(kinds)),
        ref_template="#/components/schemas/{name}",
    )
    paths: Json = {}
    for one in endpoints:
        path, parameters = _path(one.pattern)
        paths.setdefault(f"{PREFIX}{path}", {})[one.method.lower()] = _operation(one, parameters)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Signal Hub: administration",
            "version": __version__,
            "description": _INTRODUCTION,
        },
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _path(pattern: str) -> tuple[str, list[Json]]:
    """The path with names for its parts, which follow from what stands before them."""
    names: list[str] = []
    before = ""
    parts = []
    for part in pattern.split("/"):
        if part == "{}":
            name = _NAMES.get(before, before.rstrip("s") or "part")
            if name in names:
                name = f"{name}{len(names)}"
            names.append(name)
            part = f"{{{name}}}"
        else:
            before = part
        parts.append(part)
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1},
        }
        for name in names
    ]
    return "/".join(parts), parameters


def _operation(one: Endpoint, parameters: list[Json]) -> Json:
    given = [
        {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
        for name in one.query
    ]
    if one.method != "GET":
        given.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "minLength": 1, "maxLength": 256},
            }
        )
    kinds = [kind for kind in (one.answer, one.preview) if kind is not None]
    good = [_reference(kind) for kind in kinds]
    operation: Json = {
        "operationId": _operation_id(one),
        "summary": one.summary,
        "description": f"Needs `admin: {one.needs}`." if one.needs else "For every valid token.",
        "parameters": [*parameters, *given],
        "responses": {
            str(one.status): {
                "description": one.answer.__doc__ or "",
                "content": _json(good[0] if len(good) == 1 else {"anyOf": good}),
            },
            **{
                status: {"description": text, "content": _json(_reference(AdminError))}
                for status, text in _ERRORS.items()
            },
        },
    }
    if one.body is not None:
        operation["requestBody"] = {"required": False, "content": _json(_reference(one.body))}
    return operation


def _operation_id(one: Endpoint) -> str:
    words = re.findall(r"[a-z]+", one.pattern)
    return "".join([one.method.lower(), *(word.capitalize() for word in words)])


def _reference(kind: Any) -> Json:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


class Description:
    """The document, made when it is first asked for."""

    def __init__(self, api: AdminApi) -> None:
        self._api = api
        self._body = b""

    def answer(self, request: HttpRequest) -> Response:
        """`/api/admin/v1/openapi.json`, open to everybody: it holds nothing of this hub."""
        refusal = self._api.guard(request)
        if refusal is not None:
            body = msgspec.json.encode(refusal.answer())
            return Response(refusal.status, body, "application/json", HEADERS)
        self._body = self._body or msgspec.json.encode(describe(self._api.endpoints))
        return Response(200, self._body, "application/json", HEADERS)
