"""The client's I/O: sockets, HTTP, reconnecting."""
