"""The audit proves a lake that is as it should be, and names everything that is not."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from signalhub.entry import (
    Entry,
    Kind,
    Lost,
    Outcome,
    Settled,
    Settlement,
    StreamDefinition,
    SubscriptionDefinition,
    encode_body,
)
from signalhub.pipeline.audit import NEEDED, Audit, Findings
from signalhub.pipeline.audit_hours import Bounds, Hours
from tests.pipeline.lakeside import Lakeside
from tests.pipeline.scene import NOON_MS, LogScene

HOUR_MS = 3_600_000
HASH = "inbox.1.abcdefghijklmnopqrstuv"
BOB = "@(demo/bob)"
BILLING = "subscription orders/billing"


def definition(name: str) -> SubscriptionDefinition:
    return SubscriptionDefinition(
        name=name,
        mode="shared",
        window=10,
        strict=False,
        ack_timeout_ms=30_000,
        max_deliveries=6,
        backoff_ms=100,
        backoff_cap_ms=1_000,
        heartbeat_ms=None,
        auto_ack=False,
    )


def settled(stream: str, subscription: str, *messages: Settlement, at_ms: int) -> Entry:
    body = encode_body(Settled(subscription, 0, list(messages)))
    return Entry(Kind.SETTLED, stream, 1, 0, at_ms, body)


def live(scene: LogScene) -> None:
    """Three hours of orders, a mailbox and a room; the last ten orders are pending."""
    scene.append(
        [
            scene.about(Kind.STREAM_CREATED, "orders", StreamDefinition(is_topic=True)),
            scene.about(Kind.SUBSCRIPTION_CREATED, "orders", definition("billing")),
        ]
    )
    for hour in range(3):
        at_ms = NOON_MS + hour * HOUR_MS
        orders = [
            scene.published("orders", {"n": n, "of": "x" * 900}, at_ms=at_ms) for n in range(100)
        ]
        first = scene.append(orders)
        acked = [Settlement(order.seq, first + n, Outcome.ACKED) for n, order in enumerate(orders)]
        scene.append(
            [settled("orders", "billing", *acked[: 90 if hour == 2 else 100], at_ms=at_ms)]
        )
        mail = scene.append([scene.mailed(BOB, {"n": hour}, at_ms=at_ms)])
        done = Settlement(hour + 1, mail, Outcome.ACKED)
        scene.append([settled(BOB, "", done, at_ms=at_ms)])
        # Times of rooms are coarse: this one seems to be of the hour before.
        scene.append([scene.said(HASH, at_ms=at_ms - 5_000 if hour else at_ms)])
        scene.seal()
    scene.close()


@pytest.fixture(scope="module")
def origin(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a log of several segments and a lake that has it all."""
    data = tmp_path_factory.mktemp("audited")
    live(LogScene(data, segment_bytes=2**16))
    Lakeside(spark, data).shape(*NEEDED[1:])
    return data


@pytest.fixture
def side(spark: SparkSession, origin: Path, tmp_path: Path) -> Lakeside:
    """The same to be spoiled."""
    return copied(spark, origin, tmp_path / "data")


def copied(spark: SparkSession, origin: Path, data: Path) -> Lakeside:
    shutil.copytree(origin, data)
    return Lakeside(spark, data)


def audited(side: Lakeside, **options: datetime) -> Findings:
    return Audit(side.spark, side.lake, side.data).run(**options)


def exceptions(findings: Findings) -> list[str]:
    return [text for hour in findings.hours for text in hour.exceptions]


def delta(side: Lakeside, name: str, statement: str) -> None:
    """Change a table behind everybody's back."""
    side.spark.sql(statement.format(f"delta.`{side.lake.location(name)}`"))


def test_a_lake_that_holds_the_log_is_proven_hour_by_hour(side: Lakeside) -> None:
    findings = audited(side)

    assert exceptions(findings) == []
    assert findings.verdict == "proven"
    assert [hour.begin.hour for hour in findings.hours] == [12, 13, 14]
    assert findings.total("distinct_rows") == findings.head.offset
    assert [hour.from_offset for hour in findings.hours[1:]] == [
        hour.to_offset + 1 for hour in findings.hours[:-1]
    ]
    assert findings.total("pending") == 10
    assert findings.notes == []
    assert findings.hours[0].segment_sha256
    rows = side.table("audit").orderBy("hour").collect()
    assert [row.verdict for row in rows] == ["proven"] * 3
    assert {row.run_id for row in rows} == {findings.run_id}
    assert [row.distinct_rows for row in rows] == [one.distinct_rows for one in findings.hours]


