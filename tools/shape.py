"""The shape of the code in figures: sizes, names, ownership, tests. `make shape` prints them.

How each figure is measured:

* Modules are the `*.py` files of `src/signalhub` without `__init__.py`; their length is in lines. A
  folder is counted with the modules directly in it. The plan counts `core/` of 0.1.0 as 68 modules,
  which is 47 there, 19 in `core/rooms/` and two `__init__.py`.
* A repeated file name or class name counts once, however often it occurs; classes inside classes
  and functions count too.
* Participles are file names whose last word ends in -ing or -ed and that are not nouns of the
  glossary (`NOUNS`).
* Functions that take the hub have a parameter `hub`; methods count. The plan's 184 of 367
  for 0.1.0 leaves out methods other than those of receipts, and `core/rooms/`.
* A receipt is a class of core, `Hub` excepted, with a method `committed` or `refused` that is given
  the hub (the plan says 31 for 0.1.0). Classes that have such a method without it are shown behind
  the slash.
* A write is an assignment to a field (`x.f = …`, `x.f += …`, `del x.f`), to something in it
  (`x.f[k] = …`), or a call of a method that changes it (`x.f.append(…)`). The receiver is known by
  its annotation, by the annotation of the function or field it comes from, or by being called like
  the class (`subscription`, `flight.subscription`). Only `core/` is searched for writes to a
  `Subscription`, only `server/` for writes to a `Connection`. In 0.1.0, where folders are flat, a
  file stands for a folder; the plan says nine modules there and not ten, without calls that change.
* Module changes are counted with a profiler while a durable publish is committed, delivered and
  acknowledged on the in-memory shell: every call into another module of ours and every return from
  one is a change, those of the fake clock excepted. The plan's 231 for 0.1.0 and the 120 it wants
  are those of a hub with sockets, of whose changes a quarter belong to the shell; the value wanted
  here is scaled alike.
* Test ids are what pytest collects. Test lines are all lines of `tests/**/*.py`.
* Comments are lines that hold a comment; code is every line that holds anything else but blanks,
  docstrings included.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NOUNS = {"deferred", "incoming", "pacing", "pending", "sealing"}
CHANGES = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"),
    *("popleft", "remove", "setdefault", "sort", "update"),
}
Functions = ast.FunctionDef | ast.AsyncFunctionDef
COLLECTED = re.compile(r"^(\d+) tests? collected", re.MULTILINE)


class Figure(NamedTuple):
    """One row of the table."""

    name: str
    value: str
    wanted: str


class Tree:
    """A checkout of the project."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "src" / "signalhub"
        self.modules = [
            path for path in sorted(self.source.rglob("*.py")) if path.name != "__init__.py"
        ]
        self.core = [path for path in self.modules if path.is_relative_to(self.source / "core")]

    def folder_of(self, path: Path) -> str:
        return path.parent.relative_to(self.source).as_posix()

    def run(self, *arguments: str) -> str:
        """What Python prints, with the modules of this tree."""
        paths = os.pathsep.join((str(self.root / "src"), str(self.root)))
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def sizes(tree: Tree) -> Iterator[Figure]:
    lengths = [lines(path) for path in tree.modules]
    folders = Counter(map(tree.folder_of, tree.modules))
    largest = ", ".join(f"{name} {count}" for name, count in folders.most_common(4))
    short = sum(length < 100 for length in lengths)
    long = sum(length > 300 for length in lengths)
    yield Figure("modules", str(len(tree.modules)), "about 250")
    yield Figure("modules per folder", largest, "at most 13, log excepted")
    yield Figure("module length, median", f"{statistics.median(lengths):g}", "200 to 250")
    yield Figure("modules under 100 / over 300 lines", f"{short} / {long}", "few / as needed")


def names(tree: Tree) -> Iterator[Figure]:
    files = Counter(path.stem for path in tree.modules)
    classes = Counter(
        node.name
        for path in sorted(tree.source.rglob("*.py"))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
    )
    participles = [
        path.stem
        for path in tree.modules
        if re.search("(?:ing|ed)$", path.stem) and path.stem not in NOUNS
    ]
    yield Figure("file names used more than once", str(repeated(files)), "one word, one meaning")
    yield Figure(
        "class names used more than once",
        f"{repeated(classes)} of {len(classes)}",
        "one word, one meaning",
    )
    yield Figure("participles as file names", str(len(participles)), "0")


