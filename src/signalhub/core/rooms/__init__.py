"""Rooms and inboxes: encrypted messages, delivered and stored in order. No I/O."""
