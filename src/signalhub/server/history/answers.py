"""The answers of `/api/admin/v1` that come from disk, lake and hosts, as JSON writes them.

Names are in camelCase; times are milliseconds in UTC. A position is text, `epoch.offset`, with
`shard:` before it unless it is shard 0. Payloads are strings of JSON text that nobody has parsed:
`bytes` is the whole size, and `cut` says that there is more. What the token may not read is `null`,
and `withheld` says so. Members are only ever added.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from signalhub.server.admin.answers import AdminAnswer as Answer
from signalhub.server.admin.answers import ReasonCount

Tier = Literal["log", "lake"]
Removed = Literal["erased", "expired", "retention"]


class Place(Answer, frozen=True, kw_only=True):
    """An entry, and when it was accepted; `at` is null if nobody has looked."""

    position: str
    epoch: int
    offset: int
    shard: int = 0
    at: int | None = None


# The log.


class Outcome(Answer, frozen=True, kw_only=True):
    """What became of a message for one recipient."""

    recipient: str
    """`topic/subscription`, or the address of an actor."""
    outcome: str
    """`acked`, `written`, `failed`, `pending` …, as in the table `deliveries`."""


class HistoryRow(Answer, frozen=True, kw_only=True):
    """`GET /history`: one entry."""

    at: int
    position: str
    shard: int
    epoch: int
    offset: int
    kind: str
    tier: Tier
    stream: str = ""
    """Empty for entries of rooms, and for those that have no stream."""
    stream_epoch: int = 0
    seq: int = 0
    id: str | None = None
    type: str | None = None
    key: str | None = None
    sender: str | None = None
    bytes: int = 0
    payload: str | None = None
    """JSON text; for other kinds than messages the body as JSON text."""
    cut: bool = False
    encoding: Literal["json", "hex"] = "json"
    """`hex` if the payload is no text."""
    removed: Removed | None = None
    """Why the content is gone; the row stays."""
    withheld: bool = False
    became: list[Outcome] | None = None
    """Outcomes on record; null if nobody has looked far enough."""


class Gap(Answer, frozen=True, kw_only=True):
    """Entries that are damaged or missing, with both ends, and what is wrong with them."""

    epoch: int
    first: int
    last: int
    reason: str


class History(Answer, frozen=True, kw_only=True):
    """`GET /history`: a page, the newest entry first."""

    rows: list[HistoryRow]
    next: str | None
    """Continue here, with `before` for older entries or `after` for newer ones."""
    complete: bool
    """There is nothing more in this direction now."""
    searched_to: Place | None
    scanned: int
    """Entries looked at for this page."""
    reason: str | None = None
    """Why the page ended early: `time`, `size`, or a sentence about what cannot be read."""
    gaps: list[Gap] = msgspec.field(default_factory=list)
    log_first: str | None = None
    """The oldest entry of the log; older rows come from the lake."""


class Delivery(Answer, frozen=True, kw_only=True):
    """What became of a message for one recipient, in full."""

    recipient: str
    recipient_kind: str
    outcome: str
    attempts: int
    generation: int = 1
    consumer: str | None = None
    first_sent_at: int | None = None
    last_sent_at: int | None = None
    settled_at: int | None = None
    settled: str | None = None
    """The entry that settled it."""
    reason: str | None = None


class Relation(Answer, frozen=True, kw_only=True):
    """Another entry that belongs to this one."""

    position: str | None
    """Null if only its number in its stream is known."""
    at: int | None
    kind: Literal["replay", "letter", "redriven", "original", "lifetime"]
    """A copy by a replay; a dead letter of it; put back from a letter; what it is a copy of; the
    message whose letter was put back as this one."""
    stream: str = ""
    seq: int = 0
    detail: str = ""


class DeadLetter(Answer, frozen=True, kw_only=True):
    """Why a message became a dead letter, and where it came from."""

    stream: str
    subscription: str
    epoch: str
    seq: int
    attempts: int
    reason: str | None
    first_failure: int | None
    last_failure: int | None
    consumers: list[str]


class HistoryEntry(HistoryRow, frozen=True, kw_only=True):
    """`GET /history/{shard}/{epoch}/{offset}`: the whole entry; its payload up to 448 KiB."""

    metadata: str | None = None
    """JSON text."""
    headers: dict[str, str] | None = None
    ttl: float | None = None
    expires_at: int | None = None
    deliver_at: int | None = None
    only_for: str | None = None
    dead: DeadLetter | None = None
    deliveries: list[Delivery] = msgspec.field(default_factory=list)
    related: list[Relation] = msgspec.field(default_factory=list)
    looked_through: str | None = None
    """Deliveries and relations were looked for up to this entry; null for all."""


class CountBucket(Answer, frozen=True, kw_only=True):
    """Messages that were accepted from `at` until before `until`."""

    at: int
    until: int
    count: int


class Counts(Answer, frozen=True, kw_only=True):
    """`GET /history/counts`: how much there is, for the rail."""

    buckets: list[CountBucket]
    unit: Literal["messages", "entries"]
    """Without a lake one bucket for each segment of the log, which counts entries."""
    counted_to: Place | None
    """What came later is not in the buckets of the lake but in those of the log."""


class Series(Answer, frozen=True, kw_only=True):
    """`GET /series` for what is older than the ring: from `traffic_1m`."""

    t: list[int]
    series: dict[str, list[float | None]]


# Dead letters, and what operators did.


class Letter(Answer, frozen=True, kw_only=True):
    """A dead letter that waits."""

    seq: int
    position: str
    at: int
    source: str
    """The topic or mailbox it came from."""
    subscription: str
    original_epoch: str
    original_seq: int
    attempts: int
    reason: str | None
    first_failure: int | None
    last_failure: int | None
    id: str | None
    type: str | None
    key: str | None
    sender: str | None
    bytes: int
    payload: str | None
    cut: bool
    headers: dict[str, str] | None = None
    redriven_before: bool = False
    """It was put back before and failed again."""
    withheld: bool = False


class Letters(Answer, frozen=True, kw_only=True):
    """`GET /letters`: dead letters of a topic, the newest first."""

    topic: str
    epoch: str
    rows: list[Letter]
    next: str | None
    """Continue with `before`, a seq."""
    complete: bool
    waiting: int
    ever: int
    """The seq of the last letter there ever was."""
    through: int
    """What arrived after this letter is not here; pass it on to redrive or purge."""
    scanned: int
    by_reason: list[ReasonCount]
    """Of the letters this page looked at; empty without the permission to read."""
    reason: str | None = None


class LetterTopic(Answer, frozen=True, kw_only=True):
    """A topic that holds dead letters."""

    topic: str
    waiting: int
    ever: int


class LetterTopics(Answer, frozen=True, kw_only=True):
    """`GET /letters` without a topic."""

    topics: list[LetterTopic]


class Action(Answer, frozen=True, kw_only=True):
    """Somebody used a permission over what is not theirs."""

    at: int
    position: str
    by: str | None
    """The subject of the token."""
    address: str | None
    verb: str
    over: str
    request: str | None
    phase: str | None
    job: str | None
    detail: str | None
    removed: Removed | None = None


class Actions(Answer, frozen=True, kw_only=True):
    """`GET /actions`: the newest first."""

    rows: list[Action]
    next: str | None
    complete: bool
    searched_to: Place | None
    scanned: int
    reason: str | None = None
    gaps: list[Gap] = msgspec.field(default_factory=list)


# The lake.


class LakeTable(Answer, frozen=True, kw_only=True):
    """One table, as the list shows it."""

    name: str
    about: str
    position: int | None
    """The last offset of the log's epoch it contains; null for tables that have none."""
    behind: int | None
    files: int
    bytes: int
    kept_s: float | None
    """How long rows are kept; null for as long as the lake."""


