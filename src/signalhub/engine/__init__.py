"""Storage of durable entries: the log, and the archive."""
