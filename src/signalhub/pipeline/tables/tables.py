"""The tables of the lake: every column with its type and meaning.

This is the only place where they are declared: tables are created from it, rows are checked against
it, and `docs/lake.md` is generated from it. Columns are only ever added, at the end, nullable.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec


class Column(msgspec.Struct, frozen=True):
    """One column; the type is Spark's."""

    name: str
    type: str
    about: str


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One table."""

    name: str
    about: str
    columns: tuple[Column, ...]
    cluster_by: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ("shard", "epoch", "offset")
    """Columns whose minimum and maximum are in file statistics; none that identifies anyone."""
    version: int = 1
    """The version of its derivation; a table of another version is rebuilt from `entries`."""

    @property
    def ddl(self) -> str:
        """Return the columns as Spark's schema text."""
        return ", ".join(f"`{one.name}` {one.type}" for one in self.columns)

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.columns]

    @property
    def schema(self) -> dict[str, Any]:
        """Return the columns as a table's metadata has them."""
        return {
            "type": "struct",
            "fields": [
                {
                    "name": one.name,
                    "type": _SCHEMA_TYPES[one.type],
                    "nullable": True,
                    "metadata": {"comment": one.about},
                }
                for one in self.columns
            ],
        }

    @property
    def properties(self) -> dict[str, str]:
        """Return what is declared about the whole table."""
        return {
            "delta.enableDeletionVectors": "true",
            "delta.dataSkippingStatsColumns": ",".join(self.statistics),
            **_UPKEEP,
            VERSION_PROPERTY: str(self.version),
        }

    @property
    def reader_features(self) -> list[str]:
        """Return what a reader has to support."""
        has_variant = any(one.type == "VARIANT" for one in self.columns)
        return ["deletionVectors", *(["variantType"] if has_variant else [])]

    @property
    def writer_features(self) -> list[str]:
        """Return what a writer has to support."""
        clustering = ["domainMetadata", "clustering"] if self.cluster_by else []
        return [*self.reader_features, "invariants", "appendOnly", *clustering]

    def create(self, location: str) -> str:
        """Return the statement that creates it if it does not exist."""
        columns = ",\n  ".join(
            f"`{one.name}` {one.type} COMMENT '{_quoted(one.about)}'" for one in self.columns
        )
        clustering = f"\nCLUSTER BY ({', '.join(self.cluster_by)})" if self.cluster_by else ""
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in self.properties.items())
        return (
            f"CREATE TABLE IF NOT EXISTS delta.`{location}` (\n  {columns}\n) USING DELTA"
            f"{clustering}\nCOMMENT '{_quoted(self.about)}'\nTBLPROPERTIES ({listed})"
        )


VERSION_PROPERTY: Final = "signalhub.version"
CHECKPOINT_INTERVAL: Final = 20
"""A table's log gets a checkpoint every this many commits."""
# There is a commit every few seconds, so what is kept about them must be limited.
_UPKEEP: Final = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
}


