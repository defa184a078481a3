"""The one settings object.

Read order: defaults, then the TOML file, then `SIGNALHUB_*` variables, then command-line options.
A setting `registry.limit` is the key `limit` in the table `[registry]` and the variable
`SIGNALHUB_REGISTRY_LIMIT`. Everything that can grow has its limit here.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Bytes = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Share = Annotated[float, Meta(gt=0, le=1)]


class Secret(str):
    """Text that never shows itself in a repr, a log line or `settings show`."""

    def __repr__(self) -> str:
        return "'•••'"


class Group(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=None
):
    """Base of all tables: unknown keys are refused."""


class Key(Group):
    """One verification key, chosen by the token's `kid`."""

    algorithm: Literal["HS256", "EdDSA"] = "HS256"
    secret: str = ""  # HS256: the shared secret, used as its UTF-8 bytes.
    public_key: str = ""  # EdDSA: the public key in PEM.


class Auth(Group):
    """Who may connect; off is for loopback only."""

    enabled: bool = False
    secret: str = ""  # A single HS256 secret, for tokens without `kid`.
    keys: dict[str, Key] = {}  # Keys by `kid`.
    issuer: str = "signal-hub"
    token_age_max_s: Seconds = 86_400.0
    refreshed_token_s: Seconds = 3_600.0


class Registry(Group):
    """Actors: how many, and for how long without a sign of life."""

    limit: Count = 50_000
    refuse_above: Share = 0.95
    warn_above: Share = 0.90
    lease_s: Seconds = 300.0
    lease_max_s: Seconds = 3_600.0
    sweep_s: Seconds = 60.0


class Outbound(Group):
    """What may wait for one slow reader."""

    pause_messages: Count = 1_000
    resume_messages: Count = 500
    messages_max: Count = 10_000
    bytes_max: Bytes = 8 * 2**20
    stalled_s: Seconds = 10.0


class Dedup(Group):
    """How long an accepted ask is remembered."""

    window_s: Annotated[float, Meta(ge=60, le=300)] = 300.0
    memory_bytes_max: Bytes = 64 * 2**20


class Settings(Group):
    """Signal Hub's settings."""

    host: str = "127.0.0.1"
    port: Port = 8787
    data: str = "data"  # Folder for everything that survives a restart.
    origins: tuple[str, ...] = ()  # Browser origins admitted; empty admits loopback only.
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "human", "json"] = "auto"

    message_bytes_max: Bytes = 2**20
    frame_bytes_max: Bytes = 8 * 2**20  # Beyond it the socket is closed with 1009.
    hello_bytes_max: Bytes = 2**16  # Before `hub:connect` succeeds.
    hello_s: Seconds = 5.0  # From TCP accept to `hub:connect`.
    drain_s: Seconds = 5.0  # How long SIGTERM waits for sockets to flush.
    heartbeat_ms: Count = 100_000
    heartbeat_push_s: Rate = 0.0  # Unsolicited heartbeat acks for clients that need them; 0 = off.

    message_rate: Rate = 1_000.0  # Messages per second and socket; 0 = off.
    message_burst: Count = 1_000
    connection_rate: Rate = 100.0  # New sockets per second; 0 = off.
    connection_burst: Count = 100

    broadcast_batch: Count = 100
    fanout_batch: Count = 500

    auth: Auth = Auth()
    registry: Registry = Registry()
    outbound: Outbound = Outbound()
    dedup: Dedup = Dedup()
