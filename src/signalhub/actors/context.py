"""What rides along with a call: through whom it came, with which rights, and what else."""

from __future__ import annotations

from collections.abc import Mapping, Set
from types import MappingProxyType
from typing import Any, Final

import msgspec

from signalhub.actors import payload
from signalhub.actors.payload import PayloadError

CHAIN_MAX: Final = 100

_KEYS: Final = frozenset(("auth", "call", "caller", "chain", "state"))


class CallContext(msgspec.Struct, frozen=True):
    """The context of the call being handled.

    `call_chain` is the actors from the first to the one that called. `auth` cannot be changed on
    the way; `state` can, and what is changed reaches the calls made afterwards. It is captured with
    each call by copy, and the continuation gets it as it was then.
    """

    call_chain: tuple[str, ...] = ()
    auth: Any = None
    state: dict[str, Any] = msgspec.field(default_factory=dict)
    call_id: str = ""
    caller: str | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "auth", _frozen(self.auth))

    def child(self, address: str, *, call_id: str = "") -> CallContext:
        """The context of a call the actor of that address makes: a copy, with it in the chain."""
        chain = (*self.call_chain, address)
        if len(chain) > CHAIN_MAX:
            # Two actors may call each other for ever. Where it began and where it is matter most.
            chain = (chain[0], *chain[2:])
        return CallContext(chain, self.auth, _copied(self.state), call_id, address)

    def encode(self, *, max_depth: int = 50, max_bytes: int = 2**20) -> bytes:
        """The stored form; raises `PayloadError` naming what cannot be stored."""
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
        """What `encode` wrote; `null` is a fresh one. Raises `PayloadError` for anything else."""
        content = payload.decode(data)
        if content is None:
            return cls()
        if type(content) is dict and content.keys() <= _KEYS:
            chain, state = content.get("chain", []), content.get("state", {})
            call_id, caller = content.get("call", ""), content.get("caller")
            texts = (call_id, "" if caller is None else caller)
            is_right = type(chain) is list and type(state) is dict
            if is_right and all(type(one) is str for one in (*chain, *texts)):
                return cls(tuple(chain), content.get("auth"), state, call_id, caller)
        raise PayloadError("this is no call context")


def fresh() -> CallContext:
    """The context of what nobody called, such as an alarm."""
    return CallContext()


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    # What cannot be sent cannot be copied either, and is better refused at once.
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
