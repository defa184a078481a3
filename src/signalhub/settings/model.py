"""The settings: every value with its default, its bounds and its meaning.

Read order: defaults, then the TOML file, then `SIGNALHUB_*` variables, then command-line options;
`settings/load.py` reads them. The setting `registry.limit` is the key `limit` in the table
`[registry]` and the variable `SIGNALHUB_REGISTRY_LIMIT`. Everything that can grow has its limit
here. The reference page is generated from the annotations.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from signalhub.wire import authority

Count = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Bytes = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Share = Annotated[float, Meta(gt=0, le=1)]
Window = Annotated[int, Meta(ge=1, le=10_000)]
Quota = Annotated[int, Meta(ge=0)]

SECRET_BYTES_MIN = 16
HIDDEN = "•••"
DENIED_NAME = "denied.jsonl"


class Secret(str):
    """Text that hides itself in a repr, a format or a log line; `encode` reveals it."""

    __slots__ = ()

    def __new__(cls, text: str) -> Secret:
        # Copying a secret must copy its text, not what `str` shows.
        return super().__new__(cls, str.__str__(text))

    def __repr__(self) -> str:
        return repr(str(self))

    def __str__(self) -> str:
        return HIDDEN if self else ""

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


def _about(text: str) -> Meta:
    return Meta(description=text)


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables; unknown keys are errors."""


class Key(Group, frozen=True, kw_only=True):
    """One verification key, selected by the `kid` of a token."""

    algorithm: Annotated[Literal["HS256", "EdDSA"], _about("How tokens are signed.")] = "HS256"
    secret: Annotated[str, _about("HS256: the shared secret, as UTF-8 bytes.")] = ""
    public_key: Annotated[str, _about("EdDSA: the public key in PEM.")] = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "secret", Secret(self.secret))


class AuthSettings(Group, frozen=True, kw_only=True):
    """Authentication. Without it the hub listens on loopback only."""

    enabled: Annotated[bool, _about("Require a token from every connection.")] = False
    secret: Annotated[str, _about("A single HS256 secret, for tokens without `kid`.")] = ""
    keys: Annotated[dict[str, Key], _about("Verification keys by `kid`.")] = {}
    issuer: Annotated[str, _about("Required `iss` of tokens, and `iss` of refreshed ones.")] = (
        "signal-hub"
    )
    audience: Annotated[
        str | tuple[str, ...],
        _about("Names of this hub, one of which the `aud` of a token must be; empty: no `aud`."),
    ] = ()
    token_age_max_s: Annotated[Seconds, _about("Maximum age of a token.")] = 86_400.0
    refreshed_token_s: Annotated[Seconds, _about("Lifetime of a refreshed token.")] = 3_600.0
    refresh_max_s: Annotated[
        Seconds, _about("How long after it was first issued a token can be refreshed.")
    ] = 7 * 86_400.0
    jwks_file: Annotated[
        str,
        _about(
            "File with a key set (JWKS) of the issuer, read again when it changes; a relative path"
            " begins at the working folder."
        ),
    ] = ""
    jwks_url: Annotated[
        str, _about("URL of such a key set: `https`, or `http` on a loopback address.")
    ] = ""
    jwks_refresh_s: Annotated[
        float, Meta(ge=10), _about("Interval between two fetches of `jwks_url`.")
    ] = 300.0
    denied_file: Annotated[
        str, _about("The denial list; empty: `denied.jsonl` in the data folder.")
    ] = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "secret", Secret(self.secret))

    @property
    def audiences(self) -> tuple[str, ...]:
        """The names of this hub in `aud`."""
        given = self.audience
        return tuple(filter(None, (given,) if isinstance(given, str) else given))


class MetricsSettings(Group, frozen=True, kw_only=True):
    """Who may read `/metrics`."""

    access: Annotated[
        Literal["auto", "open", "token", "loopback"],
        _about(
            "`open`: everybody; `token`: with `admin: metrics` or `view`; `loopback`: this machine;"
            " `auto`: `token` with `auth`, otherwise `loopback`."
        ),
    ] = "auto"


