"""`Actor`, the base class of durable actors, and the decorators of its methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, TypeVar, overload

import msgspec

from signalhub.actors.api.config import CallContext, DurableConfig, config_of
from signalhub.actors.api.deferred import Token
from signalhub.actors.api.names import Ref, kind_of, ref
from signalhub.actors.api.operation import Continuation, Operation
from signalhub.actors.api.state import State
from signalhub.actors.kernel.alarms import Alarms
from signalhub.actors.kernel.calls import CallId, CancelOutcome, PendingCall
from signalhub.actors.kernel.dead_letters import DeadLetter
from signalhub.actors.kernel.run import UNSET, Running, Unset, is_async

F = TypeVar("F", bound=Callable[..., Any])
Guard = Callable[..., object]
Then = Callable[..., Any] | Continuation | str

_MARK = "__signalhub_remote__"
_ALIASES = "__signalhub_aliases__"


class RemoteMethod(msgspec.Struct, frozen=True):
    """Marks a method as callable by other actors, with its guard."""

    guard: Guard | None = None


@overload
def remote(function: F) -> F: ...
@overload
def remote(*, guard: Guard | None = None) -> Callable[[F], F]: ...
def remote(function: F | None = None, *, guard: Guard | None = None) -> F | Callable[[F], F]:
    """Let other actors call a method.

    Args:
        guard: Called with the actor and the call's context before the method. If it raises, the
            caller gets the error; if it returns `False`, the caller gets a `PermissionError`. In
            both cases the method does not run.
    """

    if is_async(guard):
        raise TypeError("a guard must be a plain function: an async one would let every call pass")

    def mark(function: F) -> F:
        setattr(function, _MARK, RemoteMethod(guard))
        return function

    return mark if function is None else mark(function)


def alias(*names: str) -> Callable[[F], F]:
    """Former names of a method, so that stored calls and continuations still find it."""

    def mark(function: F) -> F:
        setattr(function, _ALIASES, (*getattr(function, _ALIASES, ()), *names))
        return function

    return mark


class Actor:
    """A single-threaded object with an address and durable state.

    Methods are ordinary functions: they read and write `self.state`, make calls, set alarms, and
    return. Everything a method does is committed as a whole or not at all. Attributes of the object
    itself are only a cache: they are lost when the host restarts or a method raises.
    """

    kind: ClassVar[str] = ""
    config_overrides: ClassVar[Mapping[str, Any]] = {}
    config: ClassVar[DurableConfig] = DurableConfig()
    _methods: ClassVar[Mapping[str, str]] = {}
    _remote: ClassVar[Mapping[str, RemoteMethod]] = {}

    _running: Running | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__dict__.get("kind"):
            cls.kind = kind_of(cls.__name__)
        ref(cls.kind, "any")  # Raises for an invalid kind.
        cls.config = config_of(cls)
        methods: dict[str, str] = {}
        marked: dict[str, RemoteMethod] = {}
        for name, function in inspect.getmembers(cls, inspect.isfunction):
            _check_method(cls, name, function)
            methods[name] = name
            if (mark := getattr(function, _MARK, None)) is not None:
                marked[name] = mark
        for name, function in inspect.getmembers(cls, inspect.isfunction):
            for old in getattr(function, _ALIASES, ()):
                if methods.setdefault(old, name) != name:
                    raise TypeError(f"{cls.__name__}: the alias {old} is a method of its own")
                if name in marked:
                    marked[old] = marked[name]
        cls._methods = methods
        cls._remote = marked

    def __init__(self, address: Ref) -> None:
        self._ref = address

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._ref}>"

    @property
    def ref(self) -> Ref:
        """The address of this actor."""
        return self._ref

    @property
    def key(self) -> str:
        """The key, unique within the kind."""
        return self._ref.key

    @property
    def context(self) -> CallContext:
        """The context of the current call: its chain of callers, their rights, and shared state."""
        return self._now_running.context

    @property
    def now_ms(self) -> int:
        """The time of this turn in milliseconds since the Unix epoch."""
        return self._now_running.now_ms

    @property
    def state(self) -> State:
        """The durable state: keys and values, and SQL."""
        return self._now_running.state

    @property
    def alarms(self) -> Alarms:
        """The alarms of this actor."""
        return self._now_running.alarms

    def on_start(self) -> None:
        """Called first when the actor is loaded, in its own transaction."""

    def on_before_call(self, context: CallContext) -> None:
        """Called before every call from another actor; the caller gets what it raises."""

    def call(
        self,
        target: Ref | str,
        operation: Operation | Callable[..., Any] | str,
        *args: Any,
        then: Then | None = None,
        catch: Then | None = None,
        timeout: float | timedelta | Unset | None = UNSET,
        key: str | None = None,
        ordered: bool = True,
        errors_only: bool = False,
        new_chain: bool = False,
    ) -> CallId:
        """Store a call to another actor; it is sent once this handler's changes are committed.

        Args:
            target: `ref(kind, key)` or `"kind/key"`.
            operation: `op(Stock.reserve, 1)`, or a method or its name followed by its arguments.
            then: A method of this actor that gets the outcome: the value or, without `catch`, the
                error. `partial(self.method, …)` adds arguments in front;
                `cont(self.method, RESULT, …)` passes the outcome in place of `RESULT`.
            catch: A method that gets errors, so that `then` gets only values.
            timeout: Seconds until the continuation gets `CallTimeout`; `None` for no timeout.
            key: Calls with the same key within a day are made once; returns the id of the first.
            ordered: With `False` the call may overtake earlier calls to the same target.
            errors_only: Run the continuation only for errors.
            new_chain: Start a new context instead of passing on the current one.

        Returns:
            The id, for `cancel_call`.

        Raises:
            TypeError, ValueError: The call cannot be made; nothing was stored.
        """
        return self._now_running.call(
            target,
            operation,
            args,
            then=then,
            catch=catch,
            timeout=timeout,
            key=key,
            is_ordered=ordered,
            errors_only=errors_only,
            is_new_chain=new_chain,
        )

    def send(
        self, target: Ref | str, operation: Operation | Callable[..., Any] | str, *args: Any
    ) -> CallId:
        """Store a call without a continuation."""
        return self._now_running.send(target, operation, args)

    def cancel_call(self, call_id: str) -> CancelOutcome:
        """Cancel a call: withdraw it if it was not sent, otherwise only drop its continuation."""
        return self._now_running.cancel_call(call_id)

    def pending_calls(self) -> list[PendingCall]:
        """Calls of this actor whose continuation has not run."""
        return self._now_running.pending_calls()

    def dead_letters(self) -> list[DeadLetter]:
        """The dead letters of this actor."""
        return self._now_running.dead_letters()

    def redrive(self, dead_id: str) -> bool:
        """Retry a dead letter; `False` if no dead letter has that id."""
        return self._now_running.redrive(dead_id)

    def defer(self) -> Token:
        """Answer the current call later: return the token, then `resolve` or `reject` it."""
        return self._now_running.defer()

    def resolve(self, token: Token, value: Any = None) -> bool:
        """Answer a deferred call; `False` if it is already answered."""
        return self._now_running.resolve(token, value)

    def reject(self, token: Token, error: BaseException) -> bool:
        """Answer a deferred call with an error; `False` if it is already answered."""
        return self._now_running.reject(token, error)

    def offload(
        self,
        function: Callable[..., Any],
        *args: Any,
        then: Then | None = None,
        catch: Then | None = None,
        timeout: float | timedelta | None = None,
    ) -> CallId:
        """Run an async function of a module outside the actor; its outcome arrives as a message.

        It runs at least once: again if the host crashes before the outcome is stored.
        """
        return self._now_running.offload(function, args, then=then, catch=catch, timeout=timeout)

    @property
    def _now_running(self) -> Running:
        if self._running is None:
            raise RuntimeError(
                f"{self!r} can do this only while its host runs one of its methods; "
                "create actors through a host, not directly"
            )
        return self._running


def _check_method(cls: type[Actor], name: str, function: Callable[..., Any]) -> None:
    mark = getattr(function, _MARK, None)
    is_called = mark is not None or name in ("on_start", "on_before_call")
    if is_called and is_async(function):
        raise TypeError(
            f"{cls.__name__}.{name} is async: handlers must be plain functions; use self.offload "
            "for work that waits"
        )
    if mark is not None and name.startswith("_"):
        raise TypeError(f"{cls.__name__}.{name}: a name with an underscore is never remote")


def method_of(cls: type[Actor], name: str) -> str | None:
    """Return the current name of a method stored under a former one."""
    return cls._methods.get(name)


def remote_method(cls: type[Actor], name: str) -> RemoteMethod | None:
    return cls._remote.get(name)


def bound(actor: Actor, name: str) -> Callable[..., Any]:
    """Return a method by its current name."""
    method: Callable[..., Any] = getattr(actor, name)
    return method
