"""What schemathesis has to know beyond the document, and a count of what came of its requests.

Loaded by schemathesis in its own process. The document cannot say that a header and a member of the
body must agree, nor that requests get further when some of them are about the same room, so valid
cases are brought into line here; those that are meant to be wrong stay as they are.
"""

from __future__ import annotations

import atexit
import json
import os
import re
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import schemathesis
from schemathesis import Case, HookContext, Response

from signalhub.wire.room_ids import default_inbox

COUNTS_VARIABLE = "SIGNALHUB_OPENAPI_COUNTS"
# If set, all valid requests are about one room or inbox, so that they reach its limits.
CROWDED_VARIABLE = "SIGNALHUB_OPENAPI_CROWDED"
# If set, every room has an inbox that does not follow from its name.
SECRET_VARIABLE = "SIGNALHUB_OPENAPI_SECRET"
ROOMS = ("general", "acme:board", "lobby")
INBOXES = ("pw1oQgdmuN2WQLXM3CpAZaVIVGvyJRwpcv9QG4XsHfg", "A" * 43, "inbox.1~")
PROPOSALS = ("proposal-1", "proposal-2")
TOPICS = ("orders", "returns")
SUBSCRIPTIONS = ("billing", "audit")
PATTERNS = ("*", "@(demo/*)")
TAGS = ("*", '"1"', '"2", "3"', 'W/"1"')
TAG = r'(?:W/)?"[!#-~]*"'
CONDITION = re.compile(rf"\*|{TAG}(?:, ?{TAG})*")

counts: Counter[tuple[str, int]] = Counter()


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    """Make sense of a valid request."""
    if case.meta is None or case.meta.generation.mode.is_negative:
        return
    headers, path = case.headers, case.operation.path
    if path.startswith("/api/hub/"):
        address(case)
        return
    if isinstance(case.body, dict) and path == "/api/v1/message":
        agree(headers, case.body, "X-Room-ID", "roomId")
        agree(headers, case.body, "X-Pseudonym-ID", "pseudonymId")
        if "X-Room-ID" not in headers:
            case.body["roomId"] = case.body.get("roomId") or ROOMS[0]
        revisit(case.body, "proposalId", PROPOSALS)
    revisit(case.path_parameters, "proposalId", PROPOSALS)
    revisit(headers, "X-Room-ID", ROOMS)
    if path.startswith("/v1/inbox/"):
        revisit(headers, "X-Inbox-ID", INBOXES)
    elif "X-Inbox-ID" in headers and headers.get("X-Room-ID") in ROOMS:
        # Whoever came first, with or without an inbox, has bound the room to this one.
        room = headers["X-Room-ID"]
        is_secret = SECRET_VARIABLE in os.environ
        secret = sha256(room.encode()).hexdigest()[:43]
        headers["X-Inbox-ID"] = secret if is_secret else default_inbox(room)
    for name in ("If-Match", "If-None-Match"):
        revisit(headers, name, TAGS)
        # The tool knows what these headers are for and makes values of its own for them.
        if name in headers and not CONDITION.fullmatch(headers[name]):
            del headers[name]


@schemathesis.hook
def after_call(context: HookContext, case: Case[Any], response: Response) -> None:
    counts[f"{response.request.method} {case.operation.path}", response.status_code] += 1


def agree(headers: Any, body: dict[str, Any], header: str, member: str) -> None:
    """Say it once, if it is said twice."""
    if header in headers and body.get(member) is not None:
        del headers[header]


def revisit(values: Any, name: str, known: tuple[str, ...]) -> None:
    """Use a known value in half of the cases, always in the same."""
    value = values.get(name)
    if not isinstance(value, str):
        return
    chance = crc32(value.encode())
    if CROWDED_VARIABLE in os.environ:
        values[name] = known[0]
    elif chance % 2:
        values[name] = known[chance // 2 % len(known)]


def address(case: Case[Any]) -> None:
    """Name topics and subscriptions that may exist, and wait for nothing."""
    given: Any = case.path_parameters or {}
    for values, name, known in (
        (given, "topic", TOPICS),
        (given, "subscription", SUBSCRIPTIONS),
        (case.query or {}, "pattern", PATTERNS),
    ):
        if isinstance(values.get(name), str):
            values[name] = known[crc32(values[name].encode()) % len(known)]
    items: list[Any] = case.body if isinstance(case.body, list) else [case.body]
    for body in items:
        if not isinstance(body, dict):
            continue
        if isinstance(body.get("topic"), str):
            body["topic"] = TOPICS[crc32(body["topic"].encode()) % len(TOPICS)]
        if case.operation.path.endswith("/publish"):
            body["durable"] = True
        if "id" in body and "Idempotency-Key" in (case.headers or {}):
            del case.headers["Idempotency-Key"]
        if "waitMs" in body or case.operation.path.endswith("/pull"):
            body |= {"waitMs": 0, "mode": None}
        settle_one(case.operation.path, body)
        if isinstance(body.get("headers"), dict):
            # Name and value have a limit together.
            body["headers"] = {name[:99]: text[:99] for name, text in body["headers"].items()}
        # The hub is as strict about integers as on the wire.
        for name, value in body.items():
            if isinstance(value, float) and value.is_integer() and name != "data":
                body[name] = int(value)
    if "from" in (case.query or {}):
        # Both together are refused, and not every date exists.
        case.query.pop("after", None)
        case.query["from"] = "earliest"


def settle_one(path: str, body: dict[str, Any]) -> None:
    """Name one message; in which mode a subscription is, the document cannot know."""
    if not path.endswith(("/ack", "/nack", "/extend", "/term")):
        return
    for name in ("seqs", "upTo", "ids", "epoch"):
        body.pop(name, None)
    body["seq"] = 1 + body.get("seq", 1) % 20


@atexit.register
def write_counts() -> None:
    rows = [[asked, status, number] for (asked, status), number in sorted(counts.items())]
    if path := os.environ.get(COUNTS_VARIABLE):
        Path(path).write_text(json.dumps(rows))