class UiSettings(Group, frozen=True, kw_only=True):
    """The page for people at `/ui/`, and the API that it uses."""

    enabled: Annotated[bool, _about("Serve the page and its API.")] = True
    try_it: Annotated[
        Literal["auto", "on", "off"],
        _about("Let people send messages from the page; `auto`: only without `auth`."),
    ] = "auto"
    label: Annotated[
        str, Meta(max_length=64), _about('A bar on every page, such as "PRODUCTION".')
    ] = ""
    color: Annotated[
        str,
        Meta(pattern="^([a-z]{0,32}|#[0-9a-fA-F]{3}|#[0-9a-fA-F]{6})$"),
        _about("Its color: a name or `#rrggbb`."),
    ] = ""
    role_without_auth: Annotated[
        Literal["viewer", "operator", "admin"],
        _about("What people may do without `auth`, when nobody has a token."),
    ] = "admin"
    live_max: Annotated[Count, _about("Pages that are kept up to date at once.")] = 32
    payload_bytes: Annotated[
        int, Meta(ge=64, le=2**20), _about("Payloads are cut at this length in lists.")
    ] = 4_096
    searches_max: Annotated[Count, _about("Searches at once.")] = 2
    demo: Annotated[bool, _about("Show the page of `signalhub demo`, which sets this.")] = False


class RegistrySettings(Group, frozen=True, kw_only=True):
    """Registered actors: their number and their leases."""

    limit: Annotated[Count, _about("Number of registered actors.")] = 50_000
    refuse_above: Annotated[
        Share, _about("Refuse registrations above this share of the limit.")
    ] = 0.95
    warn_above: Annotated[Share, _about("Warn above this share of the limit.")] = 0.90
    lease_s: Annotated[Seconds, _about("Duration of a registration without renewal.")] = 300.0
    lease_max_s: Annotated[Seconds, _about("Longest lease an actor may request.")] = 3_600.0
    sweep_s: Annotated[
        Seconds, _about("Interval between checks for renewed and expired leases.")
    ] = 60.0


class OutboundSettings(Group, frozen=True, kw_only=True):
    """Limits on what is queued for one slow reader, and for all of them."""

    pause_messages: Annotated[Count, _about("Queued messages at which senders pause.")] = 1_000
    resume_messages: Annotated[Count, _about("Queued messages at which senders resume.")] = 500
    messages_max: Annotated[Count, _about("Queued messages beyond which tells are dropped.")] = (
        10_000
    )
    bytes_max: Annotated[Bytes, _about("Queued bytes beyond which tells are dropped.")] = 8 * 2**20
    total_bytes_max: Annotated[
        Bytes,
        _about(
            "Memory for what is queued for all sockets, and for large frames that are being read; "
            "beyond it, those that take most are closed."
        ),
    ] = 256 * 2**20
    stalled_s: Annotated[Seconds, _about("Close a socket that reads nothing for this time.")] = 10.0


class LimitsSettings(Group, frozen=True, kw_only=True):
    """Limits that keep one client from using up what belongs to all."""

    frame_rate: Annotated[
        Rate,
        _about("Frames read per second and socket; no limit if it or `message_rate` is 0."),
    ] = 10_000.0
    frame_burst: Annotated[Count, _about("Frames read from a socket in a burst.")] = 10_000
    byte_rate: Annotated[
        Rate, _about("The same for bytes, where every frame counts in steps of 2 KiB.")
    ] = 32.0 * 2**20
    byte_burst: Annotated[Bytes, _about("Bytes read from a socket in a burst.")] = 32 * 2**20
    frames_per_tick: Annotated[
        int, Meta(ge=2), _about("Frames of one socket handled before others get their turn.")
    ] = 512
    flood_s: Annotated[
        Seconds, _about("Close a socket that exceeds its rates without a break for this time.")
    ] = 30.0
    sockets_max: Annotated[
        int, Meta(ge=0), _about("Open WebSockets; 0: as many as the limit of open files allows.")
    ] = 0
    sockets_per_source: Annotated[
        int,
        Meta(ge=0),
        _about(
            "Open WebSockets from one IPv4 address or IPv6 /64; 0: half of all, and no limit for "
            "loopback."
        ),
    ] = 0
    warn_above: Annotated[
        Share,
        _about("`/health` is degraded above this share of a limit; `registry` has its own."),
    ] = 0.90
    identity_share: Annotated[
        Share,
        _about("Share of each total that one identity may use, unless it is set below."),
    ] = 0.25
    source_share: Annotated[
        Share,
        _about("The same for one source: an IPv4 address or an IPv6 /64; loopback is exempt."),
    ] = 0.40
    sessions_per_identity: Annotated[
        Quota, _about("Sessions of one identity; 0: its share of `registry.limit`.")
    ] = 0
    registrations_per_identity: Annotated[
        Quota, _about("Registered actors of one identity; 0: its share of `registry.limit`.")
    ] = 0
    mailboxes_per_identity: Annotated[
        Quota, _about("Mailboxes of one identity; 0: its share of `mailbox.count_max`.")
    ] = 0
    topics_per_identity: Annotated[
        Quota, _about("Durable topics of one identity; 0: its share of `topics.limit`.")
    ] = 0
    subscriptions_per_identity: Annotated[
        Quota, _about("Durable subscriptions of one identity; 0: its share of `dispatch.limit`.")
    ] = 0
    patterns_max: Annotated[Count, _about("Subscriptions to patterns of durable topics.")] = 10_000
    patterns_per_identity: Annotated[
        Quota, _about("The same of one identity; 0: its share of them.")
    ] = 0
    patterns_per_topic: Annotated[
        Count,
        _about("Pattern subscriptions that one topic may match; one identity has its share."),
    ] = 64
    plain_subscriptions_max: Annotated[
        Count, _about("Subscriptions that are not durable, of all sessions.")
    ] = 1_000_000
    plain_subscriptions_per_identity: Annotated[
        Quota, _about("The same of one identity; 0: its share of them.")
    ] = 0
    rooms_per_identity: Annotated[
        Quota,
        _about("Rooms and inboxes of one identity since the start; 0: its share of `rooms.limit`."),
    ] = 0
    places_per_identity: Annotated[
        Quota,
        _about("Durable actors placed or claimed by one identity; 0: its share of `actors.limit`."),
    ] = 0


