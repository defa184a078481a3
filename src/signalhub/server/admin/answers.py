"""The answers of `/api/admin/v1`: one struct each, in the names that travel.

The description at `/api/admin/v1/openapi.json` and the types of the page are made from these. Times
are milliseconds UTC by the wall clock, rates are per second, payloads and metadata are texts of
JSON, which nobody needs to parse to show. A member that is not known, or that the reader may not
see, is `null`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class AdminAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all answers."""


class AdminError(AdminAnswer, frozen=True, kw_only=True):
    """Why a request was refused, and what to do."""

    error: str
    error_code: str
    resolution: str = ""
    details: dict[str, Any] = {}


# Who asks.


class HubFacts(AdminAnswer, frozen=True, kw_only=True):
    """Which hub this is; `label` and `color` are those of the setting `ui`."""

    id: str
    version: str
    protocol: str
    epoch: int
    started_at: int
    label: str
    color: str
    shard: int = 0


class Features(AdminAnswer, frozen=True, kw_only=True):
    """Which pages have something to show."""

    lake: bool
    rooms: bool
    actors: bool
    try_it: bool
    demo: bool
    auth: bool


class MeAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`GET /me`: who asks, and what the page may offer.

    `operations` holds operations of the verb `admin` (`view`, `sessions`, `settings`, `limits`,
    `audit`, `try`, `republish`, `erase`) and patterns of the others (`manage:orders*`, `read:*`,
    `delete:*`, `control:*`, `create:*`, `publish:*` …). The hub decides again on every request.
    """

    principal: str
    subject: str
    role: Literal["viewer", "operator", "admin", "custom"]
    operations: list[str]
    expires_at: int | None
    hub: HubFacts
    features: Features
    payload_bytes: int
    """Payloads are cut at this length in lists."""
    server_time: int


class RefreshedAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`POST /session/refresh`."""

    token: str
    expires_at: int


# Overview, series, search.


class LimitUse(AdminAnswer, frozen=True, kw_only=True):
    """How much of a limited resource is used."""

    resource: str
    used: int
    limit: int


class Degradation(AdminAnswer, frozen=True, kw_only=True):
    """A reason why `/health` says `degraded`: what it means and what to do."""

    code: str
    since: int
    text: str
    todo: str = msgspec.field(name="do")


class Attention(AdminAnswer, frozen=True, kw_only=True):
    """One thing somebody should look at; `link` is a fragment of the page."""

    code: Literal[
        "degraded",
        "blocked",
        "growing",
        "letters",
        "mailbox_full",
        "paused_senders",
        "refused_logins",
        "lake_behind",
        "held_up",
        "no_consumer",
    ]
    level: Literal["error", "warning"]
    since: int
    text: str
    link: str
    topic: str | None = None
    subscription: str | None = None
    address: str | None = None


class BusyName(AdminAnswer, frozen=True, kw_only=True):
    """Something that is busy: its name and its rate per second."""

    name: str
    rate: float


class ErrorCount(AdminAnswer, frozen=True, kw_only=True):
    """How often a code was answered in the last 15 minutes."""

    code: str
    count: int


class Busiest(AdminAnswer, frozen=True, kw_only=True):
    """The busiest topics and sessions, and the errors by code."""

    topics: list[BusyName]
    actors: list[BusyName]
    errors: list[ErrorCount]


class OverviewAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`GET /overview`, and the frames of the watch `overview`.

    `sample` holds the newest value of every series: see `GET /series`.
    """

    at: int
    status: Literal["ok", "degraded"]
    sample: dict[str, float]
    limits: list[LimitUse]
    degradations: list[Degradation]
    attention: list[Attention]
    attention_total: int
    busiest: Busiest


class SeriesMark(AdminAnswer, frozen=True, kw_only=True):
    """A line in every chart."""

    at: int
    what: Literal["started", "epoch"]


class SeriesAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`GET /series?names=in,out&from=&to=&step=`: `null` where nothing was measured.

    Counters are rates per second, latencies milliseconds. Gauges have their highest value as
    `NAME.max`, if that is asked for.
    """

    step: int
    t: list[int]
    series: dict[str, list[float | None]]
    marks: list[SeriesMark]
    names: list[str]
    """All names there are."""


