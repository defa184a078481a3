"""Removing a subject from the lake, with a certificate."""
