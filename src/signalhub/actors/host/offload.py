"""Running work outside actors, at least once."""

from __future__ import annotations

import asyncio
from typing import Final

from signalhub.actors.api import outcome, payload
from signalhub.actors.api.offload import find

_DEPTH_MAX: Final = 50
_BYTES_MAX: Final = 2**20


async def run_offloaded(name: str, arguments: bytes) -> bytes:
    """Run the function; what it returns or raises is its outcome."""
    try:
        value = await find(name)(*payload.decode(arguments))
        return outcome.of_value(value, max_depth=_DEPTH_MAX, max_bytes=_BYTES_MAX)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # The host stops; its next start runs the work again.
        # The function waited for something that was cancelled.
        return outcome.of_error(error)
    except Exception as error:
        return outcome.of_error(error)
