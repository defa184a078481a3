"""Rooms and inboxes on the hub's port: HTTP and WebSockets."""