class Lake(Answer, frozen=True, kw_only=True):
    """`GET /lake`."""

    pipeline: Literal["off", "beside", "elsewhere"]
    state: str
    """Of the pipeline: `running`, `retrying`, …; `off` without one, `unknown` without status."""
    reason: str | None
    epoch: int
    position: int
    head: int
    behind: int
    behind_ms: int
    rows: int
    batches: int
    last_batch_rows: int | None
    last_batch_ms: float | None
    failures: int
    restarts: int
    quarantined: int
    where: str
    tables: list[LakeTable]


class LakeColumn(Answer, frozen=True, kw_only=True):
    """One column."""

    name: str
    type: str
    about: str


class LakeRows(Answer, frozen=True, kw_only=True):
    """`GET /lake/tables/{table}`: its columns and newest rows, every value as text."""

    name: str
    about: str
    columns: list[LakeColumn]
    rows: list[dict[str, str | None]]
    sql: str
    """The same as a command."""
    withheld: bool = False


class AuditHour(Answer, frozen=True, kw_only=True):
    """One hour of an audit."""

    hour: int
    epoch: int
    from_offset: int
    to_offset: int
    distinct_rows: int
    gaps: int
    duplicates: int
    reorders: int
    pending: int
    overdue: int
    removed: int
    segment_sha256: str | None
    verdict: str
    exceptions: list[str]


