"""What people read from disk and lake, and from hosts of durable actors."""
