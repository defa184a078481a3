"""`docs/lake.md`, written from the declarations of the tables.

python -m signalhub.pipeline.tables.reference > docs/lake.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from signalhub.pipeline.tables.tables import TABLES, Table
from signalhub.wire.entry import SETTLING, Kind, Outcome

_KINDS: Final = {
    Kind.MAIL: "a message for one actor (an ask)",
    Kind.PUBLISHED: "a message on a durable topic; dead letters are such messages, too",
    Kind.BROADCAST: "what the sender of a broadcast as ask was told",
    Kind.SETTLED: "what became of deliveries",
    Kind.CURSOR: "how far a subscription or mailbox has come",
    Kind.STREAM_CREATED: "a mailbox or topic was made, or its definition changed",
    Kind.STREAM_DELETED: "a mailbox or topic was deleted",
    Kind.SUBSCRIPTION_CREATED: "a subscription was made, or its definition changed",
    Kind.SUBSCRIPTION_DELETED: "a subscription was deleted",
    Kind.REMOVED: "messages of a stream were taken away: redriven or purged",
    Kind.LOST: "retention removed messages that a subscription had not settled",
    Kind.ROOM_MESSAGE: "a message in an inbox; its stream is the inbox",
    Kind.INBOX_STANDS: "how far an inbox has come, written again before the log was cut",
    Kind.ROOM_BOUND: "a room has its inbox; from here on the stream is the room",
    Kind.ROOM_BLOB: "one of a room's opaque blobs was written",
    Kind.ROOM_PROPOSAL: "what became of a proposal without a message",
    Kind.INBOX_KEY: "which key hashes the names of rooms and inboxes",
    Kind.ERASED: "which entries were erased",
    Kind.REPLAYS_STAND: "how far replays have come, written again before the log was cut",
    Kind.PLACED: "a durable actor has its place on a host, or another one",
}
_OUTCOMES: Final = {
    Outcome.ACKED: "the recipient acknowledged it",
    Outcome.WRITTEN: "given to the socket of a recipient that does not acknowledge",
    Outcome.FAILED: "the last attempt failed; it will be tried again",
    Outcome.EXPIRED: "its time was over",
    Outcome.DROPPED: "given up by the poison policy, or its recipient was deleted",
    Outcome.DEAD_LETTERED: "it is in the dead letters",
    Outcome.GONE: "the recipient was not there",
    Outcome.HANDED_OVER: "given to the socket; the recipient has yet to acknowledge it",
    Outcome.FILTERED: "meant for another subscription, or taken away before it was read",
    Outcome.ERASED: "its content was erased before it was delivered",
}

_INTRODUCTION: Final = """\
# The lake

Everything the log holds arrives in these Delta tables, by themselves while a pipeline runs (`make
run` starts one beside the hub), or with `signalhub pipeline once`. They lie under
`DATA/lake/NAME`, unless `pipeline.lake` or `--lake` names another place. They can be read by
anything that reads Delta Lake with deletion vectors:

    signalhub sql "SELECT topic, count(*) FROM messages GROUP BY topic" --data data

From Python, Spark with Delta Lake and everything else it takes, in the environment `make setup`
made; or, without Java, queries of the package `deltalake` (its `to_pandas` knows no deletion
vectors, which these tables have):

    from signalhub.pipeline.run.spark import open_session
    spark = open_session("local[*]")
    spark.read.format("delta").load("data/lake/messages").show()

    from deltalake import DeltaTable, QueryBuilder
    messages = QueryBuilder().register("messages", DeltaTable("data/lake/messages"))
    messages.execute("SELECT topic, count(*) FROM messages GROUP BY topic").read_all()

This page is made from the declarations in `pipeline/tables/tables.py`. Times are UTC. An entry is
named by `shard`, `epoch` and `offset`, in every table. Columns are only ever added, and may then be
null.

**What is not here.** Tells are in no table: they are not stored. Neither are broadcasts to actors
as tells, plain topics, and refused messages. Ciphertext is never decoded; inbox ids are keyed
hashes.

## How rows get here

`entries` is written by one streaming query. A batch starts when 100 entries wait, or one has
waited 5 s, and takes everything there is (up to 512 MiB, so that a long way is made in steps).
Each commit records the last offset it holds as a transaction of the application
`signalhub-SHARD-EPOCH`; a batch that comes again, whole or in part, adds only what is missing.
The position is read without Spark:
`DeltaTable("data/lake/entries").transaction_version("signalhub-0-EPOCH")`.

The other tables follow `entries` in the same way, each with its own position: `inbox` every 15 s,
the rest every minute. They can be deleted and come back. A table whose declaration has a new
version is made again by itself. `quarantine` and `audit` are written directly and are kept.

What expired, what is older than `pipeline.retention_s` and what was erased leaves a row in
`entries` without its body, so that counts still prove.
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
        "\nAn entry of a kind this version does not know is called `kind_NUMBER` and is in"
        " `quarantine`, too."
    )
    yield "\n## Outcomes of deliveries\n"
    yield "| outcome | settles | meaning |"
    yield "|---|---|---|"
    for outcome, about in _OUTCOMES.items():
        yield f"| `{outcome.name.lower()}` | {_yes(outcome in SETTLING)} | {about} |"
    yield "| `pending` | no | nothing has been said about it yet |"
    yield "| `sought` | yes | its subscription was moved elsewhere before it was settled |"
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
