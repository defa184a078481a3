"""Selecting messages of the lake to send again."""
