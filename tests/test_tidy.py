"""The house rules a machine can check: directions of imports, sizes, names, words, links."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "signalhub"
FOLDERS = ("src", "tests", "bench", "docs", "examples", "deploy", "js")
SUFFIXES = {
    *(".c", ".cfg", ".css", ".html", ".ini", ".js", ".json", ".md", ".mjs", ".py", ".sh", ".sql"),
    *(".toml", ".ts", ".txt", ".yaml", ".yml"),
}
NOT_OURS = {"node_modules", "vendor", "__pycache__", "results", "data"}

LINES_MAX = 500
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
VOCABULARY = {
    f"signalhub.{name}"
    for name in ("clock", "entry", "envelope", "errors", "names", "settings", "tokens")
}

# Package or module → the parts of the project it may import. What is not listed may import all.
MAY_IMPORT = {
    "signalhub.names": set[str](),
    "signalhub.errors": set[str](),
    "signalhub.clock": set[str](),
    "signalhub.settings": set[str](),
    "signalhub.envelope": {"signalhub.names"},
    "signalhub.entry": set[str](),
    "signalhub.websocket": set[str](),
    "signalhub.tokens": VOCABULARY | {"signalhub.core.policy"},
    "signalhub.settings_load": VOCABULARY,
    "signalhub.core": VOCABULARY | {"signalhub.core"},
    "signalhub.log": VOCABULARY | {"signalhub.log", "signalhub.core.tally"},
    "signalhub.engine": VOCABULARY
    | {"signalhub.core", "signalhub.engine", "signalhub.log", "signalhub.pipeline.lake"},
    "signalhub.state": VOCABULARY
    | {"signalhub.state", "signalhub.core.dedup", "signalhub.core.recovery"},
    "signalhub.observe": VOCABULARY | {"signalhub.observe", "signalhub.core.tally"},
    "signalhub.client": VOCABULARY
    | {"signalhub.client", "signalhub.core.limits", "signalhub.websocket"},
    "signalhub.server": VOCABULARY
    | {
        "signalhub.core",
        "signalhub.engine",
        "signalhub.log.errors",
        "signalhub.observe",
        "signalhub.pipeline.jars",
        "signalhub.pipeline.lake",
        "signalhub.pipeline.status",
        "signalhub.server",
        "signalhub.state",
        "signalhub.websocket",
    },
    "signalhub.actors": VOCABULARY
    | {"signalhub.actors", "signalhub.client", "signalhub.state.folder"},
    "signalhub.pipeline": VOCABULARY
    | {
        "signalhub.client",
        "signalhub.core",
        "signalhub.log",
        "signalhub.pipeline",
        "signalhub.state",
    },
}
PURE = tuple(
    f"signalhub.{name}"
    for name in ("capability", "core", "entry", "envelope", "errors", "names", "settings", "tokens")
)
# A host's shell: it alone knows of event loops, threads and the hub's client.
ACTORS_SHELL = tuple(
    f"signalhub.actors.{name}" for name in ("host", "outside", "turning", "offloading")
)
LOOPS = {"asyncio", "concurrent", "threading", "socket", "select", "selectors", "signal"}
WITHOUT_SOCKETS = (
    "signalhub.websocket",
    *(f"signalhub.client.{name}" for name in ("protocol", "room_protocol", "room_catchup")),
)

# Written in two halves, so that this file does not break the rules it checks.
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me)/")
REGISTRIES = re.compile(
    r"https?://[^\s\"'>)]*(?:py" + r"pi\.|pythonho" + r"sted\.|npm" + r"js\.|/simple/)"
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
    rules = [allowed for package, allowed in MAY_IMPORT.items() if is_within(name, package)]
    own = {found for found in imports(tree_of(path), KNOWN) if is_within(found, "signalhub")}

    for allowed in rules:
        astray = {one for one in own if not any(is_within(one, package) for package in allowed)}
        assert not astray, f"{name} must not import {sorted(astray)}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_what_does_no_io_cannot_even_reach_for_it(path: Path) -> None:
    name = name_of(path)
    found = imports(tree_of(path), KNOWN)
    outside = {one.split(".")[0] for one in found}

    if is_within(name, "signalhub.actors") and name not in ACTORS_SHELL:
        assert not outside & LOOPS, f"{name} must not import {sorted(outside & LOOPS)}"
        assert not {one for one in found if is_within(one, "signalhub.client")}
    if any(is_within(name, package) for package in PURE):
        assert not outside & IMPURE, f"{name} must not import {sorted(outside & IMPURE)}"
    if name in WITHOUT_SOCKETS:
        assert not outside & {"asyncio", "picows", "socket", "uvloop"}


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


def test_our_own_classes_are_never_mocked() -> None:
    mocking = [
        shown(path)
        for path in (ROOT / "tests").rglob("*.py")
        if any(name.startswith("unittest.mock") for name in imports(tree_of(path), KNOWN))
    ]

    assert mocking == []


def test_every_promise_names_a_test_that_exists() -> None:
    path = ROOT / "docs" / "promises.md"
    if not path.exists():
        return
    text = text_of(path)

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
    source = (
        "import os.path\nfrom signalhub import names\ndef f():\n    from asyncio import sleep\n"
    )

    assert imports(ast.parse(source), KNOWN) == {"os.path", "signalhub.names", "asyncio"}
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