class SearchHit(AdminAnswer, frozen=True, kw_only=True):
    """One thing found; `link` is a fragment of the page."""

    kind: Literal["actor", "topic", "subscription", "host", "session", "call", "entry", "message"]
    name: str
    detail: str
    link: str


class SearchAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`GET /search?q=`: at most 20 of each kind."""

    query: str
    hits: list[SearchHit]
    complete: bool
    """All were looked at in the time for a search."""


# Actors and sessions.


class MailboxFacts(AdminAnswer, frozen=True, kw_only=True):
    """The mailbox of a durable actor."""

    waiting: int
    oldest_at: int | None
    head: int
    floor: int
    first: int
    in_flight: int
    dead: int
    is_host: bool
    kinds: list[str]
    limit: int


class ActorRow(AdminAnswer, frozen=True, kw_only=True):
    """One address: `live`, `hidden` (its lease has ended) or `away` (only its mailbox is there)."""

    address: str
    state: Literal["live", "hidden", "away"]
    capabilities: list[str]
    metadata: str | None
    session: str | None
    registered_at: int | None
    expires_at: int | None
    away_since: int | None
    version: int | None
    mailbox: MailboxFacts | None
    queued_messages: int
    queued_bytes: int


class ActorsAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`GET /actors?q&capability&state&cursor&limit`, by address."""

    rows: list[ActorRow]
    total: int
    """Live, hidden and away ones together; of a search as far as is known."""
    live: int
    away: int
    limit: int
    next: str | None


class ConsumerFacts(AdminAnswer, frozen=True, kw_only=True):
    """A consumer of a durable subscription or mailbox."""

    topic: str
    subscription: str
    consumer: str
    subscription_id: str
    session: str
    in_flight: int
    window: int
    bytes: int
    blocked: bool


class PlainSubscription(AdminAnswer, frozen=True, kw_only=True):
    """A subscription to a plain topic."""

    topic: str
    address: str


class ActorAnswer(ActorRow, frozen=True, kw_only=True):
    """`GET /actors/{address}`."""

    identity: str | None
    source: str | None
    """Where its client is; for those who may see sessions."""
    subscriptions: list[PlainSubscription]
    consumers: list[ConsumerFacts]
    pausing: list[str]
    """Addresses whose senders it makes wait."""


class SessionRow(AdminAnswer, frozen=True, kw_only=True):
    """One session."""

    session_id: str
    identity: str | None
    """Its names are for those who may discover them or see sessions."""
    addresses: list[str]
    addresses_total: int
    subject: str | None
    token_id: str | None
    token_expires_at: int | None
    source: str | None
    """Where its client is; for those who may see sessions."""
    connected_at: int
    last_seen_at: int
    sent: int
    """Frames handed over to it."""
    registrations: int
    subscriptions: int
    consumers: int
    queued_messages: int
    queued_bytes: int
    blocked: bool
    pauses: int
    """Senders it makes wait."""
    client: str | None
    """Name and version of its SDK, if it said them."""


class SessionsAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`GET /sessions?q&cursor&limit`, oldest first."""

    rows: list[SessionRow]
    total: int
    next: str | None


# Topics and subscriptions.


class TopicRow(AdminAnswer, frozen=True, kw_only=True):
    """One durable topic."""

    topic: str
    epoch: str
    head: int
    first: int
    messages: int
    """Positions that can still be read."""
    bytes: int
    removed: int
    retention_s: float | None
    retention_bytes: int | None
    poison: str
    dead_letter: str | None
    heartbeat_ms: int | None
    owner: str
    is_letters: bool
    subscriptions: int
    worst_lag: int
    letters: int
    """Dead letters that wait in the topic for those of this one."""
    rate: float | None
    """Messages stored per second; known while somebody looks."""


class TopicsAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`GET /topics?q&cursor&limit`, by name."""

    rows: list[TopicRow]
    total: int
    next: str | None


SubscriptionState = Literal["current", "behind", "blocked", "paused", "idle", "held_up"]