_BUCKET: Final[list[dict[str, Any]]] = [
    {"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("le_ms", "count")
]
_SCHEMA_TYPES: Final[dict[str, Any]] = {
    **{name: name.lower() for name in ("STRING", "BINARY", "BOOLEAN", "TIMESTAMP", "DOUBLE")},
    "INT": "integer",
    "BIGINT": "long",
    "VARIANT": "variant",
    "MAP<STRING, STRING>": {
        "type": "map",
        "keyType": "string",
        "valueType": "string",
        "valueContainsNull": True,
    },
    "ARRAY<STRING>": {"type": "array", "elementType": "string", "containsNull": True},
    "ARRAY<STRUCT<le_ms: BIGINT, count: BIGINT>>": {
        "type": "array",
        "elementType": {"type": "struct", "fields": _BUCKET},
        "containsNull": True,
    },
}


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


_POSITION: Final = (
    Column("shard", "INT", "The hub whose log the entry is in."),
    Column("epoch", "BIGINT", "Changes when the log has lost entries that readers may have seen."),
    Column("offset", "BIGINT", "The entry's number in the log, without gaps."),
)
_STREAM: Final = (
    Column("kind", "STRING", "The kind of entry: see the list below."),
    Column("stream", "STRING", "Its topic, mailbox or hashed inbox; empty if it has none."),
    Column("stream_epoch", "BIGINT", "The incarnation of the stream."),
    Column("seq", "BIGINT", "Its number in the stream, from 1; 0 if it has none."),
    Column("id", "STRING", "The id chosen by its sender."),
    Column("accepted_at", "TIMESTAMP", "When the hub accepted it; coarse for rooms."),
)

_RECORD: Final = (
    Column("segment", "STRING", "The file of the log."),
    Column("byte_position", "BIGINT", "The file position at which the entry starts."),
)
ENTRY_COLUMNS: Final = (
    *_POSITION,
    *_STREAM,
    Column("expires_at", "TIMESTAMP", "From then on it is no longer delivered."),
    Column("record_version", "INT", "The version of the log format it was written in."),
    Column("body", "BINARY", "Its content, as MessagePack; null after it was removed."),
)
"""What the log contains about an entry."""
SOURCE_COLUMNS: Final = (
    *ENTRY_COLUMNS,
    Column("is_erased", "BOOLEAN", "Whether its content was erased."),
    Column("fault", "STRING", "Why its body cannot be decoded; null if it can."),
    *_RECORD,
)
"""A row of the data source: an entry, its fault if any, and its position."""

ENTRIES: Final = Table(
    name="entries",
    about="Every entry of the log, once. If its content is removed, the row stays without a body.",
    columns=(
        *ENTRY_COLUMNS,
        Column("removed_at", "TIMESTAMP", "When its content was removed."),
        Column("removed_reason", "STRING", "Why: expired, retention or erased."),
    ),
    statistics=("shard", "epoch", "offset", "accepted_at", "expires_at"),
)
MESSAGES: Final = Table(
    name="messages",
    about="One row per accepted message: asks, durable publishes, broadcasts and room messages.",
    columns=(
        *_POSITION,
        *_STREAM,
        Column("topic", "STRING", "The durable topic it was published to; null for others."),
        Column("type", "STRING", "The message's type; null for rooms."),
        Column("sender", "STRING", "The address of its sender; null for rooms."),
        Column("key", "STRING", "Messages with the same key keep their order in key-shared."),
        Column("headers", "MAP<STRING, STRING>", "The headers set by its sender."),
        Column("payload", "VARIANT", "The data; payload:customer.id works. Null for rooms."),
        Column("payload_json", "STRING", "The same, as JSON text."),
        Column("bytes", "BIGINT", "The size of the data, or of the ciphertext."),
        Column("ttl_ms", "BIGINT", "The time after which it expires; null if it does not."),
        Column("replay_job", "STRING", "The replay job that sent this copy; null for originals."),
    ),
    statistics=("shard", "epoch", "offset", "accepted_at"),
)
DELIVERIES: Final = Table(
    name="deliveries",
    about="The outcome of each message for each of its recipients.",
    columns=(
        *_POSITION,
        Column("recipient_kind", "STRING", "subscription, mailbox or actor."),
        Column("recipient", "STRING", "topic/subscription, or the address of the actor."),
        Column(
            "generation",
            "BIGINT",
            "From 1; grows with each seek, and when the subscription is created again.",
        ),
        Column("accepted_at", "TIMESTAMP", "When the message was accepted."),
        Column(
            "first_sent_at",
            "TIMESTAMP",
            "When it was first handed over, if that was logged.",
        ),
        Column("last_sent_at", "TIMESTAMP", "When it was last handed over."),
        Column("settled_at", "TIMESTAMP", "When the delivery was settled; null until then."),
        Column("settle_offset", "BIGINT", "The entry that settled it."),
        Column("outcome", "STRING", "acked, written, … or pending: see the list below."),
        Column("attempts", "INT", "How often it was sent, as of its last failure or settlement."),
        Column("consumer", "STRING", "The consumer that received it last."),
        Column("reason", "STRING", "Why it failed, if it did."),
    ),
    statistics=("shard", "epoch", "offset", "accepted_at", "settled_at", "settle_offset"),
)
SUBSCRIPTIONS: Final = Table(
    name="subscriptions",
    about="What each durable subscription read: a row for each position it started from.",
    columns=(
        Column("shard", "INT", "The hub."),
        Column("topic", "STRING", "The topic it reads."),
        Column("stream_epoch", "BIGINT", "The incarnation of the topic."),
        Column("subscription", "STRING", "Its name."),
        Column(
            "generation",
            "BIGINT",
            "From 1; grows with each seek, and when the subscription is created again.",
        ),
        Column(
            "life", "BIGINT", "From 1; grows when a subscription is created again under its name."
        ),
        Column(
            "hub_generation", "BIGINT", "The generation in the log, which starts at 1 in each life."
        ),
        Column("floor", "BIGINT", "It reads messages after this seq."),
        Column("from_epoch", "BIGINT", "Epoch of the entry that started it."),
        Column("from_offset", "BIGINT", "Offset of the entry that started it."),
        Column("from_at", "TIMESTAMP", "When it started."),
        Column("to_epoch", "BIGINT", "Epoch of the entry that ended it; null if none has."),
        Column("to_offset", "BIGINT", "Offset of the entry that ended it."),
        Column("to_at", "TIMESTAMP", "When it ended."),
        Column(
            "ended",
            "STRING",
            "How it ended: sought, deleted, or given_up if a new epoch discarded its start.",
        ),
    ),
    statistics=("shard",),
)
INBOX: Final = Table(
    name="inbox",
    about="Messages of rooms, read by inbox and seq until they expire.",
    columns=(
        Column("inbox", "STRING", "Keyed hash of the inbox id."),
        Column("key_version", "INT", "The version of the key it was hashed with."),
        Column("seq", "BIGINT", "The message's number in the inbox, from 1."),
        Column("message_id", "STRING", "The id chosen by its sender."),
        Column("ciphertext", "BINARY", "Base64url text; never decoded."),
        Column(
            "created_at", "TIMESTAMP", "When it was stored, coarse; null if times are not stored."
        ),
        Column("expires_at", "TIMESTAMP", "From then on it is no longer delivered."),
        *_POSITION,
    ),
    cluster_by=("inbox", "seq"),
    statistics=("inbox", "seq", "expires_at", "shard", "epoch", "offset"),
)
DEAD_LETTERS: Final = Table(
    name="dead_letters",
    about="Messages that failed too often or were terminated, and whether they were redriven.",
    columns=(
        *_POSITION,
        Column("source", "STRING", "topic or mailbox."),
        Column("topic", "STRING", "The topic or mailbox it came from."),
        Column(
            "subscription",
            "STRING",
            "The subscription whose consumers failed; empty for a mailbox.",
        ),
        Column("original_epoch", "STRING", "The epoch of the original in its stream."),
        Column("original_seq", "BIGINT", "The seq of the original in its stream."),
        Column("attempts", "INT", "How often it was sent."),
        Column("reason", "STRING", "The reason of the last failure."),
        Column("first_failure", "TIMESTAMP", "When it first failed."),
        Column("last_failure", "TIMESTAMP", "When it last failed."),
        Column("key", "STRING", "Messages with the same key keep their order in key-shared."),
        Column("headers", "MAP<STRING, STRING>", "The headers set by its sender."),
        Column("payload", "VARIANT", "The data."),
        Column("redriven_at", "TIMESTAMP", "When it was redriven; null if it was not."),
    ),
)
QUARANTINE: Final = Table(
    name="quarantine",
    about="Entries whose content could not be decoded; they are in `entries` as well.",
    columns=(
        *_POSITION,
        *_RECORD,
        Column("reason", "STRING", "Why it cannot be decoded."),
        Column("attempts", "INT", "How often decoding was tried."),
        Column("raw", "BINARY", "The body, unchanged."),
        Column("at", "TIMESTAMP", "When the fault was found."),
    ),
)
TRAFFIC: Final = Table(
    name="traffic_1m",
    about="Per minute, kind and topic: how much was accepted, and how fast it was settled.",
    columns=(
        Column(
            "minute", "TIMESTAMP", "The start of the minute in which the messages were accepted."
        ),
        Column("shard", "INT", "The hub."),
        Column("kind", "STRING", "The kind of the messages."),
        Column("topic", "STRING", "Null for rooms and mailboxes."),
        Column("accepted", "BIGINT", "The number of messages."),
        Column("settled", "BIGINT", "The number of their deliveries that are settled."),
        Column("bytes", "BIGINT", "The size of the messages' data."),
        Column(
            "latency_histogram",
            "ARRAY<STRUCT<le_ms: BIGINT, count: BIGINT>>",
            "Deliveries by the time from accepted to settled, with the upper end of each bucket.",
        ),
        Column("p50_ms", "DOUBLE", "Half of these deliveries took no longer."),
        Column("p99_ms", "DOUBLE", "99 % of these deliveries took no longer."),
    ),
    statistics=("minute", "shard"),
)
AUDIT: Final = Table(
    name="audit",
    about="The findings of each audit, by shard, epoch and hour.",
    columns=(
        Column("run_id", "STRING", "The id of the audit."),
        Column("at", "TIMESTAMP", "When it ran."),
        Column("shard", "INT", "The hub."),
        Column("epoch", "BIGINT", "The log's epoch."),
        Column("hour", "TIMESTAMP", "The hour the entries were accepted in."),
        Column("from_offset", "BIGINT", "The first entry of the hour."),
        Column("to_offset", "BIGINT", "The last entry of the hour."),
        Column("head", "BIGINT", "The last entry of the log that was audited."),
        Column("distinct_rows", "BIGINT", "The number of different entries found."),
        Column("gaps", "BIGINT", "Entries missing between the first and the last."),
        Column("duplicates", "BIGINT", "Surplus rows."),
        Column(
            "reorders",
            "BIGINT",
            "Entries whose seq does not follow the one before it in the stream.",
        ),
        Column("pending", "BIGINT", "Deliveries that can still end."),
        Column("overdue", "BIGINT", "Deliveries that should have ended."),
        Column("removed", "BIGINT", "Entries whose content was removed."),
        Column("segment_sha256", "STRING", "The chain of the last sealed segment of the hour."),
        Column("verdict", "STRING", "proven, wrong or behind."),
        Column("exceptions", "ARRAY<STRING>", "The faults, one sentence each."),
    ),
    statistics=("at", "shard", "epoch", "hour"),
)

TABLES: Final = {
    one.name: one
    for one in (
        ENTRIES,
        MESSAGES,
        DELIVERIES,
        SUBSCRIPTIONS,
        INBOX,
        DEAD_LETTERS,
        QUARANTINE,
        TRAFFIC,
        AUDIT,
    )
}
