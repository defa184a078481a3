"""What is installed is pinned, hashed and listed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from signalhub import native
from tools import native as native_tool
from tools import notices
from tools.native import CRATE, PINNED, pinned
from tools.sbom import bill, locked

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "requirements").glob("*.txt"))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_package_is_pinned_as_in_the_constraints_and_has_hashes(path: Path) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {
        (normal(name), version) for name, _, version in (one.partition("==") for one in lines)
    }

    packages = locked(path)

    assert packages
    assert {(normal(name), version) for name, version in packages} <= pinned
    assert all(packages.values())
    assert "://" not in path.read_text()


def test_what_the_project_requires_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {
        "runtime": project["dependencies"],
        "pipeline": extras["pipeline"],
        "dev": extras["dev"],
        "bench": extras["bench"],
    }

    for name, requirements in wanted.items():
        found = {normal(one) for one, _ in locked(ROOT / "requirements" / f"{name}.txt")}
        assert {normal(re.split(r"[\[<>=]", one)[0]) for one in requirements} <= found


def test_the_bill_of_materials_names_packages_and_jars_once() -> None:
    components = bill()["components"]
    addresses = [one["purl"] for one in components]

    assert len(addresses) == len(set(addresses))
    assert any(one.startswith("pkg:pypi/uvloop@") for one in addresses)
    assert "pkg:maven/io.delta/delta-spark_4.2_2.13@4.4.0" in addresses
    assert {f"pkg:cargo/{name}@{pin[0]}" for name, pin in pinned().items()} <= set(addresses)


def test_the_notices_name_every_package_and_jar_with_its_license() -> None:
    page = notices.page()

    assert notices.TARGET.read_text() == page, "write it again with `make notices`"
    assert "unknown" not in page
    assert page.count("\n| ") >= len(bill()["components"])


def test_the_crates_are_pinned_by_version_and_hash() -> None:
    manifest = tomllib.loads((CRATE / "Cargo.toml").read_text())
    crates = pinned()

    for line in PINNED.read_text().splitlines()[1:]:
        assert re.fullmatch(r"[\w-]+==[\w.+-]+ sha256:[0-9a-f]{64}", line)
    for name, wanted in manifest["dependencies"].items():
        version = wanted if isinstance(wanted, str) else wanted["version"]
        assert version == f"={crates[name][0]}", f"{name} is not exactly the one that is pinned"
    assert "://" not in PINNED.read_text()


def test_the_native_part_has_one_version_and_fits_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = {
        tomllib.loads((CRATE / "Cargo.toml").read_text())["package"]["version"],
        tomllib.loads((CRATE / "pyproject.toml").read_text())["project"]["version"],
        native.VERSION,
    }

    assert len(versions) == 1
    assert project["optional-dependencies"]["native"] == [f"signalhub-native=={native.VERSION}"]


def test_the_licenses_of_crates_are_those_that_they_declare() -> None:
    if shutil.which("cargo") is None:
        pytest.skip("only cargo can tell")
    command = ("cargo", "metadata", "--format-version", "1", "--offline", "--locked")
    done = subprocess.run(command, cwd=CRATE, capture_output=True)
    if done.returncode:
        pytest.skip("the crates are not here: run `make setup`")
    declared = {
        one["name"]: (one["version"], one["license"])
        for one in json.loads(done.stdout)["packages"]
        if one["source"]
    }

    listed = {name: (pin[0], notices.OF_CRATES[name]) for name, pin in pinned().items()}
    assert listed == declared


def auditing(
    monkeypatch: pytest.MonkeyPatch, folder: Path, failing: str, tools: tuple[str, ...]
) -> int:
    """Audit with programs that only say what they were asked; `cargo {failing}…` fails."""
    for name in ("cargo", *tools):
        program = folder / name
        text = f'#!/bin/sh\ncase "$*" in "{failing}"*) exit 1; esac\n'
        program.write_text(text)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(native_tool, "lock", lambda: None)
    return native_tool.main(["--audit"])


BOTH = ("cargo-deny", "cargo-audit")


@pytest.mark.parametrize(
    ("failing", "tools", "code", "line"),
    [
        ("nothing", BOTH, 0, "vulnerabilities ok"),
        ("deny --offline", BOTH, 1, "licenses, bans, sources failed"),
        ("deny check adv", BOTH, 1, "advisories failed"),
        ("audit", BOTH, 1, "vulnerabilities failed"),
        ("deny fetch", BOTH, 2, "vulnerabilities not checked"),
        ("nothing", BOTH[:1], 2, "cargo-audit not found"),
        ("nothing", (), 2, "cargo-deny and cargo-audit not found"),
    ],
)
def test_an_audit_of_crates_says_what_it_found_and_what_it_could_not_check(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    failing: str,
    tools: tuple[str, ...],
    code: int,
    line: str,
) -> None:
    assert auditing(monkeypatch, tmp_path, failing, tools) == code

    assert line in capsys.readouterr().out


def test_the_native_part_cannot_do_what_is_unsafe() -> None:
    manifest = tomllib.loads((CRATE / "Cargo.toml").read_text())

    assert manifest["lints"]["rust"]["unsafe_code"] == "forbid"
    for path in CRATE.glob("src/**/*.rs"):
        assert not re.search(r"\bunsafe\b|\[allow\b", path.read_text()), path


def test_the_setup_installs_only_what_has_a_listed_hash() -> None:
    text = (ROOT / "Makefile").read_text()
    installs = [line for line in text.splitlines() if line.strip().startswith("@$(INSTALL)")]

    assert len(installs) >= 4
    for line in installs:
        assert "--require-hashes" in line or line.endswith("--no-deps --no-build-isolation -e .")
        # What is built here would be built with tools that nobody has checked.
        assert "--no-build-isolation" in line or "requirements/build.txt" in line


def test_the_wheel_has_types_hashes_and_licenses(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed: run `make setup`")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]

    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)

    (wheel,) = tmp_path.glob("*.whl")
    names = set(ZipFile(wheel).namelist())
    info = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
    assert {
        "signalhub/py.typed",
        "signalhub/pipeline/run/jars.sha256",
        "signalhub/pipeline/run/log4j2.properties",
        f"{info}/entry_points.txt",
        f"{info}/licenses/LICENSE",
        f"{info}/licenses/THIRD-PARTY-NOTICES.md",
    } <= names
    sources = {one.relative_to(ROOT / "src").as_posix() for one in ROOT.glob("src/**/*.py")}
    assert sources <= names
    assert {one.split("/")[0] for one in names} == {"signalhub", "pyspark_signalhub", info}


def test_the_license_is_the_one_that_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()