class SubscriptionRow(AdminAnswer, frozen=True, kw_only=True):
    """One durable subscription; `trend` is how its lag changes per second."""

    topic: str
    subscription: str
    mode: str
    state: SubscriptionState
    lag: int
    oldest_at: int | None
    in_flight: int
    waiting_retry: int
    exhausted: int
    parked: int
    consumers: int
    floor: int
    next: int
    head: int
    first: int
    paused: bool
    blocked: bool
    delivered: int
    settled: int
    redelivered: int
    nacked: int
    timeouts: int
    dead_lettered: int
    lost: int
    delivered_rate: float | None
    settled_rate: float | None
    redelivered_rate: float | None
    trend: float | None
    owner: str


class SubscriptionsAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`GET /subscriptions?topic&state&sort&cursor&limit`.

    `sort` is `name`, `lag` or `oldest`.
    """

    rows: list[SubscriptionRow]
    total: int
    next: str | None
    at: int
    """When the rows of a sorted list were looked at."""


class FlightRow(AdminAnswer, frozen=True, kw_only=True):
    """An unsettled message that was read; `key` for those who may read the topic."""

    seq: int
    consumer: str | None
    attempt: int
    failures: int
    sent_at: int | None
    due_at: int | None
    phase: Literal["ready", "sent", "waiting", "exhausted"]
    key: str | None
    reason: str | None


class LagPoint(AdminAnswer, frozen=True, kw_only=True):
    """The lag of a subscription at a time."""

    at: int
    lag: int
    settled: int


class SubscriptionAnswer(SubscriptionRow, frozen=True, kw_only=True):
    """`GET /topics/{topic}/subscriptions/{name}`."""

    epoch: str
    generation: int
    window: int
    strict: bool
    ack_timeout_ms: int
    max_deliveries: int
    backoff_ms: int
    backoff_cap_ms: int
    heartbeat_ms: int
    auto_ack: bool
    poison: str
    dead_letter: str
    """Where its dead letters go."""
    rate_per_second: float
    idle_expiry_ms: int
    idle_since: int | None
    backlog_max: int
    backlog_policy: str | None
    settled_above_floor: int
    held_up: str | None
    seats: list[ConsumerFacts]
    flights: list[FlightRow]
    """The first 200 by position."""
    flights_total: int
    history: list[LagPoint]
    """The last 15 minutes, every 10 s, if it is one of the 200 most lagging."""


class TopicAnswer(TopicRow, frozen=True, kw_only=True):
    """`GET /topics/{topic}`."""

    rows: list[SubscriptionRow]
    """Its first 100 subscriptions, by name."""


class SeekPlan(AdminAnswer, frozen=True, kw_only=True):
    """Where a seek leads; give `epoch`, `next` and `generation` back as `plan` to do it."""

    epoch: str
    generation: int
    next: int
    will_replay: int
    will_skip: int
    head: int
    first: int
    in_flight: int
    """Deliveries whose acks will be ignored."""


class SeekAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`POST …/seek`: the plan with `dryRun`, or what was done."""

    plan: SeekPlan
    done: bool


class Planned(AdminAnswer, frozen=True, kw_only=True):
    """What an action with `dryRun` would do; nothing has happened."""

    dry_run: bool = True
    operation: str
    target: str
    needs: str
    allowed: bool


class Done(AdminAnswer, frozen=True, kw_only=True):
    """An action is done and on record; `result` is the hub's answer to the request."""

    operation: str
    target: str
    result: dict[str, Any]


# Dead letters and jobs.


class LetterPreviewRow(AdminAnswer, frozen=True, kw_only=True):
    """One of the first letters that are chosen."""

    seq: int
    stream: str | None = None
    subscription: str | None = None
    attempts: int | None = None
    last_failure: int | None = None
    reason: str | None = None
    type: str | None = None
    key: str | None = None


class ReasonCount(AdminAnswer, frozen=True, kw_only=True):
    """How many letters have a reason."""

    reason: str
    count: int


class LettersPreview(AdminAnswer, frozen=True, kw_only=True):
    """`POST /letters/redrive` and `/letters/purge` with `dryRun`.

    Give `epoch` and `through` back to touch nothing that came later.
    """

    dry_run: bool = True
    topic: str
    epoch: str
    through: int
    count: int
    skipped: int = 0
    first: list[LetterPreviewRow]
    by_reason: list[ReasonCount] | None = None


