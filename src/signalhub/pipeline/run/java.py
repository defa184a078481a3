"""Java and the JARs of Delta Lake: found, or fetched once with Spark's own resolver.

    python -m signalhub.pipeline.run.java

The wheel of delta-spark contains no JARs. They are fetched into the user's cache, so that later
sessions start without a network. Spark is not imported: the hub asks here whether its pipeline can
run, and must not load it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from signalhub.wire.errors import SettingsError

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
JAVA_MIN: Final = 17
JAVA_ADVICE: Final = (
    "install a Java runtime of version 17 or newer, on Debian or Ubuntu with"
    " `sudo apt-get install openjdk-17-jre-headless`, elsewhere for example with"
    " `brew install openjdk@17`, or set JAVA_HOME"
)

_COMPLETE: Final = ".complete"
_JAVA_PACKAGE: Final = "openjdk-17-jre-headless"


def java() -> str | None:
    """Return the Java that Spark would use; `None` if there is none."""
    home = os.environ.get("JAVA_HOME")
    if home and (candidate := Path(home) / "bin" / "java").is_file():
        return str(candidate)
    return shutil.which("java")


def java_problem() -> str | None:
    """Return why Spark cannot run here, and what to do; `None` if it can."""
    found = java()
    if found is None:
        return f"Java not found: {JAVA_ADVICE}"
    try:
        asked = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        return f"Java cannot be run ({error}): {JAVA_ADVICE}"
    version = _major(asked.stderr + asked.stdout)
    if version is not None and version < JAVA_MIN:
        return f"{found} is Java {version}: {JAVA_ADVICE}"
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


def fetch() -> list[str]:
    """Return the JARs, downloaded if necessary; raises `SettingsError` if that fails."""
    if found := jars():
        return found
    if problem := java_problem():
        raise SettingsError(problem)
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
        with contextlib.suppress(OSError):
            # Another process may have been faster; then use its folder.
            os.replace(Path(work) / "jars", where / "jars")
    (where / _COMPLETE).touch()
    return jars()


def install_java() -> bool:
    """Install Java with the system's package manager, if permitted; return whether it did."""
    manager = shutil.which("apt-get")
    if manager is None or os.geteuid() != 0:
        return False
    print("Installing a Java runtime with apt-get…", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-qq"], ["install", "-qq", "--yes", _JAVA_PACKAGE]):
        done = subprocess.run(  # noqa: S603
            [manager, *arguments], stdout=sys.stderr, env=environment, check=False
        )
    return done.returncode == 0 and java() is not None


def main() -> int:
    """Set up Java and the JARs, and report it; a machine that cannot run them is not an error."""
    if jars() and java() is not None:
        return 0
    if java() is None:
        install_java()
    try:
        if problem := java_problem():
            raise SettingsError(problem)
        if not jars():
            print("Fetching the JARs of Delta Lake (87 MB, once)…", file=sys.stderr)
            fetch()
    except SettingsError as error:
        print(f"The hub works, but its pipeline stays off: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