class TestPlantedFaults:
    """One lake with a fault of each kind, each among entries that have no other."""

    @pytest.fixture(scope="class")
    def findings(
        self, spark: SparkSession, origin: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> Findings:
        side = copied(spark, origin, tmp_path_factory.mktemp("spoiled") / "data")
        assert audited(side, until=datetime(2023, 11, 15, 13, tzinfo=UTC)).verdict == "proven"
        again = side.table("entries").where(F.col("offset") == 30).localCheckpoint()
        swapped = "CASE offset WHEN 40 THEN 41 - 2 ELSE 40 - 2 END + 1"
        delta(side, "entries", "DELETE FROM {} WHERE offset IN (0, 20, 21)")
        delta(side, "entries", f"UPDATE {{}} SET seq = {swapped} WHERE offset IN (40, 41)")
        delta(side, "entries", "UPDATE {} SET body = X'93A178' WHERE offset = 50")
        delta(side, "entries", "UPDATE {} SET body = NULL WHERE offset = 51")
        delta(
            side,
            "entries",
            "UPDATE {} SET body = NULL, removed_at = accepted_at, removed_reason = 'retention'"
            " WHERE offset = 52",
        )
        again.write.format("delta").mode("append").save(side.lake.location("entries"))
        delta(side, "messages", "DELETE FROM {} WHERE offset = 60")
        delta(side, "deliveries", "DELETE FROM {} WHERE offset = 70")
        delta(
            side,
            "deliveries",
            "UPDATE {} SET settled_at = NULL, outcome = 'pending' WHERE offset = 71",
        )
        delta(side, "deliveries", "UPDATE {} SET recipient = 'orders/nobody' WHERE offset = 72")
        return audited(side)

    def test_make_it_wrong_in_their_hour_only(self, findings: Findings) -> None:
        assert findings.verdict == "wrong"
        assert [hour.verdict for hour in findings.hours] == ["wrong", "proven", "proven"]

    def test_a_loss_is_named(self, findings: Findings) -> None:
        assert findings.hours[0].gaps == 3
        assert "entry 0 is missing" in exceptions(findings)
        assert "entries 20 to 21 are missing" in exceptions(findings)

    def test_a_duplicate_is_named(self, findings: Findings) -> None:
        assert findings.hours[0].duplicates == 1
        assert "entry 30 is there 2 times" in exceptions(findings)

    def test_a_reorder_is_named(self, findings: Findings) -> None:
        named = exceptions(findings)

        assert "entry 40 has seq 40 in its stream, after 38" in named
        assert "entry 41 has seq 39 in its stream, after 40" in named
        assert "entry 40 differs from the log: seq" in named

    def test_an_altered_body_is_named(self, findings: Findings) -> None:
        assert "entry 50 differs from the log: body" in exceptions(findings)

    def test_a_body_may_only_go_for_a_reason(self, findings: Findings) -> None:
        named = exceptions(findings)

        assert "entry 51 differs from the log: no body" in named
        assert not any("entry 52" in text for text in named)
        assert findings.hours[0].removed == 1

    def test_a_message_without_its_row_is_named(self, findings: Findings) -> None:
        assert "entry 60 has no row in messages" in exceptions(findings)

    def test_a_deleted_delivery_is_named(self, findings: Findings) -> None:
        named = exceptions(findings)

        assert f"entry 70: its delivery to {BILLING} is missing in deliveries" in named

    def test_a_settlement_that_is_denied_is_named(self, findings: Findings) -> None:
        text = f"entry 71: its delivery to {BILLING} is settled in the log and not in deliveries"

        assert text in exceptions(findings)

    def test_a_delivery_nobody_was_to_get_is_named(self, findings: Findings) -> None:
        text = "entry 72: its delivery to subscription orders/nobody was never due"

        assert text in exceptions(findings)


def test_damage_to_the_log_is_named_and_the_rest_is_still_compared(side: Lakeside) -> None:
    segments = sorted((side.data / "log").glob("*.log"))
    with segments[1].open("r+b") as file:
        file.truncate(20_000)
    last = int(segments[-1].stem)
    delta(side, "entries", f"UPDATE {{}} SET body = X'93A178' WHERE offset = {last}")

    findings = audited(side)

    assert findings.verdict == "wrong"
    named = exceptions(findings)
    assert any(segments[1].name in text for text in named)
    assert f"entry {last} differs from the log: body" in named


def test_a_footer_that_is_gone_is_missed(side: Lakeside) -> None:
    scene = LogScene(side.data, segment_bytes=2**16)
    scene.drop_segments(2)
    scene.close()
    assert audited(side).verdict == "proven"
    footers = sorted((side.data / "log").glob("*.footer"))
    footers[0].unlink()

    findings = audited(side)

    assert findings.verdict == "wrong"
    assert any(footers[1].name in text for text in exceptions(findings))


def test_entries_cut_off_the_log_are_missed(side: Lakeside) -> None:
    last = sorted((side.data / "log").glob("*.log"))[-1]
    with last.open("r+b") as file:
        file.truncate(8_192)

    findings = audited(side)

    assert findings.verdict == "wrong"
    assert any("which the log does not have" in text for text in exceptions(findings))
    assert any("were there and are gone" in text for text in exceptions(findings))


def test_a_lake_behind_the_log_proves_nothing(side: Lakeside) -> None:
    scene = LogScene(side.data, segment_bytes=2**16)
    scene.append([scene.about(Kind.STREAM_CREATED, "more", StreamDefinition(is_topic=True))] * 3)
    scene.close()

    findings = audited(side)

    assert findings.verdict == "behind"
    assert findings.behind == dict.fromkeys(NEEDED, 3)
    (row,) = side.table("audit").collect()
    assert (row.verdict, row.from_offset, row.to_offset) == (
        "behind",
        findings.head.offset - 3,
        findings.head.offset - 1,
    )


def test_what_retention_took_is_an_exception_by_policy(spark: SparkSession, tmp_path: Path) -> None:
    scene = LogScene(tmp_path)
    scene.append(
        [
            scene.about(Kind.STREAM_CREATED, "orders", StreamDefinition(is_topic=True)),
            scene.about(Kind.SUBSCRIPTION_CREATED, "orders", definition("billing")),
            scene.published("orders", {"n": 1}),
            scene.published("orders", {"n": 2}),
            scene.about(Kind.LOST, "orders", Lost("billing", 1, 1)),
            scene.mailed(BOB, {"n": 1}, is_durable=False),
            scene.published("orders", {"n": 3}, at_ms=NOON_MS + HOUR_MS),
        ]
    )
    scene.close()
    side = Lakeside(spark, tmp_path)
    side.shape(*NEEDED[1:])

    findings = audited(side)

    noon, one = findings.hours
    assert noon.exceptions == [
        "entry 5: its delivery to its actor is neither settled nor excused",
        f"entry 2: its delivery to {BILLING} was lost by policy: retention removed it before it"
        " was settled",
    ] or sorted(noon.exceptions)[0].startswith("entry 2")
    assert (noon.overdue, noon.pending, one.pending) == (1, 1, 1)
    assert [noon.verdict, one.verdict] == ["wrong", "proven"]


def test_an_hour_lasts_until_a_later_one_begins(spark: SparkSession) -> None:
    seen = [(1, 10, 0, 104), (1, 11, 100, 180), (1, 9, 150, 150), (1, 12, 181, 199)]

    hours = Hours(spark, seen, [Bounds(1, 0, 220), Bounds(2, 221, 230)], otherwise=13)

    assert [(one.hour, one.from_offset, one.to_offset) for one in hours.all] == [
        (10, 0, 99),
        (11, 100, 180),
        (12, 181, 220),
        (13, 221, 230),
    ]


def test_only_the_first_exceptions_are_named(spark: SparkSession) -> None:
    hours = Hours(spark, [(1, 10, 0, 99)], [Bounds(1, 0, 99)], otherwise=10)
    faults = spark.range(50).selectExpr("0 AS number", "id AS offset", "'it ' || id AS text")

    hours.name(faults, "reorders")

    (hour,) = hours.all
    assert hour.exceptions[0] == "it 0"
    assert hour.exceptions[19:] == ["it 19", "and 30 more like the last one"]
    assert (hour.reorders, hour.verdict) == (50, "wrong")
