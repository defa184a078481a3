"""The one settings object: every value, its default, its bounds and what it is for.

Read order: defaults, then the TOML file, then `SIGNALHUB_*` variables, then command-line options;
`settings_load` does the reading. A setting `registry.limit` is the key `limit` in the table
`[registry]` and the variable `SIGNALHUB_REGISTRY_LIMIT`. Everything that can grow has its limit
here. What a field is for is said in its annotation, from which the reference page is made.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Bytes = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Share = Annotated[float, Meta(gt=0, le=1)]
Window = Annotated[int, Meta(ge=1, le=10_000)]

SECRET_BYTES_MIN = 16
HIDDEN = "•••"


class Secret(str):
    """Text that does not show itself in a repr, a format or a log line; `encode` gives it away."""

    __slots__ = ()

    def __new__(cls, text: str) -> Secret:
        # Making a secret of a secret must copy the text, not its disguise.
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
    """Base of all tables: unknown keys are refused."""


class Key(Group, frozen=True, kw_only=True):
    """One verification key, chosen by the token's `kid`."""

    algorithm: Annotated[Literal["HS256", "EdDSA"], _about("How tokens are signed.")] = "HS256"
    secret: Annotated[str, _about("HS256: the shared secret, used as its UTF-8 bytes.")] = ""
    public_key: Annotated[str, _about("EdDSA: the public key in PEM.")] = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "secret", Secret(self.secret))


class Auth(Group, frozen=True, kw_only=True):
    """Who may connect. Off is for loopback only."""

    enabled: Annotated[bool, _about("Ask every connection for a token.")] = False
    secret: Annotated[str, _about("A single HS256 secret, for tokens without `kid`.")] = ""
    keys: Annotated[dict[str, Key], _about("Verification keys by `kid`.")] = {}
    issuer: Annotated[str, _about("The `iss` a token must carry, and refreshed ones get.")] = (
        "signal-hub"
    )
    token_age_max_s: Annotated[Seconds, _about("A token older than this is refused.")] = 86_400.0
    refreshed_token_s: Annotated[Seconds, _about("How long a refreshed token lives.")] = 3_600.0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "secret", Secret(self.secret))


class Registry(Group, frozen=True, kw_only=True):
    """Actors: how many, and for how long without a sign of life."""

    limit: Annotated[Count, _about("Registered actors the hub is sized for.")] = 50_000
    refuse_above: Annotated[Share, _about("Share of the limit above which it refuses.")] = 0.95
    warn_above: Annotated[Share, _about("Share of the limit above which it warns.")] = 0.90
    lease_s: Annotated[Seconds, _about("How long a registration lasts unrenewed.")] = 300.0
    lease_max_s: Annotated[Seconds, _about("The longest lease an actor may ask for.")] = 3_600.0
    sweep_s: Annotated[Seconds, _about("Pause between looks at renewed and ended leases.")] = 60.0


class Outbound(Group, frozen=True, kw_only=True):
    """What may wait for one slow reader."""

    pause_messages: Annotated[Count, _about("Waiting messages at which senders pause.")] = 1_000
    resume_messages: Annotated[Count, _about("Waiting messages at which they resume.")] = 500
    messages_max: Annotated[Count, _about("Waiting messages beyond which tells drop.")] = 10_000
    bytes_max: Annotated[Bytes, _about("Waiting bytes beyond which tells drop.")] = 8 * 2**20
    stalled_s: Annotated[Seconds, _about("A reader that takes nothing this long is closed.")] = 10.0


class Dedup(Group, frozen=True, kw_only=True):
    """How long an accepted ask is remembered."""

    window_s: Annotated[float, Meta(ge=60, le=300), _about("For how long a repeat is known.")] = (
        300.0
    )
    memory_bytes_max: Annotated[Bytes, _about("Beyond it the window gets shorter.")] = 64 * 2**20


class Mailbox(Group, frozen=True, kw_only=True):
    """What is kept for durable actors that are away, and how it is delivered."""

    limit: Annotated[Count, _about("Messages kept for one actor that is away.")] = 100
    count_max: Annotated[Count, _about("Durable actors, away ones included.")] = 100_000
    idle_s: Annotated[Seconds, _about("A mailbox unused for so long is dropped.")] = 7 * 86_400.0
    window: Annotated[Window, _about("Messages in flight to an actor that acknowledges.")] = 256
    ack_timeout_ms: Annotated[Count, _about("After it an unacknowledged one comes again.")] = 30_000
    max_deliveries: Annotated[Count, _about("Failed attempts until it is a dead letter.")] = 6
    backoff_ms: Annotated[Count, _about("Pause before the second attempt; doubles.")] = 1_000
    backoff_cap_ms: Annotated[Count, _about("The longest pause between attempts.")] = 60_000


