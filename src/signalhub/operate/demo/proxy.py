"""A TCP proxy that behaves like a bad network."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import Literal, Self

Direction = Literal["up", "down", "both"]

_READ_BYTES = 64 * 1024


class LinkDirection:
    """One direction of all connections: `up` to the upstream, `down` to the clients."""

    def __init__(self) -> None:
        self.flows = asyncio.Event()
        self.flows.set()
        self.step_bytes = 0
        self.delay_s = 0.0
        self.bytes_forwarded = 0

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        step = self.step_bytes or len(chunk)
        return (chunk[at : at + step] for at in range(0, len(chunk), step))


class ChaosProxy:
    """Stands between clients and `upstream_port` on the loopback.

    Faults apply to present and future connections until they are lifted. Bytes read before a stall
    are kept, so `resume` loses nothing; only `cut` loses bytes.
    """

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.port = 0
        self.accepted = 0
        self._directions = {"up": LinkDirection(), "down": LinkDirection()}
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.refuse()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws"

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._tasks)

    @property
    def bytes_up(self) -> int:
        return self._directions["up"].bytes_forwarded

    @property
    def bytes_down(self) -> int:
        return self._directions["down"].bytes_forwarded

    def cut(self) -> None:
        """Reset every open connection, even in the middle of a frame."""
        for writer in self._writers:
            writer.transport.abort()

    def stall(self, direction: Direction = "both") -> None:
        """Stop forwarding; connections stay open and silent."""
        for one in self._chosen(direction):
            one.flows.clear()

    def resume(self, direction: Direction = "both") -> None:
        """Forward again, starting with the held bytes."""
        for one in self._chosen(direction):
            one.flows.set()

    def dribble(self, bytes_per_step: int, direction: Direction = "both") -> None:
        """Forward in pieces of this size, one write each; 0 forwards whole reads."""
        for one in self._chosen(direction):
            one.step_bytes = bytes_per_step

    def delay(self, seconds: float, direction: Direction = "both") -> None:
        """Delay every piece by this time."""
        for one in self._chosen(direction):
            one.delay_s = seconds

    async def refuse(self) -> None:
        """Stop listening: new connections are refused, open ones stay."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            # The listening socket leaves the loop's selector one step later.
            await asyncio.sleep(0)

    async def accept(self) -> None:
        """Listen, or listen again on the port it had."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def _chosen(self, direction: Direction) -> list[LinkDirection]:
        return [one for name, one in self._directions.items() if direction in (name, "both")]

    async def _accepted(
        self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter
    ) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = {client_writer}
        self._writers.add(client_writer)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
            writers.add(writer)
            self._writers.add(writer)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(client_reader, writer, self._directions["up"]))
                pumps.create_task(self._pump(reader, client_writer, self._directions["down"]))
        except (OSError, ExceptionGroup):
            # Broken connections are expected here; the other side is closed below.
            pass
        finally:
            self._tasks.discard(task)
            self._writers -= writers
            for each in writers:
                each.transport.abort()

    @staticmethod
    async def _pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: LinkDirection
    ) -> None:
        while chunk := await reader.read(_READ_BYTES):
            for piece in direction.pieces(chunk):
                if direction.delay_s:
                    await asyncio.sleep(direction.delay_s)
                await direction.flows.wait()
                writer.write(piece)
                await writer.drain()
                direction.bytes_forwarded += len(piece)
                if direction.step_bytes:
                    await asyncio.sleep(0)
        if writer.can_write_eof():
            writer.write_eof()
