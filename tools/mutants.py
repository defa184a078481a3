"""Mutants: small faults planted one at a time, to see whether the tests notice them.

    python tools/mutants.py choose --tree OLD --count 80 --seed 12 > mutants.json
    python tools/mutants.py run mutants.json --tree OLD --results old.jsonl --until 23:15
    python tools/mutants.py run mutants.json --tree NEW --results new.jsonl --before old.jsonl
    python tools/mutants.py report mutants.json old.jsonl new.jsonl
    python tools/mutants.py locate mutants.json --tree NEW

A mutant is a change within one line: a flipped comparison, a negated condition, `and` for `or`, a
number off by one, a statement left out, a result that is `None`. It is chosen at random, first the
line and then the change, with a seed.

The same mutant can be tried on another tree: it is looked for by the text of its line, the lines
around it and the name of its function, in every file. A line that was rewritten is not found; then
the list has to say where the mutant is now: `moved` with the `path`, the `text` of the line, the
`nth` of several such lines, and what stands there `before` and `after`. No path: the code is gone.

A run copies the tree, plants a mutant, runs the suites of its area from the fastest to the slowest
and stops at the first test that fails. That test must pass without the mutant, or it does not
count. All mutants go through one stage before any goes through the next, so a run that is stopped
early has tried each of them. Results are appended line by line, and another run continues there.
With the results of a run before, the files that noticed a mutant then come first.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, pairwise
from operator import eq
from pathlib import Path

AREAS = ("core", "log", "actors", "client", "pipeline")
# The suites that can notice a fault in an area, the fastest first. What a tree lacks is left out.
STAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "core": (
        ("tests/unit/core",),
        ("tests/unit/server", "tests/unit/test_*.py", "tests/unit/*"),
        ("tests/property", "tests/simulation"),
        ("tests/spec",),
        ("tests/faults", "tests/integration"),
        ("tests/chaos",),
        ("tests/pipeline",),
    ),
    "log": (
        ("tests/unit/log",),
        ("tests/unit/test_*.py", "tests/unit/*"),
        ("tests/faults",),
        ("tests/spec/test_*restart*.py", "tests/spec/test_durable_*.py", "tests/spec/rooms"),
        ("tests/integration",),
        ("tests/chaos",),
        ("tests/pipeline",),
    ),
    "actors": (
        ("tests/unit/actors",),
        ("tests/simulation/test_actor*.py", "tests/unit/test_*.py"),
        ("tests/integration/test_actor*.py", "tests/integration/test_cli_actor*.py"),
        ("tests/chaos/test_actor*.py", "tests/chaos/test_shop*.py"),
        ("tests/integration/test_examples.py",),
    ),
    "client": (
        ("tests/unit/test_client_*.py", "tests/unit/client"),
        ("tests/unit/test_*.py", "tests/unit/*"),
        ("tests/integration/test_client*.py", "tests/property"),
        ("tests/integration",),
        ("tests/chaos",),
    ),
    "pipeline": (
        ("tests/unit/test_lake_*.py", "tests/unit/pipeline", "tests/unit/test_*.py"),
        ("tests/pipeline/test_s*.py", "tests/pipeline/test_[!s]*.py", "tests/pipeline/*"),
    ),
}
STAGE_SECONDS_MAX = 1_800
# The lines above and below that tell a line from others with the same text.
NEIGHBOURS = 4
COPIED = ("src", "tests", "docs", "bench", "examples", "deploy", "tools")
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/[^\s\[]+(?:\[.*?\](?= - |$))?)", re.MULTILINE)

FLIPPED = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"is not": "is", "is": "is not", "not in": "in", "in": "not in"},
}
COMPARISON = re.compile(r"<=|>=|==|!=|<|>|\bis\s+not\b|\bis\b|\bnot\s+in\b|\bin\b")
JOINED = {"and": "or", "or": "and"}


@dataclass(frozen=True)
class Mutant:
    """One change of one line."""

    id: str
    path: str
    line: int
    function: str
    text: str
    start: int
    before: str
    after: str
    operator: str
    above: list[str]
    below: list[str]
    moved: dict[str, str] = field(default_factory=dict)

    @property
    def area(self) -> str:
        return self.path.split("/")[2]


@dataclass(frozen=True)
class Place:
    """Where a mutant lives in a tree."""

    path: str
    line: int
    start: int
    before: str
    after: str


class Change(ast.NodeVisitor):
    """Collects every change that can be made in a module."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.lines = source.splitlines()
        self.found: list[Mutant] = []
        self._within: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._within.append(node.name)
        for one in node.body:
            self.visit(one)
        self._within.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._within.append(node.name)
        for one in node.body:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.visit(one)
        self._within.pop()

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self._negated(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, right in pairwise(operands):
            self._between(left, right, COMPARISON, FLIPPED, "comparison flipped")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        words = re.compile(r"\b(?:and|or)\b")
        for left, right in pairwise(node.values):
            self._between(left, right, words, JOINED, "and for or")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add | ast.Sub) and not self._is_text(node):
            signs = re.compile(r"[+-]")
            self._between(node.left, node.right, signs, {"+": "-", "-": "+"}, "plus for minus")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replaced(node, self._source(node.operand), "not removed")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replaced(node, str(not node.value), "truth flipped")
        elif isinstance(node.value, int):
            self._replaced(node, str(node.value + 1), "one more")
            if node.value > 0:
                self._replaced(node, str(node.value - 1), "one less")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and ast.unparse(node.value) != "None":
            self._replaced(node, "return None", "result dropped")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call | ast.Await):
            self._replaced(node, "pass", "statement removed")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(one, ast.Attribute | ast.Subscript) for one in node.targets):
            self._replaced(node, "pass", "statement removed")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replaced(node, "pass", "statement removed")
        self.visit(node.value)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replaced(node, "pass", "statement removed")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """The wording of a message is left alone."""

    def _is_text(self, node: ast.BinOp) -> bool:
        texts = (ast.JoinedStr, ast.Tuple, ast.List)
        return any(
            isinstance(one, texts)
            or (isinstance(one, ast.Constant) and isinstance(one.value, str | bytes))
            for one in (node.left, node.right)
        )

    def _negated(self, test: ast.expr) -> None:
        self._replaced(test, f"not ({self._source(test)})", "condition negated")

    def _source(self, node: ast.expr) -> str:
        if node.lineno != node.end_lineno:
            return ""
        assert node.end_col_offset is not None
        return self._text(node.lineno, node.col_offset, node.end_col_offset)

    def _text(self, line: int, start: int, end: int) -> str:
        return self.lines[line - 1].encode()[start:end].decode()

    def _replaced(self, node: ast.expr | ast.stmt, after: str, operator: str) -> None:
        if node.lineno == node.end_lineno and after:
            assert node.end_col_offset is not None
            self._add(node.lineno, node.col_offset, node.end_col_offset, after, operator)

    def _between(
        self,
        left: ast.expr,
        right: ast.expr,
        sign: re.Pattern[str],
        others: dict[str, str],
        operator: str,
    ) -> None:
        if left.end_lineno != right.lineno or left.end_col_offset is None:
            return
        gap = self._text(right.lineno, left.end_col_offset, right.col_offset)
        found = sign.search(gap)
        if found is not None:
            start = left.end_col_offset + len(gap[: found.start()].encode())
            after = others[" ".join(found[0].split())]
            self._add(right.lineno, start, start + len(found[0].encode()), after, operator)

    def _add(self, line: int, start: int, end: int, after: str, operator: str) -> None:
        if not self._within:
            return
        whole = self.lines[line - 1]
        indent = len(whole) - len(whole.lstrip())
        mutant = Mutant(
            id="",
            path=self.path,
            line=line,
            function=".".join(self._within),
            text=whole.strip(),
            start=len(self._text(line, 0, start)) - indent,
            before=self._text(line, start, end),
            after=after,
            operator=operator,
            above=self.near(line, -1),
            below=self.near(line, 1),
        )
        self.found.append(mutant)

    def near(self, line: int, step: int) -> list[str]:
        """The next lines that are not blank, in this direction."""
        end = len(self.lines) if step > 0 else -1
        texts = (self.lines[at].strip() for at in range(line - 1 + step, end, step))
        return [*islice(filter(None, texts), NEIGHBOURS)]


