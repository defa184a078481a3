"""Events of a host, and the effects it asks for."""

from __future__ import annotations

from typing import Any

import msgspec


class ActorPlace(msgspec.Struct, frozen=True):
    """Where an actor lives, according to the hub."""

    actor: str
    host: str
    token: int
    # It starts empty there, although the token is not the first: its former place was forgotten.
    is_fresh: bool = False


class DeliveryArrived(msgspec.Struct, gc=False):
    """The hub delivered a message from this host's mailbox; `delivery` is used to settle it."""

    type: str
    data: bytes
    sender: str
    accepted_ms: int
    delivery: Any
    # How many messages of actors it holds, about.
    count: int = 1


class Receipted(msgspec.Struct):
    """The hub has stored what a `SendBatch` sent."""

    batch: str


class BatchRefused(msgspec.Struct):
    """What a `SendBatch` sent was not accepted, or no receipt arrived in time.

    `stale` names actors that have moved. `is_final` means that the recipient, an outside caller, is
    gone or may not be sent to.
    """

    batch: str
    reason: str
    stale: list[str] = []
    is_final: bool = False
    is_too_large: bool = False


class PlacesFound(msgspec.Struct):
    """The hub's answer about places; `unplaced` maps actors without one to the reason.

    `forgotten` are those that this host has claimed and whose place was forgotten.
    """

    places: list[ActorPlace]
    unplaced: dict[str, str] = {}
    forgotten: list[str] = []


class PlacingFailed(msgspec.Struct):
    """The hub did not answer."""

    actors: list[str]


class OffloadEnded(msgspec.Struct):
    """Offloaded work has ended; `outcome` is encoded like that of a call."""

    actor: str
    call_id: str
    outcome: bytes


class Moved(msgspec.Struct):
    """The hub's answer to `GiveAway`; without a token it refused or did not answer.

    `is_forgotten` means that the place was forgotten since this host had the actor.
    """

    actor: str
    token: int | None
    reason: str = ""
    is_final: bool = False
    is_forgotten: bool = False


class Connected(msgspec.Struct):
    """Connected to the hub, for the first time or again."""


class Commanded(msgspec.Struct):
    """An operator's command; `answer` is passed to the effect that answers."""

    name: str
    arguments: dict[str, Any]
    answer: Any
    # The hub says whether the operator may see arguments, errors and the like.
    shows_contents: bool = True


Event = (
    DeliveryArrived
    | Receipted
    | BatchRefused
    | PlacesFound
    | PlacingFailed
    | OffloadEnded
    | Moved
    | Connected
    | Commanded
)


class SendBatch(msgspec.Struct):
    """Send a lane batch or a step of a move to the hub.

    It is answered by `Receipted` or `BatchRefused` with the same id.
    """

    batch: str
    to: str
    type: str
    data: bytes
    fences: dict[str, int]
    ttl_ms: int | None = None


class SettleDelivery(msgspec.Struct):
    """Settle a delivery, which is now in the store."""

    delivery: Any


class LocateActors(msgspec.Struct):
    """Ask the hub where actors live; answered by `PlacesFound` or `PlacingFailed`.

    `claims` are the tokens of the actors this host holds.
    """

    actors: list[str]
    claims: dict[str, int]


class Offload(msgspec.Struct):
    """Run a coroutine function; answered by `OffloadEnded`."""

    actor: str
    call_id: str
    function: str
    arguments: bytes


class GiveAway(msgspec.Struct):
    """Ask the hub to change the place of an actor, or whether it still is there; see `Moved`."""

    actor: str
    token: int
    to: str


class CommandAnswer(msgspec.Struct):
    """The answer to a `Commanded`."""

    answer: Any
    result: dict[str, Any]


Effect = SendBatch | SettleDelivery | LocateActors | Offload | GiveAway | CommandAnswer
