"""The byte work of hot paths; `signalhub` works the same without it, only slower."""

from typing import Final, final

from signalhub.core.streams.streams import Held
from signalhub.core.subscriptions.window import Acked

VERSION: Final[str]

def first_copies(
    held: list[Held],
    begin: int,
    first: int,
    address: bytes,
    metadata: bytes,
    delivery: bytes,
    prefix: bytes,
    stamp_ms: int,
) -> tuple[bytes, int]:
    """The frames of the first attempt to deliver messages, and how many they are.

    Of the messages, those from `begin` on are meant; the first of them has the position `first`.
    It ends before the first one that Python has to compose.
    """

def acked_body(subscription: str, generation: int, acked: list[Acked]) -> bytes:
    """The body of an entry of settlements, each of them an acknowledged first attempt."""

@final
class Reader:
    """The input of one socket."""

    def __new__(cls, frame_bytes_max: int, run_bytes_max: int) -> Reader: ...
    @property
    def units(self) -> int:
        """Units of the last `read`: one for each frame, and more for large ones."""

    @property
    def extra_units(self) -> int:
        """Those of them that large frames took besides their first."""

    @property
    def is_plain(self) -> bool:
        """Had the last `read` no large frames, and left none?"""

    @property
    def has_more(self) -> bool:
        """Is there a whole frame that was not handed over yet?"""

    @property
    def held_bytes(self) -> int:
        """The memory it holds."""

    def read(
        self, data: bytes, units: int
    ) -> list[Tells | bytes | tuple[int, bool, bool, bytes] | tuple[int, str]]:
        """Take what was read; return what up to `units` units hold."""

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
