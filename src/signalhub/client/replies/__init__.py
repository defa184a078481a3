"""Requests to other actors, and replies to theirs."""
