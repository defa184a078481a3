"""Calling actors from outside: HTTP handlers, scripts, tests.

The caller waits in memory: the call itself is durable, but if the calling process dies, its outcome
is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self
from uuid import uuid4

import msgspec

from signalhub.actors import wire
from signalhub.actors.api import outcome
from signalhub.actors.api.errors import CallTimeout, CallUndeliverable
from signalhub.actors.api.names import Ref, parse_ref
from signalhub.actors.api.operation import Operation, encode_operation, op
from signalhub.client import Client, Message, Reconnect, connect
from signalhub.client.protocol.events import Listener
from signalhub.client.transport.token import Token
from signalhub.wire.errors import Code
from signalhub.wire.errors import Refused as HubRefused

_AGAIN_S: Final = 0.25
_RETRIED: Final = frozenset(
    {Code.STALE_PLACEMENT, Code.QUEUE_FULL, Code.STORAGE_FULL, Code.NO_HOST}
)


class ActorHub:
    """Calls actors through a hub. Use it as `async with ActorHub(url) as hub:`."""

    def __init__(
        self,
        url: str,
        *,
        address: str | None = None,
        token: Token = None,
        listener: Listener | None = None,
    ) -> None:
        """`address` receives the outcomes; by default one is generated per process."""
        self._url = url
        self._address = address or f"@(callers/{uuid4().hex})"
        self._token = token
        self._listener = listener
        self._client: Client | None = None
        self._waiting: dict[str, asyncio.Future[Any]] = {}

    async def __aenter__(self) -> Self:
        # A caller waits, so reconnect sooner than clients usually do.
        again = Reconnect(first_jitter_s=1.0)
        self._client = await connect(
            self._url,
            self._address,
            token=self._token,
            reconnect=again,
            listener=self._listener,
        )
        self._client.on(wire.RESULT, self._answered)
        self._client.on(wire.ANSWER, self._commanded)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.close()

    @property
    def client(self) -> Client:
        assert self._client is not None, "use it as `async with ActorHub(url) as hub:`"
        return self._client

    async def ask(
        self,
        target: Ref | str,
        operation: Operation | Callable[..., Any] | str,
        *args: Any,
        timeout: float = 30.0,  # noqa: ASYNC109  It is the call's, and its error says so.
    ) -> Any:
        """Call a method of an actor and wait for what it returns.

        Raises:
            CallError: What the method raised; `CallTimeout` if there was no outcome in time,
                `CallUndeliverable` if no host serves the actor's kind.
            Refused: The hub refuses the call, or a place for the actor.
            ClientError: The hub could not be reached.
        """
        to = str(parse_ref(target) if isinstance(target, str) else target)
        wanted = operation if isinstance(operation, Operation) else op(operation, *args)
        call_id = uuid4().hex
        body = wire.ActorMessage("request", call_id, to, msgspec.Raw(encode_operation(wanted)))
        data = wire.join([wire.encode(body)])
        future = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = future
        progress = _Progress()
        try:
            async with asyncio.timeout(timeout):
                await self._send(to, data, call_id, timeout * 1000, progress)
                value = await future
        except TimeoutError:
            raise progress.timed_out(to, wanted.method, timeout, call_id) from None
        finally:
            del self._waiting[call_id]
        if outcome.is_error(value):
            raise value
        return value

    async def _send(
        self, to: str, data: bytes, call_id: str, ttl_ms: float, progress: _Progress
    ) -> None:
        """Find the actor's host and send the call to its mailbox; retry temporary failures."""
        while True:
            try:
                found = await self.client.place([to])
                if not found.places:
                    refused = found.unplaced[0]
                    raise HubRefused(refused.code, refused.message, resolution=refused.resolution)
                place = found.places[0]
                progress.is_sent = True
                await self.client.ask(
                    place.host,
                    wire.CALL,
                    msgspec.Raw(data),
                    ttl_ms=ttl_ms,
                    message_id=call_id,
                    fences={to: place.token},
                )
                return
            except HubRefused as error:
                if error.code not in _RETRIED:
                    raise
                progress.is_sent = False
                progress.reason = error.message
            await asyncio.sleep(_AGAIN_S)

    def _answered(self, message: Message) -> None:
        with suppress(wire.NotReadable):
            for result, _ in wire.split(msgspec.json.encode(message.payload)):
                future = self._waiting.get(result.call)
                if future is not None and not future.done():
                    future.set_result(outcome.read(bytes(result.body), result.call))

    async def command(
        self,
        host: str,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout_s: float = 10.0,
    ) -> Any:
        """Ask a running host to show or do something.

        Raises:
            ValueError: The host refused; the text says why.
            TimeoutError: The host did not answer.
        """
        request_id = uuid4().hex
        future = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        body = {"id": request_id, "name": name, "arguments": arguments or {}}
        try:
            async with asyncio.timeout(timeout_s):
                await self.client.tell(host, wire.CONTROL, body)
                answer = await future
        except TimeoutError:
            text = f"the host {host} did not answer within {timeout_s:g} s; is it running?"
            raise TimeoutError(text) from None
        finally:
            del self._waiting[request_id]
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer.get("result")

    def _commanded(self, message: Message) -> None:
        body = message.payload if isinstance(message.payload, dict) else {}
        future = self._waiting.get(str(body.get("id")))
        if future is not None and not future.done():
            future.set_result(body)


class _Progress:
    """The progress of a call, for the error after a timeout."""

    def __init__(self) -> None:
        self.is_sent = False
        self.reason = ""

    def timed_out(
        self, to: str, method: str, timeout: float, call_id: str
    ) -> CallTimeout | CallUndeliverable:
        if self.is_sent:
            return CallTimeout(
                f"{to}.{method} did not answer within {timeout:g} s", call_id=call_id
            )
        return CallUndeliverable(
            f"{to} could not be reached within {timeout:g} s: {self.reason or 'no answer'}",
            call_id=call_id,
        )
