"""Benchmarks of durable actors: their calls and alarms, beside Celery and a bare outbox."""
