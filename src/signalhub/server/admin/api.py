"""The routes of `/api/admin/v1`: who may ask, how often, and how it is answered.

Other parts add theirs to an `AdminApi` before the port opens:

    api.add("GET", "/history", history.page, answer=HistoryAnswer, query=("stream", "limit"))
    api.add("POST", "/replay", replay.start, needs="republish", answer=JobStarted, body=ReplayBody)

`pattern` begins behind the prefix, and each `{}` in it is a further argument of the handler, which
gets an `Asked` first: who asks, the query, the body. A handler is a function or a coroutine
function, returns a struct, and raises `AdminRefusal` (or lets `Refusal` and `CallRefused` pass).
`needs` is an operation of the verb `admin`, which is checked before the handler is called; `None`
means any valid token. Further verbs are checked with `Asked.require`. What takes longer than half a
millisecond is divided with `await asyncio.sleep(0)`: see `slices`.

A page of another site reaches nothing here: there are no cookies, `Host` must be served, and an
`Origin` or `Sec-Fetch-Site` that is not the hub's own is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeVar
from urllib.parse import parse_qsl

import msgspec

from signalhub.auth.permissions import Allowance
from signalhub.core import refusals
from signalhub.pacing import TokenBucket
from signalhub.server.admin.answers import AdminAnswer, AdminError
from signalhub.server.admin.visitors import Visitor, Visitors
from signalhub.server.callers import Answer, CallRefused
from signalhub.server.port.hosts import is_same_origin
from signalhub.server.port.http import HttpRequest, Response, Routes
from signalhub.wire.errors import Refusal, unworded

T = TypeVar("T")
A = TypeVar("A", bound=AdminAnswer)

log = logging.getLogger("signalhub.admin")

PREFIX: Final = "/api/admin/v1"
LIMIT_MAX: Final = 500
ANSWER_BYTES_MAX: Final = 2**20
# Requests of one visitor.
VISITOR_RATE_S: Final = 30
VISITOR_BURST: Final = 60
VISITOR_AT_ONCE_MAX: Final = 6
# What all visitors look at together.
RATE_S: Final = 50
BURST: Final = 100
AT_ONCE_MAX: Final = 10
# Actions that are still taken while so many look.
ACTIONS_AT_ONCE_MAX: Final = 2
VISITORS_MAX: Final = 1_024
# For how long a repeat with the same key gets the first answer, and how many are remembered.
REPEAT_MS: Final = 300_000
REPEATS_MAX: Final = 1_000
REPEATS_BYTES_MAX: Final = 2**23
KEY_CHARS_MAX: Final = 256
SLICE: Final = 100
_JSON: Final = "application/json"

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Handler = Callable[..., AdminAnswer | Awaitable[AdminAnswer]]

HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class AdminRefusal(Exception):
    """A request is refused: the status, a stable code, what is wrong and what to do."""

    def __init__(
        self,
        status: int,
        code: str,
        text: str,
        resolution: str = "",
        *,
        details: dict[str, object] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text
        self.resolution = resolution
        self.details = details or {}
        self.headers = headers or {}

    def answer(self) -> AdminError:
        """The body that says so."""
        return AdminError(
            error=self.text,
            error_code=self.code,
            resolution=self.resolution,
            details=self.details,
        )


def bad_request(text: str, resolution: str = "Correct the request.") -> AdminRefusal:
    """The refusal of what cannot be understood."""
    return AdminRefusal(400, "bad_request", text, resolution)


def not_found(text: str, resolution: str = "Check the name.") -> AdminRefusal:
    """The refusal of what is not there."""
    return AdminRefusal(404, "not_found", text, resolution)


def forbidden(need: str) -> AdminRefusal:
    """The refusal of what the token does not permit; `details.needs` says what it takes."""
    return AdminRefusal(
        403,
        "forbidden",
        f"This needs the permission {need}.",
        "Use a token with it: `signalhub token mint --role operator`, or ask for one.",
        details={"needs": need},
    )


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: Method
    pattern: str
    handler: Handler
    answer: type[AdminAnswer]
    needs: str | None
    body: type[msgspec.Struct] | None
    query: tuple[str, ...]
    summary: str
    status: int
    preview: type[AdminAnswer] | None


class Asked:
    """One request: who asks, and for what."""

    __slots__ = ("_api", "_body", "request", "visitor")

    def __init__(
        self,
        api: AdminApi,
        request: HttpRequest,
        visitor: Visitor,
        body: type[msgspec.Struct] | None,
    ) -> None:
        self._api = api
        self._body = body
        self.request = request
        self.visitor = visitor

    @property
    def allowance(self) -> Allowance:
        """What the token permits, or the role without authentication."""
        return self.visitor.allowance

    @property
    def now(self) -> int:
        """The hub's own time; `AdminApi.shown` makes it the wall clock's."""
        return self._api.now_ms()

    # The request.

    def text(self, name: str) -> str | None:
        """A member of the query; `None` if it is not there or empty."""
        return self.values.get(name) or None

    def flag(self, name: str) -> bool:
        """Is a member of the query `true` or `1`?"""
        return self.values.get(name, "") in ("true", "1")

    def number(
        self, name: str, default: int, *, low: int = 0, high: int = 2**53, clamp: bool = False
    ) -> int:
        """A whole number of the query within bounds."""
        given = self.text(name)
        if given is None:
            return default
        try:
            value = int(given) if len(given) <= 20 else high + 1
        except ValueError:
            raise bad_request(f"{name} must be a whole number") from None
        if clamp:
            return min(max(value, low), high)
        if not low <= value <= high:
            raise bad_request(f"{name} must be between {low} and {high}")
        return value

    def limit(self, default: int = 100, high: int = LIMIT_MAX) -> int:
        """How many rows are wanted, at most `high`."""
        return self.number("limit", default, low=1, high=high, clamp=True)

    def chosen(self, name: str, among: Sequence[str], default: str = "") -> str:
        """A member of the query that must be one of some words."""
        given = self.text(name) or default
        if given and given not in among:
            raise bad_request(f"{name} must be one of {', '.join(among)}")
        return given

    @property
    def values(self) -> dict[str, str]:
        """The query; of a repeated member the last one."""
        try:
            found = parse_qsl(
                self.request.query, keep_blank_values=True, max_num_fields=32, errors="strict"
            )
        except ValueError:
            raise bad_request("the query is invalid") from None
        return dict(found)

    def parsed(self, kind: type[T]) -> T:
        """The body; one without content is an empty object."""
        body = self.request.body or b"{}"
        given = self.request.headers.get("content-type", "")
        if self.request.body and given.partition(";")[0].strip().lower() != _JSON:
            raise AdminRefusal(
                415, "unsupported_media_type", "The body must be JSON.", f"Send it as {_JSON}."
            )
        try:
            return msgspec.json.decode(body, type=kind)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"the body is invalid: {error}") from None

    # Permissions.

    def may(self, verb: str, over: str = "", owner: str = "") -> bool:
        """Is a verb permitted? `admin` is about an operation, others about a name."""
        return self.visitor.may(verb, over, owner)

    def require(self, verb: str, over: str = "", owner: str = "") -> None:
        """Refuse unless the verb is permitted; `owner` is who made it, if that is known."""
        if not self.may(verb, over, owner):
            raise forbidden(f"{verb}: {over}" if over else verb)

    # Requests of the wire protocol.

    async def call(self, type: str, payload: object) -> Answer:
        """One request of the wire protocol, with the permissions of whoever asks."""
        return await self._api.visitors.call(self.visitor, type, payload)

    async def result(self, type: str, payload: object) -> dict[str, Any]:
        """The payload of the answer to such a request."""
        answer = await self.call(type, payload)
        found = msgspec.json.decode(answer.payload)
        return found if isinstance(found, dict) else {"value": found}


class AdminApi:
    """The routes, and what holds for all of them."""

    def __init__(
        self, visitors: Visitors, now_ms: Callable[[], int], shown: Callable[[int], int]
    ) -> None:
        """`shown` converts the hub's own time into that of the wall clock."""
        self.visitors = visitors
        self.now_ms = now_ms
        self.shown = shown
        self.endpoints: list[Endpoint] = []
        self._paths: dict[str, dict[str, Endpoint]] = {}
        self._bucket = TokenBucket(RATE_S, BURST, now_ms())
        self._visitor_rate_s: float = VISITOR_RATE_S
        # By visitor, the one that came last is the last.
        self._shares: OrderedDict[str, _Share] = OrderedDict()
        self._running = 0
        self.answered = 0
        self._repeats: OrderedDict[tuple[str, str], _Repeat] = OrderedDict()
        self._repeats_bytes = 0

    def add(
        self,
        method: Method,
        pattern: str,
        handler: Handler,
        *,
        answer: type[AdminAnswer],
        needs: str | None = "view",
        body: type[msgspec.Struct] | None = None,
        query: tuple[str, ...] = (),
        summary: str = "",
        status: int = 200,
        preview: type[AdminAnswer] | None = None,
    ) -> None:
        """Add one method of a path; see the top of this file.

        `answer` and `preview` (the answer with `dryRun`), `body`, `query` and `summary` are for the
        description; the members of `query` are texts. `status` is that of a good answer.
        """
        methods = self._paths.setdefault(pattern, {})
        assert method not in methods, f"two handlers for {method} {pattern}"
        endpoint = Endpoint(
            method=method,
            pattern=pattern,
            handler=handler,
            answer=answer,
            needs=needs,
            body=body,
            query=query,
            summary=summary or (inspect.getdoc(handler) or "").partition("\n")[0],
            status=status,
            preview=preview,
        )
        methods[method] = endpoint
        self.endpoints.append(endpoint)

    def add_to(self, routes: Routes) -> None:
        """Register all paths at the port."""
        for pattern, methods in self._paths.items():
            routes.add(f"{PREFIX}{pattern}", _Path(self, methods), *methods)

    def guard(self, request: HttpRequest) -> AdminRefusal | None:
        """Refuse requests that a page of another site made."""
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return _FOREIGN
        origin = request.headers.get("origin")
        if origin is not None and not is_same_origin(origin, request, self.visitors.proxies):
            return _FOREIGN
        return None

    async def serve(
        self, endpoint: Endpoint, request: HttpRequest, parts: tuple[str, ...]
    ) -> Response:
        """Answer one request."""
        self.answered += 1
        try:
            refusal = self.guard(request)
            if refusal is not None:
                raise refusal
            # Those who may do nothing here use nothing up that others need.
            visitor = self.visitors.identify(request)
            if endpoint.needs is not None and not visitor.may("admin", endpoint.needs):
                raise forbidden(f"admin: {endpoint.needs}")
            asked = Asked(self, request, visitor, endpoint.body)
            with self._admitted(visitor, is_action=endpoint.method != "GET"):
                return await self._once(endpoint, asked, parts)
        except Exception as error:
            return refused(error)

    @contextmanager
    def _admitted(self, visitor: Visitor, *, is_action: bool) -> Iterator[None]:
        """One request more; raises `AdminRefusal` if there are too many."""
        now = self.now_ms()
        share = self._share(visitor.name, now)
        if share.running >= VISITOR_AT_ONCE_MAX:
            raise _too_many(1_000, f"{VISITOR_AT_ONCE_MAX} of yours are being answered")
        if self._running >= AT_ONCE_MAX + is_action * ACTIONS_AT_ONCE_MAX:
            raise _too_many(1_000, f"{self._running} requests are being answered")
        if not share.bucket.take(now):
            wait_ms = share.bucket.retry_after_ms(now)
            raise _too_many(wait_ms, f"you send more than {VISITOR_RATE_S} a second")
        if not is_action and not self._bucket.take(now):
            raise _too_many(self._bucket.retry_after_ms(now), f"more than {RATE_S} a second")
        share.running += 1
        self._running += 1
        try:
            yield
        finally:
            share.running -= 1
            self._running -= 1

    def _share(self, name: str, now: int) -> _Share:
        share = self._shares.get(name)
        if share is None:
            share = _Share(TokenBucket(self._visitor_rate_s, VISITOR_BURST, now))
            self._shares[name] = share
            if len(self._shares) > VISITORS_MAX:
                # At most a few have requests in progress.
                del self._shares[next(key for key, one in self._shares.items() if not one.running)]
        self._shares.move_to_end(name)
        return share

    async def _once(self, endpoint: Endpoint, asked: Asked, parts: tuple[str, ...]) -> Response:
        """Answer; a repeat with the same `Idempotency-Key` gets the first answer."""
        key = asked.request.headers.get("idempotency-key")
        if key is None or endpoint.method == "GET":
            return await self._answered(endpoint, asked, parts)
        if not key or len(key) > KEY_CHARS_MAX:
            raise bad_request(f"Idempotency-Key must have 1 to {KEY_CHARS_MAX} characters")
        now = self.now_ms()
        while self._repeats and next(iter(self._repeats.values())).until_ms <= now:
            self._forget(next(iter(self._repeats)))
        name, digest = (asked.visitor.name, key), _digest(asked.request)
        known = self._repeats.get(name)
        if known is not None:
            if known.digest != digest:
                raise AdminRefusal(
                    409, "conflict", "This Idempotency-Key belongs to another request.",
                    "Choose a new key for a new request.",
                )  # fmt: skip
            return await asyncio.shield(known.answer)
        task = asyncio.ensure_future(self._answered(endpoint, asked, parts))
        self._repeats[name] = repeat = _Repeat(digest, now + REPEAT_MS, task)
        task.add_done_callback(lambda _: self._remember(name, repeat))
        if len(self._repeats) > REPEATS_MAX:
            self._forget(next(iter(self._repeats)))
        return await asyncio.shield(task)

    def _remember(self, name: tuple[str, str], repeat: _Repeat) -> None:
        """Keep an answer for repeats; the oldest ones make room."""
        if self._repeats.get(name) is not repeat:
            return
        if repeat.answer.cancelled() or repeat.answer.exception() is not None:
            # What was refused may be tried again.
            self._forget(name)
            return
        repeat.size = len(repeat.answer.result().body)
        self._repeats_bytes += repeat.size
        while self._repeats_bytes > REPEATS_BYTES_MAX:
            # What is still being done takes nothing, and must not be done twice.
            self._forget(next(key for key, one in self._repeats.items() if one.size))

    def _forget(self, name: tuple[str, str]) -> None:
        self._repeats_bytes -= self._repeats.pop(name).size

    async def _answered(self, endpoint: Endpoint, asked: Asked, parts: tuple[str, ...]) -> Response:
        found = endpoint.handler(asked, *parts)
        if inspect.isawaitable(found):
            found = await found
        body = msgspec.json.encode(found)
        if len(body) > ANSWER_BYTES_MAX:
            raise AdminRefusal(
                413,
                "too_large",
                f"The answer is longer than {ANSWER_BYTES_MAX} bytes.",
                "Ask for fewer rows, with `limit`.",
            )
        return Response(endpoint.status, body, _JSON, HEADERS)


