"""Why rooms and inboxes say no, one constructor per reason. No text names a room or a member."""

from __future__ import annotations

from typing import Final

from signalhub.wire.errors import RoomCode, RoomError

_RETRY_MS: Final = 1_000


def limited(wait_ms: int) -> RoomError:
    """Too many in the window."""
    return RoomError(RoomCode.RATE_LIMIT_EXCEEDED, "Rate limit exceeded", retry_after_ms=wait_ms)


def capability_missing() -> RoomError:
    """This hub wants the inbox id with everything."""
    return RoomError(
        RoomCode.BAD_REQUEST, "This hub wants the room's inbox id: send the header X-Inbox-ID."
    )


def bound_elsewhere() -> RoomError:
    """Room and inbox belong together for ever."""
    return RoomError(
        RoomCode.CONFLICT,
        "The room or the inbox is bound to another one, and stays so: send the X-Inbox-ID this room"
        " was first used with, or leave it out if it was used without one.",
    )


def not_blind() -> RoomError:
    """In blind mode there is only one id."""
    return RoomError(
        RoomCode.CONFLICT,
        "This hub is blind: the inbox id is the room id, so X-Inbox-ID must be equal or absent.",
    )


def storage() -> RoomError:
    """The log takes nothing."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "The hub cannot write to its log, so nothing was accepted. Try again with the same"
        " messageId; if this lasts, the operator has to look at /health.",
        retry_after_ms=_RETRY_MS,
    )


def broken() -> RoomError:
    """A fault of ours."""
    return RoomError(RoomCode.INTERNAL_ERROR, "The hub failed to answer. It has written down why.")


def unreadable() -> RoomError:
    """The log or the store of ids cannot be read."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "The hub cannot read its log right now. Try again.",
        retry_after_ms=_RETRY_MS,
    )


def archive_away() -> RoomError:
    """Old messages are in an archive that cannot be reached."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "The archive that holds these messages cannot be reached. Try again.",
        retry_after_ms=5 * _RETRY_MS,
    )


def over_cap() -> RoomError:
    """The archive is too far behind."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "Too many messages of this inbox wait to be archived. Try again later.",
        retry_after_ms=5 * _RETRY_MS,
    )


def too_many_rooms() -> RoomError:
    """No room for another room."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "The hub has as many rooms and inboxes as it may (rooms.limit).",
        retry_after_ms=60 * _RETRY_MS,
    )


def busy() -> RoomError:
    """Too much waits for the disk."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "Too many messages to this room wait for the disk. Try again.",
        retry_after_ms=_RETRY_MS,
    )


def state_full() -> RoomError:
    """No room for more proposals or blobs."""
    return RoomError(
        RoomCode.UNAVAILABLE,
        "There is no room for another proposal or blob (rooms.proposals_max,"
        " rooms.room_state_bytes_max, rooms.state_bytes_max). Finish proposals, or wait until they"
        " expire.",
        retry_after_ms=60 * _RETRY_MS,
    )


def changed(version: int) -> RoomError:
    """The blob is not the one the writer knew."""
    now = f'its ETag is now "{version}"' if version else "there is none"
    return RoomError(
        RoomCode.PRECONDITION_FAILED,
        f"The blob is not the one you named: {now}. Read it again and repeat your change.",
    )


def no_blob() -> RoomError:
    """Nobody wrote it yet."""
    return RoomError(RoomCode.NOT_FOUND, "There is no such blob yet: PUT makes it.")


def no_proposal() -> RoomError:
    """Unknown, or long gone."""
    return RoomError(RoomCode.NOT_FOUND, "There is no such proposal.")
