"""Errors of calls: how an exception is described, sent to the caller and rebuilt there.

An error is described by plain values and rebuilt as a `CallError`. If its class or one of its base
classes is known here, the rebuilt error is also an instance of that class, so `isinstance` and
`except` work as they do locally. No code of the class runs while it is rebuilt.
"""

from __future__ import annotations

import builtins
import math
import traceback
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar

from signalhub.actors.api import payload

CAUSES_MAX: Final = 10
TRACEBACK_BYTES_MAX: Final = 16 * 1024
MESSAGE_CHARS_MAX: Final = 4096
ATTRS_BYTES_MAX: Final = 64 * 1024  # Total for an error and its causes.
ATTR_DEPTH_MAX: Final = 20
_REPR_CHARS_MAX = 500
_NAME_CHARS_MAX = 100
_ATTRS_MAX = 50
_ARGS_MAX = 20
_HEAP_TYPE = 1 << 9  # Bit of `type.__flags__`: made by a class statement.

E = TypeVar("E", bound=type[BaseException])


class CallError(Exception):
    """Any outcome of a call that is not a value.

    Attributes:
        name: The name of the error's class.
        message: The text of the error.
        attrs: Its attributes; values that cannot be sent are replaced by their `repr`.
        traceback_text: The traceback, for people.
        call_id: The call that failed.
    """

    # Class attributes, so that properties of other bases do not shadow them.
    name: str = ""
    message: str = ""
    attrs: dict[str, Any] = {}  # noqa: RUF012
    traceback_text: str = ""
    call_id: str | None = None
    _is_delivered: bool = False

    def __init__(
        self,
        message: str = "",
        *,
        name: str | None = None,
        attrs: dict[str, Any] | None = None,
        traceback_text: str = "",
        call_id: str | None = None,
    ) -> None:
        # Not `super()`: that could be a known class, whose code must not run.
        BaseException.__init__(self, message)
        self.name = name or type(self).__name__
        self.message = message
        self.attrs = {} if attrs is None else attrs
        self.traceback_text = traceback_text
        self.call_id = call_id

    def __str__(self) -> str:
        return self.message


class RemoteError(CallError):
    """An exception raised by the other actor; match on `name` if its class is not known here."""

    def __init__(
        self,
        name: str,
        message: str = "",
        attrs: dict[str, Any] | None = None,
        *,
        traceback_text: str = "",
        call_id: str | None = None,
    ) -> None:
        CallError.__init__(
            self,
            message,
            name=name,
            attrs=attrs,
            traceback_text=traceback_text,
            call_id=call_id,
        )

    # The `__repr__` of a known class may need attributes set by its constructor.
    __eq__ = BaseException.__eq__
    __hash__ = BaseException.__hash__
    __setattr__ = BaseException.__setattr__

    def __repr__(self) -> str:
        return f"<RemoteError {self.name}: {self.message!r}>"

    def __reduce__(self) -> Any:
        # Copying must not call the constructor of the known class.
        return rebuild, (describe(self),)


class CallTimeout(CallError):
    """No outcome in time. `executed` is "no" if the call was never sent, otherwise "unknown"."""

    executed: Literal["no", "unknown"]

    def __init__(
        self,
        message: str = "the call timed out",
        *,
        executed: Literal["no", "unknown"] = "unknown",
        call_id: str | None = None,
    ) -> None:
        super().__init__(message, attrs={"executed": executed}, call_id=call_id)
        self.executed = executed


class CallUndeliverable(CallError):
    """The call was given up: its target does not exist or was unreachable for too long."""

    def __init__(
        self, message: str = "the call could not be delivered", *, call_id: str | None = None
    ) -> None:
        super().__init__(message, call_id=call_id)


class Retry(Exception):
    """Raised by a handler: undo its changes and run it again after `after` seconds."""

    def __init__(self, after: float | timedelta = 1.0) -> None:
        if isinstance(after, timedelta):
            after = after.total_seconds()
        if isinstance(after, bool) or not isinstance(after, int | float):
            raise TypeError(f"Retry takes seconds or a timedelta, not {after!r:.100}")
        if not 0 <= after < math.inf:
            raise ValueError(f"Retry after {after} s; use 0 or more")
        super().__init__(f"try again in {after} s")
        self.after = float(after)

    @property
    def after_ms(self) -> int:
        return math.ceil(self.after * 1000)


