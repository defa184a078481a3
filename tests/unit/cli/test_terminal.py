"""What users type, what is printed for them, and what they are asked."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from signalhub.cli.actors.hosts import Row
from signalhub.cli.actors.tables import ACTORS, ALARMS, CALLS, DEAD, alarm_row, call_row, dead_row
from signalhub.cli.hub import session
from signalhub.cli.messages.messages import follow, message_facts, parts
from signalhub.cli.terminal import arguments
from signalhub.cli.terminal.connection import LOCAL
from signalhub.cli.terminal.failures import Exit, Failure, confirm, report
from signalhub.cli.terminal.output import Output, OutputColumn, counted, fitted, shown
from signalhub.cli.terminal.progress import bar
from signalhub.cli.terminal.quantities import (
    byte_count,
    moment,
    position,
    position_or_none,
    seconds,
    shown_duration,
    shown_size,
    shown_time,
)
from signalhub.cli.terminal.sentences import wrapped
from signalhub.client import Delivery, Message
from tests.support.process.terminal import Terminal

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MS = 1_769_860_800_000


@pytest.fixture(autouse=True)
def nothing_after_two_dashes() -> None:
    arguments.options_of([])


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def pipe_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def refusal(read: Any, text: str) -> str:
    with pytest.raises(Failure) as caught:
        read(text)
    assert caught.value.exit is Exit.USAGE
    return str(caught.value)


def as_data(text: str) -> Any:
    return arguments.data(text, as_text=False)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (arguments.address, {"demo/alice": "@(demo/alice)", "@(demo/alice)": "@(demo/alice)"}),
        (arguments.checked_topic, {"prices/eu": "prices/eu", "pri#": "pri#"}),
        (
            arguments.half_wildcard,
            {"pri#": "pri#", "a/b+/c": "b+", "prices/#": None, "+/x": None, "plain": None},
        ),
        (seconds, {"5": 5, "250ms": 0.25, "30s": 30, "5m": 300, "1.5h": 5400, "7d": 604_800}),
        (byte_count, {"5": 5, "1K": 1024, "1.5m": 1_572_864, "1GB": 2**30, "2GiB": 2**31}),
        (moment, {"2026-01-31T12:00Z": NOON, "2026-01-31 13:00:00+01:00": NOON}),
        # Without a zone, it is that of this machine.
        (moment, {"2026-01-31T12:00": datetime(2026, 1, 31, 12).astimezone()}),
        (position, {"earliest": "earliest", "seq:5": {"seq": 5}, "5": {"seq": 5}}),
        (position, {"latest": "latest", "last:10": {"last": 10}, "time:2026-01-31T12:00Z": NOON}),
        (as_data, {"hello world": "hello world", '{"a": [1, null]}': {"a": [1, None]}, "-5": -5}),
        (as_data, {"true": True, '"quoted"': "quoted", "broken}": "broken}", "": ""}),
    ],
)
def test_arguments_are_read(read: Any, expected: dict[str, Any]) -> None:
    assert {text: read(text) for text in expected} == expected


NO_QUANTITIES = ["", "d", "-5s", "5 years", "inf", "nan", "1e3", "1" * 400]
NO_POSITIONS = ["", "first", "seq:0", "0", "seq:", "last:x", "-1", "demo/alice"]


@pytest.mark.parametrize(
    ("read", "example", "texts"),
    [
        (
            arguments.address,
            "demo/alice",
            ["", "@()", "a\nb", "x" * 300, "@(demo", "demo)", "demo alice", "@(@(demo)", "@(a b)"],
        ),
        (arguments.checked_topic, "wildcard", ["prices/+", "#", "prices/#"]),
        (seconds, "7d", NO_QUANTITIES),
        (byte_count, "1G", NO_QUANTITIES),
        (moment, "2026-01-31T12:00Z", ["", "noon", "31.1.2026", "2026-13-01"]),
        (position, "earliest, latest, seq:5", NO_POSITIONS),
        (as_data, "-- --tmeout", ["--tmeout"]),
    ],
)
def test_what_cannot_be_read_is_refused_with_an_example(
    read: Any, example: str, texts: list[str]
) -> None:
    for text in texts:
        assert example in refusal(read, text), text
    assert [position_or_none(text) for text in NO_POSITIONS] == [None] * len(NO_POSITIONS)


@pytest.mark.parametrize(
    ("show", "expected"),
    [
        (shown_duration, {None: "", 604_800: "7d", 90: "90s", 5_400: "90m", 0.25: "0.25s"}),
        (shown_size, {None: "", 0: "0", 1023: "1023", 2**30: "1G", 1_500_000: "1.43M"}),
        (shown_time, {None: "", 0: "", 10**30: str(10**30)}),
        (lambda ms: moment(shown_time(ms)).timestamp() * 1000, {NOON_MS + 123: NOON_MS + 123}),
        (lambda n: counted(n, "message"), {0: "0 messages", 1: "1 message", 2: "2 messages"}),
        (lambda n: counted(n, "entry"), {0: "0 entries", 1: "1 entry", 2: "2 entries"}),
        (shown, {"plain é ✓": "plain é ✓", "two\nlines": '"two\\nlines"', 3: "3"}),
        (shown, {"\x9b2J": '"\\u009b2J"', ("plan", "draw"): "plan, draw", ("a", 1): '["a",1]'}),
        (lambda text: shown({"a": text}), {"\u202eevil": '{"a":"\\u202eevil"}', "b": '{"a":"b"}'}),
    ],
)
def test_values_are_shown_on_one_printable_line(show: Any, expected: dict[Any, str]) -> None:
    assert {value: show(value) for value in expected} == expected


@pytest.mark.parametrize("url", ["http://h/ws", "nope", "ws://127.0.0.1:99999/ws", "ws://[::1/ws"])
def test_a_bad_url_is_repeated_with_where_it_came_from(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGNALHUB_URL", url)
    assert "correct SIGNALHUB_URL" in refusal(arguments.checked_url, url)
    monkeypatch.delenv("SIGNALHUB_URL")
    said = refusal(arguments.checked_url, url)

    assert "correct --url" in said
    assert url in said


@pytest.mark.parametrize("url", ["ws://ann:s3cret@h/ws", "ws://h/ws?token=s3cret"])
def test_a_url_with_a_secret_in_it_is_not_repeated(url: str) -> None:
    said = refusal(arguments.checked_url, url)

    assert "s3cret" not in said
    assert "--token-file" in said


def test_a_dash_reads_standard_input_without_its_last_newline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe_in(monkeypatch, '[1, "é"]\n'.encode())
    assert as_data("-") == [1, "é"]
    pipe_in(monkeypatch, b"two\nlines\n")
    assert arguments.data("-", as_text=True) == "two\nlines"
    assert arguments.data('{"a": 1}', as_text=True) == '{"a": 1}'
    pipe_in(monkeypatch, b"\xff\xfe")
    assert "UTF-8" in refusal(as_data, "-")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"a": 1', "line 1, column 8"),
        ("{a: 1}", "line 1, column 2"),
        ("[1,\n2,,3]", "line 2, column 3"),
        ('  "open', "line 1, column 3"),
    ],
)
def test_broken_json_is_refused_with_its_position_unless_it_is_meant_as_text(
    text: str, where: str
) -> None:
    with pytest.raises(Failure, match=where) as refused:
        arguments.data(text, as_text=False)

    assert "at at" not in str(refused.value)
    assert refused.value.exit == Exit.USAGE
    assert "--text" in str(refused.value.resolution)
    assert arguments.data(text, as_text=True) == text


def test_what_does_not_begin_like_json_is_text() -> None:
    for text in ("hello", "12 monkeys", "truely", "", "(x)"):
        assert arguments.data(text, as_text=False) == text


@pytest.mark.parametrize("text", ["--tmeout", "--", "-"])
def test_what_follows_two_dashes_is_data_on_that_command_line_only(text: str) -> None:
    assert arguments.options_of(["tell", "demo/bob", "--", text]) == ["tell", "demo/bob"]
    assert as_data(text) == text

    assert arguments.options_of(["tell", "demo/bob"]) == ["tell", "demo/bob"]
    assert "unknown option --tmeout" in refusal(as_data, "--tmeout")


@pytest.mark.parametrize(
    ("answer", "is_agreed"),
    [("y", True), ("YES", True), (" y ", True), ("", False), ("n", False), ("yesterday", False)],
)
def test_what_cannot_be_undone_is_done_only_after_a_yes(
    answer: str,
    is_agreed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))

    if is_agreed:
        confirm("delete orders", yes=False)
    else:
        with pytest.raises(Failure, match="nothing was changed") as caught:
            confirm("delete orders", yes=False)
        assert caught.value.exit is Exit.FAILED

    captured = capsys.readouterr()
    assert "About to delete orders. Continue? [y/N]" in captured.err
    assert captured.out == ""


def test_where_nobody_can_be_asked_yes_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))

    assert "--yes" in refusal(lambda what: confirm(what, yes=False), "delete orders")
    confirm("delete orders", yes=True)


COLUMNS = (OutputColumn("address", style="cyan"), OutputColumn("capabilities"))
ROWS = [
    {"address": "@(demo/alice)", "capabilities": ["plan"], "version": 2},
    {"address": "@(demo/bob)", "capabilities": [], "version": 1},
]


def test_programs_get_whole_objects_and_pipes_their_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, plain = Output(as_json=True), Output(as_json=False)

    data.table(COLUMNS, [*ROWS, {"other": 1}])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        *ROWS,
        {"other": 1},
    ]
    plain.table(COLUMNS, ROWS)
    assert capsys.readouterr().out == "@(demo/alice)\tplan\n@(demo/bob)\t\n"
    plain.table(COLUMNS, [], if_empty="nobody is registered")
    assert capsys.readouterr().out == ""
    plain.fact({}, "x" * 500)
    assert capsys.readouterr().out == "x" * 500 + "\n"
    facts = {"topic": "orders", "head": 2, "dead_letter": None}
    data.sheet(facts)
    plain.sheet(facts)
    first, *lines = capsys.readouterr().out.splitlines()
    assert json.loads(first) == facts
    assert lines == ["topic\torders", "head\t2", "dead_letter\t"]


def test_people_get_a_head_colour_and_a_word_about_nothing(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    Output(as_json=False, stream=terminal).table(COLUMNS, [], if_empty="nobody is registered")
    assert "nobody is registered" in terminal.getvalue()
    Output(as_json=False, stream=terminal).table(COLUMNS, ROWS)
    lines = terminal.getvalue().splitlines()
    assert any("address" in line and "capabilities" in line for line in lines)
    assert any("@(demo/alice)" in line and "plan" in line for line in lines)
    assert "\033[36m" in terminal.getvalue()

    plain = Terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    Output(as_json=False, stream=plain).table(COLUMNS, ROWS)
    Output(as_json=False, stream=plain).line({}, [("red", "red")])
    assert "\033[3" not in plain.getvalue()
    assert "@(demo/alice)" in plain.getvalue()


def test_strangers_cannot_reach_the_terminal_or_its_markup(terminal: Terminal) -> None:
    output = Output(as_json=False, stream=terminal)
    output.line({}, [(shown("\033]0;owned\a"), ""), (shown("[red]x[/red]"), "")])
    output.table(COLUMNS, [{"address": "[bold]\033[2J", "capabilities": []}])

    assert "\033]0" not in terminal.getvalue()
    assert "\033[2J" not in terminal.getvalue()
    assert "[red]x[/red]" in terminal.getvalue()


@pytest.mark.parametrize(
    ("as_json", "total", "is_shown"), [(False, 10, True), (False, 0, False), (True, 10, False)]
)
def test_a_bar_is_for_people_who_have_to_wait(
    as_json: bool, total: int, is_shown: bool, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)

    with bar("publishing", Output(as_json, terminal)) as show:
        show(5, total)

    assert ("publishing" in terminal.getvalue()) is is_shown


ID = "01M7J0XH11HVJDPJH52Y9PDARE"
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
        (ACTORS, LISTED, ["host-1a2b3c4d", "here", "status", "calls", "12"]),
    ],
    ids=["calls", "alarms", "dead", "ls"],
)
def test_with_80_columns_ids_and_short_words_are_whole(
    columns: tuple[OutputColumn, ...],
    row: Row,
    words: list[str],
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("NO_COLOR", "1")

    Output(as_json=False, stream=terminal).table(columns, [row])

    assert set(words) <= set(terminal.getvalue().split())
    assert max(map(len, terminal.getvalue().splitlines())) <= 80


@pytest.mark.parametrize(
    ("room", "names", "widths"),
    [
        (80, "abc", [11, 3, 5]),
        (23, "abc", [9, 3, 5]),
        (18, "ab", [11, 3]),
        (12, "ab", [5, 3]),
        (11, "a", [9]),
    ],
)
def test_the_last_spare_columns_are_left_out_first(
    room: int, names: str, widths: list[int]
) -> None:
    spare = (OutputColumn("a"), OutputColumn("b", spare=1), OutputColumn("c", spare=1))
    cells = {"a": ["seven words"], "b": ["one"], "c": ["apart"]}

    fit = fitted(spare, cells, room)

    assert fit is not None
    assert ["".join(column.name for column in fit[0]), fit[1]] == [names, widths]


def test_a_terminal_too_narrow_for_a_table_gets_records_with_whole_words(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    columns = (OutputColumn("hour"), OutputColumn("n", title="duplicates"), OutputColumn("verdict"))
    row = {"hour": "2026-11-16T17:00Z", "n": 0, "verdict": "proven"}

    Output(as_json=False, stream=terminal).table(columns, [row, row])

    record = "hour        2026-11-16T17:00Z\nduplicates  0\nverdict     proven\n"
    assert re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()) == f"{record}\n{record}"


def test_what_is_left_out_is_named(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    columns = (OutputColumn("id", is_whole=True), OutputColumn("b", title="host", spare=1))

    Output(as_json=False, stream=terminal).table(columns, [{"id": "x" * 16, "b": "shop"}])

    assert "x" * 16 in terminal.getvalue()
    assert "omitted: host" in terminal.getvalue()


def message(seq: int | None = None, attempt: int = 1, **metadata: Any) -> Message:
    delivery = None
    if seq is not None:
        delivery = Delivery(epoch="1.1", seq=seq, subscription="billing", attempt=attempt)
    return Message(
        id="m-1",
        sender="@(demo/alice)",
        to="@(cli/1)",
        type="text",
        payload=7,
        metadata=metadata,
        timestamp=1000,
        topic="orders",
        delivery=delivery,
    )


def line_of(one: Message, *, is_terminal: bool = False, has_position: bool = True) -> list[str]:
    return [text for text, _ in parts(one, is_terminal=is_terminal, has_position=has_position)]


def test_a_message_is_a_line_with_its_position_where_that_is_wanted() -> None:
    live = ["orders", "@(demo/alice)", "text", "7"]

    assert line_of(message()) == line_of(message(3), has_position=False) == live
    assert line_of(message(3)) == ["orders", "3", "1", *live[1:]]
    assert line_of(message(3), is_terminal=True)[1:4] == ["orders", "3", ""]
    assert line_of(message(3, 2), is_terminal=True)[1:4] == ["orders", "3", "attempt 2"]


def test_a_message_is_an_object_with_its_position_key_headers_and_original() -> None:
    facts = message_facts(message(3, 2, key="k", headers={"a": "b"}))
    original = {"job": "again", "epoch": 1, "offset": 41, "id": "m-7"}
    copy = msgspec.structs.replace(message(3), metadata={"original": original})

    assert (facts["epoch"], facts["seq"], facts["attempt"]) == ("1.1", 3, 2)
    assert (facts["key"], facts["headers"]) == ("k", {"a": "b"})
    assert message_facts(copy)["original"] == original | {"shard": 0}
    assert not {"seq", "original"} & message_facts(message()).keys()


def test_a_stored_message_has_the_time_of_its_publication_and_a_copy_says_so() -> None:
    today_ms = int(time.time() * 1000)
    delivery = Delivery(epoch="1.1", seq=3, subscription="billing", published_at=NOON_MS)
    old = msgspec.structs.replace(message(3), timestamp=today_ms, delivery=delivery)
    live = msgspec.structs.replace(message(), timestamp=today_ms)
    copy = msgspec.structs.replace(message(3), metadata={"original": {"job": "again"}})

    local = datetime.fromtimestamp(NOON_MS / 1000).strftime("%Y-%m-%d %H:%M:%S.000")
    assert line_of(old, is_terminal=True)[0] == local
    assert line_of(live, is_terminal=True)[0].count("-") == 0
    assert line_of(copy)[-1] == line_of(copy, is_terminal=True)[-1] == "copy by again"
    assert line_of(copy)[:-1] == line_of(message(3))


SENTENCE = (
    "signalhub: unknown topic 'my orders' — list topics with `signalhub topic ls --json`, create"
    " one with `signalhub topic create my-orders`, see https://signalhub.example/a/rather/long/path,"
    " or continue with --from 4711 (the hub's log says more)"
)
PIECES = (
    "'my orders'",
    "`signalhub topic ls --json`,",
    "`signalhub topic create my-orders`,",
    "https://signalhub.example/a/rather/long/path,",
    "--from 4711",
    "hub's log",
)


@pytest.mark.parametrize("width", [80, 60, 40, 30])
def test_sentences_are_wrapped_at_words_and_never_inside_what_may_be_copied(width: int) -> None:
    lines = wrapped(SENTENCE, width).splitlines()

    assert " ".join(line.strip() for line in lines) == SENTENCE
    assert all(any(piece in line for line in lines) for piece in PIECES[:-1])
    too_long = [line for line in lines if len(line) > width]
    assert all(line.strip() in PIECES for line in too_long)
    assert all(line.startswith("  ") for line in lines[1:])


def test_errors_notes_and_results_are_wrapped_on_a_terminal_only(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = Failure(Exit.FAILED, "unknown_topic", "unknown topic " + "orders " * 20, "try again")
    report(failure, as_json=False)
    report(failure, as_json=True)
    LOCAL.note("note: " + "word " * 30)
    whole = capsys.readouterr().err.splitlines()
    monkeypatch.setattr(sys, "stderr", terminal)

    report(failure, as_json=False)
    LOCAL.note("note: " + "word " * 30)
    LOCAL.remark({}, "note: " + "word " * 30)

    assert len(whole) == 3
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 7
    report(failure, as_json=True)
    assert json.loads(terminal.getvalue().splitlines()[-1])["error"] == "unknown_topic"


LONG_SESSION = {
    "session": "session-55d851ff-4774-4f17-aeec-b178c720b7f2",
    "identity": "@(local/client-cd7201c3-947b-465a-acde-000000000000)",
    "subject": "someone@a-long-company-name.example",
    "source": "2001:db8:85a3:8d3:1319:8a2e:370:7348",
    "connected_s": 123456,
    "registrations": 1,
    "subscriptions": 12,
    "queued_bytes": 123456,
}
LONG_ACTOR = {
    "actor": "order/7f1c9a52-2f4f-4a0b-8a53-3f6f2f1f9a52",
    "host": "shop-berlin-1",
    "status": "active",
    "inbox": 0,
    "outbox": 3,
    "pending": 1,
    "alarms": 12,
    "dead": 0,
}


@pytest.mark.parametrize(
    ("columns", "row", "kept"),
    [
        (session.COLUMNS, LONG_SESSION, (str(LONG_SESSION["session"]), "@(local")),
        (ACTORS, LONG_ACTOR, ("shop-berlin-1", "active", "dead")),
    ],
    ids=["sessions", "actors"],
)
def test_a_row_of_a_long_list_takes_two_lines_at_most_on_80_columns(
    columns: tuple[OutputColumn, ...], row: Row, kept: tuple[str, ...], terminal: Terminal
) -> None:
    Output(as_json=False, stream=terminal).table(columns, [row] * 10)

    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    _, _, *rows = (line for line in plain.partition("omitted: ")[0].splitlines() if line.strip())
    assert len(rows) <= 20
    assert all(word in plain for word in kept)
    assert max(map(len, plain.splitlines())) <= 80


async def test_each_message_is_settled_after_it_was_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settled: list[tuple[int, bool, int]] = []
    printed: list[str] = []

    async def stream(count: int) -> AsyncIterator[Message]:
        for seq in range(1, count + 1):
            yield message(seq)

    async def settle(one: Message, is_last: bool) -> None:
        printed.extend(capsys.readouterr().out.splitlines())
        assert one.delivery is not None
        settled.append((one.delivery.seq, is_last, len(printed)))

    await follow(stream(3), Output(as_json=True), count=2, for_s=None, settle=settle)

    assert settled == [(1, False, 1), (2, True, 2)]
    assert [json.loads(line)["seq"] for line in printed] == [1, 2]
    with pytest.raises(Failure, match="1 of 2 messages"):
        await follow(stream(1), Output(as_json=True), count=2, for_s=1.0)
