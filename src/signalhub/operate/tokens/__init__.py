"""Tokens: minting them, the keys that check them, and those that are denied."""