def choose(tree: Path, count: int, seed: int) -> list[Mutant]:
    """Random changes, each in a line of its own."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for area in AREAS:
        for path in sorted((tree / "src" / "signalhub" / area).rglob("*.py")):
            change = Change(path.relative_to(tree).as_posix(), path.read_text(encoding="utf-8"))
            change.visit(ast.parse("\n".join(change.lines)))
            for mutant in change.found:
                by_line.setdefault((mutant.path, mutant.line), []).append(mutant)
    chance = random.Random(seed)
    chosen = [chance.choice(by_line[line]) for line in chance.sample(sorted(by_line), count)]
    named = [asdict(mutant) | {"id": f"m{at:02}"} for at, mutant in enumerate(chosen, 1)]
    return [Mutant(**one) for one in named]


def locate(mutant: Mutant, tree: Path) -> Place | None:
    """Where the mutant's line is in a tree, if there is one line that fits best."""
    first = Place(mutant.path, mutant.line, mutant.start, mutant.before, mutant.after)
    if text_at(tree / mutant.path, mutant.line) == mutant.text:
        return first
    if mutant.moved:
        return locate_moved(mutant, tree)
    scored: list[tuple[int, Place]] = []
    for path in sorted((tree / "src" / "signalhub").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if mutant.text not in source:
            continue
        shown = path.relative_to(tree).as_posix()
        change = Change(shown, source)
        functions = functions_of(source)
        for line, text in enumerate(change.lines, 1):
            if text.strip() == mutant.text:
                score = sum(map(eq, change.near(line, -1), mutant.above))
                score += sum(map(eq, change.near(line, 1), mutant.below))
                score += 2 * (functions.get(line) == mutant.function.split(".")[-1])
                scored.append((score, replace(first, path=shown, line=line)))
    scored.sort(key=lambda one: -one[0])
    is_clear = len(scored) == 1 or (len(scored) > 1 and scored[0][0] > scored[1][0])
    return scored[0][1] if is_clear else None


def text_at(path: Path, line: int) -> str | None:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return lines[line - 1].strip() if line <= len(lines) else None


def locate_moved(mutant: Mutant, tree: Path) -> Place | None:
    """Where the list says that the mutant lives now; it may say that the code is gone."""
    moved = mutant.moved
    if not moved["path"]:
        return None
    lines = (tree / moved["path"]).read_text(encoding="utf-8").splitlines()
    fitting = [at for at, line in enumerate(lines, 1) if line.strip() == moved["text"]]
    nth = int(moved.get("nth", "1"))
    if len(fitting) < nth or moved["before"] not in moved["text"]:
        return None
    start = moved["text"].index(moved["before"])
    return Place(moved["path"], fitting[nth - 1], start, moved["before"], moved["after"])


def functions_of(source: str) -> dict[int, str]:
    """The innermost function of every line."""
    found: dict[int, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            found |= dict.fromkeys(range(node.lineno, node.end_lineno + 1), node.name)
    return found


def mutated(source: str, place: Place) -> str:
    """The source with the mutant in it."""
    lines = source.splitlines(keepends=True)
    whole = lines[place.line - 1]
    start = len(whole) - len(whole.lstrip()) + place.start
    end = start + len(place.before)
    assert whole[start:end] == place.before, f"{place} is not there"
    lines[place.line - 1] = whole[:start] + place.after + whole[end:]
    return "".join(lines)


class Scratch:
    """A copy of a tree to plant mutants in."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for one in sorted(tree.iterdir()):
            if one.is_file():
                shutil.copy(one, folder / one.name)
            elif one.name in COPIED:
                ignored = shutil.ignore_patterns("__pycache__", "results")
                shutil.copytree(one, folder / one.name, ignore=ignored)
        if (tree / ".venv").exists():
            (folder / ".venv").symlink_to((tree / ".venv").resolve())
        self._stamp = time.time()

    def write(self, path: str, source: str) -> None:
        """Replace a file, so that no bytecode of before is taken for it."""
        (self.folder / path).write_text(source, encoding="utf-8")
        self._stamp += 2
        os.utime(self.folder / path, (self._stamp, self._stamp))

    def test(self, targets: Iterable[str], seconds: float) -> tuple[int | None, str]:
        """What pytest ends with, `None` if it takes too long, and what it prints."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *targets]
        paths = os.pathsep.join((str(self.folder / "src"), str(self.folder)))
        with tempfile.TemporaryFile("w+") as printed:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": paths},
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            # What a test has started must not outlive it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            printed.seek(0)
            return code, printed.read()


def suites(mutant: Mutant, stage: int, tree: Path) -> list[str]:
    """The files of a stage that are not in an earlier one."""
    stages = STAGES[mutant.area]
    earlier = {path for before in stages[:stage] for path in files_of(before, tree)}
    return [path for path in files_of(stages[stage], tree) if path not in earlier]


def files_of(patterns: tuple[str, ...], tree: Path) -> list[str]:
    found: dict[str, None] = {}
    for pattern in patterns:
        for path in sorted(tree.glob(pattern)):
            held = [path] if path.is_file() else sorted(path.rglob("test_*.py"))
            found |= dict.fromkeys(
                one.relative_to(tree).as_posix() for one in held if one.name.startswith("test_")
            )
    return list(found)


def near_first(targets: list[str], mutant: Mutant, noticed: Set[str]) -> list[str]:
    """Files that noticed it before come first, then those called like its module or folder."""
    stem = Path(mutant.path).stem
    words = {stem, stem.removesuffix("ing"), Path(mutant.path).parent.name}
    is_near = {one: any(word[:6] in one for word in words) for one in targets}
    return sorted(targets, key=lambda one: (one not in noticed, not is_near[one]))


def noticed_before(path: Path | None) -> dict[str, set[str]]:
    """The files of tests that noticed each mutant in a run before."""
    found: dict[str, set[str]] = {}
    for one in read(path) if path else ():
        found.setdefault(str(one["id"]), set()).add(str(one.get("by", "")).split("::")[0])
    return found


def read(path: Path) -> list[dict[str, object]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def listed(path: Path) -> list[Mutant]:
    return [Mutant(**one) for one in json.loads(path.read_text(encoding="utf-8"))]


def run(
    mutants: list[Mutant],
    tree: Path,
    results: Path,
    scratch: Scratch,
    until: float,
    before: dict[str, set[str]],
) -> None:
    """Try every mutant on the suites that it has not been through."""
    known = read(results)
    tried = {(one["id"], one["stage"]) for one in known}
    gone = {one["id"] for one in known if one["outcome"] in ("killed", "not found")}
    for stage in range(max(map(len, STAGES.values()))):
        for mutant in mutants:
            if mutant.id in gone or (mutant.id, stage) in tried:
                continue
            if stage >= len(STAGES[mutant.area]):
                continue
            left = until - time.time()
            if left < 30:
                return
            noticed = before.get(mutant.id, set())
            result = attempt(mutant, stage, tree, scratch, min(left, STAGE_SECONDS_MAX), noticed)
            if result["outcome"] == "unfinished" and until - time.time() < 30:
                return
            if result["outcome"] in ("killed", "not found"):
                gone.add(mutant.id)
            results.parent.mkdir(parents=True, exist_ok=True)
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"id": mutant.id, "stage": stage} | result) + "\n")


