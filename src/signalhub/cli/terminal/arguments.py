"""Arguments as users type them: addresses with or without `@( )`, data as JSON or text.

What follows `--` is data: neither an option nor the dash that stands for standard input.
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
_JSON_STARTS = ("{", "[", '"')
END_OF_OPTIONS = "--"
URL_VARIABLE = "SIGNALHUB_URL"

_GIVE_TOKEN = "pass a token with --token-file or SIGNALHUB_TOKEN"  # noqa: S105

# The parser does not say on which side of `--` it found an argument.
_verbatim: ContextVar[Sequence[str]] = ContextVar("verbatim", default=())

Address = Annotated[str, Parameter(name="ADDRESS", help="An address, with or without @( ).")]
Data = Annotated[
    str,
    Parameter(
        name="DATA",
        help="Sent as JSON if it parses as JSON, else as text; - reads standard input.",
        allow_leading_hyphen=True,
    ),
]
AsText = Annotated[
    bool,
    Parameter(
        name="--text",
        negative=(),
        show_default=False,
        help="Send the data as text even if it is, or begins like, JSON.",
    ),
]
Type = Annotated[str, Parameter(help="The message type.")]
Topic = Annotated[str, Parameter(name="TOPIC", help="The topic, such as prices/eu.")]
MessageId = Annotated[
    str | None,
    Parameter(name="--id", help="Message id; a message sent again with the same id counts once."),
]


def address(text: str) -> str:
    """The full form of an address."""
    return _usable(full_address, text)


def check_no_option(kind: object, text: str | None) -> None:
    """An id may begin with a dash, but not look like a mistyped option; raises `ValueError`."""
    from signalhub.wire.room_ids import CAPABILITY_CHARS

    if text is None or not text.startswith("-") or text in _verbatim.get():
        return
    if len(text) != CAPABILITY_CHARS:
        raise ValueError(f"unknown option {text}; to pass it as an id, write it last, after --")


# For parameters that take the id of an inbox: one in sixty-four begins with a dash.
DASHED = Parameter(allow_leading_hyphen=True, validator=check_no_option)


def optional_address(text: str | None) -> str | None:
    """The full form of an optional address."""
    return None if text is None else address(text)


def options_of(argv: Sequence[str]) -> Sequence[str]:
    """The command line up to `--`; what follows is remembered as data."""
    end = argv.index(END_OF_OPTIONS) if END_OF_OPTIONS in argv else len(argv)
    _verbatim.set(argv[end + 1 :])
    return argv[:end]


def data(text: str, *, as_text: bool) -> Any:
    """The value to send."""
    is_verbatim = text in _verbatim.get()
    if text.startswith("--") and not is_verbatim:
        raise usage(
            f"unknown option {text}",
            f"see --help; to send it as data, write it last: -- {text}",
        )
    if text == STDIN and not is_verbatim:
        text = standard_input()
    return decoded(text, as_text=as_text)


def decoded(text: str, *, as_text: bool) -> Any:
    """The JSON value if the text parses as JSON, else the text itself.

    Text that begins like JSON and is not is refused: a typo would be sent, and stored, as text.
    """
    if as_text:
        return text
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        if text.lstrip()[:1] in _JSON_STARTS:
            raise usage(
                f"the data begins like JSON, but is not: {_fault(text, error)}",
                "correct it, or send it as it is with --text",
            ) from None
        return text


def _fault(text: str, error: Exception) -> str:
    """What is wrong with some JSON, and where."""
    import json

    try:
        json.loads(text)
    except json.JSONDecodeError as found:
        # Some messages end with the word already.
        fault = found.msg.removesuffix(" at")
        return f"{fault} at line {found.lineno}, column {found.colno}"
    except (ValueError, RecursionError):
        pass
    return str(error)


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


def checked_pattern(text: str) -> str:
    """The topic of a durable subscription, or the pattern of all its topics."""
    return checked_subscription(text) if names.has_wildcard(text) else checked_topic(text)


def optional_pattern(text: str | None) -> str | None:
    """An optional topic or pattern."""
    return None if text is None else checked_pattern(text)


def optional_topic(text: str | None) -> str | None:
    """An optional topic."""
    return None if text is None else checked_topic(text)


def checked_name(text: str, of_what: str) -> str:
    """The name of a subscription or a consumer."""
    from signalhub.client import arguments

    return _checked(
        lambda name: arguments.checked_name(name, of_what), text, "choose a name such as billing"
    )


def checked_message_id(text: str | None) -> str | None:
    """A message id chosen by the user."""
    from signalhub.client import arguments

    if text is not None:
        _checked(lambda one: arguments.checked_message_id(one) or one, text, "choose another --id")
    return text


def half_wildcard(topic: str) -> str | None:
    """A level of a topic that contains a wildcard character but is not a wildcard."""
    wildcards = (names.ONE_LEVEL, names.SUBTREE)
    for level in topic.split("/"):
        if level not in wildcards and any(sign in level for sign in wildcards):
            return level
    return None


def checked_url(text: str) -> str:
    """The URL of a hub."""
    from signalhub.client import arguments

    def check(url: str) -> None:
        arguments.checked_url(url)
        # An invalid port is found only by reading it.
        urlsplit(url).port  # noqa: B018

    return checked_url_by(check, text, if_secret=f"; {_GIVE_TOKEN}")


def checked_url_by(check: Callable[[str], object], text: str, *, if_secret: str = "") -> str:
    """A URL that passes a check; its error names where the URL came from.

    `if_secret` is added to the advice if the URL may contain a secret; then it is not repeated.
    """
    origin = URL_VARIABLE if os.environ.get(URL_VARIABLE) == text else "--url"
    try:
        check(text)
    except ValueError as error:
        complaint, _, _ = str(error).partition(";")
        if "@" in text or "?" in text:
            raise usage(f"{origin}: {complaint}", f"correct {origin}{if_secret}") from None
        raise usage(f"invalid {origin} {text!r}: {complaint}", f"correct {origin}") from None
    return text


def _usable(check: Callable[[str], str], text: str) -> str:
    try:
        return check(text)
    except InvalidArgument as error:
        raise usage(error.message, error.resolution) from None


def _checked(check: Callable[[str], str], text: str, resolution: str) -> str:
    """Apply a check of the client; its error becomes a usage failure."""
    try:
        return check(text)
    except ValueError as error:
        raise usage(str(error), resolution) from None


def standard_input() -> str:
    """Everything on standard input, without a final newline."""
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise usage(f"standard input is not UTF-8: {error.reason}", "send text") from None
