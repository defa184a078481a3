"""The denial list: tokens that are not accepted although they are valid.

One JSON object per line. Each names one token by its `jti`, all tokens of a user by `sub`, or all
tokens for an address by `actor`; `until` is when the entry ends, in seconds since the Unix epoch,
and `reason` is for people. Empty lines and lines that begin with `#` are ignored:

    {"jti":"5Zs0…","until":1796000000,"reason":"lost laptop"}
    {"sub":"user-4711"}
    {"actor":"@(browser/ui-7)"}

A list with a line that cannot be read is refused as a whole: an entry with a misspelt name would
otherwise deny nobody.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from signalhub.wire import names
from signalhub.wire.errors import SettingsError

if TYPE_CHECKING:
    from signalhub.auth.tokens import Claims

LIST_BYTES_MAX = 2**20


class Denial(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One entry of the list; exactly one of `jti`, `sub` and `actor` is set."""

    jti: str | None = None
    sub: str | None = None
    actor: str | None = None
    until: int | float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        given = [one for one in (self.jti, self.sub, self.actor) if one is not None]
        if len(given) != 1 or not given[0]:
            raise ValueError("give one of jti, sub and actor")
        if self.actor is not None and not names.is_address(self.actor):
            raise ValueError("actor must be an address such as @(service/name)")

    def has_ended(self, now_s: float) -> bool:
        return self.until is not None and self.until <= now_s


_decode_line = msgspec.json.Decoder(Denial).decode


class Denials:
    """All entries, by what they name."""

    def __init__(self, entries: Iterable[Denial] = ()) -> None:
        self._tokens: dict[str, float] = {}
        self._subjects: dict[str, float] = {}
        self._actors: dict[str, float] = {}
        for one in entries:
            until = math.inf if one.until is None else one.until
            for table, name in (
                (self._tokens, one.jti),
                (self._subjects, one.sub),
                (self._actors, one.actor),
            ):
                if name is not None:
                    table[name] = max(until, table.get(name, until))

    def __len__(self) -> int:
        return len(self._tokens) + len(self._subjects) + len(self._actors)

    def covers(self, claims: Claims, now_s: float) -> bool:
        """Is the token with these claims denied?"""
        return (
            now_s < self._tokens.get(claims.jti, -math.inf)
            or now_s < self._subjects.get(claims.subject, -math.inf)
            or now_s < self._actors.get(claims.actor, -math.inf)
        )


NOBODY_DENIED = Denials()


def read(text: bytes) -> list[Denial]:
    """The entries of a list; raises `SettingsError` that names the first faulty line."""
    return list(entries_of(text))


def entries_of(text: bytes) -> Iterator[Denial]:
    """The same one by one: a list of 1 MiB takes 100 ms."""
    if len(text) > LIST_BYTES_MAX:
        raise SettingsError(f"the list is longer than {LIST_BYTES_MAX} bytes: remove ended entries")
    for number, line in enumerate(text.split(b"\n"), 1):
        line = line.strip()
        if not line or line.startswith(b"#"):
            continue
        try:
            yield _decode_line(line)
        except (ValueError, RecursionError) as error:
            raise SettingsError(
                f'line {number}: {error}: write one entry such as {{"jti":"…"}}'
            ) from None


def write(entries: Iterable[Denial]) -> bytes:
    """The entries as text."""
    return b"".join(msgspec.json.encode(one) + b"\n" for one in entries)
