"""A session as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from bench.figures import Figure, Measurement, Summary, advantage, was_generator_bound
from bench.goal import goal_table, goals_json
from bench.goals import GOALS, Summaries
from bench.measuring import Shape
from bench.servers import HUB
from bench.session import Run, Session
from bench.site import SLOW_DIVISOR_CONNECTIONS, SLOW_DIVISOR_MESSAGES
from bench.tables import number, table

_SLOW_NOTE = (
    f"* given as little as 1/{SLOW_DIVISOR_MESSAGES} of the messages and "
    f"1/{SLOW_DIVISOR_CONNECTIONS} of the connections to be accepted, so that its runs end in time"
)


@dataclass(frozen=True, slots=True)
class Column:
    """Return one figure as a table shows it."""

    heading: str
    figure: Figure
    divisor: float = 1.0
    digits: int = 0
    has_range: bool = False


_COST = (
    Column("CPU µs per {unit}", "cpu_us", digits=2, has_range=True),
    Column("{unit} rate, per s", "rate_s"),
)
_SHARES = (
    Column("server's core", "server_share", digits=2),
    Column("generator's", "generator_share", digits=2),
)
_LATENCY = (
    Column("p50 µs", "p50_us", has_range=True),
    Column("p99 µs", "p99_us", has_range=True),
)
_COLUMNS: Mapping[str, Sequence[Column]] = {
    "p2p": (*_COST, *_SHARES),
    "fanout": (*_COST, Column("last copy after, ms", "p50_us", 1e3, 1, has_range=True), *_SHARES),
    "accept": (*_COST, Column("bytes each", "connection_bytes", has_range=True), *_SHARES),
    "latency": (
        *_COST,
        Column("p50 µs", "p50_us", has_range=True),
        Column("p99 µs", "p99_us", has_range=True),
        Column("worst lag µs", "lag_us"),
    ),
    "undisturbed": (
        Column("p50 µs", "p50_us", has_range=True),
        Column("p99 µs", "p99_us", has_range=True),
        Column("calm p50", "calm_p50_us"),
        Column("calm p99", "calm_p99_us"),
        Column("copies per s", "rate_s"),
    ),
    "durable": (*_COST, *_LATENCY, *_SHARES),
    "ask": (*_COST, *_LATENCY, *_SHARES),
    "consume": (*_COST, *_SHARES),
    "wake": (
        Column("CPU µs per {unit}", "cpu_us", digits=2),
        Column("per s", "rate_s"),
        Column("server's core", "server_share", digits=2),
        Column("delivered p50 µs", "p50_us", has_range=True),
        Column("p99 µs", "p99_us", has_range=True),
        Column("acked p50", "ack_p50_us"),
        Column("p99", "ack_p99_us"),
        Column("worst lag µs", "lag_us"),
    ),
    "frozen": (
        Column("p50 µs", "p50_us", has_range=True),
        Column("p99 µs", "p99_us", has_range=True),
        Column("calm p50", "calm_p50_us"),
        Column("calm p99", "calm_p99_us"),
        Column("p99 ÷ calm p99", "shift", digits=2, has_range=True),
        Column("worst lag µs", "lag_us"),
    ),
    "idle": (Column("share of a core", "server_share", digits=4, has_range=True),),
    "rooms": (*_COST, *_LATENCY, *_SHARES),
    "inbox": (*_COST, *_LATENCY, *_SHARES),
    "rooms-idle": (
        Column("share of a core", "server_share", digits=4, has_range=True),
        Column("empty hub", "empty_share", digits=4, has_range=True),
    ),
    "rooms-live": (
        Column("server's core", "server_share", digits=2),
        Column("acked p50 µs", "ack_p50_us", has_range=True),
        Column("p99 µs", "ack_p99_us", has_range=True),
        Column("heard p50 µs", "p50_us", has_range=True),
        Column("p99 µs", "p99_us", has_range=True),
        Column("worst lag µs", "lag_us"),
        Column("per s with p99 held", "held_rate_s", has_range=True),
    ),
    "recovery": (
        Column("log alone, s", "log_s", digits=2, has_range=True),
        Column("exec to ready, s", "ready_s", digits=2, has_range=True),
        Column("without state and index", "rebuilt_ready_s", digits=2, has_range=True),
        Column("empty hub", "empty_ready_s", digits=2),
    ),
}


def progress_line(
    number: int, total: int, run: Run, result: Measurement | str, took_s: float
) -> str:
    """Return one finished run in one line."""
    head = f"[{number:>3}/{total}] {run.shape.name:<18} {run.server.name:<20}"
    if isinstance(result, str):
        return f"{head} failed: {result.splitlines()[0]}"
    text = _headline(run.shape, result.figures)
    if not result.is_complete:
        text += "  (stopped by the time limit)"
    return f"{head} {text}  in {took_s:.1f} s"


def _headline(shape: Shape, figures: Mapping[Figure, float]) -> str:
    columns = _COLUMNS[shape.group]
    if _has_cost(columns):
        return f"{figures['cpu_us']:>8.2f} µs/{shape.unit}  {number(figures['rate_s']):>9}/s"
    shown = (
        f"{column.heading} {number(figures[column.figure] / column.divisor, column.digits)}"
        for column in columns
        if column.figure in figures
    )
    return ", ".join(shown)


def _has_cost(columns: Sequence[Column]) -> bool:
    return any(column.figure == "cpu_us" for column in columns)


def print_report(console: Console, session: Session, shapes: Sequence[Shape]) -> None:
    """Return every shape's table, the goals, and warnings."""
    summaries = session.summaries()
    for shape in shapes:
        if any(name == shape.name for name, _ in summaries):
            console.print(_shape_table(shape, summaries))
    console.print(goal_table(GOALS, summaries))
    if any(server.is_slow for shape in shapes for server in shape.servers):
        console.print(_SLOW_NOTE, highlight=False)
    for note in notes(session, summaries):
        console.print(f"• {note}", style="yellow", highlight=False)


