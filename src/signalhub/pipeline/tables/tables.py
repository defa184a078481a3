"""The tables of the lake: every column with its type and meaning.

This is the only place where they are declared: tables are created from it, rows are checked against
it, and `docs/lake.md` is generated from it. Columns are only ever added, at the end, nullable.
"""

from __future__ import annotations

from typing import Final

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

    def create(self, location: str) -> str:
        """Return the statement that creates it if it does not exist."""
        columns = ",\n  ".join(
            f"`{one.name}` {one.type} COMMENT '{_quoted(one.about)}'" for one in self.columns
        )
        clustering = f"\nCLUSTER BY ({', '.join(self.cluster_by)})" if self.cluster_by else ""
        properties = {
            "delta.enableDeletionVectors": "true",
            "delta.dataSkippingStatsColumns": ",".join(self.statistics),
            **_UPKEEP,
            VERSION_PROPERTY: str(self.version),
        }
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
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


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


_PLACE: Final = (
    Column("shard", "INT", "The hub whose log the entry is in."),
    Column("epoch", "BIGINT", "Changes when a log had to give up entries that were shown."),
    Column("offset", "BIGINT", "The entry's number in its log, dense."),
)
_STREAM: Final = (
    Column("kind", "STRING", "What the entry is: see the list below."),
    Column("stream", "STRING", "Its topic, mailbox or hashed inbox; empty if it has none."),
    Column("stream_epoch", "BIGINT", "Which life of the stream."),
    Column("seq", "BIGINT", "Its number in the stream, from 1; 0 if it has none."),
    Column("id", "STRING", "As its sender named it."),
    Column("accepted_at", "TIMESTAMP", "When the hub took it; coarse for rooms."),
)

