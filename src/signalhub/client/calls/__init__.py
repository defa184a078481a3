"""Messages over HTTP, without a connection."""
