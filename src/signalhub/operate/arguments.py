"""Arguments that several operations take, and the error for an invalid one.

The hub accepts nearly any text as an address or a topic; here, what is most likely a mistake is
refused.
"""

from __future__ import annotations

from signalhub.wire import names
from signalhub.wire.errors import SignalHubError

# The protocol allows them, but on a command line a bracket or space is a quoting mistake.
_NOT_IN_PATHS = frozenset("() ")


class InvalidArgument(SignalHubError):
    """An argument cannot be used; `resolution` says what to write instead."""

    code = "usage"

    def __init__(self, message: str, resolution: str) -> None:
        super().__init__(f"{message}; {resolution}")
        self.message = message
        self.resolution = resolution


def full_address(text: str) -> str:
    """Return an address with its `@( )`, which may be omitted."""
    path = names.path_of(text)
    full = f"@({path})"
    if not names.is_address(full) or any(letter in _NOT_IN_PATHS for letter in path):
        raise InvalidArgument(
            f"invalid address {text!r}", "write it like demo/alice or '@(demo/alice)'"
        )
    return full


def checked_topic(text: str) -> str:
    """Check the name of a topic to publish to."""
    from signalhub.client import arguments

    if names.has_wildcard(text):
        raise InvalidArgument(f"{text!r} contains a wildcard", "name one topic, such as prices/eu")
    try:
        return arguments.checked_topic(text)
    except ValueError as error:
        raise InvalidArgument(str(error), "name one, such as prices/eu") from None
