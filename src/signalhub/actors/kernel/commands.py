"""Commands of operators to a running host: show something, redrive, move an actor.

With authentication the hub lets only those with `control` over the host send commands, and marks
those of operators without `read`, who see no contents. No command, however malformed, stops the
host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from signalhub.actors.kernel import dead_letters
from signalhub.actors.kernel.events import CommandAnswer, Commanded
from signalhub.actors.move.leave import CannotMove
from signalhub.actors.store import views
from signalhub.actors.store.store import HostStore
from signalhub.wire import names

if TYPE_CHECKING:
    from signalhub.actors.kernel.kernel import Kernel

log = logging.getLogger("signalhub.actors")

# An answer is one message, and by default hubs accept up to one mebibyte.
ANSWER_BYTES_MAX: Final = 256 * 1024
CUT_CHARS: Final = 1_000

# In the table `meta`: the hub has known this folder by its name.
NAME_KEPT: Final = "name_kept"

# Members of views that show what actors work on.
_CONTENTS: Final = ("continuation", "error", "key", "lastError")

Arguments = dict[str, Any]
Rows = list[views.View]


class BadCommand(ValueError):
    """An unknown command or a wrong argument."""


def obey(kernel: Kernel, event: Commanded) -> None:
    """Execute a command within the turn, and answer after the commit."""
    try:
        found = _carried_out(kernel, event.name, event.arguments)
        result = {"result": found if event.shows_contents else _withheld(event.name, found)}
    except (BadCommand, CannotMove) as refusal:
        result = {"error": str(refusal)}
    except msgspec.DecodeError as error:
        # Damaged, or from another version; nothing is changed before it is decoded.
        result = {"error": f"the dead letter cannot be decoded: {error}"}
    kernel.effects.append(CommandAnswer(event.answer, result))


def _carried_out(kernel: Kernel, name: str, arguments: Arguments) -> Any:
    if (command := COMMANDS.get(name)) is not None:
        return command(kernel, arguments)
    found = look(kernel.store, name, arguments)
    if name == "actor" and found is not None:
        found["moveFailed"] = kernel.moves.failures.get(found["actor"])
    return found


def _withheld(name: str, found: Any) -> Any:
    """An answer without contents: arguments, errors, keys of calls and of states."""
    if name == "letter":
        return None
    if isinstance(found, list):
        return [_withheld(name, one) for one in found]
    if not isinstance(found, dict):
        return found
    row = {member: _withheld("", value) for member, value in found.items()}
    hidden: views.View = {one: None for one in _CONTENTS if row.get(one) is not None}
    if "continuation" in hidden:
        hidden["continuation"] = _method_of(row["continuation"])
    if name == "actor" and row["state"]:
        hidden["state"] = {}
    if name == "finished" and row["outcome"] not in ("returned", "deferred"):
        hidden["outcome"] = "failed"
    return row | hidden | ({"withheld": True} if hidden else {})


def _method_of(continuation: str) -> str:
    try:
        method = msgspec.json.decode(continuation)["m"]
    except (ValueError, KeyError, TypeError):
        return "{}"
    return msgspec.json.encode({"m": method}).decode()


def look(store: HostStore, name: str, arguments: Arguments) -> Any:
    """The answer to a read-only command; raises `BadCommand`."""
    view = LOOKS.get(name)
    if view is None:
        known = ", ".join(sorted([*LOOKS, *COMMANDS]))
        raise BadCommand(f"unknown command {name!r:.100}; use one of {known}")
    return view(store, arguments)


def _text(arguments: Arguments, name: str, *, may_be_empty: bool = False) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise BadCommand(f"the argument {name!r} is missing or not a string")
    return value


def _optional(arguments: Arguments, *wanted: str) -> Arguments:
    given = {name: arguments[name] for name in wanted if arguments.get(name) is not None}
    for name, value in given.items():
        if type(value) is not (int if name in ("limit", "offset") else str):
            raise BadCommand(f"the argument {name!r} has the wrong type")
    return given


def _fitting(rows: Rows, bytes_max: int = ANSWER_BYTES_MAX) -> Rows:
    """As many rows as fit into one answer; ask again with an offset for more."""
    size = 0
    for index, row in enumerate(rows):
        size += len(msgspec.json.encode(row))
        if size > bytes_max:
            return rows[:index] or [_cut(row, CUT_CHARS)]
    return rows


def _cut(row: views.View, chars_max: int) -> views.View:
    return {
        name: f"{value[:chars_max]}…"
        if isinstance(value, str) and len(value) > chars_max
        else value
        for name, value in row.items()
    }


def _actors(store: HostStore, arguments: Arguments) -> Any:
    return _fitting(views.actors(store, **_optional(arguments, "kind", "limit", "offset")))


def _actor(store: HostStore, arguments: Arguments) -> Any:
    found = views.actor(store, _text(arguments, "actor"))
    if found is not None:
        parts = ("calls", "alarmList", "deadLetters")
        found |= {name: _fitting(found[name], ANSWER_BYTES_MAX // 4) for name in parts}
    return found


def _calls(store: HostStore, arguments: Arguments) -> Any:
    return _fitting(views.calls(store, **_optional(arguments, "address", "id", "limit", "offset")))


def _finished(store: HostStore, arguments: Arguments) -> Any:
    return _fitting(views.finished(store, **_optional(arguments, "address", "limit", "offset")))


def _call(store: HostStore, arguments: Arguments) -> Any:
    return views.call(store, _text(arguments, "call"))


def _alarms(store: HostStore, arguments: Arguments) -> Any:
    wanted = _optional(arguments, "address", "id", "status", "limit", "offset")
    return _fitting(views.alarms(store, **wanted))


def _dead(store: HostStore, arguments: Arguments) -> Any:
    return _fitting(views.dead(store, **_optional(arguments, "address", "id", "limit", "offset")))


def _letter(store: HostStore, arguments: Arguments) -> Any:
    actor = _text(arguments, "actor", may_be_empty=True)
    found = dead_letters.contents(store, actor, _text(arguments, "id"))
    return None if found is None else _cut(found, ANSWER_BYTES_MAX // 8)


def _redrive(kernel: Kernel, arguments: Arguments) -> Any:
    """A dead letter, or an alarm that was skipped."""
    actor, one = _text(arguments, "actor"), _text(arguments, "id")
    if not kernel.places.is_here(actor):
        # Its rows are packed or on another host.
        raise BadCommand(
            f"{actor} is not on this host now; retry on its host, or once it has arrived"
        )
    return kernel.letters.redrive(actor, one) or kernel.alarms.retry_skipped(actor, one)


def _purge(kernel: Kernel, arguments: Arguments) -> Any:
    """A dead letter; those without an actor are messages that could not be read."""
    actor = _text(arguments, "actor", may_be_empty=True)
    return kernel.letters.purge(actor, _text(arguments, "id"))


def _move(kernel: Kernel, arguments: Arguments) -> Any:
    actor, to = _text(arguments, "actor"), _text(arguments, "to")
    if not names.is_address(to):
        raise CannotMove(f"{to!r:.100} is not the address of a host")
    step = kernel.moving.send_again if arguments.get("again") is True else kernel.moving.begin
    return msgspec.structs.asdict(step(actor, to))


def _keep_name(kernel: Kernel, arguments: Arguments) -> Any:
    """Record that the hub knows this folder by its name."""
    kernel.store.put_meta(NAME_KEPT, 1)


def _stats(kernel: Kernel, arguments: Arguments) -> Any:
    return {
        "host": kernel.places.host,
        "kinds": kernel.kinds.names,
        "moves": kernel.moves.shown(),
        "counters": msgspec.structs.asdict(kernel.counters),
    }


LOOKS: dict[str, Callable[[HostStore, Arguments], Any]] = {
    "actors": _actors,
    "actor": _actor,
    "calls": _calls,
    "call": _call,
    "finished": _finished,
    "alarms": _alarms,
    "dead": _dead,
    "letter": _letter,
}
COMMANDS: dict[str, Callable[[Kernel, Arguments], Any]] = {
    "keep_name": _keep_name,
    "redrive": _redrive,
    "purge": _purge,
    "move": _move,
    "stats": _stats,
}
