"""The byte work of hot paths; `signalhub` works the same without it, only slower."""

from collections.abc import Callable
from typing import Any, Final, final

VERSION: Final[str]

def upgrade(data: bytes) -> tuple[str, str, dict[str, str], bytes] | None:
    """Read the plain upgrade request that is all of `data`.

    Return path, query, headers, and the answer up to the end of the line with the accepted key;
    `None` if Python has to read it.
    """

def listed(head: bytes, rest: bytes, begun: int, values: list[bytes], end: bytes) -> bytes:
    """An HTTP answer whose body goes on with `values`, separated by commas, and with `end`.

    `head` ends before the length of the body, `rest` with its first `begun` bytes.
    """

@final
class Reader:
    """The input of one socket."""

    def __new__(cls, frame_bytes_max: int, run_bytes_max: int) -> Reader: ...
    @property
    def held_bytes(self) -> int:
        """The memory it holds."""

    def read(
        self, data: bytes, units: int, share: int
    ) -> tuple[
        list[Tells | bytes | tuple[int, bool, bool, bytes] | tuple[int, str]],
        int,
        int,
        int,
        bool,
    ]:
        """Take what was read; return (items, units, spared units, extra units, is there more?).

        The items are what up to `units` units hold. Each frame takes one, and large ones take extra
        units; of the messages of runs only one in `share` does, the others are spared.
        """

@final
class Requests:
    """Makes HTTP requests of what a connection has read."""

    def __new__(cls, request: Callable[..., object]) -> Requests: ...
    def read(self, data: bytes, peer: str, local: str) -> tuple[list[Any], int]:
        """The plain requests at the beginning of what was read, and where the rest begins."""

@final
class RoomMessages:
    """Reads messages for rooms."""

    def __new__(
        cls,
        plain: tuple[bytes, int],
        with_colon: tuple[bytes, int],
        base64url: bytes,
        ciphertext_bytes_max: int,
    ) -> RoomMessages: ...
    def read(
        self, body: bytes
    ) -> tuple[str | None, bytes, str | None, str | None, str | None] | None:
        """Message id, ciphertext, pseudonym, room and tenant; `None` if Python has to read it."""

@final
class Tells:
    """Tells of one sender to one target, in the order in which they came."""

    @property
    def sender(self) -> str: ...
    @property
    def to(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def deadline(self) -> int | None:
        """When the first of them expires, by the clock of their sender; `None` if none does."""

    def deadlines(self) -> list[int | None]:
        """When each of them expires."""

    def messages(self) -> list[bytes]:
        """The messages as they were received."""

    def copies(self, ids: bytes, sender: bytes, to: bytes, now_ms: int) -> bytes:
        """The frames of their copies; `ids` are concatenated, both addresses are JSON."""
