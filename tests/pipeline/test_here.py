"""What the pipeline does without Spark is what Spark does, and either goes on after the other."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from signalhub.log.disk import SystemDisk
from signalhub.log.folder import look
from signalhub.log.retention import keep_footer
from signalhub.pipeline.audit import proof
from signalhub.pipeline.audit.audit import Audit
from signalhub.pipeline.audit.hours import Bounds, Hours
from signalhub.pipeline.commit import LOG
from signalhub.pipeline.lake import Lake, Position, lake_of
from signalhub.pipeline.land.land import checkpointed
from signalhub.pipeline.run.run import Pipeline
from signalhub.pipeline.run.status import folder_of
from signalhub.pipeline.source.plan import LogPosition
from signalhub.pipeline.source.source import BatchReader
from signalhub.pipeline.tables import catch_up, piece
from signalhub.pipeline.tables.create import ensure_table_here, ensure_tables_here
from signalhub.pipeline.tables.piece import columns_of
from signalhub.pipeline.tables.tables import DELIVERIES, ENTRIES, MESSAGES, TABLES
from signalhub.pipeline.tables.variant import Unusual, encode
from signalhub.settings.model import PipelineSettings as Settings
from signalhub.wire.entry import (
    Body,
    BroadcastBody,
    CursorBody,
    DeadLetterOrigin,
    Entry,
    Kind,
    LostBody,
    MessageBody,
    Outcome,
    RemovedBody,
    Settlement,
    SubscriptionDefinitionBody,
    encode_body,
)
from tests.pipeline.here_worker import POINTS
from tests.pipeline.lakeside import Lakeside
from tests.pipeline.scene import NOON_MS, LogScene
from tests.support.volume import PIPELINE_KILLS

ROOT = Path(__file__).resolve().parents[2]
LATER_MS = 2**42
BOB = "@(demo/bob)"


def no_spark() -> NoReturn:
    raise AssertionError("Spark was started")


def first_commit(table: Path) -> dict[str, Any]:
    """What the first commit declares, without what differs each time."""
    lines = (table / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    found: dict[str, Any] = {}
    for line in filter(None, lines):
        found |= json.loads(line)
    metadata, protocol = found["metaData"], found["protocol"]
    metadata["schemaString"] = json.loads(metadata["schemaString"])
    del found["commitInfo"], metadata["id"], metadata["createdTime"]
    for name in ("readerFeatures", "writerFeatures"):
        protocol[name] = sorted(protocol[name])
    return found


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_made_as_spark_makes_it(spark: SparkSession, tmp_path: Path, name: str) -> None:
    ours, theirs = Lake(str(tmp_path / "ours")), tmp_path / "theirs"

    assert ensure_table_here(ours, name)
    spark.sql(TABLES[name].create(str(theirs)))

    assert first_commit(Path(ours.location(name))) == first_commit(theirs)
    assert ensure_table_here(ours, name), "it is there already"
    assert not TABLES[name].cluster_by or "domainMetadata" in first_commit(theirs)


def test_what_a_table_shall_remember_is_part_of_it(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    week = Settings(vacuum_s=7 * 86_400)

    assert ensure_tables_here(lake, week)

    table = lake.open(ENTRIES.name)
    assert table is not None
    kept = table.metadata().configuration["delta.deletedFileRetentionDuration"]
    assert kept == "interval 7 days"
    assert not ensure_tables_here(lake, Settings()), "changing it is left to Spark"


# JSON as VARIANT.

ODD = (
    *('{"a":1,"a":2}', "", "nul", "NaN", "[1,]", '"\\ud800"', "1 2", "01", ".5", "[" * 150),
    *("-0", "-0.0", "0.000", "1e5", "1E-7", "1e400", "9223372036854775808", "100.00"),
    '{"\U0001f600":1,"\uff00":2}',
    json.dumps(["x" * 63, "x" * 64, "é" * 32]),
    json.dumps({f"k{n:03}": n for n in range(300)}),
    json.dumps({"long": ["x" * 70_000], "n": [None, True, False] * 100}),
)


def _text(chance: random.Random) -> str:
    ranges = ((32, 126), (0x80, 0xD7FF), (0xE000, 0x10FFFF))
    signs = [chr(chance.randint(*chance.choice(ranges))) for _ in range(chance.randint(0, 6))]
    return json.dumps("".join(signs), ensure_ascii=chance.random() < 0.5)


def _number(chance: random.Random) -> str:
    most = 2 ** chance.randint(1, 140)
    whole = str(chance.randint(-most, most))
    fraction = "0" * chance.randint(0, 4) + str(chance.randint(0, 10 ** chance.randint(1, 45)))
    return chance.choice((whole, f"{whole}.{fraction}", repr(chance.uniform(-1e20, 1e20))))


def _json(chance: random.Random, depth: int = 0) -> str:
    kind = chance.randint(2 * (depth > 3), 9) if depth < 5 else 9
    if kind < 2:
        return f"[{', '.join(_json(chance, depth + 1) for _ in range(chance.randint(0, 5)))}]"
    if kind < 5 and depth < 4:
        names = {_text(chance) for _ in range(chance.randint(0, 5))}
        return "{" + ",".join(f"{name}: {_json(chance, depth + 1)}" for name in names) + "}"
    return chance.choice((_number(chance), _text(chance), "null", "true", "false"))


def test_json_becomes_the_same_variant_to_the_byte(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(18)
    texts = [*ODD, *(_json(chance) for _ in range(2_000))]
    numbered = pa.table({"number": range(len(texts)), "text": texts})
    pq.write_table(numbered, tmp_path / "texts.parquet")
    rows = spark.read.parquet(str(tmp_path / "texts.parquet"))

    found = rows.select("number", F.try_parse_json("text").alias("value")).collect()

    refused = 0
    for row in found:
        try:
            ours = encode(texts[row.number])
        except Unusual:
            refused += 1
            continue
        assert row.value is not None, texts[row.number]
        theirs = {"value": row.value.value, "metadata": row.value.metadata}
        assert ours == theirs, texts[row.number]
    assert 5 <= refused <= len(ODD) + 2_000 // 20


# Logs of all kinds of entries, derived both ways.


class Life:
    """Writes entries of all kinds, chosen at random; references are to messages that exist."""

    def __init__(self, scene: LogScene, seed: int) -> None:
        self._scene = scene
        self._chance = random.Random(seed)
        self._generations: dict[str, int] = {}
        self._published: list[tuple[int, int]] = []
        self._mailed: list[tuple[int, int]] = []
        self._at_ms = NOON_MS

    def write(self, count: int) -> None:
        for _ in range(count):
            self._at_ms += self._chance.choice((0, 1, 700, 40_000))
            self._scene.append([self._entry()])

    def _entry(self) -> Entry:
        chance = self._chance
        kinds: tuple[tuple[int, Callable[[], Entry]], ...] = (
            (40, self._order),
            (8, self._mail),
            (20, self._settled),
            (6, self._room),
            (3, self._dead_letter),
            (3, self._subscribed),
            (3, self._moved),
            (1, self._unsubscribed),
            (2, lambda: self._about(Kind.BROADCAST, "", BroadcastBody("b", BOB, b"{}"))),
            (1, lambda: self._about(Kind.LOST, "orders", LostBody("a", 1, chance.randint(1, 9)))),
            (1, self._removed),
            (1, lambda: self._about(Kind.STREAM_DELETED, BOB, Body())),
        )
        weights, makers = [one[0] for one in kinds], [one[1] for one in kinds]
        return self._chance.choices(makers, weights)[0]()

    def _about(self, kind: Kind, stream: str, body: Body) -> Entry:
        return self._scene.about(kind, stream, body, at_ms=self._at_ms)

    def _order(self) -> Entry:
        made = self._scene.published(
            "orders", json.loads(_json(self._chance, 2)), at_ms=self._at_ms
        )
        self._published.append((made.seq, self._scene.head))
        return made

    def _mail(self) -> Entry:
        is_durable = self._chance.random() < 0.7
        ttl = self._chance.choice((None, 500.0))
        made = self._scene.mailed(BOB, 1, at_ms=self._at_ms, is_durable=is_durable, ttl=ttl)
        self._mailed.append((made.seq, self._scene.head))
        return made

    def _room(self) -> Entry:
        expires_ms = self._chance.choice((NOON_MS + 1, LATER_MS))
        stream = f"inbox.1.{'abcdef'[self._chance.randrange(6)] * 22}"
        return self._scene.said(stream, at_ms=self._at_ms, expires_ms=expires_ms)

    def _dead_letter(self) -> Entry:
        name = self._chance.choice(("", "a"))
        topic = BOB if name == "" else "orders"
        origin = DeadLetterOrigin(topic, name, "1", 1, 3, "bad", 0, self._at_ms, ["w"])
        entry = self._scene.published("letters", 1, at_ms=self._at_ms)
        body = MessageBody("d", bytes(16), BOB, "order", b'{"a":1.50}', dead=origin)
        return Entry(entry.kind, entry.stream, 1, entry.seq, entry.at_ms, encode_body(body))

    def _settled(self) -> Entry:
        chance = self._chance
        is_mail = bool(self._mailed) and chance.random() < 0.3
        some = self._mailed if is_mail else self._published
        if not some:
            return self._order()
        ends = [
            Settlement(
                *chance.choice(some),
                chance.choice(list(Outcome)),
                chance.randint(0, 3),
                0,
                chance.choice((0, NOON_MS)),
                chance.choice((0, self._at_ms)),
                chance.choice(("", "w", "w2")),
                chance.choice(("", "busy")),
            )
            for _ in range(chance.randint(1, 4))
        ]
        distinct = list({one.offset: one for one in ends}.values())
        name = "" if is_mail else chance.choice(("a", "b"))
        generation = 0 if is_mail else self._generations.get(name, 1)
        stream = BOB if is_mail else "orders"
        return self._scene.settled(stream, name, generation, *distinct, at_ms=self._at_ms)

    def _subscribed(self) -> Entry:
        name = self._chance.choice(("a", "b"))
        self._generations.setdefault(name, 1)
        return self._scene.subscribed(name, start=self._chance.randint(0, 9))

    def _moved(self) -> Entry:
        name = self._chance.choice(("a", "b"))
        generation = self._generations[name] = self._generations.get(name, 1) + 1
        floor = self._chance.randint(0, 20)
        body = CursorBody(name, generation, floor, floor + 10, [], {}, {})
        return self._about(Kind.CURSOR, "orders", body)

    def _unsubscribed(self) -> Entry:
        name = self._chance.choice(("a", "b"))
        self._generations[name] = 1
        body = SubscriptionDefinitionBody(name, "", 1, False, 1, 1, 1, 1, None, False)
        return self._about(Kind.SUBSCRIPTION_DELETED, "orders", body)

    def _removed(self) -> Entry:
        stream, reason = self._chance.choice((("letters", "redriven"), ("orders", "purged")))
        first = self._chance.randint(1, 5)
        return self._about(Kind.REMOVED, stream, RemovedBody([(first, first + 2)], reason))


def contents(side: Lakeside, name: str) -> list[str]:
    """All rows of a table, read by Spark, in order."""
    rows = side.table(name).selectExpr("to_json(struct(*)) AS row").collect()
    return sorted(row["row"] for row in rows)


@pytest.mark.parametrize("seed", range(1, 2 + PIPELINE_KILLS))
def test_every_table_is_the_same_whoever_derives_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    scene = LogScene(tmp_path / "here")
    life = Life(scene, seed)
    here, there = Lakeside(spark, tmp_path / "here"), Lakeside(spark, tmp_path / "there")
    shutil.rmtree(tmp_path / "there")
    life.write(150)
    here.shape()
    life.write(60)
    # What Spark goes on with is what was derived here.
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    here.shape()
    with monkeypatch.context() as patched:
        patched.setattr(piece, "FEW", 0)
        there.shape()
    scene.close()
    alone = Lakeside(spark, tmp_path / "alone")
    shutil.copytree(tmp_path / "here" / "log", tmp_path / "alone" / "log")
    with monkeypatch.context() as patched:
        patched.setattr(piece, "FEW", 0)
        # The same pieces: an event that ends deliveries also meets later ones of its own piece.
        alone.shape(piece_entries=150)

    for name in catch_up.ORDER:
        assert contents(here, name) == contents(there, name), name
        assert contents(here, name) == contents(alone, name), name
    assert here.count("messages", "topic IS NOT NULL") > 50
    assert here.count("deliveries", "settled_at IS NOT NULL") > 20
    ours, theirs = statistics(here.lake), statistics(alone.lake)
    assert ours == theirs


def statistics(lake: Lake) -> dict[str, Any]:
    """What readers skip the files of two tables by, over all files."""
    found: dict[str, Any] = {}
    for name in (ENTRIES.name, MESSAGES.name, "inbox"):
        table = lake.open(name)
        assert table is not None
        files = pa.table(table.get_add_actions(flatten=True))
        for column in files.column_names:
            merge = {"min": pc.min, "max": pc.max, "null_count": pc.sum}.get(column.split(".")[0])
            if merge is not None:
                found[f"{name}: {column}"] = merge(files[column]).as_py()
    return found


def test_all_rows_are_written_by_spark_if_that_is_wanted(
    spark: SparkSession, tmp_path: Path
) -> None:
    scene = LogScene(tmp_path)
    Life(scene, 1).write(40)
    lake = lake_of(scene.data, is_for_spark=True)

    Pipeline(spark, lake, scene.data, Settings(spark="always")).once()

    writers = set()
    for name in TABLES:
        for commit in Path(lake.location(name), LOG).glob("*.json"):
            lines = [json.loads(line) for line in commit.read_text().splitlines()]
            if any("add" in line for line in lines):
                (made,) = [line["commitInfo"] for line in lines if "commitInfo" in line]
                writers.add(made["engineInfo"].partition("/")[0])
    assert writers == {"Apache-Spark"}


# Runs of the whole pipeline, killed.


def run_killed(data: Path, point: str) -> None:
    worker = [sys.executable, "-m", "tests.pipeline.here_worker", str(data), point]
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    done = subprocess.run(worker, cwd=ROOT, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, f"it did not come to {point}: {done.stderr}"


def once(data: Path, spark: SparkSession | None = None) -> int:
    pipeline = Pipeline(spark or no_spark, lake_of(data), data, Settings())
    return pipeline.once().rows


def assert_complete(data: Path, count: int) -> None:
    """Every entry is there once, and every table has taken in all of them."""
    lake = lake_of(data)
    for name in (ENTRIES.name, MESSAGES.name, DELIVERIES.name):
        query = f'SELECT count(*), count(DISTINCT "offset"), max("offset") FROM {name}'
        rows = lake.select(name, query)
        assert rows is not None
        assert [one[0].as_py() for one in rows.columns] == [count, count, count - 1], name
    epochs = [int(one.split("-")[2]) for one in applications(lake)]
    for name in catch_up.ORDER:
        assert lake.committed(name, 0, epochs[0]) == count - 1


def applications(lake: Lake) -> Iterator[str]:
    commits = Path(lake.location(ENTRIES.name)) / "_delta_log"
    for one in sorted(commits.glob("*.json")):
        for line in filter(None, one.read_text().splitlines()):
            if "txn" in (action := json.loads(line)):
                yield action["txn"]["appId"]


def mail(scene: LogScene, count: int) -> None:
    scene.append([scene.mailed(BOB, ["x" * 200]) for _ in range(count)])


def test_a_small_run_killed_at_any_point_is_gone_on_with(tmp_path: Path) -> None:
    scene = LogScene(tmp_path)
    for point in POINTS:
        mail(scene, 20)
        run_killed(tmp_path, point)

    once(tmp_path)

    assert_complete(tmp_path, 20 * len(POINTS))
    assert once(tmp_path) == 0


def test_spark_goes_on_where_a_small_run_was_killed_and_the_other_way_round(
    spark: SparkSession, tmp_path: Path
) -> None:
    scene = LogScene(tmp_path, segment_bytes=2**12)
    mail(scene, 20)
    once(tmp_path, spark)
    mail(scene, 20)
    run_killed(tmp_path, POINTS[1])
    scene.seal()
    # What has landed may be deleted; the checkpoint does not know that it has.
    scene.retire(1)
    mail(scene, 20)

    assert once(tmp_path, spark) == 20

    assert_complete(tmp_path, 60)
    mail(scene, 5)
    assert once(tmp_path) == 5
    assert_complete(tmp_path, 65)


def test_a_micro_batch_that_was_begun_is_left_to_spark(tmp_path: Path) -> None:
    scene = LogScene(tmp_path)
    mail(scene, 3)
    checkpoint = folder_of(tmp_path) / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").touch()
    assert checkpointed(checkpoint, 0) is None
    pipeline = Pipeline(no_spark, lake_of(tmp_path), tmp_path, Settings())

    assert not pipeline._land_here(pipeline._head())


def test_of_two_writers_of_a_version_one_wins_and_the_other_leaves_nothing(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    assert ensure_tables_here(lake, Settings())
    rows = pa.table({one: pa.nulls(1, pa.int64()) for one in ENTRIES.names})
    rows = rows.cast(pa.schema([(one, pa.int64()) for one in ENTRIES.names]))
    taken = Path(lake.location(ENTRIES.name)) / "_delta_log" / f"{1:020d}.json"
    opened = lake.open(ENTRIES.name)
    assert opened is not None
    taken.write_text("")
    lake._tables[ENTRIES.name] = opened, lake._identity(ENTRIES.name)
    opened.update_incremental = lambda: None  # type: ignore[method-assign]  # It does not notice.

    assert not lake.append(ENTRIES.name, rows, Position(0, 1, 0))

    assert list(Path(lake.location(ENTRIES.name)).glob("*.parquet")) == []


# Audits.


def audited(data: Path, spark: SparkSession | None = None) -> Audit:
    return Audit(spark or no_spark, lake_of(data), data)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log and a lake with some of everything that is no fault."""
    data = tmp_path_factory.mktemp("sound")
    scene = LogScene(data, segment_bytes=2**12)
    scene.append([scene.subscribed("billing"), scene.subscribed("audit", start=2)])
    for hour in range(3):
        at_ms = NOON_MS + hour * 3_600_000
        orders = [scene.published("orders", ["x" * 200], at_ms=at_ms) for _ in range(10)]
        first = scene.append(orders)
        acked = [Settlement(one.seq, first + n, Outcome.ACKED) for n, one in enumerate(orders[:7])]
        scene.append([scene.settled("orders", "billing", 1, *acked, at_ms=at_ms)])
        asked = scene.append([scene.mailed(BOB, hour, at_ms=at_ms, ttl=100)])
        done = Settlement(hour + 1, asked, Outcome.ACKED)
        scene.append([scene.settled(BOB, "", 1, done, at_ms=at_ms)])
        scene.append([scene.said(f"inbox.1.{'a' * 22}", at_ms=at_ms - (5_000 if hour else 0))])
        scene.seal()
    scene.close()
    once(data)
    return data


