"""Actors that are named on the command line, such as `shop:Order`: finding their classes."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from functools import reduce
from types import ModuleType
from typing import TYPE_CHECKING, Any

from signalhub.cli.failures import Failure, usage

if TYPE_CHECKING:
    from signalhub.actors import Actor

LIKE = "write it like shop:Order, the module before the colon and the class behind it"


def classes_of(texts: Sequence[str]) -> list[type[Actor]]:
    """The classes of actors that are named as `module:Class`."""
    if not texts:
        raise usage("which actors shall it serve?", LIKE)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    found = [_class(text) for text in texts]
    _check_kinds(found)
    return found


def _check_kinds(classes: Sequence[type[Actor]]) -> None:
    from signalhub.actors import DurableConfig
    from signalhub.actors.kinds import Kinds

    try:
        Kinds(classes, DurableConfig())
    except (TypeError, ValueError) as error:
        message, _, resolution = str(error).partition("; ")
        raise usage(message, resolution) from None


def _class(text: str) -> type[Actor]:
    from signalhub.actors import Actor

    name, _, path = text.partition(":")
    if not name or name.startswith("."):
        raise usage(f"{text!r} names no class", LIKE)
    module = _module(name, _correction(text))
    if not path:
        raise usage(f"{text} is a module, and no class", _choice(module))
    try:
        found: Any = reduce(getattr, path.split("."), module)
    except AttributeError:
        raise usage(f"{name} has no class {path}{_origin(module)}", _choice(module)) from None
    if not (isinstance(found, type) and issubclass(found, Actor)) or found is Actor:
        raise usage(f"{text} is no class derived from Actor{_origin(module)}", _choice(module))
    return found


def _correction(text: str) -> str:
    """What to do if there is no such module."""
    before, dot, last = text.rpartition(".")
    if dot and ":" not in text:
        return f"write a colon between the module and the class: {before}:{last}"
    return "change into its folder, or correct the name; a file shop.py is the module shop"


def _origin(module: ModuleType) -> str:
    """The file of a module, which may be another one of the same name."""
    file = getattr(module, "__file__", None)
    return f"; it was loaded from {file}" if file else ""


def _choice(module: ModuleType) -> str:
    """Which classes of a module can be served."""
    from signalhub.actors import Actor

    names = [
        f"{module.__name__}:{name}"
        for name, one in vars(module).items()
        if isinstance(one, type) and issubclass(one, Actor) and one.__module__ == module.__name__
    ]
    return f"there are {', '.join(names)}" if names else LIKE


def _module(name: str, correction: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise usage(
                f"there is no module {missing} in {os.getcwd()}, nor among those installed",
                correction,
            ) from None
        raise _unimportable(name, error) from None
    except (Exception, SystemExit) as error:
        raise _unimportable(name, error) from None


def _unimportable(name: str, error: BaseException) -> Failure:
    """An error of the user's own module, where it is."""
    if isinstance(error, SyntaxError):
        place, text = f"{error.filename}, line {error.lineno}", error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [
            one for one in frames if "importlib" not in one.filename and __file__ != one.filename
        ]
        library = os.path.dirname(os.path.dirname(__file__))
        users = [one for one in own if not one.filename.startswith(library)] or own
        place = f"{users[-1].filename}, line {users[-1].lineno}" if users else name
        text = str(error)
    message = f"{name} cannot be imported: {type(error).__name__}: {text}".splitlines()
    return usage(f"{' '.join(message)} ({place})", "correct it there")