def attempt(
    mutant: Mutant,
    stage: int,
    tree: Path,
    scratch: Scratch,
    seconds: float,
    noticed: Set[str],
) -> dict[str, object]:
    """One mutant through one stage."""
    place = locate(mutant, tree)
    if place is None:
        return {"outcome": "not found"}
    targets = near_first(suites(mutant, stage, tree), mutant, noticed)
    if not targets:
        return {"outcome": "survived", "seconds": 0}
    source = (tree / place.path).read_text(encoding="utf-8")
    began = time.time()
    scratch.write(place.path, mutated(source, place))
    code, printed = scratch.test(targets, seconds)
    scratch.write(place.path, source)
    result: dict[str, object] = {"seconds": round(time.time() - began)}
    if code == 0:
        return result | {"outcome": "survived"}
    if code is None:
        return result | {"outcome": "unfinished"}
    found = FAILED.search(printed)
    if found is None:
        return result | {"outcome": "killed", "by": "\n".join(printed.splitlines()[-5:])}
    again, _ = scratch.test([found[1]], seconds)
    if again == 0:
        return result | {"outcome": "killed", "by": found[1]}
    return result | {"outcome": "unsure", "by": found[1]}


def report(mutants: list[Mutant], files: list[Path]) -> Iterator[str]:
    """One line for each mutant, with what became of it in each run."""
    for mutant in mutants:
        yield f"{mutant.id} {mutant.path}:{mutant.line} {mutant.operator}: {mutant.text}"
        for path in files:
            own = [one for one in read(path) if one["id"] == mutant.id]
            killed = [one for one in own if one["outcome"] == "killed"]
            last = killed[-1:] or own[-1:]
            words = f"{last[0]['outcome']} {last[0].get('by', '')}" if last else "not tried"
            yield f"    {path.stem}: stage {len(own)}, {words}"
    for path in files:
        killed_ids = {one["id"] for one in read(path) if one["outcome"] == "killed"}
        yield f"{path.stem}: {len(killed_ids)} of {len(mutants)} killed"


