"""The target of a replay as text: `topic:orders`, `subscription:orders:billing`, `@(demo/alice)`.

A plain name is looked up at the hub; if it is ambiguous, the caller has to choose.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.operate.arguments import InvalidArgument, checked_topic, full_address
from signalhub.wire import names
from signalhub.wire.errors import Code, Refused, SignalHubError

if TYPE_CHECKING:
    from signalhub.client import Client
    from signalhub.operate.session import HubAccess

TOPIC, SUBSCRIPTION, ACTOR = "topic:", "subscription:", "actor:"
FORMS: Final = "write it as topic:orders, subscription:orders:billing or '@(demo/alice)'"

_PAGE: Final = 100
_NOT_THERE: Final = frozenset({Code.UNKNOWN_TOPIC, Code.UNKNOWN_SUBSCRIPTION, Code.NO_MAILBOX})
# A request without messages under this job name only checks the target.
_PROBE: Final = "look"
_EVERYTHING: Final = (2**53, 2**53)


class UnknownTarget(SignalHubError):
    """The hub has nothing under this name."""

    code = "unknown_target"

    def __init__(self, text: str) -> None:
        super().__init__(
            f"the hub has no durable topic, subscription or durable actor {text!r};"
            " see `signalhub topic ls` and `signalhub sub ls`, and write it as topic:NAME,"
            " subscription:TOPIC:NAME or '@(NAME)'"
        )


class ReplayTarget(msgspec.Struct, frozen=True):
    """A topic, one subscription of a topic, or an actor."""

    topic: str | None = None
    subscription: str | None = None
    actor: str | None = None

    def __str__(self) -> str:
        if self.actor is not None:
            return f"{ACTOR}{self.actor}"
        if self.subscription is not None:
            return f"{SUBSCRIPTION}{self.topic}:{self.subscription}"
        return f"{TOPIC}{self.topic}"

    @property
    def members(self) -> dict[str, str | None]:
        """The target as arguments of the client."""
        return {"topic": self.topic, "subscription": self.subscription, "actor": self.actor}


def candidates(text: str) -> list[ReplayTarget]:
    """Return what a text can mean without asking the hub; several if a name has several colons."""
    if names.path_of(text) != text:
        return [ReplayTarget(actor=full_address(text))]
    if text.startswith(ACTOR):
        return [ReplayTarget(actor=full_address(text.removeprefix(ACTOR)))]
    if text.startswith(TOPIC):
        return [ReplayTarget(topic=checked_topic(text.removeprefix(TOPIC)))]
    if text.startswith(SUBSCRIPTION):
        found = list(_divided(text.removeprefix(SUBSCRIPTION)))
        if not found:
            raise InvalidArgument(
                f"invalid subscription {text!r}", "write it as subscription:orders:billing"
            )
        return found
    if not text:
        raise InvalidArgument("the target is empty", FORMS)
    return []


def _divided(text: str) -> Iterator[ReplayTarget]:
    """Split at every colon: topics and subscriptions may contain colons themselves."""
    for at, letter in enumerate(text):
        if letter == ":" and text[:at] and text[at + 1 :]:
            yield ReplayTarget(topic=checked_topic(text[:at]), subscription=text[at + 1 :])


async def find(me: Client, text: str, access: HubAccess) -> ReplayTarget:
    """Return the target a text means at this hub; raises `UnknownTarget`, `InvalidArgument`."""
    known = candidates(text)
    possible = known or [ReplayTarget(topic=text), *await _subscriptions(me, text, access)]
    if not known and names.is_address(f"@({text})"):
        possible.append(ReplayTarget(actor=f"@({text})"))
    found = [one for one in possible if await _exists(me, one, access)]
    if not found:
        raise UnknownTarget(text)
    if len(found) > 1:
        choices = " or ".join(map(str, found))
        raise InvalidArgument(f"{text!r} is ambiguous", f"write {choices}")
    return found[0]


async def _subscriptions(me: Client, name: str, access: HubAccess) -> list[ReplayTarget]:
    found: list[ReplayTarget] = []
    offset, has_more = 0, True
    while has_more:
        page = await access.in_time(me.subscriptions(offset=offset, limit=_PAGE))
        found += [ReplayTarget(one.topic, one.name) for one in page if one.name == name]
        offset += len(page)
        has_more = page.has_more and len(page) > 0
    return found


async def _exists(me: Client, target: ReplayTarget, access: HubAccess) -> bool:
    try:
        probe = me.republish(_PROBE, [], until=_EVERYTHING, ended=False, **target.members)
        await access.in_time(probe)
    except Refused as refused:
        if refused.code not in _NOT_THERE:
            raise
        return False
    return True
