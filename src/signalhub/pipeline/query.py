"""Queries over the tables, and only queries.

A text is judged by the plan that Spark's own parser makes of it, before names are resolved: only
known kinds of nodes, only our tables, no function with effects outside the query.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any, Final

from py4j.java_gateway import JavaObject, is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from signalhub.pipeline.lake import Lake
from signalhub.pipeline.tables.tables import TABLES
from signalhub.wire.errors import SignalHubError

MOMENT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"

# Settings of the session for queries: the tables that exist, and the location of the lake.
_PRESENT: Final = "signalhub.tables"
_LAKE: Final = "signalhub.lake"
# Nodes of parsed queries. A list of forbidden nodes would be shorter, but never complete.
_NODES: Final = frozenset(
    {
        *("Aggregate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "Intersect"),
        *("Join", "LateralJoin", "LocalLimit", "LocalRelation", "Offset", "OneRowRelation"),
        *("PipeOperator", "Pivot", "Project", "Sample", "Sort", "SubqueryAlias", "Union"),
        *("UnresolvedHaving", "UnresolvedHint", "UnresolvedInlineTable", "UnresolvedQualify"),
        *("UnresolvedRelation", "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases"),
        *("UnresolvedTableValuedFunction", "UnresolvedWith", "Unpivot", "WithWindowDefinition"),
    }
)
_TABLE_FUNCTIONS: Final = frozenset(
    {
        *("explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode"),
        *("posexplode_outer", "range", "stack", "variant_explode", "variant_explode_outer"),
    }
)
# They call Java, or read files named in an argument.
_UNSAFE_FUNCTIONS: Final = frozenset(
    {"from_protobuf", "java_method", "reflect", "to_protobuf", "try_reflect"}
)
_COMPUTED_NAMES: Final = frozenset(
    {"ExpressionWithUnresolvedIdentifier", "PlanWithUnresolvedIdentifier"}
)

_ADVICE: Final = "write a SELECT"
_HELP: Final = "correct it; the tables and their columns are described in docs/lake.md"
_IN_TEXT: Final = re.compile(r"line (\d+),? pos(ition)? (\d+)")
_CONDITION: Final = re.compile(r"^\s*\[[A-Z_.0-9]+\]\s*")
_NESTED: Final = (ArrayType, MapType, StructType, VariantType)


class QueryError(SignalHubError):
    """A query was refused or failed; the text says where and why."""

    code = "query_failed"


class QueryRefused(QueryError):
    """The text is not a query, or reads more than the tables."""

    code = "query_refused"


class QueryWrong(QueryError):
    """The query is invalid."""

    code = "query_wrong"


def query_session(spark: SparkSession, lake: Lake) -> SparkSession:
    """Return a separate session for queries over the tables of a lake."""
    # Spark's Python side would log every error in a query with the JVM's stack trace.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    session = spark.newSession()
    session.conf.set("spark.sql.runSQLOnFiles", "false")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.chunkBase64String.enabled", "false")
    session.conf.set(_LAKE, lake.uri)
    refresh(session, lake)
    return session


def refresh(session: SparkSession, lake: Lake) -> None:
    """Tell a session which tables there are now."""
    session.conf.set(_PRESENT, ",".join(name for name in TABLES if lake.exists(name)))


def query(session: SparkSession, text: str) -> DataFrame:
    """Run a query and give its columns distinct names; raises `QueryError`."""
    with _mistakes():
        lake = Lake(session.conf.get(_LAKE) or "")
        # Opening a table takes Spark a second, so only the tables of the query are opened.
        for name in check(session, text):
            rows = session.read.format("delta").load(lake.location(name))
            rows.createOrReplaceTempView(name)
        found = session.sql(text)
    return found.toDF(*_apart(found.columns))


def check(session: SparkSession, text: str) -> set[str]:
    """Return the tables a query reads; raises `QueryRefused` if the text is anything else."""
    parser = _java_session(session).sessionState().sqlParser()
    found = _Found(session)
    found.visit(parser.parsePlan(text))
    present = set(filter(None, (session.conf.get(_PRESENT) or "").split(",")))
    for parts in found.relations:
        name = parts[-1].lower()
        if len(parts) > 1:
            raise QueryRefused(
                f"{'.'.join(parts)} is not a table of the lake; the tables are"
                f" {', '.join(sorted(present))}"
            )
        if name not in present and name not in found.local_names:
            missing = "does not exist yet" if name in TABLES else "is not a table of the lake"
            raise QueryRefused(f"{parts[0]} {missing}; the tables are {', '.join(sorted(present))}")
    return {parts[0].lower() for parts in found.relations} & present


class _Found:
    """What a parsed plan refers to; refuses what no query over our tables needs."""

    def __init__(self, session: SparkSession) -> None:
        self.relations: list[list[str]] = []
        self.local_names: set[str] = set()
        """Names of common table expressions."""
        self._gateway = session.sparkContext._gateway
        self._natures: dict[str, tuple[bool, bool, bool]] = {}

    def visit(self, root: Any) -> None:
        """Inspect all parts of a node: subqueries may be inside expressions and tuples."""
        waiting = [root]
        while waiting:
            one = waiting.pop()
            if not isinstance(one, JavaObject):
                continue
            full_name: str = one.getClass().getName()
            is_plan, is_product, is_iterable = self._nature(one, full_name)
            name = full_name.rpartition(".")[2].rstrip("$")
            if is_plan:
                self._visit_node(one, name)
            elif name in _COMPUTED_NAMES:
                raise QueryRefused("names cannot be computed with IDENTIFIER; write them out")
            elif name == "UnresolvedFunction":
                self._check_function(_texts(one.nameParts()))
            if is_iterable:
                waiting += _iterated(one.iterator())
            elif is_product:
                waiting += _iterated(one.productIterator())

    def _visit_node(self, node: JavaObject, name: str) -> None:
        if name in _COMPUTED_NAMES:
            raise QueryRefused("names cannot be computed with IDENTIFIER; write them out")
        if name not in _NODES:
            raise QueryRefused(f"{_worded(name)} is not supported; {_ADVICE}")
        if name == "UnresolvedRelation":
            self.relations.append(_texts(node.multipartIdentifier()))
        elif name == "UnresolvedTableValuedFunction":
            function = _texts(node.name())[-1].lower()
            if function not in _TABLE_FUNCTIONS:
                raise QueryRefused(f"the table function {function} is not supported; {_ADVICE}")
        elif name == "UnresolvedWith":
            for relation in _iterated(node.cteRelations().iterator()):
                self.local_names.add(relation._1().lower())

    def _check_function(self, parts: list[str]) -> None:
        name = parts[-1].lower()
        if name in _UNSAFE_FUNCTIONS:
            raise QueryRefused(f"the function {name} is not supported; leave it out")

    def _nature(self, one: JavaObject, name: str) -> tuple[bool, bool, bool]:
        if name not in self._natures:
            self._natures[name] = (
                self._is(one, "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"),
                self._is(one, "scala.Product"),
                self._is(one, "scala.collection.Iterable") and not self._is(one, "scala.Option"),
            )
        return self._natures[name]

    def _is(self, one: JavaObject, type_name: str) -> bool:
        return bool(is_instance_of(self._gateway, one, type_name))


def as_json(rows: DataFrame) -> DataFrame:
    """Return one column with every row as a JSON object."""
    options = {"ignoreNullFields": "false", "timestampFormat": MOMENT}
    if not rows.columns:
        return rows.select(F.lit("{}").alias("row"))
    return rows.select(F.to_json(F.struct("*"), options).alias("row"))


def as_text(rows: DataFrame) -> DataFrame:
    """Return values as text: times in ISO 8601 and UTC, bytes as base64, nested ones as JSON."""
    fields = rows.schema.fields
    return rows.select(*(_text(F.col(_quoted(one.name)), one.dataType) for one in fields))


def _text(value: Column, type: DataType) -> Column:
    match type:
        case StringType():
            return value
        case BinaryType():
            return F.base64(value)
        case TimestampType() | TimestampNTZType():
            return F.date_format(value, MOMENT if type == TimestampType() else MOMENT[:-3])
        case NullType():
            return F.lit(None).cast("string")
        case _ if isinstance(type, _NESTED):
            return F.to_json(value, {"ignoreNullFields": "false", "timestampFormat": MOMENT})
        case _:
            return value.cast("string")


def values(rows: DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield the rows one by one, never all in memory; raises `QueryError`."""
    with _mistakes():
        yield from rows.toLocalIterator()