class DedupSettings(Group, frozen=True, kw_only=True):
    """How long accepted messages are remembered, to detect duplicates."""

    window_s: Annotated[float, Meta(ge=60, le=300), _about("How long duplicates are detected.")] = (
        300.0
    )
    memory_bytes_max: Annotated[Bytes, _about("Memory for ids; when full, the window shrinks.")] = (
        64 * 2**20
    )


class MailboxSettings(Group, frozen=True, kw_only=True):
    """Mailboxes of durable actors, and how they are delivered."""

    limit: Annotated[Count, _about("Messages stored for one actor that is away.")] = 100
    count_max: Annotated[
        Count, _about("Number of durable actors, including those that are away.")
    ] = 100_000
    idle_s: Annotated[Seconds, _about("Delete a mailbox that has been unused for this time.")] = (
        7 * 86_400.0
    )
    window: Annotated[Window, _about("Unacknowledged messages per actor.")] = 256
    ack_timeout_ms: Annotated[Count, _about("Redeliver if not acknowledged within this time.")] = (
        30_000
    )
    max_deliveries: Annotated[
        Count, _about("Failed attempts before a message becomes a dead letter.")
    ] = 6
    backoff_ms: Annotated[Count, _about("Pause before the second attempt; doubles with each.")] = (
        1_000
    )
    backoff_cap_ms: Annotated[Count, _about("Longest pause between attempts.")] = 60_000


class ActorsSettings(Group, frozen=True, kw_only=True):
    """Durable actors: mailboxes of their hosts, and the record of where each actor lives."""

    mailbox_limit: Annotated[Count, _about("Messages stored for one host that is away.")] = 100_000
    window: Annotated[Window, _about("Unacknowledged messages per host.")] = 1_024
    limit: Annotated[
        Count,
        _about("Number of actors that have a place; with forgotten ones there are twice as many."),
    ] = 1_000_000


class TopicsSettings(Group, frozen=True, kw_only=True):
    """Durable topics."""

    auto_create: Annotated[
        bool,
        _about(
            "Create a topic on its first durable publish; with `auth`, if the token permits it."
        ),
    ] = True
    limit: Annotated[Count, _about("Number of durable topics, including dead-letter topics.")] = (
        10_000
    )


