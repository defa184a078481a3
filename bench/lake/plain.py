"""The same landing without Spark: pyarrow and deltalake, one process, one core.

    python -m bench.lake.plain DATA TABLE CORE

It decodes with the pipeline's own columns, natively unless `SIGNALHUB_NATIVE` is `off`,
commits equally often, and prints its measurements as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

BATCH_BYTES = 512 * 2**20


def main(data: str, table: str, core: str) -> None:
    # Before the import: deltalake creates one thread per available core.
    os.sched_setaffinity(0, {int(core)})
    import pyarrow as pa
    from deltalake import CommitProperties, Transaction, write_deltalake

    from signalhub.pipeline.lake import application
    from signalhub.pipeline.source.columns import TIME, read_columns
    from signalhub.pipeline.source.plan import LogPosition, Segments, log_of
    from signalhub.pipeline.tables.tables import ENTRIES

    disk = log_of(Path(data))
    segments = Segments(disk)
    end = segments.valid()
    cpu_before, began = _cpu_s(), time.monotonic()
    position = LogPosition(end.epoch, 0)
    while position < end:
        plan = segments.plan(position, end, bytes_max=BATCH_BYTES)
        batches = [batch for one in plan.slices for batch in read_columns(disk, 0, one)]
        rows = pa.Table.from_batches(batches)
        rows = rows.append_column("removed_at", pa.nulls(len(rows), TIME))
        rows = rows.append_column("removed_reason", pa.nulls(len(rows), pa.string()))
        done = Transaction(application(0, end.epoch), plan.end.offset - 1)
        write_deltalake(
            table,
            rows.select(ENTRIES.names),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[done]),
        )
        position = plan.end
    print(json.dumps({"seconds": time.monotonic() - began, "cpu_s": _cpu_s() - cpu_before}))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(*sys.argv[1:4])
