"""Java, the JARs and the class archive: found, installed if permitted, or asked for."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from pathlib import Path

import pytest
from pyspark.core import context
from pyspark.sql import SparkSession

from signalhub.pipeline.run import java, setup
from signalhub.pipeline.run.spark import _own_signals
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
    problem = java.problem()

    assert problem is not None
    assert "apt-get install openjdk-17-jre-headless" in problem
    with pytest.raises(SettingsError, match="Java not found"):
        java.fetch()


@pytest.mark.parametrize(
    ("version", "is_enough"),
    [("1.8.0_402", False), ("11.0.2", False), ("17.0.15", True), ("21", True)],
)
def test_the_version_of_java_is_looked_at(programs: Path, version: str, is_enough: bool) -> None:
    program(programs / "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")

    assert (java.problem() is None) is is_enough


def test_a_java_that_cannot_be_run_is_named(programs: Path) -> None:
    program(programs / "java", "")
    (programs / "java").write_bytes(b"\x7fELF, but no more")

    problem = java.problem()

    assert problem is not None
    assert "Java cannot be run" in problem


def test_java_home_comes_first(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    program(tmp_path / "jdk" / "bin" / "java", "true")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))

    assert java.executable() == str(tmp_path / "jdk" / "bin" / "java")


def test_java_is_never_installed_behind_the_users_back(programs: Path, tmp_path: Path) -> None:
    program(programs / "apt-get", f"echo called > {tmp_path}/called")

    assert setup.main([]) == 0

    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("fault", ["other content", "missing", "unexpected"])
def test_jars_other_than_the_expected_ones_are_refused(tmp_path: Path, fault: str) -> None:
    for name in java.expected_jars():
        (tmp_path / name).symlink_to(Path(java.folder(), "jars", name))
    java.check_jars(tmp_path)
    name = sorted(java.expected_jars())[0] if fault != "unexpected" else "evil.jar"

    (tmp_path / name).unlink(missing_ok=True)
    if fault != "missing":
        (tmp_path / name).write_bytes(b"something else")

    with pytest.raises(SettingsError, match=name):
        java.check_jars(tmp_path)


def test_a_machine_that_cannot_run_the_pipeline_is_told_so_and_set_up_all_the_same(
    programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert setup.main([]) == 0

    assert "its pipeline stays off" in capfd.readouterr().err


def test_half_a_folder_of_jars_is_none(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "jars" / "jars").mkdir(parents=True)
    (tmp_path / "jars" / "jars" / "one.jar").touch()
    assert java.jars() == []

    (tmp_path / "jars" / ".complete").touch()

    assert java.jars() == [str(tmp_path / "jars" / "jars" / "one.jar")]


def test_the_archive_of_classes_depends_on_java_and_is_missing_without_it(
    programs: Path, tmp_path: Path
) -> None:
    assert java.class_archive() is None

    program(programs / "java", "true")
    first = java.class_archive()
    os.utime(programs / "java", (1, 1))

    assert first is not None
    assert first.parent == tmp_path / "jars"
    assert java.class_archive() not in (None, first)


def test_an_archive_that_could_not_be_made_leaves_nothing_behind(
    programs: Path, tmp_path: Path
) -> None:
    program(programs / "java", "exit 1")
    (tmp_path / "jars").mkdir()

    setup.archive_classes()

    assert list((tmp_path / "jars").iterdir()) == []


def test_setting_up_says_what_takes_so_long_and_ctrl_c_ends_it_without_a_traceback(
    programs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(java, "jars", lambda: ["one.jar"])
    monkeypatch.setattr(java, "check_jars", lambda where: None)
    (tmp_path / "jars").mkdir()
    program(programs / "java", "true")
    monkeypatch.setattr(subprocess, "run", interrupted)

    assert setup.main([]) == 130
    assert "Preparing Spark" in capfd.readouterr().err
    assert list((tmp_path / "jars").iterdir()) == []


def test_jars_without_java_are_not_enough(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "jars" / "jars").mkdir(parents=True)
    (tmp_path / "jars" / "jars" / "one.jar").touch()
    (tmp_path / "jars" / ".complete").touch()

    with pytest.raises(SettingsError, match="Java not found"):
        java.fetch()


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="there is no /proc")
def test_java_reads_the_classes_of_spark_from_the_archive(spark: SparkSession) -> None:
    """`make setup` makes it; the session that all tests share uses it."""
    archive = java.class_archive()
    assert archive is not None
    assert archive.exists(), "run `make setup` again"
    gateway = spark.sparkContext._gateway
    assert gateway is not None

    assert str(archive) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()


def test_spark_does_not_handle_ctrl_c_at_any_time() -> None:
    before = signal.getsignal(signal.SIGINT)

    with _own_signals():
        # As `SparkContext` does before its last calls of Java.
        context.signal.signal(context.signal.SIGINT, signal.SIG_IGN)  # type: ignore[attr-defined]
        assert signal.getsignal(signal.SIGINT) is before

    assert context.signal is signal  # type: ignore[attr-defined]


def test_calls_of_java_that_were_interrupted_are_not_reported(spark: SparkSession) -> None:
    path = "py4j/java_gateway.py"
    said = logging.LogRecord("root", logging.ERROR, path, 1, "while sending command", (), None)

    assert not logging.getLogger().filter(said)
