"""The hub's refusals of requests that come by HTTP, each with the status that fits."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from signalhub.wire.errors import Code, RoomCode, SignalHubError

# Why a request that was handed over has no reply.
NO_REPLY: Final = "no_reply"
RECIPIENT_LEFT: Final = "recipient_left"
_RETRY_AFTER_MS: Final = 1_000

_STATUS: Final[dict[str, int]] = {
    Code.ACTOR_RECONNECTING: 503,
    Code.DUPLICATE_HOST: 409,
    Code.INTERNAL_ERROR: 500,
    Code.INVALID_TOKEN: 401,
    Code.LIMIT_EXCEEDED: 429,
    Code.MALFORMED_MESSAGE: 400,
    Code.MESSAGE_EXPIRED: 410,
    Code.MESSAGE_TOO_LARGE: 413,
    Code.NOT_A_CONSUMER: 409,
    Code.NO_HOST: 404,
    Code.NO_MAILBOX: 404,
    Code.QUEUE_FULL: 429,
    Code.RATE_LIMITED: 429,
    Code.REGISTRY_FULL: 503,
    Code.REPLAY_CONFLICT: 409,
    Code.REPLAY_FORGOTTEN: 410,
    Code.STALE_PLACEMENT: 409,
    Code.STORAGE_FAILED: 503,
    Code.STORAGE_FULL: 503,
    Code.SUBSCRIPTION_BUSY: 409,
    Code.SUBSCRIPTION_CONFLICT: 409,
    Code.TOPIC_CONFLICT: 409,
    Code.UNAUTHORIZED: 403,
    Code.UNKNOWN_ACTOR: 404,
    Code.UNKNOWN_SESSION: 404,
    Code.UNKNOWN_SUBSCRIPTION: 404,
    Code.UNKNOWN_TOPIC: 404,
    Code.VERSION_MISMATCH: 400,
    Code.WRONG_EPOCH: 409,
}


class CallRefused(SignalHubError):
    """The hub refuses a request: its `hub:error`, and the HTTP status that fits."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        resolution: str = "",
        *,
        details: dict[str, Any] | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.resolution = resolution
        self.details = details or {}
        self.retryable = retryable

    @property
    def retry_after_ms(self) -> int | None:
        """When to try again, if that makes sense."""
        given = self.details.get("retryAfterMs")
        if isinstance(given, int):
            return given
        return _RETRY_AFTER_MS if self.retryable else None


class _Error(msgspec.Struct, gc=False):
    """The payload of `hub:error` and `hub:unknown_actor`."""

    code: str = Code.INTERNAL_ERROR
    message: str = ""
    resolution: str = ""
    details: dict[str, Any] = {}
    retryable: bool = False


_decode_error = msgspec.json.Decoder(_Error).decode


def refused(payload: Raw) -> CallRefused:
    """The refusal in a `hub:error`."""
    error = _decode_error(payload)
    status = _STATUS.get(error.code, 500)
    code = error.code
    if code == Code.INTERNAL_ERROR and not error.retryable:
        # The message does not have the form that its type requires.
        status, code = 400, RoomCode.BAD_REQUEST.value
    elif code == Code.STORAGE_FAILED and error.details.get("outcome") == "unknown":
        status, code = 500, RoomCode.OUTCOME_UNKNOWN.value
    return CallRefused(
        status,
        code,
        error.message,
        error.resolution,
        details=error.details,
        retryable=error.retryable,
    )


def too_deep() -> CallRefused:
    """The message cannot be read."""
    return CallRefused(
        400,
        RoomCode.BAD_REQUEST,
        "The message is nested too deeply, or is not JSON.",
        "Correct the message; sending it again unchanged will fail again.",
    )


def unanswered() -> CallRefused:
    """The hub takes too long."""
    return CallRefused(
        504,
        RoomCode.OUTCOME_UNKNOWN,
        "The hub has not answered in time; it is unknown whether it will do this.",
        "Send the request again with the same id.",
        retryable=True,
    )


def ended(reason: str) -> CallRefused:
    """Why requests of a session that was closed get no other answer."""
    if reason == "unauthorized":
        return CallRefused(
            401,
            Code.UNAUTHORIZED,
            "The token has expired or was revoked while the request was handled.",
            "Get a new token and send the request again with the same id.",
        )
    return CallRefused(
        503,
        RoomCode.UNAVAILABLE,
        f"The session of the request was closed ({reason}); it may have been handled.",
        "Send the request again with the same id.",
        retryable=True,
    )


def no_reply(to: str, timeout_s: float) -> CallRefused:
    """Whoever has a request is silent."""
    return CallRefused(
        504,
        NO_REPLY,
        f"{to} has not replied within {timeout_s:g} s.",
        "It is unknown what it did; try again with a longer timeout.",
        details={"actorAddress": to},
    )
