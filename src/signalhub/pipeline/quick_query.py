"""Small questions, answered by delta-rs within a second; starting Spark takes many.

Only questions are taken to which both engines give the same answer: columns, counts, sums, smallest
and largest values of one small table, with comparisons, grouping and sorting. Whatever is not
recognized here, mistakes included, is left to Spark, which is the reference for everything: types,
names of columns, the order of nulls, and what an error says.

    SELECT column | count(*) | count(column) | sum(…) | min(…) | max(…) [AS name], …
    FROM table [WHERE condition] [GROUP BY column, …] [ORDER BY name [ASC | DESC], …] [LIMIT n]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from signalhub.pipeline.tables.tables import TABLES

if TYPE_CHECKING:
    from signalhub.pipeline.lake import Lake

BYTES_MAX: Final = 64 * 2**20
"""A larger table is left to Spark."""

_TOKEN: Final = re.compile(
    r"[ \t\r\n]+|(?P<word>[A-Za-z_][A-Za-z_0-9]*)|(?P<number>-?[0-9]{1,18}(?![\w.]))"
    # Backslashes and doubled quotes mean different things in different dialects, and Spark replaces
    # variables such as ${env:HOME} even in texts.
    r"|'(?P<text>[^'\\$]*)'(?!\s*')|(?P<sign><=|>=|<>|!=|[=<>(),*])"
)
_KEYWORDS: Final = frozenset(
    {
        *("all", "and", "anti", "as", "asc", "between", "by", "case", "cast", "cluster", "collate"),
        *("cross", "desc", "distinct", "distribute", "else", "end", "except", "exists", "false"),
        *("filter", "from", "full", "group", "having", "ilike", "in", "inner", "intersect"),
        *("interval", "is", "join", "lateral", "left", "like", "limit", "minus", "natural", "not"),
        *("null", "nulls", "on", "or", "order", "over", "pivot", "qualify", "right", "rlike"),
        *("select", "semi", "sort", "table", "tablesample", "then", "true", "union", "unpivot"),
        *("using", "values", "when", "where", "window", "with", "within"),
    }
)
_INTEGERS: Final = ("INT", "BIGINT")
_COMPARED: Final = ("STRING", "TIMESTAMP", *_INTEGERS)
_SHOWN: Final = (*_COMPARED, "BOOLEAN")
_AGGREGATES: Final = {
    "count": (*_SHOWN, "BINARY", "DOUBLE"),
    "sum": _INTEGERS,
    "min": _COMPARED,
    "max": _COMPARED,
}
_COMPARISONS: Final = frozenset({"=", "<>", "!=", "<", "<=", ">", ">="})
_MOMENT: Final = re.compile(
    # Spark reads a zone only after seconds.
    r"\d{4}-\d\d-\d\d(?:[ T](?:[01]\d|2[0-3]):\d\d(?::\d\d(?:\.\d{1,6})?Z?)?)?",
    re.ASCII,
)
# Senders choose these times, and delta-rs takes one after the year 2262 for another.
_FAR: Final = frozenset({"expires_at"})
_INT_MAX: Final = 2**31 - 1
_DEPTH_MAX: Final = 64
_BIGINTS: Final = range(-(2**63), 2**63)


class Answer(NamedTuple):
    """The rows of a small question."""

    table: str
    columns: list[str]
    rows: list[tuple[Any, ...]]

    def texts(self) -> Iterator[tuple[str | None, ...]]:
        """Yield every row as text, written as Spark's are."""
        for row in self.rows:
            yield tuple(None if value is None else _text(value) for value in row)

    def objects(self) -> Iterator[str]:
        """Yield every row as a JSON object."""
        for row in self.rows:
            members = (_text(value) if isinstance(value, datetime) else value for value in row)
            yield json.dumps(
                dict(zip(self.columns, members, strict=True)),
                ensure_ascii=False,
                separators=(",", ":"),
            )


def quick_answer(lake: Lake, question: str, rows_max: int | None = None) -> Answer | None:
    """Return the first rows of the answer to a small question; `None` if Spark has to answer it."""
    # The hub checks conditions here and has no need of what a lake needs.
    from signalhub.pipeline.lake import LakeUnreachable

    try:
        asked = _Question(question)
        if lake.bytes(asked.table) > BYTES_MAX:
            return None
        found = lake.select(asked.table, asked.query(rows_max))
        if found is None:
            return None
        columns = [
            _sums(column.to_pylist()) if item.is_sum else column.to_pylist()
            for item, column in zip(asked.items, found.columns, strict=True)
        ]
    except (_Beyond, LakeUnreachable):
        return None
    return Answer(asked.table, asked.names, [*zip(*columns, strict=True)])


