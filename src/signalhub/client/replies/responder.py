"""Sends the replies to requests, and lets handlers answer them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from signalhub.client.arrivals import REASON_CHARS_MAX, Handler
from signalhub.client.message import Failure, Message
from signalhub.client.protocol.effects import Instant
from signalhub.client.protocol.replies import Replies
from signalhub.client.requests import Ask, Tell
from signalhub.client.settle import Outlet
from signalhub.wire.errors import Code, Refused, Reject, RequestFailed

REPLY_SUFFIX = ".reply"

log = logging.getLogger("signalhub.client")


class Responder:
    """Replies to the requests that one client was given, each once."""

    def __init__(self, outlet: Outlet, replies: Replies, now: Callable[[], Instant]) -> None:
        self._outlet = outlet
        self._replies = replies
        self._now = now

    async def respond(self, message: Message, payload: Any, failure: Failure | None) -> None:
        """Send the one reply to a request."""
        if self._replies.is_answered(message):
            raise RuntimeError(f"{message.type} from {message.sender} was answered before")
        metadata: dict[str, Any] = {"inReplyTo": message.request_id}
        if failure is not None:
            text = failure.text[:REASON_CHARS_MAX]
            metadata["failure"] = {"code": failure.code, "text": text}
        came_by_mail = message.delivery is not None and message.delivery.stream is not None
        is_stored = came_by_mail and message.metadata.get("mailbox") is True
        kind = Ask if is_stored else Tell
        reply = kind(message.sender, message.type + REPLY_SUFFIX, payload)
        request = self._outlet.request(reply, sender=message.to, metadata=metadata)
        self._replies.answered(message, request)
        try:
            await self._outlet.call(request)
        except BaseException:
            self._replies.reopen(message)
            raise

    def handler(self, function: Handler) -> Handler:
        """Return a handler that replies with what a function returns, or with its error."""

        async def serve(message: Message) -> None:
            if not message.expects_reply:
                await _result(function, message)
            elif self._replies.is_waiting(message, self._now().mono_s):
                await self._answer(function, message)
            else:
                log.info("A request expired before its turn", extra={"type": message.type})

        return serve

    async def _answer(self, function: Handler, message: Message) -> None:
        result, failure = None, None
        try:
            result = await _result(function, message)
        except RequestFailed as error:
            failure = Failure(error.code, error.text)
        except Reject as error:
            failure = Failure(error.code, str(error))
        except Exception as error:
            log.exception("A handler failed", extra={"type": message.type})
            failure = Failure(text=f"{type(error).__name__}: {error}")
        if self._replies.is_answered(message):
            # The handler has done so itself.
            return
        if failure is None:
            await _send_result(message, result)
        else:
            await _send(message, failure.text, failure.code)


async def _result(function: Handler, message: Message) -> Any:
    result = function(message)
    return await result if inspect.isawaitable(result) else result


async def _send_result(message: Message, result: Any) -> None:
    try:
        await message.reply(result)
    except TypeError as error:
        log.exception("A reply is not JSON", extra={"type": message.type})
        await _send(message, str(error), "invalid_reply")
    except Refused as error:
        if error.code == Code.MESSAGE_TOO_LARGE:
            await _send(message, error.message, "invalid_reply")
        else:
            _not_taken(message, error)


async def _send(message: Message, text: str, code: str) -> None:
    try:
        await message.fail(text, code=code)
    except Refused as error:
        _not_taken(message, error)


def _not_taken(message: Message, error: Refused) -> None:
    """Whoever has asked has left, or may not be written to; the request is done nevertheless."""
    log.info("A reply was refused", extra={"type": message.type, "reason": str(error)})
