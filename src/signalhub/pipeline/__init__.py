"""The lake: everything the log ever held, in tables, brought there by Spark exactly once."""
