"""Configuration of durable actors: defaults, overrides per class, and consistency checks."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Set
from copy import copy
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

import msgspec

from signalhub.actors.api import payload
from signalhub.actors.api.payload import DEPTH_MAX, PayloadError

Durability = Literal["power", "process"]

BATCH_MAX: Final = 1_000  # Two fences per message; a hub accepts 2000 per ask.


@dataclass(frozen=True, slots=True)
class DurableConfig:
    """Every setting of an actor class; all numbers are positive integers."""

    outbound_batch_size: int = 100
    outbound_timeout_ms: int = 5_000  # Send again if there is no receipt by then.
    inbound_batch_size: int = 100
    call_timeout_ms: int = 30_000  # For calls without a `timeout`.
    sweep_interval_ms: int = 5_000
    retry_base_ms: int = 1_000
    retry_cap_ms: int = 10_000
    max_request_age_ms: int = 1_800_000  # How long to retry calls with timeout=None.
    handler_max_attempts: int = 5
    max_args: int = 100
    max_depth: int = 50
    max_payload_bytes: int = 1_048_576
    tombstone_ttl_ms: int = 86_400_000  # How long to remember the id of an executed call.
    durability: Durability = "power"
    idempotency_ttl_ms: int = 86_400_000  # How long a `key` refers to the same call.
    handler_warn_ms: int = 1_000

    def __post_init__(self) -> None:
        _check({key: getattr(self, key) for key in _KEYS}, type(self).__name__)


_KEYS = [field.name for field in fields(DurableConfig)]
# How long a request may be repeated.
_TRIED: Final = ("call_timeout_ms", "max_request_age_ms")


def _safest(values: Iterable[Durability]) -> Durability:
    return "power" if "power" in values else "process"


# Keys with one value for the whole host, and how it is chosen from the values of its classes.
_OF_HOSTS: Final[dict[str, Callable[[Iterable[Any]], Any]]] = {
    "outbound_batch_size": min,
    "outbound_timeout_ms": max,
    "inbound_batch_size": min,
    "sweep_interval_ms": min,
    "retry_base_ms": max,
    "retry_cap_ms": max,
    "max_request_age_ms": max,
    "tombstone_ttl_ms": max,
    "durability": _safest,
}


def merged(base: DurableConfig, overrides: Mapping[str, Any], *, where: str) -> DurableConfig:
    """The base configuration with overrides.

    Args:
        where: The class or file that overrides, for error messages.

    Raises:
        TypeError: Unknown key or wrong type.
        ValueError: Invalid value, alone or in combination with others.
    """
    if not isinstance(overrides, Mapping):
        raise TypeError(
            f"{where}: config_overrides must be a mapping of keys to values, "
            f"not {type(overrides).__name__}"
        )
    _check({key: getattr(base, key) for key in _KEYS} | dict(overrides), where)
    return replace(base, **overrides)


def config_of(cls: type, base: DurableConfig | None = None) -> DurableConfig:
    """The configuration of a class: its own overrides, then its parents', then the base."""
    config = DEFAULTS if base is None else base
    for one in reversed(cls.__mro__):
        if "config_overrides" in one.__dict__:
            config = merged(config, one.__dict__["config_overrides"], where=one.__name__)
    return config


def for_host(base: DurableConfig, classes: Iterable[type]) -> DurableConfig:
    """The configuration of a host as a whole, starting from its own, the base.

    Some keys have one value for the whole host: the most patient value among its classes, and the
    smallest batch. Ids are remembered at least as long as the base says, because other hosts rely
    on it.

    Raises:
        ValueError: A class retries calls for longer than hosts remember them.
    """
    configs = {cls: config_of(cls, base) for cls in classes}
    for cls, config in configs.items():
        for key in _TRIED:
            if getattr(config, key) >= base.tombstone_ttl_ms:
                raise ValueError(
                    f"{cls.__name__}: {key} = {getattr(config, key)} must be below "
                    f"tombstone_ttl_ms = {base.tombstone_ttl_ms} of the host's own configuration: "
                    "other hosts forget call ids after that time, and a repeated request "
                    "could run twice"
                )
    if not configs:
        return base
    values: dict[str, Any] = {
        key: choose(getattr(config, key) for config in configs.values())
        for key, choose in _OF_HOSTS.items()
    }
    values["tombstone_ttl_ms"] = max(values["tombstone_ttl_ms"], base.tombstone_ttl_ms)
    return replace(base, **values)