class _Path:
    """All methods of one path."""

    __slots__ = ("_api", "_methods")

    def __init__(self, api: AdminApi, methods: dict[str, Endpoint]) -> None:
        self._api = api
        self._methods = methods

    def __call__(self, request: HttpRequest, *parts: str) -> Awaitable[Response]:
        method = "GET" if request.method == "HEAD" else request.method
        return self._api.serve(self._methods[method], request, parts)


class _Repeat(msgspec.Struct):
    """The answer to a request with an `Idempotency-Key`."""

    digest: bytes
    until_ms: int
    answer: asyncio.Future[Response]
    # Of the answer, once there is one.
    size: int = 0


class _Share(msgspec.Struct):
    """What one visitor may still ask for."""

    bucket: TokenBucket
    running: int = 0


def _digest(request: HttpRequest) -> bytes:
    parts = (request.method.encode(), request.path.encode(), request.query.encode(), request.body)
    return hashlib.sha256(b"\0".join(parts)).digest()


def _too_many(wait_ms: int, why: str) -> AdminRefusal:
    wait_s = max(1, -(-wait_ms // 1000))
    return AdminRefusal(
        429,
        "rate_limited",
        f"Too many requests: {why}.",
        f"Try again in {wait_s} s.",
        details={"retryAfterMs": wait_s * 1000},
        headers={"Retry-After": str(wait_s)},
    )


_FOREIGN: Final = AdminRefusal(
    403,
    "foreign_origin",
    "The request comes from a page of another origin.",
    "Open the page of the hub itself. Behind a proxy for TLS, name it in `trusted_proxies`.",
)

_STATUS: Final = {
    **dict.fromkeys(("unauthorized", "forbidden"), 403),
    **dict.fromkeys(("unknown_topic", "unknown_subscription", "unknown_actor"), 404),
    "unknown_session": 404,
    "topic_conflict": 409,
    "rate_limited": 429,
}


def refused(error: Exception) -> Response:
    """The answer to a request that raised."""
    if isinstance(error, CallRefused):
        error = AdminRefusal(
            error.status, error.code, error.message, error.resolution, details=error.details
        )
    elif isinstance(error, Refusal):
        status = _STATUS.get(error.code, 503 if error.retryable else 400)
        error = AdminRefusal(
            status, error.code, error.message, error.resolution, details=error.details
        )
    elif not isinstance(error, AdminRefusal):
        log.error("a request of the admin API failed", exc_info=unworded(error))
        failed = refusals.failed()
        error = AdminRefusal(500, failed.code, failed.message, failed.resolution)
    headers = HEADERS | error.headers
    if error.status == 401:
        headers = headers | {"WWW-Authenticate": "Bearer"}
    return Response(error.status, msgspec.json.encode(error.answer()), _JSON, headers)


async def slices(things: Iterable[T], size: int = SLICE) -> AsyncIterator[list[T]]:
    """Divide things into parts that take less than half a millisecond, with turns in between."""
    part: list[T] = []
    for thing in things:
        part.append(thing)
        if len(part) == size:
            yield part
            part = []
            await asyncio.sleep(0)
    yield part
