"""The house rules a machine can check: directions of imports, sizes, names, words, links."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import signalhub

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "signalhub"
FOLDERS = ("src", "tests", "bench", "docs", "examples", "deploy", "native", "tools", "web")
SUFFIXES = {
    *(".c", ".cfg", ".css", ".html", ".ini", ".js", ".json", ".md", ".mjs", ".py", ".sh", ".sql"),
    *(".rs", ".svg", ".toml", ".ts", ".tsx", ".txt", ".yaml", ".yml"),
}
NOT_OURS = {"target", "node_modules", "vendor", "__pycache__", "results", "data"}

LINES_MAX = 800
FOLDER_MAX = 13
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc", "base", "impl"}

# The machine, the network, chance and time: all of it is the shell's business.
IMPURE = {
    *("asyncio", "concurrent", "ctypes", "fcntl", "io", "multiprocessing", "os", "pathlib"),
    *("random", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl"),
    *("subprocess", "tempfile", "threading", "time", "uuid"),
    *(
        "apsw",
        "deltalake",
        "pyarrow",
        "sqlite3",
        "httptools",
        "nats",
        "picows",
        "pyspark",
        "uvloop",
        "websockets",
    ),
}
# What every folder may import, from the bottom up. Folders of one row do not know each other,
# except in the first two: what everybody shares, and settings with what checks tokens by them.
SHARED = (
    *("capability", "clock", "counters", "ids", "locks", "native", "pacing", "privacy", "ranges"),
    *("sqlite", "wire"),
)
CONFIGURED = (*SHARED, "auth", "settings")
CORE = (*CONFIGURED, "core")
MAY_IMPORT = {
    **dict.fromkeys(SHARED, SHARED),
    **dict.fromkeys(("auth", "settings"), CONFIGURED),
    **dict.fromkeys(("core", "log", "state", "client", "observe"), CORE),
    "actors": (*CORE, "client"),
    "pipeline": (*CORE, "log", "state", "client"),
    "engine": (*CORE, "log", "state", "pipeline"),
    "server": (*CORE, "log", "state", "pipeline", "engine", "observe"),
    "operate": (*CORE, "log", "state", "client", "actors", "pipeline", "engine", "server"),
}
# The package itself and its entry point offer the client and the command line.
ENTRIES = {"signalhub", "signalhub.__main__", "signalhub.sync"}
DOUBLES = "signalhub.testing"
COMMANDS = "signalhub.cli"
PURE = tuple(
    f"signalhub.{name}" for name in ("auth", "core", "counters", "ranges", "settings.model", "wire")
)
# A host's shell: it alone knows of event loops, threads and the hub's client.
ACTORS_SHELL = "signalhub.actors.host"
LOOPS = {"asyncio", "concurrent", "threading", "socket", "select", "selectors", "signal"}
WITHOUT_SOCKETS = ("signalhub.client.protocol", "signalhub.client.rooms.protocol")

# Written in two halves, so that this file does not break the rules it checks.
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me)/")
REGISTRIES = re.compile(
    r"https?://[^\s\"'>)]*(?:py"
    + r"pi\.|pythonho"
    + r"sted\.|npm"
    + r"js\.|crates\.i"
    + r"o|/simple/)"
)
BANNER = re.compile(r"^\s*#\s*[-=*#~_]{4,}", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(?:#[^)]*)?\)")
PROMISE = re.compile(r"^\|\s*\d+\s*\|")
BACKING = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?(?:::(\w+))?")


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path), str(path))


@pytest.fixture(scope="module", autouse=True)
def no_trees_left() -> Iterator[None]:
    """Millions of nodes would slow down every garbage collection of the tests that follow."""
    yield
    tree_of.cache_clear()
    text_of.cache_clear()


def project_files() -> Iterator[Path]:
    """Every text file that belongs to the project."""
    yield from (path for path in sorted(ROOT.iterdir()) if path.is_file() and is_text(path))
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if not NOT_OURS & set(path.parts) and path.is_file() and is_text(path):
                yield path


def is_text(path: Path) -> bool:
    return path.suffix in SUFFIXES or path.name in ("Makefile", ".gitignore")


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The dotted name of a module in `src`."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.Module, known: set[str]) -> set[str]:
    """All modules a file imports, wherever in the file it does so."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            # `from package import module` is an import of the module, not of the package.
            found |= (members & known) or {node.module}
    return found


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


MODULES = modules()
KNOWN = {name_of(path) for path in MODULES}
FILES = list(project_files())
MARKDOWN = [path for path in FILES if path.suffix == ".md"]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_in_the_agreed_direction(path: Path) -> None:
    name = name_of(path)
    own = {one for one in imports(tree_of(path), KNOWN) if is_within(one, "signalhub")}
    if name in ENTRIES or is_within(name, DOUBLES):
        return

    assert not {one for one in own if is_within(one, DOUBLES)}
    if not is_within(name, COMMANDS):
        folder = name.split(".")[1]
        astray = {one for one in own if folder_of(one) not in (folder, *MAY_IMPORT[folder])}
        assert not astray, f"{name} must not import {sorted(astray)}"


def folder_of(name: str) -> str:
    """`core` of `signalhub.core.hub`; the errors of the package itself belong to nobody."""
    return name.split(".")[1] if "." in name else name


