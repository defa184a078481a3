"""Where durable entries live."""