class DispatchSettings(Group, frozen=True, kw_only=True):
    """Durable subscriptions; most values are defaults that a subscription may override."""

    heartbeat_ms: Annotated[
        Annotated[int, Meta(ge=0)], _about("Interval of the watchdog; 0 turns it off.")
    ] = 500
    wakes: Annotated[
        bool, _about("Dispatch messages when they are published, not only by the watchdog.")
    ] = True
    window: Annotated[Window, _about("Unacknowledged messages per consumer.")] = 256
    window_bytes: Annotated[Bytes, _about("Unacknowledged bytes per consumer.")] = 8 * 2**20
    ack_timeout_ms: Annotated[Count, _about("Redeliver if not acknowledged within this time.")] = (
        30_000
    )
    max_deliveries: Annotated[
        Count, _about("Failed attempts before the poison policy applies.")
    ] = 6
    backoff_ms: Annotated[Count, _about("Pause before the second attempt; doubles with each.")] = (
        1_000
    )
    backoff_cap_ms: Annotated[Count, _about("Longest pause between attempts.")] = 60_000
    cursor_ms: Annotated[Count, _about("Longest time between two writes of a cursor.")] = 1_000
    cursor_settles: Annotated[
        Count, _about("Most settled messages between two writes of a cursor.")
    ] = 1_000
    failover_ms: Annotated[
        Annotated[int, Meta(ge=0)],
        _about("How long a failover waits for the active consumer to return."),
    ] = 0
    limit: Annotated[Count, _about("Number of durable subscriptions.")] = 100_000
    idle_expiry_s: Annotated[
        Rate,
        _about("Delete a new subscription that had no consumer for this time; 0 for never."),
    ] = 14 * 86_400.0


class LogSettings(Group, frozen=True, kw_only=True):
    """The durable log: syncing, segments and retention."""

    sync: Annotated[
        Literal["always", "interval", "os"],
        _about("Acknowledge after a sync, or sync every `interval_ms`, or leave it to the system."),
    ] = "always"
    interval_ms: Annotated[Count, _about('Time between two syncs with `sync = "interval"`.')] = 100
    segment_bytes: Annotated[
        int, Meta(ge=2**16, le=2**30), _about("Start a new segment at this size.")
    ] = 64 * 2**20
    segment_s: Annotated[Seconds, _about("Start a new segment at this age.")] = 3_600.0
    retention_s: Annotated[Seconds, _about("Delete segments older than this.")] = 172_800.0
    retention_bytes: Annotated[
        Bytes, _about("Delete the oldest segments beyond this total size.")
    ] = 20 * 2**30
    keep_unsettled: Annotated[
        bool, _about("Keep messages that a subscription has not settled.")
    ] = True
    cache_bytes: Annotated[Bytes, _about("Memory for the newest entries.")] = 64 * 2**20
    waiting_bytes_max: Annotated[
        Bytes, _about("What may wait for the disk; sockets that add to it are not read meanwhile.")
    ] = 256 * 2**20


