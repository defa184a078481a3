"""Commands for topics, subscriptions and dead letters."""
