"""Running requests, outcomes of calls, and alarms, each in its own savepoint.

A request that raises is rolled back and answered with the error. A continuation or alarm that
raises is rolled back and retried later, and finally set aside. Disk errors end the turn.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from signalhub.actors import wire
from signalhub.actors.api import outcome, schedules
from signalhub.actors.api.actor import Actor, bound, method_of, remote_method
from signalhub.actors.api.config import CallContext, DurableConfig, StoredContext
from signalhub.actors.api.deferred import Token
from signalhub.actors.api.errors import CallError, Retry
from signalhub.actors.api.names import parse_ref
from signalhub.actors.api.operation import (
    Continuation,
    decode_continuation,
    decode_operation,
    place,
    run,
)
from signalhub.actors.api.payload import PayloadError
from signalhub.actors.kernel import dead_letters
from signalhub.actors.kernel.alarms import AlarmRow
from signalhub.actors.kernel.calls import WaitingCall
from signalhub.actors.kernel.dead_letters import Evidence
from signalhub.actors.kernel.inbox import Item
from signalhub.actors.kernel.run import Running
from signalhub.actors.store.store import StorageFailed, is_of_disk
from signalhub.actors.wire import ActorMessage

if TYPE_CHECKING:
    from signalhub.actors.kernel.kernel import Kernel

log = logging.getLogger("signalhub.actors")

_INSTANCES_MAX: Final = 10_000
# The pause before an actor that cannot be started, or whose kind is unknown, is tried again.
UNSTARTED_MS: Final = 10_000


class NotStarted(Exception):
    """The actor could not be started."""


class NotCallable(Exception):
    """No remote method has that name."""


class Unrunnable(Exception):
    """Stored work that can never run."""


def _is_fault(error: BaseException) -> bool:
    """Is it a failure of the method only? `SystemExit` in an actor ends only its own run."""
    if isinstance(error, StorageFailed) or is_of_disk(error):
        return False
    if isinstance(error, Exception | SystemExit | GeneratorExit):
        return True
    # By name, because the kernel does not import asyncio.
    return any(
        (one.__module__, one.__name__) == ("asyncio.exceptions", "CancelledError")
        for one in type(error).__mro__
    )


class Instances:
    """Actors in memory. They can be loaded again at any time: their state is in the store."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._loaded: OrderedDict[str, Actor] = OrderedDict()

    def load(self) -> None:
        self._loaded.clear()

    def forget(self, address: str) -> None:
        self._loaded.pop(address, None)

    def get(self, address: str) -> Actor:
        """The actor, started; raises `NotStarted`."""
        actor = self._loaded.get(address)
        if actor is not None:
            self._loaded.move_to_end(address)
            return actor
        inbox, now_ms = self._kernel.inbox, self._kernel.now_ms
        if inbox.refused_until_ms(address) > now_ms:
            raise NotStarted(f"{address} will be retried later")
        try:
            actor = self._start(address)
        except NotStarted as fault:
            log.error("%s waits: %s", address, fault, exc_info=fault.__cause__)
            inbox.not_started(address, now_ms + UNSTARTED_MS)
            raise
        inbox.started(address)
        self._loaded[address] = actor
        if len(self._loaded) > _INSTANCES_MAX:
            self._loaded.popitem(last=False)
        return actor

    def _start(self, address: str) -> Actor:
        who = parse_ref(address)
        cls = self._kernel.kinds.find(who.kind)
        if cls is None:
            raise NotStarted(f"this host serves no kind {who.kind}")
        try:
            actor = cls(who)
            if cls.on_start is not Actor.on_start:
                self._kernel.executor.attempt(actor, actor.on_start, StoredContext())
        except BaseException as error:
            if not _is_fault(error):
                raise
            raise NotStarted(f"on_start failed: {error!r}") from error
        return actor


