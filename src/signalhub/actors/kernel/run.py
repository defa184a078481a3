"""One run of a method: what an actor can do in it, and its effects.

Rows are written at once, within the run's savepoint. Messages to actors of the same host and
offloaded work are collected here and passed on when the run has succeeded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from signalhub.actors import wire
from signalhub.actors.api import offload, outcome, payload
from signalhub.actors.api.config import DurableConfig, StoredContext, check_timeout
from signalhub.actors.api.deferred import Token
from signalhub.actors.api.names import Ref, parse_ref
from signalhub.actors.api.operation import (
    Operation,
    continuation_of,
    encode_continuation,
    encode_operation,
    op,
    place,
)
from signalhub.actors.api.state import State
from signalhub.actors.kernel.alarms import Alarms
from signalhub.actors.kernel.calls import CallId, CancelOutcome, PendingCall, WaitingCall
from signalhub.actors.kernel.dead_letters import DeadLetter
from signalhub.actors.kernel.events import Effect, Offload
from signalhub.actors.kernel.inbox import Item
from signalhub.actors.wire import ActorMessage

if TYPE_CHECKING:
    from signalhub.actors.api.actor import Actor, Then
    from signalhub.actors.kernel.kernel import Kernel


class Unset(Enum):
    """Marks an omitted argument."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


@lru_cache(maxsize=1_024)
def is_async(function: object) -> bool:
    """Would a call only create a coroutine or generator?"""
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    )


