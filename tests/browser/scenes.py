"""What a scripted hub shows: an empty hub, a busy one, a crowded one, one of hostile texts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final

from tests.browser.scripted_hub import Asked, Query, Refusal, Scene

Row = dict[str, Any]
NOW: Final = int(time.time() * 1000)
EPOCH: Final = 1
OPERATOR: Final = [
    *("view", "sessions", "settings", "limits", "audit", "try", "republish", "erase"),
    *(f"{verb}:*" for verb in ("create", "manage", "delete", "read", "control", "discover")),
]
VIEWER: Final = ["view", "discover:*"]
# A payload that markup, control characters, direction marks or rounding would change.
HOSTILE: Final = (
    '{"html":"<img src=x onerror=\\"document.title=1\\"><script>alert(1)</script>",'
    '"big":9007199254759461,"tiny":1.0000000000000000001,"bidi":"a\u202eb\u2066c",'
    '"bell":"\\u0007","nul":"\\u0000","zero":"\u200b"}'
)
NAMES: Final = ("order:new", "order:paid", "order:shipped")


def me(*, operations: list[str] | None = None, **features: bool) -> Row:
    """The answer to `/me`."""
    role = "viewer" if operations == VIEWER else "admin"
    known = {"lake": True, "rooms": True, "actors": True, "tryIt": True, "demo": False}
    return {
        "principal": "@(ui/anna)",
        "subject": "anna",
        "role": role,
        "operations": OPERATOR if operations is None else operations,
        "expiresAt": None,
        "hub": {
            "id": "hub-1", "version": "0.2.0", "protocol": "0.1.0", "epoch": EPOCH,
            "startedAt": NOW - 7_200_000, "label": "", "color": "", "shard": 0,
        },
        "features": {**known, "auth": True, **features},
        "payloadBytes": 4096,
        "serverTime": int(time.time() * 1000),
    }  # fmt: skip


def page(rows: list[Row], query: Query, cursor: str = "cursor", **facts: Any) -> Row:
    """A page of rows with the cursor of the next."""
    begin, limit = int(query.get(cursor, 0)), int(query.get("limit", 100))
    end = begin + limit
    following = str(end) if end < len(rows) else None
    return {"rows": rows[begin:end], "next": following, "total": len(rows), **facts}


def wave(step: int, count: int, level: float, swing: float) -> list[float | None]:
    """Numbers that go up and down."""
    return [round(level + swing * math.sin(i * step / 40), 2) for i in range(count)]


def series(asked: Asked) -> Row:
    """Two hours of numbers, as much of them as is asked for."""
    names = asked.query["names"].split(",")
    step = max(1, int(asked.query.get("step", 1)))
    now = int(time.time() * 1000)
    count = min(900, (now - int(asked.query.get("from", now - 900_000))) // (step * 1000))
    times = [now - (count - i) * step * 1000 for i in range(count)]
    values: dict[str, list[float | None]] = {
        name: wave(step, count, 40 + 30 * i, 12 + i) for i, name in enumerate(names)
    }
    for name in ("log_bytes", "rss"):
        if name in values:
            values[name] = wave(step, count, 60e6, 8e6)
    marks = [{"at": times[len(times) // 3], "what": "started"}] if times else []
    return {"step": step, "t": times, "series": values, "marks": marks, "names": names}


def overview(attention: list[Row], **sample: float) -> Row:
    """The overview."""
    return {
        "at": int(time.time() * 1000),
        "status": "degraded" if attention else "ok",
        "sample": sample,
        "limits": [
            {"resource": "registrations", "used": sample.get("actors", 0), "limit": 50_000},
            {"resource": "topics", "used": 9_700, "limit": 10_000},
            {"resource": "sockets", "used": sample.get("sessions", 0), "limit": 16_604},
            {"resource": "log_bytes", "used": 19_600_000, "limit": 21_474_836_480},
        ],
        "degradations": [degradation()] if attention else [],
        "attention": attention,
        "attentionTotal": len(attention),
        "busiest": {
            "topics": [{"name": "orders", "rate": 53.2}, {"name": "prices/eu", "rate": 12.0}]
            if attention
            else [],
            "actors": [{"name": "@(shop/billing)", "rate": 12.1}] if attention else [],
            "errors": [{"code": "unknown_actor", "count": 7}] if attention else [],
        },
    }


def degradation() -> Row:
    """One reason why a hub is degraded."""
    return {
        "code": "topics_near_capacity", "since": NOW - 600_000,
        "text": "More durable topics than limits.warn_above of the limit.",
        "do": "See who uses them (signalhub limits), then remove some or raise topics.limit.",
    }  # fmt: skip


def attention() -> list[Row]:
    """What somebody should look at."""
    none = {"topic": None, "subscription": None, "address": None}
    return [
        {
            **none, "code": "blocked", "level": "error", "since": NOW - 2_000_000,
            "text": "invoices / mailer: seq 812 failed 6 times", "topic": "invoices",
            "subscription": "mailer", "link": "#/subs/invoices/mailer",
        },
        {
            **none, "code": "growing", "level": "warning", "since": NOW - 310_000,
            "text": "orders / slow-report: lag 16 461, +31/s", "topic": "orders",
            "subscription": "slow-report", "link": "#/subs/orders/slow-report",
        },
        {
            **none, "code": "letters", "level": "warning", "since": NOW - 1_320_000,
            "text": "orders.dlq: 8 waiting", "topic": "orders.dlq",
            "link": "#/letters?topic=orders.dlq",
        },
    ]  # fmt: skip


def actor(i: int, state: str = "live") -> Row:
    """A row of the list of actors."""
    is_live = state == "live"
    box = {
        "waiting": i % 15, "oldestAt": NOW - 60_000, "head": 40, "floor": 26, "first": 1,
        "inFlight": 2, "dead": 0, "isHost": False, "kinds": [], "limit": 100,
    }  # fmt: skip
    return {
        "address": f"@(shop/actor-{i:05d})", "state": state,
        "capabilities": ["consumer", "billing"] if i % 3 == 0 else [],
        "metadata": '{"region":"eu","shard":7}', "session": f"session-{i:08x}" if is_live else None,
        "registeredAt": NOW - 900_000 - i, "expiresAt": NOW + 298_000 if is_live else None,
        "awaySince": None if is_live else NOW - 7_200_000, "version": 3,
        "mailbox": box if i % 4 == 0 else None, "queuedMessages": i % 5, "queuedBytes": i % 5 * 120,
    }  # fmt: skip


def session(i: int) -> Row:
    """A row of the list of sessions."""
    return {
        "sessionId": f"session-{i:08x}", "identity": f"@(shop/actor-{i:05d})",
        "addresses": [f"@(shop/actor-{i:05d})"], "addressesTotal": 1, "subject": "shop",
        "tokenId": None, "tokenExpiresAt": None, "source": "127.0.0.1",
        "connectedAt": NOW - 900_000, "lastSeenAt": NOW - 900, "sent": 1_204 + i,
        "registrations": 1, "subscriptions": 0, "consumers": 1, "queuedMessages": i % 3,
        "queuedBytes": i % 3 * 300, "blocked": i == 2, "pauses": 0, "client": "python 0.2.0",
    }  # fmt: skip


def topic(name: str, head: int = 24_444, **facts: Any) -> Row:
    """A row of the list of topics."""
    return {
        "topic": name, "epoch": "e-1", "head": head, "first": 1, "messages": head,
        "bytes": head * 407, "removed": 0, "retentionS": 172_800.0, "retentionBytes": None,
        "poison": "dead_letter", "deadLetter": f"{name}.dlq", "heartbeatMs": None, "owner": "shop",
        "isLetters": False, "subscriptions": 3, "worstLag": head * 2 // 3, "letters": 8,
        "rate": 53.2, **facts,
    }  # fmt: skip


def subscription(of: str, name: str, state: str = "behind", lag: int = 16_461) -> Row:
    """A row of the list of subscriptions."""
    return {
        "topic": of, "subscription": name, "mode": "exclusive", "state": state, "lag": lag,
        "oldestAt": NOW - 312_000 if lag else None, "inFlight": min(lag, 256), "waitingRetry": 0,
        "exhausted": 0, "parked": 0, "consumers": 0 if state == "idle" else 1,
        "floor": 24_444 - lag, "next": 24_444 - lag + 257 if lag else 24_445, "head": 24_444,
        "first": 1, "paused": state == "paused", "blocked": state == "blocked", "delivered": 9_000,
        "settled": 8_700, "redelivered": 12, "nacked": 3, "timeouts": 9, "deadLettered": 2,
        "lost": 0, "deliveredRate": 18.7, "settledRate": 18.7, "redeliveredRate": 0.0,
        "trend": 31.2 if lag else 0.0, "owner": "shop",
    }  # fmt: skip


def subscription_in_full(row: Row) -> Row:
    """One subscription with its flights."""
    flights = [
        {
            "seq": row["floor"] + 1 + i, "consumer": "billing-1", "attempt": 1 + i % 3,
            "failures": i % 3, "sentAt": NOW - 13_000, "dueAt": NOW + 17_000,
            "phase": ("sent", "waiting", "exhausted")[i % 3], "key": f"customer-{i}",
            "reason": "database is busy" if i % 3 else None,
        }
        for i in range(min(200, row["lag"]))
    ]  # fmt: skip
    seat = {
        "topic": row["topic"], "subscription": row["subscription"], "consumer": "billing-1",
        "subscriptionId": "sub-1", "session": "session-77ab0000", "inFlight": 256, "window": 256,
        "bytes": 24_000, "blocked": False,
    }  # fmt: skip
    return {
        **row, "epoch": "e-1", "generation": 4, "window": 256, "strict": False,
        "ackTimeoutMs": 30_000, "maxDeliveries": 6, "backoffMs": 1_000, "backoffCapMs": 60_000,
        "heartbeatMs": 500, "autoAck": False, "poison": "dead_letter",
        "deadLetter": f"{row['topic']}.dlq", "ratePerSecond": 0.0, "idleExpiryMs": 1_209_600_000,
        "idleSince": None, "backlogMax": 0, "backlogPolicy": None, "settledAboveFloor": 0,
        "heldUp": None, "seats": [seat] if row["consumers"] else [], "flights": flights,
        "flightsTotal": row["inFlight"],
        "history": [
            {"at": NOW - 900_000 + i * 10_000, "lag": 9_000 + i * 83, "settled": i * 187}
            for i in range(90)
        ],
    }  # fmt: skip


def entry(offset: int, payload: str = '{"order":17,"big":9007199254759461}', **facts: Any) -> Row:
    """A row of the log."""
    return {
        "at": NOW - (93_879 - offset) * 777, "position": f"{EPOCH}.{offset}", "shard": 0,
        "epoch": EPOCH, "offset": offset, "kind": "PUBLISHED",
        "tier": "log" if offset >= 70_000 else "lake", "stream": "orders", "streamEpoch": 1,
        "seq": offset // 4, "id": f"01M7JPRBBJ{offset:016d}", "type": NAMES[offset % 3],
        "key": f"customer-{offset % 20}", "sender": "@(shop/orders)", "bytes": len(payload),
        "payload": payload, "cut": False, "encoding": "json", "removed": None, "withheld": False,
        "became": [
            {"recipient": "orders/billing", "outcome": "acked"},
            {"recipient": "orders/slow-report", "outcome": "pending"},
        ],
        **facts,
    }  # fmt: skip


def entry_in_full(row: Row) -> Row:
    """One entry with what became of it."""
    delivery = {
        "recipient": "orders/billing", "recipientKind": "subscription", "outcome": "acked",
        "attempts": 1, "generation": 1, "consumer": "billing-1", "firstSentAt": row["at"] + 1,
        "lastSentAt": row["at"] + 1, "settledAt": row["at"] + 4, "settled": None, "reason": None,
    }  # fmt: skip
    return {
        **row, "metadata": '{"trace":"a1"}', "headers": {"content": "order"}, "ttl": None,
        "expiresAt": None, "deliverAt": None, "onlyFor": None, "dead": None,
        "deliveries": [delivery], "related": [], "lookedThrough": None,
    }  # fmt: skip


def history(newest: int, payload: str | None = None) -> Callable[[Asked], Row]:
    """Pages of the log, the newest entry first."""

    def answer(asked: Asked) -> Row:
        before = asked.query.get("before")
        top = newest if before is None else min(newest, int(before.rpartition(".")[2]) - 1)
        limit = int(asked.query.get("limit", 100))
        rows = [
            entry(offset) if payload is None else entry(offset, payload)
            for offset in range(top, max(0, top - limit), -1)
        ]
        end = max(0, top - limit)
        return {
            "rows": rows, "next": f"{EPOCH}.{end + 1}" if end else None, "complete": not end,
            "searchedTo": {
                "position": f"{EPOCH}.{end + 1}", "epoch": EPOCH, "offset": end + 1, "shard": 0,
                "at": NOW - (93_879 - end) * 777,
            },
            "scanned": limit, "reason": None, "gaps": [], "logFirst": f"{EPOCH}.70000",
        }  # fmt: skip

    return answer


def nothing_found(asked: Asked) -> Row:
    """A page of a log without entries."""
    place = {"position": "1.0", "epoch": 1, "offset": 0, "shard": 0, "at": NOW - 86_400_000}
    return {
        "rows": [], "next": None, "complete": True, "searchedTo": place, "scanned": 0,
        "reason": None, "gaps": [], "logFirst": None,
    }  # fmt: skip


def counts(asked: Asked) -> Row:
    """Numbers for the rail."""
    begin, end = int(asked.query["from"]), int(asked.query["to"])
    step = (end - begin) // 48
    return {
        "buckets": [
            {"at": begin + i * step, "until": begin + (i + 1) * step, "count": 400 + i * 37 % 300}
            for i in range(48)
        ],
        "unit": "messages", "countedTo": None,
    }  # fmt: skip


def letter(seq: int, payload: str = '{"order": 17, "big": 9007199254759461}') -> Row:
    """A dead letter."""
    reasons = ("database is busy", "timeout calling payments", "no such customer")
    return {
        "seq": seq, "position": f"{EPOCH}.{80_000 + seq}", "at": NOW - 1_000_000,
        "source": "orders",
        "subscription": "billing", "originalEpoch": "e-1", "originalSeq": 4_000 + seq,
        "attempts": 6, "reason": reasons[seq % 3], "firstFailure": NOW - 1_300_000,
        "lastFailure": NOW - 1_200_000, "id": f"m-{seq}", "type": "order:new",
        "key": f"customer-{seq % 9}", "sender": "@(shop/orders)", "bytes": len(payload),
        "payload": payload, "cut": False, "headers": None, "redrivenBefore": seq % 7 == 0,
        "withheld": False,
    }  # fmt: skip


def letters(rows: list[Row]) -> Callable[[Asked], Row]:
    """Pages of the letters of a topic."""

    def answer(asked: Asked) -> Row:
        reason = asked.query.get("reason")
        found = [one for one in rows if reason is None or one["reason"] == reason]
        by_reason: dict[str, int] = {}
        for one in rows:
            by_reason[one["reason"]] = by_reason.get(one["reason"], 0) + 1
        return page(
            found, asked.query, "before", topic=asked.query["topic"], epoch="e-1", complete=True,
            waiting=len(rows), ever=1_204, through=1_204, scanned=len(rows), reason=None,
            byReason=[{"reason": name, "count": count} for name, count in by_reason.items()],
        )  # fmt: skip

    return answer


def letter_topics(waiting: int) -> Row:
    """Topics that hold dead letters."""
    return {
        "topics": [{"topic": "orders.dlq", "waiting": waiting, "ever": 1_204}] if waiting else []
    }


def bulk(rows: list[Row]) -> Callable[[Asked], Row]:
    """A preview of redriving, or a job."""

    def answer(asked: Asked) -> Row:
        if '"dryRun":true' not in asked.body:
            return {"job": "job-7"}
        return {
            "dryRun": True, "topic": "orders.dlq", "epoch": "e-1", "through": 1_204,
            "count": min(2, len(rows)), "skipped": 0, "byReason": None,
            "first": [
                {
                    "seq": one["seq"], "stream": "orders", "subscription": "billing", "attempts": 6,
                    "lastFailure": NOW, "reason": one["reason"], "type": "order:new", "key": "c",
                }
                for one in rows[:2]
            ],
        }  # fmt: skip

    return answer


def job() -> Row:
    """A job that has ended."""
    return {
        "job": "job-7", "operation": "redrive", "target": "orders.dlq", "state": "done",
        "subject": "anna", "identity": "@(ui/anna)", "beganAt": NOW - 4_000, "endedAt": NOW,
        "done": 2, "of": 2, "rate": 512.0, "etaMs": None, "detail": None, "result": {},
        "failures": [], "cancellable": False,
    }  # fmt: skip


def rooms(enabled: bool = True, count: int = 1_204) -> Row:
    """Rooms in numbers."""
    return {
        "enabled": enabled, "rooms": count, "inboxes": count, "sockets": 88, "sent": 40_200,
        "appended": 312, "fetches": 9_000, "refused": 0, "denied": 0, "limited": 3,
        "messageRate": 12.0, "appendRate": 1.0, "fetchRate": 4.0, "acceptP50Ms": 0.8,
        "acceptP99Ms": 2.1, "bufferBytes": 3_250_586, "bufferBytesMax": 67_108_864,
        "stateBytes": 120_000, "stateBytesMax": 67_108_864, "diskBytes": 9_500_000,
        "diskBytesMax": 1_073_741_824, "unarchivedMost": 12, "proposalsExpired": 0,
        "sizes": {"one": 900, "few": 240, "many": 60, "more": 4},
    }  # fmt: skip


def hosts() -> Row:
    """Hosts of durable actors."""
    numbers = {"requests": 1_204, "request_errors": 2, "alarms": 17, "dead": 1, "turns": 900}
    present: Row = {
        "address": "@(hosts/shop-1)", "awaySince": None, "waiting": 0, "oldestAt": None,
        "moves": {}, "counters": {},
    }  # fmt: skip
    return {
        "hosts": [
            {
                **present, "host": "shop-1", "state": "present", "kinds": ["order"],
                "counters": numbers,
            },
            {
                **present, "host": "shop-2", "state": "present", "kinds": ["stock", "payment"],
                "counters": numbers,
            },
            {
                **present, "host": "shop-3", "state": "away", "kinds": ["order"], "counters": {},
                "awaySince": NOW - 240_000, "waiting": 12, "oldestAt": NOW - 200_000,
            },
        ],
        "silent": [], "failed": {},
    }  # fmt: skip


def calls() -> Row:
    """Open calls."""
    rows = [
        {
            "call": f"01M7JPRBBJ00000000000000{i:02d}", "caller": f"order/{i}",
            "target": "stock/blue-mug", "method": "reserve", "state": "accepted",
            "at": NOW - 155 - i * 900, "endedAt": None, "deadline": NOW + 29_800, "host": "shop-1",
            "key": None, "withheld": False,
        }
        for i in range(12)
    ]  # fmt: skip
    return {
        "rows": rows, "hasMore": False, "next": None, "silent": [], "away": ["shop-3"],
        "searchedTo": None, "reason": None, "failed": {},
    }  # fmt: skip


def call(id: str) -> Row:
    """One call, and those it caused."""

    def step(after: int, what: str, name: str, target: str, method: str, **facts: Any) -> Row:
        return {
            "at": NOW - 10_000 + after, "what": what, "call": name, "caller": "order/17",
            "target": target, "method": method, "outcome": None, "position": f"{EPOCH}.{after}",
            "host": None, "chain": ["callers/ad1e", "order/17"], "payload": None, "cut": False,
            **facts,
        }  # fmt: skip

    return {
        "call": id,
        "known": {"shop-1": {"caller": {"actor": "order/17", "state": "answered"}}},
        "steps": [
            step(0, "requested", id, "order/17", "checkout", chain=["callers/ad1e"]),
            step(8, "requested", "c-2", "stock/blue-mug", "reserve"),
            step(61, "answered", "c-2", "stock/blue-mug", "reserve", outcome="returned"),
            step(66, "requested", "c-3", "payment/4000", "charge"),
            step(150, "answered", "c-3", "payment/4000", "charge", outcome="returned"),
            step(156, "requested", "c-4", "stock/blue-mug", "ship"),
            step(214, "answered", id, "order/17", "checkout", outcome="returned",
                 chain=["callers/ad1e"]),
        ],
        "complete": True, "next": None, "searchedTo": None, "silent": [], "away": [], "failed": {},
        "withheld": False,
    }  # fmt: skip


def host_rows(rows: list[Row]) -> Row:
    """Rows that hosts report."""
    return {"rows": rows, "hasMore": False, "silent": [], "away": [], "failed": {}}


def alarm(i: int) -> Row:
    """An alarm."""
    return {
        "actor": f"order/{i}", "id": f"a-{i}", "type": "once", "dueMs": NOW + i * 1_000,
        "spec": "{}",
        "continuation": '{"m":"expire"}', "attempts": 5 if i % 4 == 0 else 0,
        "status": "skipped" if i % 4 == 0 else "scheduled",
        "lastError": "TimeoutError: payments" if i % 4 == 0 else None, "host": "shop-1",
    }  # fmt: skip


def failed(i: int) -> Row:
    """Something that failed for good."""
    return {
        "actor": f"order/{i}", "id": f"d-{i}", "origin": "call", "call": f"c-{i}",
        "error": "ValueError: no such mug\n  at shop.py:17", "attempts": 5,
        "deadMs": NOW - 3_600_000, "host": "shop-1",
    }  # fmt: skip


def lake() -> Row:
    """The lake."""
    names = ("entries", "messages", "deliveries", "inbox", "dead_letters", "traffic_1m", "audit")
    return {
        "pipeline": "beside", "state": "running", "reason": None, "epoch": EPOCH,
        "position": 93_879, "head": 101_875, "behind": 7_996, "behindMs": 3_200, "rows": 93_879,
        "batches": 40, "lastBatchRows": 8_000, "lastBatchMs": 1_040.0, "failures": 0, "restarts": 0,
        "quarantined": 0, "where": "data/lake",
        "tables": [
            {
                "name": name, "about": f"The table {name}.", "position": 93_879, "behind": 0,
                "files": 3, "bytes": 2_200_000, "keptS": 34_560_000.0,
            }
            for name in names
        ],
    }  # fmt: skip


def table() -> Row:
    """A table of the lake."""
    columns = [
        {"name": name, "type": "string", "about": f"The {name}."}
        for name in ("epoch", "offset", "stream", "type", "payload_json")
    ]
    row = {"epoch": "1", "offset": "93878", "stream": "orders", "type": "order:new",
           "payload_json": HOSTILE}  # fmt: skip
    return {
        "name": "messages", "about": "One row for each message.", "columns": columns,
        "rows": [row] * 20, "sql": "signalhub sql 'SELECT * FROM messages'", "withheld": False,
    }  # fmt: skip


def audit() -> Row:
    """An audit."""
    hour = {
        "epoch": EPOCH, "fromOffset": 0, "toOffset": 93_878, "distinctRows": 93_879, "gaps": 0,
        "duplicates": 0, "reorders": 0, "pending": 37, "overdue": 0, "removed": 0,
        "segmentSha256": "3f0a" * 16, "verdict": "proven", "exceptions": [],
    }  # fmt: skip
    return {
        "runId": "run-1", "at": NOW - 60_000, "head": 93_878, "verdict": "proven",
        "hours": [{**hour, "hour": NOW // 3_600_000 * 3_600_000 - i * 3_600_000} for i in range(6)],
        "isRunning": False, "job": None,
    }  # fmt: skip


def setting(i: int) -> Row:
    """A setting."""
    return {
        "name": f"limits.rate_{i}", "value": str(100 + i), "default": "100", "changed": i % 9 == 1,
        "source": "hub.toml" if i % 9 == 1 else None,
        "text": "How many frames a second a socket may send.",
    }  # fmt: skip


def health(degradations: list[Row]) -> Row:
    """The health of a hub."""
    return {
        "status": "degraded" if degradations else "ok", "degradations": degradations, "details": {},
        "storage": None, "release": "0.2.0", "protocol": "0.1.0", "python": "3.11.7",
        "native": "on", "epoch": EPOCH, "startedAt": NOW - 7_200_000, "uptimeMs": 7_200_000,
        "pid": 4242,
    }  # fmt: skip


def segments() -> Row:
    """The segments of a log."""
    rows = [
        {
            "first": i * 31_000, "last": (i + 1) * 31_000, "epoch": EPOCH, "bytes": 67_108_864,
            "sealed": i < 2, "chain": "ab12" * 16 if i < 2 else None, "landed": i < 2,
            "createdAt": NOW - (3 - i) * 3_600_000,
        }
        for i in range(3)
    ]  # fmt: skip
    return {
        "rows": rows, "epoch": EPOCH, "first": 0, "head": 93_879, "durableHead": 93_879,
        "bytes": 201_326_592, "retentionBytes": 21_474_836_480, "retentionS": 172_800.0,
        "landed": 62_000,
    }  # fmt: skip


def action(i: int) -> Row:
    """What an operator did."""
    return {
        "at": NOW - i * 60_000, "position": f"{EPOCH}.{90_000 - i}", "by": "anna",
        "address": "@(ui/anna)", "verb": "manage", "over": "orders", "request": "hub:seek",
        "phase": None, "job": None, "detail": "slow-report: next 3 850", "removed": None,
    }  # fmt: skip


def actions(rows: list[Row]) -> Row:
    """A page of actions."""
    return {
        "rows": rows, "next": None, "complete": True, "searchedTo": None, "scanned": len(rows),
        "reason": None, "gaps": [],
    }  # fmt: skip


def seek(asked: Asked) -> Row:
    """The plan of a seek, or the seek."""
    plan = {
        "epoch": "e-1", "generation": 4, "next": 3_850, "willReplay": 4_133, "willSkip": 0,
        "head": 24_444, "first": 1, "inFlight": 256,
    }  # fmt: skip
    return {"plan": plan, "done": '"dryRun":true' not in asked.body}


def found(asked: Asked) -> Row:
    """What a search finds."""
    hits = [
        {"kind": "topic", "name": "orders", "detail": "24 444 messages", "link": "#/topics/orders"},
        {
            "kind": "subscription", "name": "orders/slow-report", "detail": "behind",
            "link": "#/subs/orders/slow-report",
        },
        {"kind": "actor", "name": "@(shop/orders)", "detail": "live", "link": "#/actors/x"},
    ]  # fmt: skip
    return {"query": asked.query["q"], "hits": hits, "complete": True}


def common(scene: Scene) -> Scene:
    """What every scene answers."""
    scene.on("GET", "/series", series)
    scene.on("GET", "/search", found)
    scene.on("GET", "/history/counts", counts)
    scene.on("GET", "/settings", {"rows": [setting(i) for i in range(120)]})
    scene.on("GET", "/segments", segments())
    return scene


def empty() -> Scene:
    """A hub that was just made."""
    scene = common(Scene(me(lake=False, actors=False)))
    nobody: Row = {"rows": [], "next": None, "total": 0}
    scene.on("GET", "/overview", overview([]))
    scene.on("GET", "/actors", {**nobody, "live": 0, "away": 0, "limit": 50_000})
    scene.on("GET", "/subscriptions", {**nobody, "at": NOW})
    for path in ("/sessions", "/topics"):
        scene.on("GET", path, nobody)
    scene.on("GET", "/history", nothing_found)
    scene.on("GET", "/letters/topics", letter_topics(0))
    scene.on("GET", "/rooms", rooms(count=0))
    scene.on("GET", "/hosts", {"hosts": [], "silent": [], "failed": {}})
    scene.on("GET", "/calls", {**calls(), "rows": [], "away": []})
    for path in ("/alarms", "/host-letters"):
        scene.on("GET", path, host_rows([]))
    scene.on("GET", "/health", health([]))
    for path in ("/warnings", "/jobs"):
        scene.on("GET", path, {"rows": []})
    scene.on("GET", "/actions", actions([]))
    return scene


def busy(
    *, rows: int = 12, operations: list[str] | None = None, payload: str | None = None
) -> Scene:
    """A hub with something on every page; with many rows, a crowded one."""
    scene = common(Scene(me(operations=operations)))
    seen = overview(
        attention(), actors=10_005, sessions=5, lag_worst=16_461, oldest_worst=312, blocked=1,
        ask_p99=4.1, sync_p99=0.9, stored=240.1, out=266.1, lake_lag=7_996, lake_lag_s=3.2,
        log_bytes=19_600_000, **{"in": 253.6},
    )  # fmt: skip
    scene.on("GET", "/overview", seen)
    scene.shows("overview", lambda _: {"full": {**seen, "at": int(time.time() * 1000)}})
    people = [actor(i, "away" if i % 10 == 9 else "live") for i in range(rows)]
    counted: Row = {"live": rows, "away": rows // 10, "limit": 50_000}
    scene.on("GET", "/actors", lambda asked: page(people, asked.query, **counted))
    facts = {"identity": "@(shop/billing)", "source": "127.0.0.1", "subscriptions": [],
             "consumers": [], "pausing": []}  # fmt: skip
    scene.on("GET", "/actors/@(shop/actor-00000)", {**actor(0), **facts})
    everyone = [session(i) for i in range(rows)]
    scene.on("GET", "/sessions", lambda asked: page(everyone, asked.query))
    topics = [topic("orders"), *(topic(f"topic-{i:05d}", i * 11, letters=0) for i in range(rows))]
    scene.on("GET", "/topics", lambda asked: page(topics, asked.query))
    behind = subscription("orders", "slow-report")
    states = (("idle", 3), ("current", 0), ("paused", 40), ("blocked", 9))
    subs = [behind, *(subscription("orders", f"sub-{i:05d}", *states[i % 4]) for i in range(rows))]
    scene.on("GET", "/subscriptions", lambda asked: page(subs, asked.query, at=NOW))
    scene.on("GET", "/topics/orders", {**topic("orders"), "rows": subs[:5]})
    one = "/topics/orders/subscriptions/slow-report"
    scene.on("GET", one, subscription_in_full(behind))
    scene.on("POST", f"{one}/seek", seek)
    done = {"operation": "hub:sub_pause", "target": "orders/slow-report", "result": {}}
    for action_name in ("pause", "resume", "set", "settle"):
        scene.on("POST", f"{one}/{action_name}", done)
    scene.on("GET", "/history", history(93_879, payload))
    for offset in range(93_880, 93_600, -1):
        row = entry(offset) if payload is None else entry(offset, payload)
        scene.on("GET", f"/history/0/{EPOCH}/{offset}", entry_in_full(row))
    mail = [letter(i + 1) if payload is None else letter(i + 1, payload) for i in range(rows)]
    scene.on("GET", "/letters", letters(mail))
    scene.on("GET", "/letters/topics", letter_topics(len(mail)))
    scene.on("POST", "/letters/redrive", bulk(mail))
    scene.on("POST", "/letters/purge", bulk(mail))
    scene.on("GET", "/jobs", {"rows": [job()]})
    scene.on("GET", "/jobs/job-7", job())
    scene.on("GET", "/rooms", rooms())
    scene.on("GET", "/hosts", hosts())
    scene.on("GET", "/calls", calls())
    first = calls()["rows"][0]["call"]
    scene.on("GET", f"/calls/{first}", call(first))
    scene.on("GET", "/alarms", host_rows([alarm(i) for i in range(rows)]))
    scene.on("GET", "/host-letters", host_rows([failed(i) for i in range(min(rows, 40))]))
    scene.on("GET", "/lake", lake())
    scene.on("GET", "/lake/tables/messages", table())
    scene.on("GET", "/lake/audit", audit())
    scene.on("GET", "/health", health([degradation()]))
    warning = {
        "at": NOW - 4_000, "level": "warning", "logger": "signalhub.server",
        "text": "the hub runs as root: run it as a user of its own", "facts": {},
    }  # fmt: skip
    scene.on("GET", "/warnings", {"rows": [warning]})
    scene.on("GET", "/actions", actions([action(i) for i in range(min(rows, 200))]))
    if operations == VIEWER:
        scene.on("GET", "/settings", refuse_settings)
    return scene


def refuse_settings(asked: Asked) -> Row:
    """What a viewer gets for the settings."""
    needs = {"needs": "admin: settings"}
    raise Refusal(403, "forbidden", "This needs the permission admin: settings.", **needs)
