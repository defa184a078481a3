"""Sentences for people: wrapped at words to the width of a terminal, whole in a pipe.

What a user may copy stays on one line: commands in backticks, quoted text, an option with its
value.
Paths and URLs are words, and a word is never broken.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Final, TextIO

_COLUMNS: Final = 80
_COLUMNS_MIN: Final = 20
_INDENT: Final = "  "
# A command, a quotation that is not an apostrophe, an option and what follows it, or a word.
_PIECE: Final = re.compile(
    r"""[^\s`]*`[^`]+`\S*|\(?'[^']+'(?!\w)\S*|\(?"[^"]+"\S*|--[\w-]*\w\s+[^\s`]+|\S+"""
)


def say(sentence: str, *, prefix: str = "") -> None:
    """Print a sentence on standard error; each of its lines begins with the prefix."""
    width = width_of(sys.stderr)
    for line in sentence.splitlines():
        text = f"{prefix}{line}"
        print(text if width is None else wrapped(text, width), file=sys.stderr, flush=True)


def clause(sentence: str) -> str:
    """A sentence that others follow in the same one: without its full stop."""
    return sentence.rstrip(".")


def continued(sentence: str) -> str:
    """A sentence that follows others in the same one: its first word, unless a name, is small."""
    word = sentence.split(" ", 1)[0]
    return sentence[:1].lower() + sentence[1:] if word.isalpha() and word.istitle() else sentence


def width_of(stream: TextIO) -> int | None:
    """The columns of a terminal; `None` for anything else."""
    if not stream.isatty():
        return None
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal():
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most this width, those after the first indented.

    A piece that is longer than a line has a line of its own.
    """
    from rich.cells import cell_len

    if cell_len(text) <= width or width < _COLUMNS_MIN:
        return text
    lines: list[str] = []
    line = ""
    for piece in _pieces(text):
        if line.strip() and cell_len(line) + 1 + cell_len(piece) > width:
            lines.append(line)
            line = _INDENT + piece
        else:
            line = f"{line} {piece}" if line else piece
    return "\n".join([*lines, line])


def _pieces(text: str) -> Iterator[str]:
    for found in _PIECE.finditer(text):
        yield found.group()
