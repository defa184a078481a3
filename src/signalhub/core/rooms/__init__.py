"""Rooms and inboxes: ciphertext in, in order, at once. No I/O, like the rest of the core."""
