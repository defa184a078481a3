"""What users type: addresses with or without `@( )`, data as JSON or text.

What follows `--` is data as it stands: neither an option nor the dash for standard input.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from signalhub import names
from signalhub.cli.failures import usage

STDIN = "-"
END_OF_OPTIONS = "--"

# The parser does not tell on which side of `--` it found an argument.
_verbatim: ContextVar[Sequence[str]] = ContextVar("verbatim", default=())

Address = Annotated[str, Parameter(name="ADDRESS", help="An address, with or without @( ).")]
Data = Annotated[
    str,
    Parameter(
        name="DATA",
        help="JSON if it reads as JSON, else text; - reads standard input, -- goes before dashes.",
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


def optional_address(text: str | None) -> str | None:
    """The full form of an address that may be left out."""
    return None if text is None else address(text)


def options_of(argv: Sequence[str]) -> Sequence[str]:
    """A command line up to its `--`; what follows is remembered as data."""
    end = argv.index(END_OF_OPTIONS) if END_OF_OPTIONS in argv else len(argv)
    _verbatim.set(argv[end + 1 :])
    return argv[:end]


def data(text: str, *, as_text: bool) -> Any:
    """The value to send."""
    is_verbatim = text in _verbatim.get()
    if text.startswith("--") and not is_verbatim:
        raise usage(
            f"{text} is no option of this command",
            f"see --help; to send it as data, write it last, as -- {text}",
        )
    if text == STDIN and not is_verbatim:
        text = standard_input()
    if as_text:
        return text
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text


def checked_type(text: str) -> str:
    """A message type."""
    from signalhub.client import arguments

    return _checked(arguments.checked_type, text)


def checked_topic(text: str) -> str:
    """A topic to publish to."""
    from signalhub.client import arguments

    return _checked(arguments.checked_topic, text)


def checked_subscription(text: str) -> str:
    """A topic or wildcard to subscribe to."""
    from signalhub.client import arguments

    return _checked(arguments.checked_subscription, text)


def checked_url(text: str) -> str:
    """Where a hub is."""
    from signalhub.client import arguments

    return _checked(arguments.checked_url, text)


def _checked(check: Callable[[str], str], text: str) -> str:
    """The client's own check, whose complaint becomes wrong usage."""
    try:
        return check(text)
    except ValueError as error:
        raise usage(str(error)) from None


def standard_input() -> str:
    """Everything on standard input, without the newline that ends it."""
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise usage(f"standard input is not UTF-8: {error.reason}") from None
