"""What can happen to a host, as values."""

from __future__ import annotations

from typing import Any

import msgspec


class Place(msgspec.Struct, frozen=True):
    """Where an actor lives, as the hub says."""

    actor: str
    host: str
    token: int


class Arrived(msgspec.Struct, gc=False):
    """The hub delivered something from this host's mailbox; `delivery` is what settles it."""

    type: str
    data: bytes
    sender: str
    accepted_ms: int
    delivery: Any


class Receipted(msgspec.Struct):
    """The hub has a batch on disk."""

    batch: str


class Refused(msgspec.Struct):
    """A batch was not accepted, or no receipt came in time.

    `stale` names actors that live elsewhere by now. `is_final` means that the recipient, somebody
    outside, is gone, or may not be told.
    """

    batch: str
    reason: str
    stale: list[str] = []
    is_final: bool = False
    is_too_large: bool = False


class Placed(msgspec.Struct):
    """The hub's answer about places; `unplaced` have none for now, and why."""

    places: list[Place]
    unplaced: dict[str, str] = {}


class PlacingFailed(msgspec.Struct):
    """The hub did not answer."""

    actors: list[str]


class Ended(msgspec.Struct):
    """Work outside an actor has ended; `outcome` is encoded like that of a call."""

    actor: str
    call_id: str
    outcome: bytes


class Moved(msgspec.Struct):
    """The hub's answer to giving a place away; without a token it said no, or nothing."""

    actor: str
    token: int | None
    reason: str = ""
    is_final: bool = False


class Connected(msgspec.Struct):
    """The hub is there, for the first time or again."""


class Commanded(msgspec.Struct):
    """Somebody looks at the host or mends something; `answer` is for the effect that answers."""

    name: str
    arguments: dict[str, Any]
    answer: Any


Event = (
    Arrived | Receipted | Refused | Placed | PlacingFailed | Ended | Moved | Connected | Commanded
)


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
