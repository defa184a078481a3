"""Where a replay goes, as users write it: `topic:orders`, `subscription:orders:billing`, `@(a/b)`.

A plain name is looked up at the hub; if it could mean several things the user is told how to say
which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from signalhub.cli.terminal.arguments import address, checked_topic
from signalhub.cli.terminal.failures import Exit, Failure, usage
from signalhub.wire import names
from signalhub.wire.errors import Code, Refused

if TYPE_CHECKING:
    from signalhub.cli.terminal.connection import Connection
    from signalhub.client import Client

TOPIC, SUBSCRIPTION, ACTOR = "topic:", "subscription:", "actor:"
FORMS = "write it as topic:orders, subscription:orders:billing or '@(demo/alice)'"

_PAGE = 100
_NOT_THERE = frozenset({Code.UNKNOWN_TOPIC, Code.UNKNOWN_SUBSCRIPTION, Code.NO_MAILBOX})
# Nothing is sent under this name; it only asks.
_LOOK = "look"
_EVERYTHING = (2**53, 2**53)


class Target(msgspec.Struct, frozen=True):
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
        """As the client takes it."""
        return {"topic": self.topic, "subscription": self.subscription, "actor": self.actor}


def candidates(text: str) -> list[Target]:
    """What a text can mean without asking anybody; several for a name with several colons."""
    if names.path_of(text) != text:
        return [Target(actor=address(text))]
    if text.startswith(ACTOR):
        return [Target(actor=address(text.removeprefix(ACTOR)))]
    if text.startswith(TOPIC):
        return [Target(topic=checked_topic(text.removeprefix(TOPIC)))]
    if text.startswith(SUBSCRIPTION):
        found = list(_divided(text.removeprefix(SUBSCRIPTION)))
        if not found:
            raise usage(
                f"{text!r} names no subscription", "write it as subscription:orders:billing"
            )
        return found
    if not text:
        raise usage("--to is empty", FORMS)
    return []


def _divided(text: str) -> Iterator[Target]:
    """Topics and subscriptions may hold colons themselves."""
    for at, letter in enumerate(text):
        if letter == ":" and text[:at] and text[at + 1 :]:
            yield Target(topic=checked_topic(text[:at]), subscription=text[at + 1 :])


async def find(me: Client, text: str, connection: Connection) -> Target:
    """The one thing a text means at this hub."""
    known = candidates(text)
    possible = known or [Target(topic=text), *await _subscriptions(me, text, connection)]
    if not known and names.is_address(f"@({text})"):
        possible.append(Target(actor=f"@({text})"))
    found = [one for one in possible if await _is_there(me, one, connection)]
    if not found:
        raise Failure(
            Exit.FAILED,
            "unknown_target",
            f"the hub has no durable topic, subscription or durable actor {text!r}",
            "see `signalhub topic ls` and `signalhub sub ls`, and write it as topic:NAME,"
            " subscription:TOPIC:NAME or '@(NAME)'",
        )
    if len(found) > 1:
        raise usage(f"{text!r} could mean several things", f"write {' or '.join(map(str, found))}")
    return found[0]


async def _subscriptions(me: Client, name: str, connection: Connection) -> list[Target]:
    found: list[Target] = []
    offset, has_more = 0, True
    while has_more:
        page = await connection.in_time(me.subscriptions(offset=offset, limit=_PAGE))
        found += [Target(one.topic, one.name) for one in page if one.name == name]
        offset, has_more = offset + _PAGE, page.has_more
    return found


async def _is_there(me: Client, target: Target, connection: Connection) -> bool:
    try:
        await connection.in_time(me.republish(_LOOK, [], until=_EVERYTHING, **target.members))
    except Refused as refused:
        if refused.code not in _NOT_THERE:
            raise
        return False
    return True
