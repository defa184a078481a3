"""Every metric the hub exports, declared once: its name, its kind, what it means and shows.

Labels have closed sets of values, with one exception: topics and subscriptions, which operators
name, up to a number they set. No actor or address ever becomes one.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

NAMESPACE: Final = "signal_hub"
OTHER: Final = "other"
LOG_STATES: Final = ("open", "full", "failed", "damaged")
SUBSCRIPTION_LABELS: Final = ("topic", "subscription", "mode")

Kind = Literal["counter", "gauge", "histogram"]


class Declaration(msgspec.Struct, frozen=True):
    """One exported metric."""

    name: str
    kind: Kind
    source: str  # A path from `Tally`, a method of `Gauges` for a gauge, or part of a `Reading`.
    help: str
    labels: tuple[str, ...] = ()
    divisor: int = 1


def _gauge(
    name: str, source: str, text: str, divisor: int = 1, labels: tuple[str, ...] = ()
) -> Declaration:
    return Declaration(f"{NAMESPACE}_{name}", "gauge", source, text, labels, divisor)


def _counter(name: str, source: str, text: str, labels: tuple[str, ...] = ()) -> Declaration:
    return Declaration(f"{NAMESPACE}_{name}_total", "counter", source, text, labels)


def _histogram(name: str, source: str, text: str) -> Declaration:
    return Declaration(f"{NAMESPACE}_{name}_seconds", "histogram", source, text)


_MESSAGING: Final = (
    # A gauge despite its suffix: dashboards know it by this name.
    _gauge("actors_total", "actors", "Registered actors."),
    _gauge(
        "capacity_utilization",
        "capacity_utilization",
        "Share of the registry in use, 0 to 1.",
    ),
    _counter("registrations", "registrations", "Registrations and re-registrations accepted."),
    _counter("registrations_refused", "registry_refused", "Registrations refused: registry full."),
    _gauge("connections_active", "connections", "Open WebSocket connections."),
    _counter("connections_opened", "connections_opened", "WebSocket connections accepted."),
    _counter("connections_closed", "connections_closed", "WebSocket connections ended."),
    _counter(
        "connections_refused",
        "connections_refused",
        "Upgrades refused: too many per second, or no capacity.",
    ),
    _counter(
        "handshakes_refused",
        "handshakes_refused",
        "Connections refused for a bad request or origin, or for being late or too big.",
    ),
    _counter("reconnections", "reconnections", "Actors that came back."),
    _counter("messages_received", "received", "Messages received from clients."),
    _counter("messages_sent", "sent", "Messages handed over for clients, replies included."),
    _gauge("message_queue_depth", "queue_depth", "Messages waiting for slow readers, all sockets."),
    _counter("deliveries", "deliveries", "Messages forwarded from one actor to another."),
    _counter("publications", "published", "Messages published to topics."),
    _counter("broadcasts", "broadcasts", "Broadcasts accepted."),
    _counter("broadcast_copies", "broadcast_copies", "Copies of broadcasts queued for recipients."),
    _counter("broadcast_failures", "broadcast_failed", "Copies of broadcasts lost on the way."),
    _counter("duplicates", "duplicates", "Repeated messages answered without a second delivery."),
    _counter("tells_expired", "expired_tells", "Tells dropped because their time had passed."),
    _counter("asks_expired", "expired_asks", "Asks refused because their time had passed."),
    _counter("asks_queued", "queued_asks", "Asks that wait in a mailbox for their recipient."),
    _counter("tells_dropped", "dropped_tells", "Tells dropped: the recipient is too slow or gone."),
    _counter("unknown_targets", "unknown_targets", "Messages to addresses nobody has registered."),
    _counter("rate_limited", "rate_limited", "Messages refused: sent faster than allowed."),
    _counter("pauses", "paused", "Times a sender was asked to pause."),
    _counter("resumes", "resumed", "Times a sender was told to go on."),
    _counter("slow_connections_closed", "slow_closed", "Connections closed: nothing was read."),
    _counter("errors", "errors", "Refusals sent, by code.", labels=("code",)),
    _histogram(
        "delivery_latency",
        "delivery_latency",
        "From receipt of frames to the hand-over of what they caused, per turn of the event loop.",
    ),
    _histogram("ask_latency", "ask_latency", "From receipt of an ask to its acknowledgement."),
    _histogram(
        "broadcast_latency", "broadcast_latency", "From receipt of a broadcast to its last copy."
    ),
    _gauge("dedup_ids", "dedup_entries", "Accepted messages remembered to recognise repeats."),
    _gauge(
        "dedup_window_seconds",
        "dedup_window_ms",
        "How far back repeats are recognised; shrinks when memory runs out.",
        divisor=1000,
    ),
    _gauge("dedup_memory_bytes", "dedup_memory_bytes", "Memory used to recognise repeats."),
    _gauge("storage_errors", "storage_errors", "Writes of the durable registry that failed."),
    _gauge("storage_usage_bytes", "storage_bytes", "Disk used by the durable registry."),
)

_LOG: Final = (
    _gauge("log_state", "log_state", "1 for the state the log is in.", labels=("state",)),
    _gauge("log_head_offset", "log_head", "The offset the next committed entry gets."),
    _gauge("log_durable_head_offset", "log_durable_head", "Everything below it is synced."),
    _gauge("log_durable_distance", "log_durable_distance", "Committed entries not synced yet."),
    _gauge("log_waiting_entries", "log_waiting", "Entries on their way to the disk."),
    _gauge("log_segments", "log_segments", "Segments of the log."),
    _gauge("log_size_bytes", "log_bytes", "What is written in all segments."),
    _counter("log_entries", "appended", "Entries committed."),
    _counter("log_refused", "append_refused", "Entries the log did not take."),
    _counter("log_batches", "log.batches", "Batches written; entries share them, and one sync."),
    _counter("log_bytes", "log.bytes", "Bytes written in batches."),
    _histogram("log_fsync", "log.sync_latency", "How long a sync took."),
    _counter("log_read_errors", "log.read_errors", "Reads that failed."),
    _counter("log_torn_tails", "log.torn_tails", "Torn ends cut and kept aside at the start."),
    _counter(
        "log_epoch_changes", "log.epoch_changes", "Starts that found entries gone, and a new epoch."
    ),
    _gauge(
        "loss_events",
        "loss_events",
        "Times something accepted was lost before it was settled; must be 0.",
    ),
    _counter(
        "messages_lost", "lost", "Messages removed by retention, per subscription yet to settle it."
    ),
    _gauge(
        "cursor_age_seconds",
        "cursor_age_ms",
        "For how long, at worst, the progress of a subscription has not reached the log.",
        divisor=1000,
    ),
    _gauge("mailboxes", "mailboxes", "Mailboxes of durable actors."),
    _gauge("mailbox_waiting", "mailbox_waiting", "Messages in mailboxes that are not settled."),
    _counter("mailbox_full", "mailbox_full", "Asks refused: the mailbox was full."),
    _counter("mailbox_dropped", "mailbox_dropped", "Messages that went with their mailbox."),
    _gauge("placements", "placements", "Durable actors whose place the hub knows."),
    _counter("actors_placed", "actors_placed", "Durable actors that got their first place."),
    _counter("actors_moved", "actors_moved", "Durable actors that moved to another host."),
    _counter(
        "stale_fences",
        "stale_fences",
        "Messages refused: a durable actor does not live where their sender believed.",
    ),
)

_ROOMS: Final = (
    _gauge("rooms", "rooms", "Rooms the hub remembers."),
    _gauge("inboxes", "inboxes", "Inboxes the hub remembers."),
    _gauge("room_sockets", "room_sockets", "Sockets in rooms."),
    _counter("room_messages", "rooms.sent", "Messages rooms accepted."),
    _counter("inbox_appends", "rooms.appended", "Messages inboxes accepted past their room."),
    _counter("room_repeats", "rooms.repeats", "Repeated messages told their first position."),
    _counter(
        "room_idempotency_conflicts",
        "rooms.conflicts",
        "Repeats that came with another ciphertext than the first.",
    ),
    _counter(
        "room_rate_limited", "rooms.limited", "Messages, appends and fetches that came too fast."
    ),
    _counter("room_refused", "rooms.refused", "Messages refused: the log, or a bound, is full."),
    _counter(
        "room_pinned_over_cap",
        "rooms.over_cap",
        "Of these, those of inboxes of which too much waits for the archive.",
    ),
    _counter("room_copies", "rooms.announced", "Copies of messages queued on sockets of rooms."),
    _counter("room_sockets_joined", "rooms.joined", "Sockets that entered a room."),
    _counter("room_sockets_left", "rooms.left", "Sockets that left a room."),
    _counter("room_sockets_slow", "rooms.slow_closed", "Sockets of rooms closed: too slow."),
    _counter("inbox_fetches", "rooms.fetches", "Pages of inboxes asked for."),
    _counter("inbox_fetched_messages", "rooms.fetched", "Messages in these pages."),
    _counter("inbox_log_reads", "rooms.log_reads", "Reads of the log for pages of inboxes."),
    _counter("inbox_archive_reads", "rooms.archive_reads", "Reads of the archive for these."),
    _counter("inbox_partial_pages", "rooms.partial", "Pages the archive could not complete."),
    _counter("room_recalls", "rooms.recalls", "Ids of messages that were looked up on disk."),
    _counter("proposals_expired", "rooms.proposals_expired", "Proposals that were never finished."),
    _gauge("room_ids", "room_ids", "Ids of messages in memory, to recognise repeats."),
    _gauge("room_ids_memory_bytes", "room_ids_bytes", "Memory these ids use."),
    _gauge(
        "room_buffer_bytes", "room_buffer_bytes", "Memory used by the newest messages of rooms."
    ),
    _gauge("room_state_bytes", "room_state_bytes", "Proposals and blobs of all rooms."),
    _gauge(
        "inbox_unarchived",
        "unarchived",
        "Messages of the inbox of which most waits to be archived.",
    ),
    _histogram(
        "room_accept_latency",
        "rooms.accept_latency",
        "From receipt of a message to its broadcast and acknowledgement.",
    ),
)

# Numbers of the pipeline are its own, as the hub last read them, and begin with its process.
_PIPELINE: Final = (
    _gauge("pipeline_down", "pipeline_down", "1 if the pipeline is away, failing or stuck."),
    _gauge("pipeline_position_offset", "pipeline_position", "The next offset it will land."),
    _gauge("pipeline_lag_entries", "pipeline_lag", "Entries that are not in the lake yet."),
    _gauge(
        "pipeline_lag_seconds",
        "pipeline_lag_ms",
        "Age of the oldest of these, to within five seconds.",
        divisor=1000,
    ),
    _gauge("pipeline_failures", "pipeline_failures", "Attempts that failed since one did not."),
    _gauge(
        "pipeline_inbox_failures",
        "pipeline_inbox_failures",
        "The same for the table the archive reads.",
    ),
    _gauge(
        "pipeline_batch_seconds",
        "pipeline_batch_ms",
        "How long the last batch took.",
        divisor=1000,
    ),
    _counter("pipeline_batches", "lake.batches", "Batches landed."),
    _counter("pipeline_rows", "lake.rows", "Entries landed."),
    _counter("pipeline_bytes", "lake.bytes", "Bytes of the log landed."),
    _counter("pipeline_quarantined", "lake.quarantined", "Entries that could not be decoded."),
    _counter("pipeline_restarts", "lake.restarts", "Times the hub started it again."),
    _gauge("archive_position_offset", "archive_position", "Room messages before it are archived."),
    _counter("archive_consults", "lake.consults", "Times the archive was asked for messages."),
    _counter("archive_failures", "lake.failures", "Questions the lake did not answer."),
    _gauge(
        "segments_waiting",
        "segments_waiting",
        "Segments of the log kept only because they are not in the lake yet.",
    ),
)

# What is counted per subscription, and for all mailboxes together: its name, source and meaning.
_DELIVERY: Final = (
    ("delivered", "delivered", "Copies sent, repeats included."),
    ("settled", "settled", "Messages done with, whatever the outcome."),
    ("redelivered", "redelivered", "Copies sent again."),
    ("nacks", "nacked", "Attempts a consumer declared failed."),
    ("ack_timeouts", "timeouts", "Attempts nobody acknowledged in time."),
    ("exhausted", "exhausted", "Messages that failed too often."),
    ("dead_lettered", "dead_lettered", "Messages put into the dead letters."),
    ("dropped", "dropped", "Messages given up by the poison policy or a consumer."),
    ("expired", "expired", "Messages whose time passed before they were delivered."),
    ("lost", "lost", "Messages removed by retention before they were settled."),
    ("ignored_settlements", "ignored", "Settlements of what was not in flight."),
    ("cursors", "cursors", "Cursors written to the log."),
)
_DISPATCH: Final = (
    ("notifier_polls", "wake_polls", "Dispatch passes that a wake or a deadline began."),
    ("heartbeat_polls", "heartbeat_polls", "Dispatch passes that the watchdog began."),
    (
        "recovered_wakes",
        "recovered_wakes",
        "Such passes that found what a wake should have brought.",
    ),
    ("restarts", "restarts", "Dispatch passes that failed and were started over."),
    ("empty_reads", "empty_reads", "Reads that found nothing where the head said otherwise."),
)

# A mailbox has no poison policy that drops; what goes with its mailbox is counted above.
_MAILBOXES: Final = tuple(
    _counter(
        f"mailbox_{name}", f"mailboxes.{source}", f"All mailboxes: {text[0].lower()}{text[1:]}"
    )
    for name, source, text in (*_DELIVERY, *_DISPATCH)
    if name != "dropped"
)

DECLARATIONS: Final = (*_MESSAGING, *_LOG, *_MAILBOXES, *_ROOMS, *_PIPELINE)


def _reading(name: str, source: str, text: str) -> Declaration:
    full_name = f"{NAMESPACE}_subscription_{name}"
    return Declaration(full_name, "gauge", source, text, SUBSCRIPTION_LABELS)


def _count(name: str, source: str, text: str) -> Declaration:
    return _counter(name, f"tally.{source}", text, SUBSCRIPTION_LABELS)


SUBSCRIPTIONS: Final = (
    _reading("lag_messages", "lag", "Messages neither settled nor delayed."),
    _reading("lag_seconds", "lag_s", "Age of the oldest of these."),
    _reading(
        "oldest_unacked_seconds",
        "unacked_s",
        "How long ago the oldest message consumers are busy with was first sent.",
    ),
    _reading("window_utilization", "utilization", "Share of the window in use, 0 to 1."),
    _reading("blocked", "is_blocked", "1 if a message that failed too often stops all others."),
    _reading("blocked_keys", "blocked_keys", "Keys that such a message stops."),
    _reading("consumers", "consumers", "Consumers attached."),
    *(_count(f"subscription_{name}", source, text) for name, source, text in _DELIVERY),
    *(_count(f"dispatcher_{name}", source, text) for name, source, text in _DISPATCH),
)

# Exported by prometheus-client under `NAMESPACE`, where /proc exists.
PROCESS: Final[dict[str, tuple[Kind, str]]] = {
    f"{NAMESPACE}_process_cpu_seconds_total": ("counter", "CPU time used, user and system."),
    f"{NAMESPACE}_process_resident_memory_bytes": ("gauge", "Memory in use (RSS)."),
    f"{NAMESPACE}_process_virtual_memory_bytes": ("gauge", "Address space in use."),
    f"{NAMESPACE}_process_start_time_seconds": ("gauge", "When the process started."),
    f"{NAMESPACE}_process_open_fds": ("gauge", "Open file descriptors."),
    f"{NAMESPACE}_process_max_fds": ("gauge", "How many file descriptors may be open."),
}
