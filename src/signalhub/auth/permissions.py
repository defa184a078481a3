"""What a token allows: seven verbs, each with glob patterns over names.

Deny by default: a verb without patterns is refused. Patterns only grant, so a longer list never
takes anything away.

Subscribing with a topic wildcard is allowed only if the patterns cover every topic it can match.
`+` matches any level and `#` the topic before it and any path below, so each is checked as a name
with a character that no pattern contains: only a `*` can match it, and then matches everything in
its place. Hence `prices/*` covers `prices/+` and `prices/eu/#`, but not `prices/#`, which also
matches `prices` itself; grant `prices` and `prices/*` for that.
"""

from __future__ import annotations

import msgspec

from signalhub.wire import names
from signalhub.wire.names import Pattern

# Represents anything a topic wildcard may match.
_ANYTHING = "\0"


class Permissions(msgspec.Struct, frozen=True):
    """The `permissions` claim of a token: patterns by verb; a missing verb is denied."""

    send: tuple[str, ...] = ()
    broadcast: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    register: tuple[str, ...] = ()
    create: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()


class Allowance:
    """The permissions of one session, compiled."""

    __slots__ = (
        "_admin",
        "_broadcast",
        "_create",
        "_publish",
        "_register",
        "_send",
        "_subscribe",
        "identity",
    )

    def __init__(self, identity: str, permissions: Permissions) -> None:
        self.identity = identity
        self._send = _compile(permissions.send)
        self._broadcast = _compile(permissions.broadcast, is_plain=True)
        self._publish = _compile(permissions.publish, is_plain=True)
        self._subscribe = _compile(permissions.subscribe, is_plain=True)
        self._register = _compile(permissions.register)
        self._create = _compile(permissions.create, is_plain=True)
        self._admin = _compile(permissions.admin, is_plain=True)

    def may_send(self, address: str) -> bool:
        return _covers(self._send, address)

    def may_broadcast(self, capability: str | None) -> bool:
        """Patterns match the capability; a broadcast to everybody needs `*`."""
        if not capability:
            return any(pattern.matches_all for pattern in self._broadcast)
        return _covers(self._broadcast, capability)

    def may_publish(self, topic: str) -> bool:
        return _covers(self._publish, topic)

    def may_create(self, topic: str) -> bool:
        """Create, change and delete durable topics."""
        return _covers(self._create, topic)

    def may_administer(self, operation: str) -> bool:
        """Patterns match operations on stored data: `republish`, `erase`."""
        return _covers(self._admin, operation)

    def may_subscribe(self, topic: str) -> bool:
        """For a wildcard: are all topics it can match allowed?"""
        if not names.has_wildcard(topic):
            return _covers(self._subscribe, topic)
        return all(_covers(self._subscribe, name) for name in _representatives(topic))

    def may_register(self, address: str) -> bool:
        """The session's own identity always; others by pattern."""
        return address == self.identity or _covers(self._register, address)

    def may_speak_as(self, address: str) -> bool:
        """May it be the `from` of a message? The caller checks the session's registrations."""
        return self.may_register(address)


def _compile(patterns: tuple[str, ...], *, is_plain: bool = False) -> tuple[Pattern, ...]:
    return tuple(Pattern(text, is_plain=is_plain) for text in patterns)


def _covers(patterns: tuple[Pattern, ...], name: str) -> bool:
    return any(pattern.matches(name) for pattern in patterns)


def _representatives(wildcard: str) -> list[str]:
    """Names that are all covered exactly if everything the wildcard matches is covered."""
    *parents, last = (
        _ANYTHING if level == names.ONE_LEVEL else level for level in wildcard.split("/")
    )
    if last != names.SUBTREE:
        return ["/".join((*parents, last))]
    below = "/".join((*parents, _ANYTHING))
    return ["/".join(parents), below] if parents else [below]


_ALL = ("*",)

# With authentication off nothing is refused.
EVERYTHING = Allowance(names.NOBODY, Permissions(*[_ALL] * len(Permissions.__struct_fields__)))
