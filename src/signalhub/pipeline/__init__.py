"""The lake: everything the log ever contained, in tables, landed by Spark exactly once."""
