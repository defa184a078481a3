"""How commands reach the hub: their common options, one session, and what its failures mean."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from signalhub import names
from signalhub.cli.failures import Exit, Failure, usage
from signalhub.cli.output import Output
from signalhub.errors import ClientError, OutcomeUnknown, Refused, Unavailable, UnknownActor

if TYPE_CHECKING:
    from signalhub.client import Client

T = TypeVar("T")

DEFAULT_URL = "ws://127.0.0.1:8787/ws"


@Parameter(name="*", group="Connection")
@dataclass(frozen=True, kw_only=True)
class Connection:
    """The options of every command that talks to a hub."""

    url: Annotated[str, Parameter(env_var="SIGNALHUB_URL", help="Where the hub is.")] = DEFAULT_URL
    token_file: Annotated[
        Path | None,
        Parameter(help="File with a token; without it the variable SIGNALHUB_TOKEN counts."),
    ] = None
    sender: Annotated[
        str | None, Parameter(name="--from", help="Address to speak as; a random one otherwise.")
    ] = None
    timeout_s: Annotated[
        float, Parameter(name="--timeout", help="Seconds to wait for the hub and its answers.")
    ] = 5.0
    as_json: Annotated[
        bool,
        Parameter(
            name="--json",
            negative=(),
            show_default=False,
            help="Print JSON, one object per line; errors too, on standard error.",
        ),
    ] = False

    @property
    def output(self) -> Output:
        return Output(self.as_json)

    def token(self) -> str | None:
        """The token to present, if there is one."""
        if self.token_file is None:
            return os.environ.get("SIGNALHUB_TOKEN") or None
        try:
            return self.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise usage(f"the token file {self.token_file} cannot be read: {error}") from None
