"""The durable tier: what the hub keeps in SQLite."""
