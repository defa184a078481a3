"""How an operation reaches a hub: its URL, the token, and the timeout."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

from signalhub.operate.tokens.token import actor_of
from signalhub.wire.errors import OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from signalhub.client import Client, Reconnect
    from signalhub.client.protocol.events import Listener

T = TypeVar("T")

DEFAULT_URL = "ws://127.0.0.1:8787/ws"
TIMEOUT_S = 5.0
RECONNECT_JITTER_S = 0.5
RECONNECT_CAP_S = 5.0


class Registering(TypedDict, total=False):
    """How an address is registered."""

    capabilities: Sequence[str]
    durable: bool | None
    acknowledge: bool


class HubOptions(TypedDict):
    """The arguments of operations that describe the hub."""

    url: str
    token: str | None
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class HubAccess:
    """Opens sessions at one hub."""

    url: str = DEFAULT_URL
    token: str | None = None
    timeout_s: float = TIMEOUT_S
    listener: Listener | None = None

    async def in_time(self, step: Awaitable[T]) -> T:
        """Wait for one answer of the hub; raises `OutcomeUnknown` if it does not arrive in time."""
        import asyncio

        try:
            async with asyncio.timeout(self.timeout_s):
                return await step
        except TimeoutError:
            raise OutcomeUnknown(f"no answer within {self.timeout_s:g} s") from None

    @asynccontextmanager
    async def session(
        self,
        address: str | None = None,
        *,
        reconnect: Reconnect | None = None,
        **options: Unpack[Registering],
    ) -> AsyncIterator[Client]:
        """Open a session while the block runs.

        An address is registered and taken from its owner; without one, nothing is registered.
        """
        from signalhub.client import connect

        connecting = connect(
            self.url,
            address or self.own_address(),
            register=address is not None,
            token=self.token,
            reconnect=reconnect,
            listener=self.listener,
            **options,
        )
        try:
            me = await self.in_time(connecting)
        except OutcomeUnknown as error:
            # Nothing was requested yet.
            raise Unavailable(f"{self.url}: {error}") from None
        async with me:
            yield me

    def own_address(self) -> str:
        """A token always permits its own actor; without a token, any unused address works."""
        return (self.token and actor_of(self.token)) or f"@(cli/{secrets.token_hex(4)})"


def brief_reconnect() -> Reconnect:
    """Reconnect within seconds, for operations that continue after a lost connection."""
    from signalhub.client import Reconnect

    return Reconnect(first_jitter_s=RECONNECT_JITTER_S, cap_s=RECONNECT_CAP_S)