def in_host(cls: type, base: DurableConfig, host: DurableConfig) -> DurableConfig:
    """The configuration of a class in a host: see `for_host`.

    Its timeouts must be shorter than the time every host remembers ids, which the base defines.
    """
    values = {key: getattr(host, key) for key in _OF_HOSTS}
    return replace(config_of(cls, base), **values | {"tombstone_ttl_ms": base.tombstone_ttl_ms})


def check_timeout(config: DurableConfig, timeout_s: float | timedelta | None) -> int | None:
    """A call's timeout in milliseconds; `None`: the call never times out."""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, timedelta):
        timeout_s = timeout_s.total_seconds()
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise TypeError(
            f"timeout must be a number of seconds, a timedelta or None, not {timeout_s!r:.100}"
        )
    # Written so that NaN, for which comparisons are false, is refused too.
    if not timeout_s > 0 or timeout_s == math.inf:
        raise ValueError(f"timeout is {timeout_s} s; use a number above 0, or None for no timeout")
    if timeout_s * 1000 >= config.tombstone_ttl_ms:
        raise ValueError(
            f"timeout is {timeout_s} s, but call ids are only remembered for tombstone_ttl_ms = "
            f"{config.tombstone_ttl_ms}, so a repeat could run twice; use a shorter "
            "timeout, or None"
        )
    return max(1, round(timeout_s * 1000))


def _check(values: Mapping[str, Any], where: str) -> None:
    for key, value in values.items():
        _check_value(key, value, where)
    for key in _TRIED:
        if values["tombstone_ttl_ms"] <= values[key]:
            raise ValueError(
                f"{where}: tombstone_ttl_ms = {values['tombstone_ttl_ms']} must exceed {key} = "
                f"{values[key]}, or a repeated request could run twice"
            )


