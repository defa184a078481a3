"""Write `web/answers.ts`: the answers of the admin API as types for the dashboard.

    python -m tools.web_types

They follow from the structs of the server, which are read as text and not imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "web" / "answers.ts"
_SERVER: Final = ROOT / "src" / "signalhub" / "server"
SOURCES: Final = (_SERVER / "admin" / "answers.py", _SERVER / "history" / "answers.py")
_HEADER: Final = "// Written by tools/web_types.py from the structs of the server.\n"
_SIMPLE: Final = {
    **dict.fromkeys(("int", "float"), "number"),
    **dict.fromkeys(("object", "Any"), "unknown"),
    "str": "string",
    "bool": "boolean",
}


def camel(name: str) -> str:
    """`log_first` as it travels."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def type_of(node: ast.expr) -> str:
    """Return the TypeScript type of an annotation."""
    match node:
        case ast.Constant(value=None):
            return "null"
        case ast.Constant(value=str(text)):
            return type_of(ast.parse(text, mode="eval").body)
        case ast.Name(id=name):
            return _SIMPLE.get(name, name)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return f"{type_of(left)} | {type_of(right)}"
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            inner = type_of(item)
            return f"({inner})[]" if "|" in inner else f"{inner}[]"
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, value])):
            return f"Record<{type_of(key)}, {type_of(value)}>"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=values)):
            return " | ".join(f"'{ast.literal_eval(value)}'" for value in values)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=value):
            return f"'{ast.literal_eval(value)}'"
        case _:
            raise TypeError(f"no TypeScript type for {ast.unparse(node)}")


def interface(struct: ast.ClassDef, known: set[str]) -> str:
    """Return the declaration of a struct."""
    bases = [one.id for one in struct.bases if isinstance(one, ast.Name) and one.id in known]
    may_miss = any(
        one.arg == "omit_defaults" and ast.literal_eval(one.value) for one in struct.keywords
    )
    lines = [f"export interface {struct.name}{f' extends {bases[0]}' if bases else ''} {{"]
    for field in struct.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            name = renamed(field.value) or camel(field.target.id)
            mark = "?" if may_miss and field.value is not None else ""
            lines.append(f"  readonly {name}{mark}: {type_of(field.annotation)};")
    return "\n".join([*lines, "}"])


def renamed(value: ast.expr | None) -> str | None:
    """Return the name given by `msgspec.field(name=…)`."""
    if isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg == "name":
                return str(ast.literal_eval(keyword.value))
    return None


def declarations(text: str) -> Iterator[tuple[str, str]]:
    """Return every declaration of a module with its name, those without members left out."""
    body = ast.parse(text).body
    structs = [one for one in body if isinstance(one, ast.ClassDef)]
    with_members = {
        one.name for one in structs if any(isinstance(line, ast.AnnAssign) for line in one.body)
    }
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name in with_members:
            yield node.name, interface(node, with_members)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if isinstance(node.value, ast.Subscript):
                yield name, f"export type {name} = {type_of(node.value)};"


def written(sources: tuple[Path, ...] = SOURCES) -> str:
    """Return the whole file; a name that both modules have must mean the same."""
    found: dict[str, str] = {}
    for source in sources:
        for name, text in declarations(source.read_text(encoding="utf-8")):
            if found.setdefault(name, text) != text:
                raise ValueError(f"{name} is declared twice")
    return "\n".join([_HEADER, *(f"{text}\n" for text in found.values())])


if __name__ == "__main__":
    TARGET.write_text(written(), encoding="utf-8")
