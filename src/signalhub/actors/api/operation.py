"""Operations, which run at another actor, and continuations, which get the outcome here.

Both are a method's name and arguments, so they can be stored, read and migrated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from types import FunctionType, MethodType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, final, overload

import msgspec

from signalhub.actors.api import payload
from signalhub.actors.api.payload import Packer, PayloadError, Read

P = ParamSpec("P")
R = TypeVar("R", "Operation", "Continuation")

MAX_ARGS: Final = 100
MAX_DEPTH: Final = 50
MAX_BYTES: Final = 2**20
_ANY_TAG: Final = b'"$":'
_KEYS: Final = frozenset("mak")
_SMALL_CHARS: Final = 256
_SMALL_INT: Final = 2**62
_SCALARS: Final = frozenset((str, int, float, bool, type(None)))

_to_json: Final = msgspec.json.Encoder().encode


@final
class Result:
    """The type of `RESULT`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "RESULT"

    def __reduce__(self) -> str:
        # Copies are the same object, because it is compared by identity.
        return "RESULT"


RESULT: Final = Result()  # Placeholder for the outcome in a continuation.


class Operation(msgspec.Struct, frozen=True):
    """A method of another actor with its arguments; arguments that are operations run first.

    `owner` is the class of the method, if it can be found. It is not stored.
    """

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    owner: type | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operation) and _parts(self) == _parts(other)

    __hash__ = None  # type: ignore[assignment]


class Continuation(msgspec.Struct, frozen=True):
    """A method of this actor with its arguments, called with an outcome.

    `owner` is the object the method was bound to, if any. It is not stored.
    """

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    owner: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Continuation) and _parts(self) == _parts(other)

    __hash__ = None  # type: ignore[assignment]


def _parts(one: Operation | Continuation) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    return one.method, one.args, one.kwargs


