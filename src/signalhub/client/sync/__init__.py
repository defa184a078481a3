"""The client without asyncio: one event loop in a background thread, for scripts and notebooks."""