class Actors(Group, frozen=True, kw_only=True):
    """Durable actors, which live in hosts: the mailboxes of hosts, and where each actor lives."""

    mailbox_limit: Annotated[Count, _about("Messages kept for one host that is away.")] = 100_000
    window: Annotated[Window, _about("Messages in flight to a host that acknowledges.")] = 1_024
    limit: Annotated[Count, _about("Actors whose place the hub remembers.")] = 1_000_000


class Topics(Group, frozen=True, kw_only=True):
    """Durable topics."""

    auto_create: Annotated[
        bool, _about("A durable publish makes its topic; with `auth`, where the token permits it.")
    ] = True
    limit: Annotated[Count, _about("Durable topics, dead-letter topics included.")] = 10_000


class Dispatch(Group, frozen=True, kw_only=True):
    """Durable subscriptions; most values are defaults a subscription may override."""

    heartbeat_ms: Annotated[
        Annotated[int, Meta(ge=0)], _about("The watchdog looks this often; 0: never.")
    ] = 500
    wakes: Annotated[
        bool, _about("Dispatch at once what was published; off leaves it to the watchdog.")
    ] = True
    window: Annotated[Window, _about("Messages in flight to one consumer.")] = 256
    window_bytes: Annotated[Bytes, _about("Bytes in flight to one consumer.")] = 8 * 2**20
    ack_timeout_ms: Annotated[Count, _about("After it an unacknowledged one comes again.")] = 30_000
    max_deliveries: Annotated[Count, _about("Failed attempts until the poison policy.")] = 6
    backoff_ms: Annotated[Count, _about("Pause before the second attempt; doubles.")] = 1_000
    backoff_cap_ms: Annotated[Count, _about("The longest pause between attempts.")] = 60_000
    cursor_ms: Annotated[Count, _about("Cursors are written at least this often.")] = 1_000
    cursor_settles: Annotated[Count, _about("And after so many settled messages.")] = 1_000
    failover_ms: Annotated[
        Annotated[int, Meta(ge=0)], _about("How long a failover waits for the active consumer.")
    ] = 0
    limit: Annotated[Count, _about("Durable subscriptions.")] = 100_000


class Log(Group, frozen=True, kw_only=True):
    """The durable log: when it is synced, how it is cut into segments, how long they are kept."""

    sync: Annotated[
        Literal["always", "interval", "os"],
        _about("When an entry counts: on the disk, or written and synced every interval, or never"),
    ] = "always"
    interval_ms: Annotated[Count, _about("Pause between two syncs with `interval`.")] = 100
    segment_bytes: Annotated[
        int, Meta(ge=2**16, le=2**30), _about("Size at which a new segment is begun.")
    ] = 64 * 2**20
    segment_s: Annotated[Seconds, _about("Age at which a new segment is begun.")] = 3_600.0
    retention_s: Annotated[Seconds, _about("Age at which a segment is deleted.")] = 172_800.0
    retention_bytes: Annotated[Bytes, _about("All segments; beyond it the oldest go.")] = 20 * 2**30
    keep_unsettled: Annotated[bool, _about("Delete nothing somebody has yet to settle.")] = True
    cache_bytes: Annotated[Bytes, _about("The newest entries kept in memory.")] = 64 * 2**20