class JobRow(AdminAnswer, frozen=True, kw_only=True):
    """A job: `signalhub jobs`, and the work that this API began."""

    job: str
    operation: str
    target: str
    state: Literal["running", "done", "failed", "interrupted", "cancelled"]
    subject: str | None
    identity: str | None
    began_at: int | None
    ended_at: int | None
    done: int | None
    total: int | None = msgspec.field(name="of")
    rate: float | None
    eta_ms: int | None
    detail: str | None
    result: dict[str, Any] | None
    failures: list[str]
    cancellable: bool


class JobsAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`GET /jobs`: at most 100, the newest first."""

    rows: list[JobRow]


class JobStarted(AdminAnswer, frozen=True, kw_only=True):
    """The answer of what goes on as a job: `GET /jobs/{job}` tells how far it is."""

    job: str


# Rooms, in numbers.


class RoomSizes(AdminAnswer, frozen=True, kw_only=True):
    """Rooms by how many sockets are in them."""

    one: int
    few: int
    """Two to five."""
    many: int
    """Six to twenty."""
    more: int


class RoomsAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`GET /rooms`: numbers only, by design."""

    enabled: bool
    rooms: int
    inboxes: int
    sockets: int
    sent: int
    appended: int
    fetches: int
    refused: int
    denied: int
    limited: int
    message_rate: float | None
    append_rate: float | None
    fetch_rate: float | None
    accept_p50_ms: float | None
    accept_p99_ms: float | None
    buffer_bytes: int
    buffer_bytes_max: int
    state_bytes: int
    state_bytes_max: int
    disk_bytes: int
    disk_bytes_max: int
    unarchived_most: int
    proposals_expired: int
    sizes: RoomSizes


# Settings and health.


class SettingRow(AdminAnswer, frozen=True, kw_only=True):
    """One setting; secrets are hidden."""

    name: str
    value: str
    default: str
    changed: bool
    source: str | None
    """Where it is from, if the hub knows: a file, a variable or an option."""
    text: str


class SettingsAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`GET /settings`."""

    rows: list[SettingRow]


class HealthAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`GET /health`."""

    status: Literal["ok", "degraded"]
    degradations: list[Degradation]
    details: dict[str, Any]
    storage: dict[str, Any] | None
    release: str
    protocol: str
    python: str
    native: str
    epoch: int
    started_at: int
    uptime_ms: int
    pid: int


class SegmentRow(AdminAnswer, frozen=True, kw_only=True):
    """One segment of the log; offsets up to `last` without it."""

    first: int
    last: int
    epoch: int
    bytes: int
    sealed: bool
    chain: str | None
    landed: bool | None
    created_at: int | None


class SegmentsAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`GET /segments`."""

    rows: list[SegmentRow]
    epoch: int
    first: int
    head: int
    durable_head: int
    bytes: int
    retention_bytes: int
    retention_s: float
    landed: int | None


class WarningRow(AdminAnswer, frozen=True, kw_only=True):
    """One line of the hub's own log."""

    at: int
    level: Literal["warning", "error", "critical"]
    logger: str
    text: str
    facts: dict[str, Any]
    """Who and where a client is is left out for those who may not see sessions."""


class WarningsAnswer(AdminAnswer, frozen=True, kw_only=True):
    """`GET /warnings`: the last 200, the newest first."""

    rows: list[WarningRow]


# The live socket.


class LiveFrame(AdminAnswer, frozen=True, kw_only=True, omit_defaults=True):
    """A frame of `/api/admin/v1/live` about one watch: all of it, or the members that differ.

    `full` is an object, `change` its changed members. What the watches show: `overview` an
    `OverviewAnswer`; `subscriptions` (`topic?`, `ids?` as `topic/name`, or neither for the 50 that
    are furthest behind) an object of `SubscriptionRow` by `topic/name`; `subscription` (`topic`,
    `name`) a `SubscriptionAnswer`; `topic` (`topic`) a `TopicAnswer`; `actors` (`addresses`) an
    object of `ActorRow` by address, `null` for those that are gone; `job` (`job`) a `JobRow`;
    `actions` an object with the newest `offset`; `tail` (`filter`) rows of the log in `rows`, and
    `skipped`.
    """

    id: int
    at: int
    full: dict[str, Any] | None = None
    change: dict[str, Any] | None = None
    rows: list[dict[str, Any]] | None = None
    skipped: int | None = None
    error: AdminError | None = None
