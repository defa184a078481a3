"""Publish, send, ask, read and pull over HTTP: one request each, and no connection to keep."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from signalhub.client.answers import Found, Published, Receipt
from signalhub.client.arguments import (
    checked_address,
    checked_headers,
    checked_lifetime,
    checked_message_id,
    checked_topic,
    checked_type,
    epoch_ms,
    new_message_id,
)
from signalhub.client.calls.answers import (
    MessagePage,
    Setback,
    page_of,
    pulled_of,
    reply_of,
    setback,
)
from signalhub.client.delivery import Delivery, Settled
from signalhub.client.message import Message
from signalhub.client.protocol.events import Listener, Reports, waiting
from signalhub.client.stream_requests import Ack, Extend, Nack, Term, Verdict
from signalhub.client.transport.http import HttpClient
from signalhub.pacing import Attempts, retry_wait_s
from signalhub.wire.errors import OutcomeUnknown, StaleDelivery, Unavailable

T = TypeVar("T")

_BASE: Final = "/api/hub/v1"
_TIMEOUT_S: Final = 30.0
# What the hub needs beyond the time that it was asked to wait.
_ANSWER_S: Final = 10.0
# Whoever comes by HTTP has no address.
_NOBODY: Final = ""
_ACCEPTED: Final = (HTTPStatus.OK, HTTPStatus.ACCEPTED)
_JSON: Final = {"Content-Type": "application/json"}
_VERDICTS: Final[dict[Verdict, str]] = {Ack: "ack", Nack: "nack", Extend: "extend", Term: "term"}

Mode = Literal["exclusive", "failover", "shared", "key-shared"]


class Calls:
    """The messages of a hub, without a connection."""

    def __init__(self, http: HttpClient, listener: Listener | None = None) -> None:
        self._http = http
        self._report = Reports(listener)

    async def publish(
        self,
        topic: str,
        type: str,
        payload: Any = None,
        *,
        durable: bool = False,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        deliver_at: float | datetime | None = None,
        ttl_ms: float | None = None,
        sender: str | None = None,
        message_id: str | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> Published:
        """Publish to a topic; with a durable one, return once the message is on disk.

        It is repeated with the same id until then.

        Args:
            key: Messages with the same key keep their order in `key-shared` subscriptions.
            headers: Strings sent with the payload.
            deliver_at: Do not deliver before this time: a datetime, or milliseconds since the Unix
                epoch.
            ttl_ms: Do not deliver after this time has passed.
            message_id: An id chosen by you. Sent again with it, even by another run of the program,
                the message gets the same position and is not stored twice.
            timeout_s: How long to try.

        Raises:
            Refused: The hub refused it.
            Unavailable: It was never sent, or the hub could not accept it.
            OutcomeUnknown: It was sent, and no answer arrived: repeat it with the same id.
        """
        body = {
            "topic": checked_topic(topic),
            "type": checked_type(type),
            "data": payload,
            "durable": durable or None,
            "key": key,
            "headers": None if headers is None else checked_headers(headers),
            "deliverAt": None if deliver_at is None else round(epoch_ms(deliver_at)),
        }
        body |= _common(ttl_ms, sender, message_id)
        # A plain topic knows no repeats.
        return await self._post(
            "/publish", body, _decoder(Published), timeout_s, is_repeatable=durable
        )

    async def tell(
        self,
        to: str,
        type: str,
        payload: Any = None,
        *,
        ttl_ms: float | None = None,
        sender: str | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """Send a message to an actor, at most once.

        Raises:
            Refused, Unavailable, OutcomeUnknown: As for `publish`.
        """
        body = _addressed(to, type, payload) | _common(ttl_ms, sender, None)
        await self._post("/tell", body, lambda _: None, timeout_s, is_repeatable=False)

    async def ask(
        self,
        to: str,
        type: str,
        payload: Any = None,
        *,
        ttl_ms: float | None = None,
        sender: str | None = None,
        message_id: str | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> Receipt:
        """Send a message to an actor, at least once, and return the hub's receipt.

        Raises:
            UnknownActor: No actor is registered under `to`.
            Refused, Unavailable, OutcomeUnknown: As for `publish`.
        """
        body = _addressed(to, type, payload) | _common(ttl_ms, sender, message_id)

        def read(answer: bytes) -> Receipt:
            given = msgspec.json.decode(answer)
            return msgspec.convert({"messageId": given["id"]} | given, Receipt, strict=False)

        return await self._post("/ask", body, read, timeout_s)

    async def request(
        self,
        to: str,
        type: str,
        payload: Any = None,
        *,
        timeout_s: float = _TIMEOUT_S,
    ) -> Message:
        """Ask an actor and return its reply.

        Raises:
            RequestFailed: It replied with a failure.
            NoReply: It has the request, and has not replied in time or has disconnected.
            UnknownActor: No actor is registered under `to`.
            Refused, Unavailable, OutcomeUnknown: As for `publish`.
        """
        # The hub waits for a minute at most.
        body = _addressed(to, type, payload) | {
            "timeoutMs": max(1, round(timeout_s * 1000)),
            "id": new_message_id(),
        }
        return await self._post(
            "/request",
            body,
            lambda answer: reply_of(answer, _NOBODY),
            timeout_s + _ANSWER_S,
            is_repeatable=False,
        )

    async def messages(
        self,
        topic: str,
        *,
        after: int | None = None,
        start: str | int | datetime | None = None,
        limit: int = 100,
        timeout_s: float = _TIMEOUT_S,
    ) -> MessagePage:
        """Return a page of a durable topic, without taking it from anybody.

        Args:
            after: The position before the first one wanted.
            start: Instead of that: `earliest`, `latest`, a position or a time.
            limit: How many messages at most, up to 1000.

        Raises:
            Refused: The topic does not exist, or reading it is not permitted.
            Unavailable: The hub cannot be reached, or cannot read the topic now.
        """
        query: dict[str, Any] = {"limit": limit}
        if after is not None:
            query["after"] = after
        if start is not None:
            query["from"] = _timestamp(start) if isinstance(start, datetime) else start
        path = f"/topics/{_segment(checked_topic(topic))}/messages?{urlencode(query)}"
        return await self._get(path, lambda body: page_of(body, _NOBODY), timeout_s)

    async def pull(
        self,
        topic: str,
        subscription: str,
        *,
        max: int = 100,
        wait_s: float = 0.0,
        mode: Mode | None = None,
        window: int | None = None,
        start: Literal["earliest", "latest"] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> list[Message]:
        """Take messages of a durable subscription; settle each with its `ack`, `nack` or `term`.

        What is not settled comes again after the ack timeout, also if this answer is lost.

        Args:
            max: How many at most, up to 1000.
            wait_s: How long to wait for the first one, up to 30.
            mode: Of a subscription that does not exist; `shared` by default.
            window: How many may be unsettled. Pulls at the same time have a window each.
            start: Where a subscription that does not exist begins.

        Raises:
            Refused: The topic does not exist, or somebody else consumes alone, perhaps another
                pull that took longer than `wait_s`.
            Unavailable, OutcomeUnknown: As for `publish`; what was taken comes again.
        """
        body: dict[str, Any] = {
            "max": max,
            "waitMs": round(wait_s * 1000),
            "mode": mode,
            "window": window,
            "from": start,
        }
        path = f"{_subscription(topic, subscription)}/pull"

        def settle(how: str, settlement: Mapping[str, Any]) -> Awaitable[Settled]:
            path = f"{_subscription(topic, subscription)}/{how}"
            return self._post(path, settlement, _decoder(Settled), _TIMEOUT_S)

        settler = _Settler(settle)
        return await self._post(
            path,
            body,
            lambda answer: pulled_of(answer, _NOBODY, settler),
            timeout_s + wait_s,
        )

    async def settle(
        self,
        how: Literal["ack", "nack", "extend", "term"],
        topic: str,
        subscription: str,
        seqs: Iterable[int],
        *,
        timeout_s: float = _TIMEOUT_S,
        **facts: Any,
    ) -> Settled:
        """Settle several messages of a subscription by their positions.

        Args:
            facts: `delayMs` and `reason` of a nack, `ms` of an extension, `reason` of a term.
        """
        body = {"seqs": list(seqs)} | facts
        path = f"{_subscription(topic, subscription)}/{how}"
        return await self._post(path, body, _decoder(Settled), timeout_s)

    async def actors(
        self,
        pattern: str = "*",
        capability: str | None = None,
        *,
        limit: int = 100,
        timeout_s: float = _TIMEOUT_S,
    ) -> Found:
        """Find actors by address and capability."""
        query: dict[str, Any] = {"pattern": pattern, "limit": limit}
        if capability is not None:
            query["capability"] = capability
        return await self._get(f"/actors?{urlencode(query)}", _decoder(Found), timeout_s)

    async def _get(self, path: str, read: Callable[[bytes], T], timeout_s: float) -> T:
        try:
            return await self._repeat("GET", path, None, read, timeout_s, is_repeatable=True)
        except OutcomeUnknown as unknown:
            # Reading changes nothing, so an unknown outcome is just a failure.
            raise Unavailable(str(unknown)) from unknown

    async def _post(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[bytes], T],
        timeout_s: float,
        *,
        is_repeatable: bool = True,
    ) -> T:
        text = msgspec.json.encode(
            {name: value for name, value in body.items() if value is not None or name == "data"}
        )
        return await self._repeat("POST", path, text, read, timeout_s, is_repeatable=is_repeatable)

    async def _repeat(
        self,
        method: str,
        path: str,
        body: bytes | None,
        read: Callable[[bytes], T],
        timeout_s: float,
        *,
        is_repeatable: bool,
    ) -> T:
        """Try until it succeeds, is refused for good, or the time is up."""
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + timeout_s
        attempts = Attempts()
        while True:
            result = await self._try(method, path, body, read, deadline_s - now_s())
            if not isinstance(result, Setback):
                return result
            attempts.failed(result.error)
            if result.wait_s is None or (attempts.is_doubtful and not is_repeatable):
                raise attempts.failure("no answer arrived")
            wait_s = retry_wait_s(result.wait_s, attempts.count, random.random)
            if now_s() + wait_s >= deadline_s:
                raise attempts.failure("no answer arrived")
            self._report(waiting(result.error, wait_s))
            await asyncio.sleep(wait_s)

    async def _try(
        self,
        method: str,
        path: str,
        body: bytes | None,
        read: Callable[[bytes], T],
        timeout_s: float,
    ) -> T | Setback:
        try:
            answer = await self._http.request(
                method,
                _BASE + path,
                headers=None if body is None else _JSON,
                body=body,
                timeout_s=max(0.0, timeout_s),
            )
        except (Unavailable, OutcomeUnknown) as error:
            return Setback(error, 0.0)
        if answer.status not in _ACCEPTED:
            return setback(self._http.origin.http_url, answer)
        try:
            return read(answer.body)
        except (msgspec.MsgspecError, ValueError, KeyError) as error:
            text = f"{self._http.origin.http_url}: the answer cannot be read: {error}"
            return Setback(OutcomeUnknown(text), None)


class _Settler:
    """Settles messages that were pulled, one request each."""

    def __init__(self, settle: Callable[[str, Mapping[str, Any]], Awaitable[Settled]]) -> None:
        self._settle = settle

    def is_open(self, delivery: Delivery) -> bool:
        """Only the hub knows, so settling it is worth a try."""
        return True

    async def settle(
        self,
        verdict: Verdict,
        message_id: str,
        delivery: Delivery,
        facts: dict[str, Any],
        *,
        wait: bool,
    ) -> Settled | None:
        """Settle a delivery; answered once it is on disk, with or without `wait`."""
        body = {
            "epoch": delivery.epoch,
            "seq": delivery.seq,
            "id": delivery.id,
            "delayMs": facts.get("delay_ms"),
            "reason": facts.get("reason"),
            "ms": facts.get("ms"),
        }
        settled = await self._settle(_VERDICTS[verdict], body)
        if wait and not settled.accepted:
            details = {"seq": delivery.seq, "attempt": delivery.attempt, "floor": settled.floor}
            raise StaleDelivery(f"{verdict.TYPE} for {message_id}", details=details)
        return settled


def _common(ttl_ms: float | None, sender: str | None, message_id: str | None) -> dict[str, Any]:
    ttl_ms = checked_lifetime(ttl_ms)
    return {
        "ttl": None if ttl_ms is None else max(1, round(ttl_ms)),
        "from": None if sender is None else checked_address(sender),
        "id": checked_message_id(message_id) or new_message_id(),
    }


def _addressed(to: str, type: str, payload: Any) -> dict[str, Any]:
    return {"to": checked_address(to), "type": checked_type(type), "data": payload}


def _decoder(kind: type[T]) -> Callable[[bytes], T]:
    return msgspec.json.Decoder(kind, strict=False).decode


def _segment(name: str) -> str:
    return quote(name, safe="")


def _subscription(topic: str, subscription: str) -> str:
    return f"/topics/{_segment(checked_topic(topic))}/subscriptions/{_segment(subscription)}"


def _timestamp(moment: datetime) -> str:
    """A time as the hub reads it; one without a zone is local."""
    return moment.astimezone().isoformat(timespec="microseconds")