class Audit(Answer, frozen=True, kw_only=True):
    """`GET /lake/audit`: the newest audit of each hour."""

    run_id: str | None
    at: int | None
    head: int | None
    verdict: str | None
    hours: list[AuditHour]
    is_running: bool
    job: str | None


class ProofSegment(Answer, frozen=True, kw_only=True):
    """A segment of the log, and its place in the chain."""

    base: int
    end: int
    epoch: int
    bytes: int
    previous_chain: str
    chain: str


class Proof(Answer, frozen=True, kw_only=True):
    """`GET /lake/proof.json`: what an audit found, to be checked without the hub."""

    version: int
    made_at: int
    hub: str
    release: str
    epoch: int
    run_id: str | None
    hours: list[AuditHour]
    segments: list[ProofSegment]
    how: str


class ReplayExample(Answer, frozen=True, kw_only=True):
    """One message that a replay would send."""

    position: str
    accepted_at: str
    stream: str
    type: str | None
    key: str | None
    data: str | None


class ReplayPreview(Answer, frozen=True, kw_only=True):
    """`POST /replay` with `dryRun`."""

    count: int
    first: str | None
    last: str | None
    streams: dict[str, int]
    left_out: dict[str, int]
    examples: list[ReplayExample]


# Hosts of durable actors. Rows that hosts report are passed on with their host.


class Host(Answer, frozen=True, kw_only=True):
    """One host."""

    host: str
    address: str
    state: Literal["present", "away", "silent"]
    """A silent host is connected and did not answer in time."""
    kinds: list[str]
    away_since: int | None = None
    waiting: int = 0
    """Messages in its mailbox."""
    oldest_at: int | None = None
    moves: dict[str, int] = msgspec.field(default_factory=dict)
    """Actors that are moving, by step; empty if the host was not asked."""
    counters: dict[str, float] = msgspec.field(default_factory=dict)
    """What its kernel has counted; empty if the host was not asked."""


class Hosts(Answer, frozen=True, kw_only=True):
    """`GET /hosts`."""

    hosts: list[Host]
    silent: list[str]
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    """Hosts that have answered with an error or with nonsense, and what is wrong with it."""


class HostRows(Answer, frozen=True, kw_only=True):
    """`GET /hosts/{host}/actors`, `/alarms`, `/host-letters`, open `/calls`: rows of hosts."""

    rows: list[dict[str, Any]]
    """As the host says them, and `host`. Members depend on the request; see the guide."""
    has_more: bool
    silent: list[str]
    away: list[str]
    denied: list[str] = msgspec.field(default_factory=list)
    """Hosts that were not asked, because the token does not permit to control them."""
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    """Hosts that have answered with an error or with nonsense, and what is wrong with it."""


class CallRow(Answer, frozen=True, kw_only=True):
    """One call, open or ended."""

    call: str
    caller: str | None
    target: str | None
    method: str | None
    state: str
    """`stored`, `sent`, `accepted` … for open calls; `returned`, `failed`, `sent` for others."""
    at: int | None = None
    ended_at: int | None = None
    deadline: int | None = None
    host: str | None = None
    key: str | None = None
    withheld: bool = False


class Calls(Answer, frozen=True, kw_only=True):
    """`GET /calls`."""

    rows: list[CallRow]
    has_more: bool
    next: str | None
    silent: list[str]
    away: list[str]
    denied: list[str] = msgspec.field(default_factory=list)
    """Hosts that were not asked, because the token does not permit to control them."""
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    """Hosts that have answered with an error or with nonsense, and what is wrong with it."""
    searched_to: Place | None = None
    reason: str | None = None


class CallStep(Answer, frozen=True, kw_only=True):
    """One thing that happened to a call or to one that it caused."""

    at: int
    what: Literal["requested", "answered", "accepted", "executed"]
    call: str
    caller: str | None
    target: str | None
    method: str | None = None
    outcome: str | None = None
    position: str | None = None
    host: str | None = None
    chain: list[str] = msgspec.field(default_factory=list)
    """The actors that caused it, the first one first."""
    payload: str | None = None
    cut: bool = False


class Call(Answer, frozen=True, kw_only=True):
    """`GET /calls/{id}`: what hosts know about it, and its steps in log and lake, oldest first."""

    call: str
    known: dict[str, dict[str, Any]]
    """By host: what `signalhub actors calls ID` shows."""
    steps: list[CallStep]
    complete: bool
    next: str | None
    searched_to: Place | None
    silent: list[str]
    away: list[str]
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    """Hosts that have answered with an error or with nonsense, and what is wrong with it."""
    withheld: bool = False
