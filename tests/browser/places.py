"""The pages of the dashboard, by name: the fragments of their addresses."""

from __future__ import annotations

from typing import Final

PAGES: Final = {
    "overview": "",
    "actors": "actors",
    "sessions": "sessions",
    "topics": "topics",
    "subscriptions": "subs",
    "log": "log",
    "letters": "letters",
    "rooms": "rooms",
    "hosts": "hosts",
    "calls": "calls",
    "alarms": "alarms",
    "failed": "failed",
    "lake": "lake",
    "proof": "proof",
    "replay": "replay",
    "jobs": "jobs",
    "try": "try",
    "demo": "demo",
    "health": "health",
    "settings": "settings",
    "actions": "actions",
}
# Pages about one thing, which an empty hub has not.
DETAILS: Final = {
    "actor": "actors/%40(shop%2Factor-00000)",
    "topic": "topics/orders",
    "subscription": "subs/orders/slow-report",
    "entry": "log?entry=1.93879",
    "call": "calls/01M7JPRBBJ0000000000000000",
    "table": "lake/messages",
}
