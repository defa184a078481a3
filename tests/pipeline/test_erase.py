"""Erasure in the lake: nothing of the subject is left in any file, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from signalhub.core.erasure import Wanted
from signalhub.pipeline.erase import certificate
from signalhub.pipeline.erase import subject as search
from signalhub.pipeline.erase.erase import (
    LakeErasure,
    PipelineBehind,
    Removal,
    Step,
    erase,
    repeated,
    vacuum_all,
    wait_for,
)
from signalhub.pipeline.erase.subject import FOUND, Subject, chosen, find, ranges
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.run.lock import alone
from signalhub.pipeline.source.plan import LogPosition, Segments, log_of
from signalhub.pipeline.upkeep import compact
from signalhub.ranges import Ranges
from signalhub.wire.entry import (
    Body,
    DeadLetterOrigin,
    Entry,
    ErasedBody,
    Kind,
    MessageBody,
    Outcome,
    ProposalBody,
    RoomBoundBody,
    SettledBody,
    Settlement,
    encode_body,
)
from tests.pipeline.lakeside import Lakeside
from tests.pipeline.remains import remains
from tests.pipeline.scene import NOON_MS, LogScene

ADA = "@(people/ada)"
BOB = "@(people/bob)"
SECRET = "theanalyticalengineweaves"
PLAIN = "ploughmen homeward plod"
STAND_IN = "erased.0123456789abcdef"
INBOX = "inbox.1.abcdefghijklmnopqrstuv"
OTHER = "inbox.1.bbbbbbbbbbbbbbbbbbbbbb"
LATER_MS = 4_000_000_000_000


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    return LogScene(tmp_path)


@pytest.fixture
def side(spark: SparkSession, scene: LogScene, tmp_path: Path) -> Lakeside:
    return Lakeside(spark, tmp_path)


def message(text: str, *, sender: str = ADA, dead: DeadLetterOrigin | None = None) -> MessageBody:
    return MessageBody(
        id=f"id-{text[:12]}",
        copy_id=b"0123456789abcdef",
        sender=sender,
        type="note",
        data=f'"{text}"'.encode(),
        dead=dead,
    )


def entry(kind: Kind, stream: str, seq: int, body: Body) -> Entry:
    return Entry(kind, stream, 1, seq, NOON_MS, encode_body(body))


def a_life(scene: LogScene) -> None:
    """Ada publishes, gets and answers mail, and takes from a topic; so does Bob."""
    letter = DeadLetterOrigin("orders", "", "1", 1, 3, f"no {SECRET}", NOON_MS, NOON_MS, [])
    settled = Settlement(1, 2, Outcome.ACKED, 1, 0, NOON_MS, NOON_MS, ADA)
    scene.append(
        [
            entry(Kind.PUBLISHED, "orders", 1, message(SECRET)),
            entry(Kind.PUBLISHED, "orders", 2, message(PLAIN, sender=BOB)),
            entry(Kind.MAIL, ADA, 1, message(f"{SECRET} too", sender=BOB)),
            entry(Kind.MAIL, BOB, 1, message(f"{SECRET} as well")),
            entry(Kind.MAIL, BOB, 2, message(PLAIN, sender="@(people/eve)")),
            entry(Kind.SETTLED, ADA, 0, SettledBody("", 1, [settled])),
            entry(Kind.PUBLISHED, "orders.dlq", 1, message(SECRET, dead=letter)),
        ]
    )


def head(side: Lakeside) -> LogPosition:
    return Segments(log_of(side.data)).valid()


def subject_of(name: str) -> Subject:
    return Subject("inbox", "id", name) if "inbox" in name else Subject("actor", name, name)


def removed(
    side: Lakeside, through: LogPosition, name: str = ADA, step: Step = lambda name: None
) -> Removal:
    erasure = LakeErasure(
        subject=subject_of(name), through=through, pseudonym=STAND_IN, now_ms=NOON_MS
    )
    return erase(side.spark, side.lake, erasure, step)


# Without Spark.


def row(kind: str, stream: str, body: bytes | None, offset: int = 7) -> dict[str, object]:
    place = {"shard": 0, "epoch": 1, "offset": offset}
    return place | {"kind": kind, "stream": stream, "stream_epoch": 1, "seq": 1, "body": body}


@pytest.mark.parametrize(
    ("kind", "stream", "body", "is_named"),
    [
        ("published", "orders", encode_body(message("hers")), False),
        ("mail", BOB, encode_body(message("hers")), False),
        ("mail", ADA, encode_body(message("to her", sender=BOB)), True),
        ("mail", ADA, None, True),
        ("settled", ADA, encode_body(SettledBody("", 1, [])), True),
        ("published", "orders", b"\xff cannot be read " + ADA.encode(), False),
        ("published", "orders", encode_body(message(f"about {ADA}", sender=BOB)), None),
        ("published", "orders", None, None),
        ("settled", "orders", encode_body(SettledBody("s", 1, [])), None),
        ("something_new", "orders", ADA.encode(), None),
    ],
)
def test_what_an_actor_got_and_sent_is_chosen(
    kind: str, stream: str, body: bytes | None, is_named: bool | None
) -> None:
    batch = pa.RecordBatch.from_pylist([row(kind, stream, body)])

    found = chosen(batch, Wanted(ADA, None, None, False, Ranges())).to_pylist()

    assert [one["is_named"] for one in found] == ([] if is_named is None else [is_named])


def test_positions_are_told_as_ranges() -> None:
    places = [(1, 3), (1, 4), (1, 6), (2, 7), (2, 8)]
    rows = [{"shard": 0, "epoch": e, "offset": o, "is_named": False} for e, o in places]

    assert ranges(pa.Table.from_pylist(rows, schema=FOUND)) == [(1, 3, 4), (1, 6, 6), (2, 7, 8)]


def test_a_conflict_is_tried_again_and_anything_else_is_not() -> None:
    class ConcurrentAppendException(Exception):
        pass

    def failing(error: Exception, times: int) -> Callable[[], int]:
        left = iter(range(times))

        def work() -> int:
            for _ in left:
                raise error
            return 7

        return work

    assert repeated(failing(ConcurrentAppendException(), 3), pause_s=0) == 7
    with pytest.raises(ConcurrentAppendException):
        repeated(failing(ConcurrentAppendException(), 6), pause_s=0)
    with pytest.raises(ValueError, match="once"):
        repeated(failing(ValueError("once"), 1), pause_s=0)


def test_a_pipeline_that_does_not_come_past_it_is_named(tmp_path: Path) -> None:
    asked: list[bool] = []

    with pytest.raises(PipelineBehind, match=r"entries has not .* within 0\.1 s"):
        wait_for(
            Lake(str(tmp_path)),
            LogPosition(1, 5),
            lambda: asked.append(True),
            wait_s=0.1,
            poll_s=0.01,
        )
    assert asked


def test_one_erasure_at_a_time_keeps_pipelines_out(tmp_path: Path) -> None:
    with alone(str(tmp_path)) as first, alone(str(tmp_path)) as second:
        assert (first, second) == (True, False)


def test_a_certificate_names_nobody_and_is_found_again_by_whoever_knows_the_name(
    tmp_path: Path,
) -> None:
    one = certificate.begin(tmp_path, "actor", ADA, NOON_MS)

    assert remains(tmp_path, ADA) == []
    assert one.is_about("actor", ADA)
    assert not one.is_about("inbox", ADA)
    assert certificate.begin(tmp_path, "actor", ADA, NOON_MS + 1).id == one.id
    assert certificate.begin(tmp_path, "actor", BOB, NOON_MS + 1).id != one.id
    certificate.complete(tmp_path, one, NOON_MS + 2)
    assert certificate.begin(tmp_path, "actor", ADA, NOON_MS + 3).id != one.id
    with pytest.raises(certificate.CertificateUnknown, match=one.id):
        certificate.read(tmp_path, "../../state")


# With it.


def test_nothing_of_an_actor_is_left_in_any_file(
    lake: Lake, side: Lakeside, scene: LogScene
) -> None:
    a_life(scene)
    side.shape()
    through = head(side)
    epoch = through.epoch
    side.spark.createDataFrame(
        [(0, epoch, 0, SECRET.encode())],
        "shard INT, epoch BIGINT, offset BIGINT, raw BINARY",
    ).write.format("delta").mode("append").save(side.lake.location("quarantine"))
    side.spark.createDataFrame(
        [("run", 1, [f"entry 3 of {ADA} is late", "entry 9 is missing"])],
        "run_id STRING, epoch BIGINT, exceptions ARRAY<STRING>",
    ).write.format("delta").mode("append").save(side.lake.location("audit"))
    folder = Path(lake.uri)
    assert remains(folder, SECRET)

    done = removed(side, through)
    vacuum_all(side.spark, side.lake, is_alone=True)

    assert remains(folder, SECRET) == []
    assert remains(folder, ADA) == []
    assert done.positions == [(epoch, 0, 0), (epoch, 2, 3), (epoch, 5, 6)]
    assert done.tables == {
        "dead_letters": 1,
        "quarantine": 1,
        "deliveries": 1,
        "messages": 4,
        "audit": 1,
        "entries": 5,
    }
    assert side.rows("entries", "offset", "stream", "removed_reason") == [
        (0, "orders", "erased"),
        (1, "orders", None),
        (2, STAND_IN, "erased"),
        (3, BOB, "erased"),
        (4, BOB, None),
        (5, STAND_IN, "erased"),
        (6, "orders.dlq", "erased"),
    ]
    assert side.rows("messages", "offset", "sender", "payload_json") == [
        (0, None, None),
        (1, BOB, f'"{PLAIN}"'),
        (2, None, None),
        (3, None, None),
        (4, "@(people/eve)", f'"{PLAIN}"'),
        (6, None, None),
    ]
    assert side.rows("deliveries", "offset", "recipient", "consumer", "outcome") == [
        (2, STAND_IN, None, "acked"),
        (3, BOB, None, "pending"),
        (4, BOB, None, "pending"),
    ]
    assert side.rows("audit", "exceptions") == [
        ([f"entry 3 of {STAND_IN} is late", "entry 9 is missing"],)
    ]
    assert {side.lake.committed(name, 0, epoch) for name in ("entries", "messages")} == {6}


def marks(side: Lakeside, name: str) -> int:
    """How many files have rows that are only marked as deleted."""
    table = side.lake.open(name)
    assert table is not None
    return int(pa.table(table.deletion_vectors()).num_rows)


def test_an_interrupted_erasure_is_finished_by_doing_it_again(
    side: Lakeside, scene: LogScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First as if the tables were large, so that rows are only marked."""
    a_life(scene)
    side.shape("messages", "deliveries")

    def crash(step: str) -> None:
        if step == "erasing from entries":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(compact, "FILE_BYTES", -1)
        with pytest.raises(KeyboardInterrupt):
            removed(side, head(side), step=crash)
    assert side.count("messages", "sender IS NULL") == 4
    assert marks(side, "messages")
    done = removed(side, head(side))

    assert done.tables == {"entries": 5}
    assert side.count("entries", "body IS NULL") == 5
    assert not any(marks(side, name) for name in ("entries", "messages", "deliveries"))


