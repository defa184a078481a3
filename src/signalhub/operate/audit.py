"""Prove that everything in the log is in the lake, once and unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.log.disk import Disk
from signalhub.log.footer import SegmentSummary, decode_summary, footer_base, read_summary
from signalhub.log.record import Unreadable
from signalhub.log.segment import base_of
from signalhub.operate.arguments import InvalidArgument
from signalhub.operate.lake import OpenSpark, open_lake, spark_session
from signalhub.pipeline.audit.audit import STEPS, Audit, Findings
from signalhub.pipeline.source.plan import log_of
from signalhub.server.history.answers import Proof, ProofSegment
from signalhub.server.history.reader.tables import PROOF_VERSION

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import SparkSession

    from signalhub.settings.model import Settings

WAIT_S: Final = 120.0
"""Two beats of the slower tables."""


def audit(
    settings: Settings,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    wait_s: float = WAIT_S,
    progress: Callable[[int, int], object] = lambda done, total: None,
    open_spark: OpenSpark = spark_session,
) -> Findings:
    """Check everything up to the head of the log, or the hours that start from `since` to `until`.

    A running pipeline has `wait_s` to catch up. `progress` is called with the number of steps done
    and their total. Raises `InvalidArgument` if there is no lake.
    """
    lake = open_lake(settings)
    done = 0

    def advance(steps: int) -> None:
        nonlocal done
        done += steps
        progress(done, STEPS)

    with ExitStack() as stack:

        def spark() -> SparkSession:
            return stack.enter_context(open_spark(settings))

        opening = spark() if settings.pipeline.spark == "always" else spark
        judging = Audit(opening, lake, Path(settings.data))
        progress(0, STEPS)
        return judging.run(wait_s=wait_s, since=since, until=until, advance=advance)


class ProofCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What became of checking a `proof.json` against a data folder."""

    segments: int
    """Segments of the proof that the log has, or had: their footers say the same."""
    missing: int
    """Segments of the proof of which the data folder has nothing."""
    hours: int
    faults: list[str]
    """What does not fit, one sentence each."""

    @property
    def is_good(self) -> bool:
        """Does everything fit that can be compared?"""
        return not self.faults


def check_proof(data: Path, content: bytes) -> ProofCheck:
    """Compare a `proof.json` with the log of a data folder, without hub and Spark.

    Raises `InvalidArgument` if it is no proof.
    """
    try:
        proof = msgspec.json.decode(content, type=Proof)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"this is no proof: {error}", "give a downloaded proof.json"
        ) from None
    if proof.version != PROOF_VERSION:
        raise InvalidArgument(
            f"the proof has version {proof.version}; this program checks {PROOF_VERSION}",
            "use the release that made it",
        )
    kept = {one.base: one for one in summaries(log_of(data))}
    faults: list[str] = []
    missing = 0
    previous: ProofSegment | None = None
    for one in proof.segments:
        if previous is not None and one.previous_chain != previous.chain:
            faults.append(f"segment {one.base} does not continue the chain of {previous.base}")
        previous = one
        known = kept.get(one.base)
        if known is None:
            missing += 1
        elif (known.chain.hex(), known.previous_chain.hex()) != (one.chain, one.previous_chain):
            faults.append(f"segment {one.base} has another chain in the log")
        elif (known.end, known.epoch) != (one.end, one.epoch):
            faults.append(f"segment {one.base} has other entries in the log")
    chains = {one.chain.hex() for one in kept.values()} | {one.chain for one in proof.segments}
    for hour in proof.hours:
        if hour.segment_sha256 and hour.segment_sha256 not in chains:
            faults.append(f"the hour from offset {hour.from_offset} names an unknown chain")
        if hour.verdict != "proven":
            faults.append(f"the hour from offset {hour.from_offset} is {hour.verdict}")
    return ProofCheck(
        segments=len(proof.segments) - missing,
        missing=missing,
        hours=len(proof.hours),
        faults=faults,
    )


def summaries(disk: Disk) -> Iterator[SegmentSummary]:
    """The summaries of all sealed segments there are, and of deleted ones whose footer is kept."""
    for name in sorted(disk.names()):
        is_segment = base_of(name) is not None
        if not is_segment and footer_base(name) is None:
            continue
        file = disk.open(name, read_only=True)
        try:
            yield read_summary(file) if is_segment else decode_summary(file.read(file.size(), 0))
        except Unreadable:
            # The active segment, or one that waits for its seal.
            continue
        finally:
            file.close()
