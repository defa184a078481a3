"""The asyncio shell: sockets, HTTP, and the effects of the core."""
