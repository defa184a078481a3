"""Java and the JARs: found, installed where that is allowed, or asked for in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from signalhub.pipeline.run import java as jars
from signalhub.wire.errors import SettingsError

ENVIRONMENT = ("JAVA_HOME", "SIGNALHUB_JARS", "XDG_CACHE_HOME")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder programs are looked for in."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}")
    monkeypatch.setenv("SIGNALHUB_JARS", str(tmp_path / "jars"))
    return folder


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_without_java_the_one_command_to_run_is_named(programs: Path) -> None:
    problem = jars.java_problem()

    assert problem is not None
    assert "apt-get install openjdk-17-jre-headless" in problem
    with pytest.raises(SettingsError, match="Java not found"):
        jars.fetch()


@pytest.mark.parametrize(
    ("version", "is_enough"),
    [("1.8.0_402", False), ("11.0.2", False), ("17.0.15", True), ("21", True)],
)
def test_the_version_of_java_is_looked_at(programs: Path, version: str, is_enough: bool) -> None:
    program(programs / "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")

    assert (jars.java_problem() is None) is is_enough


def test_a_java_that_cannot_be_run_is_named(programs: Path) -> None:
    program(programs / "java", "")
    (programs / "java").write_bytes(b"\x7fELF, but no more")

    problem = jars.java_problem()

    assert problem is not None
    assert "Java cannot be run" in problem


def test_java_home_comes_first(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    program(tmp_path / "jdk" / "bin" / "java", "true")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))

    assert jars.java() == str(tmp_path / "jdk" / "bin" / "java")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may install packages")
def test_where_the_user_may_java_is_installed(programs: Path) -> None:
    program(
        programs / "apt-get",
        f'case "$1" in install) printf "#!/bin/sh\\n" > {programs}/java;'
        f" /bin/chmod +x {programs}/java;; esac",
    )

    assert jars.install_java()
    assert jars.java() == str(programs / "java")


def test_a_machine_that_cannot_run_the_pipeline_is_told_so_and_set_up_all_the_same(
    programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert jars.main() == 0

    assert "its pipeline stays off" in capfd.readouterr().err


def test_half_a_folder_of_jars_is_none(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "jars" / "jars").mkdir(parents=True)
    (tmp_path / "jars" / "jars" / "one.jar").touch()
    assert jars.jars() == []

    (tmp_path / "jars" / ".complete").touch()

    assert jars.jars() == [str(tmp_path / "jars" / "jars" / "one.jar")]
