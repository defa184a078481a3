"""Subscriptions to all durable topics that match a pattern."""
