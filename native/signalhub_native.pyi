"""The byte work of hot paths; `signalhub` works the same without it, only slower."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, final

from signalhub.core.messages.dedup import KnownAck, Remembered, Status
from signalhub.core.streams.streams import Held
from signalhub.core.subscriptions.window import Acked
from signalhub.wire.entry import Entry, EntryRun

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

def entry_starts(data: bytes, batches: list[tuple[int, int, int]]) -> bytes | None:
    """Where the entries of verified batches start, as 64-bit numbers.

    A batch is its position, its length and its count. `None` if the entries do not fill it.
    """

def entry_columns(data: bytes, starts: bytes, layouts: bytes) -> list[list[bytes | None]] | None:
    """The columns of the entries that start at `starts`, each as its Arrow buffers.

    Kind, stream, its epoch, seq, id, accepted at, expires at, body, is erased. `layouts` says for
    every kind what its bodies are: 0 is unknown, 1 nothing to look at, 2 a message, 3 a room
    message, 4 a broadcast. `None` if Python has to look at an entry.
    """

def send_joined(
    pieces: list[bytes], fds: list[int], addresses: list[bytes]
) -> list[tuple[int, int]]:
    """Send each socket the pieces with its address between them; other threads run meanwhile.

    All addresses have the same length. Return where in the list sockets are that did not take
    everything, each with the number of bytes it took, or -1 if it is broken.
    """

def page_item(seq: int, message_id: str, ciphertext: bytes, created: bytes | None) -> bytes:
    """The JSON of a message in a page of an inbox; without `created` it has no time."""

def posted(head: bytes, rest: bytes, message_id: str, seq: int) -> bytes:
    """An HTTP answer that says which position a message has got.

    `head` ends before the length of the body, and `rest` with the head.
    """

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

def fingerprint(sender: str, message_id: str) -> bytes:
    """The key of a message for de-duplication."""

@final
class Reader:
    """The input of one socket."""

    def __new__(cls, frame_bytes_max: int, run_bytes_max: int) -> Reader: ...
    def doubt(self) -> None:
        """A run of publishes was of no use: the next ones are handed over as texts."""

    @property
    def held_bytes(self) -> int:
        """The memory it holds, 0 if that is no more than it keeps anyway."""

    def read(
        self, data: bytes, units: int, share: int
    ) -> tuple[
        list[
            Tells
            | Ask
            | Publishes
            | Settles
            | bytes
            | tuple[int, bool, bool, bytes]
            | tuple[int, str]
        ],
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
class RoomPosts:
    """Reads requests that post a message for a room to `path`."""

    def __new__(cls, path: bytes, messages: RoomMessages) -> RoomPosts: ...
    def read(
        self, data: bytes
    ) -> tuple[str, str | None, str | None, str, str, str | None, bytes] | None:
        """The plain post that is all of `data`: host, the headers with token and inbox, room,
        message id, pseudonym and ciphertext; `None` if Python has to read it."""

@final
class Contents:
    """Makes digests of messages for rooms with a key of at most 64 bytes."""

    def __new__(cls, key: bytes) -> Contents: ...
    def digest(self, pseudonym: str, ciphertext: bytes) -> int: ...

@final
class Tells:
    """Tells of one sender to one target, in the order in which they came."""

    KIND: ClassVar[str]
    """The type of its messages."""

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

@final
class Ask:
    """One ask."""

    KIND: ClassVar[str]
    """What kind of run it is; its type alone does not tell."""

    @property
    def sender(self) -> str: ...
    @property
    def to(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def deadline(self) -> int | None:
        """When it expires, by the clock of its sender; `None` if it does not."""

    def messages(self) -> list[bytes]:
        """The message as it was received."""

    def key(self) -> bytes:
        """Its key for de-duplication, as `fingerprint` makes it."""

    def body(self, copy_id: bytes, expires_at: int | None) -> bytes:
        """The body of its entry; it expires at `expires_at`, if at all."""

    @staticmethod
    def copies(asks: list[Ask], ids: bytes, to: list[bytes], now_ms: int) -> list[bytes]:
        """Copies of asks; `ids` are concatenated, the addresses of their targets are JSON."""

    @staticmethod
    def answers(asks: list[Ask], ids: bytes, rests: list[bytes], now_ms: int) -> list[bytes]:
        """The frames of the answers to asks, with their headers; `ids` are concatenated.

        `rests` are what their payloads say after the id of the ask.
        """

@final
class Publishes:
    """Publishes of one sender to one topic, in the order in which they came."""

    KIND: ClassVar[str]
    """The type of its messages."""

    @property
    def sender(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def deadline(self) -> int | None:
        """When the first of them expires, by the clock of their sender; `None` if none does."""

    def messages(self) -> list[bytes]:
        """The messages as they were received."""

    @property
    def size(self) -> int:
        """The bytes of its messages."""

    @staticmethod
    def keys(runs: list[Publishes]) -> list[bytes]:
        """The keys of the messages of runs for de-duplication, as `fingerprint` makes them."""

    @staticmethod
    def bodies(runs: list[Publishes], ids: bytes, ahead_ms: list[int]) -> Bodies:
        """The bodies of the entries of runs; `ids` are concatenated, `ahead_ms` says for each run
        what is added to deadlines."""

    @staticmethod
    def answers(
        runs: list[Publishes],
        first_seqs: list[int],
        ids: bytes,
        head: bytes,
        tail: bytes,
        now_ms: int,
    ) -> list[bytes]:
        """The frames of the answers of each run; `ids` are concatenated.

        A payload is `head`, the position, which begins with the first of the run, and `tail`.
        """

@final
class Settles:
    """Acknowledgements that refer to the same subscription, in the order in which they came."""

    KIND: ClassVar[str]
    """The type of its messages."""

    @property
    def subscription_id(self) -> str | None: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def subscription(self) -> str | None: ...
    @property
    def stream(self) -> str | None: ...
    @property
    def epoch(self) -> str | None: ...
    @property
    def count(self) -> int: ...
    def messages(self) -> list[bytes]:
        """The messages as they were received."""

    def rows(self) -> list[tuple[int, int]]:
        """The positions, as the first and the last one of each row without gaps."""

    def pairs(self) -> list[tuple[int, str | None]]:
        """The positions, each with the id of the attempt, if they have ids."""

    def is_first(self, prefix: bytes) -> bool:
        """Does it name only first attempts, whose ids begin so, or none in particular?"""

@final
class Bodies:
    """The bodies of log entries, one after the other."""

    @property
    def count(self) -> int: ...
    def __len__(self) -> int:
        """The bytes of all of them."""

    def sizes(self) -> list[int]:
        """The bytes of each."""

    def body(self, at: int) -> bytes:
        """One of them."""

@final
class Records:
    """Encoded entries of one batch."""

    def __new__(cls, entries: Sequence[Entry | EntryRun], salts: bytes) -> Records:
        """Encode entries and runs of entries; `salts` are concatenated."""

    @property
    def count(self) -> int: ...
    @property
    def data(self) -> bytes:
        """The bytes of all of them."""

    def groups(self, begin: int) -> list[tuple[str, int, int, int, bytes]]:
        """Consecutive entries of a stream: its name and epoch, the first position, the latest time,
        and the positions in a file in which the first entry begins at `begin`, as an array."""

@final
class DedupTable:
    """Records by linear hashing, in each bucket in the order of time."""

    def __new__(cls) -> DedupTable: ...
    @property
    def count(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def find(self, key: bytes) -> tuple[int, KnownAck | tuple[int, Status, int, int]] | None:
        """When it was accepted; its ack, or the delay until the ack, its status and position."""

    def knows_any(self, keys: list[bytes], oldest_kept_ms: int) -> bool:
        """Does it hold one of these keys, accepted then or later?"""

    def is_aside(self, key: bytes) -> bool:
        """Does its ack not fit a record?"""

    def load(self, kept: list[Remembered]) -> None:
        """Fill an empty table with records, oldest first, all at once."""

    def add(
        self, key: bytes, at_ms: int, ack: KnownAck, delay_ms: int, oldest_kept_ms: int
    ) -> bytes:
        """The record that was added."""

    def add_queued(
        self,
        keys: list[bytes],
        at_ms: int,
        delay_ms: int,
        stream: int,
        first_seq: int,
        oldest_kept_ms: int,
    ) -> bytes:
        """Add consecutive messages of a stream that are queued; return their records."""

    def add_delivered(
        self,
        keys: list[bytes],
        at_ms: int,
        delay_ms: int,
        streams: list[int],
        seqs: list[int],
        oldest_kept_ms: int,
    ) -> bytes:
        """Add messages that are delivered, with their streams and positions; return the records."""

    def trim(self, buckets: int, oldest_kept_ms: int) -> None:
        """Cut older records from the next few buckets, going round and round."""
