"""What a token allows: verbs, each with glob patterns over names.

Deny by default: a verb without patterns is refused. Patterns only grant, so a longer list never
takes anything away. Some verbs are younger than the tokens in use; a token that does not mention
one of them falls back to an older verb, and one that gives it an empty list is denied:

| verb | over | absent means |
|---|---|---|
| `consume` | `topic/subscription` | what its holder made; `subscribe` if nobody owns it |
| `manage`, `delete` | topics; `delete` also hosts | `create` |
| `read` | topics and addresses | `subscribe` for topics, denied for addresses |
| `discover` | addresses | `send`, and its own address |

What the holder of a token made (`owner`) needs neither `manage` nor `delete`.

Subscribing with a topic wildcard, plain or as a pattern subscription, and whatever else is done to
a pattern is allowed only if the patterns cover every topic it can match.
`+` matches any level and `#` the topic before it and any path below, so each is checked as a name
with a character that no pattern contains: only a `*` can match it, and then matches everything in
its place. Hence `prices/*` covers `prices/+` and `prices/eu/#`, but not `prices/#`, which also
matches `prices` itself; grant `prices` and `prices/*` for that.
"""

from __future__ import annotations

import msgspec

from signalhub.wire import names
from signalhub.wire.names import Pattern

# Represents anything a topic wildcard may match, and what only a `*` may.
_ANYTHING = "\0"


class Permissions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `permissions` claim of a token: patterns by verb; `None` stands for the fallback."""

    send: tuple[str, ...] = ()
    broadcast: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    register: tuple[str, ...] = ()
    create: tuple[str, ...] = ()
    consume: tuple[str, ...] | None = None
    manage: tuple[str, ...] | None = None
    delete: tuple[str, ...] | None = None
    read: tuple[str, ...] | None = None
    discover: tuple[str, ...] | None = None
    host: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    rooms: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()


class Allowance:
    """The permissions of one session, compiled; `subject` is who its token was made for."""

    __slots__ = (
        "_admin",
        "_broadcast",
        "_consume",
        "_control",
        "_create",
        "_delete",
        "_delete_hosts",
        "_discover",
        "_host",
        "_manage",
        "_publish",
        "_read",
        "_read_addresses",
        "_register",
        "_rooms",
        "_send",
        "_subscribe",
        "discover_cost",
        "discovers_all",
        "identity",
        "is_host",
        "subject",
        "subscribe_cost",
    )

    def __init__(self, identity: str, permissions: Permissions, subject: str = "") -> None:
        self.identity = identity
        self.subject = subject
        given = permissions
        self._send = _compile(given.send)
        self._broadcast = _compile(given.broadcast, is_plain=True)
        self._publish = _compile(given.publish, is_plain=True)
        self._subscribe = _compile(given.subscribe, is_plain=True)
        self._register = _compile(given.register)
        self._create = _compile(given.create, is_plain=True)
        self._consume = None if given.consume is None else _compile(given.consume, is_plain=True)
        self._manage = self._or_create(given.manage)
        self._delete = self._or_create(given.delete)
        self._delete_hosts = _compile(given.delete or ())
        self._read = self._subscribe if given.read is None else _compile(given.read, is_plain=True)
        self._read_addresses = _compile(given.read or ())
        self._discover = self._send if given.discover is None else _compile(given.discover)
        self._host = _compile(given.host, is_plain=True)
        # Does it permit any kind?
        self.is_host = bool(self._host)
        self._control = _compile(given.control)
        self._rooms = _compile(given.rooms, is_plain=True)
        self._admin = _compile(given.admin, is_plain=True)
        # How many patterns are compared for one address, and for one topic.
        self.discover_cost = 1 + len(self._discover)
        self.subscribe_cost = 1 + len(self._subscribe)
        self.discovers_all = any(pattern.matches_all for pattern in self._discover)

    def _or_create(self, patterns: tuple[str, ...] | None) -> tuple[Pattern, ...]:
        return self._create if patterns is None else _compile(patterns, is_plain=True)

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
        """Create and change durable topics."""
        return _covers_all(self._create, topic)

    def owns(self, owner: str) -> bool:
        """Was it made with a token for the same subject? Nobody owns what has no owner."""
        return bool(owner) and owner == self.subject

    def may_consume(self, topic: str, subscription: str, owner: str = "") -> bool:
        """Take messages of a named subscription; `owner` is empty if nobody owns it."""
        return self.consumes(topic, subscription, owner) or _covers_all(self._manage, topic)

    def consumes(self, topic: str, subscription: str, owner: str = "") -> bool:
        """May it do so without the permission to manage?"""
        if self.owns(owner):
            return True
        if self._consume is not None:
            # A slash in its name is no border between levels of the topic: only `*` matches it.
            return _covers_all(self._consume, topic, "/" + subscription.replace("/", _ANYTHING))
        return not owner and self.may_subscribe(topic)

    def may_manage(self, topic: str, owner: str = "") -> bool:
        """Change a subscription of this topic, or what it has done."""
        return self.owns(owner) or _covers_all(self._manage, topic)

    def may_delete(self, name: str, owner: str = "") -> bool:
        """Delete a topic, what it holds or a subscription of it; purge on a host (`@(…)`)."""
        if names.is_address(name):
            return _covers(self._delete_hosts, name)
        return self.owns(owner) or _covers_all(self._delete, name)

    def may_read(self, name: str) -> bool:
        """See the contents of messages stored for a topic, or for an address (`@(…)`)."""
        if names.is_address(name):
            return _covers(self._read_addresses, name)
        return _covers(self._read, name)

    def may_discover(self, address: str) -> bool:
        """Learn that the address is registered."""
        return self.discovers_all or address == self.identity or _covers(self._discover, address)

    def may_host(self, kind: str) -> bool:
        """Run durable actors of this kind."""
        return _covers(self._host, kind)

    def may_control(self, host: str) -> bool:
        """Inspect, repair and move what runs on a host."""
        return _covers(self._control, host)

    def may_use_room(self, name: str) -> bool:
        """Use the room with this clear name without its capability."""
        return _covers(self._rooms, name)

    def may_administer(self, operation: str) -> bool:
        """Patterns match operations such as `view`, `sessions`, `republish` and `erase`."""
        return _covers(self._admin, operation)

    def may_subscribe(self, topic: str) -> bool:
        """For a wildcard: are all topics it can match allowed?"""
        return _covers_all(self._subscribe, topic)

    def may_register(self, address: str) -> bool:
        """The session's own identity always; others by pattern."""
        return address == self.identity or _covers(self._register, address)

    def may_speak_as(self, address: str) -> bool:
        """May it be the `from` of a message? The caller checks the session's registrations."""
        return self.may_register(address) and not names.is_reserved(address)


