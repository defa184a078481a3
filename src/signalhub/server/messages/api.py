"""The routes of the API for messages.

Each request becomes one of the wire protocol, sent by the caller of its token, so what it may do,
what it costs and what is recorded is decided by the same handlers as for a socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw

from signalhub.server.callers import Caller, CallRefused
from signalhub.server.messages import answers, openapi
from signalhub.server.messages.bodies import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    KEY_CHARS_MAX,
    Actors,
    Batch,
    BatchItem,
    ExtendBody,
    NackBody,
    PublishBody,
    Published,
    PullBody,
    Pulled,
    Receipt,
    Reply,
    RequestBody,
    SendBody,
    SettleBody,
    Settled,
    StoredPublish,
    TermBody,
    Told,
)
from signalhub.server.messages.pages import Pages, actors_query, bad_request, delivered
from signalhub.server.messages.pulls import Pulls
from signalhub.server.port.door import ORIGIN_REFUSED
from signalhub.server.port.hosts import Proxies, is_same_origin
from signalhub.server.port.http import HttpRequest, Later, Response, Routes
from signalhub.server.rooms.answers import INTERNAL_ERROR, JSON
from signalhub.server.rooms.api import Cors
from signalhub.server.rooms.openapi import DESCRIPTION
from signalhub.wire.errors import RoomCode, unworded
from signalhub.wire.frames import is_text

if TYPE_CHECKING:
    from signalhub.clock import Clock
    from signalhub.core.hub import Hub
    from signalhub.server.callers import Callers
    from signalhub.server.runner import HubRunner

log = logging.getLogger("signalhub.server")

T = TypeVar("T")

LINES: Final = "application/x-ndjson"
# Messages of a batch that are handled in one tick.
_SLICE: Final = 50
# What a settlement says, as a request of the wire protocol says it.
_SETTLING: Final[dict[str, tuple[str, type[SettleBody]]]] = {
    "ack": ("hub:ack", SettleBody),
    "nack": ("hub:nack", NackBody),
    "extend": ("hub:extend", ExtendBody),
    "term": ("hub:term", TermBody),
}


class _Published(msgspec.Struct, gc=False, rename="camel"):
    """The payload of `hub:published`."""

    topic: str
    subscriber_count: int = 0
    epoch: str = ""
    seq: int = 0
    durability: str = ""
    duplicate: bool = False


class _Acknowledged(msgspec.Struct, gc=False, rename="camel"):
    """The payload of `hub:delivery_ack`."""

    status: str
    durability: str | msgspec.UnsetType = UNSET
    delivered_at: int | msgspec.UnsetType = UNSET
    queued_at: int | msgspec.UnsetType = UNSET
    queue_position: int | msgspec.UnsetType = UNSET
    duplicate: bool | msgspec.UnsetType = UNSET


class _Failure(msgspec.Struct, gc=False):
    code: str = "failed"
    text: str = ""


class _ReplyMetadata(msgspec.Struct, gc=False):
    failure: _Failure | None = None


_decode_published = msgspec.json.Decoder(_Published).decode
_decode_acknowledged = msgspec.json.Decoder(_Acknowledged).decode
_decode_reply = msgspec.json.Decoder(_ReplyMetadata).decode
_decode_settled = msgspec.json.Decoder(Settled).decode
_decode_actors = msgspec.json.Decoder(Actors).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode

# Answers a request of somebody who may use the hub.
Serve = Callable[..., Coroutine[Any, Any, Response]]


class Waiting(Later):
    """An answer that nobody needs once the client is gone."""

    __slots__ = ("gone",)

    def __init__(self) -> None:
        super().__init__()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def abandon(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    def done(self, task: asyncio.Task[Response]) -> None:
        """Respond with what it has come to."""
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self.respond(task.result())
            return
        log.error("a pull failed", exc_info=unworded(error))
        self.respond(INTERNAL_ERROR)


class MessagesApi:
    """All endpoints below `/api/hub/v1`."""

    def __init__(self, hub: Hub, runner: HubRunner, clock: Clock, callers: Callers) -> None:
        self._callers = callers
        self._cors = Cors(hub.settings.origins)
        self._proxies = Proxies(hub.settings)
        self._is_checked = hub.settings.auth.enabled
        self._pulls = Pulls(hub, clock)
        self._pages = Pages(hub, runner)
        self._tasks: set[asyncio.Task[Response]] = set()

    def add_to(self, routes: Routes, described: openapi.Json | None = None) -> None:
        """Register the routes, and the document that has `described`, too."""
        document = openapi.describe(described, is_checked=self._is_checked)
        description = Response(
            200, msgspec.json.encode(document), JSON, {"Cache-Control": "no-cache"}
        )
        routes.add(DESCRIPTION, partial(self._describe, description), "GET")
        routes.add(openapi.PUBLISH, partial(self._serve, self._publish), "POST")
        routes.add(openapi.BATCH, partial(self._serve, self._batch), "POST")
        routes.add(openapi.TELL, partial(self._serve, self._tell), "POST")
        routes.add(openapi.ASK, partial(self._serve, self._ask), "POST")
        routes.add(openapi.REQUEST, partial(self._serve, self._request), "POST")
        routes.add(_pattern(openapi.MESSAGES), partial(self._serve, self._read), "GET")
        routes.add(_pattern(openapi.PULL), self._wait, "POST")
        for name in _SETTLING:
            settle = partial(self._settle, name)
            path = _pattern(f"{openapi.SUBSCRIPTION}/{name}")
            routes.add(path, partial(self._serve, settle), "POST")
        routes.add(openapi.ACTORS, partial(self._serve, self._actors), "GET")
        routes.add_options(self._cors.preflight)

    def _serve(
        self, serve: Serve, request: HttpRequest, *parts: str
    ) -> Response | Coroutine[Any, Any, Response]:
        origin = request.headers.get("origin")
        if not self._admits(origin, request):
            return ORIGIN_REFUSED
        try:
            caller = self._callers.caller(self._callers.principal(request))
        except CallRefused as error:
            return self._cors.dress(answers.refusal(error), origin)
        return self._answered(serve(caller, request, *parts), origin)

    def _admits(self, origin: str | None, request: HttpRequest) -> bool:
        """The hub's own pages may use it, and those of the settings."""
        return (
            origin is None
            or self._cors.admits(origin)
            or is_same_origin(origin, request, self._proxies)
        )

    def _wait(self, request: HttpRequest, *parts: str) -> Response | Later:
        """Serve a pull for as long as its client is there."""
        waiting = Waiting()
        answer = self._serve(partial(self._pull, waiting.gone), request, *parts)
        if isinstance(answer, Response):
            return answer
        task = asyncio.create_task(answer)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(waiting.done)
        return waiting

    async def _answered(
        self, answer: Coroutine[Any, Any, Response], origin: str | None
    ) -> Response:
        try:
            response = await answer
        except CallRefused as error:
            response = answers.refusal(error)
        return self._cors.dress(response, origin)

    def _describe(self, description: Response, request: HttpRequest) -> Response:
        return self._cors.dress(description, request.headers.get("origin"))

    # Sending.

    async def _publish(self, caller: Caller, request: HttpRequest) -> Response:
        body = _decoded(request, PublishBody)
        published = await _published(caller, body, _id_of(request, body.id))
        status = 200 if isinstance(published, StoredPublish) else 202
        return answers.answered(status, published, is_repeat=_is_repeat(published))

    async def _batch(self, caller: Caller, request: HttpRequest) -> Response:
        items = _items_of(request)
        key = request.headers.get("idempotency-key")
        if key is not None:
            _check_key(key)
        tasks: list[asyncio.Task[BatchItem]] = []
        for number, item in enumerate(items):
            if number and number % _SLICE == 0:
                # The tasks of a slice begin in this order, and then it is the turn of others.
                await asyncio.sleep(0)
            own = None if key is None else f"{key}/{number}"
            tasks.append(asyncio.create_task(_one_of_batch(caller, item, own)))
        results = [await one for one in tasks]
        failed = sum(one.status >= 300 for one in results)
        return answers.answered(200, Batch(results, failed))

    async def _tell(self, caller: Caller, request: HttpRequest) -> Response:
        body = _decoded(request, SendBody)
        message_id = _id_of(request, body.id) or self._callers.next_id()
        caller.tell(
            *(body.to, body.type, body.data),
            message_id=message_id,
            sender=body.sender,
            ttl_ms=body.ttl,
        )
        return answers.answered(202, Told(message_id))

    async def _ask(self, caller: Caller, request: HttpRequest) -> Response:
        body = _decoded(request, SendBody)
        message_id = _id_of(request, body.id) or self._callers.next_id()
        answer = await caller.call(
            "hub:send",
            {"to": body.to, "type": body.type, "data": body.data},
            message_id=message_id,
            sender=body.sender,
            ttl_ms=body.ttl,
        )
        given = _decode_acknowledged(answer.payload)
        receipt = msgspec.convert(
            {"id": message_id} | msgspec.to_builtins(given), Receipt, strict=False
        )
        return answers.answered(200, receipt, is_repeat=given.duplicate is True)

    async def _request(self, caller: Caller, request: HttpRequest) -> Response:
        body = _decoded(request, RequestBody)
        reply = await caller.request(
            *(body.to, body.type, body.data),
            timeout_s=body.timeout_ms / 1000,
            message_id=_id_of(request, body.id),
        )
        failure = _failure_of(reply.metadata)
        if failure is not None:
            details = {"actorAddress": reply.sender, "code": failure.code}
            text = failure.text or f"{reply.sender} could not do it."
            advice = "The actor has answered that it failed; its code is in details."
            raise CallRefused(502, "request_failed", text, advice, details=details)
        return answers.answered(
            200, Reply(reply.id, sender=reply.sender, type=reply.type, data=reply.payload)
        )

    # Reading.

    async def _read(self, caller: Caller, request: HttpRequest, topic: str) -> Response:
        page = await self._pages.read(caller, topic, request.query)
        return answers.answered(200, page)

    async def _actors(self, caller: Caller, request: HttpRequest) -> Response:
        answer = await caller.call("hub:discover", actors_query(request.query))
        return answers.answered(200, _decode_actors(answer.payload))

    # Pulling.

    async def _pull(
        self,
        gone: asyncio.Future[None],
        caller: Caller,
        request: HttpRequest,
        topic: str,
        subscription: str,
    ) -> Response:
        body = _decoded(request, PullBody)
        found = await self._pulls.pull(caller, (topic, subscription), body, gone)
        return answers.answered(200, Pulled(topic, subscription, [delivered(one) for one in found]))

    async def _settle(
        self, name: str, caller: Caller, request: HttpRequest, topic: str, subscription: str
    ) -> Response:
        type, kind = _SETTLING[name]
        body = _decoded(request, kind)
        if sum(one is not UNSET for one in (body.seq, body.seqs, body.up_to)) != 1:
            raise bad_request("Give exactly one of seq, seqs and upTo.")
        settlement = msgspec.to_builtins(body)
        answer = await self._pulls.settle(caller, type, (topic, subscription), settlement)
        return answers.answered(200, _decode_settled(answer.payload))


