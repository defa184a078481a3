"""What commands do, as functions: they return results, raise errors and print nothing."""
