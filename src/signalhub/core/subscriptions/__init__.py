"""Who reads what is kept: durable subscriptions and their deliveries."""