class _mistakes:
    """Convert Spark's errors about a query into one sentence without the JVM's stack trace."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, AnalysisException):
            raise QueryWrong(f"{_sentence(str(error))}; {_HELP}") from None
        if isinstance(error, PySparkException):
            raise QueryError(_sentence(str(error))) from None
        if isinstance(error, Py4JJavaError):
            raise QueryError(_sentence(_first_cause(error.java_exception))) from None


def _first_cause(error: Any) -> str:
    """Return a task's error, which is wrapped in those of all callers that waited for it."""
    while (cause := error.getCause()) is not None:
        error = cause
    return str(error.getMessage())


def _sentence(text: str) -> str:
    """Return the text of a Spark error in one line, with its position in the query."""
    position = _IN_TEXT.search(text)
    first = _CONDITION.sub("", text).strip().partition("SQLSTATE")[0].partition("\n")[0]
    first = first.partition(' If necessary set "')[0].rstrip(" .:;")
    if not position:
        return first
    # Parser and analyser count columns from 0, other parts from 1.
    column = int(position[3]) + (0 if position[2] else 1)
    return f"{first} (line {position[1]}, position {column})"


def _worded(node: str) -> str:
    """Return `DropTable` as `DROP TABLE`."""
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", node.removesuffix("Statement").removesuffix("Command"))
    words = words.removeprefix("Unresolved ").removesuffix("Exec")
    return words.strip().upper()


def _apart(names: list[str]) -> list[str]:
    """Return the same names, with repeated ones numbered."""
    taken: set[str] = set()
    apart: list[str] = []
    for name in names:
        unique, number = name, 2
        while unique.lower() in taken:
            unique, number = f"{name}_{number}", number + 1
        taken.add(unique.lower())
        apart.append(unique)
    return apart


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _java_session(session: SparkSession) -> Any:
    return session._jsparkSession


def _texts(sequence: Any) -> list[str]:
    return [str(one) for one in _iterated(sequence.iterator())]


def _iterated(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()
