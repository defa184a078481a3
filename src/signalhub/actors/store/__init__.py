"""A host's SQLite file."""