class Running:
    """An actor while one of its methods runs."""

    def __init__(
        self, kernel: Kernel, actor: Actor, config: DurableConfig, stored: StoredContext
    ) -> None:
        self.kernel = kernel
        self.actor = actor
        self.address = str(actor.ref)
        self.config = config
        self._stored_context = stored
        self.context = stored.context
        # What people read; deadlines are counted by the host's own time.
        self.now_ms = kernel.time.wall_ms
        self.posted: list[Item] = []
        self.effects: list[Effect] = []
        # The request being handled, for `defer`.
        self.request: tuple[str, str] | None = None
        self.deferred: Token | None = None

    @property
    def state(self) -> State:
        config = self.config
        return State(self.kernel.store, self.address, config.max_depth, config.max_payload_bytes)

    @property
    def alarms(self) -> Alarms:
        return Alarms(self)

    # Calls.

    def call(
        self,
        target: Ref | str,
        operation: Operation | Callable[..., Any] | str,
        args: tuple[Any, ...],
        *,
        then: Then | None = None,
        catch: Then | None = None,
        timeout: float | timedelta | Unset | None = UNSET,
        key: str | None = None,
        is_ordered: bool = True,
        errors_only: bool = False,
        is_new_chain: bool = False,
    ) -> CallId:
        dest, wanted = self._checked(target, operation, args)
        timeout_ms = self._timeout_ms(timeout)
        continuation, rescue = self._continuations(then, catch, errors_only=errors_only)
        body = self._encoded(wanted)
        if key is not None:
            if not isinstance(key, str) or not key:
                raise ValueError("the key of a call must be a non-empty string")
            before = self.kernel.calls.made_before(self.address, key, self.kernel.now_ms)
            if before is not None:
                return before
        call_id = CallId(self.kernel.new_id())
        deadline_ms = None if timeout_ms is None else self.kernel.now_ms + timeout_ms
        waiting = WaitingCall(
            call_id,
            dest,
            wanted.method,
            continuation,
            rescue,
            errors_only,
            self._stored_context.own(),
            deadline_ms,
            key,
        )
        # Nothing is stored before all checks have passed.
        context = self._context(call_id, is_new_chain=is_new_chain)
        message = ActorMessage("request", call_id, dest, body, self.address, context)
        self.kernel.calls.put(self.address, waiting)
        if key is not None:
            until_ms = self.kernel.now_ms + self.config.idempotency_ttl_ms
            self.kernel.calls.remember_key(self.address, key, call_id, until_ms)
        self._post(message, deadline_ms, is_ordered=is_ordered)
        return call_id

    def send(
        self,
        target: Ref | str,
        operation: Operation | Callable[..., Any] | str,
        args: tuple[Any, ...],
    ) -> CallId:
        dest, wanted = self._checked(target, operation, args)
        body = self._encoded(wanted)
        call_id = CallId(self.kernel.new_id())
        context = self._context(call_id, is_new_chain=False)
        message = ActorMessage("request", call_id, dest, body, self.address, context, wants=False)
        self._post(message, None, is_ordered=True)
        return call_id

    def _checked(
        self,
        target: Ref | str,
        operation: Operation | Callable[..., Any] | str,
        args: tuple[Any, ...],
    ) -> tuple[str, Operation]:
        if not isinstance(target, (Ref, str)):
            raise TypeError(f"a target must be ref(kind, key) or 'kind/key', not {target!r}")
        to = parse_ref(target) if isinstance(target, str) else target
        if isinstance(operation, Operation):
            if args:
                raise TypeError("pass arguments either in op(…) or after a method, not both")
            wanted = operation
        elif callable(operation) or isinstance(operation, str):
            wanted = op(operation, *args)
        else:
            raise TypeError(f"an operation must be op(…), a method or its name, not {operation!r}")
        self.kernel.kinds.check(to.kind, wanted)
        return str(to), wanted

    def _encoded(self, wanted: Operation) -> msgspec.Raw:
        config = self.config
        return msgspec.Raw(
            encode_operation(
                wanted,
                max_args=config.max_args,
                max_depth=config.max_depth,
                max_bytes=config.max_payload_bytes,
            )
        )

    def _timeout_ms(self, timeout: float | timedelta | Unset | None) -> int | None:
        if isinstance(timeout, Unset):
            return self.config.call_timeout_ms
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        return check_timeout(self.config, seconds)

    def _continuations(
        self, then: Then | None, catch: Then | None, *, errors_only: bool
    ) -> tuple[bytes | None, bytes | None]:
        if errors_only and then is None and catch is None:
            raise TypeError("errors_only needs a continuation, which gets the errors")
        return (
            None if then is None else self.stored(then),
            None if catch is None else self.stored(catch),
        )

    def stored(self, given: Then, *, has_outcome: bool = True) -> bytes:
        """A continuation of this actor in stored form; raises `TypeError` if it is invalid."""
        config = self.config
        continuation = continuation_of(given, self.actor)
        method = getattr(type(self.actor), continuation.method)
        if is_async(method):
            raise TypeError(
                f"{continuation.method} is async and would never run: continuations must be plain "
                "functions; use self.offload for work that waits"
            )
        if not has_outcome and len(place(continuation, None)[0]) == len(continuation.args):
            raise TypeError("RESULT stands for the outcome of a call; an alarm has none")
        return encode_continuation(
            continuation,
            max_args=config.max_args,
            max_depth=config.max_depth,
            max_bytes=config.max_payload_bytes,
        )

    def _context(self, call_id: str, *, is_new_chain: bool) -> msgspec.Raw:
        stored = StoredContext() if is_new_chain else self._stored_context
        return msgspec.Raw(stored.child(self.address, call_id))

    def _post(self, message: ActorMessage, expires_ms: int | None, *, is_ordered: bool) -> None:
        item = self.kernel.post(
            self.address,
            message.to,
            message.call,
            message.kind,
            message.call,
            wire.encode(message),
            expires_ms,
            is_ordered=is_ordered,
            is_held_back=True,
        )
        if item is not None:
            self.posted.append(item)

    def cancel_call(self, call_id: str) -> CancelOutcome:
        found = self.kernel.calls.cancel(self.address, call_id)
        if found is not CancelOutcome.SUPPRESSED:
            return found
        # It may have been made in this run, and so not have been passed on.
        posted = [item for item in self.posted if (item.kind, item.call_id) != ("request", call_id)]
        effects = [one for one in self.effects if getattr(one, "call_id", None) != call_id]
        is_withdrawn = len(posted) < len(self.posted) or len(effects) < len(self.effects)
        self.posted, self.effects = posted, effects
        return CancelOutcome.WITHDRAWN if is_withdrawn else found

    def pending_calls(self) -> list[PendingCall]:
        return self.kernel.calls.of(self.address)

    def dead_letters(self) -> list[DeadLetter]:
        return self.kernel.letters.of(self.address)

    def redrive(self, dead_id: str) -> bool:
        return self.kernel.letters.redrive(self.address, dead_id, self.posted.append)

    # Deferred answers.

    def defer(self) -> Token:
        if self.request is None:
            raise RuntimeError("defer is only possible while handling a call")
        if self.deferred is None:
            self.deferred = Token(self.kernel.new_id())
            self.kernel.deferred.put(self.address, self.deferred, *self.request)
        return self.deferred

    def resolve(self, token: Token, value: Any) -> bool:
        if isinstance(value, BaseException):
            # As a continuation, `partial(self.resolve, token)` also gets errors.
            return self.reject(token, value)
        config = self.config
        body = outcome.of_value(
            value, max_depth=config.max_depth, max_bytes=config.max_payload_bytes
        )
        return self._answer(token, body, None)

    def reject(self, token: Token, error: BaseException) -> bool:
        return self._answer(token, outcome.of_error(error), f"{type(error).__name__}: {error}")

    def _answer(self, token: Token, body: bytes, error: str | None) -> bool:
        if not isinstance(token, Token):
            raise TypeError(f"a deferred call is answered with its token, not {token!r}")
        found = self.kernel.deferred.take(self.address, token.id)
        if found is None:
            return False
        self.answer(*found, body)
        _, call_id = found
        self.kernel.finished.answered(call_id, self.address, error, self.now_ms)
        return True

    def answer(self, caller: str, call_id: str, body: bytes) -> None:
        """Send an outcome to the caller, if there is one."""
        if not caller:
            return
        message = ActorMessage("result", call_id, caller, msgspec.Raw(body), self.address)
        if caller.startswith("@"):
            # An outside caller knows the id without the address prefixed to it here.
            message.call = call_id.removeprefix(f"{caller}#")
        item = self.kernel.post(
            self.address,
            caller,
            self.kernel.new_id(),
            "result",
            call_id,
            wire.encode(message),
            is_held_back=True,
        )
        if item is not None:
            self.posted.append(item)

    # Offloaded work.

    def offload(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        then: Then | None,
        catch: Then | None,
        timeout: float | timedelta | None,
    ) -> CallId:
        name = offload.name_of(function)
        config = self.config
        arguments = payload.encode(
            list(args), max_depth=config.max_depth, max_bytes=config.max_payload_bytes
        )
        timeout_ms = None if timeout is None else self._timeout_ms(timeout)
        continuation, rescue = self._continuations(then, catch, errors_only=False)
        call_id = CallId(self.kernel.new_id())
        deadline_ms = None if timeout_ms is None else self.kernel.now_ms + timeout_ms
        self.kernel.calls.put(
            self.address,
            WaitingCall(
                call_id,
                "",
                name,
                continuation,
                rescue,
                False,
                self._stored_context.own(),
                deadline_ms,
            ),
        )
        self.kernel.store.execute(
            "INSERT INTO offloads VALUES (?, ?, ?, ?)", (self.address, call_id, name, arguments)
        )
        self.effects.append(Offload(self.address, call_id, name, arguments))
        return call_id
