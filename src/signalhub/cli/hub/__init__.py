"""Commands that run and inspect a hub."""
