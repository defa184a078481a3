"""Checks of a hub, of its machine and of the way to it, and what to send with a report."""
