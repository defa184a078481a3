"""What a turn wants done once it is committed, as values."""

from __future__ import annotations

from typing import Any

import msgspec


class Send(msgspec.Struct):
    """Ask the hub to take a batch; answered by `Receipted` or `Refused` with the same id."""

    batch: str
    to: str
    type: str
    data: bytes
    fences: dict[str, int]
    ttl_ms: int | None = None


class Settle(msgspec.Struct):
    """What was delivered is in the store."""

    delivery: Any


class Locate(msgspec.Struct):
    """Ask the hub where actors live; answered by `Placed` or `PlacingFailed`.

    `claims` are the tokens of those this host takes for its own.
    """

    actors: list[str]
    claims: dict[str, int]


class Offload(msgspec.Struct):
    """Run a coroutine function; answered by `Ended`."""

    actor: str
    call_id: str
    function: str
    arguments: bytes


class GiveAway(msgspec.Struct):
    """Have the hub move the place of an actor; answered by `Moved`."""

    actor: str
    token: int
    to: str


class Answer(msgspec.Struct):
    """The answer to a `Commanded`."""

    answer: Any
    result: dict[str, Any]


Effect = Send | Settle | Locate | Offload | GiveAway | Answer
