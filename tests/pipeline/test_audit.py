"""The audit proves a lake that is as it should be, and names everything that is not."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from signalhub.log.folder import look
from signalhub.log.retention import keep_footer
from signalhub.operate.audit import audit
from signalhub.pipeline.audit.audit import NEEDED, STEPS, Audit, Findings, interrupted_erasures
from signalhub.pipeline.audit.hours import Bounds, Hours
from signalhub.pipeline.erase import certificate
from signalhub.settings.model import Settings
from signalhub.wire.entry import (
    Kind,
    LostBody,
    Outcome,
    PlacedBody,
    Settlement,
    StreamDefinitionBody,
)
from tests.pipeline.command import Command
from tests.pipeline.lakeside import Lakeside
from tests.pipeline.scene import NOON_MS, LogScene

HOUR_MS = 3_600_000
HASH = "inbox.1.abcdefghijklmnopqrstuv"
NEW_HASH = "inbox.1.bcdefghijklmnopqrstuvw"
BOB = "@(demo/bob)"
EVE = "@(demo/eve)"
BILLING = "subscription orders/billing"
# Two definitions come first; then every hour has 100 orders, a settlement, two asks, their
# settlements and a room message.
HOUR_ENTRIES = 106
SEQ_OF_140 = 140 - HOUR_ENTRIES - 2 + 101
MAIL = 2 + HOUR_ENTRIES + 101
ORDER_201 = 2 + 2 * HOUR_ENTRIES


def live(scene: LogScene) -> None:
    """Three hours of orders, a mailbox and a room; the last ten orders are pending."""
    scene.append(
        [
            scene.about(Kind.STREAM_CREATED, "orders", StreamDefinitionBody(is_topic=True)),
            scene.subscribed("billing"),
        ]
    )
    for hour in range(3):
        at_ms = NOON_MS + hour * HOUR_MS
        orders = [
            scene.published("orders", {"n": n, "of": "x" * 900}, at_ms=at_ms) for n in range(100)
        ]
        first = scene.append(orders)
        acked = [Settlement(one.seq, first + n, Outcome.ACKED) for n, one in enumerate(orders)]
        some = acked[hour and 1 : 100 - 5 * hour]
        scene.append([scene.settled("orders", "billing", 1, *some, at_ms=at_ms)])
        asks = [
            scene.mailed(BOB, {"n": hour}, at_ms=at_ms),
            scene.mailed(EVE, {"n": hour}, at_ms=at_ms, is_durable=False),
        ]
        mail = scene.append(asks)
        done = Settlement(hour + 1, mail, Outcome.ACKED)
        written = Settlement(0, mail + 1, Outcome.WRITTEN)
        scene.append([scene.settled(BOB, "", 1, done, at_ms=at_ms)])
        scene.append([scene.settled("", "", 1, written, at_ms=at_ms)])
        # Times of rooms are coarse: this one seems to be of the hour before.
        scene.append([scene.said(HASH, at_ms=at_ms - 5_000 if hour else at_ms)])
        scene.seal()
    scene.append(
        [
            scene.about(Kind.LOST, "orders", LostBody("billing", 201, 201), at_ms=at_ms),
            scene.about(Kind.PLACED, "", PlacedBody("order/17", "@(actors/shop)", 1), at_ms=at_ms),
        ]
    )
    scene.close()


def delete_oldest(scene: LogScene) -> None:
    """Delete two segments as retention does: their footers stay."""
    for info in look(scene.disk).segments[:2]:
        keep_footer(scene.disk, info)
        scene.disk.remove(info.name)


class Audited(NamedTuple):
    """A data folder whose lake has all of its log, and what the audit says of it."""

    data: Path
    findings: Findings
    steps: list[tuple[int, int]]


@pytest.fixture(scope="module")
def origin(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    data = tmp_path_factory.mktemp("audited")
    scene = LogScene(data, segment_bytes=2**16)
    live(scene)
    Lakeside(spark, data).shape(*NEEDED[1:])
    delete_oldest(scene)
    steps: list[tuple[int, int]] = []
    findings = audit(Settings(data=str(data)), progress=lambda *one: steps.append(one))
    return Audited(data, findings, steps)


def copied(spark: SparkSession, origin: Audited, data: Path) -> Lakeside:
    """The same, to be spoiled."""
    shutil.copytree(origin.data, data)
    return Lakeside(spark, data)


def exceptions(findings: Findings) -> list[str]:
    return [text for hour in findings.hours for text in hour.exceptions]


def test_a_lake_that_holds_the_log_is_proven_hour_by_hour(
    spark: SparkSession, origin: Audited
) -> None:
    findings = origin.findings
    noon, one, two = findings.hours

    assert [hour.exceptions for hour in (noon, one)] == [[], []]
    assert findings.verdict == "proven"
    assert [hour.begin.hour for hour in findings.hours] == [12, 13, 14]
    assert (noon.from_offset, one.from_offset, two.from_offset) == (
        0,
        noon.to_offset + 1,
        one.to_offset + 1,
    )
    assert findings.total("distinct_rows") == findings.head.offset == two.to_offset + 1
    assert [hour.pending for hour in findings.hours] == [0, 6, 10]
    assert findings.notes == []
    assert all(hour.segment_sha256 for hour in findings.hours)
    assert origin.steps == [(done, STEPS) for done in range(STEPS + 1)]
    rows = Lakeside(spark, origin.data).rows("audit", "hour", "verdict", "run_id", "distinct_rows")
    assert [row[1:] for row in rows] == [
        ("proven", findings.run_id, hour.distinct_rows) for hour in findings.hours
    ]


def test_what_retention_took_is_an_exception_by_policy(origin: Audited) -> None:
    text = f"entry {ORDER_201}: its delivery to {BILLING} was lost by policy: retention removed it"

    assert [found.startswith(text) for found in origin.findings.hours[2].exceptions] == [True]


@pytest.fixture(scope="module")
def spoiled(
    spark: SparkSession, origin: Audited, tmp_path_factory: pytest.TempPathFactory
) -> Lakeside:
    """A lake with a fault of each kind, each among entries that have no other."""
    side = copied(spark, origin, tmp_path_factory.mktemp("spoiled") / "data")

    def rewrite(name: str, rows: DataFrame, **changed: str) -> None:
        """Each statement that changes a table takes much longer than writing it anew."""
        values = {column: F.expr(value) for column, value in changed.items()}
        rows.withColumns(values).write.format("delta").mode("overwrite").save(
            side.lake.location(name)
        )

    entries, deliveries = side.table("entries"), side.table("deliveries")
    is_denied = f"offset IN (171, 173, {MAIL + 1})"
    rewrite(
        "entries",
        entries.where("offset NOT IN (0, 120, 121)").union(entries.where("offset = 130")),
        seq="CASE offset WHEN 140 THEN seq + 1 WHEN 141 THEN seq - 1 ELSE seq END",
        body="CASE WHEN offset = 150 THEN X'93A178' WHEN offset NOT IN (151, 152) THEN body END",
        removed_at="CASE offset WHEN 152 THEN accepted_at END",
        expires_at="CASE offset WHEN 173 THEN accepted_at ELSE expires_at END",
    )
    rewrite("messages", side.table("messages").where("offset <> 160"))
    rewrite(
        "deliveries",
        deliveries.where(f"offset NOT IN (170, {MAIL})"),
        settled_at=f"CASE WHEN NOT {is_denied} THEN settled_at END",
        outcome=f"CASE WHEN {is_denied} THEN 'pending' ELSE outcome END",
        recipient="CASE offset WHEN 172 THEN 'orders/nobody' ELSE recipient END",
    )
    return side


@pytest.fixture(scope="module")
def in_lake(spoiled: Lakeside) -> Findings:
    return Audit(spoiled.spark, spoiled.lake, spoiled.data).run()


FAULTS = {
    "a loss": "entries 120 to 121 are missing",
    "a loss that only an earlier audit knows of": "entry 0 is missing",
    "a duplicate": "entry 130 exists 2 times",
    "a number too high": f"entry 140 has seq {SEQ_OF_140 + 1} in its stream, after"
    f" {SEQ_OF_140 - 1}",
    "a number too low": f"entry 141 has seq {SEQ_OF_140} in its stream, after {SEQ_OF_140 + 1}",
    "an altered number": "entry 140 differs from the log: seq",
    "an altered body": "entry 150 differs from the log: body",
    "a body removed without a reason": "entry 151 differs from the log: no body",
    "a message without its row": "entry 160 has no row in messages",
    "a deleted delivery": f"entry 170: its delivery to {BILLING} is missing in deliveries",
    "a deleted delivery of mail": f"entry {MAIL}: its delivery to its actor is missing in"
    " deliveries",
    "a settlement denied": f"entry 171: its delivery to {BILLING} is settled in the log and not"
    " in deliveries",
    "a delivery without an end": f"entry {MAIL + 1}: its delivery to its actor is overdue: it was"
    " never settled",
    "a message that expired and was passed over": f"entry 173: its delivery to {BILLING} is"
    " overdue: it was never settled",
    "a delivery nobody was to get": "entry 172: its delivery to subscription orders/nobody was"
    " never due",
}


@pytest.mark.parametrize("text", FAULTS.values(), ids=FAULTS)
def test_a_fault_in_the_lake_is_named(in_lake: Findings, text: str) -> None:
    assert text in exceptions(in_lake)


def test_faults_make_their_hours_wrong_and_no_other(in_lake: Findings) -> None:
    noon, one, _ = in_lake.hours

    assert in_lake.verdict == "wrong"
    assert [hour.verdict for hour in in_lake.hours] == ["wrong", "wrong", "proven"]
    assert (noon.from_offset, noon.gaps) == (0, 1)
    assert (one.gaps, one.duplicates, one.removed) == (2, 1, 1)
    assert [hour.overdue for hour in in_lake.hours] == [0, 2, 0]
    named = exceptions(in_lake)
    assert not any("entry 152" in text for text in named), "its body went for a reason"
    assert not any("demo" in text for text in named), "nobody is named"


def test_only_the_hours_asked_for_are_judged(spoiled: Lakeside) -> None:
    one = datetime.fromtimestamp((NOON_MS + HOUR_MS) / 1000, UTC)
    judging = Audit(spoiled.spark, spoiled.lake, spoiled.data)

    findings = judging.run(since=one + timedelta(minutes=1), until=one + timedelta(hours=2))

    assert [hour.begin.hour for hour in findings.hours] == [14]
    assert findings.verdict == "proven"


def test_a_log_that_lost_a_footer_half_a_segment_and_its_end_is_named(
    spark: SparkSession,
    origin: Audited,
    tmp_path: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if the entries were many, which Spark reads."""
    monkeypatch.setattr("signalhub.pipeline.audit.log.FEW", 0)
    side = copied(spark, origin, tmp_path / "data")
    log = side.data / "log"
    footers, segments = sorted(log.glob("*.footer")), sorted(log.glob("*.log"))
    footers[0].unlink()
    os.truncate(segments[1], 20_000)
    os.truncate(segments[-1], 1_000)
    whole = int(segments[0].stem)
    entries = f"delta.`{side.lake.location('entries')}`"
    spark.sql(f"UPDATE {entries} SET kind = 'x' WHERE offset = {whole}")

    wrong = command("audit", "--data", str(side.data), "--json")

    *hours, closing = wrong.rows()
    named = [text for hour in hours for text in hour["exceptions"]]
    assert (wrong.code, closing["verdict"]) == (1, "wrong")
    begin = int(footers[0].name.split(".")[0])
    assert f"the log: {footers[1].name}: it should start at {begin}" in named
    assert any(text.startswith(f"the log: {segments[1].name}") for text in named)
    assert any("which the log does not have" in text for text in named)
    # Whole segments are compared all the same.
    assert f"entry {whole} differs from the log: kind" in named


