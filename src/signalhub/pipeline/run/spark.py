"""The Spark session: settings for small machines, Delta Lake, little output."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from signalhub.wire.errors import SettingsError

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
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
    asked = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
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
            last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
            raise SettingsError(
                f"the JARs of {PACKAGE} could not be fetched: {last}; check the network and try"
                " again, or copy the folder of another machine and set SIGNALHUB_JARS"
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
    """Set up Java and the JARs, and report it; a machine that cannot have them is not an error."""
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
        print(f"The hub works, its pipeline stays off: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())


_OURS: Final = "spark.signalhub"
_SETTINGS: Final = {
    _OURS: "true",
    "spark.sql.extensions": EXTENSION,
    "spark.sql.catalog.spark_catalog": CATALOG,
    "spark.sql.session.timeZone": "UTC",
    "spark.scheduler.mode": "FAIR",
    # Spark's defaults are made for clusters; on two cores they turn a second into a minute.
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # Every commit is a file that each plan has to list, so write no checksum files beside commits.
    # Data files keep theirs, and other file systems need the usual local one.
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # Bodies and ids hardly ever repeat; zstd compresses them to a fraction of what snappy does.
    "spark.hadoop.parquet.enable.dictionary#body": "false",
    "spark.hadoop.parquet.enable.dictionary#id": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stopTimeout": "10s",
    # Old checkpoints and finished batches of a long-running process must not fill the memory.
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.ui.retainedJobs": "5",
    "spark.ui.retainedStages": "5",
    "spark.ui.retainedTasks": "50",
    "spark.sql.ui.retainedExecutions": "5",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "false",
}
_BRIEF: Final = {
    "spark.sql.codegen.wholeStage": "false",
    # Each stage would be a separate job, and the rest would be planned again.
    "spark.sql.adaptive.enabled": "false",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
_ALWAYS_SAID: Final = re.compile(
    rb"WARNING: Using incubator modules"
    rb"|Setting default log level to"
    rb"|To adjust logging level use"
    rb"|Using Spark's default log4j profile"
    rb"|Deleted \d+ files and directories in a total of"
)
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")


def open_session(
    master: str, *, memory: str = "1g", name: str = "signalhub", is_brief: bool = False
) -> SparkSession:
    """Create a session with Delta Lake; raises `SettingsError` if that is impossible.

    A brief one does not compile code that runs only a few times.

    Settings in `spark-defaults.conf` (see `SPARK_CONF_DIR`) come first; a master given there is
    used unless one is given here.
    """
    found = fetch()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Spark looks for data sources in every task; it finds them by the name of the package.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    if master:
        builder = builder.master(master)
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    builder = (
        builder.config("spark.jars", ",".join(found))
        .config("spark.driver.memory", memory)
        .config("spark.driver.extraJavaOptions", _java_options(is_brief=is_brief))
    )
    if is_brief:
        for key, value in _BRIEF.items():
            builder = builder.config(key, value)
    try:
        with _filtered_errors():
            session = builder.getOrCreate()
    except Exception as error:
        raise SettingsError(f"Spark cannot start: {error}") from error
    # Errors in our functions are raised again where they were called.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    return session


@contextmanager
def session(
    master: str, *, memory: str = "1g", log_level: str | None = None, is_brief: bool = False
) -> Iterator[SparkSession]:
    """Open a session while the block runs; one that was created here before stays open."""
    found = SparkSession.getActiveSession()
    if found is not None and found.sparkContext.getConf().contains(_OURS):
        # The active one may have other settings, such as one for queries.
        yield found.newSession()
        return
    opened = open_session(master, memory=memory, is_brief=is_brief)
    if log_level is not None:
        opened.sparkContext.setLogLevel(log_level)
    try:
        yield opened
    finally:
        opened.stop()


@contextmanager
def _filtered_errors() -> Iterator[None]:
    """Redirect Java's output to stderr, without its usual noise.

    None of it may reach stdout, which belongs to the command.
    """
    sys.stdout.flush()
    reading, writing = os.pipe()
    kept = {number: os.dup(number) for number in (1, 2)}
    for number in kept:
        os.dup2(writing, number)
    os.close(writing)
    try:
        yield
    finally:
        for number, copy in kept.items():
            os.dup2(copy, number)
        os.close(kept[1])
        threading.Thread(target=_relay, args=(reading, kept[2]), daemon=True).start()


def _relay(reading: int, errors: int) -> None:
    with open(reading, "rb", buffering=0) as source, open(errors, "wb", buffering=0) as target:
        rest = b""
        while data := source.read(2**16):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not _ALWAYS_SAID.match(line):
                    target.write(line + b"\n")
        if rest:
            target.write(rest)


def _java_options(*, is_brief: bool) -> str:
    options = [
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        # One garbage collector thread instead of one per core.
        "-XX:+UseSerialGC",
        # Plans and their texts are deeply nested.
        "-Xss8m",
    ]
    if is_brief:
        options.append("-XX:TieredStopAtLevel=1")
    return " ".join(options)