@overload
def op(function: str, /, *args: Any, **kwargs: Any) -> Operation: ...
@overload
def op(
    function: Callable[Concatenate[Any, P], Any], /, *args: P.args, **kwargs: P.kwargs
) -> Operation: ...
def op(function: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> Operation:
    """An operation: `op(Stock.reserve, 1)`, or `op("reserve", 1)` without the class."""
    if isinstance(function, str):
        if not function.isidentifier() or function.startswith("_"):
            raise ValueError(f"invalid method name {function!r:.100}")
        return Operation(function, args, kwargs)
    if not isinstance(function, FunctionType) or not _is_in_class(function):
        raise TypeError(
            f"an operation must be a method of a class, not {_named(function)}; "
            'write op(Stock.reserve, …) or op("reserve", …)'
        )
    return Operation(function.__name__, args, kwargs, _owner(function))


def _is_in_class(function: FunctionType) -> bool:
    outer = function.__qualname__.rpartition(".")[0]
    return bool(outer) and not outer.endswith("<locals>") and function.__name__.isidentifier()


@lru_cache(maxsize=1024)
def _owner(function: FunctionType) -> type | None:
    """The class that defines a function; classes inside functions cannot be found by name."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split(".")[:-1]:
        found = getattr(found, name, None)
    is_owner = isinstance(found, type) and vars(found).get(function.__name__) is function
    return found if is_owner else None


def cont(
    function: Callable[..., Any] | Continuation | str, /, *args: Any, **kwargs: Any
) -> Continuation:
    """A continuation: `cont(self.on_reserved, sku)`, a `partial` of a method, or a method's name.

    The outcome is passed as the last argument, or in place of `RESULT`.
    """
    if isinstance(function, Continuation):
        merged = {**function.kwargs, **kwargs}
        return Continuation(function.method, (*function.args, *args), merged, function.owner)
    if isinstance(function, partial):
        return cont(function.func, *function.args, *args, **{**function.keywords, **kwargs})
    if isinstance(function, str):
        return Continuation(function, args, kwargs)
    if not isinstance(function, MethodType):
        raise TypeError(
            f"a continuation must be a method of the actor, not {_named(function)}; "
            "write self.on_done, partial(self.on_done, …) or cont(self.on_done, …)"
        )
    return Continuation(function.__name__, args, kwargs, function.__self__)


def continuation_of(value: Callable[..., Any] | Continuation | str, owner: object) -> Continuation:
    """The value as a continuation of `owner`; raises `TypeError` if it cannot be one."""
    found = cont(value)
    cls = type(owner)
    name = found.method
    if found.owner is not None and found.owner is not owner:
        raise TypeError(
            f"{name} is bound to {_named(found.owner)}, but a continuation runs in the actor that "
            f"makes the call: use self.{name}"
        )
    method = None if name.startswith("__") else getattr(cls, name, None)
    if not callable(method) or isinstance(method, type):
        raise TypeError(
            f"{cls.__name__} has no method {name!r:.100}; use self.on_done with a method defined "
            "in the class"
        )
    bound = _function(value)
    if bound is not None and bound is not method:
        raise TypeError(
            f"self.{name} of {cls.__name__} is a different function than the one given and would "
            f"run instead; use self.{name}"
        )
    return Continuation(name, found.args, found.kwargs)


def _function(value: Any) -> Any:
    while isinstance(value, partial):
        value = value.func
    return value.__func__ if isinstance(value, MethodType) else None


def _named(value: object) -> str:
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else f"an object of {type(value).__qualname__}"


def place(continuation: Continuation, outcome: object) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with the outcome in place of `RESULT`, or at the end."""
    if not continuation.kwargs and _SCALARS.issuperset(map(type, continuation.args)):
        return [*continuation.args, outcome], {}

    def filled(value: Any) -> Any:
        return outcome if value is RESULT else _mapped(value, filled, into_operations=True)

    args, kwargs = _mapped(continuation.args, filled), _mapped(continuation.kwargs, filled)
    if args is continuation.args and kwargs is continuation.kwargs:
        args = (*args, outcome)
    return [*args], {**kwargs}


def run(operation: Operation, resolve: Callable[[str], Callable[..., Any]]) -> Any:
    """Call the method, after running the operations among its arguments from left to right."""
    if not operation.kwargs and _SCALARS.issuperset(map(type, operation.args)):
        return resolve(operation.method)(*operation.args)

    def evaluated(value: Any) -> Any:
        return run(value, resolve) if type(value) is Operation else _mapped(value, evaluated)

    args, kwargs = _mapped(operation.args, evaluated), _mapped(operation.kwargs, evaluated)
    return resolve(operation.method)(*args, **kwargs)


def _mapped(value: Any, function: Callable[[Any], Any], *, into_operations: bool = False) -> Any:
    """The value with its parts replaced, or the same object if nothing changed."""
    kind = type(value)
    if kind is list or kind is tuple:
        is_same = True
        parts = []
        for old in value:
            new = old if type(old) in _SCALARS else function(old)
            is_same = is_same and new is old
            parts.append(new)
        return value if is_same else kind(parts)
    if kind is dict:
        old_parts = [*value.values()]
        new_parts = _mapped(old_parts, function)
        return value if new_parts is old_parts else dict(zip(value, new_parts, strict=True))
    # Skip continuations: a RESULT in them is the outcome of another call.
    if into_operations and kind is Operation:
        args, kwargs = _mapped(value.args, function), _mapped(value.kwargs, function)
        is_same = args is value.args and kwargs is value.kwargs
        return value if is_same else Operation(value.method, args, kwargs, value.owner)
    return value


def encode_operation(
    operation: Operation,
    *,
    max_args: int = MAX_ARGS,
    max_depth: int = MAX_DEPTH,
    max_bytes: int = MAX_BYTES,
) -> bytes:
    """The stored form; raises `PayloadError` naming the argument that cannot be sent."""
    data = _encode(operation, max_args, max_depth, max_bytes)
    if _ANY_TAG in data:
        _inspect(operation, max_args)
    return data


def encode_continuation(
    continuation: Continuation,
    *,
    max_args: int = MAX_ARGS,
    max_depth: int = MAX_DEPTH,
    max_bytes: int = MAX_BYTES,
) -> bytes:
    """The stored form; raises `PayloadError` naming the argument that cannot be stored."""
    return _encode(continuation, max_args, max_depth, max_bytes)


def decode_operation(data: bytes | memoryview) -> Operation:
    return Operation(*_read_parts(data))


def decode_continuation(data: bytes | memoryview) -> Continuation:
    return Continuation(*_read_parts(data))


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The stored form if nothing in it is tagged."""

    m: str
    a: list[str | int | float | bool | None]
    k: dict[str, str | int | float | bool | None]


_decode_plain: Final = msgspec.json.Decoder(_Plain).decode


def _read_parts(data: bytes | memoryview) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    try:
        plain = _decode_plain(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # Something else, or invalid.
        return _decoded(payload.decode(data))
    if not plain.m.isidentifier() or "$" in plain.k:
        return _decoded(payload.decode(data))
    return plain.m, tuple(plain.a), plain.k


def _encode(one: Operation | Continuation, max_args: int, max_depth: int, max_bytes: int) -> bytes:
    _check_count(one, max_args)
    content = {"m": one.method, "a": list(one.args), "k": one.kwargs}
    if not one.kwargs and all(map(_is_small, (one.method, *one.args))):
        data = _to_json(content)
        if len(data) <= max_bytes:
            return data
    try:
        # The limit applies to the arguments; the object and the list around them do not count.
        return payload.encode(content, max_depth=max_depth + 2, max_bytes=max_bytes)
    except PayloadError as error:
        raise _about_argument(error, one.method) from None


def _is_small(value: Any) -> bool:
    """Is it short plain text, or a value that is always small?"""
    kind = type(value)
    if kind is str:
        return len(value) <= _SMALL_CHARS and value.isascii()
    return -_SMALL_INT <= value <= _SMALL_INT if kind is int else value is None or kind is bool


def _about_argument(error: PayloadError, method: str) -> PayloadError:
    """The error restated for an argument, counted from one, instead of the stored form."""
    if len(error.steps) < 2:
        return PayloadError(error.reason, where=f"the arguments of {method}")
    *steps, which, _ = error.steps
    number = which[1:-1]
    name = str(int(number) + 1) if number.isdecimal() else which.removeprefix(".")
    return PayloadError(error.reason, steps=steps, where=f"argument {name}")


def _check_count(one: Operation | Continuation, max_args: int) -> None:
    count = len(one.args) + len(one.kwargs)
    if count > max_args:
        raise PayloadError(
            f"{one.method} gets {count} arguments, the limit is {max_args}; pass a list"
        )


def _inspect(value: Any, max_args: int) -> None:
    """Check tagged values: refuse `RESULT`, and check nested operations."""
    if value is RESULT:
        raise PayloadError("RESULT is only for continuations: then=cont(self.on_done, RESULT)")
    if isinstance(value, Operation):
        _check_count(value, max_args)
        value = [*value.args, *value.kwargs.values()]
    elif type(value) is dict:
        value = value.values()
    elif type(value) is not list and type(value) is not tuple:
        return
    for one in value:
        _inspect(one, max_args)


def _decoded(content: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    if type(content) is dict and content.keys() == _KEYS:
        method, args, kwargs = content["m"], content["a"], content["k"]
        is_right = type(method) is str and type(args) is list and type(kwargs) is dict
        if is_right and method.isidentifier() and all(type(key) is str for key in kwargs):
            return method, tuple(args), kwargs
    raise PayloadError("invalid stored operation or continuation")


def _write(one: Operation | Continuation, packer: Packer) -> dict[str, Any]:
    return {
        "m": packer.pack_text(one.method),
        "a": packer.pack(list(one.args), one.method),
        "k": packer.pack(one.kwargs, one.method),
    }


def _reader(cls: Callable[..., R]) -> Callable[[Any, Read], R]:
    return lambda content, read: cls(*_decoded(read(content)))


payload.extend("result", Result, lambda _value, _packer: None, lambda _content, _read: RESULT)
payload.extend("op", Operation, _write, _reader(Operation))
payload.extend("cont", Continuation, _write, _reader(Continuation))
