"""What can be configured, and where it is read from."""
