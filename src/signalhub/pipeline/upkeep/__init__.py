"""Keeping tables in order: expiry, compaction, vacuum."""
