"""The durable log: entries in append-only segments, committed in groups."""