def moment(text: str) -> float:
    """The next time the clock shows this, in UTC."""
    now = datetime.datetime.now(datetime.UTC)
    hours, minutes = map(int, text.split(":"))
    at = now.replace(hour=hours, minute=minutes, second=0, microsecond=0)
    return (at if at > now else at + datetime.timedelta(days=1)).timestamp()


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant small faults and see what notices them.")
    commands = parser.add_subparsers(dest="command", required=True)
    chosen = commands.add_parser("choose", help="choose mutants at random")
    chosen.add_argument("--count", type=int, default=80)
    chosen.add_argument("--seed", type=int, default=12)
    runs = commands.add_parser("run", help="try mutants on a tree")
    runs.add_argument("--results", type=Path, required=True)
    runs.add_argument("--until", type=moment, default=float("inf"), help="stop at HH:MM, in UTC")
    runs.add_argument("--scratch", type=Path, help="where to copy the tree to")
    runs.add_argument("--before", type=Path, help="results of an earlier run")
    runs.add_argument("--only", nargs="*", help="ids of mutants")
    where = commands.add_parser("locate", help="find mutants in a tree")
    reports = commands.add_parser("report", help="say what became of mutants")
    for command in (runs, where, reports):
        command.add_argument("list", type=Path)
    for command in (chosen, runs, where):
        command.add_argument("--tree", type=Path, required=True)
    reports.add_argument("results", type=Path, nargs="+")
    options = parser.parse_args()

    if options.command == "choose":
        found = choose(options.tree, options.count, options.seed)
        print(json.dumps([asdict(one) for one in found], indent=1, ensure_ascii=False))
    elif options.command == "run":
        mutants = [
            one for one in listed(options.list) if not options.only or one.id in options.only
        ]
        folder = options.scratch or Path(tempfile.mkdtemp(prefix="mutants-"))
        tree = options.tree.resolve()
        before = noticed_before(options.before)
        run(mutants, tree, options.results, Scratch(tree, folder), options.until, before)
    elif options.command == "locate":
        for mutant in listed(options.list):
            place = locate(mutant, options.tree)
            print(mutant.id, f"{place.path}:{place.line}" if place else f"not found: {mutant.text}")
    else:
        print("\n".join(report(listed(options.list), options.results)))


if __name__ == "__main__":
    main()
