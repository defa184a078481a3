"""Every error code, when it occurs and what to do: for commands and the documentation."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class ErrorSource(StrEnum):
    """Who reports a code."""

    HUB = "hub"
    ROOM = "room"
    HTTP = "http"
    CLIENT = "client"
    END = "end"
    COMMAND = "command"


class ErrorEntry(NamedTuple):
    """What a code means; `is_retryable` is `None` where repeating is no question."""

    code: str
    source: ErrorSource
    when: str
    advice: str
    is_retryable: bool | None = None


SECTIONS: Final = {
    ErrorSource.HUB: ("The hub", "In `hub:error`, and in `code` of `Refused` of the clients."),
    ErrorSource.ROOM: ("Rooms and inboxes", "In `errorCode` of HTTP answers and error frames."),
    ErrorSource.HTTP: (
        "Messages over HTTP",
        "In `errorCode` of `/api/hub/v1`, beside the codes of the hub, those of rooms, `no_reply` "
        "and `recipient_left`.",
    ),
    ErrorSource.CLIENT: ("Clients", "In `code` of what a client raises without the hub."),
    ErrorSource.END: (
        "Ends",
        "Why the hub has ended a connection (`hub:disconnect`, or the reason of the close frame) "
        "or a durable subscription (`hub:unsubscribed`).",
    ),
    ErrorSource.COMMAND: ("Commands", "In `error` of `signalhub … --json`; exit codes are stable."),
}

_HUB, _ROOM, _HTTP, _CLIENT, _END, _COMMAND = ErrorSource


def _rows(source: ErrorSource, *rows: tuple[str, bool | None, str, str]) -> tuple[ErrorEntry, ...]:
    return tuple(
        ErrorEntry(code, source, when, advice, is_retryable)
        for code, is_retryable, when, advice in rows
    )


ERRORS: Final[tuple[ErrorEntry, ...]] = (
    *_rows(
        _HUB,
        (
            *("actor_reconnecting", True, "The actor was registered before the hub restarted."),
            "Repeat it with the same id in a few seconds.",
        ),
        (
            *("duplicate_host", True, "Another instance of the host of actors is connected."),
            "Stop one of them; if the other is gone, wait until its lease has ended.",
        ),
        ("internal_error", False, "The message is invalid.", "Correct what the text names."),
        (
            *("internal_error", True, "The hub failed on the message."),
            "Repeat it with the same id, see the hub's log, and report it if it persists.",
        ),
        (
            *("invalid_token", False, "The token to be exchanged is invalid."),
            "Get a new token and reconnect.",
        ),
        (
            *("limit_exceeded", False, "Too many subscriptions, topics, mailboxes or places."),
            "Delete what is not needed; `signalhub limits` shows operators who uses what.",
        ),
        (
            *("limit_exceeded", True, "Too many sessions, registrations or searches at once."),
            "End some, or wait.",
        ),
        (
            *("malformed_message", False, "The frame is not JSON; the hub closes the socket."),
            "Fix the client.",
        ),
        (
            *("message_expired", False, "An ask or a request outlived its `ttl` before delivery."),
            "Send a new one with a longer `ttl`, and check the clock of the sender.",
        ),
        (
            *("message_too_large", False, "The message exceeds `message_bytes_max`."),
            "Split it, send a reference to the data, or raise the setting.",
        ),
        (
            *("no_host", True, "No connected host serves this kind of durable actor."),
            "Start one with `signalhub actors run`, and repeat it.",
        ),
        (
            *("no_mailbox", False, "A replay goes to an actor that is not durable."),
            "Let the actor register with `durable: true`.",
        ),
        (
            *("not_a_consumer", False, "The session does not consume what it wants to settle."),
            "Subscribe first; after a reconnect use the new subscription id.",
        ),
        (
            *("queue_full", True, "Too much waits for the recipient, or in its mailbox."),
            "Wait until it reads, and repeat it with the same id.",
        ),
        (
            *("rate_limited", True, "The session exceeds `message_rate`."),
            "Wait as long as `retryAfterMs` says, and repeat it with the same id.",
        ),
        (
            *("registry_full", True, "The registry has no room for a new address."),
            "Try again later with growing pauses, or raise `registry.limit`.",
        ),
        (
            *("replay_conflict", False, "The replay job is known with another bound or query."),
            "Use the same one, or give the job another name.",
        ),
        (
            *("replay_forgotten", False, "The progress of the replay job is no longer known."),
            "Find out what arrived, and start another job.",
        ),
        (
            *("stale_placement", False, "A durable actor has moved, or has no place."),
            "Find out where it lives, and send a new message.",
        ),
        (
            *("storage_failed", False, "The log has failed or is damaged; it may be stored."),
            "Let the operator repair it and restart the hub, then repeat it with the same id.",
        ),
        (
            *("storage_full", True, "The disk of the hub is full or too slow; nothing was stored."),
            "Make room, and repeat it with the same id.",
        ),
        (
            *("subscription_busy", True, "Another session consumes exclusively."),
            "Stop it, take over under its consumer name, or use the mode `failover`.",
        ),
        (
            *("subscription_conflict", False, "The subscription exists with another mode."),
            "Join with that mode, or choose another name.",
        ),
        (
            *("topic_conflict", False, "The topic exists with another definition."),
            "Use it, or change it with `signalhub topic set`.",
        ),
        (
            *("unauthorized", False, "The token is missing, invalid or does not permit it."),
            "Use a token that does; never repeat it unchanged.",
        ),
        (
            *("unknown_actor", False, "Nobody is registered under the address."),
            "Check it with `signalhub discover`, or wait until the actor registers.",
        ),
        (
            *("unknown_actor", True, "The actor left while it was written to, and may have it."),
            "Repeat it with the same id after a pause.",
        ),
        (
            *("unknown_session", False, "No open session has this id."),
            "List them with `signalhub session ls`.",
        ),
        (
            *("unknown_subscription", False, "The topic has no subscription of this name."),
            "List them with `signalhub sub ls`; subscribing creates it.",
        ),
        (
            *("unknown_topic", False, "There is no durable topic of this name."),
            "Create it with `signalhub topic create`, or publish with `durable: true`.",
        ),
        (
            *("version_mismatch", False, "The hub speaks another version of the protocol."),
            "Use a client of a version in `supportedVersions`; do not reconnect.",
        ),
        (
            *("wrong_epoch", False, "The position belongs to another incarnation of the stream."),
            "Forget stored positions of the stream, and start over.",
        ),
    ),
    *_rows(
        _ROOM,
        ("BAD_ENVELOPE", False, "The body is invalid.", "Correct what the text names."),
        ("BAD_FRAME", False, "A frame of a socket is invalid.", "Correct what the text names."),
        ("BAD_REQUEST", False, "A header or the query is invalid.", "Correct what the text names."),
        (
            *("CONFLICT", False, "Room or inbox is bound to another, or the id is in use."),
            "Use the inbox of the room; give another message another `messageId`.",
        ),
        ("FORBIDDEN", False, "The token does not cover the room.", "Use another token."),
        ("INTERNAL_ERROR", True, "The hub failed on it.", "See the hub's log, and report it."),
        ("METHOD_NOT_ALLOWED", False, "The path has other methods.", "See the header `Allow`."),
        ("NOT_FOUND", False, "There is no such blob or proposal.", "Check its name."),
        (
            *("PRECONDITION_FAILED", False, "The blob has changed since it was read."),
            "Read it, apply the change again, and write it with the new version.",
        ),
        (
            *("RATE_LIMIT_EXCEEDED", True, "The limit of the room or inbox is exceeded."),
            "Wait as long as `retryAfterMs` says.",
        ),
        ("TOO_LARGE", False, "Ciphertext or blob is too large.", "Send less."),
        (
            *("UNAUTHORIZED", False, "There is no token and no capability, or the token ended."),
            "Send a valid token, or the id of the inbox.",
        ),
        (
            *("UNAVAILABLE", True, "The hub accepts nothing now; nothing was stored."),
            "Try again with the same `messageId`.",
        ),
        (
            *("UNSUPPORTED_MEDIA_TYPE", False, "The body is not declared as JSON."),
            "Send `Content-Type: application/json`.",
        ),
        ("UPGRADE_REQUIRED", False, "The path is for WebSockets.", "Open a WebSocket there."),
        (
            *("outcome_unknown", False, "The log failed during the request; it may be stored."),
            "After the restart of the hub, send it again with the same `messageId`.",
        ),
        (
            *("storage_failed", False, "What was asked for could lie behind damage of the log."),
            "Ask again after the operator has repaired the log.",
        ),
    ),
    *_rows(
        _HTTP,
        (
            *("request_failed", None, "The actor that was asked replied with a failure."),
            "Its own code is in `details`; see its log.",
        ),
    ),
    *_rows(
        _CLIENT,
        (
            *("failed", None, "A handler of the other side failed on a request."),
            "See the log of the other side; handlers choose better codes with `RequestFailed`.",
        ),
        (
            *("gave_up", None, "The client has stopped reconnecting; its text says why."),
            "Remove the cause, and connect again.",
        ),
        (
            *("invalid_reply", None, "A handler returned what is no JSON, or too large."),
            "Correct the handler of the other side.",
        ),
        (
            *("no_reply", None, "A request was handed over, and no reply came in time."),
            "Check whether it was done; then repeat it with a longer time.",
        ),
        (
            *("outcome_unknown", None, "It was sent, and no answer arrived: it may have happened."),
            "Repeat it with the same message id, or check first.",
        ),
        (
            *("recipient_left", None, "The recipient of a request left before it replied."),
            "Check whether it was done; repeat it when the recipient is back.",
        ),
        (
            *("rejected", None, "A handler says that the message can never be processed."),
            "Correct the message; see the dead letters of the topic.",
        ),
        (
            *("request_failed", None, "Over HTTP: the recipient of a request replied a failure."),
            "Its own code is in `details.code`, and the text is what it said.",
        ),
        (
            *("stale_delivery", None, "The hub no longer waits for this copy of a message."),
            "Stop processing it: it was settled, or another consumer has it.",
        ),
        (
            *(
                "unavailable",
                True,
                "The hub cannot be reached, or serves nothing: nothing was done.",
            ),
            "Start the hub or check its URL, and repeat it.",
        ),
    ),
    *_rows(
        _END,
        (
            *("closed_by_operator", None, "An operator closed the session."),
            "Reconnect on schedule.",
        ),
        ("deleted", None, "The subscription was deleted.", "Stop; joining creates it again."),
        (
            *("duplicate_connection", None, "Another session has registered the address."),
            "Do not reconnect; stop one of the two, or give it another address.",
        ),
        (
            *("refused", None, "The log could not store the new subscription."),
            "Join again later.",
        ),
        ("server_shutdown", None, "The hub stops as planned.", "Reconnect on schedule."),
        (
            *("taken_over", None, "Another session has joined under the same consumer name."),
            "Do not rejoin automatically; give every consumer a name of its own.",
        ),
        ("topic_deleted", None, "The topic was deleted.", "Stop."),
    ),
    *_rows(
        _COMMAND,
        ("backup_damaged", None, "A file of the backup is missing or changed.", "Use another."),
        ("backup_failed", None, "The backup could not be completed.", "Correct what it names."),
        (
            *("call_timeout", None, "The durable actor did not answer in time."),
            "The call may still run: see `signalhub actors calls`, or wait with --timeout.",
        ),
        ("cannot_start", None, "The hub cannot start.", "Correct what the text names."),
        (
            *("certificate_unknown", None, "The erasure has no such certificate."),
            "Check the name of the folder.",
        ),
        (
            *("checkpoint_ahead", None, "The checkpoint has read more than the lake holds."),
            "Restore the lake, or delete the checkpoint; see the guide to the lake.",
        ),
        ("data_unusable", None, "The data folder cannot be used.", "Correct what the text names."),
        (
            *("dead_letters_stay", None, "Some dead letters could not be redriven."),
            "See them with `signalhub dlq ls`.",
        ),
        (
            *("entries_missing", None, "The lake lacks entries that the log no longer has."),
            "Restore the log or the lake from a backup.",
        ),
        (
            *("extra_missing", None, "Packages of the extra `pipeline` are missing."),
            "Install `signalhub[pipeline]`.",
        ),
        ("file_exists", None, "The file exists and is not overwritten.", "Choose another name."),
        ("host_away", None, "The host of durable actors is not connected.", "Start it."),
        ("host_failed", None, "The host of durable actors has stopped.", "See its log."),
        ("host_refused", None, "The host refused the command.", "Correct what the text names."),
        ("hub_running", None, "The hub is running and must not be.", "Stop it first."),
        ("lake_empty", None, "The lake has no messages yet.", "Run the pipeline first."),
        ("lake_unreachable", None, "The lake cannot be reached.", "Check its location and rights."),
        (
            *("log_behind_lake", None, "The log is older than the lake."),
            "Restore the log that belongs to the lake.",
        ),
        (
            *("log_changed", None, "The log changed while it was copied."),
            "Repeat the command.",
        ),
        (
            "log_end_unknown",
            None,
            "The end of the log cannot be read.",
            "Run `signalhub log verify`.",
        ),
        (
            *("log_entries_lost", None, "The log has lost entries that were visible."),
            "See `signalhub log verify`, and acknowledge it with `signalhub log acknowledge`.",
        ),
        ("malformed_token", None, "The text is no token.", "Copy the whole token."),
        ("no_example", None, "The example of the demo is missing.", "Install signalhub again."),
        ("no_pipeline", None, "No pipeline is running.", "Start it with `signalhub pipeline up`."),
        (
            "no_such_host",
            None,
            "The address to listen on is not one of this machine.",
            "Use another.",
        ),
        (
            "not_confirmed",
            None,
            "The question was not answered with y.",
            "Repeat it; --yes skips it.",
        ),
        ("not_placed", None, "The durable actor lives nowhere.", "Call it, which places it."),
        ("not_redriven", None, "The dead letter could not be redriven.", "Correct what it names."),
        ("nothing_arrived", None, "Nothing of the load arrived.", "See the hub's /health and log."),
        ("nothing_found", None, "There was nothing to erase.", "Check the name."),
        ("nothing_to_replay", None, "The query finds no messages.", "Check the query."),
        (
            *("partial", None, "A part of the inbox cannot be read now."),
            "Repeat it from the position that is named.",
        ),
        ("payload", None, "A value cannot be stored as JSON.", "Use plain values."),
        (
            *("pipeline_behind", None, "The lake does not have everything yet."),
            "Wait for the pipeline, or run `signalhub pipeline once`.",
        ),
        ("pipeline_failed", None, "The pipeline has failed.", "See its log, and start it again."),
        ("pipeline_running", None, "Another pipeline is running.", "Wait for it, or stop it."),
        ("port_denied", None, "The port may not be used.", "Use one above 1023."),
        ("port_in_use", None, "Another program listens on the port.", "Stop it, or use another."),
        ("query_failed", None, "The query failed.", "Correct what the text names."),
        ("query_refused", None, "The query does more than read.", "Use SELECT."),
        ("query_wrong", None, "The query is invalid.", "Correct what the text names."),
        ("settings", None, "The settings are invalid.", "See `signalhub settings show`."),
        ("storage_damaged", None, "The log is damaged.", "See `signalhub log verify`."),
        ("storage_gone", None, "The log is gone.", "Restore a backup, or acknowledge the loss."),
        ("tables_busy", None, "Another command rewrites the tables.", "Wait for it."),
        (
            *("too_few_messages", None, "Fewer messages arrived in time than --count."),
            "Wait longer with --for.",
        ),
        ("too_long", None, "The command of `answer` wrote too much.", "Let it print less."),
        ("too_slow", None, "The command of `answer` took too long.", "Raise --limit."),
        ("unknown_call", None, "The host knows no such call.", "See `signalhub actors calls`."),
        (
            "unknown_context",
            None,
            "There is no context of this name.",
            "See `signalhub context ls`.",
        ),
        ("unknown_dead_letter", None, "There is no such dead letter.", "List them first."),
        ("unknown_error", None, "No error has this code.", "See the codes that are named."),
        ("unknown_host", None, "No such host of durable actors is known.", "See `actors ls`."),
        ("unknown_target", None, "The target of a replay does not exist.", "Create it first."),
        ("unreadable", None, "An answer could not be read.", "Use the same version on both sides."),
        ("usage", None, "The command line is invalid.", "See --help of the command."),
    ),
)

_INTRODUCTION: Final = """\
# Errors

`signalhub error CODE` prints what is said here about a code. This page is generated by
`signalhub error --reference`.

Repeating a refused message with the same id is safe. *Repeat* says whether that can help without
changing it.
"""


def errors_of(code: str) -> list[ErrorEntry]:
    """All meanings of a code."""
    return [one for one in ERRORS if one.code == code]


def page() -> str:
    """Return the reference of all errors as a Markdown page."""
    parts = [_INTRODUCTION]
    repeats = {True: "yes", False: "no", None: ""}
    for source, (title, introduction) in SECTIONS.items():
        rows = [one for one in ERRORS if one.source is source]
        has_repeats = any(one.is_retryable is not None for one in rows)
        parts.append(f"\n## {title}\n\n{introduction}\n\n")
        parts.append(
            "| Code | Repeat | When | What to do |\n|---|---|---|---|\n"
            if has_repeats
            else "| Code | When | What to do |\n|---|---|---|\n"
        )
        for one in rows:
            repeat = f"{repeats[one.is_retryable]} | " if has_repeats else ""
            parts.append(f"| `{one.code}` | {repeat}{one.when} | {one.advice} |\n")
    return "".join(parts)
