"""Where actors live, and moving them from one host to another."""
