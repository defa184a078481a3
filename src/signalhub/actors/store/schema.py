"""The tables of one host, and the meaning of their rows."""

from __future__ import annotations

from typing import Final

from signalhub.sqlite import Schema

APPLICATION_ID: Final = 0x5348_4143
VERSION: Final = 1

# Held rows: their actor is arriving, leaving, or has no known place.
HELD_MS: Final = 1 << 62

# Keys of the table `meta`: how far the wall clock was ahead, and the newest own time.
CLOCK_AHEAD: Final = "clock_ahead_ms"
CLOCK_NEWEST: Final = "clock_ms"

CREATE: Final = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};

-- `host`, `instance`, `last_ulid`, `seen_ms`: the newest time of acceptance among deliveries,
-- `clock_ahead_ms` and `clock_ms` for the time of the next process.
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;

-- Actors this host has, had, or is receiving. `status` is a `PlaceStatus`.
CREATE TABLE actors (
    address TEXT PRIMARY KEY,
    token INTEGER NOT NULL,
    status TEXT NOT NULL
) WITHOUT ROWID;

-- Messages to send, in the order of `msg_id`; for a request this is its call id. `since_ms` is when
-- it was made. Here and below, times are the host's own time unless said
-- otherwise.
CREATE TABLE outbox (
    actor TEXT NOT NULL,
    dest TEXT NOT NULL,
    msg_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    call_id TEXT NOT NULL,
    host TEXT NOT NULL,
    is_ordered INTEGER NOT NULL,
    payload BLOB NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    expires_ms INTEGER,
    since_ms INTEGER,
    PRIMARY KEY (actor, dest, msg_id)
) WITHOUT ROWID;
CREATE INDEX outbox_lane ON outbox (host, is_ordered, msg_id);

-- How far each lane was ever sent, receipt or not: rows beyond that were never sent.
CREATE TABLE lanes (
    host TEXT NOT NULL,
    is_ordered INTEGER NOT NULL,
    sent_to TEXT NOT NULL,
    PRIMARY KEY (host, is_ordered)
) WITHOUT ROWID;

-- Messages that arrived and did not run in the same turn, in the order of `arrival_id`.
-- `not_before_ms` is 0 for ready rows, and negative for held rows that also have a pause.
CREATE TABLE inbox (
    actor TEXT NOT NULL,
    arrival_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    call_id TEXT NOT NULL,
    sender TEXT NOT NULL,
    payload BLOB NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    not_before_ms INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (actor, arrival_id)
) WITHOUT ROWID;
CREATE UNIQUE INDEX inbox_once ON inbox (actor, kind, call_id);
CREATE INDEX inbox_ready ON inbox (not_before_ms, arrival_id);

-- Calls whose outcome is awaited; `dest` is '' for offloaded work.
CREATE TABLE pending (
    actor TEXT NOT NULL,
    call_id TEXT NOT NULL,
    dest TEXT NOT NULL,
    method TEXT NOT NULL,
    "then" BLOB,
    catch BLOB,
    errors_only INTEGER NOT NULL,
    context BLOB NOT NULL,
    deadline_ms INTEGER,
    idem_key TEXT,
    PRIMARY KEY (actor, call_id)
) WITHOUT ROWID;

-- Idempotency keys and the calls made with them.
CREATE TABLE keys (
    actor TEXT NOT NULL,
    idem_key TEXT NOT NULL,
    call_id TEXT NOT NULL,
    until_ms INTEGER NOT NULL,
    PRIMARY KEY (actor, idem_key)
) WITHOUT ROWID;
CREATE INDEX keys_until ON keys (until_ms);

-- Tombstones of requests from other hosts, added in the order of time. `accepted_ms` is the hub's.
CREATE TABLE done (
    row_id INTEGER PRIMARY KEY,
    actor TEXT NOT NULL,
    call_id TEXT NOT NULL,
    accepted_ms INTEGER NOT NULL,
    UNIQUE (actor, call_id)
);

-- Requests with a deferred answer.
CREATE TABLE deferred (
    actor TEXT NOT NULL,
    token TEXT NOT NULL,
    caller TEXT NOT NULL,
    call_id TEXT NOT NULL,
    PRIMARY KEY (actor, token)
) WITHOUT ROWID;

-- Offloaded work that has not ended.
CREATE TABLE offloads (
    actor TEXT NOT NULL,
    call_id TEXT NOT NULL,
    function TEXT NOT NULL,
    arguments BLOB NOT NULL,
    PRIMARY KEY (actor, call_id)
) WITHOUT ROWID;

-- Times of day (types `scheduled` and `cron`) are those of the wall clock; but if `due_ms` is not
-- `occurrence_ms`, the alarm waits for the end of a pause.
CREATE TABLE alarms (
    actor TEXT NOT NULL,
    id TEXT NOT NULL,
    type TEXT NOT NULL,
    due_ms INTEGER NOT NULL,
    occurrence_ms INTEGER NOT NULL,
    spec TEXT NOT NULL,
    continuation BLOB NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending',
    generation TEXT NOT NULL,
    last_error TEXT,
    PRIMARY KEY (actor, id)
) WITHOUT ROWID;

-- `dead_ms` is the wall clock's.
CREATE TABLE dead (
    actor TEXT NOT NULL,
    dead_id TEXT NOT NULL,
    origin TEXT NOT NULL,
    call_id TEXT NOT NULL,
    payload BLOB NOT NULL,
    error TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    dead_ms INTEGER NOT NULL,
    PRIMARY KEY (actor, dead_id)
) WITHOUT ROWID;
CREATE INDEX dead_calls ON dead (actor, call_id);

CREATE TABLE state (
    actor TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (actor, key)
) WITHOUT ROWID;

-- Actors that are moving from here (`leaving`) or to here (`arriving`), and the present step.
CREATE TABLE moves (
    actor TEXT PRIMARY KEY,
    direction TEXT NOT NULL,
    peer TEXT NOT NULL,
    step TEXT NOT NULL,
    token INTEGER NOT NULL,
    move_id TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE parts (
    actor TEXT NOT NULL,
    move_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (actor, move_id, number)
) WITHOUT ROWID;
"""

# Whether the due time of an alarm is one of the wall clock, in SQL.
IS_OF_WALL: Final = "(type IN ('scheduled', 'cron') AND due_ms = occurrence_ms)"

# Added later. A file of an earlier version gets it when its host opens it, without a new version:
# moves compare versions, and no actor takes this along.
ADDED: Final = f"""
DROP INDEX IF EXISTS alarms_due;
CREATE INDEX IF NOT EXISTS alarms_when ON alarms (status, {IS_OF_WALL}, due_ms, id);

-- The newest requests that were executed here, for `signalhub actors calls --finished`. `error` is
-- NULL if the method returned; `ended_ms` is the wall clock's, and NULL while a deferred answer is
-- awaited.
CREATE TABLE IF NOT EXISTS finished (
    row_id INTEGER PRIMARY KEY,
    call_id TEXT NOT NULL,
    actor TEXT NOT NULL,
    caller TEXT NOT NULL,
    method TEXT NOT NULL,
    error TEXT,
    ended_ms INTEGER
);
CREATE INDEX IF NOT EXISTS finished_calls ON finished (call_id);
"""

SCHEMA: Final = Schema(APPLICATION_ID, VERSION, CREATE, "choose another data folder")
