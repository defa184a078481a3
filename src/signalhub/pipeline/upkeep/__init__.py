"""Upkeep of tables: expiry, compaction, vacuum."""
