"""The proof that nothing was lost, repeated or reordered."""
