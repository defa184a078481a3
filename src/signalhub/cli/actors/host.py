"""`signalhub actors run`: run a host of durable actors in the foreground."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tomllib
import traceback
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

import signalhub
from signalhub.cli.actors.hosts import name_of
from signalhub.cli.terminal.connection import (
    HubConnection,
    Url,
    dismissal_of,
    failure_of,
    socket_url,
)
from signalhub.cli.terminal.failures import Exit, Failure, split_advice, usage
from signalhub.cli.terminal.output import AsJson, Output
from signalhub.operate.session import DEFAULT_URL
from signalhub.wire.errors import ClientError, Code, GaveUp, Refused, SettingsError

if TYPE_CHECKING:
    from signalhub.actors import Actor, DurableConfig
    from signalhub.actors.host.host import Host

LIKE = "write it as module:Class, such as shop:Order"


def classes_of(texts: Sequence[str]) -> list[type[Actor]]:
    """The actor classes given as `module:Class`."""
    if not texts:
        raise usage("no actor classes given", LIKE)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    found = [_class(text) for text in texts]
    _check_kinds(found)
    return found


def _check_kinds(classes: Sequence[type[Actor]]) -> None:
    from signalhub.actors import DurableConfig
    from signalhub.actors.api.kinds import Kinds

    try:
        Kinds(classes, DurableConfig())
    except (TypeError, ValueError) as error:
        raise usage(*split_advice(error)) from None


def _class(text: str) -> type[Actor]:
    from signalhub.actors import Actor

    name, _, path = text.partition(":")
    if not name or name.startswith("."):
        raise usage(f"invalid class {text!r}", LIKE)
    module = _module(name, _correction(text))
    if not path:
        raise usage(f"{text} is a module, not a class", _choice(module))
    try:
        found: Any = reduce(getattr, path.split("."), module)
    except AttributeError:
        raise usage(f"{name} has no class {path}{_origin(module)}", _choice(module)) from None
    if not (isinstance(found, type) and issubclass(found, Actor)) or found is Actor:
        raise usage(f"{text} is not a subclass of Actor{_origin(module)}", _choice(module))
    return found


def _correction(text: str) -> str:
    """What to do if the module does not exist."""
    before, dot, last = text.rpartition(".")
    if dot and ":" not in text:
        return f"write a colon between the module and the class: {before}:{last}"
    return "run the command in its folder, or correct the name; the file shop.py is the module shop"


def _origin(module: ModuleType) -> str:
    """The file of a module, which may not be the expected one."""
    file = getattr(module, "__file__", None)
    return f" (loaded from {file})" if file else ""


def _choice(module: ModuleType) -> str:
    """The actor classes of a module."""
    from signalhub.actors import Actor

    names = [
        f"{module.__name__}:{name}"
        for name, one in vars(module).items()
        if isinstance(one, type) and issubclass(one, Actor) and one.__module__ == module.__name__
    ]
    return f"choose from {', '.join(names)}" if names else LIKE


def _module(name: str, correction: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise usage(
                f"module {missing} is neither in {os.getcwd()} nor installed",
                correction,
            ) from None
        raise _unimportable(name, error) from None
    except (Exception, SystemExit) as error:
        raise _unimportable(name, error) from None


def _unimportable(name: str, error: BaseException) -> Failure:
    """The failure for an error in the user's module, with its location."""
    if isinstance(error, SyntaxError):
        place, text = f"{error.filename}, line {error.lineno}", error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [
            one for one in frames if "importlib" not in one.filename and __file__ != one.filename
        ]
        library = os.path.dirname(signalhub.__file__)
        users = [one for one in own if not one.filename.startswith(library)] or own
        place = f"{users[-1].filename}, line {users[-1].lineno}" if users else name
        text = str(error)
    message = f"cannot import {name}: {type(error).__name__}: {text}".splitlines()
    return usage(f"{' '.join(message)} ({place})", "correct it there")


_KEYS = "see the guide to durable actors for the keys and their defaults"


def host_config(path: Path | None, classes: Sequence[type[Actor]]) -> DurableConfig:
    """The configuration in a file, or the default one; it must suit the classes."""
    from signalhub.actors.api.config import DEFAULTS, merged
    from signalhub.actors.api.kinds import Kinds

    if path is None:
        return DEFAULTS
    try:
        config = merged(DEFAULTS, _read(path), where=str(path))
    except (TypeError, ValueError) as error:
        message, _, hint = str(error).partition(". ")
        raise usage(message, hint or _KEYS) from None
    try:
        Kinds(classes, config)
    except (TypeError, ValueError) as error:
        raise usage(f"{error}, with {path}", "correct the class or the file") from None
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        problem = f"cannot read {path}: {error.strerror}"
        raise usage(problem, "choose another file with --config") from None
    except ValueError as error:  # Invalid TOML, or invalid UTF-8.
        raise usage(f"invalid TOML in {path}: {error}", "correct it") from None


