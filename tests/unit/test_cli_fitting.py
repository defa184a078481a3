"""Tables on a terminal that is too narrow for them."""

from __future__ import annotations

import pytest

from signalhub.cli.actors.hosts import Row
from signalhub.cli.actors.tables import ACTORS, ALARMS, CALLS, DEAD, alarm_row, call_row, dead_row
from signalhub.cli.terminal.output import Output, OutputColumn, fitted
from tests.support.process.terminal import Terminal

ID = "01M7J0XH11HVJDPJH52Y9PDARE"
NOON_MS = 1_769_860_800_000
ACTOR = {"actor": "order/17", "host": "host-1a2b3c4d"}
CALL = call_row(
    ACTOR
    | {"call": ID, "target": "payment/a1-4000000000000119", "method": "charge"}
    | {"deadlineMs": NOON_MS, "state": "accepted"}
)
ALARM = alarm_row(
    ACTOR
    | {"id": ID, "type": "delayed", "dueMs": NOON_MS, "spec": "{}", "attempts": 0}
    | {"continuation": '{"m":"on_unpaid","a":[],"k":{}}', "status": "pending", "lastError": None}
)
LETTER = dead_row(
    ACTOR
    | {"id": ID, "origin": "continuation", "attempts": 3, "deadMs": NOON_MS}
    | {"error": "KeyError: 'stumbled', and a good deal more to say about it"}
)
LISTED = {"status": "here", "inbox": 0, "outbox": 0, "pending": 1, "alarms": 0, "dead": 12}
LISTED |= {"actor": "payment/a1b2c3d4-4000000000000119", "host": "host-1a2b3c4d"}


@pytest.mark.parametrize(
    ("columns", "row", "words"),
    [
        (CALLS, CALL, [ID, "order/17", "accepted", "state"]),
        (ALARMS, ALARM, [ID, "order/17", "pending", "status", "2026-01-31"]),
        (DEAD, LETTER, [ID, "order/17", "continuation", "KeyError:", "2026-01-31"]),
        (ACTORS, LISTED, ["host-1a2b3c4d", "here", "status", "outbox", "12"]),
    ],
    ids=["calls", "alarms", "dead", "ls"],
)
def test_with_80_columns_ids_and_short_words_are_whole(
    columns: tuple[OutputColumn, ...], row: Row, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()

    Output(as_json=False, stream=terminal).table(columns, [row])

    lines = terminal.getvalue().splitlines()
    assert set(words) <= set(terminal.getvalue().split())
    assert max(map(len, lines)) <= 80


SPARE = (OutputColumn("a"), OutputColumn("b", is_spare=True), OutputColumn("c", is_spare=True))


@pytest.mark.parametrize(
    ("room", "names", "widths"),
    [
        (80, "abc", [11, 3, 5]),
        (23, "abc", [9, 3, 5]),
        (18, "ab", [11, 3]),
        (12, "ab", [5, 3]),
        (11, "a", [9]),
        (5, "a", [None]),
    ],
)
def test_the_last_spare_columns_are_left_out_first(
    room: int, names: str, widths: list[int | None]
) -> None:
    cells = {"a": ["seven words"], "b": ["one"], "c": ["apart"]}

    kept, given = fitted(SPARE, cells, room)

    assert ["".join(column.name for column in kept), given] == [names, widths]


def test_what_is_left_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    columns = (OutputColumn("id", is_whole=True), OutputColumn("b", title="host", is_spare=True))

    Output(as_json=False, stream=terminal).table(columns, [{"id": "x" * 16, "b": "shop"}])

    assert "x" * 16 in terminal.getvalue()
    assert "omitted: host" in terminal.getvalue()
