"""All metrics of the hub: name, value and help text.

Labels have closed sets of values; those of subscriptions are in `observe.subscriptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from signalhub.observe import reference
from signalhub.observe.exposition import (
    CONTENT_TYPE,
    OTHER,
    Declaration,
    Exposition,
    counter,
    gauge,
    histogram,
)
from signalhub.observe.subscriptions import DELIVERY, DISPATCH, Counted, SubscriptionSeries
from signalhub.server.gauges import Gauges
from signalhub.wire.errors import Code

if TYPE_CHECKING:
    from signalhub.pipeline.run.status import PipelineStatus
    from signalhub.server.lake import Lakeside

LOG_STATES: Final = ("open", "full", "failed", "damaged")


class Metrics:
    """The page at `/metrics`."""

    content_type: Final = CONTENT_TYPE

    def __init__(self, gauges: Gauges, *, subscriptions_max: int) -> None:
        self._gauges = gauges
        self._hub = Exposition(DECLARATIONS, gauges)
        self._subscriptions = SubscriptionSeries(subscriptions_max)

    async def refresh(self) -> None:
        """Examine what is counted in slices; call this before `pieces`."""
        await self._gauges.refresh()

    def pieces(self) -> Iterator[bytes]:
        """Yield the page in pieces, each a few milliseconds of work."""
        yield self._hub.page()
        yield from self._subscriptions.pieces(self._gauges.subscriptions)


def _by_known_code(errors: dict[str, int]) -> dict[str, int]:
    """Count by code, with a 0 for each known code, so that rates include the first error."""
    counts = dict.fromkeys([*Code, OTHER], 0)
    for code, count in errors.items():
        counts[code if code in counts else OTHER] += count
    return counts


def _log_states(of: Gauges) -> dict[str, float]:
    return {state: state == of.log.state for state in LOG_STATES}


def _durable_distance(of: Gauges) -> int:
    # In this order the distance is never negative, even while another thread commits.
    durable = of.log.durable_head
    return of.log.head - durable


def _of_mailboxes(counted: Counted) -> Declaration[Gauges]:
    name, measure, text = counted
    return counter(
        f"mailbox_{name}",
        lambda of: measure(of.tally.mailboxes),
        f"All mailboxes: {text[0].lower()}{text[1:]}",
    )


def _of_lake(
    name: str, measure: Callable[[Lakeside, int], float], text: str
) -> Declaration[Gauges]:
    """Declare a gauge that is 0 without a lake; `measure` gets the current time."""

    def of_lake(of: Gauges) -> float:
        return 0 if of.lakeside is None else measure(of.lakeside, of.now_ms())

    return gauge(name, of_lake, text)


def _of_status(
    name: str, measure: Callable[[PipelineStatus], float], text: str
) -> Declaration[Gauges]:
    """Declare a gauge that is 0 until the pipeline has written its status."""

    def of_status(lakeside: Lakeside, _: int) -> float:
        return 0 if lakeside.status is None else measure(lakeside.status)

    return _of_lake(name, of_status, text)


def _batch_s(status: PipelineStatus) -> float:
    return 0 if status.last_batch is None else status.last_batch.ms / 1000


_MESSAGING: Final[tuple[Declaration[Gauges], ...]] = (
    # A gauge despite its suffix: dashboards know it by this name.
    gauge("actors_total", lambda of: len(of.hub.registry), "Registered actors."),
    gauge(
        "capacity_utilization",
        lambda of: of.hub.registry.utilization,
        "Share of the registry in use, 0 to 1.",
    ),
    counter(
        "registrations",
        lambda of: of.tally.registrations,
        "Registrations and re-registrations accepted.",
    ),
    counter(
        "registrations_refused",
        lambda of: of.tally.registry_refused,
        "Registrations refused: registry full.",
    ),
    gauge(
        "connections_active", lambda of: len(of.runner.connections), "Open WebSocket connections."
    ),
    counter(
        "connections_opened",
        lambda of: of.tally.connections_opened,
        "WebSocket connections accepted.",
    ),
    counter(
        "connections_closed", lambda of: of.tally.connections_closed, "WebSocket connections ended."
    ),
    counter(
        "connections_refused",
        lambda of: of.tally.connections_refused,
        "Upgrades refused: too many per second, or no capacity.",
    ),
    counter(
        "handshakes_refused",
        lambda of: of.listener.refusals.total(),
        "Connections refused: bad request or origin, timeout, or too large.",
    ),
    counter(
        "sockets_refused",
        lambda of: of.listener.turned_away,
        "Connections refused or closed because there are too many: all places taken (`full`), "
        "those of the source taken (`source`), or waiting longest without a hello (`idle`).",
        "reason",
    ),
    counter(
        "reader_starts",
        lambda of: of.tally.reader.starts,
        "Starts of the process that reads disk and lake for people.",
    ),
    counter("reader_questions", lambda of: of.tally.reader.questions, "Questions it was asked."),
    counter(
        "reader_failures",
        lambda of: of.tally.reader.failures,
        "Questions it did not answer, because it ended or took too long.",
    ),
    gauge(
        "live_sockets",
        lambda of: 0 if of.desk is None else len(of.desk.live),
        "Pages of the dashboard that are kept up to date.",
    ),
    counter(
        "admin_requests",
        lambda of: 0 if of.desk is None else of.desk.api.answered,
        "Requests of the admin API answered, refusals included.",
    ),
    gauge("sockets_max", lambda of: of.listener.places.sockets, "WebSockets that may be open."),
    gauge(
        "sockets_waiting",
        lambda of: of.listener.sources.doors,
        "Open connections that are not WebSockets.",
    ),
    gauge(
        "socket_sources", lambda of: len(of.listener.sources), "Addresses with open connections."
    ),
    counter("logins_refused", lambda of: of.tally.logins_refused, "Tokens refused, by any door."),
    counter("reconnections", lambda of: of.tally.reconnections, "Actors that reconnected."),
    counter("messages_received", lambda of: of.tally.received, "Messages received from clients."),
    counter(
        "messages_sent",
        lambda of: of.tally.sent,
        "Messages handed over to clients, including replies.",
    ),
    gauge(
        "message_queue_depth",
        lambda of: of.runner.writer.depth(),
        "Messages waiting for slow readers, all sockets.",
    ),
    gauge(
        "outbound_bytes",
        lambda of: of.runner.writer.waiting_bytes,
        "Memory of everything that waits to be written, and of large frames that are being read, "
        "all sockets.",
    ),
    gauge(
        "outbound_bytes_max",
        lambda of: of.hub.settings.outbound.total_bytes_max,
        "Limit of that memory.",
    ),
    counter(
        "outbound_closed",
        lambda of: of.tally.debtors_closed,
        "Connections closed because that memory was used up, mostly for them.",
    ),
    counter(
        "deliveries",
        lambda of: of.tally.deliveries,
        "Messages forwarded from one actor to another.",
    ),
    counter("publications", lambda of: of.tally.published, "Messages published to topics."),
    counter("broadcasts", lambda of: of.tally.broadcasts, "Broadcasts accepted."),
    counter(
        "broadcast_copies",
        lambda of: of.tally.broadcast_copies,
        "Copies of broadcasts queued for recipients.",
    ),
    counter(
        "broadcast_failures",
        lambda of: of.tally.broadcast_failed,
        "Copies of broadcasts that were not delivered.",
    ),
    counter(
        "duplicates",
        lambda of: of.tally.duplicates,
        "Repeated messages answered without a second delivery.",
    ),
    counter(
        "tells_expired",
        lambda of: of.tally.expired_tells,
        "Tells dropped because their ttl had ended.",
    ),
    counter(
        "asks_expired",
        lambda of: of.tally.expired_asks,
        "Asks refused because their ttl had ended.",
    ),
    counter(
        "asks_queued",
        lambda of: of.tally.queued_asks,
        "Asks queued in a mailbox for their recipient.",
    ),
    counter(
        "audiences_cut",
        lambda of: of.tally.audiences_cut,
        "Publishes that did not reach all wildcards of more than eleven levels.",
    ),
    counter(
        "tells_dropped",
        lambda of: of.tally.dropped_tells,
        "Tells dropped: the recipient is too slow or gone.",
    ),
    counter(
        "unknown_targets",
        lambda of: of.tally.unknown_targets,
        "Messages to addresses that are not registered.",
    ),
    counter(
        "rate_limited",
        lambda of: of.tally.rate_limited,
        "Messages refused: sent faster than allowed.",
    ),
    counter("pauses", lambda of: of.tally.paused, "Times a sender was asked to pause."),
    counter("resumes", lambda of: of.tally.resumed, "Times a sender was told to resume."),
    counter(
        "slow_connections_closed",
        lambda of: of.tally.slow_closed,
        "Connections closed: the client did not read.",
    ),
    counter(
        "flooding_connections_closed",
        lambda of: of.tally.floods_closed,
        "Connections closed: the client exceeded its rates of frames or bytes for too long.",
    ),
    counter(
        "errors", lambda of: _by_known_code(of.tally.errors), "Refusals sent, by code.", "code"
    ),
    histogram(
        "delivery_latency",
        lambda of: of.tally.delivery_latency,
        "From receipt of frames to the hand-over of the resulting frames, per tick.",
    ),
    histogram(
        "ask_latency",
        lambda of: of.tally.ask_latency,
        "From receipt of an ask to its acknowledgement.",
    ),
    histogram(
        "broadcast_latency",
        lambda of: of.tally.broadcast_latency,
        "From receipt of a broadcast to its last copy.",
    ),
    gauge(
        "dedup_ids",
        lambda of: of.hub.dedup.count,
        "Ids of accepted messages kept to detect repeats.",
    ),
    gauge(
        "dedup_window_seconds",
        lambda of: of.hub.dedup.window_ms / 1000,
        "How far back repeats are detected; shrinks when memory runs out.",
    ),
    gauge(
        "dedup_memory_bytes",
        lambda of: of.hub.dedup.memory_bytes,
        "Memory used to detect repeats.",
    ),
    gauge(
        "storage_errors",
        lambda of: of.store.errors,
        "Failed writes and look-ups of state.db.",
    ),
    gauge(
        "storage_usage_bytes",
        lambda of: of.store.size_bytes(),
        "Disk used by state.db.",
    ),
)

_LOG: Final[tuple[Declaration[Gauges], ...]] = (
    gauge("log_state", _log_states, "1 for the state the log is in.", "state"),
    gauge("log_head_offset", lambda of: of.log.head, "The offset the next committed entry gets."),
    gauge(
        "log_durable_head_offset", lambda of: of.log.durable_head, "Everything below it is synced."
    ),
    gauge("log_durable_distance", _durable_distance, "Committed entries not synced yet."),
    gauge("log_waiting_entries", lambda of: of.engine.waiting, "Entries not committed yet."),
    gauge("log_waiting_bytes", lambda of: of.engine.unwritten.bytes, "Memory that they take."),
    gauge("log_segments", lambda of: len(of.log.segments), "Segments of the log."),
    gauge(
        "log_size_bytes",
        lambda of: sum(one.bytes for one in of.log.segments),
        "Bytes written in all segments.",
    ),
    counter("log_entries", lambda of: of.tally.appended, "Entries committed."),
    counter("log_refused", lambda of: of.tally.append_refused, "Entries refused by the log."),
    counter(
        "log_batches",
        lambda of: of.tally.log.batches,
        "Batches written; the entries of a batch share one sync.",
    ),
    counter("log_bytes", lambda of: of.tally.log.bytes, "Bytes written in batches."),
    histogram("log_fsync", lambda of: of.tally.log.sync_latency, "Duration of a sync."),
    counter("log_read_errors", lambda of: of.tally.log.read_errors, "Reads that failed."),
    counter(
        "log_torn_tails",
        lambda of: of.tally.log.torn_tails,
        "Torn ends cut at the start, and saved as .torn files.",
    ),
    counter(
        "log_epoch_changes",
        lambda of: of.tally.log.epoch_changes,
        "Starts with a new epoch because entries were lost.",
    ),
    gauge(
        "loss_events",
        lambda of: of.tally.loss_events + of.tally.log.epoch_changes,
        "Times accepted messages were lost before they were settled; must be 0.",
    ),
    counter(
        "messages_lost",
        lambda of: of.tally.lost,
        "Messages removed by retention, per subscription that had not settled them.",
    ),
    gauge(
        "cursor_age_seconds",
        lambda of: of.cursor_age_ms / 1000,
        "Age of the oldest progress of a subscription that is not in the log.",
    ),
    gauge("mailboxes", lambda of: len(of.hub.streams.mailboxes), "Mailboxes of durable actors."),
    gauge(
        "mailbox_waiting",
        lambda of: of.mailbox_waiting,
        "Unsettled messages in mailboxes.",
    ),
    counter(
        "mailbox_full", lambda of: of.tally.mailbox_full, "Asks refused: the mailbox was full."
    ),
    counter(
        "mailbox_dropped",
        lambda of: of.tally.mailbox_dropped,
        "Messages dropped with their mailbox.",
    ),
    gauge("placements", lambda of: len(of.hub.placements), "Durable actors with a recorded place."),
    counter(
        "actors_placed",
        lambda of: of.tally.actors_placed,
        "Durable actors that got their first place.",
    ),
    counter(
        "actors_moved",
        lambda of: of.tally.actors_moved,
        "Durable actors that moved to another host.",
    ),
    counter(
        "stale_fences",
        lambda of: of.tally.stale_fences,
        "Messages refused: the sender's place of a durable actor was out of date.",
    ),
)

_ROOMS: Final[tuple[Declaration[Gauges], ...]] = (
    gauge("rooms", lambda of: len(of.hub.rooms.directory.rooms), "Rooms."),
    gauge("inboxes", lambda of: len(of.hub.rooms.directory.inboxes), "Inboxes."),
    gauge("room_sockets", lambda of: of.hub.rooms.guests, "Sockets in rooms."),
    counter("room_messages", lambda of: of.tally.rooms.sent, "Messages accepted by rooms."),
    counter(
        "inbox_appends",
        lambda of: of.tally.rooms.appended,
        "Messages accepted by inboxes without their room.",
    ),
    counter(
        "room_repeats",
        lambda of: of.tally.rooms.repeats,
        "Repeated messages answered with their first position.",
    ),
    counter(
        "room_idempotency_conflicts",
        lambda of: of.tally.rooms.conflicts,
        "Messages refused: their id belongs to a message with another ciphertext or pseudonym.",
    ),
    counter(
        "room_rate_limited",
        lambda of: of.tally.rooms.limited,
        "Messages, appends and fetches refused: above the rate limit.",
    ),
    counter(
        "room_denied",
        lambda of: of.tally.rooms.denied,
        "Requests refused: no token or capability permits them.",
    ),
    counter(
        "room_refused",
        lambda of: of.tally.rooms.refused,
        "Messages refused: the log cannot be written to, or a limit is reached.",
    ),
    counter(
        "room_pinned_over_cap",
        lambda of: of.tally.rooms.over_cap,
        "Of these, refused because too many messages of the inbox are unarchived.",
    ),
    counter(
        "room_disk_refused",
        lambda of: of.tally.rooms.disk_full,
        "Of these, refused because rooms take as much disk as they may.",
    ),
    gauge(
        "room_disk_bytes",
        lambda of: of.hub.rooms.messages.disk_bytes,
        "Messages and blobs of rooms in the log, neither expired nor archived.",
    ),
    counter(
        "room_ids_dropped",
        lambda of: of.hub.rooms.messages.ids.dropped,
        "Ids of messages given up because no snapshot could be written.",
    ),
    counter(
        "room_copies",
        lambda of: of.tally.rooms.announced,
        "Copies of messages queued on sockets of rooms.",
    ),
    counter(
        "room_sockets_joined", lambda of: of.tally.rooms.joined, "Sockets that entered a room."
    ),
    counter("room_sockets_left", lambda of: of.tally.rooms.left, "Sockets that left a room."),
    counter(
        "room_sockets_slow",
        lambda of: of.tally.rooms.slow_closed,
        "Sockets of rooms closed: too slow.",
    ),
    counter("inbox_fetches", lambda of: of.tally.rooms.fetches, "Pages of inboxes requested."),
    counter(
        "inbox_fetched_messages", lambda of: of.tally.rooms.fetched, "Messages in these pages."
    ),
    counter(
        "inbox_log_reads",
        lambda of: of.tally.rooms.log_reads,
        "Reads of the log for pages of inboxes.",
    ),
    counter(
        "inbox_archive_reads",
        lambda of: of.tally.rooms.archive_reads,
        "Reads of the archive for pages of inboxes.",
    ),
    counter(
        "inbox_partial_pages",
        lambda of: of.tally.rooms.partial,
        "Pages that archive or log could not complete.",
    ),
    counter(
        "room_recalls",
        lambda of: of.tally.rooms.recalls,
        "Message ids looked up on disk.",
    ),
    counter(
        "proposals_expired",
        lambda of: of.tally.rooms.proposals_expired,
        "Proposals that expired.",
    ),
    gauge(
        "room_ids",
        lambda of: of.hub.rooms.messages.ids.memory.count,
        "Message ids in memory, to detect repeats.",
    ),
    gauge(
        "room_ids_memory_bytes",
        lambda of: of.hub.rooms.messages.ids.memory.memory_bytes,
        "Memory used by these ids.",
    ),
    gauge(
        "room_buffer_bytes",
        lambda of: of.hub.rooms.messages.buffer.bytes,
        "Memory used by the newest messages of rooms.",
    ),
    gauge(
        "room_state_bytes", lambda of: of.hub.rooms.state.bytes, "Proposals and blobs of all rooms."
    ),
    gauge(
        "inbox_unarchived",
        lambda of: of.hub.rooms.messages.unarchived,
        "The highest number of unarchived messages in one inbox.",
    ),
    histogram(
        "room_accept_latency",
        lambda of: of.tally.rooms.accept_latency,
        "From receipt of a room message to its acknowledgement.",
    ),
)

# Values from the pipeline's status file; its counters start at 0 with its process.
_PIPELINE: Final[tuple[Declaration[Gauges], ...]] = (
    _of_lake(
        "pipeline_down",
        lambda lake, now: lake.is_down(now),
        "1 if the pipeline is down, failing or stuck.",
    ),
    _of_lake("pipeline_position_offset", lambda lake, _: lake.position, "The next offset to land."),
    _of_lake(
        "pipeline_lag_entries", lambda lake, _: lake.lag, "Entries that are not in the lake yet."
    ),
    _of_lake(
        "pipeline_lag_seconds",
        lambda lake, now: lake.lag_ms(now) / 1000,
        "Age of the oldest of these, to within five seconds.",
    ),
    _of_status(
        "pipeline_failures",
        lambda status: status.failures,
        "Failed attempts since the last success.",
    ),
    _of_status(
        "pipeline_inbox_failures",
        lambda status: status.inbox_failures,
        "The same, for the table that the archive reads.",
    ),
    _of_status("pipeline_batch_seconds", _batch_s, "Duration of the last micro-batch."),
    counter("pipeline_batches", lambda of: of.tally.lake.batches, "Micro-batches landed."),
    counter("pipeline_rows", lambda of: of.tally.lake.rows, "Entries landed."),
    counter("pipeline_bytes", lambda of: of.tally.lake.bytes, "Bytes of the log landed."),
    counter(
        "pipeline_quarantined",
        lambda of: of.tally.lake.quarantined,
        "Entries that could not be decoded.",
    ),
    counter("pipeline_restarts", lambda of: of.tally.lake.restarts, "Restarts by the hub."),
    _of_lake(
        "archive_position_offset",
        lambda lake, _: lake.archive.position,
        "Room messages before this offset are archived.",
    ),
    counter(
        "archive_consults",
        lambda of: of.tally.lake.consults,
        "Reads of messages from the archive.",
    ),
    counter(
        "archive_failures", lambda of: of.tally.lake.failures, "Reads of the lake that failed."
    ),
    _of_lake(
        "segments_waiting",
        lambda lake, _: lake.archive.wanted,
        "Segments of the log kept only because they are not in the lake yet.",
    ),
)

# Mailboxes have no poison policy `drop`; messages dropped with a mailbox are counted above.
_MAILBOXES: Final = tuple(
    _of_mailboxes(one) for one in (*DELIVERY, *DISPATCH) if one[0] != "dropped"
)

DECLARATIONS: Final = (*_MESSAGING, *_LOG, *_MAILBOXES, *_ROOMS, *_PIPELINE)


def page() -> str:
    """The reference of all metrics as a Markdown page."""
    return reference.page(DECLARATIONS, LOG_STATES)


if __name__ == "__main__":
    print(page(), end="")
