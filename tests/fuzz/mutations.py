"""Seeded damage to bytes and structures of any kind, and to messages: both of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

from tests.fuzz.corpus import ENVELOPE, NOTHING, ODD_TEXT, ODD_VALUES, REQUESTS, Members

T = TypeVar("T")

_NAMES = sorted(
    {name for _, payload, metadata in REQUESTS for name in (*(payload or ()), *metadata)}
    | ENVELOPE.keys()
    | {"payload", "metadata", "type"}
)


class Damage:
    """Seeded damage to bytes of any kind; the same seed gives the same."""

    def __init__(self, seed: int, odd_text: Sequence[bytes] = ODD_TEXT) -> None:
        self.random = Random(seed)
        self._odd_text = odd_text
        self._previous = b""

    def is_likely(self, chance: float) -> bool:
        return self.random.random() < chance

    def below(self, limit: int) -> int:
        return int(self.random.random() * limit)

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self.random.random() * len(choices))]

    def damaged(self, data: bytes, chance: float = 0.35) -> bytes:
        """The bytes, with this chance changed in one to three places."""
        if self.is_likely(chance):
            for _ in range(1 + self.below(3)):
                data = self.damage(data)
        self._previous = data
        return data

    def damage(self, data: bytes) -> bytes:
        """Bytes are flipped, lost, repeated, inserted or mixed with those of another case."""
        at = self.below(len(data) + 1)
        until = min(len(data), at + self.below(20))
        match self.below(9):
            case 0 | 1:
                flipped = bytearray(data)
                if at < len(flipped):
                    flipped[at] ^= 1 << self.below(8)
                return bytes(flipped)
            case 2:
                return data[:at]
            case 3:
                return data[at:]
            case 4:
                return data[:at] + data[until:]
            case 5:
                return data[:until] + data[at:]
            case 6:
                return data[:at] + self._previous[at:]
            case 7:
                return data[:at] + self.random.randbytes(self.below(4)) + data[until:]
            case _:
                return data[:at] + self.pick(self._odd_text) + data[at:]

    def altered(self, value: Any, odd: Sequence[Any]) -> Any:
        """A copy of a structure in which one place is odd, missing, doubled or somewhere else."""
        kind = self.below(12)
        if isinstance(value, dict) and value and kind:
            changed, name = dict(value), self.pick(list(value))
            if kind == 1:
                del changed[name]
            elif kind == 2:
                changed[str(self.pick(odd))[:40]] = self.pick(odd)
            elif kind == 3:
                changed[name] = self.pick(list(value.values()))
            else:
                changed[name] = self.altered(changed[name], odd)
            return changed
        if isinstance(value, list) and value and kind:
            changes, at = list(value), self.below(len(value))
            if kind == 1:
                del changes[at]
            elif kind == 2:
                changes.insert(at, self.pick(odd))
            elif kind == 3:
                changes.append(changes[at])
            else:
                changes[at] = self.altered(changes[at], odd)
            return changes
        return self.pick(odd)

    def pieces(self, data: bytes) -> list[bytes]:
        """The bytes as a network may deliver them: whole, or cut in up to four places."""
        cuts = sorted(self.below(len(data) + 1) for _ in range(self.below(5)))
        return [data[a:b] for a, b in pairwise((0, *cuts, len(data))) if a < b]


class Mutator(Damage):
    """An endless supply of messages that are often still valid, and sometimes not even UTF-8."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._serial = 0

    def next(self) -> bytes:
        """The next frame."""
        return self.damaged(self._message())

    def _message(self) -> bytes:
        type, payload, metadata = REQUESTS[self.below(len(REQUESTS))]
        chance = self.random.random
        self._serial += 1
        envelope = dict(ENVELOPE)
        # Some ids come back, so that there are repeats.
        serial = self._serial if chance() < 0.8 else self.below(10)
        envelope["id"] = b'"m-%d"' % serial
        envelope["type"] = b'"%b"' % type.encode()
        if chance() < 0.4:
            envelope["pattern"] = b'"tell"'
        if chance() < 0.3:
            payload = self._changed(payload or NOTHING)
        if chance() < 0.2:
            metadata = self._changed(metadata)
        envelope["payload"] = b"null" if payload is None else _object(payload)
        envelope["metadata"] = _object(metadata)
        if chance() < 0.3:
            envelope = self._changed(envelope)
        return _object(envelope)

    def _changed(self, given: Members) -> Members:
        """One member has an odd value, is gone, is somebody else's, or is nested deeply."""
        changed = dict(given)
        names = list(changed) or _NAMES
        name = names[self.below(len(names))]
        match self.below(12):
            case 0:
                changed.pop(name, None)
            case 1:
                other = names[self.below(len(names))]
                if name in changed and other in changed:
                    changed[name], changed[other] = changed[other], changed[name]
            case 2:
                # A second member of the same name, written inside the name of the first.
                changed[f'{name}":{self._odd().decode()},"{name}'] = self._odd()
            case 3:
                changed[_NAMES[self.below(len(_NAMES))]] = self._odd()
            case 4 if self.random.random() < 0.02:
                depth = self.below(3_000)
                changed[name] = b'{"a":' * depth + b"[]" + b"}" * depth
            case 5:
                changed[name] = b"[" + changed.get(name, b"0") + b"]"
            case 6:
                changed[name] = b'{"x":' + changed.get(name, b"0") + b"}"
            case _:
                changed[name] = self._odd()
        return changed

    def _odd(self) -> bytes:
        return ODD_VALUES[self.below(len(ODD_VALUES))]


def _object(given: Members) -> bytes:
    return b"{" + b",".join([b'"%b":%b' % (name.encode(), given[name]) for name in given]) + b"}"