def test_a_lake_behind_the_log_proves_nothing(
    spark: SparkSession, origin: Audited, tmp_path: Path, command: Command
) -> None:
    side = copied(spark, origin, tmp_path / "data")
    scene = LogScene(side.data, segment_bytes=2**16)
    scene.append(
        [scene.about(Kind.STREAM_CREATED, "more", StreamDefinitionBody(is_topic=True))] * 3
    )
    scene.close()

    done = command("audit", "--data", str(side.data), "--json")

    (closing,) = done.rows()
    assert (done.code, closing["verdict"]) == (2, "behind")
    assert closing["behind"] == dict.fromkeys(NEEDED, 3)
    rows = side.rows("audit", "run_id", "verdict", "from_offset", "to_offset")
    head = closing["head"]
    assert (closing["run_id"], "behind", head - 2, head) in rows


def test_what_a_later_epoch_gave_up_is_named_and_the_rest_is_proven(
    spark: SparkSession, tmp_path: Path
) -> None:
    scene = LogScene(tmp_path)
    side = Lakeside(spark, tmp_path)
    scene.publish(30, batch=10)
    side.shape(*NEEDED[1:])
    scene.lose_the_end()
    scene.publish(5, "invoices")
    side.shape(*NEEDED[1:])
    scene.close()

    findings = Audit(spark, side.lake, side.data).run()

    first, second = findings.hours
    assert [(hour.from_offset, hour.to_offset) for hour in findings.hours] == [(0, 19), (20, 24)]
    assert findings.total("distinct_rows") == findings.head.offset == 25
    assert first.epoch < second.epoch
    assert exceptions(findings) == [
        f"the lake has 10 entries, 20 to 29 of epoch {first.epoch}, which a later epoch discarded"
    ]
    assert (findings.verdict, first.verdict, second.verdict) == ("wrong", "wrong", "proven")


