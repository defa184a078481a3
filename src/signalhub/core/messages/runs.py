"""Runs: messages of one read that can be handled together.

The native part finds them. The core decides about a run as about a message, and may have its
messages handled one by one instead.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from signalhub.wire.entry import Bodies


class Run(Protocol):
    """Messages of one type, with usual names and values."""

    KIND: ClassVar[str]
    """Their type; of an ask, which is a run by itself, `ask`."""

    @property
    def count(self) -> int: ...

    def messages(self) -> list[bytes]:
        """The messages as they were received."""


class SentRun(Run, Protocol):
    """Messages of one sender."""

    @property
    def sender(self) -> str: ...

    @property
    def deadline(self) -> int | None:
        """When the first of them expires, by the clock of their sender; `None` if none does."""


class AckRun(Run, Protocol):
    """Acknowledgements that refer to the same subscription."""

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

    def rows(self) -> list[tuple[int, int]]:
        """The positions, as the first and the last one of each row without gaps."""

    def pairs(self) -> list[tuple[int, str | None]]:
        """The positions, each with the id of the attempt, if they have ids."""

    def is_first(self, prefix: bytes, /) -> bool:
        """Does it name only first attempts, whose ids begin so, or none in particular?"""


class TellRun(SentRun, Protocol):
    """Tells to one target without fences."""

    @property
    def to(self) -> str: ...

    def deadlines(self) -> list[int | None]:
        """When each of them expires."""

    def copies(self, ids: bytes, sender: bytes, to: bytes, now_ms: int) -> bytes:
        """The frames of their copies; `ids` are concatenated, both addresses are JSON."""


class AskRun(SentRun, Protocol):
    """One ask without fences."""

    @property
    def to(self) -> str: ...
    @property
    def id(self) -> str: ...

    def key(self) -> bytes:
        """Its key for de-duplication."""

    def body(self, copy_id: bytes, expires_at: int | None, /) -> bytes:
        """The body of its entry."""

    @staticmethod
    def copies(asks: list[Any], ids: bytes, to: list[bytes], now_ms: int, /) -> list[bytes]:
        """The copies of several; `ids` are concatenated, the addresses of targets are JSON."""

    @staticmethod
    def answers(asks: list[Any], ids: bytes, rests: list[bytes], now_ms: int, /) -> list[bytes]:
        """The frames of the answers to several; `ids` are concatenated.

        `rests` are what their payloads say after the id of the ask.
        """


class PublishRun(SentRun, Protocol):
    """Publishes to one topic without headers and delay."""

    @property
    def topic(self) -> str: ...

    @property
    def size(self) -> int:
        """The bytes of its messages."""

    @staticmethod
    def keys(runs: list[Any], /) -> list[bytes]:
        """The keys of the messages of runs for de-duplication."""

    @staticmethod
    def bodies(runs: list[Any], ids: bytes, ahead_ms: list[int], /) -> Bodies:
        """The bodies of the entries of runs; `ids` are concatenated, `ahead_ms` says for each run
        what is added to deadlines."""

    @staticmethod
    def answers(
        runs: list[Any],
        first_seqs: list[int],
        ids: bytes,
        head: bytes,
        tail: bytes,
        now_ms: int,
        /,
    ) -> list[bytes]:
        """The frames of the answers of each run; `ids` are concatenated.

        A payload is `head`, the position, which begins with the first of the run, and `tail`.
        """
