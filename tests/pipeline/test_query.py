"""Queries over the tables: what they see, what is refused, what a mistake looks like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from signalhub.pipeline.lake import Lake, lake_of
from signalhub.pipeline.land.land import entries_of
from signalhub.pipeline.query import (
    QueryError,
    QueryRefused,
    QueryWrong,
    as_json,
    as_text,
    check,
    query,
    query_session,
    values,
)
from signalhub.pipeline.tables.create import ensure_table
from tests.pipeline.scene import LogScene


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    data = tmp_path_factory.mktemp("asked")
    scene = LogScene(data)
    scene.publish(12)
    scene.close()
    place = lake_of(data)
    for name in ("entries", "messages", "inbox"):
        ensure_table(spark, place, name)
    rows = entries_of(spark.read.format("signalhub").load(str(data)))
    rows.write.format("delta").mode("append").save(place.location("entries"))
    return place


@pytest.fixture(scope="module")
def session(spark: SparkSession, lake: Lake) -> SparkSession:
    return query_session(spark, lake)


QUERIES = [
    "SELECT 1",
    "SELECT count(*) FROM entries;",
    "TABLE entries",
    "VALUES (1), (2)",
    "FROM entries |> WHERE offset < 3 |> SELECT offset",
    "WITH few AS (SELECT * FROM entries LIMIT 3) SELECT * FROM few JOIN Messages USING (offset)",
    "SELECT * FROM entries WHERE offset IN (SELECT offset FROM messages) ORDER BY 1 LIMIT 5",
    "SELECT kind, count(*) FROM entries GROUP BY ALL HAVING count(*) > 1",
    "SELECT offset, lag(seq) OVER (PARTITION BY stream ORDER BY offset) FROM entries",
    "SELECT * FROM range(3) UNION ALL SELECT offset FROM entries",
    "SELECT payload:customer.id, headers['source'] FROM messages",
    "SELECT id, one FROM entries LATERAL VIEW explode(array(1, 2)) AS one",
    "SELECT * FROM (SELECT kind, seq FROM entries) PIVOT (count(seq) FOR kind IN ('mail'))",
    "SELECT sum(seq) OVER w FROM entries WINDOW w AS (ORDER BY offset)",
    "SELECT (SELECT max(offset) FROM entries), exists(SELECT 1 FROM inbox)",
]

REFUSED = [
    ("DROP TABLE entries", "DROP TABLE"),
    ("INSERT INTO entries SELECT * FROM entries", "INSERT"),
    ("FROM entries INSERT INTO messages SELECT *", "INSERT"),
    ("DELETE FROM entries", "DELETE"),
    ("UPDATE entries SET seq = 1", "UPDATE"),
    ("MERGE INTO entries USING messages ON false WHEN NOT MATCHED THEN INSERT *", "MERGE"),
    ("CREATE TABLE copy AS SELECT * FROM entries", "CREATE TABLE"),
    ("CREATE OR REPLACE TEMP VIEW entries AS SELECT 1", "CREATE VIEW"),
    ("SET spark.sql.runSQLOnFiles = true", "SET"),
    ("CALL system.anything()", "CALL"),
    ("SHOW TABLES", "SHOW TABLES"),
    ("EXPLAIN SELECT 1", "EXPLAIN"),
    ("OPTIMIZE entries", "OPTIMIZE"),
    ("VACUUM entries", "VACUUM"),
    ("BEGIN SELECT 1; END", "COMPOUND"),
    ("EXECUTE IMMEDIATE 'DROP TABLE entries'", "EXECUTE IMMEDIATE"),
    ("SELECT TRANSFORM(id) USING 'cat' AS (id) FROM entries", "SCRIPT"),
    ("SELECT * FROM delta.`/tmp/elsewhere`", "is not a table of the lake"),
    ("SELECT * FROM parquet.`/tmp/elsewhere`", "is not a table of the lake"),
    ("WITH a AS (SELECT * FROM text.`/etc/hosts`) SELECT * FROM a", "is not a table of the lake"),
    ("SELECT 1 WHERE 1 IN (SELECT 1 FROM json.`/etc/hosts`)", "is not a table of the lake"),
    ("SELECT (SELECT count(*) FROM csv.`/etc/hosts`)", "is not a table of the lake"),
    ("SELECT * FROM IDENTIFIER('delta.`/tmp/' || 'elsewhere`')", "IDENTIFIER"),
    ("SELECT IDENTIFIER('reflect')('java.lang.System', 'exit', 1)", "IDENTIFIER"),
    ("SELECT reflect('java.lang.System', 'getenv', 'PATH')", "reflect"),
    ("SELECT system.builtin.java_method('java.lang.System', 'exit', 1)", "java_method"),
    ("SELECT upper(try_reflect('java.lang.System', 'getenv', 'PATH')) FROM entries", "try_reflect"),
    ("SELECT * FROM table_changes('entries', 0)", "table_changes"),
    ("SELECT * FROM read_files('/etc')", "read_files"),
    ("SELECT * FROM customers", "customers is not a table of the lake"),
]


@pytest.mark.parametrize("text", QUERIES)
def test_queries_over_the_tables_are_understood(session: SparkSession, text: str) -> None:
    assert as_text(query(session, text)).columns


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_what_is_no_query_over_the_tables_is_refused(
    session: SparkSession, text: str, reason: str
) -> None:
    with pytest.raises(QueryRefused, match=reason):
        query(session, text)


def test_two_statements_are_not_one_query(session: SparkSession) -> None:
    with pytest.raises(QueryWrong, match=r"line 1, position 11"):
        query(session, "SELECT 1; DROP TABLE entries")


def test_a_mistake_is_told_in_a_line_with_its_place(session: SparkSession) -> None:
    with pytest.raises(QueryWrong) as wrong_column:
        query(session, "SELECT ofset FROM entries")
    with pytest.raises(QueryWrong) as wrong_syntax:
        query(session, "SELECT *\nFORM entries")
    with pytest.raises(QueryError) as failed:
        list(values(query(session, "SELECT 1 / (offset - offset) FROM entries")))

    for caught in (wrong_column, wrong_syntax, failed):
        assert "\n" not in str(caught.value)
        assert "org.apache" not in str(caught.value)
    assert "`ofset`" in str(wrong_column.value)
    assert "(line 1, position 8)" in str(wrong_column.value)
    assert "(line 2, position " in str(wrong_syntax.value)
    assert "zero" in str(failed.value)


def test_values_are_printed_in_one_way(session: SparkSession) -> None:
    text = (
        "SELECT offset, offset, accepted_at, body, named_struct('at', accepted_at) AS nested,"
        " parse_json('{\"a\": [1, null]}') AS v, removed_at FROM entries WHERE offset = 1"
    )
    rows = query(session, text)

    (cells,) = values(as_text(rows))
    ((line,),) = values(as_json(rows))

    assert rows.columns[:2] == ["offset", "offset_2"]
    assert cells[2] == "2023-11-15T12:00:00.000Z"
    assert cells[4] == '{"at":"2023-11-15T12:00:00.000Z"}'
    assert cells[5] == '{"a":[1,null]}'
    assert cells[6] is None
    facts = json.loads(line)
    assert facts["body"] == cells[3]
    assert facts["v"] == {"a": [1, None]}
    assert facts["accepted_at"] == cells[2]
    assert facts["removed_at"] is None


def test_a_query_changes_nothing_in_the_session_it_came_from(
    spark: SparkSession, session: SparkSession
) -> None:
    check(session, "SELECT 1")

    assert "entries" not in {one.name for one in spark.catalog.listTables()}


def test_a_table_that_is_not_there_yet_is_named(spark: SparkSession, tmp_path: Path) -> None:
    empty = query_session(spark, lake_of(tmp_path))

    with pytest.raises(QueryRefused, match="messages does not exist yet"):
        query(empty, "SELECT * FROM messages")
