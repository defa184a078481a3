"""Options and arguments of the commands about durable actors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.terminal.arguments import URL_VARIABLE

# The parser resolves inherited annotations in the module of the subclass.
from signalhub.cli.terminal.connection import (  # noqa: F401
    HubConnection,
    Timeout,
    TokenFile,
    Url,
)
from signalhub.cli.terminal.failures import usage
from signalhub.cli.terminal.output import AsJson  # noqa: F401
from signalhub.operate.session import DEFAULT_URL

LIMIT = 100
LIMIT_MAX = 10_000

ActorName = Annotated[str, Parameter(name="ACTOR", help="The actor as kind/key, such as order/17.")]
AnyActor = Annotated[
    str | None,
    Parameter(name="ACTOR", help="Only this actor, such as order/17.", show_default=False),
]
Limit = Annotated[int, Parameter(validator=Number(gte=1, lte=LIMIT_MAX), help="At most N rows.")]


@Parameter(name="*", group="Connection")
@dataclass(frozen=True, kw_only=True)
class ViewOptions(HubConnection):
    """The options of commands that only read."""

    data: Annotated[
        Path | None,
        Parameter(
            show_default=False,
            help="Read this folder of a host, running or not, instead of using the hub.",
        ),
    ] = None

    def check(self) -> None:
        """A folder and a hub exclude each other, unless the URL is the default."""
        usual = (DEFAULT_URL, os.environ.get(URL_VARIABLE))
        if self.data is not None and self.url not in usual:
            raise usage("--data and --url exclude each other", "give one of them")


@Parameter(name="*", group="Connection")
@dataclass(frozen=True, kw_only=True)
class CallOptions(HubConnection):
    """The options of commands whose answer may take a while."""

    timeout_s: Timeout = 30.0


@Parameter(name="*", group="Connection")
@dataclass(frozen=True, kw_only=True)
class MoveOptions(HubConnection):
    """The options of commands that wait for an actor to move."""

    timeout_s: Annotated[
        float,
        Parameter(name="--timeout", validator=Number(gt=0), help="Seconds to wait for the move."),
    ] = 60.0


VIEW_DEFAULTS = ViewOptions()
CALL_DEFAULTS = CallOptions()
MOVE_DEFAULTS = MoveOptions()

# Commands that change something accept a folder only to explain why it cannot be used.
NoFolder = Annotated[Path | None, Parameter(name="--data", show=False)]


def check_no_folder(data: Path | None) -> None:
    """Only a running host may change its data."""
    if data is not None:
        raise usage(
            "only a running host can change its data",
            "start it with `signalhub actors run`, and omit --data",
        )


def checked_actor(text: str) -> str:
    """The name of a durable actor."""
    from signalhub.actors.api.names import parse_ref

    if "/" not in text:
        raise usage(f"invalid actor {text!r}", "write it as kind/key, such as order/17")
    try:
        return str(parse_ref(text))
    except ValueError as error:
        raise usage(str(error), "write it as kind/key, such as order/17") from None


def optional_actor(text: str | None) -> str | None:
    return None if text is None else checked_actor(text)


def checked_id(text: str, listed_by: str) -> str:
    """An id; an empty one usually comes from an unset variable."""
    if not text.strip():
        raise usage("the id is empty", f"give one listed by `signalhub actors {listed_by}`")
    return text


def no_letter(actor: str | None, id: str, what: str = "dead letter") -> str:
    """Message for an unknown id; `actor` is empty for letters without one, `None` for any."""
    if actor:
        return f"{actor} has no {what} {id}"
    return f"there is no {what} {id}" + ("" if actor is None else " without an actor")
