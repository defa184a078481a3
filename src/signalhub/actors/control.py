"""What people ask of a running host: to show something, to redrive, to move an actor."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from signalhub.actors import views
from signalhub.actors.effects import Answer
from signalhub.actors.events import Commanded
from signalhub.actors.moving import CannotMove

if TYPE_CHECKING:
    from signalhub.actors.kernel import Kernel

log = logging.getLogger("signalhub.actors")

Arguments = dict[str, Any]


class BadCommand(ValueError):
    """A command that is not known or lacks an argument."""


def obey(kernel: Kernel, event: Commanded) -> None:
    """Carry a command out within the turn, and answer when that is committed."""
    try:
        command = COMMANDS.get(event.name)
        if command is None:
            raise BadCommand(f"no command {event.name!r}; there are {', '.join(sorted(COMMANDS))}")
        result = {"result": command(kernel, event.arguments)}
    except (BadCommand, CannotMove) as refusal:
        result = {"error": str(refusal)}
    kernel.effects.append(Answer(event.answer, result))


def _text(arguments: Arguments, name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value:
        raise BadCommand(f"the argument {name!r} is missing")
    return value


def _optional(arguments: Arguments, *names: str) -> Arguments:
    return {name: arguments[name] for name in names if arguments.get(name) is not None}


def _actors(kernel: Kernel, arguments: Arguments) -> Any:
    return views.actors(kernel.store, **_optional(arguments, "kind", "limit"))


def _actor(kernel: Kernel, arguments: Arguments) -> Any:
    found = views.actor(kernel.store, _text(arguments, "actor"))
    if found is not None:
        move = kernel.moving.find(found["actor"])
        found["move"] = None if move is None else msgspec.structs.asdict(move)
        found["moveFailed"] = kernel.moving.failures.get(found["actor"])
    return found


def _calls(kernel: Kernel, arguments: Arguments) -> Any:
    return views.calls(kernel.store, **_optional(arguments, "address", "limit"))


def _call(kernel: Kernel, arguments: Arguments) -> Any:
    return views.call(kernel.store, _text(arguments, "call"))


def _alarms(kernel: Kernel, arguments: Arguments) -> Any:
    return views.alarms(kernel.store, **_optional(arguments, "address", "status", "limit"))


def _dead(kernel: Kernel, arguments: Arguments) -> Any:
    return views.dead(kernel.store, **_optional(arguments, "address", "limit"))


def _letter(kernel: Kernel, arguments: Arguments) -> Any:
    return kernel.letters.contents(_text(arguments, "actor"), _text(arguments, "id"))


def _redrive(kernel: Kernel, arguments: Arguments) -> Any:
    """A dead letter, or an alarm that was skipped."""
    actor, one = _text(arguments, "actor"), _text(arguments, "id")
    return kernel.letters.redrive(actor, one, kernel.now_ms) or kernel.alarms.retry_skipped(
        actor, one, kernel.now_ms
    )


def _purge(kernel: Kernel, arguments: Arguments) -> Any:
    return kernel.letters.purge(_text(arguments, "actor"), _text(arguments, "id"))


def _move(kernel: Kernel, arguments: Arguments) -> Any:
    move = kernel.moving.begin(_text(arguments, "actor"), _text(arguments, "to"))
    return msgspec.structs.asdict(move)


def _stats(kernel: Kernel, arguments: Arguments) -> Any:
    return {
        "host": kernel.places.host,
        "kinds": kernel.kinds.names,
        "moves": kernel.moving.shown(),
        "counters": msgspec.structs.asdict(kernel.counters),
    }


COMMANDS: dict[str, Callable[[Kernel, Arguments], Any]] = {
    "actors": _actors,
    "actor": _actor,
    "calls": _calls,
    "call": _call,
    "alarms": _alarms,
    "dead": _dead,
    "letter": _letter,
    "redrive": _redrive,
    "purge": _purge,
    "move": _move,
    "stats": _stats,
}