class RoomsSettings(Group, frozen=True, kw_only=True):
    """Rooms and inboxes of end-to-end encrypted messages."""

    enabled: Annotated[bool, _about("Serve rooms and inboxes.")] = True
    mode: Annotated[
        Literal["linked", "blind"],
        _about("`linked`: a room is bound to an inbox; `blind`: the inbox id is the room id."),
    ] = "linked"
    timestamps: Annotated[
        Literal["exact", "coarse", "none"],
        _about("Message times: exact, rounded down to 5 s, or hidden (stored to the hour)."),
    ] = "coarse"
    secret: Annotated[
        str, _about("Key for hashing room and inbox ids; empty: generated once in the data folder.")
    ] = ""
    public: Annotated[
        bool, _about("With `auth`: let everybody use rooms, without token or capability.")
    ] = False
    require_capability: Annotated[
        bool | None,
        _about(
            "Require the inbox id for everything about a room, of holders of tokens as well. "
            "Unset: with `auth` the inbox id or a token, otherwise nothing."
        ),
    ] = None
    echo_to_sender: Annotated[bool, _about("Send messages back to the socket they came from.")] = (
        True
    )
    ciphertext_bytes_max: Annotated[Bytes, _about("Largest ciphertext, decoded.")] = 2**16
    rate: Annotated[Count, _about("Messages per room within `rate_window_s`.")] = 500
    rate_window_s: Annotated[Seconds, _about("Length of the sliding window of `rate`.")] = 5.0
    pseudonym_rate: Annotated[
        int, Meta(ge=0), _about("Messages per pseudonym within `rate_window_s`; 0 for no limit.")
    ] = 0
    append_rate: Annotated[Count, _about("Appends per client, inbox and minute.")] = 120
    fetch_rate: Annotated[Count, _about("Fetches per client, inbox and minute.")] = 60
    refused_rate: Annotated[
        Count,
        _about("Requests without permission per address and minute; beyond it, answer 429."),
    ] = 120
    retention_s: Annotated[Seconds, _about("How long messages are stored.")] = 7 * 86_400.0
    retention: Annotated[
        dict[str, Seconds],
        _about("Retention by prefix of the room or inbox name; the longest prefix applies."),
    ] = {}
    repeat_s: Annotated[Seconds, _about("How long a repeated `messageId` is detected.")] = (
        7 * 86_400.0
    )
    repeat_memory_bytes: Annotated[
        int, Meta(ge=2**22), _about("Memory for message ids; older ones are looked up on disk.")
    ] = 64 * 2**20
    buffer: Annotated[Count, _about("Newest messages per room kept in memory.")] = 500
    buffer_bytes: Annotated[Bytes, _about("Memory for these messages of all rooms.")] = 64 * 2**20
    page_bytes_max: Annotated[Bytes, _about("Size at which a page of an inbox ends.")] = 2 * 2**20
    unarchived_max: Annotated[
        Count, _about("Messages per inbox not yet archived; beyond it, answer 503.")
    ] = 10_000
    unarchived_bytes_max: Annotated[
        Bytes, _about("Bytes per inbox not yet archived; beyond it, answer 503.")
    ] = 64 * 2**20
    disk_bytes_max: Annotated[
        Bytes,
        _about(
            "Bytes of messages and blobs of all rooms in the log that have neither expired nor "
            "been archived or deleted; beyond it, answer 503."
        ),
    ] = 10 * 2**30
    always_query_store: Annotated[
        bool, _about("Query the archive even if memory and log contain the whole page.")
    ] = False
    strict_store: Annotated[bool, _about("Answer 503 instead of a partial page.")] = False
    proposal_s: Annotated[Seconds, _about("Time after which a pending proposal expires.")] = (
        86_400.0
    )
    proposals_max: Annotated[Count, _about("Proposals stored per room.")] = 100
    blob_bytes_max: Annotated[Bytes, _about("Largest metadata or quorum blob.")] = 2**16
    room_state_bytes_max: Annotated[Bytes, _about("Size of proposals and blobs per room.")] = 2**20
    state_bytes_max: Annotated[
        Bytes, _about("Size of proposals and blobs of all rooms; beyond it, answer 503.")
    ] = 64 * 2**20
    state_rate: Annotated[
        Count, _about("Requests for blobs and proposals per client, room and minute.")
    ] = 240
    socket_queue: Annotated[Count, _about("Frames queued for a slow socket.")] = 1_024
    limit: Annotated[Count, _about("Number of rooms and inboxes.")] = 1_000_000

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "secret", Secret(self.secret))


class PipelineSettings(Group, frozen=True, kw_only=True):
    """The pipeline from the log into the lake, and retention there."""

    run: Annotated[
        Literal["off", "beside", "elsewhere"],
        _about(
            "`beside`: as a child process of the hub; `elsewhere`: started separately; `off`: no "
            "lake."
        ),
    ] = "off"
    lake: Annotated[str, _about("Folder or URI of the tables; empty: in the data folder.")] = ""
    master: Annotated[
        str, _about("Spark master; empty: one core as a child of the hub, otherwise all cores.")
    ] = ""
    spark: Annotated[
        Literal["needed", "always"],
        _about(
            "`needed`: what is small or simple is done without Spark if the lake is a local "
            "folder; `always`: Spark writes every row and makes every audit."
        ),
    ] = "needed"
    batch_entries: Annotated[Count, _about("New entries at which a micro-batch starts.")] = 100
    batch_s: Annotated[Seconds, _about("Longest time before a smaller micro-batch starts.")] = 5.0
    inbox_s: Annotated[Seconds, _about("Interval between updates of the table `inbox`.")] = 15.0
    shape_s: Annotated[
        Seconds,
        _about("Interval between updates of other derived tables; longer while the hub is busy."),
    ] = 60.0
    maintain_s: Annotated[
        Seconds, _about("Interval between runs of upkeep: expiry, compaction, vacuum.")
    ] = 3_600.0
    retention_s: Annotated[
        Seconds, _about("How long the lake keeps everything except inboxes.")
    ] = 400 * 86_400.0
    vacuum_s: Annotated[Seconds, _about("How long replaced files are kept for readers.")] = 86_400.0
    commits_s: Annotated[
        float,
        Meta(ge=600),
        _about("How long commits of tables are kept for streaming readers."),
    ] = 3_600.0
    memory: Annotated[
        str, Meta(pattern="^[1-9][0-9]*[kmgKMG]$"), _about("Memory of the Spark driver.")
    ] = "1g"


