"""`signalhub context`: hubs by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec.structs import asdict, replace

from signalhub.cli.terminal import contexts as stored
from signalhub.cli.terminal.connection import socket_url
from signalhub.cli.terminal.contexts import Context, ContextFile
from signalhub.cli.terminal.failures import usage
from signalhub.cli.terminal.output import AsJson, Output, OutputColumn

Name = Annotated[str, Parameter(name="NAME", help="The name of the context, such as prod.")]

_COLOURS = ("red", "yellow", "green", "blue", "magenta", "cyan")
_COLUMNS = (
    OutputColumn("current"),
    OutputColumn("name", style="bold"),
    OutputColumn("url", style="cyan"),
    OutputColumn("label", spare=2),
    OutputColumn("production", style="red", spare=1),
    OutputColumn("token_file", spare=3),
)


def add(
    name: Name,
    /,
    *,
    url: Annotated[str | None, Parameter(help="URL of the hub.")] = None,
    token_file: Annotated[Path | None, Parameter(help="File that contains a token.")] = None,
    config: Annotated[Path | None, Parameter(help="TOML file with settings.")] = None,
    data: Annotated[Path | None, Parameter(help="The hub's data folder.")] = None,
    label: Annotated[str | None, Parameter(help="A few words about it.")] = None,
    colour: Annotated[str | None, Parameter(help=f"One of {', '.join(_COLOURS)}.")] = None,
    production: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Ask for the name of the context before anything is deleted.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add a context, or replace the one of this name; the first one becomes the current one."""
    if not name.strip() or name.startswith("-"):
        raise usage(f"invalid name {name!r} of a context", "choose a name such as prod")
    if colour is not None and colour not in _COLOURS:
        raise usage(f"unknown colour {colour}", f"choose one of {', '.join(_COLOURS)}")
    context = Context(
        url=None if url is None else socket_url(url),
        token_file=_absolute(token_file),
        config=_absolute(config),
        data=_absolute(data),
        label=label,
        colour=colour,
        production=production,
    )
    if context == Context(label=label, colour=colour, production=production):
        raise usage(
            "a context needs a hub or its files", "give --url, --token-file, --config or --data"
        )
    known = stored.load()
    current = known.current or (name if not known.contexts else None)
    stored.save(ContextFile(current=current, contexts={**known.contexts, name: context}))
    use_it = "" if current == name else f"; use it with `signalhub context use {name}`"
    Output(as_json).fact({"name": name, "current": current}, f"context {name} is stored{use_it}")


def use(
    name: Annotated[
        str | None, Parameter(name="NAME", help="The context; without one, none is used.")
    ] = None,
    /,
    *,
    as_json: AsJson = False,
) -> None:
    """Make a context the current one, which commands use unless told otherwise."""
    known = stored.load()
    if name is not None:
        stored.find(known, name)
    stored.save(replace(known, current=name))
    text = "no context is used" if name is None else f"commands now use the context {name}"
    Output(as_json).fact({"current": name}, text)


def ls(*, as_json: AsJson = False) -> None:
    """List the contexts."""
    output, known = Output(as_json), stored.load()
    rows = []
    for name, context in known.contexts.items():
        is_current = name == known.current
        mark = is_current if as_json else "*" if is_current else ""
        facts = asdict(context)
        if not as_json:
            facts = {key: value or "" for key, value in facts.items()}
            facts["production"] = "production" if context.production else ""
        rows.append({"current": mark, "name": name, **facts})
    output.table(_COLUMNS, rows, if_empty="no contexts yet; see `signalhub context add --help`")


def show(
    name: Annotated[
        str | None, Parameter(name="NAME", help="The context; default: the current one.")
    ] = None,
    /,
    *,
    as_json: AsJson = False,
) -> None:
    """Show one context; tokens stay in their files."""
    known = stored.load()
    wanted = name or known.current
    if wanted is None:
        raise usage("no context is used", "name one, or choose one with `signalhub context use`")
    Output(as_json).sheet({"name": wanted, **asdict(stored.find(known, wanted))})


def rm(name: Name, /, *, as_json: AsJson = False) -> None:
    """Remove a context; the hub and its files stay as they are."""
    known = stored.load()
    stored.find(known, name)
    rest = {one: context for one, context in known.contexts.items() if one != name}
    current = None if known.current == name else known.current
    stored.save(ContextFile(current=current, contexts=rest))
    Output(as_json).fact({"removed": name}, f"context {name} is removed")


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser().absolute())
