"""Values as they are stored and sent: JSON, with tags for types that JSON does not have.

A tagged value is an object of exactly two keys: `{"$": "tuple", "v": [1, 2]}`. Plain values stay
plain, so stored values can be read without this package. Objects are copied by value. Classes are
looked up in a table, never imported, because the input may not be trusted.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dates
import enum
import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, TypeVar, overload
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from signalhub.actors.api.names import Ref, parse_ref, ref
from signalhub.wire.errors import SignalHubError

VERSION: Final = 1
DEPTH_MAX: Final = 100  # Hard limit; deeper values could overflow the stack.

_TAG = "$"
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_JSON_DEPTH_MAX = 5 * DEPTH_MAX  # One level of a value is up to four levels of JSON.
_STEPS_SHOWN = 12

T = TypeVar("T")
Read = Callable[[Any], Any]

_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode


class PayloadError(SignalHubError, TypeError, ValueError):
    """A value cannot be sent, or bytes are not a payload; the text says where and what to do."""

    code = "payload"

    def __init__(self, reason: str, *, steps: Iterable[str] = (), where: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where
        # Innermost first, the order in which they are added.
        self.steps = list(steps)

    @property
    def path(self) -> str:
        """The path within the value, such as `items[3].price`."""
        steps = self.steps[::-1]
        if len(steps) > _STEPS_SHOWN:
            steps = [*steps[: _STEPS_SHOWN - 1], "…", steps[-1]]
        return "".join(steps).removeprefix(".")

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.where, self.path, self.reason)))


class Packer:
    """Turns one value into plain JSON values; used once."""

    __slots__ = ("_budget", "_depth", "_inside")

    def __init__(self, max_depth: int, max_bytes: int) -> None:
        self._depth = max_depth
        self._budget = max_bytes
        self._inside: set[int] = set()

    def pack(self, value: object, step: object = None) -> Any:
        """The JSON form of a value at `step`: an index, a key or a field; `...` for no step."""
        try:
            return self._pack(value)
        except PayloadError as error:
            if step is not None:
                error.steps.append(_shown(step))
            raise

    def pack_text(self, text: str) -> str:
        self._spend(len(text))
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise PayloadError("text with lone surrogates cannot be sent") from None
        return text

    def _pack(self, value: Any) -> Any:
        self._spend(1)
        kind = type(value)
        if kind is str:
            return self.pack_text(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            # Few programs read larger numbers, and hexadecimal converts in linear time.
            return value if _INT_MIN <= value <= _INT_MAX else self.tagged("int", hex(value))
        if kind is float:
            return value if math.isfinite(value) else self.tagged("float", repr(value))
        if (leaf := _LEAVES.get(kind)) is not None:
            return self.tagged(leaf[0], leaf[1](value))
        write = _CONTAINERS.get(kind)
        if write is None:
            raise PayloadError(_refusal(value))
        if id(value) in self._inside:
            raise PayloadError("the value contains itself; send an id instead of the object")
        if not self._depth:
            raise PayloadError("the value is nested too deeply")
        self._depth -= 1
        self._inside.add(id(value))
        packed = write(value, self)
        self._inside.discard(id(value))
        self._depth += 1
        return packed

    def tagged(self, tag: str, content: Any) -> dict[str, Any]:
        self._spend(len(content) if type(content) is str else 16)
        return {_TAG: tag, "v": content}

    def _spend(self, size: int) -> None:
        # A lower bound of the encoded size: aliases could multiply without limit before the bytes
        # are counted.
        self._budget -= size
        if self._budget < 0:
            raise _TooLarge


class _TooLarge(Exception):
    """Raised wherever the limit is reached; it is the whole value that is too large."""


def _shown(step: object) -> str:
    if isinstance(step, str) and step.isidentifier():
        return f".{step}"
    return "[…]" if step is ... else f"[{step!r:.40}]"


_LEAVES: dict[type, tuple[str, Callable[[Any], Any]]] = {}
_CONTAINERS: dict[type, Callable[[Any, Packer], Any]] = {}
_READERS: dict[str, Callable[[Any, Read], Any]] = {}
_NAMED: dict[str, tuple[type, Callable[[Any, Read], Any]]] = {}


def encode(value: object, *, max_depth: int = 50, max_bytes: int = 2**20) -> bytes:
    """The bytes of a value; raises `PayloadError` if it cannot be sent."""
    max_depth = min(max_depth, DEPTH_MAX)
    try:
        is_plain = _spare(value, max_depth, max_bytes) >= 0
        data = _to_json(value if is_plain else Packer(max_depth, max_bytes).pack(value))
    except UnicodeEncodeError:
        Packer(max_depth, max_bytes).pack(value)  # Raises with the path.
        raise
    except _TooLarge:
        data = b""
    if not 0 < len(data) <= max_bytes:
        raise PayloadError(
            f"the value takes more than {max_bytes} bytes; send less, or a reference"
        )
    return data


def _spare(value: Any, depth: int, budget: int) -> int:
    """The remaining budget after a plain value; -1 if it needs a `Packer`."""
    kind = type(value)
    values: Any
    if kind is list:
        values = value
    elif kind is dict:
        if _TAG in value:
            return -1
        for key in value:
            if type(key) is not str:
                return -1
            budget -= len(key)
        values = value.values()
    else:
        values = (value,)
        depth += 1
    if not depth:
        return -1
    budget -= len(values)
    for item in values:
        kind = type(item)
        if kind is str:
            budget -= len(item)
        elif kind is int:
            if not _INT_MIN <= item <= _INT_MAX:
                return -1
        elif kind is list or kind is dict:
            budget = _spare(item, depth - 1, budget)
            if budget < 0:
                return -1
        elif kind is float:
            if item - item != 0.0:  # Not finite.
                return -1
        elif item is not None and kind is not bool:
            return -1
    if budget < 0:
        raise _TooLarge
    return budget


def decode(data: bytes | memoryview) -> Any:
    """The value that `encode` wrote; raises `PayloadError` for invalid bytes."""
    data = bytes(data)
    try:
        raw = _from_json(data)
        if data.count(b"[") + data.count(b"{") > _JSON_DEPTH_MAX:
            _check_depth(raw)
        # Without this key, in any spelling, nothing is tagged.
        if b'"$"' not in data and b"\\u0024" not in data:
            return raw
        return _read(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PayloadError(f"invalid payload: {error}") from error
    except RecursionError:
        raise PayloadError("the value is nested too deeply") from None


def _check_depth(raw: Any) -> None:
    level = [raw]
    for _ in range(_JSON_DEPTH_MAX + 1):
        parts = (one.values() if type(one) is dict else one for one in level)
        level = [one for part in parts for one in part if type(one) is list or type(one) is dict]
        if not level:
            return
    raise PayloadError("the value is nested too deeply")


def _read(raw: Any) -> Any:
    if type(raw) is list:
        return [_read(item) for item in raw]
    if type(raw) is not dict:
        return raw
    if _TAG not in raw:
        return {key: _read(value) for key, value in raw.items()}
    tag = raw[_TAG]
    reader = _READERS.get(tag) if type(tag) is str else None
    if reader is None or len(raw) != 2 or "v" not in raw:
        raise PayloadError(f"unknown tag {tag!r:.100}; is this version too old?")
    try:
        return reader(raw["v"], _read)
    except (PayloadError, RecursionError):
        raise
    except Exception as error:
        # Constructors of registered classes may raise anything.
        raise PayloadError(f"a value tagged {tag!r} cannot be read: {error!r:.200}") from error


def extend(
    tag: str, cls: type, write: Callable[[Any, Packer], Any], read: Callable[[Any, Read], Any]
) -> None:
    """Add a type: `write` packs the content of a value, `read` builds a value from it."""
    assert tag not in _READERS, tag
    _CONTAINERS[cls] = lambda value, packer: packer.tagged(tag, write(value, packer))
    _READERS[tag] = read


@overload
def register(target: type[T], /, *, name: str | None = None) -> type[T]: ...
@overload
def register(
    target: str | None = None, /, *, name: str | None = None
) -> Callable[[type[T]], type[T]]: ...
def register(target: Any = None, /, *, name: str | None = None) -> Any:
    """Let a dataclass, a msgspec Struct or an Enum be sent.

    Imported as `register_payload` and used as a class decorator, with or without a name. The name
    is stored instead of the class, so it must stay when the class is renamed or moved.

    Raises:
        TypeError: The class is none of these.
        ValueError: Another class has the name.
    """
    if not isinstance(target, type):
        return lambda cls: register(cls, name=target or name)
    name = name or target.__name__
    if _NAMED.get(name, (target,))[0] is not target:
        raise ValueError(
            f"{_NAMED[name][0].__qualname__} is already registered as {name!r}; "
            'use @register_payload("another name")'
        )
    if target not in _LEAVES and target not in _CONTAINERS:
        _NAMED[name] = (target, _teach(target, name))
    elif name not in _NAMED:
        raise ValueError(f"{target.__qualname__} is already registered under another name")
    return target


def _flags(cls: type[enum.Flag], value: int) -> enum.Flag:
    """The flags with this value; the first releases of Python 3.11 drop unknown ones."""
    flags = cls(value)
    if flags.value != value:
        raise ValueError(f"{value} is no valid {cls.__qualname__}")
    return flags


def _teach(cls: type, name: str) -> Callable[[Any, Read], Any]:
    """Add a class to the tables; returns its reader."""
    if issubclass(cls, enum.Enum):
        if not issubclass(cls, enum.Flag):
            _LEAVES[cls] = ("class", lambda member: [name, member.name])
            return lambda content, _: cls[content]
        # Combined flags have no name.
        _LEAVES[cls] = ("class", lambda member: [name, member.value])
        return lambda content, _: _flags(cls, content)
    if issubclass(cls, BaseException):
        raise TypeError(f"{cls.__qualname__} is an error; use @register_error")
    if dataclasses.is_dataclass(cls) and "__dataclass_fields__" in cls.__dict__:
        names = [field.name for field in dataclasses.fields(cls)]
        late = {field.name for field in dataclasses.fields(cls) if not field.init}
    elif issubclass(cls, msgspec.Struct):
        names, late = list(cls.__struct_fields__), set()
    else:
        raise TypeError(
            f"{cls.__qualname__} is not a dataclass, Struct or Enum; "
            "make it one, and put @register_payload above @dataclass"
        )

    def write(value: Any, packer: Packer) -> Any:
        try:
            content = {one: packer.pack(getattr(value, one), one) for one in names}
        except AttributeError as error:
            raise PayloadError(f"a field is not set: {error}") from error
        return packer.tagged("class", [name, content])

    def read(content: Any, read: Read) -> Any:
        values = {key: read(value) for key, value in content.items()}
        made = cls(**{key: value for key, value in values.items() if key not in late})
        for key in late & values.keys():
            object.__setattr__(made, key, values[key])
        return made

    _CONTAINERS[cls] = write
    return read


def _read_named(content: Any, read: Read) -> Any:
    name, inner = content
    if name not in _NAMED:
        raise PayloadError(f"the class {name!r:.100} is not known here; use @register_payload")
    return _NAMED[name][1](inner, read)


def _refusal(value: object) -> str:
    kind = type(value)
    name = kind.__qualname__
    if isinstance(value, BaseException):
        return f"{name} is an error, not a value; raise it, or send its text"
    if dataclasses.is_dataclass(kind) or isinstance(value, msgspec.Struct | enum.Enum):
        return f"{name} cannot be sent; put @register_payload above the class"
    for known in (int, float, str, bytes, dates.datetime, dates.date, tuple, *_CONTAINERS):
        if isinstance(value, known):
            return f"{name} cannot be sent; turn it into {known.__name__}"
    if isinstance(value, bytearray | memoryview):
        return f"{name} cannot be sent; turn it into bytes"
    if callable(value):
        return f"{name} cannot be sent, because it is code; send the name of a method instead"
    return f"{name} cannot be sent; turn it into plain values or a registered dataclass"


def _write_list(value: list[Any], packer: Packer) -> list[Any]:
    return [packer.pack(item, index) for index, item in enumerate(value)]


def _write_dict(value: Mapping[Any, Any], packer: Packer) -> dict[str, Any]:
    if _TAG not in value and all(type(key) is str for key in value):
        return {packer.pack_text(key): packer.pack(item, key) for key, item in value.items()}
    pairs = [[packer.pack(key, ...), packer.pack(item, key)] for key, item in value.items()]
    return packer.tagged("dict", pairs)


def _write_set(value: Iterable[Any], packer: Packer) -> list[Any]:
    # In the same order in every process, so that equal values have equal bytes.
    return sorted((packer.pack(item, ...) for item in value), key=_to_json)


def _write_moment(value: Any) -> list[Any]:
    zone = value.tzinfo
    if isinstance(zone, ZoneInfo) and zone.key is None:
        raise PayloadError("a ZoneInfo without a key cannot be sent; use ZoneInfo('Area/City')")
    if zone is not None and (value.utcoffset() or dates.timedelta()).microseconds:
        # `fromisoformat` ignores an offset below a second.
        raise PayloadError("an offset from UTC must be whole seconds; use another timezone")
    return [value.isoformat(), zone.key if isinstance(zone, ZoneInfo) else None, value.fold]


def _read_moment(kind: type[dates.datetime] | type[dates.time]) -> Callable[[Any, Read], Any]:
    def read(content: Any, _: Read) -> Any:
        text, zone, fold = content
        moment: Any = kind.fromisoformat(text)
        if zone is None:
            return moment.replace(fold=fold)
        local = moment.replace(tzinfo=ZoneInfo(zone), fold=fold)
        if moment.utcoffset() in (None, local.utcoffset()):
            return local
        # The zone has different rules here; keep the instant.
        return moment.astimezone(local.tzinfo)

    return read


def _write_ref(value: Ref) -> str:
    try:
        return str(ref(value.kind, value.key))
    except (TypeError, ValueError) as error:
        raise PayloadError(str(error)) from error


def _many(kind: type) -> tuple[Callable[[Any, Packer], Any], Callable[[Any, Read], Any]]:
    write = _write_list if kind is tuple else _write_set
    return write, lambda content, read: kind(read(item) for item in content)


# The rights of a call are such a read-only view; a copy is a dict.
_CONTAINERS |= {list: _write_list, dict: _write_dict, MappingProxyType: _write_dict}
for _kind in (tuple, set, frozenset):
    extend(_kind.__name__, _kind, *_many(_kind))
_LEAVES |= {
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
    dates.datetime: ("datetime", _write_moment),
    dates.date: ("date", dates.date.isoformat),
    dates.time: ("time", _write_moment),
    dates.timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: ("decimal", str),
    UUID: ("uuid", str),
    Ref: ("ref", _write_ref),
}
_READERS |= {
    "int": lambda content, _: int(content, 16),
    "float": lambda content, _: float(content),
    "dict": lambda content, read: {read(key): read(value) for key, value in content},
    "bytes": lambda content, _: base64.b64decode(content, validate=True),
    "datetime": _read_moment(dates.datetime),
    "date": lambda content, _: dates.date.fromisoformat(content),
    "time": _read_moment(dates.time),
    "timedelta": lambda content, _: dates.timedelta(*content),
    "decimal": lambda content, _: Decimal(content),
    "uuid": lambda content, _: UUID(content),
    "ref": lambda content, _: parse_ref(content),
    "class": _read_named,
}
