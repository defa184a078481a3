"""The Spark session: settings for small machines, Delta Lake, little output."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from pyspark import java_gateway
from pyspark.core import context
from pyspark.sql import SparkSession

from signalhub.pipeline.run import java
from signalhub.pipeline.run.status import folder_of
from signalhub.wire.errors import SettingsError

EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

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
    # Hadoop sets modes itself and does not look at the umask of its process.
    "spark.hadoop.fs.permissions.umask-mode": "077",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # Bodies and ids hardly ever repeat; zstd compresses them to a fraction of what snappy does.
    "spark.hadoop.parquet.enable.dictionary#body": "false",
    "spark.hadoop.parquet.enable.dictionary#id": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # A busy machine is no failure. Spark's limit for the start of a Python process is fixed.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.network.timeout": "600s",
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
}
_ALWAYS_SAID: Final = re.compile(
    rb"WARNING: Using incubator modules"
    rb"|Setting default log level to"
    rb"|To adjust logging level use"
    rb"|Using Spark's default log4j profile"
    rb"|Deleted \d+ files and directories in a total of"
)
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_DRIVER_OPTIONS: Final = (
    f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    # One garbage collector thread instead of one per core.
    "-XX:+UseSerialGC",
    # It would be a file for each process in /tmp.
    "-XX:-UsePerfData",
    # Plans and their texts are deeply nested.
    "-Xss8m",
)


def open_session(
    master: str,
    *,
    memory: str = "1g",
    name: str = "signalhub",
    is_brief: bool = False,
    archive_to: Path | None = None,
    scratch: Path | None = None,
) -> SparkSession:
    """Create a session with Delta Lake; raises `SettingsError` if that is impossible.

    A brief one does not compile code that runs only a few times. `archive_to` is where Java writes
    the classes it has loaded when it exits, and `scratch` a folder for temporary files.

    Settings in `spark-defaults.conf` (see `SPARK_CONF_DIR`) come first; a master given there is
    used unless one is given here.
    """
    found = java.fetch()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Otherwise Spark would listen on the address of the host's name.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    if master:
        builder = builder.master(master)
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    common = _java_options(archive_to, is_brief=is_brief)
    local: list[str] = []
    if scratch is not None:
        builder = builder.config("spark.local.dir", str(scratch))
        builder = builder.config("spark.sql.warehouse.dir", (scratch / "warehouse").as_uri())
        names = ("java.io.tmpdir", "derby.system.home")
        local = [shlex.quote(f"-D{name}={scratch}") for name in names]
    builder = (
        builder.config("spark.jars", ",".join(found))
        .config("spark.driver.memory", memory)
        .config("spark.driver.extraJavaOptions", " ".join([*_DRIVER_OPTIONS, *common, *local]))
        .config("spark.executor.extraJavaOptions", " ".join(common))
    )
    if is_brief:
        for key, value in _BRIEF.items():
            builder = builder.config(key, value)
    # Errors in our functions are raised again where they were called. Calls of Java that Ctrl-C has
    # interrupted are reported to the root logger.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)
    try:
        with _filtered_errors(), _own_signals(), _no_orphan():
            return builder.getOrCreate()
    except Exception as error:
        raise SettingsError(java.problem() or f"Spark cannot start: {error}") from error


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module not in ("clientserver", "java_gateway")


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep our handler of Ctrl-C: Spark's calls Java during other calls, and prints traces.

    Spark sets its own before its last calls of Java, so it must not come into force at all.
    """
    spark: Any = context
    spark.signal = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda number, handler: None)
    try:
        yield
    finally:
        spark.signal = signal


@contextmanager
def _no_orphan() -> Iterator[None]:
    """End Java if it cannot be used, such as after Ctrl-C: it would wait for us for ever.

    Java ends with its standard input, but only once it has told us where it listens; before that,
    only who started it knows it.
    """
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*arguments, umask=0o077, **options))  # noqa: S603
        return started[-1]

    gateway: Any = java_gateway
    gateway.Popen = start
    try:
        yield
    except BaseException:
        for process in started:
            process.kill()
            process.wait()
        raise
    finally:
        gateway.Popen = subprocess.Popen


@contextmanager
def session(
    master: str,
    *,
    memory: str = "1g",
    log_level: str | None = None,
    is_brief: bool = False,
    data: Path | None = None,
) -> Iterator[SparkSession]:
    """Open a session while the block runs; one that was created here before stays open.

    Temporary files are kept in the folder `data`, if it can be written.
    """
    found = SparkSession.getActiveSession()
    if found is not None and found.sparkContext.getConf().contains(_OURS):
        # The active one may have other settings, such as one for queries.
        yield found.newSession()
        return
    with _scratch(data) as scratch:
        yield from _opened(
            open_session(master, memory=memory, is_brief=is_brief, scratch=scratch), log_level
        )


def _opened(opened: SparkSession, log_level: str | None) -> Iterator[SparkSession]:
    if log_level is not None:
        opened.sparkContext.setLogLevel(log_level)
    try:
        yield opened
    except KeyboardInterrupt:
        # Nobody waits for work that is no longer wanted, and what was interrupted may be a call.
        _kill_java(opened)
        raise
    except BaseException:
        opened.stop()
        raise
    opened.stop()


@contextmanager
def _scratch(data: Path | None) -> Iterator[Path]:
    """Create a folder for the temporary files of this process, and remove it at the end."""
    where = None
    if data is not None:
        where = folder_of(data).absolute() / "spark"
        try:
            where.mkdir(parents=True, exist_ok=True)
            _remove_orphaned(where)
        except OSError:
            # Whoever may only read the lake can query it.
            where = None
    if where is not None and not os.access(where, os.W_OK):
        where = None
    scratch = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=where))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_orphaned(where: Path) -> None:
    """Remove what processes have left behind that were killed."""
    for one in where.iterdir():
        pid = one.name.partition("-")[0]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(one, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _kill_java(session: SparkSession) -> None:
    process = getattr(session.sparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()
        process.wait()


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


def _java_options(archive_to: Path | None, *, is_brief: bool) -> list[str]:
    """Return what driver and executors have in common."""
    options = ["-XX:TieredStopAtLevel=1"] if is_brief else []
    if archive_to is not None:
        options.append(f"-XX:ArchiveClassesAtExit={archive_to}")
    elif archive := java.class_archive():
        # Java ignores an archive that is missing or does not fit, and need not say so.
        options += [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off"]
    return options
