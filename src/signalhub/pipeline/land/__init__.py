"""Copies the log into the table `entries`, each entry exactly once."""