class Executor:
    """Runs one thing at a time."""

    def __init__(self, kernel: Kernel, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._kernel = kernel
        self._monotonic = monotonic

    def item(self, item: Item) -> None:
        """Run a message that arrived for an actor."""
        try:
            if item.kind == "request":
                self._request(item)
            else:
                self._result(item)
        except NotStarted:
            self._kernel.counters.unstarted += 1
            self._kernel.inbox.refuse(item)

    def attempt(
        self,
        actor: Actor,
        method: Callable[..., Any],
        context: StoredContext,
        args: list[Any] | tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        finish: Callable[[Running, Any], object] | None = None,
        request: tuple[str, str] | None = None,
    ) -> Any:
        """Run a method in a savepoint; if it raises, roll back and raise the same error."""
        kernel = self._kernel
        running = Running(kernel, actor, kernel.kinds.config(actor.kind), context)
        running.request = request
        kernel.store.begin()
        kernel.inbox.begin()
        actor._running = running
        started = self._monotonic()
        try:
            value = method(*args, **(kwargs or {}))
            kernel.reached("handler")
            if finish is not None:
                finish(running, value)
        except BaseException as error:
            self._undo(actor, error)
            raise
        finally:
            actor._running = None
        self._watch(actor, method, started, running.config)
        kernel.store.keep()
        kernel.inbox.keep()
        for item in running.posted:
            kernel.inbox.put(item)
        kernel.effects += running.effects
        return value

    def _undo(self, actor: Actor, error: BaseException) -> None:
        """Roll the run back and unload the object, whose attributes may have changed."""
        kernel = self._kernel
        if is_of_disk(error):
            raise StorageFailed(f"{kernel.store.path}: {error}") from error
        kernel.store.undo()
        kernel.inbox.undo()
        kernel.outbox.forget_known()
        kernel.calls.forget_known()
        kernel.instances.forget(str(actor.ref))

    def _watch(
        self, actor: Actor, method: Callable[..., Any], started: float, config: DurableConfig
    ) -> None:
        took_ms = (self._monotonic() - started) * 1000
        if took_ms >= config.handler_warn_ms:
            self._kernel.counters.slow += 1
            name = getattr(method, "__name__", "a method")
            log.warning(
                "%r.%s took %.0f ms and blocked all actors of the host", actor, name, took_ms
            )

    # Requests.

    def _request(self, item: Item) -> None:
        kernel = self._kernel
        message = item.message or wire.decode(item.payload)
        actor = kernel.instances.get(item.actor)
        caller = message.sender if message.wants else ""
        method, error_text, is_deferred = "", None, False
        try:
            context = StoredContext(message.context)
            operation = decode_operation(bytes(message.body))
            method = operation.method

            def finish(running: Running, value: Any) -> None:
                if value != running.deferred and (running.deferred or isinstance(value, Token)):
                    # The call would be answered twice or never.
                    raise TypeError("a method that defers must return the token from self.defer()")
                if not isinstance(value, Token):
                    config = running.config
                    running.answer(
                        caller,
                        message.call,
                        outcome.of_value(
                            value, max_depth=config.max_depth, max_bytes=config.max_payload_bytes
                        ),
                    )

            value = self.attempt(
                actor,
                lambda: run(operation, lambda name: self._remote(actor, name, context.context)),
                context,
                finish=finish,
                request=(caller, message.call),
            )
            is_deferred = isinstance(value, Token)
        except Retry as retry:
            kernel.inbox.later(item, kernel.now_ms + retry.after_ms)
            return
        except NotStarted:
            raise
        except BaseException as error:
            if not _is_fault(error):
                raise
            self._answer_error(actor, message, caller, error)
            error_text = _text_of(error)
        if is_deferred:
            kernel.finished.add_deferred(message.call, item.actor, message.sender, method)
        else:
            kernel.finished.add(
                message.call, item.actor, message.sender, method, error_text, kernel.time.wall_ms
            )
        kernel.counters.requests += 1
        kernel.inbox.done(item)

    def _remote(self, actor: Actor, name: str, context: CallContext) -> Callable[..., Any]:
        """A remote method, after its guard has agreed."""
        cls = type(actor)
        mark = remote_method(cls, name)
        present = method_of(cls, name)
        if mark is None or present is None or present.startswith("_"):
            raise NotCallable(f"{cls.__name__} has no remote method {name}")
        actor.on_before_call(context)
        if mark.guard is not None and mark.guard(actor, context) is False:
            raise PermissionError(f"this caller may not call {cls.__name__}.{name}")
        return bound(actor, present)

    def _answer_error(
        self, actor: Actor, message: ActorMessage, caller: str, error: BaseException
    ) -> None:
        kernel = self._kernel
        kernel.counters.request_errors += 1
        if not caller:
            log.error(
                "%r: %s from %s raised, and no caller waits for it",
                actor,
                message.call,
                message.sender or "outside",
                exc_info=error,
            )
            return
        body = outcome.of_error(error)
        running = Running(kernel, actor, kernel.kinds.config(actor.kind), StoredContext())
        running.answer(caller, message.call, body)
        for item in running.posted:
            kernel.inbox.put(item)

    # Outcomes.

    def _result(self, item: Item) -> None:
        """Run the continuation of an outcome, if the call is still pending."""
        kernel = self._kernel
        body = bytes((item.message or wire.decode(item.payload)).body)
        waiting = kernel.calls.find(item.actor, item.call_id)
        if waiting is None:
            if not kernel.letters.add_outcome(item.actor, item.call_id, body):
                kernel.counters.late_results += 1
            kernel.inbox.done(item)
            return
        value = outcome.read(body, item.call_id)
        stored = self._continuation(waiting, value)
        if stored is None:
            kernel.calls.remove(item.actor, item.call_id)
            kernel.inbox.done(item)
            if isinstance(value, CallError) and waiting.then is None and waiting.catch is None:
                log.error(
                    "%s: %s of %s failed: %r", item.actor, waiting.method, waiting.dest, value
                )
            return
        try:
            self._continue(item, waiting, stored, value)
        except Retry as retry:
            due_ms = kernel.now_ms + retry.after_ms
            kernel.inbox.later(item, due_ms, is_attempt=False)
        except NotStarted:
            raise
        except BaseException as error:
            if not _is_fault(error):
                raise
            log.exception("%s: the continuation of %s raised", item.actor, waiting.method)
            self._failed(item, waiting, body, error)
        else:
            kernel.counters.continuations += 1
            kernel.inbox.done(item)

    def _continuation(self, waiting: WaitingCall, value: Any) -> bytes | None:
        if isinstance(value, CallError):
            return waiting.catch if waiting.catch is not None else waiting.then
        return None if waiting.errors_only else waiting.then

    def _continue(self, item: Item, waiting: WaitingCall, stored: bytes, value: Any) -> None:
        calls = self._kernel.calls
        actor = self._kernel.instances.get(item.actor)
        continuation, method = _stored_method(actor, stored)
        args, kwargs = place(continuation, value)
        try:
            context = StoredContext(waiting.context)
        except PayloadError as error:
            raise Unrunnable(f"the context of the call cannot be read: {error}") from error
        self.attempt(
            actor,
            method,
            context,
            args,
            kwargs,
            finish=lambda *_: calls.remove(item.actor, item.call_id),
        )

    def _failed(self, item: Item, waiting: WaitingCall, body: bytes, error: BaseException) -> None:
        kernel = self._kernel
        attempts = item.attempts + 1
        limit = kernel.config_of(item.actor).handler_max_attempts
        if attempts < limit and not isinstance(error, Unrunnable):
            kernel.inbox.later(item, schedules.retry_due(attempts, kernel.now_ms))
            return
        kernel.letters.bury(
            item.actor,
            "continuation",
            item.call_id,
            dead_letters.encode(Evidence.of(waiting, body)),
            _text_of(error),
            attempts,
        )
        kernel.calls.remove(item.actor, item.call_id)
        kernel.inbox.done(item)

    # Alarms.

    def alarm(self, found: AlarmRow) -> None:
        """Run a due alarm, unless it has changed since it was selected."""
        kernel = self._kernel
        alarms, now_ms = kernel.alarms, kernel.now_ms
        try:
            actor = kernel.instances.get(found.actor)
        except NotStarted:
            # Not a failure of the alarm.
            alarms.postpone(found, now_ms + UNSTARTED_MS)
            return
        row = alarms.find(found.actor, found.id)
        if row is None or row.generation != found.generation:
            return  # `on_start` has changed or cancelled it.
        try:
            continuation, method = _stored_method(actor, row.continuation)
            self.attempt(
                actor,
                method,
                StoredContext(),
                list(continuation.args),
                dict(continuation.kwargs),
                finish=lambda *_: alarms.ran(row),
            )
            kernel.counters.alarms += 1
        except Retry as retry:
            alarms.postpone(row, now_ms + retry.after_ms)
        except Unrunnable as error:
            alarms.set_aside(row, str(error))
        except BaseException as error:
            if not _is_fault(error):
                raise
            log.exception("alarm %s of %s raised", row.id, row.actor)
            alarms.failed(row, _text_of(error))


def _stored_method(actor: Actor, stored: bytes) -> tuple[Continuation, Callable[..., Any]]:
    """The continuation and its method; raises `Unrunnable`."""
    try:
        continuation = decode_continuation(stored)
    except PayloadError as error:
        raise Unrunnable(f"the continuation cannot be read: {error}") from error
    name = method_of(type(actor), continuation.method)
    if name is None:
        raise Unrunnable(
            f"{type(actor).__name__} has no method {continuation.method}; if it was renamed, add "
            f"@alias({continuation.method!r}) to the new one and redrive"
        )
    return continuation, bound(actor, name)


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
