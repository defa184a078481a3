"""Small questions are answered without Spark, and as Spark answers them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest
from pyspark.sql import SparkSession

from signalhub.pipeline import quick_query
from signalhub.pipeline.lake import Lake, lake_of
from signalhub.pipeline.query import as_json, as_text, query, query_session, values
from signalhub.pipeline.quick_query import quick_answer
from tests.pipeline.shop import ORDERS

SMALL = [
    "SELECT count(*) FROM messages",
    "select COUNT(*) from messages where topic = 'orders';",
    "SELECT Topic, count(*) AS n, sum(bytes), min(accepted_at), max(seq) FROM messages"
    " GROUP BY topic",
    "SELECT topic, count(*) FROM messages GROUP BY topic ORDER BY count(*) DESC, topic",
    "SELECT kind, count(topic) n FROM messages GROUP BY kind ORDER BY n DESC LIMIT 2",
    "SELECT seq, id, accepted_at, key FROM messages WHERE topic IN ('orders', 'x') ORDER"
    " BY seq LIMIT 5",
    "SELECT offset, topic, ttl_ms FROM messages WHERE offset BETWEEN 3 AND 40 ORDER BY"
    " topic, offset",
    "SELECT offset, key FROM messages ORDER BY key DESC, offset ASC",
    "SELECT offset FROM messages WHERE NOT (topic = 'orders' OR key IS NULL) AND seq >= 1",
    "SELECT offset FROM messages WHERE ttl_ms IS NOT NULL AND seq <> -1",
    "SELECT count(*) FROM messages WHERE accepted_at > '2020-01-06' AND accepted_at <"
    " '2100-01-01T00:00:00Z'",
    "SELECT outcome, count(*), max(attempts) FROM deliveries GROUP BY outcome",
    "SELECT max(seq), min(topic), sum(seq) FROM messages WHERE topic = 'nothing'",
]
LEFT_TO_SPARK = [
    "SELECT 1",
    "SELECT * FROM messages",
    "SELECT payload:n::int FROM messages",
    "SELECT payload FROM messages",
    "SELECT seq / 2 FROM messages",
    "SELECT avg(seq) FROM messages",
    "SELECT upper(topic) FROM messages",
    "SELECT DISTINCT topic FROM messages",
    "SELECT topic, count(*) FROM messages",
    "SELECT seq, seq FROM messages",
    "SELECT seq FROM messages WHERE topic = 7",
    "SELECT seq FROM messages WHERE seq = '7'",
    "SELECT seq FROM messages WHERE topic = 'it''s'",
    "SELECT seq FROM messages WHERE topic = 'a\\n'",
    'SELECT seq FROM messages WHERE topic = "orders"',
    "SELECT seq FROM messages WHERE accepted_at > '2026-13-06'",
    "SELECT seq FROM messages WHERE accepted_at > 'yesterday'",
    "SELECT seq FROM messages ORDER BY 1",
    "SELECT seq FROM messages ORDER BY bytes",
    "SELECT seq FROM messages, entries",
    "SELECT seq FROM messages m WHERE m.seq = 1",
    "SELECT seq FROM (SELECT seq FROM messages)",
    "SELECT seq FROM messages UNION SELECT seq FROM messages",
    "SELECT seq FROM messages -- all of them",
    "SELECT seq FROM messages LIMIT 1 OFFSET 2",
    "SELECT seq FROM messages LIMIT 3000000000",
    "SELECT seq FROM messages WHERE topic = '${env:HOME}'",
    "SELECT seq FROM messages WHERE accepted_at > '2026-01-06Z'",
    "SELECT seq FROM messages WHERE accepted_at > '2026-01-06 10:00Z'",
    "SELECT seq FROM messages WHERE accepted_at > '2026-01-06 24:00'",
    "SELECT max(seq) AS seq, topic FROM messages GROUP BY topic ORDER BY max(seq)",
    "SELECT max(expires_at) FROM entries",
    "SELECT offset FROM entries WHERE expires_at IS NULL",
    "DROP TABLE messages",
    "SELECT nonsense FROM messages",
    "",
]


@pytest.fixture(scope="module")
def lake(shop: Path) -> Lake:
    return lake_of(shop)


@pytest.fixture(scope="module")
def session(spark: SparkSession, lake: Lake) -> SparkSession:
    return query_session(spark, lake)


@pytest.mark.parametrize("text", SMALL)
def test_both_engines_give_the_same_answer(session: SparkSession, lake: Lake, text: str) -> None:
    answer = quick_answer(lake, text)
    rows = query(session, text)
    texts = [*values(as_text(rows))]
    objects = [json.loads(line) for (line,) in values(as_json(rows))]

    assert answer is not None
    assert answer.columns == rows.columns
    found = [*answer.texts()]
    found_objects = [json.loads(line) for line in answer.objects()]
    if "ORDER BY" not in text:
        found, texts = sorted(found, key=str), sorted(texts, key=str)
        found_objects, objects = sorted(found_objects, key=str), sorted(objects, key=str)
    assert found == [tuple(row) for row in texts]
    assert found_objects == objects


@pytest.mark.parametrize("text", LEFT_TO_SPARK)
def test_everything_else_is_left_to_spark(lake: Lake, text: str) -> None:
    assert quick_answer(lake, text) is None


def test_odd_values_are_answered_as_spark_does_or_left_to_it(
    spark: SparkSession, empty_lake: Path, tmp_path: Path
) -> None:
    copytree(empty_lake, tmp_path / "lake")
    lake = lake_of(tmp_path)
    ids = [
        "",
        None,
        "a",
        "a ",
        "Z",
        "\x00",
        '\x1f\x7f\u2028"\\',
        "'",
        "é",
        "e\u0301",
        "\uffff",
        "😀",
    ]
    rows = [(at, 2**63 - 1 if at == 3 else at, one) for at, one in enumerate(ids)]
    table = spark.createDataFrame(rows, "offset BIGINT, seq BIGINT, id STRING")
    table.write.format("delta").mode("append").save(lake.location("entries"))

    answer = quick_answer(lake, "SELECT offset, id FROM entries ORDER BY id DESC, offset")
    found = query(query_session(spark, lake), "SELECT offset, id FROM entries ORDER BY id DESC")

    assert answer is not None
    assert [*answer.texts()] == [tuple(row) for row in values(as_text(found))]
    assert [json.loads(line) for line in answer.objects()] == [
        json.loads(line) for (line,) in values(as_json(found))
    ]
    # In 64 bits this would be a negative number.
    assert quick_answer(lake, "SELECT sum(seq) FROM entries") is None
    few = quick_answer(lake, "SELECT sum(seq) FROM entries WHERE offset < 3")
    assert few is not None
    assert [*few.texts()] == [("3",)]
    first = quick_answer(lake, "SELECT offset FROM entries ORDER BY offset LIMIT 7", rows_max=2)
    assert first is not None
    assert [*first.texts()] == [("0",), ("1",)]


def test_a_large_table_is_left_to_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_query, "BYTES_MAX", 10)

    assert quick_answer(lake, "SELECT count(*) FROM messages") is None


def test_no_java_is_needed(shop: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "signalhub", "sql", "--format", "csv", "--data", str(shop)),
            "SELECT count(*) AS n FROM messages WHERE topic = 'orders'",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path)},
    )

    assert (done.returncode, done.stdout) == (0, f"n\n{ORDERS}\n"), done.stderr
