"""Logs and metrics of the hub."""
