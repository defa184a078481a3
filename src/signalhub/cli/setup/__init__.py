"""Commands that help to use the others: contexts, error codes, completion, checks."""
