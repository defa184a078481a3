"""Durable actors: calls, continuations and alarms that survive crashes."""

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

__all__ = [
    "RESULT",
    "Actor",
    "AlarmType",
    "CallContext",
    "CallError",
    "CallId",
    "CallTimeout",
    "CallUndeliverable",
    "CancelOutcome",
    "DeadLetter",
    "DurableConfig",
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