async def _published(
    caller: Caller, body: PublishBody, message_id: str | None
) -> StoredPublish | Published:
    """Publish, and say where or to how many."""
    # What follows is in no payload of the wire protocol.
    payload: dict[str, object] = {"topic": body.topic, "type": body.type, "data": body.data}
    options = {
        "key": body.key,
        "headers": body.headers,
        "durable": body.durable,
        "deliverAt": body.deliver_at,
    }
    payload |= {name: value for name, value in options.items() if value is not None}
    if message_id is None:
        message_id = caller.new_id()
    answer = await caller.call(
        *("hub:publish", payload),
        message_id=message_id,
        sender=body.sender,
        ttl_ms=body.ttl,
    )
    given = _decode_published(answer.payload)
    if not given.seq:
        return Published(message_id, given.topic, given.subscriber_count)
    return StoredPublish(
        message_id,
        given.topic,
        given.epoch,
        given.seq,
        given.durability,  # type: ignore[arg-type]
        given.duplicate or UNSET,
        given.subscriber_count,
    )


async def _one_of_batch(caller: Caller, item: Raw, own_id: str | None) -> BatchItem:
    try:
        body = _decoded_from(bytes(item), PublishBody)
        published = await _published(caller, body, body.id or own_id)
    except CallRefused as error:
        return answers.item_refused(error)
    status = 200 if isinstance(published, StoredPublish) else 202
    return BatchItem(status, **msgspec.structs.asdict(published))