def test_an_inbox_is_erased_and_the_others_keep_theirs(side: Lakeside, scene: LogScene) -> None:
    scene.append([scene.said(INBOX, "c2VjcmV0", expires_ms=LATER_MS) for _ in range(3)])
    scene.append([scene.said(OTHER, "cGxhaW4x", expires_ms=LATER_MS) for _ in range(2)])
    side.shape("inbox", "messages")

    done = removed(side, head(side), INBOX)
    vacuum_all(side.spark, side.lake, is_alone=True)

    assert done.tables == {"inbox": 3, "messages": 3, "entries": 3}
    assert remains(side.data / "lake", "c2VjcmV0") == []
    assert side.count("inbox") == 2
    assert side.rows("entries", "offset", "removed_reason")[2:4] == [(2, "erased"), (3, None)]


def test_what_comes_after_the_erasure_stays(side: Lakeside, scene: LogScene) -> None:
    scene.append([entry(Kind.MAIL, ADA, 1, message("before", sender=BOB))])
    through = head(side)
    note = ErasedBody("actor", [(0, 0)], [(0, 0)], STAND_IN)
    scene.append(
        [
            entry(Kind.ERASED, "", 0, ErasedBody("actor")),
            entry(Kind.ERASED, "", 0, note),
            entry(Kind.MAIL, ADA, 1, message("a new life", sender=BOB)),
        ]
    )
    side.land()

    removed(side, through)

    streams = [stream for _, stream in side.rows("entries", "offset", "stream")]
    assert streams == [STAND_IN, "", "", ADA]


