"""Commands for durable actors and their hosts."""