def _is_repeat(published: StoredPublish | Published) -> bool:
    return isinstance(published, StoredPublish) and published.duplicate is True


def _failure_of(metadata: Raw) -> _Failure | None:
    try:
        return _decode_reply(metadata).failure
    except (ValueError, RecursionError):
        return None


def _pattern(path: str) -> str:
    """The pattern of a path with names in braces."""
    return "/".join("{}" if one.startswith("{") else one for one in path.split("/"))


def _media_type(request: HttpRequest) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _unsupported(sent: str) -> CallRefused:
    return CallRefused(
        415,
        RoomCode.UNSUPPORTED_MEDIA_TYPE,
        f"The body must be JSON, as Content-Type: {sent}.",
        "Declare what the body is.",
    )


def _decoded(request: HttpRequest, kind: type[T]) -> T:
    if _media_type(request) != JSON:
        raise _unsupported(JSON)
    return _decoded_from(request.body, kind)


def _decoded_from(text: bytes, kind: type[T]) -> T:
    try:
        # What is passed on as it is, is not looked at when it is decoded.
        if not (text.isascii() or is_text(text)):
            raise ValueError("it is not valid UTF-8")
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"The body is invalid: {error}.") from None


def _items_of(request: HttpRequest) -> Iterable[Raw]:
    """The messages of a batch: an array, or one in each line."""
    media_type = _media_type(request)
    if media_type not in (JSON, LINES):
        raise _unsupported(f"{JSON} or {LINES}")
    if len(request.body) > BATCH_BYTES_MAX:
        raise _too_large(
            f"The batch has {len(request.body)} bytes; the limit is {BATCH_BYTES_MAX}."
        )
    if media_type == LINES:
        items = [Raw(line) for line in request.body.split(b"\n") if line.strip()]
    else:
        try:
            items = _decode_items(request.body)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"The body must be an array of messages: {error}.") from None
    if len(items) > BATCH_MAX:
        raise _too_large(f"The batch has {len(items)} messages; the limit is {BATCH_MAX}.")
    return items


def _too_large(text: str) -> CallRefused:
    return CallRefused(413, RoomCode.TOO_LARGE, text, "Split the batch.")


def _id_of(request: HttpRequest, given: str | None) -> str | None:
    """The id of a message, from its body or the header."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return given
    _check_key(key)
    if given is not None and given != key:
        raise bad_request("Idempotency-Key and id differ; give one of them.")
    return key


def _check_key(key: str) -> None:
    if not 0 < len(key) <= KEY_CHARS_MAX:
        raise bad_request(f"Idempotency-Key must have 1 to {KEY_CHARS_MAX} characters.")
