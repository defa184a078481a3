"""Lists of a hub, page by page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import Protocol, TypeVar

from signalhub.cli.terminal.connection import HubConnection

T = TypeVar("T", covariant=True)
U = TypeVar("U")

PAGE_MAX = 100


class Page(Protocol[T]):
    """Rows of a list."""

    def __iter__(self) -> Iterator[T]: ...

    def after(self, at: int, /) -> int | None:
        """Where the page after this one begins, which began at `at`; `None` if there is none."""


async def every(
    connection: HubConnection,
    fetch: Callable[[int], Awaitable[Page[U]]],
    key: Callable[[U], Hashable],
) -> list[U]:
    """All rows of a list; by key, because pages shift when rows come and go."""
    found: dict[Hashable, U] = {}
    at: int | None = 0
    while at is not None:
        page = await connection.in_time(fetch(at))
        found |= {key(one): one for one in page}
        at = page.after(at)
    return list(found.values())
