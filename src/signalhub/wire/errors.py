"""The errors of the package.

SignalHubError                 base of all; carries `code`
├── Refusal                    the hub refuses one message (becomes `hub:error` on the wire)
├── RoomError                  a room or inbox refuses (becomes an HTTP status or an error frame)
├── SettingsError              the configuration is invalid
├── Reject                     a handler says that a message can never be processed
└── ClientError                what the Python client raises
    ├── Refused                did not happen; the hub answered with an error
    │   ├── UnknownActor       nobody is registered under that address
    │   └── StaleDelivery      the hub no longer waits for this copy of a message
    ├── Unavailable            did not happen; trying again later may help
    │   └── GaveUp             the client stopped trying to reconnect
    ├── OutcomeUnknown         may have happened: no answer in time, or the hub's log failed
    │   └── NoReply            a request was handed over, and its recipient did not reply
    ├── RequestFailed          the recipient of a request replied with a failure
    └── Unsubscribed           the hub ended a durable subscription of this client
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """The stable codes of `hub:error`."""

    ACTOR_RECONNECTING = "actor_reconnecting"
    DUPLICATE_HOST = "duplicate_host"
    INTERNAL_ERROR = "internal_error"
    INVALID_TOKEN = "invalid_token"  # noqa: S105
    LIMIT_EXCEEDED = "limit_exceeded"
    MALFORMED_MESSAGE = "malformed_message"
    MESSAGE_EXPIRED = "message_expired"
    MESSAGE_TOO_LARGE = "message_too_large"
    NOT_A_CONSUMER = "not_a_consumer"
    NO_HOST = "no_host"
    NO_MAILBOX = "no_mailbox"
    QUEUE_FULL = "queue_full"
    RATE_LIMITED = "rate_limited"
    REGISTRY_FULL = "registry_full"
    REPLAY_CONFLICT = "replay_conflict"
    REPLAY_FORGOTTEN = "replay_forgotten"
    STALE_PLACEMENT = "stale_placement"
    STORAGE_FAILED = "storage_failed"
    STORAGE_FULL = "storage_full"
    SUBSCRIPTION_BUSY = "subscription_busy"
    SUBSCRIPTION_CONFLICT = "subscription_conflict"
    TOPIC_CONFLICT = "topic_conflict"
    UNAUTHORIZED = "unauthorized"
    UNKNOWN_ACTOR = "unknown_actor"
    UNKNOWN_SESSION = "unknown_session"
    UNKNOWN_SUBSCRIPTION = "unknown_subscription"
    UNKNOWN_TOPIC = "unknown_topic"
    VERSION_MISMATCH = "version_mismatch"
    WRONG_EPOCH = "wrong_epoch"


class SignalHubError(Exception):
    """Base of every error this package raises on purpose."""

    code: str = Code.INTERNAL_ERROR


class Refusal(SignalHubError):
    """One message is refused; the session continues."""

    def __init__(
        self,
        code: str,
        message: str,
        resolution: str,
        *,
        retryable: bool = False,
        is_unknown: bool = False,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.resolution = resolution
        self.retryable = retryable
        self.is_unknown = is_unknown  # It may have happened nevertheless.
        self.details = details or {}


class RoomCode(StrEnum):
    """The stable codes of rooms and inboxes, `errorCode` in HTTP answers and error frames."""

    BAD_ENVELOPE = "BAD_ENVELOPE"
    BAD_FRAME = "BAD_FRAME"
    BAD_REQUEST = "BAD_REQUEST"
    CONFLICT = "CONFLICT"
    FORBIDDEN = "FORBIDDEN"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    NOT_FOUND = "NOT_FOUND"
    OUTCOME_UNKNOWN = "outcome_unknown"
    PRECONDITION_FAILED = "PRECONDITION_FAILED"
    RATE_LIMIT_EXCEEDED = "RATE_LIMIT_EXCEEDED"
    STORAGE_FAILED = "storage_failed"
    TOO_LARGE = "TOO_LARGE"
    UNAUTHORIZED = "UNAUTHORIZED"
    UNAVAILABLE = "UNAVAILABLE"
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE"
    UPGRADE_REQUIRED = "UPGRADE_REQUIRED"


class RoomError(SignalHubError):
    """A room or inbox refuses. The text never names a room, an inbox or a member."""

    def __init__(self, code: RoomCode, text: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.retry_after_ms = retry_after_ms


class SettingsError(SignalHubError):
    """The configuration is invalid; the text names the key and what to do."""

    code = "settings"


class Reject(SignalHubError):
    """Raised by a handler: the message can never be processed and must not be redelivered."""

    code = "rejected"


class ClientError(SignalHubError):
    """Base of what the Python client raises."""


class Refused(ClientError):
    """The hub answered with an error: the request did not happen."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        resolution: str = "",
        retryable: bool = False,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.resolution = resolution
        self.retryable = retryable
        self.details = details or {}


class UnknownActor(Refused):
    """Nobody is registered under the address."""


class StaleDelivery(Refused):
    """The hub no longer waits for this copy: the settlement or extension was not accepted.

    The message was settled before, is with another consumer, or will be delivered again. This
    consumer does not hand out again what its program has acknowledged or terminated; the copy gets
    the same verdict when it arrives. `details` holds `seq`, `attempt` and the hub's `floor`:
    everything up to it is settled.
    """

    def __init__(self, what: str, *, details: dict[str, Any]) -> None:
        super().__init__(
            "stale_delivery",
            f"{what} was not accepted: the hub no longer waits for this copy",
            resolution="Stop processing it: the message was settled before, is with another "
            "consumer, or will be delivered again.",
            details=details,
        )


class Unavailable(ClientError):
    """The hub cannot be reached, or cannot serve the request now: it did not happen."""

    code = "unavailable"
    is_answered = False  # The hub itself said so.


class GaveUp(Unavailable):
    """The client has stopped trying to reconnect; the text says why."""

    code = "gave_up"


class OutcomeUnknown(ClientError):
    """The request may or may not have happened: no answer arrived, or the hub's log failed.

    `resolution` is the hub's advice, if it gave any.
    """

    code = "outcome_unknown"

    def __init__(self, text: str = "", *, resolution: str = "") -> None:
        super().__init__(text)
        self.resolution = resolution


class NoReply(OutcomeUnknown):
    """A request was handed over, and no reply arrived: in time, or before its recipient left.

    `code` is `no_reply` or `recipient_left`.
    """

    def __init__(self, text: str, *, code: str = "no_reply") -> None:
        super().__init__(text, resolution="Check whether it was done before you repeat it.")
        self.code = code


class RequestFailed(ClientError):
    """The recipient of a request has failed; `code` and `text` are its own.

    A handler that answers requests may raise it to choose both.
    """

    def __init__(self, text: str, *, code: str = "failed") -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class Unsubscribed(ClientError):
    """The hub ended a durable subscription of this client; `code` is its reason."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def unworded(error: BaseException) -> Exception:
    """An error logged without its message, which may quote what a client sent."""
    return RuntimeError(type(error).__name__).with_traceback(error.__traceback__)