@pytest.mark.parametrize("has_lost", [True, False])
def test_rooms_may_skip_positions_after_a_loss_and_at_no_other_time(
    has_lost: bool, spark: SparkSession, tmp_path: Path
) -> None:
    scene = LogScene(tmp_path)
    side = Lakeside(spark, tmp_path)
    for _ in range(3):
        scene.append([scene.said(HASH)])
    if has_lost:
        scene.lose_the_end()
    for inbox in (HASH, NEW_HASH):
        scene.skip_to(inbox, 60_000_000_000)
        scene.append([scene.said(inbox)])
        scene.append([scene.said(inbox)])
    side.shape(*NEEDED[1:])
    scene.close()

    findings = Audit(spark, side.lake, side.data).run()

    assert findings.total("reorders") == (0 if has_lost else 2)
    assert findings.verdict == ("proven" if has_lost else "wrong")


def test_an_hour_lasts_until_a_later_one_begins() -> None:
    seen = [(1, 10, 0, 104), (1, 11, 100, 180), (1, 9, 150, 150), (1, 12, 181, 199)]

    hours = Hours(seen, [Bounds(1, 0, 220), Bounds(2, 221, 230)], otherwise=13)

    assert [(one.hour, one.from_offset, one.to_offset) for one in hours.all] == [
        (10, 0, 99),
        (11, 100, 180),
        (12, 181, 220),
        (13, 221, 230),
    ]


