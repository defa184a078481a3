"""What commands print: JSON for programs, tables and colour on a terminal, plain lines in a pipe.

Names and payloads are untrusted: nothing unprintable reaches the terminal, and nothing is
interpreted as markup.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import msgspec
from cyclopts import Parameter

from signalhub.cli.terminal.sentences import width_of, wrapped

if TYPE_CHECKING:
    from rich.console import Console

AsJson = Annotated[
    bool,
    Parameter(
        name="--json",
        negative=(),
        show_default=False,
        help="Print results and errors as JSON lines.",
    ),
]


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """One column of a table; `name` is the member of the JSON object, `title` is for people.

    A column that `is_whole` is never wrapped. Those that are `spare` are omitted on a terminal that
    is too narrow: the one with the highest number first, and of equal ones the last. Words longer
    than `word_chars` may be broken: payloads, and names that nobody reads aloud.
    """

    name: str
    title: str = ""
    style: str = ""
    is_whole: bool = False
    spare: int = 0
    word_chars: int = 40

    @property
    def head(self) -> str:
        return self.title or self.name


class Output:
    """Standard output, or another stream, in the form that suits its reader."""

    def __init__(self, as_json: bool, stream: TextIO | None = None) -> None:
        self.as_json = as_json
        self._stream = sys.stdout if stream is None else stream
        self.is_terminal = self._stream.isatty()

    @cached_property
    def console(self) -> Console:
        from rich.console import Console

        return Console(
            file=self._stream,
            highlight=False,
            markup=False,
            no_color=bool(os.environ.get("NO_COLOR")),
        )

    def fact(self, facts: Mapping[str, Any], sentence: str) -> None:
        """One result: a JSON object for programs, a sentence for people."""
        width = None if self.as_json else width_of(self._stream)
        self.line(facts, [(sentence if width is None else wrapped(sentence, width), "")])

    def line(self, facts: Mapping[str, Any], parts: Sequence[tuple[str, str]]) -> None:
        """One event: a JSON object, or parts; a terminal gets spaces between them, a pipe tabs."""
        if self.as_json:
            self._print(msgspec.json.encode(facts, enc_hook=str).decode())
        elif self.is_terminal:
            from rich.text import Text

            text = Text(" ").join(Text(part, style=style) for part, style in parts if part)
            self.console.print(text, soft_wrap=True)
        else:
            self._print("\t".join(part for part, _ in parts))

    def table(
        self,
        columns: Sequence[OutputColumn],
        rows: Sequence[Mapping[str, Any]],
        *,
        if_empty: str = "",
    ) -> None:
        """Rows with the same members; on a terminal `if_empty` is shown when there are none."""
        if self.as_json:
            for row in rows:
                self.line(row, [])
        elif not self.is_terminal:
            for row in rows:
                self.line(row, [(shown(row[column.name]), "") for column in columns])
        elif rows:
            self._draw(columns, rows)
        elif if_empty:
            self.line({}, [(if_empty, "dim")])

    def sheet(self, facts: Mapping[str, Any]) -> None:
        """One thing with its properties: a JSON object for programs, one row each for people."""
        if self.as_json:
            self.line(facts, [])
            return
        rows = [
            {"name": name, "value": "" if value is None else value} for name, value in facts.items()
        ]
        self.table((OutputColumn("name", style="bold"), OutputColumn("value")), rows)

    def _draw(self, columns: Sequence[OutputColumn], rows: Sequence[Mapping[str, Any]]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        cells = {one.name: [shown(row[one.name]) for row in rows] for one in columns}
        fit = fitted(columns, cells, self.console.width)
        if fit is None:
            return self._draw_records(columns, cells, len(rows))
        kept, widths = fit
        table = Table(
            box=SIMPLE_HEAD,
            padding=PADDING,
            pad_edge=False,
            header_style="dim",
            caption_justify="left",
        )
        for column, width in zip(kept, widths, strict=True):
            table.add_column(
                column.head,
                style=column.style,
                overflow="fold",
                width=width,
                no_wrap=column.is_whole,
            )
        for texts in zip(*(cells[column.name] for column in kept), strict=True):
            table.add_row(*map(Text, texts))
        if left_out := [column.head for column in columns if column not in kept]:
            table.caption = f"omitted: {'; '.join(left_out)} (--json prints all)"
        self.console.print(table)

    def _draw_records(self, columns: Sequence[OutputColumn], cells: Cells, count: int) -> None:
        """Rows one below the other, for a terminal that is too narrow for a table."""
        from rich.text import Text

        indent = max(len(column.head) for column in columns) + _BETWEEN
        for row in range(count):
            if row:
                self.console.print()
            for column in columns:
                text = Text(column.head.ljust(indent), style="dim")
                text.append(cells[column.name][row], style=column.style)
                self.console.print(text, soft_wrap=True)

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def counted(count: int, noun: str) -> str:
    """`1 message`, `2 messages`, `2 entries`."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun.removesuffix('y')}ies" if noun.endswith("ry") else f"{count} {noun}s"


def shown(value: Any) -> str:
    """A value on one line: printable text as it is, everything else as JSON."""
    words = value if isinstance(value, list | tuple) else [value]
    if all(isinstance(word, str) and word.isprintable() for word in words):
        return ", ".join(words)
    text = msgspec.json.encode(value, enc_hook=str).decode()
    # JSON does not escape all control and direction characters; a terminal would obey them.
    return text if text.isprintable() else json.dumps(value, separators=(",", ":"), default=str)


# What a table adds to the width of its columns.
PADDING: Final = (0, 1, 0, 0)
_EDGES: Final = 2
_BETWEEN: Final = 2

Cells = Mapping[str, Sequence[str]]


def fitted(
    columns: Sequence[OutputColumn], cells: Cells, room: int
) -> tuple[list[OutputColumn], list[int]] | None:
    """The columns to show and their widths; `None` if not even the necessary ones fit."""
    kept = list(columns)
    spare = sorted((one for one in columns if one.spare), key=lambda column: column.spare)
    while (widths := _widths(kept, cells, room)) is None:
        if not spare:
            return None
        kept.remove(spare.pop())
    return kept, widths


def _widths(columns: Sequence[OutputColumn], cells: Cells, room: int) -> list[int] | None:
    """Widths that fit, narrow columns served first; `None` if words would be broken."""
    wanted = [_longest([column.head, *cells[column.name]]) for column in columns]
    widths = [_least(column, cells[column.name]) for column in columns]
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


def _least(column: OutputColumn, texts: Sequence[str]) -> int:
    """The narrowest width at which no word is broken."""
    if column.is_whole:
        return _longest([column.head, *texts])
    words = (word for text in texts for word in text.split())
    return max(_longest(column.head.split()), min(column.word_chars, _longest(words)))


def _longest(texts: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, texts), default=0)
