"""The core of a host: turn(events, now) → effects; no I/O except its tables."""
