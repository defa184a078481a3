"""Seeded damage to good messages: first to their members, then to their bytes."""

from __future__ import annotations

from random import Random

from tests.fuzz.corpus import ENVELOPE, NOTHING, ODD_TEXT, ODD_VALUES, REQUESTS, Members

_NAMES = sorted(
    {name for _, payload, metadata in REQUESTS for name in (*(payload or ()), *metadata)}
    | ENVELOPE.keys()
    | {"payload", "metadata", "type"}
)


class Mutator:
    """An endless supply of frames; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._serial = 0
        self._previous = b"{}"

    def next(self) -> bytes:
        """The next frame, which is often still a message and sometimes not even UTF-8."""
        chance = self._random.random
        frame = self._message()
        if chance() < 0.35:
            for _ in range(1 + int(chance() * 3)):
                frame = self._damage(frame)
        self._previous = frame
        return frame

    def _below(self, limit: int) -> int:
        return int(self._random.random() * limit)

    def _message(self) -> bytes:
        type, payload, metadata = REQUESTS[self._below(len(REQUESTS))]
        chance = self._random.random
        self._serial += 1
        envelope = dict(ENVELOPE)
        # Some ids come back, so that there are repeats.
        serial = self._serial if chance() < 0.8 else self._below(10)
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
        name = names[self._below(len(names))]
        match self._below(12):
            case 0:
                changed.pop(name, None)
            case 1:
                other = names[self._below(len(names))]
                if name in changed and other in changed:
                    changed[name], changed[other] = changed[other], changed[name]
            case 2:
                # A second member of the same name, written inside the name of the first.
                changed[f'{name}":{self._odd().decode()},"{name}'] = self._odd()
            case 3:
                changed[_NAMES[self._below(len(_NAMES))]] = self._odd()
            case 4 if self._random.random() < 0.02:
                depth = self._below(3_000)
                changed[name] = b'{"a":' * depth + b"[]" + b"}" * depth
            case 5:
                changed[name] = b"[" + changed.get(name, b"0") + b"]"
            case 6:
                changed[name] = b'{"x":' + changed.get(name, b"0") + b"}"
            case _:
                changed[name] = self._odd()
        return changed

    def _odd(self) -> bytes:
        return ODD_VALUES[self._below(len(ODD_VALUES))]

    def _damage(self, frame: bytes) -> bytes:
        """Bytes are flipped, lost, repeated, inserted or mixed with those of another frame."""
        at = self._below(len(frame) + 1)
        until = min(len(frame), at + self._below(20))
        match self._below(9):
            case 0 | 1:
                flipped = bytearray(frame)
                if at < len(flipped):
                    flipped[at] ^= 1 << self._below(8)
                return bytes(flipped)
            case 2:
                return frame[:at]
            case 3:
                return frame[at:]
            case 4:
                return frame[:at] + frame[until:]
            case 5:
                return frame[:until] + frame[at:]
            case 6:
                return frame[:at] + self._previous[at:]
            case 7:
                return frame[:at] + self._random.randbytes(self._below(4)) + frame[until:]
            case _:
                return frame[:at] + ODD_TEXT[self._below(len(ODD_TEXT))] + frame[at:]


def _object(given: Members) -> bytes:
    return b"{" + b",".join([b'"%b":%b' % (name.encode(), given[name]) for name in given]) + b"}"
