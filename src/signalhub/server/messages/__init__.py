"""The HTTP API for messages: publish, send, ask, read and pull without a socket."""
