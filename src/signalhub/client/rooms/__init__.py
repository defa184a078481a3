"""Rooms and inboxes for the client."""
