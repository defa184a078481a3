"""The messages of a replay on their way to the hub: one request at a time, at a steady rate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from signalhub.cli.lake.target import Target
from signalhub.cli.terminal.progress import Advance
from signalhub.wire.errors import Refused

if TYPE_CHECKING:
    from signalhub.cli.terminal.connection import Connection
    from signalhub.client import Client, Original, OriginalPosition, Republished

MESSAGES_MAX = 100
# Below what the hub takes, because the request has more than messages in it.
BYTES_MAX = 500 * 2**10
PAUSE_S = 0.5
PAUSE_S_MAX = 10.0


class Sent(msgspec.Struct):
    """A replay, and how much of it this command has sent."""

    job: str
    until: tuple[int, int]
    target: Target
    rate: float
    appended: int = 0
    skipped: int = 0

    async def ask(self, me: Client, connection: Connection) -> OriginalPosition | None:
        """How far the replay has come."""
        answer = await connection.in_time(
            me.republish(self.job, [], until=self.until, **self.target.members)
        )
        return answer.position


async def send(
    me: Client,
    originals: Iterator[Original],
    sent: Sent,
    advance: Advance,
    connection: Connection,
) -> None:
    """Send everything there is; what the hub cannot take now waits."""
    import asyncio

    loop = asyncio.get_running_loop()
    requests = batches(originals, batch_size(sent.rate))
    began, count = loop.time(), 0
    # Spark answers when it can; meanwhile the connection stays alive.
    while batch := await asyncio.to_thread(next, requests, None):
        if sent.rate:
            await asyncio.sleep(began + count / sent.rate - loop.time())
        answer = await _send(me, batch, sent, connection)
        sent.appended += answer.appended
        sent.skipped += answer.skipped
        count += len(batch)
        advance(len(batch))


async def _send(
    me: Client, batch: list[Original], sent: Sent, connection: Connection
) -> Republished:
    import asyncio

    pause_s = PAUSE_S
    while True:
        try:
            return await me.republish(sent.job, batch, until=sent.until, **sent.target.members)
        except Refused as refused:
            if not refused.retryable:
                raise
            if pause_s == PAUSE_S:
                connection.note(f"the hub cannot take more now ({refused.message}); waiting")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)


def batch_size(rate: float) -> int:
    """Messages in one request: what is due in a second at most, so that slow is not jerky."""
    return max(1, min(MESSAGES_MAX, int(rate))) if rate else MESSAGES_MAX


def batches(originals: Iterator[Original], count_max: int) -> Iterator[list[Original]]:
    """In requests that the hub takes: not too many, not too much; one is never too much."""
    batch: list[Original] = []
    size = 0
    for one in originals:
        more = len(msgspec.json.encode(one)) + 1
        if batch and (len(batch) >= count_max or size + more > BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += more
    if batch:
        yield batch
