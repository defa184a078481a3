"""`docs/lake.md`, generated from the declarations of the tables.

python -m signalhub.pipeline.tables.reference > docs/lake.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from signalhub.pipeline.tables.tables import TABLES, Table
from signalhub.wire.entry import SETTLING, Kind, Outcome

_KINDS: Final = {
    Kind.MAIL: "a message for one actor (an ask)",
    Kind.PUBLISHED: "a message on a durable topic; a dead letter is one, too",
    Kind.BROADCAST: "the answer to the sender of a broadcast sent as an ask",
    Kind.SETTLED: "outcomes of deliveries",
    Kind.CURSOR: "the position of a subscription or mailbox",
    Kind.STREAM_CREATED: "a mailbox or topic was created, or its definition changed",
    Kind.STREAM_DELETED: "a mailbox or topic was deleted",
    Kind.SUBSCRIPTION_CREATED: "a subscription was created, or its definition changed",
    Kind.SUBSCRIPTION_DELETED: "a subscription was deleted",
    Kind.REMOVED: "messages were removed from a stream: redriven or purged",
    Kind.LOST: "retention removed messages that a subscription had not settled",
    Kind.ROOM_MESSAGE: "a message in an inbox; its stream is the inbox",
    Kind.INBOX_STANDS: "the position of an inbox, written again before old segments were deleted",
    Kind.ROOM_BOUND: "a room was bound to its inbox; from here on the stream is the room",
    Kind.ROOM_BLOB: "one of a room's opaque blobs was written",
    Kind.ROOM_PROPOSAL: "a proposal changed without a message",
    Kind.INBOX_KEY: "which key hashes the names of rooms, and where their positions continue",
    Kind.ERASED: "which entries were erased",
    Kind.REPLAYS_STAND: "positions of replay jobs, written again before old segments were deleted",
    Kind.PLACED: "a durable actor was placed, moved to another host, or its place was forgotten",
    Kind.OPERATED: "somebody used a permission over what belongs to others",
}
_OUTCOMES: Final = {
    Outcome.ACKED: "the recipient acknowledged it",
    Outcome.WRITTEN: "given to the socket of a recipient that does not acknowledge",
    Outcome.FAILED: "the last attempt failed; it will be redelivered",
    Outcome.EXPIRED: "it expired before it was settled",
    Outcome.DROPPED: "dropped by the poison policy, or because its recipient was deleted",
    Outcome.DEAD_LETTERED: "moved to the dead letters",
    Outcome.GONE: "there was no recipient",
    Outcome.HANDED_OVER: "given to the socket, not yet acknowledged by the recipient",
    Outcome.FILTERED: "sent to another subscription only, or removed before it was read",
    Outcome.ERASED: "its content was erased before it was delivered",
}

_INTRODUCTION: Final = """\
# The lake

These Delta tables contain everything from the log. A running pipeline fills them (`make run` starts
one beside the hub), and so does `signalhub pipeline once`. They are in `DATA/lake/NAME`, unless
`pipeline.lake` or `--lake` names another location. Any reader of Delta Lake that supports deletion
vectors can read them:

    signalhub sql "SELECT topic, count(*) FROM messages GROUP BY topic" --data data

From Python, use Spark in the environment that `make setup` created; or, without Java, the queries
of the package `deltalake` (its `to_pandas` does not support deletion vectors, which these tables
have):

    from signalhub.pipeline.run.spark import open_session
    spark = open_session("local[*]")
    spark.read.format("delta").load("data/lake/messages").show()

    from deltalake import DeltaTable, QueryBuilder
    messages = QueryBuilder().register("messages", DeltaTable("data/lake/messages"))
    messages.execute("SELECT topic, count(*) FROM messages GROUP BY topic").read_all()

This page is generated from the declarations in `pipeline/tables/tables.py`. Times are UTC. An entry
is identified by `shard`, `epoch` and `offset`. Columns are only ever added, and are null in older
rows.

**What is not here.** Tells, broadcasts sent as tells, messages of plain topics and refused messages
are not stored. Ciphertext is never decoded; inbox ids are keyed hashes.

## How rows get here

One streaming query writes `entries`. A micro-batch starts when 100 entries wait, or when one has
waited 5 s, and takes everything that waits, up to 512 MiB. Each commit records its last offset as a
transaction of the application `signalhub-SHARD-EPOCH`; a micro-batch that is repeated, completely
or in part, adds only what is missing. The position can be read without Spark:
`DeltaTable("data/lake/entries").transaction_version("signalhub-0-EPOCH")`. `signalhub pipeline
once` writes up to 4 000 entries without Spark, in one such commit.

The other tables follow `entries` in the same way, each with its own position: `inbox` every 15 s,
the rest every minute. If one is deleted, or its declaration has a new version, it is rebuilt.
`quarantine` and `audit` are written directly and are never rebuilt.

An entry that has expired, is older than `pipeline.retention_s`, or was erased keeps its row in
`entries` without the body, so that counts still prove completeness.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION.rstrip()
    for table in TABLES.values():
        yield ""
        yield from _table(table)
    yield "\n## Kinds of entries\n"
    yield "| kind | number | meaning |"
    yield "|---|---|---|"
    for kind, about in _KINDS.items():
        yield f"| `{kind.name.lower()}` | {kind.value} | {about} |"
    yield (
        "\nAn entry of a kind that this version does not know has the kind `kind_NUMBER` and is in"
        " `quarantine` as well."
    )
    yield "\n## Outcomes of deliveries\n"
    yield "| outcome | settles | meaning |"
    yield "|---|---|---|"
    for outcome, about in _OUTCOMES.items():
        yield f"| `{outcome.name.lower()}` | {_yes(outcome in SETTLING)} | {about} |"
    yield "| `pending` | no | not settled yet |"
    yield "| `sought` | yes | a seek moved its subscription before it was settled |"
    yield "| `lost` | yes | retention removed it before it was settled |"
    yield "| `removed` | yes | it was redriven or purged before it was settled |"


def _table(table: Table) -> Iterator[str]:
    yield f"## `{table.name}`\n"
    yield table.about
    if table.cluster_by:
        yield f"Clustered by {', '.join(f'`{one}`' for one in table.cluster_by)}."
    yield ""
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    for column in table.columns:
        yield f"| `{column.name}` | `{column.type}` | {column.about} |"


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


if __name__ == "__main__":
    print(page(), end="")