def run(
    *classes: Annotated[
        str,
        Parameter(
            name="CLASS", help="Actor classes to serve, as module:Class, such as shop:Order."
        ),
    ],
    data: Annotated[
        Path, Parameter(help="Folder of this host with all its actors; created if new.")
    ],
    name: Annotated[
        str | None,
        Parameter(help="Name of the host at the hub; stored in the folder."),
    ] = None,
    foreign: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            show_default=False,
            help="Kind served by other hosts that may be called by name; repeatable.",
        ),
    ] = (),
    config: Annotated[
        Path | None,
        Parameter(
            show_default=False,
            help="TOML file with the host's configuration, such as call_timeout_ms.",
        ),
    ] = None,
    replace: Annotated[
        bool,
        Parameter(
            negative=(),
            help="Take over a name whose folder is lost; its actors start empty.",
        ),
    ] = False,
    url: Annotated[Url, Parameter(group="Connection")] = DEFAULT_URL,
    token_file: Annotated[
        Path | None,
        Parameter(group="Connection", help="File that contains a token; default: SIGNALHUB_TOKEN."),
    ] = None,
    as_json: Annotated[AsJson, Parameter(group="Connection")] = False,
) -> int:
    """Run a host of durable actors until SIGTERM or Ctrl-C.

    Modules are imported from the current folder first. Without a hub the host
    keeps working; messages to other hosts wait. Unfinished work continues when
    a host is started on the same folder again. Status lines go to standard
    output, the log to standard error.
    """
    connection = HubConnection(url=url, token_file=token_file, as_json=as_json)
    hub_url = socket_url(url)
    token = connection.token()
    chosen = classes_of(classes)
    for kind in foreign:
        _check_kind(kind)
    settings = host_config(config, chosen)
    _check_no_hub(data)
    _configure_log()

    import asyncio

    from signalhub.actors.host.host import Host

    try:
        host = Host(
            *chosen,
            data=data,
            url=hub_url,
            name=_checked_name(name),
            config=settings,
            foreign=foreign,
            token=token,
            replaces=replace,
        )
    except SettingsError as error:
        raise _data_failure(error, data) from None
    except ValueError as error:
        message, _, _ = str(error).partition(". ")
        raise usage(message, "omit --name, or choose another folder with --data") from None
    return asyncio.run(_serve(host, connection, data))


async def _serve(host: Host, connection: HubConnection, data: Path) -> int:
    import asyncio
    import signal

    from signalhub.actors.store.store import StorageFailed

    output = connection.output
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told_to_stop() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            # A second signal ends the process even if a method hangs.
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told_to_stop)
    try:
        async with host:
            kinds = host.kernel.kinds.names
            facts = {"host": host.name, "address": host.address, "kinds": kinds, "data": str(data)}
            served = ", ".join(kinds)
            output.fact(
                facts, f"host {host.name} serves {served} from {data}; press Ctrl-C to stop"
            )
            greeting = asyncio.create_task(_greet(host, connection, output))
            waits = {asyncio.create_task(host.run()), asyncio.create_task(stop.wait())}
            done, open_ones = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in (*open_ones, greeting):
                task.cancel()
            for task in done:
                task.result()
    except StorageFailed as error:
        raise Failure(
            Exit.FAILED, error.code, str(error), "free disk space, and start the host again"
        ) from None
    except ClientError as error:
        raise _dismissed(error) from None
    except Failure:
        raise
    except Exception as error:
        raise Failure(
            Exit.FAILED,
            "host_failed",
            f"the host failed: {type(error).__name__}: {error}",
            "see the log above; everything committed is safe, so start it again",
        ) from error
    output.fact({"stopped": True}, "stopped; unfinished work continues with the next start")
    return Exit.DONE


async def _greet(host: Host, connection: HubConnection, output: Output) -> None:
    await host.is_connected.wait()
    facts = {"connected": True, "url": connection.url}
    output.fact(facts, f"connected to {connection.url} as {host.address}")


def _dismissed(error: ClientError) -> Failure:
    """The failure for a host that the hub refuses."""
    match error:
        case Refused(code=Code.DUPLICATE_HOST):
            resolution = error.resolution.replace("replace it", "replace it with --replace") or (
                "stop that one, or give this one another --data and --name; if it is already gone,"
                " the hub notices within about a minute: try again then"
            )
            return Failure(Exit.FAILED, error.code, error.message, resolution)
        case GaveUp():
            return dismissal_of(error)
        case _:
            return failure_of(error)


def _check_no_hub(data: Path) -> None:
    """Refuse the data folder of a hub."""
    from signalhub.actors.host.host import FILE
    from signalhub.locks import HUB_LOCK

    if (data / HUB_LOCK).exists() and not (data / FILE).exists():
        raise usage(
            f"{data} is the data folder of a hub: it contains {HUB_LOCK}",
            "choose another with --data; a host needs its own folder",
        )


def _data_failure(error: SettingsError, data: Path) -> Failure:
    if data.exists() and not data.is_dir():
        return usage(f"{data} is not a folder", "choose one with --data")
    message, resolution = split_advice(error)
    return Failure(Exit.USAGE, error.code, message, resolution or "choose another with --data")


def _checked_name(name: str | None) -> str | None:
    from signalhub.cli.terminal.arguments import address

    if name is None:
        return None
    name = name_of(name)
    try:
        address(f"actors/{name}")
    except Failure:
        raise usage(f"invalid host name {name!r}", "try one like shop-1") from None
    if not name:
        raise usage("the name is empty", "omit --name to generate one")
    return name


def _check_kind(kind: str) -> None:
    from signalhub.actors.api.names import ref

    try:
        ref(kind, "any")
    except ValueError as error:
        raise usage(f"--foreign: {error}", "give a kind, such as stock") from None


def _configure_log() -> None:
    """Configure the log, unless the user's modules have done so."""
    from signalhub.observe import logs

    if not logging.getLogger().handlers:
        logs.configure("info", "auto")