_KNOWN: dict[str, type[BaseException]] = {}
_REBUILT: dict[type[BaseException], type[RemoteError]] = {}
_OWN_NAMES = frozenset((*CallError.__annotations__, *dir(BaseException)))
# The interpreter stores these outside `__dict__`.
_BUILT_IN_ATTRS = {
    OSError: ("errno", "strerror", "filename", "filename2"),
    ImportError: ("name", "path"),
    NameError: ("name",),
    AttributeError: ("name",),
    UnicodeError: ("encoding", "start", "end", "reason"),
}


def register_error(cls: E) -> E:
    """Register an exception class, so that callers get an instance of it.

    Raises:
        TypeError: It is not an exception class, or it cannot be subclassed.
        ValueError: Another class has the same name.
    """
    if not isinstance(cls, type) or not issubclass(cls, Exception):
        raise TypeError(f"@register_error takes a class derived from Exception, not {cls!r:.100}")
    name = cls.__name__
    if _KNOWN.get(name, cls) is not cls:
        raise ValueError(f"an error named {name!r} is already registered; rename one of them")
    if issubclass(cls, RemoteError):
        _REBUILT[cls] = cls
    else:
        members = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        _REBUILT[cls] = type(name, (RemoteError, cls), members)
    _KNOWN[name] = cls
    return cls


def describe(error: object) -> dict[str, Any]:
    """An error as values that `payload.encode` accepts, within its default limits. Never raises."""
    if not isinstance(error, BaseException):
        shown = error if isinstance(error, str) else _repr(error)
        return {"name": "RemoteError", "message": _text(shown, MESSAGE_CHARS_MAX)}
    budget = _Budget()
    data = _described(error, budget)
    causes = [_described(cause, budget) for cause in _causes(error)]
    if causes:
        data["causes"] = causes
    if text := _traceback(error):
        data["traceback"] = text
    if isinstance(error, CallError) and isinstance(error.call_id, str):
        data["call_id"] = _text(error.call_id, _NAME_CHARS_MAX)
    return data


def rebuild(data: object) -> CallError:
    """The error from its description, as far as that is readable. Never raises."""
    if not isinstance(data, dict):
        return RemoteError("Unreadable", f"invalid description of an error: {_repr(data)}")
    error = outer = _rebuilt(data)
    error.traceback_text = _str(data.get("traceback"))
    error.call_id = _str(data.get("call_id")) or None
    causes = data.get("causes")
    for cause in causes[:CAUSES_MAX] if isinstance(causes, list) else ():
        if isinstance(cause, dict):
            inner = _rebuilt(cause | {"own": None})  # A cause is never the timeout of this call.
            outer.__cause__ = inner
            outer = inner
    error._is_delivered = True
    return error


class _Budget:
    """The bytes left for attributes."""

    def __init__(self) -> None:
        self._left = ATTRS_BYTES_MAX

    def fit(self, value: object) -> Any:
        """The value if it can be sent and is small enough, otherwise its `repr`."""
        for one in (value, _repr(value)):
            try:
                data = payload.encode(one, max_depth=ATTR_DEPTH_MAX, max_bytes=max(self._left, 0))
            except Exception:  # noqa: S112
                # Too large, not a plain value, or a failing property: still send the error.
                continue
            self._left -= len(data)
            return one
        return "…"


def _described(error: BaseException, budget: _Budget) -> dict[str, Any]:
    name = error.name if isinstance(error, CallError) else type(error).__name__
    data: dict[str, Any] = {"name": _text(_str(name), _NAME_CHARS_MAX)}
    if isinstance(error, CallTimeout | CallUndeliverable) and _is_new(error):
        data["own"] = type(error).__name__
    if kinds := [one.__name__ for one in type(error).__mro__ if _is_known(one)]:
        data["kinds"] = kinds
    try:
        data["message"] = _text(str(error), MESSAGE_CHARS_MAX)
        data["args"] = [budget.fit(one) for one in error.args[:_ARGS_MAX]]
        data["attrs"] = {key: budget.fit(value) for key, value in _attributes(error)}
    except Exception as fault:
        # The error's code may fail; a partial description is better than none.
        data.setdefault("message", f"(the text of the error raised {type(fault).__name__})")
    return data


def _is_new(error: CallError) -> bool:
    """Is it the outcome of this call? One that was received or raised belongs to another call.

    The caller must not mistake that for a timeout of its own call.
    """
    return error.__traceback__ is None and not error._is_delivered


def _is_known(cls: type) -> bool:
    return _KNOWN.get(cls.__name__) is cls


