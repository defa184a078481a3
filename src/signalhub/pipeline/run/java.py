"""What Spark needs besides Python: Java, the JARs of Delta Lake, and an archive of its classes.

The wheel of delta-spark contains no JARs. They are fetched into the user's cache, so that later
sessions start without a network. Spark is not imported: the hub asks here whether its pipeline can
run, and must not load it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from signalhub.wire.errors import SettingsError

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
MINIMUM: Final = 17
ADVICE: Final = (
    "install a Java runtime of version 17 or newer, on Debian or Ubuntu with"
    " `sudo apt-get install openjdk-17-jre-headless`, elsewhere for example with"
    " `brew install openjdk@17`, or set JAVA_HOME"
)

_COMPLETE: Final = ".complete"
_HASHES: Final = "jars.sha256"


def executable() -> str | None:
    """Return the Java that Spark would use; `None` if there is none."""
    home = os.environ.get("JAVA_HOME")
    if home and (candidate := Path(home) / "bin" / "java").is_file():
        return str(candidate)
    return shutil.which("java")


def problem() -> str | None:
    """Return why Spark cannot run here, and what to do; `None` if it can."""
    found = executable()
    if found is None:
        return f"Java not found: {ADVICE}"
    try:
        asked = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        return f"Java cannot be run ({error}): {ADVICE}"
    version = _major(asked.stderr + asked.stdout)
    if version is not None and version < MINIMUM:
        return f"{found} is Java {version}: {ADVICE}"
    return None


def _major(text: str) -> int | None:
    quoted = text.split('"')
    if len(quoted) < 3:
        return None
    head = quoted[1].split(".")
    number = head[1] if head[0] == "1" and len(head) > 1 else head[0]
    return int(number) if number.isdigit() else None


def folder() -> Path:
    """Return the folder of the JARs, unless `SIGNALHUB_JARS` names another one."""
    if chosen := os.environ.get("SIGNALHUB_JARS"):
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "signalhub" / PACKAGE.rpartition(":")[2]


def jars() -> list[str]:
    """Return all JARs, or none if one is missing."""
    where = folder()
    if not (where / _COMPLETE).is_file():
        return []
    return sorted(str(one) for one in (where / "jars").glob("*.jar"))


def expected_jars() -> dict[str, str]:
    """Return the SHA-256 of every JAR by its file name."""
    lines = (Path(__file__).parent / _HASHES).read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def check_jars(where: Path) -> None:
    """Check that a folder has exactly the expected JARs; raises `SettingsError`."""
    expected, found = expected_jars(), {one.name: one for one in where.glob("*.jar")}
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            fault = "is missing"
        elif name not in expected:
            fault = "is not one of the expected JARs"
        elif _digest(found[name]) != expected[name]:
            fault = "does not have the expected SHA-256"
        else:
            continue
        raise SettingsError(f"{where / name} {fault}; delete {folder()} and run the setup again")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch() -> list[str]:
    """Return the JARs, downloaded if necessary; raises `SettingsError` if that fails."""
    if (found := jars()) and executable():
        return found
    if obstacle := problem():
        raise SettingsError(obstacle)
    where = folder()
    where.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where) as work:
        script = (
            "from pyspark.sql import SparkSession; SparkSession.builder.master('local[1]')"
            f".config('spark.jars.packages', '{PACKAGE}').config('spark.jars.ivy', {work!r})"
            ".config('spark.ui.enabled', 'false').getOrCreate().stop()"
        )
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
        if done.returncode or not list((Path(work) / "jars").glob("*.jar")):
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise SettingsError(
                f"the JARs of {PACKAGE} could not be fetched: {last}; check the network and try"
                " again, or copy the folder from another machine and set SIGNALHUB_JARS"
            )
        check_jars(Path(work) / "jars")
        with contextlib.suppress(OSError):
            # Another process may have been faster; then use its folder.
            os.replace(Path(work) / "jars", where / "jars")
    (where / _COMPLETE).touch()
    return jars()


def class_archive() -> Path | None:
    """Return the path of the archive of Spark's classes; `None` if Java or Spark is missing.

    Java maps the classes of an archive into memory instead of loading and verifying each, which
    halves the start of a session. An archive fits only the Java and the JARs it was made with, so
    its name depends on both.
    """
    found, spark = executable(), importlib.util.find_spec("pyspark")
    if found is None or spark is None or spark.origin is None:
        return None
    program, spark_jars = Path(found).resolve(), Path(spark.origin).parent / "jars"
    made = [f"{path} {path.stat().st_mtime_ns}" for path in (program, spark_jars)]
    key = hashlib.sha256("\n".join(made).encode()).hexdigest()[:16]
    return folder() / f"classes-{key}.jsa"