class Rooms(Group, frozen=True, kw_only=True):
    """Rooms and inboxes of end-to-end encrypted messages."""

    enabled: Annotated[bool, _about("Serve rooms and inboxes on the hub's port.")] = True
    mode: Annotated[
        Literal["linked", "blind"],
        _about("`linked`: a room is bound to an inbox; `blind`: the inbox id is the room id."),
    ] = "linked"
    timestamps: Annotated[
        Literal["exact", "coarse", "none"],
        _about("Times of messages as they are, floored to 5 s, or untold (floored to the hour)."),
    ] = "coarse"
    secret: Annotated[
        str, _about("Key that hashes room and inbox ids; empty: made once, in the data folder.")
    ] = ""
    require_capability: Annotated[
        bool, _about("Sending to a room and joining it need its inbox id, too.")
    ] = False
    echo_to_sender: Annotated[bool, _about("A socket hears what it sent itself.")] = True
    ciphertext_bytes_max: Annotated[Bytes, _about("The largest ciphertext, decoded.")] = 2**16
    rate: Annotated[Count, _about("Messages a room takes in `rate_window_s`.")] = 500
    rate_window_s: Annotated[Seconds, _about("The sliding window of `rate`.")] = 5.0
    pseudonym_rate: Annotated[
        int, Meta(ge=0), _about("Of these, what one pseudonym may send; 0: no such limit.")
    ] = 0
    append_rate: Annotated[Count, _about("Appends to one inbox per minute.")] = 120
    fetch_rate: Annotated[Count, _about("Fetches from one inbox per minute.")] = 60
    retention_s: Annotated[Seconds, _about("How long a message can be read.")] = 7 * 86_400.0
    retention: Annotated[
        dict[str, Seconds],
        _about("The same for rooms or inboxes whose name begins so; the longest one counts."),
    ] = {}
    repeat_s: Annotated[Seconds, _about("For how long a repeated `messageId` is known.")] = (
        7 * 86_400.0
    )
    repeat_memory_bytes: Annotated[
        int, Meta(ge=2**22), _about("Memory for these ids; older ones are looked up on disk.")
    ] = 64 * 2**20
    buffer: Annotated[Count, _about("Newest messages of a room kept in memory.")] = 500
    buffer_bytes: Annotated[Bytes, _about("The same for all rooms together.")] = 64 * 2**20
    page_bytes_max: Annotated[Bytes, _about("A page of an inbox ends at this size.")] = 2 * 2**20
    unarchived_max: Annotated[
        Count, _about("Messages of an inbox that wait for the archive; then 503.")
    ] = 10_000
    unarchived_bytes_max: Annotated[Bytes, _about("The same in bytes.")] = 64 * 2**20
    always_query_store: Annotated[
        bool, _about("Ask the archive also when memory and log hold the whole page.")
    ] = False
    strict_store: Annotated[
        bool, _about("Answer 503 rather than a partial page when the archive is away.")
    ] = False
    proposal_s: Annotated[Seconds, _about("A pending proposal expires after this.")] = 86_400.0
    proposals_max: Annotated[Count, _about("Proposals a room remembers.")] = 100
    blob_bytes_max: Annotated[Bytes, _about("The largest metadata or quorum blob.")] = 2**16
    room_state_bytes_max: Annotated[Bytes, _about("Proposals and blobs of one room.")] = 2**20
    state_bytes_max: Annotated[
        Bytes, _about("Proposals and blobs of all rooms together; then 503.")
    ] = 64 * 2**20
    state_rate: Annotated[
        Count, _about("Requests for blobs and proposals of one room per minute.")
    ] = 240
    socket_queue: Annotated[Count, _about("Frames that may wait for a slow socket.")] = 1_024
    limit: Annotated[Count, _about("Rooms and inboxes the hub remembers.")] = 1_000_000

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "secret", Secret(self.secret))


class Pipeline(Group, frozen=True, kw_only=True):
    """The way of everything in the log into the lake, and how long it stays there."""

    run: Annotated[
        Literal["off", "beside", "elsewhere"],
        _about(
            "`beside`: the hub runs it; `elsewhere`: somebody else does; `off`: the hub neither "
            "reads the lake nor waits for it."
        ),
    ] = "off"
    lake: Annotated[str, _about("Folder or address of the tables; empty: in the data folder.")] = ""
    master: Annotated[
        str, _about("Where Spark runs; empty: one core beside the hub, else all of them.")
    ] = ""
    batch_entries: Annotated[Count, _about("Waiting entries at which a batch begins.")] = 100
    batch_s: Annotated[Seconds, _about("How long fewer of them wait.")] = 5.0
    inbox_s: Annotated[Seconds, _about("Pause between two updates of the table `inbox`.")] = 15.0
    shape_s: Annotated[
        Seconds, _about("The same for the other derived tables; a busy hub delays them.")
    ] = 60.0
    maintain_s: Annotated[Seconds, _about("Pause between two looks at files and retention.")] = (
        3_600.0
    )
    retention_s: Annotated[Seconds, _about("How long the lake keeps what is in no inbox.")] = (
        400 * 86_400.0
    )
    vacuum_s: Annotated[Seconds, _about("How long replaced files stay, for readers of them.")] = (
        86_400.0
    )
    commits_s: Annotated[
        float,
        Meta(ge=600),
        _about("How long tables know single commits, for streams that read them."),
    ] = 3_600.0
    memory: Annotated[
        str, Meta(pattern="^[1-9][0-9]*[kmgKMG]$"), _about("Memory of Spark's own process.")
    ] = "1g"


