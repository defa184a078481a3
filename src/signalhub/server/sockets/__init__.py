"""Open WebSockets: their frames, queues and writes."""
