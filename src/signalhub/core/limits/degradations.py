"""Every reason for which `/health` says `degraded`: its name, what it means and what to do."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core.limits.quotas import Resource

if TYPE_CHECKING:
    from signalhub.core.limits.quotas import Quotas


class Degraded(StrEnum):
    """The names, which are stable."""

    REGISTRY_NEAR_CAPACITY = "registry_near_capacity"
    MAILBOXES_NEAR_CAPACITY = "mailboxes_near_capacity"
    TOPICS_NEAR_CAPACITY = "topics_near_capacity"
    SUBSCRIPTIONS_NEAR_CAPACITY = "subscriptions_near_capacity"
    PATTERNS_NEAR_CAPACITY = "patterns_near_capacity"
    PLAIN_SUBSCRIPTIONS_NEAR_CAPACITY = "plain_subscriptions_near_capacity"
    ROOMS_NEAR_CAPACITY = "rooms_near_capacity"
    PLACES_NEAR_CAPACITY = "places_near_capacity"
    SOCKETS_NEAR_CAPACITY = "sockets_near_capacity"
    ROOM_STATE_NEAR_CAPACITY = "room_state_near_capacity"
    ROOMS_DISK_FULL = "rooms_disk_full"
    ROOM_IDS_DROPPED = "room_ids_dropped"
    DEDUP_WINDOW_SHORTENED = "dedup_window_shortened"
    RETENTION_HELD_BY_SUBSCRIPTIONS = "retention_held_by_subscriptions"
    RETENTION_HELD_BY_MAILBOXES = "retention_held_by_mailboxes"
    RETENTION_HELD_BY_ROOMS = "retention_held_by_rooms"
    RETENTION_HELD_BY_PIPELINE = "retention_held_by_pipeline"
    LOG_ENTRIES_LOST = "log_entries_lost"
    DISK_BEHIND = "disk_behind"
    REGISTRY_NOT_WRITTEN = "registry_not_written"
    PIPELINE_DOWN = "pipeline_down"
    ARCHIVE_FAILING = "archive_failing"
    DENIAL_LIST_UNREADABLE = "denial_list_unreadable"
    KEY_SET_UNAVAILABLE = "key_set_unavailable"
    STORAGE_FULL = "storage_full"
    STORAGE_FAILED = "storage_failed"
    STORAGE_DAMAGED = "storage_damaged"


class Description(msgspec.Struct, frozen=True):
    """What a degradation means, what to do about it, and the HTTP status of `/health`."""

    meaning: str
    remedy: str
    status: int = 200


_QUOTAS = "See who uses them (`signalhub limits`), then remove some or raise `{}`."

DESCRIPTIONS: Final[dict[Degraded, Description]] = {
    Degraded.REGISTRY_NEAR_CAPACITY: Description(
        "More actors than `registry.warn_above` of the limit.",
        _QUOTAS.format("registry.limit"),
    ),
    Degraded.MAILBOXES_NEAR_CAPACITY: Description(
        "More mailboxes than `limits.warn_above` of the limit.",
        _QUOTAS.format("mailbox.count_max"),
    ),
    Degraded.TOPICS_NEAR_CAPACITY: Description(
        "More durable topics than `limits.warn_above` of the limit.",
        _QUOTAS.format("topics.limit"),
    ),
    Degraded.SUBSCRIPTIONS_NEAR_CAPACITY: Description(
        "More durable subscriptions than `limits.warn_above` of the limit.",
        _QUOTAS.format("dispatch.limit"),
    ),
    Degraded.PATTERNS_NEAR_CAPACITY: Description(
        "More subscriptions to patterns than `limits.warn_above` of the limit.",
        _QUOTAS.format("limits.patterns_max"),
    ),
    Degraded.PLAIN_SUBSCRIPTIONS_NEAR_CAPACITY: Description(
        "More subscriptions that are not durable than `limits.warn_above` of the limit.",
        _QUOTAS.format("limits.plain_subscriptions_max"),
    ),
    Degraded.ROOMS_NEAR_CAPACITY: Description(
        "More rooms and inboxes than `limits.warn_above` of the limit.",
        _QUOTAS.format("rooms.limit"),
    ),
    Degraded.PLACES_NEAR_CAPACITY: Description(
        "More places of durable actors than `limits.warn_above` of the limit.",
        _QUOTAS.format("actors.limit"),
    ),
    Degraded.SOCKETS_NEAR_CAPACITY: Description(
        "More open sockets than `limits.warn_above` of the limit.",
        "See where they come from (`signalhub limits`), then close some or raise"
        " `limits.sockets_max`, and the limit of open files with it.",
    ),
    Degraded.ROOM_STATE_NEAR_CAPACITY: Description(
        "Proposals and blobs of rooms use more than `limits.warn_above` of their memory.",
        "Finish proposals, or raise `rooms.state_bytes_max`.",
    ),
    Degraded.ROOMS_DISK_FULL: Description(
        "Messages and blobs of rooms use their share of the disk: further ones are refused.",
        "Start the pipeline, which archives them, or raise `rooms.disk_bytes_max`.",
    ),
    Degraded.ROOM_IDS_DROPPED: Description(
        "Ids of room messages could not be saved, and old ones were forgotten.",
        "Make `state.db` writable; repeats may be stored twice until then.",
    ),
    Degraded.DEDUP_WINDOW_SHORTENED: Description(
        "Repeats are detected for less than `dedup.window_s`.",
        "Raise `dedup.memory_bytes_max`, or lower the rate of asks.",
    ),
    Degraded.RETENTION_HELD_BY_SUBSCRIPTIONS: Description(
        "The log is larger or older than it may be: subscriptions have not settled their messages.",
        "Start a consumer, or delete or limit what `details` names (`signalhub sub set`).",
    ),
    Degraded.RETENTION_HELD_BY_MAILBOXES: Description(
        "The same, because of messages for actors that are away.",
        "Start the actors that `details` names, or erase them.",
    ),
    Degraded.RETENTION_HELD_BY_ROOMS: Description(
        "The log is larger than `log.retention_bytes`, because of messages of rooms.",
        "Start the pipeline, which archives them, or lower `rooms.retention_s`.",
    ),
    Degraded.RETENTION_HELD_BY_PIPELINE: Description(
        "The log is larger or older than it may be: the pipeline has not landed it.",
        "See `signalhub pipeline status`.",
    ),
    Degraded.LOG_ENTRIES_LOST: Description(
        "Entries that had been visible are lost; `details` says which. Positions have a new epoch.",
        "Check the disk, then `signalhub log acknowledge`.",
    ),
    Degraded.DISK_BEHIND: Description(
        "The disk is slow: over half of `log.waiting_bytes_max` waits for it, and clients that add"
        " to it may not be read.",
        "Find out why the disk is slow, or lower the rate of durable messages.",
    ),
    Degraded.REGISTRY_NOT_WRITTEN: Description(
        "The durable registry could not be written.",
        "Make `state.db` writable: check its disk and its permissions.",
    ),
    Degraded.PIPELINE_DOWN: Description(
        "The pipeline failed or is stuck for a minute, or did not start in five.",
        "See `signalhub pipeline status` and its log.",
    ),
    Degraded.ARCHIVE_FAILING: Description(
        "Archiving messages of rooms failed six times in a row.",
        "See `signalhub pipeline status` and its log.",
    ),
    Degraded.DENIAL_LIST_UNREADABLE: Description(
        "The denial list is broken or gone; what was read of it before still holds.",
        "Correct or restore the file (`auth.denied_file`); it is read again by itself.",
    ),
    Degraded.KEY_SET_UNAVAILABLE: Description(
        "The key set of the issuer is broken, or could not be fetched; known keys still hold.",
        "Correct the file, or check the URL and its certificate.",
    ),
    Degraded.STORAGE_FULL: Description(
        "The disk is full: durable messages are refused until there is space.",
        "Free space; the hub continues by itself.",
    ),
    Degraded.STORAGE_FAILED: Description(
        "The disk failed: nothing durable is accepted.",
        "Check the disk and restart the hub, which checks the log.",
        503,
    ),
    Degraded.STORAGE_DAMAGED: Description(
        "The log is damaged and read-only.",
        "`signalhub log verify` says where; restore the segment and restart.",
        503,
    ),
}

_NEAR: Final = {
    Resource.MAILBOXES: Degraded.MAILBOXES_NEAR_CAPACITY,
    Resource.TOPICS: Degraded.TOPICS_NEAR_CAPACITY,
    Resource.SUBSCRIPTIONS: Degraded.SUBSCRIPTIONS_NEAR_CAPACITY,
    Resource.PATTERNS: Degraded.PATTERNS_NEAR_CAPACITY,
    Resource.PLAIN_SUBSCRIPTIONS: Degraded.PLAIN_SUBSCRIPTIONS_NEAR_CAPACITY,
    Resource.ROOMS: Degraded.ROOMS_NEAR_CAPACITY,
    Resource.PLACES: Degraded.PLACES_NEAR_CAPACITY,
}


def near_capacity(quotas: Quotas, warn_above: float) -> list[Degraded]:
    """The totals that are nearly used up."""
    return [
        name
        for resource, name in _NEAR.items()
        if quotas.total(resource) > warn_above * quotas.limits[resource].total
    ]
