"""Which columns of a table a terminal has room for, and how wide each may be.

Left to itself, rich takes from all columns alike and breaks `pending` into `pendi` and `ng`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from signalhub.cli.output import Column

# Longer words than a host's usual name are names and payloads, which may be broken; shorter ones
# only if all else fails.
_WORD_CHARS: Final = 13
_SHORT_WORD_CHARS: Final = (10, 8)
# What a table adds to its columns, as it is drawn.
PADDING: Final = (0, 1, 0, 0)
_EDGES: Final = 2
_BETWEEN: Final = 2

Cells = Mapping[str, Sequence[str]]


def fitted(
    columns: Sequence[Column], cells: Cells, room: int
) -> tuple[list[Column], list[int | None]]:
    """The columns to show, and their widths; without widths if words have to be broken anyway."""
    for kept, word_chars in _attempts(columns):
        widths = _widths(kept, cells, room, word_chars)
        if widths is not None:
            return kept, [*widths]
    return kept, [None] * len(kept)


def _attempts(columns: Sequence[Column]) -> Iterator[tuple[list[Column], int]]:
    """Columns, and how long words must be to be broken: from all that is wanted to the least."""
    kept = list(columns)
    yield kept, _WORD_CHARS
    for spare in reversed([column for column in columns if column.is_spare]):
        kept = [column for column in kept if column is not spare]
        yield kept, _WORD_CHARS
    for word_chars in _SHORT_WORD_CHARS:
        yield kept, word_chars


def _widths(
    columns: Sequence[Column], cells: Cells, room: int, word_chars: int
) -> list[int] | None:
    """As wide as there is room, the narrowest columns first; `None` if words would be broken."""
    wanted = [_longest([column.head, *cells[column.name]]) for column in columns]
    widths = [_least(column, cells[column.name], word_chars) for column in columns]
    left = room - sum(widths) - _EDGES - _BETWEEN * (len(columns) - 1)
    if left < 0:
        return None
    by_want = sorted(range(len(columns)), key=lambda index: wanted[index] - widths[index])
    for served, index in enumerate(by_want):
        share = left // (len(columns) - served)
        more = min(share, wanted[index] - widths[index])
        widths[index] += more
        left -= more
    return widths


def _least(column: Column, texts: Sequence[str], word_chars: int) -> int:
    if column.is_whole:
        return _longest([column.head, *texts])
    words = (word for text in texts for word in text.split())
    return max(_longest([column.head]), min(word_chars, _longest(words)))


def _longest(texts: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, texts), default=0)
