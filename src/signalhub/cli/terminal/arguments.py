"""What users type: addresses with or without `@( )`, data as JSON or text.

The hub takes nearly any text for an address or a topic; here what is most likely a slip is refused.
What follows `--` is data as it stands: neither an option nor the dash for standard input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from cyclopts import Parameter

from signalhub.cli.terminal.failures import usage
from signalhub.operate.arguments import InvalidArgument, full_address
from signalhub.operate.arguments import checked_topic as plain_topic
from signalhub.wire import names

STDIN = "-"
END_OF_OPTIONS = "--"
URL_VARIABLE = "SIGNALHUB_URL"

_GIVE_TOKEN = "a token goes with --token-file or SIGNALHUB_TOKEN"  # noqa: S105

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
Topic = Annotated[str, Parameter(name="TOPIC", help="The topic, such as prices/eu.")]
MessageId = Annotated[
    str | None,
    Parameter(name="--id", help="An id of your own: sent again with it, a message counts once."),
]


def address(text: str) -> str:
    """The full form of an address."""
    return _usable(full_address, text)


def check_no_option(kind: object, text: str | None) -> None:
    """An id may begin with a dash, but a mistyped option is none; raises `ValueError`."""
    from signalhub.client.arguments import CAPABILITY_CHARS

    if text is None or not text.startswith("-") or text in _verbatim.get():
        return
    if len(text) != CAPABILITY_CHARS:
        raise ValueError(f"{text} is no option of this command; as an id, write it last, behind --")


# Added to parameters that take the id of an inbox: one in sixty-four begins with a dash.
DASHED = Parameter(allow_leading_hyphen=True, validator=check_no_option)


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
    return decoded(text, as_text=as_text)


def decoded(text: str, *, as_text: bool) -> Any:
    """JSON if it reads as JSON, else the text itself."""
    if as_text:
        return text
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text


def checked_type(text: str) -> str:
    """A message type."""
    from signalhub.client import arguments

    return _checked(arguments.checked_type, text, "choose another with --type")


def checked_topic(text: str) -> str:
    """A topic to publish to."""
    return _usable(plain_topic, text)


def checked_subscription(text: str) -> str:
    """A topic or wildcard to subscribe to."""
    from signalhub.client import arguments

    return _checked(
        arguments.checked_subscription, text, "write it like prices/eu, prices/+ or 'prices/#'"
    )


def optional_topic(text: str | None) -> str | None:
    """A topic that may be left out."""
    return None if text is None else checked_topic(text)


def checked_name(text: str, of_what: str) -> str:
    """The name of a subscription or a consumer."""
    from signalhub.client import arguments

    return _checked(lambda name: arguments.checked_name(name, of_what), text, "name it, as billing")


def checked_message_id(text: str | None) -> str | None:
    """An id the user gives to a message."""
    from signalhub.client import arguments

    if text is not None:
        _checked(lambda one: arguments.checked_message_id(one) or one, text, "choose another --id")
    return text


def half_wildcard(topic: str) -> str | None:
    """The level of a topic that looks like a wildcard and is none."""
    wildcards = (names.ONE_LEVEL, names.SUBTREE)
    for level in topic.split("/"):
        if level not in wildcards and any(sign in level for sign in wildcards):
            return level
    return None


def checked_url(text: str) -> str:
    """Where a hub is."""
    from signalhub.client import arguments

    origin = URL_VARIABLE if os.environ.get(URL_VARIABLE) == text else "--url"
    try:
        arguments.checked_url(text)
        # Numbers that are no port are found only by asking for it.
        urlsplit(text).port  # noqa: B018
    except ValueError as error:
        complaint, _, _ = str(error).partition(";")
        # What may hold a secret is not repeated.
        if "@" in text or "?" in text:
            raise usage(f"{origin}: {complaint}", f"correct {origin}; {_GIVE_TOKEN}") from None
        raise usage(f"{origin} is {text!r}: {complaint}", f"correct {origin}") from None
    return text


def _usable(check: Callable[[str], str], text: str) -> str:
    try:
        return check(text)
    except InvalidArgument as error:
        raise usage(error.message, error.resolution) from None


def _checked(check: Callable[[str], str], text: str, resolution: str) -> str:
    """The client's own check, whose complaint becomes wrong usage."""
    try:
        return check(text)
    except ValueError as error:
        raise usage(str(error), resolution) from None


def standard_input() -> str:
    """Everything on standard input, without the newline that ends it."""
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise usage(f"standard input is not UTF-8: {error.reason}", "send text") from None