def notes(session: Session, summaries: Summaries) -> list[str]:
    """Return everything that makes a figure less reliable."""
    found = [f"{name} is not installed and was left out" for name in session.absent]
    if session.share < 1:
        found.append(f"only {session.share:.0%} of the load: do not quote these figures")
    for (shape, server), summary in summaries.items():
        if was_generator_bound(summary):
            found.append(
                f"{shape} on {server}: the generator was the limit, so the wall rate says little; "
                "the CPU figure holds"
            )
        if summary.incomplete:
            found.append(
                f"{shape} on {server}: {summary.incomplete} of {summary.runs} runs reached the "
                "time limit before their last message"
            )
    return found + [f"failed: {failure}" for failure in session.failures]


def to_json(session: Session, conditions: Mapping[str, object]) -> dict[str, object]:
    """Return the session with everything needed to judge it."""
    summaries = session.summaries()
    return {
        "conditions": dict(conditions),
        "seed": session.seed,
        "share": session.share,
        "results": [
            {
                "shape": shape,
                "server": server,
                "runs": summary.runs,
                "incomplete": summary.incomplete,
                "figures": {name: asdict(spread) for name, spread in summary.figures.items()},
                "hub_advantage": _advantages(summaries, shape, server),
                "each_run": [each.figures for each in session.measurements[shape, server]],
            }
            for (shape, server), summary in summaries.items()
        ],
        "goals": goals_json(GOALS, summaries),
        "notes": notes(session, summaries),
    }


def _advantages(summaries: Summaries, shape: str, server: str) -> dict[str, float | None]:
    ours, peer = summaries.get((shape, HUB.name)), summaries[shape, server]
    return {"cpu": advantage(ours, peer, "cpu_us"), "wall": advantage(ours, peer, "rate_s")}


def _shape_table(shape: Shape, summaries: Summaries) -> Table:
    columns = _COLUMNS[shape.group]
    has_ratio = _has_cost(columns)
    shown = table(shape.title)
    shown.add_column("server")
    for column in columns:
        shown.add_column(column.heading.format(unit=shape.unit), justify="right")
    if has_ratio:
        shown.add_column("hub is × CPU", justify="right")
        shown.add_column("× wall", justify="right")
    for server in shape.servers:
        summary = summaries.get((shape.name, server.name))
        if summary is None:
            continue
        cells = [_cell(column, summary) for column in columns]
        if has_ratio:
            ratios = _advantages(summaries, shape.name, server.name)
            cells += [_ratio(ratios["cpu"]), _ratio(ratios["wall"])]
        star = "*" if server.is_slow else ""
        shown.add_row(f"{server.name}{star} (n={summary.runs})", *cells)
    return shown


def _cell(column: Column, summary: Summary) -> str:
    spread = summary.figures.get(column.figure)
    if spread is None:
        return "–"
    values = [value / column.divisor for value in (spread.median, spread.low, spread.high)]
    median, low, high = (number(value, column.digits) for value in values)
    return f"{median} ({low}–{high})" if column.has_range and summary.runs > 1 else median


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