def _compile(patterns: tuple[str, ...], *, is_plain: bool = False) -> tuple[Pattern, ...]:
    return tuple(Pattern(text, is_plain=is_plain) for text in patterns)


def _covers(patterns: tuple[Pattern, ...], name: str) -> bool:
    return any(pattern.matches(name) for pattern in patterns)


def _covers_all(patterns: tuple[Pattern, ...], topic: str, below: str = "") -> bool:
    """Is a topic covered, with what is below it, or everything that a wildcard can match?"""
    if not names.has_wildcard(topic):
        return _covers(patterns, topic + below)
    return all(_covers(patterns, name + below) for name in _representatives(topic))


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

# Sets of verbs that a token is minted with. They say every younger verb, so that none falls back.
_VIEWER: dict[str, tuple[str, ...]] = {
    "consume": (),
    "manage": (),
    "delete": (),
    "read": (),
    "discover": _ALL,
    "host": (),
    "control": (),
    "rooms": (),
    "admin": ("view",),
}
_OPERATOR = _VIEWER | {
    "create": _ALL,
    "manage": _ALL,
    "read": _ALL,
    "control": _ALL,
    "admin": ("view", "sessions", "settings", "limits", "audit"),
}
ROLES: dict[str, dict[str, tuple[str, ...]]] = {
    "viewer": _VIEWER,
    "operator": _OPERATOR,
    "admin": _OPERATOR | {"delete": _ALL, "admin": _ALL},
}