def _attributes(error: BaseException) -> list[tuple[str, Any]]:
    if isinstance(error, CallError):
        found = {**error.attrs}
    else:
        kinds = [names for cls, names in _BUILT_IN_ATTRS.items() if isinstance(error, cls)]
        names = [name for names in kinds for name in names]
        found = {name: getattr(error, name, None) for name in names}
        found = {name: value for name, value in found.items() if value is not None}
    slots = (name for cls in type(error).__mro__ for name in _slots(cls))
    found |= {name: getattr(error, name) for name in slots if hasattr(error, name)}
    skipped = _OWN_NAMES if isinstance(error, CallError) else ()
    found |= {name: value for name, value in vars(error).items() if name not in skipped}
    return [item for item in found.items() if _is_attribute(item[0])][:_ATTRS_MAX]


def _is_attribute(name: object) -> bool:
    if not isinstance(name, str) or len(name) > _NAME_CHARS_MAX:
        return False
    return name.isidentifier() and not name.startswith("__")


def _slots(cls: type) -> list[str]:
    slots = cls.__dict__.get("__slots__", ())
    return [slots] if isinstance(slots, str) else list(slots)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    cause = error.__cause__
    while cause is not None and id(cause) not in seen and len(seen) <= CAUSES_MAX:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__


def _traceback(error: BaseException) -> str:
    parts = []
    if isinstance(error, CallError) and isinstance(error.traceback_text, str):
        parts.append(error.traceback_text)
    if error.__traceback__ is not None:
        try:
            parts.append("".join(traceback.format_exception(error)))
        except Exception as fault:
            parts.append(f"(the traceback cannot be shown: {type(fault).__name__})")
    data = "\n".join(filter(None, parts)).encode("utf-8", "backslashreplace")
    if len(data) <= TRACEBACK_BYTES_MAX:
        return data.decode()
    # The end of a traceback says what happened.
    return "…" + data[3 - TRACEBACK_BYTES_MAX :].decode("utf-8", "ignore")


def _rebuilt(data: dict[Any, Any]) -> CallError:
    name = _str(data.get("name")) or "Unreadable"
    message = _str(data.get("message"))
    attrs = data.get("attrs")
    attrs = attrs if isinstance(attrs, dict) else {}
    if data.get("own") == "CallTimeout":
        return CallTimeout(message, executed="no" if attrs.get("executed") == "no" else "unknown")
    if data.get("own") == "CallUndeliverable":
        return CallUndeliverable(message)
    kinds = data.get("kinds")
    kinds = kinds if isinstance(kinds, list) else []
    known = next((_KNOWN[kind] for kind in map(_str, kinds) if kind in _KNOWN), None)
    args = data.get("args")
    error = RemoteError(name) if known is None else _blank(_REBUILT[known])
    CallError.__init__(error, message, name=name, attrs=attrs)
    error.args = tuple(args) if isinstance(args, list) else (message,)
    for key, value in attrs.items():
        _set(error, key, value)
    return error


def _blank(cls: type[RemoteError]) -> RemoteError:
    """An instance made without running the class's code, whose arguments are unknown."""
    made_by: Any = cls
    while made_by.__flags__ & _HEAP_TYPE:
        made_by = made_by.__base__
    blank: RemoteError = made_by.__new__(cls)
    return blank


def _set(error: CallError, key: str, value: object) -> None:
    if not _is_attribute(key) or key in _OWN_NAMES:
        return  # Still in `attrs`.
    try:
        if not callable(getattr(type(error), key, None)):
            setattr(error, key, value)
    except Exception:  # noqa: S110
        pass  # A read-only property, or a type the interpreter rejects.


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""


def _repr(value: object) -> str:
    try:
        return _text(repr(value), _REPR_CHARS_MAX)
    except Exception:
        return f"<{type(value).__name__}>"


def _text(text: str, chars_max: int) -> str:
    """The text, made encodable and shortened."""
    fit = text[:chars_max].encode("utf-8", "backslashreplace").decode()
    return fit if len(text) <= chars_max else f"{fit}…"


for _one in vars(builtins).values():
    # Stop signals affect the generator or task that receives them; groups hold other errors.
    if (
        isinstance(_one, type)
        and issubclass(_one, Exception)
        and _one is not Exception
        and not issubclass(_one, StopIteration | StopAsyncIteration | BaseExceptionGroup)
    ):
        register_error(_one)