@pytest.fixture
def sound(origin: Path, tmp_path: Path) -> Path:
    """The same, to be spoiled."""
    return shutil.copytree(origin, tmp_path / "data")


def test_an_audit_here_finds_what_spark_finds(spark: SparkSession, sound: Path) -> None:
    here, there = audited(sound).run(), audited(sound, spark).run()

    assert here.verdict == "proven"
    assert [hour.pending for hour in here.hours] == [11, 13, 13]
    assert here.hours == there.hours
    assert (here.notes, here.head) == (there.notes, there.head)


def change(name: str, sound: Path, alter: Callable[[pa.Table], pa.Table]) -> None:
    """Write a table anew, with the positions it has."""
    lake = lake_of(sound)
    rows = columns_of(lake, name, TABLES[name].names, "true")
    write_deltalake(lake.location(name), alter(rows), mode="overwrite", schema_mode="overwrite")


def put(column: str, offset: int, value: object) -> Callable[[pa.Table], pa.Table]:
    """Alter a value of one row."""

    def alter(rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index(column)
        scalar = pa.scalar(value, rows.schema.field(at).type)
        is_it = pc.equal(rows["offset"], offset)
        return rows.set_column(at, rows.schema.field(at), pc.if_else(is_it, scalar, rows[column]))

    return alter


def without(*offsets: int) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: rows.filter(pc.invert(pc.is_in(rows["offset"], pa.array(offsets))))


def with_another(column: str, value: object) -> Callable[[pa.Table], pa.Table]:
    """Add a copy of a row with another value."""

    def alter(rows: pa.Table) -> pa.Table:
        copied = rows.filter(pc.equal(rows["offset"], 12 if column == "offset" else 5)).slice(0, 1)
        at = copied.schema.get_field_index(column)
        values = pa.array([value], copied.schema.field(at).type)
        return pa.concat_tables([rows, copied.set_column(at, copied.schema.field(at), values)])

    return alter


def twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(5, 1)])


