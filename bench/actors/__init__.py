"""Benchmarks of durable actors: calls and alarms, compared with Celery and a plain outbox."""
