"""Choosing messages of the past to send again."""