_RECORD: Final = (
    Column("segment", "STRING", "The file of the log."),
    Column("byte_position", "BIGINT", "Where in it the entry begins."),
)
ENTRY_COLUMNS: Final = (
    *_PLACE,
    *_STREAM,
    Column("expires_at", "TIMESTAMP", "When it must not be served any more."),
    Column("record_version", "INT", "Version of the log's format it was written in."),
    Column("body", "BINARY", "What it holds, as MessagePack; null once it was removed."),
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
    about="Every entry of the log, once. What was removed leaves its row without the body.",
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
        *_PLACE,
        *_STREAM,
        Column("topic", "STRING", "The durable topic it was published to; null for others."),
        Column("type", "STRING", "The message's type; null for rooms."),
        Column("sender", "STRING", "The address it came from; null for rooms."),
        Column("key", "STRING", "What it was ordered by."),
        Column("headers", "MAP<STRING, STRING>", "As the sender gave them."),
        Column("payload", "VARIANT", "The data; payload:customer.id works. Null for rooms."),
        Column("payload_json", "STRING", "The same as text."),
        Column("bytes", "BIGINT", "Size of the data, or of the ciphertext."),
        Column("ttl_ms", "BIGINT", "How long it was meant to live; null: for ever."),
        Column("replay_job", "STRING", "The replay that sent it again; null for originals."),
    ),
    statistics=("shard", "epoch", "offset", "accepted_at"),
)
DELIVERIES: Final = Table(
    name="deliveries",
    about="What became of each message for each recipient; a seek starts a new generation.",
    columns=(
        *_PLACE,
        Column("recipient_kind", "STRING", "subscription, mailbox or actor."),
        Column("recipient", "STRING", "topic/subscription, or the address of the actor."),
        Column("generation", "BIGINT", "From 1; a seek begins a new one, being made again too."),
        Column("accepted_at", "TIMESTAMP", "When the message was accepted."),
        Column(
            "first_sent_at",
            "TIMESTAMP",
            "When it was first handed over, as far as is written.",
        ),
        Column("last_sent_at", "TIMESTAMP", "When it was handed over last."),
        Column("settled_at", "TIMESTAMP", "When that was over; null while it is not."),
        Column("settle_offset", "BIGINT", "The entry that says so."),
        Column("outcome", "STRING", "acked, written, … or pending: see the list below."),
        Column("attempts", "INT", "How often it was sent, as far as a failure or its end says."),
        Column("consumer", "STRING", "Who had it last."),
        Column("reason", "STRING", "Why it failed, if it did."),
    ),
    statistics=("shard", "epoch", "offset", "accepted_at", "settled_at", "settle_offset"),
)
SUBSCRIPTIONS: Final = Table(
    name="subscriptions",
    about="Who read what: each durable subscription, once per position it began to read from.",
    columns=(
        Column("shard", "INT", "The hub."),
        Column("topic", "STRING", "What it reads."),
        Column("stream_epoch", "BIGINT", "Which life of the topic."),
        Column("subscription", "STRING", "Its name."),
        Column("generation", "BIGINT", "From 1; a seek begins a new one, being made again too."),
        Column("life", "BIGINT", "From 1; being made again begins a new one."),
        Column("hub_generation", "BIGINT", "What the hub calls the generation: seeks of its life."),
        Column("floor", "BIGINT", "It reads what comes behind this number."),
        Column("from_epoch", "BIGINT", "Epoch of the entry it begins with."),
        Column("from_offset", "BIGINT", "Offset of the entry it begins with."),
        Column("from_at", "TIMESTAMP", "When that was."),
        Column("to_epoch", "BIGINT", "Epoch of the entry that ended it; null if none has."),
        Column("to_offset", "BIGINT", "Offset of the entry that ended it."),
        Column("to_at", "TIMESTAMP", "When that was."),
        Column("ended", "STRING", "How: sought, deleted, or given_up with its log's end."),
    ),
    statistics=("shard",),
)
INBOX: Final = Table(
    name="inbox",
    about="Messages of rooms, to be read by inbox and number until they expire.",
    columns=(
        Column("inbox", "STRING", "Keyed hash of the inbox id."),
        Column("key_version", "INT", "Of the key it was hashed with."),
        Column("seq", "BIGINT", "The message's number in the inbox, from 1."),
        Column("message_id", "STRING", "As its sender named it."),
        Column("ciphertext", "BINARY", "Base64url text; never decoded."),
        Column("created_at", "TIMESTAMP", "Coarse; null if times are not told."),
        Column("expires_at", "TIMESTAMP", "Never served after this."),
        *_PLACE,
    ),
    cluster_by=("inbox", "seq"),
    statistics=("inbox", "seq", "expires_at", "shard", "epoch", "offset"),
)
DEAD_LETTERS: Final = Table(
    name="dead_letters",
    about="Messages nobody could handle, and whether they were put back.",
    columns=(
        *_PLACE,
        Column("source", "STRING", "topic or mailbox."),
        Column("topic", "STRING", "The topic or mailbox it comes from."),
        Column("subscription", "STRING", "Whose consumers failed; empty for a mailbox."),
        Column("original_epoch", "STRING", "Epoch of the original in its stream."),
        Column("original_seq", "BIGINT", "Number of the original in its stream."),
        Column("attempts", "INT", "How often it was tried."),
        Column("reason", "STRING", "What the last failure said."),
        Column("first_failure", "TIMESTAMP", "When it failed first."),
        Column("last_failure", "TIMESTAMP", "When it failed last."),
        Column("key", "STRING", "What it was ordered by."),
        Column("headers", "MAP<STRING, STRING>", "As the sender gave them."),
        Column("payload", "VARIANT", "The data."),
        Column("redriven_at", "TIMESTAMP", "When it was put back; null if it was not."),
    ),
)
QUARANTINE: Final = Table(
    name="quarantine",
    about="Entries whose content could not be decoded; they are in `entries` as well.",
    columns=(
        *_PLACE,
        *_RECORD,
        Column("reason", "STRING", "What is wrong with it."),
        Column("attempts", "INT", "How often it was tried."),
        Column("raw", "BINARY", "The body as it is."),
        Column("at", "TIMESTAMP", "When that was found."),
    ),
)
TRAFFIC: Final = Table(
    name="traffic_1m",
    about="Per minute, kind and topic: how much was accepted, and how soon it was settled.",
    columns=(
        Column("minute", "TIMESTAMP", "Its beginning; by when messages were accepted."),
        Column("shard", "INT", "The hub."),
        Column("kind", "STRING", "Of the messages."),
        Column("topic", "STRING", "Null for rooms and mailboxes."),
        Column("accepted", "BIGINT", "Messages."),
        Column("settled", "BIGINT", "Deliveries of these that are over."),
        Column("bytes", "BIGINT", "Of the messages' data."),
        Column(
            "latency_histogram",
            "ARRAY<STRUCT<le_ms: BIGINT, count: BIGINT>>",
            "Accepted to settled: deliveries per bucket, by the bucket's upper end.",
        ),
        Column("p50_ms", "DOUBLE", "Half of them took no longer."),
        Column("p99_ms", "DOUBLE", "99 % took no longer."),
    ),
    statistics=("minute", "shard"),
)
AUDIT: Final = Table(
    name="audit",
    about="What each audit found, per shard, epoch and hour.",
    columns=(
        Column("run_id", "STRING", "Of the audit."),
        Column("at", "TIMESTAMP", "When it ran."),
        Column("shard", "INT", "The hub."),
        Column("epoch", "BIGINT", "The log's epoch."),
        Column("hour", "TIMESTAMP", "The hour the entries were accepted in."),
        Column("from_offset", "BIGINT", "The first entry of the hour."),
        Column("to_offset", "BIGINT", "The last."),
        Column("head", "BIGINT", "The last entry of the log the audit judged."),
        Column("distinct_rows", "BIGINT", "Different entries found."),
        Column("gaps", "BIGINT", "Entries missing between the first and the last."),
        Column("duplicates", "BIGINT", "Rows too many."),
        Column("reorders", "BIGINT", "Entries whose number in their stream does not follow."),
        Column("pending", "BIGINT", "Deliveries still within their time."),
        Column("overdue", "BIGINT", "Deliveries neither settled nor excused."),
        Column("removed", "BIGINT", "Entries that only left their row."),
        Column("segment_sha256", "STRING", "Chain of the last sealed segment of the hour."),
        Column("verdict", "STRING", "proven, wrong or behind."),
        Column("exceptions", "ARRAY<STRING>", "What is wrong, one sentence each."),
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