def test_no_two_modules_import_each_other() -> None:
    graph = {name_of(path): top_level_imports(tree_of(path)) for path in MODULES}
    finished: set[str] = set()

    def follow(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, f"a circle: {' → '.join((*way[way.index(name) :], name))}"
        if name not in finished:
            for one in sorted(graph[name]):
                follow(one, (*way, name))
            finished.add(name)

    for name in sorted(graph):
        follow(name, ())


def top_level_imports(tree: ast.Module) -> set[str]:
    """The modules of ours that a file needs to be imported at all."""
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return imports(ast.Module(body=[*top], type_ignores=[]), KNOWN) & (KNOWN - {"signalhub"})


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_what_does_no_io_cannot_even_reach_for_it(path: Path) -> None:
    name = name_of(path)
    found = imports(tree_of(path), KNOWN)
    outside = {one.split(".")[0] for one in found}

    if is_within(name, "signalhub.actors") and not is_within(name, ACTORS_SHELL):
        assert not outside & LOOPS, f"{name} must not import {sorted(outside & LOOPS)}"
        assert not {one for one in found if is_within(one, "signalhub.client")}
    if any(is_within(name, package) for package in PURE):
        assert not outside & IMPURE, f"{name} must not import {sorted(outside & IMPURE)}"
    if any(is_within(name, package) for package in WITHOUT_SOCKETS):
        assert not outside & {"asyncio", "picows", "socket", "uvloop"}


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES}), ids=shown)
def test_folders_can_be_taken_in_at_a_glance(folder: Path) -> None:
    held = [path for path in folder.glob("*.py") if path.name != "__init__.py"]

    assert len(held) <= FOLDER_MAX or folder.name == "log"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_are_small_explained_and_named_after_what_they_hold(path: Path) -> None:
    text = text_of(path)

    assert text.count("\n") <= LINES_MAX
    assert not VAGUE_NAMES & set(name_of(path).split("."))
    if text.strip():
        assert ast.get_docstring(tree_of(path)), "a module begins with what it is for"


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_files_hold_nothing_unfinished_private_or_decorative(path: Path) -> None:
    text = text_of(path)

    assert not UNFINISHED.search(text)
    assert not MACHINE_PATHS.search(text)
    assert not REGISTRIES.search(text)
    if path.suffix == ".py":
        assert not BANNER.search(text)


@pytest.mark.parametrize("path", MARKDOWN, ids=shown)
def test_links_in_the_documentation_lead_somewhere(path: Path) -> None:
    targets = [link for link in LINK.findall(text_of(path)) if "://" not in link]

    dead = [link for link in targets if not (path.parent / link).exists()]

    assert dead == []


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md"])
def test_the_project_says_what_it_is_and_what_changed(name: str) -> None:
    assert len(text_of(ROOT / name)) > 200


def test_the_changelog_begins_with_the_version_that_is_built() -> None:
    newest = re.search(r"^## (\S+)(.*)$", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    number, dev, _ = signalhub.__version__.partition(".dev")

    assert newest[1] == number
    assert ("unreleased" in newest[2]) is bool(dev)


def test_tests_wait_for_events_and_not_for_time() -> None:
    """Sleeping belongs to tests of real sockets and processes, if anywhere."""
    quick = [ROOT / "tests" / folder for folder in ("unit", "property", "simulation", "fuzz")]
    sleepers = [
        shown(path)
        for folder in quick
        for path in folder.rglob("*.py")
        if re.search(r"\b(?:asyncio|time)\.sleep\((?!0\))", text_of(path))
    ]

    assert sleepers == []


def test_what_tests_share_is_not_in_a_test() -> None:
    borrowed = [
        f"{shown(path)} imports {name}"
        for path in (ROOT / "tests").rglob("*.py")
        for name in imports(tree_of(path), KNOWN)
        if re.search(r"^tests\..*\btest_", name)
    ]

    assert borrowed == []


def test_our_own_classes_are_never_mocked() -> None:
    mocking = [
        shown(path)
        for path in (ROOT / "tests").rglob("*.py")
        if any(name.startswith("unittest.mock") for name in imports(tree_of(path), KNOWN))
    ]

    assert mocking == []


def test_every_promise_names_a_test_that_exists() -> None:
    text = text_of(ROOT / "docs" / "promises.md")

    unbacked = [
        line for line in text.splitlines() if PROMISE.match(line) and not BACKING.search(line)
    ]
    missing = ["::".join(filter(None, one)) for one in BACKING.findall(text) if not is_test(*one)]

    assert any(PROMISE.match(line) for line in text.splitlines())
    assert unbacked == []
    assert missing == []


def is_test(file: str, name: str, method: str) -> bool:
    """Is there such a file, and in it the function, class, or method of the class?"""
    path = ROOT / file
    if not path.is_file():
        return False
    if not name:
        return "def test_" in text_of(path)
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return not method
        if isinstance(node, ast.ClassDef) and node.name == name:
            return not method or any(
                isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == method
                for one in node.body
            )
        if isinstance(node, ast.Assign) and not method:
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if name in names:
                return True
    return False


def test_these_rules_can_be_broken() -> None:
    """The checks themselves see what they are meant to see."""
    source = "import os.path\nfrom signalhub.wire import names\ndef f():\n    import asyncio\n"

    assert imports(ast.parse(source), KNOWN) == {"os.path", "signalhub.wire.names", "asyncio"}
    assert is_within("signalhub.core.hub", "signalhub.core")
    assert not is_within("signalhub.corex", "signalhub.core")
    assert UNFINISHED.search("# TO" + "DO later")
    assert MACHINE_PATHS.search("see /wo" + "rk/x")
    assert not MACHINE_PATHS.search("a/wo" + "rk/x")
    assert REGISTRIES.search("https://py" + "pi.org/simple")
    assert BANNER.search("x = 1\n# ------ section")
    assert PROMISE.match("| 3 | Damage is detected. | nothing backs it |")
    assert not BACKING.search("| 3 | Damage is detected. | nothing backs it |")
    assert is_test("tests/test_tidy.py", "test_these_rules_can_be_broken", "")
    assert not is_test("tests/test_tidy.py", "test_that_is_not_there", "")
    assert not is_test("tests/not_there.py", "", "")
