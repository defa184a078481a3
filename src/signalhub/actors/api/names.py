"""Addresses of actors: a kind, which names a class, and a key, unique within the kind."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

KEY_CHARS_MAX = 256

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,63}")
# Lone surrogates have no UTF-8 encoding and could be neither stored nor sent.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_WORD_BEGINS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Ref(msgspec.Struct, frozen=True, gc=False):
    """The address of one actor. Create it with `ref` or `parse_ref`, which validate."""

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.key}"


def ref(kind: str | type[Any], key: str) -> Ref:
    """The address of an actor by kind, or class, and key.

    Raises:
        TypeError: Kind or key is not a string.
        ValueError: Invalid kind or key.
    """
    name = getattr(kind, "kind", None) if isinstance(kind, type) else kind
    if type(name) is not str:
        raise TypeError(f"a kind must be a string or a class with a `kind`, not {kind!r:.100}")
    if type(key) is not str:
        raise TypeError(
            f"the key of a {name} must be a string, not {type(key).__name__}; use ref(…, str(…))"
        )
    return _checked(name, key)


@lru_cache(maxsize=4_096)
def _checked(name: str, key: str) -> Ref:
    """The address, of which most are used again soon."""
    if _KIND.fullmatch(name) is None:
        raise ValueError(
            f"invalid kind {name!r:.100}: use up to 64 of a-z, 0-9, _ and -, starting with a letter"
        )
    if not 0 < len(key) <= KEY_CHARS_MAX:
        raise ValueError(f"the key of a {name} has {len(key)} characters; use 1 to {KEY_CHARS_MAX}")
    if _UNFIT.search(key) is not None:
        raise ValueError(
            f"the key {key!r:.100} contains control characters or lone surrogates; use plain text"
        )
    return Ref(name, key)


def parse_ref(text: str) -> Ref:
    """Parse `str(ref)`. Keys may contain slashes, so the first slash is the separator."""
    if type(text) is not str:
        raise TypeError(f"an address must be a string such as 'stock/blue-mug', not {text!r:.100}")
    kind, slash, key = text.partition("/")
    if not slash:
        raise ValueError(f"invalid address {text!r:.100}; write it as 'stock/blue-mug'")
    return ref(kind, key)


def kind_of(name: str) -> str:
    """The default kind of a class: `PaymentGateway` becomes `payment-gateway`."""
    kind = _WORD_BEGINS.sub("-", name.strip("_")).lower()
    if _KIND.fullmatch(kind) is None:
        raise ValueError(
            f'cannot derive a kind from the class name {name!r:.100}; set kind = "…" in it'
        )
    return kind