def is_plain_condition(table: str, condition: str) -> bool:
    """Return whether a condition only compares columns of a table with values.

    Spark does far more, on the machine and with the rights of whoever runs it. Conditions that are
    nested too deeply are refused, too.
    """
    try:
        _Question(f"SELECT count(*) FROM {table} WHERE ({condition})")  # noqa: S608
    except _Beyond:
        return False
    return True


def _sums(values: list[Any]) -> list[int | None]:
    """Sums that fit into 64 bits; for others Spark has an error."""
    sums = [None if value is None else int(value) for value in values]
    if any(one is not None and one not in _BIGINTS for one in sums):
        raise _Beyond
    return sums


class _Beyond(Exception):
    """The question is beyond this module."""


class _Item(NamedTuple):
    """One column of the answer."""

    name: str
    query: str
    column: str | None  # The lower-case name of the column, if it is one.

    @property
    def is_sum(self) -> bool:
        return self.query.startswith("sum(")


class _Question:
    """A parsed question; raises `_Beyond` for what is not recognized."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0
        self.table, self._types = self._find_table()
        self._expect("select")
        self.items = [self._item()]
        while self._take(","):
            self.items.append(self._item())
        self._expect("from")
        self._at += 1
        self._where = self._condition() if self._take("where") else ""
        self._groups = self._grouping()
        self._order = self._ordering()
        self._limit = self._number() if self._take("limit") else None
        if self._at < len(self._tokens):
            raise _Beyond
        self._check_columns()

    @property
    def names(self) -> list[str]:
        """The names of the columns of the answer."""
        return [item.name for item in self.items]

    def query(self, rows_max: int | None) -> str:
        """Return the question in the words of delta-rs, for no more rows than needed."""
        columns = ", ".join(f"{item.query} AS c{number}" for number, item in enumerate(self.items))
        text = f'SELECT {columns} FROM "{self.table}"'  # noqa: S608  Every part was parsed.
        if self._where:
            text += f" WHERE {self._where}"
        if self._groups:
            text += f" GROUP BY {', '.join(map(_quoted, self._groups))}"
        if self._order:
            text += f" ORDER BY {', '.join(self._order)}"
        limits = [one for one in (self._limit, rows_max) if one is not None]
        if limits:
            text += f" LIMIT {min(limits)}"
        return text

    def _find_table(self) -> tuple[str, dict[str, str]]:
        """Look ahead: the types of the columns are needed from the start."""
        places = [at for at, (kind, text) in enumerate(self._tokens) if (kind, text) == _FROM]
        if len(places) != 1 or places[0] + 1 >= len(self._tokens):
            raise _Beyond
        kind, name = self._tokens[places[0] + 1]
        if kind != "word" or name not in TABLES:
            raise _Beyond
        return name, {column.name: column.type for column in TABLES[name].columns}

    # Parts of a question.

    def _item(self) -> _Item:
        written, query, column = self._expression()
        is_named = self._kind() == "word" and self._peek() not in _KEYWORDS
        if self._take("as") or is_named:
            written = self._name()
        return _Item(written, query, column)

    def _expression(self) -> tuple[str, str, str | None]:
        """A column or an aggregate: its name in the answer, its query, and the column."""
        name = self._name()
        if not self._take("("):
            column = self._checked(name, _SHOWN)
            return name, _quoted(column), column
        types = _AGGREGATES.get(name.lower())
        if types is None:
            raise _Beyond
        if name.lower() == "count" and self._take("*"):
            self._expect(")")
            return "count(1)", "count(*)", None
        argument = self._name()
        column = self._checked(argument, types)
        self._expect(")")
        value = _quoted(column)
        if name.lower() == "sum":
            # In 64 bits a sum that is too large would become another number.
            value = f"arrow_cast({value}, 'Decimal128(38, 0)')"
        return f"{name.lower()}({argument})", f"{name.lower()}({value})", None

    def _condition(self) -> str:
        text = self._conjunction()
        while self._take("or"):
            text = f"({text} OR {self._conjunction()})"
        return text

    def _conjunction(self) -> str:
        text = self._comparison()
        while self._take("and"):
            text = f"({text} AND {self._comparison()})"
        return text

    def _comparison(self) -> str:
        if self._take("not"):
            return f"(NOT {self._nested(self._comparison)})"
        if self._take("("):
            text = self._nested(self._condition)
            self._expect(")")
            return f"({text})"
        name = self._name().lower()
        if self._take("is"):
            self._checked(name, tuple({*_SHOWN, "BINARY", "DOUBLE"}))
            negation = "NOT " if self._take("not") else ""
            self._expect("null")
            return f"{_quoted(name)} IS {negation}NULL"
        type = self._types[self._checked(name, _SHOWN)]
        negation = "NOT " if self._take("not") else ""
        if self._take("in"):
            self._expect("(")
            values = [self._literal(type)]
            while self._take(","):
                values.append(self._literal(type))
            self._expect(")")
            return f"{_quoted(name)} {negation}IN ({', '.join(values)})"
        if self._take("between"):
            lower = self._literal(type)
            self._expect("and")
            return f"{_quoted(name)} {negation}BETWEEN {lower} AND {self._literal(type)}"
        sign = self._peek()
        if negation or sign not in _COMPARISONS:
            raise _Beyond
        self._at += 1
        return f"{_quoted(name)} {sign} {self._literal(type)}"

    def _nested(self, part: Callable[[], str]) -> str:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise _Beyond
        text = part()
        self._depth -= 1
        return text

    def _literal(self, type: str) -> str:
        """A value of the type of the column it is compared with: dialects convert differently."""
        kind, text = self._next()
        if type == "STRING" and kind == "text":
            return f"'{text}'"
        if type in _INTEGERS and kind == "number":
            return text
        if type == "BOOLEAN" and kind == "word" and text.lower() in ("true", "false"):
            return text
        if type == "TIMESTAMP" and kind == "text" and _MOMENT.fullmatch(text):
            return f"arrow_cast('{_moment(text)}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
        raise _Beyond

    def _grouping(self) -> list[str]:
        if not self._take("group"):
            return []
        self._expect("by")
        found = [self._checked(self._name(), _SHOWN)]
        while self._take(","):
            found.append(self._checked(self._name(), _SHOWN))
        return found

    def _ordering(self) -> list[str]:
        if not self._take("order"):
            return []
        self._expect("by")
        found = [self._sort_key()]
        while self._take(","):
            found.append(self._sort_key())
        return found

    def _sort_key(self) -> str:
        """What is sorted by is in the answer; Spark puts nulls first, or last if descending."""
        written, query, _ = self._expression_or_alias()
        if query.endswith(")") and any(self._is_hidden_by(item) for item in self.items):
            # Spark looks for the columns of the aggregate among the names of the answer.
            raise _Beyond
        places = [
            number
            for number, item in enumerate(self.items)
            if item.query == query or item.name.lower() == written.lower()
        ]
        if len(places) != 1:
            raise _Beyond
        is_descending = self._take("desc")
        if not is_descending:
            self._take("asc")
        return f"c{places[0]} {'DESC NULLS LAST' if is_descending else 'ASC NULLS FIRST'}"

    def _is_hidden_by(self, item: _Item) -> bool:
        """Whether a column of the answer has the name of another column of the table."""
        name = item.name.lower()
        return name in self._types and name != item.column

    def _expression_or_alias(self) -> tuple[str, str, str | None]:
        start = self._at
        name = self._name()
        if self._peek() != "(" and name.lower() not in self._types:
            return name, "", None
        self._at = start
        return self._expression()

    def _check_columns(self) -> None:
        """With aggregates or groups, every other column must be one of the groups."""
        plain = [item.column for item in self.items if item.column is not None]
        is_aggregated = bool(self._groups) or len(plain) < len(self.items)
        if is_aggregated and not set(plain) <= set(self._groups):
            raise _Beyond
        names = [name.lower() for name in self.names]
        if len(set(names)) < len(names):
            raise _Beyond

    def _checked(self, name: str, types: Sequence[str]) -> str:
        column = name.lower()
        if self._types.get(column) not in types or column in _FAR:
            raise _Beyond
        return column

    # Tokens.

    def _kind(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _peek(self) -> str:
        """The next word or sign in lower case; empty for a text, and at the end."""
        if self._kind() in ("", "text"):
            return ""
        return self._tokens[self._at][1].lower()

    def _next(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise _Beyond
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, text: str) -> bool:
        is_next = self._peek() == text
        self._at += is_next
        return is_next

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise _Beyond

    def _name(self) -> str:
        kind, text = self._next()
        if kind != "word" or text.lower() in _KEYWORDS:
            raise _Beyond
        return text

    def _number(self) -> int:
        kind, text = self._next()
        if kind != "number" or text.startswith("-") or int(text) > _INT_MAX:
            raise _Beyond
        return int(text)


_FROM: Final = ("word", "from")


def _tokens(text: str) -> list[tuple[str, str]]:
    text = text.strip(" \t\r\n").removesuffix(";")
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _Beyond
        if match.lastgroup is not None:
            word = match[match.lastgroup]
            is_from = match.lastgroup == "word" and word.lower() == "from"
            found.append(_FROM if is_from else (match.lastgroup, word))
        at = match.end()
    return found


def _moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text.removesuffix("Z"))
    except ValueError:
        raise _Beyond from None
    return moment.isoformat(timespec="microseconds")


def _quoted(column: str) -> str:
    return f'"{column}"'


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        moment = value.astimezone(UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