class Settings(Group, frozen=True, kw_only=True):
    """The hub itself."""

    host: Annotated[str, _about("Address to listen on; beyond loopback needs `auth`.")] = (
        "127.0.0.1"
    )
    port: Annotated[Port, _about("Port to listen on; 0 lets the system choose.")] = 8787
    data: Annotated[str, _about("Folder for everything that survives a restart.")] = "data"
    origins: Annotated[
        tuple[str, ...], _about("Browser origins admitted; none admits loopback only.")
    ] = ()
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _about("The least severe line logged.")
    ] = "info"
    log_format: Annotated[
        Literal["auto", "human", "json"], _about("`auto`: human on a terminal, else JSON.")
    ] = "auto"

    message_bytes_max: Annotated[Bytes, _about("The largest message.")] = 2**20
    frame_bytes_max: Annotated[Bytes, _about("Beyond it the socket is closed with 1009.")] = (
        8 * 2**20
    )
    hello_bytes_max: Annotated[Bytes, _about("All a socket may send before `hub:connect`.")] = 2**16
    hello_s: Annotated[Seconds, _about("From TCP accept to `hub:connect`.")] = 5.0
    drain_s: Annotated[Seconds, _about("How long SIGTERM waits for sockets to flush.")] = 5.0
    heartbeat_ms: Annotated[Count, _about("Heartbeat interval advertised to clients.")] = 100_000
    heartbeat_push_s: Annotated[
        Rate, _about("Pause between unsolicited heartbeat acks, for clients that need them; 0: off")
    ] = 0.0

    message_rate: Annotated[Rate, _about("Messages per second and socket; 0: no limit.")] = 1_000.0
    message_burst: Annotated[Count, _about("Messages a socket may send at once.")] = 1_000
    connection_rate: Annotated[Rate, _about("New sockets per second; 0: no limit.")] = 100.0
    connection_burst: Annotated[Count, _about("New sockets at once.")] = 100

    subscriptions_max: Annotated[Count, _about("Topics one session may hear.")] = 1_000
    broadcast_batch: Annotated[
        Count, _about("Recipients of a broadcast at once, and per turn after that.")
    ] = 100
    fanout_batch: Annotated[
        Count, _about("Subscribers written at once; the others follow like a broadcast's.")
    ] = 500

    metrics_subscriptions_max: Annotated[
        Count, _about("Durable subscriptions with metrics of their own; the others share theirs.")
    ] = 500

    auth: Auth = Auth()
    registry: Registry = Registry()
    outbound: Outbound = Outbound()
    dedup: Dedup = Dedup()
    log: Log = Log()
    mailbox: Mailbox = Mailbox()
    actors: Actors = Actors()
    topics: Topics = Topics()
    dispatch: Dispatch = Dispatch()
    rooms: Rooms = Rooms()
    pipeline: Pipeline = Pipeline()


def problems(settings: Settings) -> Iterator[str]:
    """What the single values cannot show: one sentence per combination that would not work."""
    yield from _exposure(settings)
    yield from _keys(settings.auth)
    if settings.rooms.secret:
        yield from _weak("rooms.secret", settings.rooms.secret)
    yield from _order(settings)


def _exposure(settings: Settings) -> Iterator[str]:
    auth = settings.auth
    if not auth.enabled and not _is_loopback(settings.host):
        yield (
            f"host {settings.host!r} is open to other machines while auth.enabled is false: turn "
            "on auth.enabled and give it a key, or listen on 127.0.0.1"
        )
    if auth.enabled and not auth.secret and not auth.keys:
        yield (
            "auth.enabled is true but there is no key to check tokens with: set auth.secret, or "
            "add a table [auth.keys.NAME]"
        )


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _keys(auth: Auth) -> Iterator[str]:
    if auth.secret:
        yield from _weak("auth.secret", auth.secret)
    for kid, key in auth.keys.items():
        path = f"auth.keys.{kid}"
        if key.algorithm == "HS256":
            if key.secret:
                yield from _weak(f"{path}.secret", key.secret)
            else:
                yield (
                    f"{path} is an HS256 key without a secret: set {path}.secret, or set "
                    f'{path}.algorithm to "EdDSA" and give it a public_key'
                )
        elif not _is_public_key(key.public_key):
            yield (
                f"{path} is an EdDSA key whose public_key is no Ed25519 public key in PEM: paste "
                "the whole text from -----BEGIN PUBLIC KEY----- on"
            )


def _weak(path: str, secret: str) -> Iterator[str]:
    size = len(secret.encode())
    if size < SECRET_BYTES_MIN:
        yield (
            f"{path} can be guessed: its length in bytes is {size}, use at least "
            f"{SECRET_BYTES_MIN}, better 32 random ones"
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
            f"({settings.registry.lease_s:g} s), or idle actors vanish between two heartbeats: "
            "a third of the lease is a good value"
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