def repeated(names: Counter[str]) -> int:
    return sum(count > 1 for count in names.values())


def ownership(tree: Tree) -> Iterator[Figure]:
    functions = [
        node
        for path in tree.core
        if path.name != "hub.py"
        for node in ast.walk(parsed(path))
        if isinstance(node, Functions)
    ]
    with_hub = sum(map(takes_hub, functions))
    yield Figure("functions in core that take the hub", f"{with_hub} of {len(functions)}", "0")
    receipts = list(receipts_of(tree))
    given_hub = sum(receipts)
    yield Figure(
        "receipts given the hub / not", f"{given_hub} / {len(receipts) - given_hub}", "a handful"
    )
    for owner, searched in (("Subscription", tree.core), ("Connection", server(tree))):
        writes = foreign_writes(tree, owner, searched)
        yield Figure(
            f"foreign writes to {owner}",
            f"{writes.total()} in {len(writes)} modules" if writes else "0",
            "0",
        )


def takes_hub(function: Functions) -> bool:
    given = function.args
    return any(one.arg == "hub" for one in (*given.posonlyargs, *given.args, *given.kwonlyargs))


def receipts_of(tree: Tree) -> Iterator[bool]:
    """For each class that hears of commits: is it given the hub?"""
    for path in tree.core:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and node.name != "Hub":
                told = [
                    one
                    for one in node.body
                    if isinstance(one, Functions) and one.name in ("committed", "refused")
                ]
                if told:
                    yield any(map(takes_hub, told))


def server(tree: Tree) -> list[Path]:
    return [path for path in tree.modules if path.is_relative_to(tree.source / "server")]


def foreign_writes(tree: Tree, owner: str, searched: list[Path]) -> Counter[str]:
    """How often modules outside the owner's folder write its fields."""
    (home, declaration) = next(
        (path, node)
        for path in searched
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef) and node.name == owner
    )
    is_flat = tree.folder_of(home) in ("core", "server")
    fields = fields_of(declaration)
    givers = givers_of(searched, owner)
    found: Counter[str] = Counter()
    for path in searched:
        is_own = path == home if is_flat else path.parent == home.parent
        if not is_own:
            count = writes_in(parsed(path), owner, fields, givers)
            if count:
                found[path.relative_to(tree.source).as_posix()] = count
    return found


def fields_of(declaration: ast.ClassDef) -> set[str]:
    """Slots, annotated fields, and what methods assign to `self`."""
    found = set()
    for node in ast.walk(declaration):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def givers_of(searched: list[Path], owner: str) -> set[str]:
    """Names of functions and fields whose annotation is the owner."""
    found = set()
    for path in searched:
        for node in ast.walk(parsed(path)):
            if isinstance(node, Functions) and is_named(node.returns, owner):
                found.add(node.name)
            elif isinstance(node, ast.AnnAssign) and is_named(node.annotation, owner):
                target = node.target
                if isinstance(target, ast.Attribute):
                    found.add(target.attr)
    return found


def is_named(annotation: ast.expr | None, owner: str) -> bool:
    """Is it the class, with or without parameters, or the class or nothing?"""
    if annotation is None:
        return False
    text = ast.unparse(annotation).strip("'")
    return re.fullmatch(rf"{owner}(?:\[[^|]*\])?(?: \| None)?", text) is not None


def writes_in(module: ast.Module, owner: str, fields: set[str], givers: set[str]) -> int:
    total = 0
    for function in ast.walk(module):
        if isinstance(function, Functions):
            known = receivers_in(function, owner, givers)
            total += sum(
                is_receiver(target.value, owner, known, givers)
                for node in own_nodes(function)
                for target in written(node)
                if target.attr in fields
            )
    return total


