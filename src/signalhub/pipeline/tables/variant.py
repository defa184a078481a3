"""JSON as VARIANT, to the byte as Spark's `try_parse_json` encodes it.

Only what both read alike is encoded: valid JSON without repeated names, of moderate depth. All else
is left to Spark, which is the reference.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

VARIANT: Final = pa.struct(
    [pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), False)]
)
"""A column of them as it is in data files."""

_DEPTH_MAX: Final = 100
_NUMBER_MAX: Final = 300
_DIGITS_MAX: Final = 38
_SHORT_TEXT_MAX: Final = 63
_VERSION: Final = 1
_NULL, _TRUE, _FALSE, _DOUBLE, _LONG_TEXT = (bytes([number << 2]) for number in (0, 1, 2, 7, 16))
_INTEGERS: Final = ((3, 1), (4, 2), (5, 4), (6, 8))
_DECIMALS: Final = ((8, 9, 4), (9, 18, 8), (10, _DIGITS_MAX, 16))
_SHORT_TEXT, _OBJECT, _ARRAY = 1, 2, 3


class Unusual(ValueError):
    """Spark has to decide what becomes of this text."""


def variants(texts: Iterable[str | None]) -> pa.Array:
    """Return texts as a column; raises `Unusual`."""
    found = [None if text is None else encode(text) for text in texts]
    return pa.array(found, VARIANT)


def encode(text: str) -> dict[str, bytes]:
    """Return value and metadata of a JSON text; raises `Unusual`."""
    encoder = _Encoder()
    try:
        parsed = json.loads(
            text,
            object_pairs_hook=_distinct,
            parse_constant=_refuse,
            parse_int=_integer,
            parse_float=_fraction,
        )
        return {"value": encoder.value(parsed, 0), "metadata": encoder.metadata()}
    except (ValueError, RecursionError) as error:
        raise Unusual(str(error)) from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Unusual("a name is repeated")
    return found


def _refuse(text: str) -> object:
    raise Unusual(text)


def _integer(text: str) -> int | Decimal | float:
    if len(text) > _NUMBER_MAX:
        raise Unusual("a long number")
    number = int(text)
    return number if -(2**63) <= number < 2**63 else _fraction(text)


def _fraction(text: str) -> Decimal | float:
    """Return a number without an exponent as a decimal, unless it has too many digits."""
    if len(text) > _NUMBER_MAX:
        raise Unusual("a long number")
    if "e" not in text and "E" not in text:
        number = Decimal(text)
        _, digits, exponent = number.as_tuple()
        if len(digits) <= _DIGITS_MAX and -int(exponent) <= _DIGITS_MAX:
            return number
    return float(text)


class _Encoder:
    """The names of one text, by their numbers."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}

    def metadata(self) -> bytes:
        names = [name.encode() for name in self._names]
        ends = [0]
        for name in names:
            ends.append(ends[-1] + len(name))
        size = _size(max(ends[-1], len(names)))
        header = bytes([_VERSION | (size - 1) << 6])
        return b"".join([header, _number(len(names), size), _numbers(ends, size), *names])

    def value(self, parsed: Any, depth: int) -> bytes:
        if depth > _DEPTH_MAX:
            raise Unusual("deeply nested")
        if isinstance(parsed, str):
            return _text(parsed)
        if parsed is None:
            return _NULL
        if isinstance(parsed, bool):
            return _TRUE if parsed else _FALSE
        if isinstance(parsed, int):
            return _whole(parsed)
        if isinstance(parsed, Decimal):
            return _decimal(parsed)
        if isinstance(parsed, float):
            return _DOUBLE + struct.pack("<d", parsed)
        if isinstance(parsed, dict):
            return self._object(parsed, depth)
        return _array([self.value(one, depth + 1) for one in parsed])

    def _object(self, members: dict[str, Any], depth: int) -> bytes:
        offset = largest = 0
        values: list[bytes] = []
        fields: list[tuple[bytes, int, int]] = []
        for name, member in members.items():
            number = self._names.setdefault(name, len(self._names))
            largest = max(largest, number)
            # Java sorts texts by their UTF-16 units.
            fields.append((name.encode("utf-16-be"), number, offset))
            values.append(self.value(member, depth + 1))
            offset += len(values[-1])
        fields.sort()
        id_size, offset_size = _size(largest), _size(offset)
        count, is_large = _count(len(fields))
        header = is_large << 4 | (id_size - 1) << 2 | (offset_size - 1)
        return b"".join(
            [
                bytes([header << 2 | _OBJECT]),
                count,
                _numbers([number for _, number, _ in fields], id_size),
                _numbers([*(at for _, _, at in fields), offset], offset_size),
                *values,
            ]
        )


def _array(values: list[bytes]) -> bytes:
    offsets = [0]
    for one in values:
        offsets.append(offsets[-1] + len(one))
    size = _size(offsets[-1])
    count, is_large = _count(len(values))
    header = is_large << 2 | (size - 1)
    return b"".join([bytes([header << 2 | _ARRAY]), count, _numbers(offsets, size), *values])


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) <= _SHORT_TEXT_MAX:
        return bytes([len(data) << 2 | _SHORT_TEXT]) + data
    return _LONG_TEXT + _number(len(data), 4) + data


def _whole(number: int) -> bytes:
    for type, size in _INTEGERS:
        if -(1 << 8 * size - 1) <= number < 1 << 8 * size - 1:
            return bytes([type << 2]) + number.to_bytes(size, "little", signed=True)
    raise AssertionError


def _decimal(number: Decimal) -> bytes:
    sign, digits, exponent = number.as_tuple()
    scale = -int(exponent)
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    for type, most, size in _DECIMALS:
        if len(digits) <= most and scale <= most:
            return bytes([type << 2, scale]) + unscaled.to_bytes(size, "little", signed=True)
    raise AssertionError


def _count(number: int) -> tuple[bytes, bool]:
    """Return the number of members as it is written, and whether that takes four bytes."""
    is_large = number > 0xFF
    return _number(number, 4 if is_large else 1), is_large


def _size(number: int) -> int:
    """Return how many bytes each of some numbers needs, given the largest."""
    if number <= 0xFF:
        return 1
    return 2 if number <= 0xFFFF else 3


def _number(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little")


def _numbers(numbers: Iterable[int], size: int) -> bytes:
    return b"".join(number.to_bytes(size, "little") for number in numbers)
