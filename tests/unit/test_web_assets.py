"""The built dashboard fits its sources, is as small as promised, and loads nothing from elsewhere.

Node is not needed for these; `make web-check` builds again and compares bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tools.web_types import SOURCES, TARGET, written

ROOT: Final = Path(__file__).resolve().parents[2]
WEB: Final = ROOT / "web"
CLIENT: Final = ROOT / "js" / "src"
STATIC: Final = ROOT / "src" / "signalhub" / "web" / "static"
FIRST_LOAD_MAX: Final = 70 * 1024
EVERYTHING_MAX: Final = 120 * 1024
NOT_SERVED: Final = {"manifest.json", "LICENSES.txt"}
SHIPPED: Final = {"preact", "uplot"}


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STATIC / "manifest.json").read_text())
    return found


def sources() -> Iterator[Path]:
    """What the dashboard is built from: its folder, and the client for JavaScript."""
    for folder in (WEB, CLIENT):
        for path in folder.rglob("*"):
            parts = path.relative_to(folder).parts
            if "node_modules" not in parts and path.suffix != ".md" and path.is_file():
                yield path


def packed(names: list[str]) -> int:
    """How many bytes these files take on the wire."""
    return sum(len(gzip.compress((STATIC / one).read_bytes(), 9)) for one in names)


def test_the_built_files_follow_from_the_sources(manifest: dict[str, Any]) -> None:
    lines = sorted(
        (path.relative_to(ROOT).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sources()
    )
    text = "".join(f"{digest}  {path}\n" for path, digest in lines)

    assert manifest["sources"] == hashlib.sha256(text.encode()).hexdigest(), "run `make web`"


def test_every_built_file_is_in_the_manifest_with_its_digest(manifest: dict[str, Any]) -> None:
    files = {path.name for path in STATIC.iterdir()} - {"manifest.json"}

    assert files == set(manifest["files"])
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest, name


def test_the_page_names_files_that_are_there() -> None:
    page = (STATIC / "index.html").read_text()
    named = re.findall(r'(?:src|href)="assets/([^"]+)"', page)

    assert len(named) == 3
    assert all((STATIC / one).is_file() for one in named)
    assert "<style" not in page
    assert not re.search(r"<script(?![^>]* src=)", page)
    assert " style=" not in page


def test_the_page_is_small(manifest: dict[str, Any]) -> None:
    first = ["index.html", manifest["app"], manifest["style"]]
    everything = [name for name in manifest["files"] if name not in NOT_SERVED]

    assert packed(first) <= FIRST_LOAD_MAX
    assert packed(everything) <= EVERYTHING_MAX


def test_nothing_is_asked_of_others(manifest: dict[str, Any]) -> None:
    for name in manifest["files"]:
        text = (STATIC / name).read_text()
        if name not in NOT_SERVED:
            addresses = set(re.findall(r"""https?://[^\s"'`)]+""", text))
            # Names of XML vocabularies are not fetched, and the client's default is the user's own.
            known = ("http://www.w3.org/", "http://127.0.0.1:8787")
            assert all(one.startswith(known) for one in addresses), name
            assert "@import" not in text


def test_packages_are_pinned_with_digests_and_without_addresses() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text())
    package = json.loads((WEB / "package.json").read_text())
    installed = {path: facts for path, facts in lock["packages"].items() if path}

    assert installed
    assert all("integrity" in one and "resolved" not in one for one in installed.values())
    assert set(package["dependencies"]) == SHIPPED
    for section in ("dependencies", "devDependencies"):
        assert all(re.fullmatch(r"\d+\.\d+\.\d+", one) for one in package[section].values())
    assert "registry" not in (WEB / ".npmrc").read_text().replace("omit-lockfile-registry", "")


def test_licenses_of_what_is_shipped_come_with_it() -> None:
    text = (STATIC / "LICENSES.txt").read_text()

    for name in SHIPPED:
        assert re.search(rf"^{name} \d", text, re.MULTILINE)
    assert text.count("Copyright") >= len(SHIPPED)


def test_types_of_the_page_are_those_of_the_server() -> None:
    if not all(path.is_file() for path in SOURCES):
        pytest.skip("the admin API is not part of this source tree")

    assert TARGET.read_text() == written(), "run `python -m tools.web_types`"
