"""How long whole commands about a small lake take, from their start to their exit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from bench.commands import COMMAND, CommandFailed, whole
from bench.lake.logs import fill, open_log, publications
from bench.lake.site import folder
from bench.subjects import Column, MeasurementFailed, Plan, Sample, Subject

NAME = "commands"
FIRST = "pipeline once, into a new lake"
AGAIN = "pipeline once, again"
COUNT = "sql, counting rows"
AUDIT = "audit"

ENTRIES = 1_000
MORE = 100
_QUERY = "SELECT count(*) FROM messages"


def measure(plan: Plan) -> Iterator[Sample]:
    """Run them one after the other, each round with a log of its own."""
    for _ in range(plan.rounds):
        with folder() as place:
            data = place / "data"
            _publish(data, 0, ENTRIES)
            yield _sample(FIRST, "pipeline", "once", "--data", str(data))
            _publish(data, ENTRIES, MORE)
            yield _sample(AGAIN, "pipeline", "once", "--data", str(data))
            yield _sample(COUNT, "sql", _QUERY, "--data", str(data))
            yield _sample(AUDIT, "audit", "--data", str(data))


def _publish(data: Path, first: int, count: int) -> None:
    """Let a log grow by messages of several topics; no hub is running afterwards."""
    with open_log(data) as log:
        fill(log, islice(publications(), first, None), count)


def _sample(case: str, *arguments: str) -> Sample:
    try:
        wall_s, cpu_s = whole([COMMAND, *arguments])
    except CommandFailed as error:
        raise MeasurementFailed(str(error)) from error
    return Sample(case, {"wall_s": wall_s, "cpu_s": cpu_s})


SUBJECT = Subject(
    name=NAME,
    title=f"commands: a log of {ENTRIES:,} entries, then {MORE} more; whole commands",
    columns=(Column("s", "wall_s", 2), Column("CPU s", "cpu_s", 2)),
    measure=measure,
)
