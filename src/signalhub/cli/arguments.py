"""What users type: addresses with or without `@( )`, data as JSON or text."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from signalhub import names
from signalhub.cli.failures import usage

STDIN = "-"

Address = Annotated[str, Parameter(help="An address, with or without @( ).")]
Data = Annotated[
    str,
    Parameter(
        help="JSON if it reads as JSON, else text; - reads standard input.",
        allow_leading_hyphen=True,
    ),
]
AsText = Annotated[
    bool,
    Parameter(
        name="--text", negative=(), show_default=False, help="Send the data as text, never as JSON."
    ),
]
Type = Annotated[str, Parameter(help="The message type.")]


def address(text: str) -> str:
    """The full form of an address."""
    full = f"@({names.path_of(text)})"
    if not names.is_address(full):
        raise usage(f"{text!r} is no address", "write it like demo/alice or '@(demo/alice)'")
    return full


def data(text: str, *, as_text: bool) -> Any:
    """The value to send."""
    if text.startswith("--"):
        raise usage(
            f"{text} is no option of this command",
            "see --help; to send such a text, pipe it in and write - for the data",
        )
    if text == STDIN:
        text = standard_input()
    if as_text:
        return text
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text


def standard_input() -> str:
    """Everything on standard input, without the newline that ends it."""
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise usage(f"standard input is not UTF-8: {error.reason}") from None
