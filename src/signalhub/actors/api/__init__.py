"""What a program with durable actors imports."""
