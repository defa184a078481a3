"""Errors of rooms and inboxes, one function each. No text contains the name of a room or member."""

from __future__ import annotations

from typing import Final

from signalhub.wire.errors import Refusal, RoomCode, RoomError

_RETRY_MS: Final = 1_000


def limited(wait_ms: int) -> RoomError:
    """Too many messages or requests in the rate window."""
    return RoomError(RoomCode.RATE_LIMIT_EXCEEDED, "Rate limit exceeded", retry_after_ms=wait_ms)


def unauthorized() -> RoomError:
    """The request has neither a token nor the capability of the room."""
    return RoomError(
        RoomCode.UNAUTHORIZED,
        "This hub requires a token (Authorization: Bearer …, or the subprotocol token.…) or the"
        " inbox id of an existing room (X-Inbox-ID). An id that follows from the room's name does"
        " not count.",
    )


def bad_token(reason: str) -> RoomError:
    """The token is invalid, or no longer accepted."""
    return RoomError(RoomCode.UNAUTHORIZED, f"{reason} Get a new token and try again.")


def forbidden() -> RoomError:
    """The token does not cover the room."""
    return RoomError(
        RoomCode.FORBIDDEN,
        "The token does not permit this room: use one whose permission rooms covers its name, or"
        " send the room's inbox id (X-Inbox-ID).",
    )


def capability_missing() -> RoomError:
    """This hub requires the inbox id in every request."""
    return RoomError(
        RoomCode.BAD_REQUEST,
        "This hub requires the room's inbox id: send the header X-Inbox-ID. An id that follows"
        " from the room's name does not count.",
    )


def owned_by_name() -> RoomError:
    """The inbox id is the default of another room."""
    return RoomError(
        RoomCode.CONFLICT,
        "This inbox id follows from the name of another room and belongs to it: use a random id.",
    )


def bound_elsewhere() -> RoomError:
    """A binding is permanent."""
    return RoomError(
        RoomCode.CONFLICT,
        "The room or the inbox is bound to another one permanently: send the X-Inbox-ID this room"
        " was first used with, or omit it if the room was first used without one.",
    )


def reused_id() -> RoomError:
    """The message id belongs to another message."""
    return RoomError(
        RoomCode.CONFLICT,
        "This messageId was used for a message with another ciphertext or pseudonym. Repeat a"
        " message unchanged, or send it with a new messageId.",
    )


def not_blind() -> RoomError:
    """In blind mode room and inbox share one id."""
    return RoomError(
        RoomCode.CONFLICT,
        "This hub is blind: the inbox id is the room id, so X-Inbox-ID must be equal or absent.",
    )


def not_stored(refusal: Refusal) -> RoomError:
    """The log refused an entry, or failed while the entry was being written."""
    return outcome_unknown() if refusal.is_unknown else storage()


def outcome_unknown() -> RoomError:
    """The log failed while the entry was being written."""
    return RoomError(
        RoomCode.OUTCOME_UNKNOWN,
        "The hub's log failed during the request, so its outcome is unknown. Once the hub was"
        " restarted, send a message again with the same messageId; before writing a blob again,"
        " read it.",
    )


def storage() -> RoomError:
    """The log cannot be written to."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "The hub cannot write to its log, so nothing was accepted. Try again with the same"
        " messageId; if the error persists, the operator should check /health.",
        retry_after_ms=_RETRY_MS,
    )


def damaged() -> RoomError:
    """The answer could lie behind damage of the log."""
    return RoomError(
        RoomCode.STORAGE_FAILED,
        "The hub's log is damaged, so the hub does not know all that is stored. The operator has to"
        " restore a segment (/health names it) and restart the hub; then try again.",
        retry_after_ms=10 * _RETRY_MS,
    )


def broken() -> RoomError:
    """A bug in the hub."""
    return RoomError(RoomCode.INTERNAL_ERROR, "Internal error; see the hub's log.")


def unreadable() -> RoomError:
    """The log or the store of ids cannot be read."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "The hub cannot read its log right now. Try again.",
        retry_after_ms=_RETRY_MS,
    )


def archive_unreachable() -> RoomError:
    """The archive that holds old messages is unreachable."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "The archive that holds these messages cannot be reached. Try again.",
        retry_after_ms=5 * _RETRY_MS,
    )


def over_cap() -> RoomError:
    """Archiving is too far behind."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "Too many messages of this inbox wait to be archived. Try again later.",
        retry_after_ms=5 * _RETRY_MS,
    )


def disk_full() -> RoomError:
    """Rooms hold as much of the log as they may."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "The messages and blobs of all rooms take as much disk as they may (rooms.disk_bytes_max),"
        " so nothing was accepted. Wait until older ones expire or are archived; the operator can"
        " raise the limit.",
        retry_after_ms=60 * _RETRY_MS,
    )


def disk_behind() -> RoomError:
    """As much waits for the disk as may."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "Too much waits for the disk of the hub (log.waiting_bytes_max), so nothing was accepted."
        " Try again with the same messageId.",
        retry_after_ms=_RETRY_MS,
    )


def too_many_rooms() -> RoomError:
    """The limit of rooms and inboxes is reached."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "The hub has reached its limit of rooms and inboxes (rooms.limit).",
        retry_after_ms=60 * _RETRY_MS,
    )


def quota(resource: str, scope: str, limit: int, used: int, setting: str) -> RoomError:
    """One identity, or one source address, has made as many rooms and inboxes as it may."""
    return RoomError(
        RoomCode.FORBIDDEN,
        f"Your {scope} has made {used} {resource} and inboxes; the limit is {limit} ({setting}).",
    )


def busy() -> RoomError:
    """Too many messages wait for a look-up on disk."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "Too many messages to this room wait for the disk. Try again.",
        retry_after_ms=_RETRY_MS,
    )


def state_full() -> RoomError:
    """The limit of proposals and blobs is reached."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "There is no space for another proposal or blob (rooms.proposals_max,"
        " rooms.room_state_bytes_max, rooms.state_bytes_max). Finish proposals, or wait until they"
        " expire.",
        retry_after_ms=60 * _RETRY_MS,
    )


def changed(version: int) -> RoomError:
    """The blob has another version than the writer expects."""
    now = f'its ETag is now "{version}"' if version else "it does not exist"
    return RoomError(
        RoomCode.PRECONDITION_FAILED,
        f"The blob does not have the required version: {now}. Read it again and repeat your"
        " change.",
    )


def no_blob() -> RoomError:
    """The blob has not been written yet."""
    return RoomError(RoomCode.NOT_FOUND, "There is no such blob yet: create it with PUT.")


def no_proposal() -> RoomError:
    """The proposal is unknown, or was deleted after its retention."""
    return RoomError(RoomCode.NOT_FOUND, "There is no such proposal.")
