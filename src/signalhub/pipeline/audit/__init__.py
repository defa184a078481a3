"""The proof that nothing was lost, duplicated or reordered."""
