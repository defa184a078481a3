"""Durable actors: calls, continuations and alarms that survive crashes.

`Host` and `ActorHub` talk to a hub; they, and the client they need, are loaded when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from signalhub.actors.actor import Actor, alias, remote
from signalhub.actors.alarms import Schedule
from signalhub.actors.calls import CallId, CancelOutcome, PendingCall
from signalhub.actors.config import DurableConfig
from signalhub.actors.context import CallContext
from signalhub.actors.deferring import Token
from signalhub.actors.failures import (
    CallError,
    CallTimeout,
    CallUndeliverable,
    RemoteError,
    Retry,
    register_error,
)
from signalhub.actors.letters import DeadLetter
from signalhub.actors.naming import Ref, ref
from signalhub.actors.operation import RESULT, cont, op
from signalhub.actors.payload import PayloadError
from signalhub.actors.payload import register as register_payload
from signalhub.actors.schedules import AlarmType

if TYPE_CHECKING:
    from signalhub.actors.host import Host
    from signalhub.actors.outside import ActorHub

__all__ = [
    "RESULT",
    "Actor",
    "ActorHub",
    "AlarmType",
    "CallContext",
    "CallError",
    "CallId",
    "CallTimeout",
    "CallUndeliverable",
    "CancelOutcome",
    "DeadLetter",
    "DurableConfig",
    "Host",
    "PayloadError",
    "PendingCall",
    "Ref",
    "RemoteError",
    "Retry",
    "Schedule",
    "Token",
    "alias",
    "cont",
    "op",
    "ref",
    "register_error",
    "register_payload",
    "remote",
]

_SHELL = {"ActorHub": "signalhub.actors.outside", "Host": "signalhub.actors.host"}

# A type checker knows the names from above, and should go on complaining about others.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _SHELL:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_SHELL[name]), name)


def __dir__() -> list[str]:
    return __all__
