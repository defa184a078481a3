"""The hub without I/O: every method takes an event and the time and returns effects."""
