"""Addresses and topics: their syntax, and how patterns match them.

Addresses are compared exactly. In patterns `*` matches any characters, slashes included; every
other character matches itself. Matching is linear in the length of the name for every pattern,
because patterns are untrusted input.
"""

from __future__ import annotations

HUB_ADDRESS = "@(cloudflare/signal-hub)"
NOBODY = "@(unknown/unknown)"
# Addresses below this are the hub's, too.
HUB_PREFIX = "@(hub/"

ADDRESS_CHARS_MAX = 256
TOPIC_CHARS_MAX = 256
TYPE_CHARS_MAX = 256
ID_CHARS_MAX = 256
WILDCARD_LEVELS_MAX = 16
HUB_TYPE_PREFIX = "hub:"

ONE_LEVEL = "+"
SUBTREE = "#"


def is_address(text: str) -> bool:
    """The loose syntax: `@(` something `)`."""
    return (
        3 < len(text) <= ADDRESS_CHARS_MAX
        and text.startswith("@(")
        and text.endswith(")")
        and text.isprintable()
    )


def is_reserved(address: str) -> bool:
    """Is it the hub's own, or the one that stands for nobody? No client may have it."""
    return address in (HUB_ADDRESS, NOBODY) or address.startswith(HUB_PREFIX)


def path_of(address: str) -> str:
    """The address without its `@(` and `)`; patterns may be written either way."""
    if address.startswith("@(") and address.endswith(")"):
        return address[2:-1]
    return address


class Pattern:
    """A glob over addresses or plain names."""

    __slots__ = (
        "_first",
        "_is_plain",
        "_last",
        "_middles",
        "address_prefix",
        "literal",
        "matches_all",
    )

    def __init__(self, text: str, *, is_plain: bool = False) -> None:
        first, *rest = (text if is_plain else path_of(text)).split("*")
        self._is_plain = is_plain
        # The name itself if it contains no `*`.
        self.literal = first if not rest else None
        self.address_prefix = "@(" + first
        self._first = first
        self._last = rest[-1] if rest else ""
        self._middles = [part for part in rest[:-1] if part]
        self.matches_all = bool(rest) and not first and not self._last and not self._middles

    def matches(self, name: str) -> bool:
        """Does the pattern match all of `name`, given with or without `@(` `)`?"""
        if self.matches_all:
            return True
        path = name if self._is_plain else path_of(name)
        if self.literal is not None:
            return path == self.literal
        end = len(path) - len(self._last)
        at = len(self._first)
        if end < at or not path.startswith(self._first) or not path.endswith(self._last):
            return False
        for part in self._middles:
            found = path.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True


def is_topic(text: str) -> bool:
    """Any non-empty string up to 256 characters is a topic."""
    return 0 < len(text) <= TOPIC_CHARS_MAX


def has_wildcard(topic: str) -> bool:
    """Is any level of the topic `+` or `#`?"""
    if ONE_LEVEL not in topic and SUBTREE not in topic:
        return False
    return any(level in (ONE_LEVEL, SUBTREE) for level in topic.split("/"))


def is_subscribable(topic: str) -> bool:
    """A topic, or a wildcard whose `#`, if any, is its last level."""
    return is_topic(topic) and SUBTREE not in topic.split("/")[:-1]


def topic_matches(wildcard: str, topic: str) -> bool:
    """`+` matches one level, a final `#` the level before it and everything below."""
    return levels_match(wildcard.split("/"), topic.split("/"))


def levels_match(wanted: list[str], given: list[str]) -> bool:
    """Does a wildcard match a topic, both split into levels?"""
    for index, level in enumerate(wanted):
        if level == SUBTREE:
            return True
        if index >= len(given) or level not in (ONE_LEVEL, given[index]):
            return False
    return len(wanted) == len(given)
