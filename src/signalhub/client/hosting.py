"""The part of the client's face that is about where durable actors live."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from signalhub.client.durable import DurableCalls
from signalhub.entry import ACTOR


class Place(msgspec.Struct, frozen=True):
    """Where a durable actor lives; messages for it carry the token as a fence."""

    actor: str
    host: str
    token: int


class Unplaced(msgspec.Struct, frozen=True):
    """A durable actor without a place, and why: with the code `no_host`, ask again later."""

    actor: str
    code: str
    message: str = ""


class Placements(msgspec.Struct, frozen=True):
    """What `place` found, in the order it was asked for."""

    places: tuple[Place, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()


class HostCalls(DurableCalls):
    """What a client can do about the places of durable actors."""

    async def place(
        self,
        actors: Iterable[str],
        *,
        host: str | None = None,
        tokens: Mapping[str, int] | None = None,
    ) -> Placements:
        """Where durable actors such as `order/17` live; those without a place get one.

        Args:
            actors: At most 1000 names.
            host: An address of ours that is a host: it gets those that live nowhere.
            tokens: With `host`: tokens under which actors lived there before, as far as we know.

        Raises:
            ValueError: A name is none.
            Refused: The hub said no; `code` says why.
        """
        names = [_checked_actor(actor) for actor in actors]
        request = self._streams.place(names, host, tokens, self._now_ms)
        return await self._answer(request, Placements)

    async def move(self, actor: str, token: int, to: str) -> Place:
        """Give an actor that lives on a host of ours to another host, under the next token.

        It may be repeated: once it has happened the answer is the same.

        Raises:
            Refused: With code `stale_placement` if the actor has another token by now.
        """
        request = self._streams.move(_checked_actor(actor), token, to, self._now_ms)
        return await self._answer(request, Place)


def _checked_actor(actor: str) -> str:
    if re.search(ACTOR, actor) is None:
        raise ValueError(f"{actor!r} is no durable actor; one is named kind/key, like order/17")
    return actor