FAULTS: dict[str, tuple[str, Callable[[pa.Table], pa.Table]]] = {
    "an entry is missing": ("entries", without(5)),
    "the first entry is missing": ("entries", without(0)),
    "an entry is there twice": ("entries", twice),
    "a seq is another": ("entries", put("seq", 5, 99)),
    "a stream is another": ("entries", put("stream", 5, "others")),
    "a time is another": ("entries", put("accepted_at", 5, (NOON_MS + 1) * 1_000)),
    "a kind is another": ("entries", put("kind", 5, "cursor")),
    "an incarnation is another": ("entries", put("stream_epoch", 0, 7)),
    "a body is another": ("entries", put("body", 5, b"\x93\xa1x")),
    "a body is gone without a reason": ("entries", put("body", 5, None)),
    "an entry is of another epoch": ("entries", put("epoch", 5, 3)),
    "an entry is beyond the log": ("entries", put("offset", 43, 4_400)),
    "an entry that the log does not have": ("entries", with_another("offset", 4_400)),
    "a delivery too many": ("deliveries", with_another("recipient", "orders/nobody")),
    "an entry has no stream epoch": ("entries", put("stream_epoch", 5, None)),
    "a delivery is missing": ("deliveries", without(5)),
    "a delivery is there twice": ("deliveries", twice),
    "a delivery is of nobody": ("deliveries", put("recipient", 5, "orders/nobody")),
    "a settlement is denied": ("deliveries", put("settled_at", 5, None)),
    "a delivery has no outcome": ("deliveries", put("outcome", 5, None)),
    "a delivery was lost": ("deliveries", put("outcome", 9, "lost")),
    "a delivery of mail is missing": ("deliveries", without(13)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_lake_with_a_fault_is_left_to_spark(sound: Path, fault: str) -> None:
    name, alter = FAULTS[fault]
    judging = audited(sound)
    change(name, sound, lambda rows: rows)
    assert judging._is_proven_here(None, None)
    change(name, sound, alter)

    assert not judging._is_proven_here(None, None)
    assert judging._findings.notes == []


# Of what retention has deleted from the log, only the lake says what it was.
FAULTS_ALONE: dict[str, tuple[str, Callable[[pa.Table], pa.Table]]] = {
    **{fault: FAULTS[fault] for fault in ("an entry is missing", "an entry is there twice")},
    "a seq is another": FAULTS["a seq is another"],
    "an entry that is no message is missing": ("entries", without(12)),
    "the first seq of a stream is missing": ("entries", put("stream", 2, "others")),
    "entries are of another epoch": ("entries", put("epoch", 5, 3)),
    "a delivery is of nobody": ("deliveries", put("recipient", 5, "orders/nobody")),
    "a message that expired was passed over": ("entries", put("expires_at", 9, NOON_MS * 1_000)),
    "a subscription ended before its deliveries": ("subscriptions", lambda rows: ended(rows)),
}


def ended(rows: pa.Table) -> pa.Table:
    """The same subscriptions, ended by the last entry."""
    for name in ("to_epoch", "to_offset"):
        at = rows.schema.get_field_index(name)
        its = rows["from_epoch"] if name == "to_epoch" else pa.repeat(43, rows.num_rows)
        rows = rows.set_column(at, rows.schema.field(at), its.cast(pa.int64()))
    return rows


def retire(data: Path) -> None:
    """Delete all segments but the last, as retention does."""
    disk = SystemDisk(data / "log")
    for info in look(disk).segments[:-1]:
        keep_footer(disk, info)
        disk.remove(info.name)


@pytest.mark.parametrize("fault", FAULTS_ALONE)
def test_a_fault_in_what_the_log_no_longer_has_is_left_to_spark(sound: Path, fault: str) -> None:
    name, alter = FAULTS_ALONE[fault]
    retire(sound)
    judging = audited(sound)
    assert judging._is_proven_here(None, None)
    change(name, sound, alter)

    assert not judging._is_proven_here(None, None)


def test_a_message_without_its_row_is_left_to_spark(sound: Path) -> None:
    lake, judging = lake_of(sound), audited(sound)
    shutil.rmtree(lake.location(MESSAGES.name))
    assert ensure_table_here(lake, MESSAGES.name)

    assert not judging._is_proven_here(None, None)


def test_a_log_that_has_erased_what_the_lake_has_is_left_to_spark(
    sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging, read = audited(sound), BatchReader.read_here

    def erased(reader: BatchReader) -> pa.Table:
        return put("body", 5, None)(read(reader))

    def shorter(reader: BatchReader) -> pa.Table:
        return read(reader).slice(1)

    for less in (erased, shorter):
        monkeypatch.setattr(BatchReader, "read_here", less)
        assert not judging._is_proven_here(None, None)


MAIL = {"epoch": 1, "offset": 3, "kind": "mail", "stream": BOB, "stream_epoch": 1, "seq": 0}
DUE = {"accepted_at": NOON_MS * 1_000, "expires_at": None}
TO_ACTOR = {"recipient_kind": "actor", "recipient": BOB, "generation": 1, "last_sent_at": None}
PENDING = {**TO_ACTOR, "epoch": 1, "offset": 3, "outcome": "pending", "settled_at": None}


@pytest.mark.parametrize(
    ("minutes", "deliveries", "is_fine"),
    [(14, [PENDING], True), (16, [PENDING], False), (14, [], False)],
    ids=["it may still come", "it should have come by now", "nobody knows of it"],
)
def test_an_ask_to_an_actor_is_pending_for_a_quarter_of_an_hour(
    minutes: int, deliveries: list[dict[str, Any]], is_fine: bool
) -> None:
    recipients = proof.RecipientsHere(
        entries=[MAIL | DUE],
        subscriptions=[],
        deliveries=deliveries,
        taken=LogPosition(1, 9),
        judged_at=datetime.fromtimestamp(NOON_MS / 1_000, UTC) + timedelta(minutes=minutes),
    )
    hours = Hours([(1, 0, 0, 9)], [Bounds(1, 0, 9)], 0)

    if is_fine:
        assert proof.count_deliveries(recipients, hours) == set()
        assert [one.pending for one in hours.all] == [1]
    else:
        with pytest.raises(proof.Unproven):
            proof.count_deliveries(recipients, hours)


def test_tables_of_many_rows_and_times_before_1970_are_left_to_spark(
    sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = proof.all_entries(lake_of(sound), 0)
    with pytest.raises(proof.Unproven):
        proof.seen_hours(put("accepted_at", 5, -1)(entries))
    monkeypatch.setattr(proof, "ENTRIES_MAX", 1)
    with pytest.raises(proof.Unproven):
        proof.all_entries(lake_of(sound), 0)


def test_a_log_with_a_fault_is_left_to_spark(sound: Path) -> None:
    judging = audited(sound)
    segment = sorted((sound / "log").glob("*.log"))[1]
    content = bytearray(segment.read_bytes())
    content[200] ^= 1
    segment.write_bytes(content)

    assert not judging._is_proven_here(None, None)
