"""What the hub costs as its work grows, size by size, with a plot of each."""
