"""What actors are called: a kind, which is a class, and a key that tells its actors apart."""

from __future__ import annotations

import re
from typing import Any

import msgspec

KEY_CHARS_MAX = 256

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,63}")
# Lone surrogates have no UTF-8 and could be neither stored nor sent.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_WORD_BEGINS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Ref(msgspec.Struct, frozen=True, gc=False):
    """One actor. Make it with `ref` or `parse_ref`, which check what they are given."""

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.key}"


def ref(kind: str | type[Any], key: str) -> Ref:
    """The actor of that kind and key; instead of the kind, its class will do.

    Raises:
        TypeError: Kind or key is something else than text.
        ValueError: The text cannot be a kind or a key.
    """
    name = getattr(kind, "kind", None) if isinstance(kind, type) else kind
    if type(name) is not str:
        raise TypeError(f"a kind is text or a class with a `kind`, not {kind!r:.100}")
    if type(key) is not str:
        raise TypeError(
            f"the key of a {name} is text, not {type(key).__name__}; write ref(…, str(…))"
        )
    if _KIND.fullmatch(name) is None:
        raise ValueError(
            f"{name!r:.100} is no kind: use up to 64 of a-z, 0-9, _ and -, with a letter first"
        )
    if not 0 < len(key) <= KEY_CHARS_MAX:
        raise ValueError(f"the key of a {name} has {len(key)} characters; use 1 to {KEY_CHARS_MAX}")
    if _UNFIT.search(key) is not None:
        raise ValueError(
            f"the key {key!r:.100} has control characters or lone surrogates; use plain text"
        )
    return Ref(name, key)


def parse_ref(text: str) -> Ref:
    """What `str(ref)` wrote. Keys may hold slashes, so the first one separates."""
    if type(text) is not str:
        raise TypeError(f"an address is text such as 'stock/blue-mug', not {text!r:.100}")
    kind, slash, key = text.partition("/")
    if not slash:
        raise ValueError(f"{text!r:.100} is no address; write it as 'stock/blue-mug'")
    return ref(kind, key)


def kind_of(name: str) -> str:
    """The kind of a class that names none: `PaymentGateway` becomes `payment-gateway`."""
    kind = _WORD_BEGINS.sub("-", name.strip("_")).lower()
    if _KIND.fullmatch(kind) is None:
        raise ValueError(
            f'no kind can be made of the class name {name!r:.100}; set kind = "…" in it'
        )
    return kind