def test_only_the_first_exceptions_are_named(spark: SparkSession) -> None:
    hours = Hours([(1, 10, 0, 99)], [Bounds(1, 0, 99)], otherwise=10)
    faults = spark.range(50).selectExpr("0 AS number", "id AS offset", "'it ' || id AS text")

    hours.name(faults, "reorders")

    (hour,) = hours.all
    assert hour.exceptions[0] == "it 0"
    assert hour.exceptions[19:] == ["it 19", "and 30 more like the last one"]
    assert (hour.reorders, hour.verdict) == (50, "wrong")


def test_what_a_repeated_comparison_finds_is_named_once() -> None:
    hours = Hours([(7, 3, 0, 9)], [Bounds(7, 0, 9)], 3)
    hours.all[0].name(["entry 1 is missing"], 1, is_wrong=False)

    def fail() -> None:
        with hours.undone_on_error():
            hours.all[0].name(["entry 5 differs"], 1)
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fail()
    assert not hours.all[0].is_wrong
    with hours.undone_on_error():
        hours.all[0].name(["entry 5 differs"], 1)

    assert hours.all[0].exceptions == ["entry 1 is missing", "entry 5 differs"]


def test_an_interrupted_erasure_is_named_with_what_completes_it(tmp_path: Path) -> None:
    done = certificate.begin(tmp_path, "actor", "@(demo/bob)", 1)
    certificate.complete(tmp_path, done, 2)
    assert interrupted_erasures(tmp_path) == []

    begun = certificate.begin(tmp_path, "actor", "@(demo/ada)", 1_700_049_600_000)
    (note,) = interrupted_erasures(tmp_path)

    assert note.startswith(f"The erasure {begun.id} of 2023-11-15 12:00 UTC was interrupted")
    assert "Repeat the same `signalhub erase`" in note
    assert "ada" not in note
