"""The hub's port: accepting sockets, answering HTTP, upgrading."""