class Settings(Group, frozen=True, kw_only=True):
    """The hub itself."""

    host: Annotated[str, _about("Address to listen on; other than loopback requires `auth`.")] = (
        "127.0.0.1"
    )
    port: Annotated[Port, _about("Port to listen on; 0 picks a free one.")] = 8787
    data: Annotated[str, _about("Data folder.")] = "data"
    origins: Annotated[
        tuple[str, ...], _about("Allowed browser origins; empty: loopback only.")
    ] = ()
    hosts: Annotated[
        tuple[str, ...],
        _about(
            "Names in the `Host` header that are served, with a port if only that one is; loopback"
            " names and the bound address always are."
        ),
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...],
        _about("Addresses or networks of proxies whose `X-Forwarded-For` is believed."),
    ] = ()
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _about("Lowest level that is logged.")
    ] = "info"
    log_format: Annotated[
        Literal["auto", "human", "json"], _about("`auto`: human on a terminal, otherwise JSON.")
    ] = "auto"

    message_bytes_max: Annotated[Bytes, _about("Largest message.")] = 2**20
    frame_bytes_max: Annotated[
        Bytes, _about("Largest frame; a socket that sends more is closed with 1009.")
    ] = 8 * 2**20
    hello_bytes_max: Annotated[
        Bytes, _about("Most bytes a socket may send before `hub:connect`.")
    ] = 2**16
    hello_s: Annotated[Seconds, _about("Longest time from TCP accept to `hub:connect`.")] = 5.0
    drain_s: Annotated[Seconds, _about("How long to wait on SIGTERM for sockets to flush.")] = 5.0
    heartbeat_ms: Annotated[Count, _about("Heartbeat interval sent to clients.")] = 100_000
    heartbeat_push_s: Annotated[
        Rate,
        _about(
            "Interval between unsolicited heartbeat acks, for clients that need them; 0 for none."
        ),
    ] = 0.0

    message_rate: Annotated[Rate, _about("Messages per second and socket; 0 for no limit.")] = (
        1_000.0
    )
    message_burst: Annotated[Count, _about("Messages a socket may send in a burst.")] = 1_000
    connection_rate: Annotated[Rate, _about("New sockets per second; 0 for no limit.")] = 100.0
    connection_burst: Annotated[Count, _about("New sockets in a burst.")] = 100

    subscriptions_max: Annotated[Count, _about("Subscriptions per session, plain and durable.")] = (
        1_000
    )
    broadcast_batch: Annotated[
        Count,
        _about("Recipients of a broadcast written at once, and of any fan-out in each later tick."),
    ] = 100
    fanout_batch: Annotated[
        Count,
        _about(
            "Subscribers of a topic written at once; the others follow, `broadcast_batch` per tick."
        ),
    ] = 500

    metrics_subscriptions_max: Annotated[
        Count, _about("Durable subscriptions with their own metrics; the others share one set.")
    ] = 500

    auth: AuthSettings = AuthSettings()
    metrics: MetricsSettings = MetricsSettings()
    ui: UiSettings = UiSettings()
    registry: RegistrySettings = RegistrySettings()
    outbound: OutboundSettings = OutboundSettings()
    limits: LimitsSettings = LimitsSettings()
    dedup: DedupSettings = DedupSettings()
    log: LogSettings = LogSettings()
    mailbox: MailboxSettings = MailboxSettings()
    actors: ActorsSettings = ActorsSettings()
    topics: TopicsSettings = TopicsSettings()
    dispatch: DispatchSettings = DispatchSettings()
    rooms: RoomsSettings = RoomsSettings()
    pipeline: PipelineSettings = PipelineSettings()

    @property
    def denial_list(self) -> str:
        """Where the denial list is."""
        return self.auth.denied_file or f"{self.data}/{DENIED_NAME}"


def problems(settings: Settings) -> Iterator[str]:
    """Invalid combinations of values, one sentence each."""
    yield from _exposure(settings)
    yield from _keys(settings.auth)
    yield from _names(settings)
    if settings.rooms.secret:
        yield from _weak("rooms.secret", settings.rooms.secret)
    if settings.rooms.public and settings.rooms.require_capability:
        yield (
            "rooms.public and rooms.require_capability contradict each other: turn off one of them"
        )
    yield from _order(settings)


