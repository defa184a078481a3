"""Named hubs: their URL, token, settings and data, so that commands need not repeat them.

They are kept in `~/.config/signalhub/contexts.toml`, for their owner only. A command takes the
context that `--context` names, else `SIGNALHUB_CONTEXT`, else the current one. What is given on the
command line wins; so do `SIGNALHUB_URL` and `SIGNALHUB_TOKEN`, unless `--context` is: the hub of a
context that is named never gets the token of the variable. The token of a context is used with its
URL only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.cli.terminal.failures import Exit, Failure, usage
from signalhub.cli.terminal.names import context_path
from signalhub.privacy import FOLDER_MODE, opener

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.argument import ArgumentCollection

OPTION: Final = "--context"
VARIABLE: Final = "SIGNALHUB_CONTEXT"
# Their own options mean something else.
_UNTOUCHED: Final = frozenset({"context", "demo", "restore"})
_WITHOUT_FOLDERS: Final = frozenset({"actors"})

# The context whose hub a command works on, if it is one in production.
_production: ContextVar[str | None] = ContextVar("production", default=None)
# Whether the hub is that of a context named on the command line.
_is_named: ContextVar[bool] = ContextVar("is_named", default=False)


class Context(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One hub, and how to reach it."""

    url: str | None = None
    token_file: str | None = None
    config: str | None = None
    data: str | None = None
    label: str | None = None
    colour: str | None = None
    production: bool = False


class ContextFile(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """All contexts, and which of them is the current one."""

    current: str | None = None
    contexts: dict[str, Context] = {}


def load() -> ContextFile:
    """Read the contexts; without a file there are none."""
    import tomllib

    file = context_path()
    try:
        text = file.read_text(encoding="utf-8")
        return msgspec.convert(tomllib.loads(text), ContextFile)
    except FileNotFoundError:
        return ContextFile()
    except OSError as error:
        raise usage(f"cannot read {file}: {error.strerror}", "correct its permissions") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise usage(f"{file}: {error}", "correct or delete the file") from None


def save(contexts: ContextFile) -> None:
    """Write the contexts, all or nothing."""
    file = context_path()
    lines = [f"current = {_quoted(contexts.current)}"] if contexts.current else []
    for name, context in contexts.contexts.items():
        lines += ["", f"[contexts.{_quoted(name)}]"]
        for key, value in msgspec.to_builtins(context).items():
            lines.append(f"{key} = {'true' if value is True else _quoted(value)}")
    try:
        file.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}.tmp")
        with open(draft, "w", encoding="utf-8", opener=opener) as out:
            out.write("\n".join(lines).lstrip("\n") + "\n")
        draft.replace(file)
    except OSError as error:
        raise usage(f"cannot write {file}: {error.strerror}", "correct its permissions") from None


def _quoted(text: str) -> str:
    """A basic string of TOML; JSON has the same escapes."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


class Chosen(msgspec.Struct, frozen=True):
    """The context of a command, and whether it was named on its command line."""

    name: str
    context: Context
    is_explicit: bool

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Fill in what the command line leaves out; cyclopts calls it before it converts."""
        from cyclopts import Token

        first = next(iter(commands), "")
        if first in _UNTOUCHED:
            return
        by_name = {name: one for one in arguments for name in one.names}

        def fill(option: str, value: str | None) -> bool:
            """Whether the option now has the value of this context."""
            argument = by_name.get(option)
            if argument is None or value is None:
                return False
            if self.is_explicit:
                argument.tokens[:] = [one for one in argument.tokens if one.source != "env"]
            if argument.tokens:
                return False
            argument.tokens.append(Token(keyword=option, value=value, source="context"))
            return True

        is_its_hub = fill("--url", self.context.url)
        if is_its_hub and (self.is_explicit or not os.environ.get("SIGNALHUB_TOKEN")):
            fill("--token-file", self.context.token_file)
        _is_named.set(is_its_hub and self.is_explicit)
        is_its_data = False
        if first not in _WITHOUT_FOLDERS:
            fill("--config", self.context.config)
            is_its_data = fill("--data", self.context.data)
        if self.context.production and (is_its_hub or is_its_data):
            _production.set(self.name)


def taken(argv: Sequence[str], end: int) -> tuple[list[str], str | None]:
    """The command line without `--context`, and its value; what follows `end` is data."""
    rest, name = [], None
    words = iter(argv[:end])
    for word in words:
        if word == OPTION:
            name = next(words, None)
            if name is None:
                raise usage(f"{OPTION} needs a value", "see `signalhub context ls`")
        elif word.startswith(f"{OPTION}="):
            name = word.partition("=")[2]
        else:
            rest.append(word)
    return [*rest, *argv[end:]], name


def choose(named: str | None, environ: Mapping[str, str]) -> Chosen | None:
    """The context for a command, or none."""
    _production.set(None)
    _is_named.set(False)
    by_variable = environ.get(VARIABLE) or None
    if named is None and by_variable is None and not context_path().exists():
        return None
    contexts = load()
    name = named or by_variable or contexts.current
    if name is None:
        return None
    return Chosen(name, find(contexts, name), named is not None)


def find(contexts: ContextFile, name: str) -> Context:
    """The context of this name."""
    found = contexts.contexts.get(name)
    if found is None:
        message = f"there is no context {name}"
        raise Failure(Exit.USAGE, "unknown_context", message, "see `signalhub context ls`")
    return found


def production() -> str | None:
    """The name of the context this command changes, if it is one in production."""
    return _production.get()


def variable_token() -> str | None:
    """The token in `SIGNALHUB_TOKEN`, unless it belongs to another hub than this command's."""
    if _is_named.get():
        return None
    return os.environ.get("SIGNALHUB_TOKEN", "").strip() or None
