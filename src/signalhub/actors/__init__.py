"""Durable actors: calls, continuations and alarms that survive crashes.

`Host` and `ActorHub` talk to a hub; they and the client they need are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from signalhub.actors.api.actor import Actor, alias, remote
from signalhub.actors.api.config import CallContext, DurableConfig
from signalhub.actors.api.deferred import Token
from signalhub.actors.api.errors import (
    CallError,
    CallTimeout,
    CallUndeliverable,
    RemoteError,
    Retry,
    register_error,
)
from signalhub.actors.api.names import Ref, ref
from signalhub.actors.api.operation import RESULT, cont, op
from signalhub.actors.api.payload import PayloadError
from signalhub.actors.api.payload import register as register_payload
from signalhub.actors.api.schedules import AlarmType
from signalhub.actors.kernel.alarms import Schedule
from signalhub.actors.kernel.calls import CallId, CancelOutcome, PendingCall
from signalhub.actors.kernel.dead_letters import DeadLetter

if TYPE_CHECKING:
    from signalhub.actors.host.caller import ActorHub
    from signalhub.actors.host.host import Host

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

_SHELL = {"ActorHub": "signalhub.actors.host.caller", "Host": "signalhub.actors.host.host"}

# Type checkers see the imports above and must still report unknown names.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _SHELL:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_SHELL[name]), name)


def __dir__() -> list[str]:
    return __all__
