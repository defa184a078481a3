"""Sets up what the pipeline needs here: Java, the JARs, and an archive of Spark's classes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from signalhub.clock import SystemClock
from signalhub.log.disk import SystemDisk
from signalhub.log.log import Log
from signalhub.log.recovery import recover
from signalhub.pipeline.run import java
from signalhub.settings.model import LogSettings, PipelineSettings
from signalhub.wire.entry import Entry, Kind, MessageBody, encode_body
from signalhub.wire.errors import SettingsError

_DUMP: Final = "--dump-classes"


def main(arguments: list[str]) -> int:
    """Set up everything, and report it; a machine that cannot run Spark is not an error."""
    match arguments:
        case [option, archive] if option == _DUMP:
            dump_classes(Path(archive))
            return 0
    try:
        return _set_up()
    except KeyboardInterrupt:
        return 130


def _set_up() -> int:
    try:
        if java.jars():
            java.check_jars(java.folder() / "jars")
        else:
            if problem := java.problem():
                raise SettingsError(problem)
            print("Fetching the JARs of Delta Lake (87 MB, once)…", file=sys.stderr)
            java.fetch()
    except SettingsError as error:
        print(f"The hub works, but its pipeline stays off: {error}", file=sys.stderr)
        return 0
    archive_classes()
    return 0


def archive_classes() -> None:
    """Create the archive of Spark's classes unless it exists; without it sessions start slower."""
    archive = java.class_archive()
    if archive is None or archive.exists():
        return
    print("Preparing Spark, for faster starts (about a minute, once)…", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=archive.parent) as work:
        made = Path(work) / archive.name
        command = [sys.executable, "-m", __spec__.name, _DUMP, str(made)]
        subprocess.run(command, capture_output=True, check=False)  # noqa: S603
        if made.exists():
            os.replace(made, archive)


def dump_classes(archive: Path) -> None:
    """Run the pipeline on enough messages to need Spark, and archive the loaded classes."""
    from pyspark import SparkContext

    from signalhub.pipeline.lake import lake_of
    from signalhub.pipeline.run.run import Pipeline
    from signalhub.pipeline.run.spark import open_session
    from signalhub.pipeline.tables.piece import FEW

    data = archive.parent / "data"
    disk = SystemDisk(data / "log")
    log = Log(disk, LogSettings(), recover(disk, repair=True), clock=SystemClock())
    message = MessageBody(id="1", copy_id=bytes(16), sender="", type="sample", data=b"{}")
    body = encode_body(message)
    log.append([Entry(Kind.PUBLISHED, "sample", 1, seq + 1, 0, body) for seq in range(FEW + 1)])
    log.close()
    # Otherwise Spark would leave folders where `make` was called.
    scratch = archive.parent / "scratch"
    scratch.mkdir()
    spark = open_session("local[1]", is_brief=True, archive_to=archive, scratch=scratch)
    Pipeline(spark, lake_of(data), data, PipelineSettings()).once()
    spark.stop()
    # Java writes the archive when it exits, which it does when its standard input ends.
    assert SparkContext._gateway is not None
    process = SparkContext._gateway.proc
    process.stdin.close()
    process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
