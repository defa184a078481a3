"""The sentences and words of this program, which tell nothing about whoever uses it.

A report may keep them, and hides what is between them. They are read from the program's own source,
so a new message needs no entry in a list.
"""

from __future__ import annotations

import ast
import errno
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[2]

# They write no logs of a hub and no findings, and have examples with names in them.
_OTHERS: Final = (
    *("actors/api", "cli", "operate/bench", "operate/demo", "testing", "web"),
    *("server/messages/bodies.py", "server/messages/openapi.py"),
)
_COMMANDS: Final = ("cli/hub/serve.py", "cli/setup/doctor.py")
_PLACEHOLDER: Final = re.compile(r"%[+\d.]*([dfrs])")
_SPECIFIED: Final = re.compile(r"[+,\d.]*[defg%]")
_MEASURE: Final = re.compile(
    r"(?:.*_)?(?:_days|batches|behind|bytes|count|entries|epoch|failures|head|len|limit|most|ms|offset"
    r"|position|port|python|rows|s|segments|size|status|version__|wanted)"
)
_WORD: Final = re.compile(r"[A-Za-z_][\w.:-]*")
_LETTERS: Final = re.compile(r"[a-z]{3}")


class Template(msgspec.Struct, frozen=True):
    """A sentence with holes; of each it is known whether a number is in it."""

    literals: tuple[str, ...]
    numeric: tuple[bool, ...]

    @property
    def weight(self) -> int:
        return sum(map(len, self.literals))

    def holes(self, text: str) -> list[str] | None:
        """What fills the holes of this text; `None` if it is another sentence."""
        first, *middle, last = self.literals
        begin, end = len(first), len(text) - len(last)
        if begin > end or not text.startswith(first) or not text.endswith(last):
            return None
        found = []
        for literal in middle:
            at = text.find(literal, begin, end)
            if at < 0:
                return None
            found.append(text[begin:at])
            begin = at + len(literal)
        return [*found, text[begin:end]]


class Phrases(msgspec.Struct, frozen=True):
    """What the program may say."""

    words: frozenset[str]
    sentences: frozenset[str]
    templates: tuple[Template, ...]

    def template_of(self, text: str) -> tuple[Template, list[str]] | None:
        """The template that explains most of a text, and what is in its holes."""
        for template in self.templates:
            holes = template.holes(text)
            if holes is not None:
                return template, holes
        return None


@cache
def phrases() -> Phrases:
    """Everything, read from the source once."""
    words: set[str] = set()
    sentences = {os.strerror(code) for code in errno.errorcode}
    templates: set[Template] = set()
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                words.add(node.target.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if _WORD.fullmatch(node.value):
                    words.add(node.value)
                elif _PLACEHOLDER.search(node.value):
                    templates.add(_of_format(node.value))
                elif " " in node.value:
                    sentences.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                templates.add(_of_fstring(node))
    told = [one for one in templates if any(map(_LETTERS.search, one.literals))]
    told.sort(key=lambda one: one.weight, reverse=True)
    return Phrases(frozenset(words), frozenset(sentences), tuple(told))


def _sources() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name in _COMMANDS or not name.startswith(_OTHERS):
            yield path


def _of_format(text: str) -> Template:
    """A text of the logging module."""
    literals, kinds = _PLACEHOLDER.split(text)[::2], _PLACEHOLDER.findall(text)
    return Template(tuple(literals), tuple(kind in "df" for kind in kinds))


def _of_fstring(node: ast.JoinedStr) -> Template:
    literals, numeric = [""], []
    for part in node.values:
        if isinstance(part, ast.Constant):
            literals[-1] += str(part.value)
        elif isinstance(part, ast.FormattedValue):
            numeric.append(_is_measured(part))
            literals.append("")
    return Template(tuple(literals), tuple(numeric))


def _is_measured(part: ast.FormattedValue) -> bool:
    if isinstance(part.format_spec, ast.JoinedStr):
        spec = part.format_spec.values
        first = spec[0].value if spec and isinstance(spec[0], ast.Constant) else ""
        return _SPECIFIED.fullmatch(str(first)) is not None
    value = part.value.orelse if isinstance(part.value, ast.IfExp) else part.value
    if isinstance(value, ast.Call):
        value = value.func
    elif isinstance(value, ast.Subscript):
        value = value.value
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return part.conversion < 0 and _MEASURE.fullmatch(str(name)) is not None