def _check_value(key: object, value: object, where: str) -> None:
    if not isinstance(key, str) or key not in _KEYS:
        near = difflib.get_close_matches(str(key), _KEYS, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise TypeError(
            f"{where}: unknown key {key!r}. {hint}The keys are {', '.join(sorted(_KEYS))}"
        )
    if key == "durability":
        if value not in get_args(Durability):
            raise _wrong_durability(value, where)
    elif type(value) is not int:
        raise TypeError(
            f"{where}: {key} must be an int, not {type(value).__name__} ({value!r:.100})"
        )
    elif value <= 0:
        raise ValueError(f"{where}: {key} is {value}; use a number above 0")
    elif key == "max_depth" and value > DEPTH_MAX:
        raise ValueError(f"{where}: max_depth is {value}; use at most {DEPTH_MAX}")
    elif key == "outbound_batch_size" and value > BATCH_MAX:
        raise ValueError(f"{where}: outbound_batch_size is {value}; use at most {BATCH_MAX}")


def _wrong_durability(value: object, where: str) -> Exception:
    text = f"{where}: durability must be 'power' or 'process', not {value!r:.100}"
    return ValueError(text) if isinstance(value, str) else TypeError(text)


DEFAULTS = DurableConfig()


CHAIN_MAX: Final = 100

_set: Final = msgspec.structs.force_setattr
# Contexts of the same chain of actors differ in the call id only, so what they have in common is
# remembered; but not if it could be changed, or may be spelt in another way.
_KNOWN_BYTES_MAX: Final = 2_048
_CALL: Final = b'"call":"'
# No id, name or plain context has this character.
_ANY_ID: Final = "\x7f"

_CONTEXT_KEYS: Final = frozenset(("auth", "call", "caller", "chain", "state"))


class CallContext(msgspec.Struct, frozen=True):
    """The context of the call being handled.

    `call_chain` lists the actors from the first caller to the direct one. `auth` cannot be changed;
    `state` can, and changes apply to calls made afterwards. Each call captures a copy, which its
    continuation gets.
    """

    call_chain: tuple[str, ...] = ()
    auth: Any = None
    state: dict[str, Any] = msgspec.field(default_factory=dict)
    call_id: str = ""
    caller: str | None = None

    def __post_init__(self) -> None:
        _set(self, "auth", _frozen(self.auth))

    def child(self, address: str, *, call_id: str = "") -> CallContext:
        """The context of a call made by that actor: a copy with the actor added to the chain."""
        chain = (*self.call_chain, address)
        if len(chain) > CHAIN_MAX:
            # Two actors may call each other endlessly. Keep the start and the end of the chain.
            chain = (chain[0], *chain[2:])
        # Unlike a new one, a copy does not freeze again what is frozen.
        made = copy(self)
        _set(made, "call_chain", chain)
        _set(made, "state", _copied(self.state))
        _set(made, "call_id", call_id)
        _set(made, "caller", address)
        return made

    def encode(self, *, max_depth: int = 50, max_bytes: int = 2**20) -> bytes:
        """The stored form; raises `PayloadError` naming the value that cannot be stored."""
        content: dict[str, Any] = {}
        if self.call_chain:
            content["chain"] = list(self.call_chain)
        if self.auth is not None:
            content["auth"] = _thawed(self.auth)
        if self.state:
            content["state"] = self.state
        if self.call_id:
            content["call"] = self.call_id
        if self.caller is not None:
            content["caller"] = self.caller
        try:
            return payload.encode(content, max_depth=max_depth + 1, max_bytes=max_bytes)
        except PayloadError as error:
            raise PayloadError(error.reason, steps=error.steps, where="the call context") from None

    @classmethod
    def decode(cls, data: bytes | memoryview) -> CallContext:
        """Read what `encode` wrote; `null` is a fresh context. Raises `PayloadError`."""
        return StoredContext(data).context

    @classmethod
    def _decoded(cls, data: bytes) -> CallContext:
        content = payload.decode(data)
        if content is None:
            return cls()
        if type(content) is dict and content.keys() <= _CONTEXT_KEYS:
            chain, state = content.get("chain", []), content.get("state", {})
            call_id, caller = content.get("call", ""), content.get("caller")
            texts = (call_id, "" if caller is None else caller)
            is_right = type(chain) is list and type(state) is dict
            if is_right and all(type(one) is str for one in (*chain, *texts)):
                return cls(tuple(chain), content.get("auth"), state, call_id, caller)
        raise PayloadError("invalid call context")


@lru_cache(maxsize=1_024)
def _known(before: bytes, after: bytes) -> CallContext | None:
    """A context with these bytes before and after its call id; `None` if it is something else."""
    found = CallContext._decoded(b'%b%b%b"%b' % (before, _CALL, _ANY_ID.encode(), after))
    return found if found.call_id == _ANY_ID else None


@lru_cache(maxsize=1_024)
def _child_parts(data: bytes, address: str) -> tuple[bytes, bytes]:
    """What stands before and after the call id in the stored contexts of its children."""
    stored = CallContext.decode(data).child(address, call_id=_ANY_ID).encode()
    before, _, after = stored.partition(_ANY_ID.encode())
    return before, after


class StoredContext:
    """The context of a run, and how it and those of its calls are stored."""

    __slots__ = ("_data", "context")

    def __init__(self, data: bytes | memoryview | None = None) -> None:
        """Read what was stored, or begin a fresh context; raises `PayloadError`."""
        # Empty if the stored form has to be made again.
        self._data = b""
        if data is None:
            self.context = CallContext()
            return
        data = bytes(data)
        if (
            len(data) > _KNOWN_BYTES_MAX
            or b'"state"' in data
            or b'"$"' in data
            or b"\\" in data
            or b"\x7f" in data
        ):
            self.context = CallContext._decoded(data)
            return
        self._data = data
        before, found, rest = data.rpartition(_CALL)
        call_id, _, after = rest.partition(b'"')
        known = _known(before, after) if found else None
        if known is None:
            self.context = CallContext._decoded(data)
            return
        self.context = made = copy(known)
        _set(made, "state", {})
        _set(made, "call_id", call_id.decode())

    def own(self) -> bytes:
        """The stored form of the context."""
        return self._data if self._data and not self.context.state else self.context.encode()

    def child(self, address: str, call_id: str) -> bytes:
        """The stored form of the context of a call made by that actor."""
        if not self._data or self.context.state:
            return self.context.child(address, call_id=call_id).encode()
        before, after = _child_parts(self._data, address)
        return b"%b%b%b" % (before, call_id.encode(), after)


def fresh() -> CallContext:
    """The context of a run without a caller, such as an alarm."""
    return CallContext()


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    # Values that cannot be sent cannot be copied either; refuse them at once.
    return payload.decode(payload.encode(state)) if state else {}


def _frozen(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(one) for key, one in value.items()})
    if isinstance(value, list | tuple):
        return tuple(_frozen(one) for one in value)
    return frozenset(value) if isinstance(value, Set) else value


def _thawed(value: Any) -> Any:
    if isinstance(value, MappingProxyType):
        return {key: _thawed(one) for key, one in value.items()}
    return tuple(_thawed(one) for one in value) if isinstance(value, tuple) else value