def _exposure(settings: Settings) -> Iterator[str]:
    auth = settings.auth
    if not auth.enabled and not authority.is_loopback(settings.host):
        yield (
            f"host {settings.host!r} is reachable from other machines but auth.enabled is false: "
            "turn on auth.enabled and add a key, or listen on 127.0.0.1"
        )
    if auth.enabled and not (auth.secret or auth.keys or auth.jwks_file or auth.jwks_url):
        yield (
            "auth.enabled is true but there is no key to verify tokens: set auth.secret, or add a "
            "table [auth.keys.NAME]"
        )
    if settings.metrics.access == "token" and not auth.enabled:
        yield (
            "metrics.access is token but auth.enabled is false: turn on auth.enabled, or choose "
            "loopback or open"
        )


def _keys(auth: AuthSettings) -> Iterator[str]:
    if auth.secret:
        yield from _weak("auth.secret", auth.secret)
    if auth.jwks_file and auth.jwks_url:
        yield "auth.jwks_file and auth.jwks_url exclude each other: unset one of them"
    if auth.jwks_url and not _is_trustworthy(auth.jwks_url):
        yield (
            f"auth.jwks_url {auth.jwks_url!r} could be changed on its way: use an https URL, or "
            "http on a loopback address"
        )
    for kid, key in auth.keys.items():
        path = f"auth.keys.{kid}"
        if key.algorithm == "HS256":
            if key.secret:
                yield from _weak(f"{path}.secret", key.secret)
            else:
                yield (
                    f"{path} is an HS256 key without a secret: set {path}.secret, or set "
                    f'{path}.algorithm to "EdDSA" and {path}.public_key'
                )
        elif not _is_public_key(key.public_key):
            yield (
                f"{path}.public_key is not an Ed25519 public key in PEM: include everything from "
                "-----BEGIN PUBLIC KEY----- on"
            )


def _is_trustworthy(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_plain = bool(host) and parts.username is None and parts.port != 0
    except ValueError:
        return False
    return is_plain and (
        parts.scheme == "https" or (parts.scheme == "http" and authority.is_loopback(host))
    )


def _names(settings: Settings) -> Iterator[str]:
    for given in settings.hosts:
        if authority.parse(given) is None:
            yield (
                f"hosts: {given!r} is not the name of a host: write it like hub.example.org, "
                "without scheme and path"
            )
    for given in settings.trusted_proxies:
        try:
            ipaddress.ip_network(given)
        except ValueError:
            yield (
                f"trusted_proxies: {given!r} is neither an address nor a network: write it like "
                "127.0.0.1 or 10.0.0.0/8"
            )


def _weak(path: str, secret: str) -> Iterator[str]:
    size = len(secret.encode())
    if size < SECRET_BYTES_MIN:
        yield (
            f"{path} is too short ({size} bytes): use at least {SECRET_BYTES_MIN}, preferably 32 "
            "random bytes"
        )


def _is_public_key(pem: str) -> bool:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        return isinstance(load_pem_public_key(pem.encode()), Ed25519PublicKey)
    except (ValueError, UnsupportedAlgorithm):
        return False


def _order(settings: Settings) -> Iterator[str]:
    pause, resume = settings.outbound.pause_messages, settings.outbound.resume_messages
    if resume >= pause:
        yield (
            f"outbound.resume_messages ({resume}) must be below outbound.pause_messages ({pause}): "
            "lower the first or raise the second"
        )
    if settings.heartbeat_ms >= settings.registry.lease_s * 1000:
        yield (
            f"heartbeat_ms ({settings.heartbeat_ms}) must be below registry.lease_s "
            f"({settings.registry.lease_s:g} s), or leases expire between heartbeats: use a third "
            "of the lease"
        )
    for low_path, high_path in _NOT_ABOVE:
        low, high = attrgetter(low_path, high_path)(settings)
        if low > high:
            yield (
                f"{low_path} ({low}) must not exceed {high_path} ({high}): lower the first or "
                "raise the second"
            )


_NOT_ABOVE = (
    ("outbound.pause_messages", "outbound.messages_max"),
    ("registry.warn_above", "registry.refuse_above"),
    ("registry.lease_s", "registry.lease_max_s"),
    ("message_bytes_max", "frame_bytes_max"),
    ("mailbox.backoff_ms", "mailbox.backoff_cap_ms"),
    ("dispatch.backoff_ms", "dispatch.backoff_cap_ms"),
)