def test_the_same_is_found_with_spark_and_without(
    lake: Lake, side: Lakeside, scene: LogScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposal = ProposalBody("p", "her", b"", "open", NOON_MS, LATER_MS)
    a_life(scene)
    scene.append(
        [
            entry(Kind.SETTLED, "orders", 0, SettledBody("s", 1, [])),  # 7: about a topic
            entry(Kind.ROOM_BOUND, "attic", 0, RoomBoundBody(INBOX)),
            entry(Kind.ROOM_BOUND, "hall", 0, RoomBoundBody(INBOX)),
            entry(Kind.ROOM_BOUND, "attic", 0, RoomBoundBody(OTHER)),
            entry(Kind.ROOM_PROPOSAL, "attic", 0, proposal),  # 11
            entry(Kind.ROOM_PROPOSAL, "hall", 0, proposal),
            scene.said(OTHER),  # 13
            scene.said(INBOX),
            entry(Kind.MAIL, ADA, 2, message("a new life", sender=BOB)),  # 15: later
        ]
    )
    ((epoch, last),) = side.land()
    side.spark.createDataFrame(
        [(0, epoch, 1, ADA), (0, epoch, 2, ADA)],
        "shard INT, epoch BIGINT, offset BIGINT, sender STRING",
    ).write.format("delta").mode("append").save(side.lake.location("messages"))

    def found() -> dict[str, list[tuple[int, bool]]]:
        through = LogPosition(epoch, last)
        tables = {
            name: find(side.spark, side.lake, subject_of(name), through)
            for name in (ADA, "orders", INBOX)
        }
        return {
            name: [(row["offset"], row["is_named"]) for row in table.to_pylist()]
            for name, table in tables.items()
        }

    here = found()
    monkeypatch.setattr(search, "_FEW_BYTES", -1)

    hers = [(0, False), (1, False), (2, True), (3, False), (5, True), (6, False)]
    assert here == {ADA: hers, "orders": [(6, False)], INBOX: [(12, False), (14, False)]}
    assert found() == here