def own_nodes(function: Functions) -> Iterator[ast.AST]:
    """What is in a function but not in functions inside it."""
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Functions | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def receivers_in(function: Functions, owner: str, givers: set[str]) -> dict[str, bool]:
    """Local names that are the owner, and such that are annotated as something else."""
    given = function.args
    known = {
        one.arg: is_named(one.annotation, owner)
        for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)
        if one.annotation is not None
    }
    for node in own_nodes(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            known[node.target.id] = is_named(node.annotation, owner)
        elif isinstance(node, ast.Assign) and is_given(node.value, givers):
            known |= {one.id: True for one in node.targets if isinstance(one, ast.Name)}
    return known


def is_given(value: ast.expr, givers: set[str]) -> bool:
    if isinstance(value, ast.Call):
        value = value.func
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", None)
    return name in givers


def is_receiver(value: ast.expr, owner: str, known: dict[str, bool], givers: set[str]) -> bool:
    if isinstance(value, ast.Name):
        return known.get(value.id, value.id == owner.lower())
    if isinstance(value, ast.Attribute):
        return value.attr == owner.lower() or value.attr in givers
    return False


def written(node: ast.AST) -> Iterator[ast.Attribute]:
    """The fields that a node writes, or writes into."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        yield node
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        if isinstance(node.value, ast.Attribute):
            yield node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        field = node.func.value
        if node.func.attr in CHANGES and isinstance(field, ast.Attribute):
            yield field


PUBLISH = """
import importlib, sys
from pathlib import Path
import signalhub

try:
    memory = importlib.import_module("tests.support.memory.shell")
except ImportError:
    memory = importlib.import_module("tests.memory_shell")
SOURCE = str(Path(signalhub.__file__).parent)
CLOCK = sys.modules["signalhub.testing.clock"].__file__
shell = memory.MemoryShell()
writer = shell.join("@(local/writer)")
reader = shell.connect("@(local/reader)", metadata=memory.SETTLING_HELLO)
named = {"topic": "t", "subscription": "s"}
writer.ask("hub:topic_create", {"topic": "t", "durable": True})
reader.ask("hub:subscribe", named | {"from": "earliest"})
reader.take()

def publish():
    given = {"topic": "t", "type": "news", "data": 1, "durable": True}
    reply = writer.ask("hub:publish", given)
    assert reply["type"] == "hub:published", reply
    (copy,) = reader.heard()
    reply = reader.ask("hub:ack", named | {"seq": copy["metadata"]["delivery"]["seq"]})
    assert reply["type"] == "hub:acked", reply

changes, now = 0, None
def changed(frame, event, argument):
    global changes, now
    if event == "return":
        left, frame = frame, frame.f_back
        if not left.f_code.co_filename.startswith(SOURCE):
            return
    elif event != "call":
        return
    if frame is not None:
        module = frame.f_code.co_filename
        if module.startswith(SOURCE) and module not in (now, CLOCK):
            changes, now = changes + 1, module

publish()
sys.setprofile(changed)
publish()
sys.setprofile(None)
print(changes)
"""


def hot_path(tree: Tree) -> Iterator[Figure]:
    changes = tree.run("-c", PUBLISH).strip()
    yield Figure("module changes of one durable publish", changes, "under 90")


def tests(tree: Tree) -> Iterator[Figure]:
    collected = tree.run("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    count = COLLECTED.search(collected)
    assert count is not None, collected[-500:]
    total = sum(map(lines, (tree.root / "tests").rglob("*.py")))
    yield Figure("test ids", count[1], "")
    yield Figure("test lines", str(total), "under 60000")


def comments(tree: Tree) -> Iterator[Figure]:
    notes = code = 0
    blank = {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENCODING, tokenize.ENDMARKER),
    }
    for path in sorted(tree.source.rglob("*.py")):
        held: set[int] = set()
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                notes += token.type == tokenize.COMMENT
                if token.type not in blank:
                    held.update(range(token.start[0], token.end[0] + 1))
        code += len(held)
    yield Figure("comments per line of code", f"{notes / code:.3f}", "where a reader asks why")


MEASURES = (sizes, names, ownership, hot_path, tests, comments)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the shape of the code in figures.")
    parser.add_argument("--tree", type=Path, default=ROOT, help="measure this checkout")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    tree = Tree(options.tree.resolve())
    figures = [figure for measure in MEASURES for figure in measure(tree)]
    if options.json:
        print(json.dumps([figure._asdict() for figure in figures], indent=2))
    else:
        widths = [max(len(figure[column]) for figure in figures) for column in (0, 1)]
        for figure in figures:
            print(
                f"{figure.name:{widths[0]}}  {figure.value:{widths[1]}}  {figure.wanted}".rstrip()
            )


if __name__ == "__main__":
    main()
