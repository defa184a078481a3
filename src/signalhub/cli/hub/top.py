"""`signalhub top`: a hub at a glance, once a second, in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from signalhub.cli.terminal.connection import LOCAL, HubConnection, failure_of
from signalhub.cli.terminal.failures import usage
from signalhub.cli.terminal.output import Output, shown
from signalhub.cli.terminal.quantities import shown_size
from signalhub.wire.errors import ClientError

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from signalhub.client.transport.live import Picture

SORTS: Final = ("lag", "rate", "name")
_ROWS_LEAST: Final = 3
# Lines that are not rows of subscriptions.
_FRAME_LINES: Final = 10
_ATTENTION_MAX: Final = 5

_FIGURES: Final = (
    ("in/s", "in", "{:,.1f}"),
    ("out/s", "out", "{:,.1f}"),
    ("stored/s", "stored", "{:,.1f}"),
    ("ask p99", "ask_p99", "{:.1f} ms"),
    ("sync p99", "sync_p99", "{:.1f} ms"),
    ("sessions", "sessions", "{:,.0f}"),
    ("actors", "actors", "{:,.0f}"),
    ("lag", "lag_total", "{:,.0f}"),
    ("loop lag", "loop_lag_p99", "{:.1f} ms"),
    ("cpu", "cpu", "{:.0%}"),
)


def top(
    *,
    once: Annotated[
        bool, Parameter(negative=(), help="Print one picture and end.", show_default=False)
    ] = False,
    connection: HubConnection = LOCAL,
) -> None:
    """Show rates, limits, what needs attention and the slowest subscriptions.

    Keys: q quits, p pauses, s sorts, / filters, the arrows choose a subscription,
    Enter shows it. Without a terminal, or with --once, one picture is printed; with
    --json one per second, or with --once one, as JSON lines. With authentication
    this needs the permission admin: view.
    """
    import asyncio

    output = connection.output
    is_live = output.is_terminal and sys.stdin.isatty() and not once and not output.as_json
    try:
        if is_live:
            asyncio.run(_follow(connection, output))
        else:
            asyncio.run(_print(connection, output, once or not output.as_json))
    except ClientError as error:
        raise failure_of(error) from error
    except ValueError as error:
        raise usage(f"invalid --url: {error}", "write it like ws://127.0.0.1:8787/ws") from None


def _pictures(connection: HubConnection) -> AsyncIterator[Picture]:
    from signalhub.client.transport.live import pictures

    options = connection.hub_options()
    return pictures(options["url"], options["token"])


async def _print(connection: HubConnection, output: Output, once: bool) -> None:
    first_at: int | None = None
    async with aclosing(_pictures(connection)) as pictures:  # type: ignore[type-var]
        async for picture in pictures:
            first_at = first_at or picture.overview["at"]
            if picture.overview["at"] == first_at:
                # The next one has rates, and what was looked for meanwhile.
                continue
            if output.as_json:
                facts = {"overview": picture.overview, "subscriptions": picture.subscriptions}
                output.line(facts, [])
            else:
                output.console.print(TopView().render(picture, output.console.width, 200))
            if once:
                return


async def _follow(connection: HubConnection, output: Output) -> None:
    import asyncio

    from rich.live import Live

    view, console = TopView(), output.console
    newest: Picture | None = None

    def draw() -> None:
        if newest is not None:
            live.update(view.render(newest, console.width, console.height), refresh=True)

    with Live(console=console, screen=True, auto_refresh=False) as live, _keys() as keys:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def pressed() -> None:
            for key in keys():
                if view.press(key) and not ended.done():
                    ended.set_result(None)
            draw()

        loop.add_reader(sys.stdin.fileno(), pressed)
        try:
            async with aclosing(_pictures(connection)) as pictures:  # type: ignore[type-var]
                coming = asyncio.ensure_future(anext(pictures))
                while not ended.done():
                    await asyncio.wait((coming, ended), return_when=asyncio.FIRST_COMPLETED)
                    if not coming.done():
                        continue
                    if not view.is_paused or newest is None:
                        newest = coming.result()
                        draw()
                    coming = asyncio.ensure_future(anext(pictures))
                coming.cancel()
                await asyncio.wait((coming,))
        finally:
            loop.remove_reader(sys.stdin.fileno())


@contextmanager
def _keys() -> Iterator[Any]:
    """Read keys as they are pressed; yields a function that returns those since the last call."""
    import os
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield lambda: keys_of(os.read(descriptor, 256).decode(errors="ignore"))
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


_NAMED: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "back",
    "\x1b": "escape",
}


def keys_of(text: str) -> list[str]:
    """What was pressed: letters, or names of other keys."""
    keys = []
    while text:
        name = next((one for one in ("\x1b[A", "\x1b[B") if text.startswith(one)), text[0])
        keys.append(_NAMED.get(name, name))
        text = text[len(name) :]
    return keys


class TopView:
    """What is shown, as the keys have chosen it."""

    def __init__(self) -> None:
        self.is_paused = False
        self.sort = SORTS[0]
        self.filter = ""
        self.is_typing = False
        self.chosen = 0
        self.is_open = False

    def press(self, key: str) -> bool:
        """Handle a key; `True` to quit."""
        if self.is_typing:
            self._type(key)
            return False
        match key:
            case "q":
                return True
            case "p":
                self.is_paused = not self.is_paused
            case "s":
                self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
            case "/":
                self.is_typing = True
            case "up":
                self.chosen = max(0, self.chosen - 1)
            case "down":
                self.chosen += 1
            case "enter":
                self.is_open = not self.is_open
            case "escape":
                self.is_open, self.filter = False, ""
        return False

    def _type(self, key: str) -> None:
        if key == "enter":
            self.is_typing = False
        elif key == "escape":
            self.is_typing, self.filter = False, ""
        elif key == "back":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key

    def rows(self, picture: Picture) -> list[dict[str, Any]]:
        """The subscriptions to show, in order."""
        found = [
            row
            for name, row in picture.subscriptions.items()
            if self.filter.lower() in name.lower()
        ]
        found.sort(key=lambda row: (row["topic"], row["subscription"]))
        if self.sort == "lag":
            found.sort(key=lambda row: -row["lag"])
        elif self.sort == "rate":
            found.sort(key=lambda row: -(row["settledRate"] or 0))
        self.chosen = min(self.chosen, max(0, len(found) - 1))
        return found

    # Drawing.

    def render(self, picture: Picture, width: int, height: int) -> Group:
        """The picture for a terminal of this size."""
        from rich.console import Group

        rows = self.rows(picture)
        parts: list[RenderableType] = [self._head(picture), self._figures(picture, width)]
        attention = list(_attention(picture))
        parts += attention
        if self.is_open and rows:
            parts.append(_sheet(rows[self.chosen]))
        else:
            room = max(_ROWS_LEAST, height - _FRAME_LINES - len(attention))
            first = max(0, self.chosen - room + 1)
            parts.append(self._table(rows[first : first + room], self.chosen - first, width))
        return Group(*parts)

    def _head(self, picture: Picture) -> RenderableType:
        from rich.text import Text

        hub, overview = picture.me["hub"], picture.overview
        clock = time.strftime("%H:%M:%S %Z", time.localtime(overview["at"] / 1000))
        state = overview["status"]
        style = "green" if state == "ok" else "bold yellow"
        text = Text("Signal Hub ")
        if hub["label"]:
            text.append(f" {shown(hub['label'])} ", "reverse bold")
        text.append(f" {hub['version']}  ", "dim")
        text.append(state, style)
        text.append(f"  {clock}  {picture.me['role']}", "dim")
        if self.is_paused:
            text.append("  paused", "bold yellow")
        text.append(f"   sort: {self.sort}", "dim")
        if self.filter or self.is_typing:
            text.append(f"   /{self.filter}{'_' if self.is_typing else ''}", "bold")
        return text

    def _figures(self, picture: Picture, width: int) -> RenderableType:
        from rich.text import Text

        sample = picture.overview["sample"]
        text = Text()
        for name, series, form in _FIGURES:
            value = sample.get(series)
            text.append(f"{name} ", "dim")
            text.append("–" if value is None else form.format(value), "bold")
            text.append("   ")
        log = next(
            (one for one in picture.overview["limits"] if one["resource"] == "log_bytes"), None
        )
        if log is not None:
            text.append("log ", "dim")
            text.append(f"{shown_size(log['used'])} of {shown_size(log['limit'])}", "bold")
        return text

    def _table(self, rows: list[dict[str, Any]], chosen: int, width: int) -> RenderableType:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        if not rows:
            none = "no subscription matches" if self.filter else "no durable subscription"
            return Text(f"\n{none}", "dim")
        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", expand=True)
        table.add_column("topic", ratio=1, no_wrap=True)
        table.add_column("subscription", ratio=1, no_wrap=True)
        table.add_column("state", no_wrap=True)
        columns = [one for one in _COLUMNS if width >= one[2]]
        for name, _, _ in columns:
            table.add_column(name, justify="right", no_wrap=True)
        for number, row in enumerate(rows):
            table.add_row(
                Text(shown(row["topic"])),
                Text(shown(row["subscription"])),
                Text(row["state"], _STATES.get(row["state"], "")),
                *(show(row) for _, show, _ in columns),
                style="reverse" if number == chosen else "",
            )
        return table


def _rate(value: float | None, form: str = "{:,.1f}") -> str:
    return "–" if value is None else form.format(value)


# Title, what is shown, and how wide the terminal must be.
_COLUMNS: Final[tuple[tuple[str, Callable[[dict[str, Any]], str], int], ...]] = (
    ("lag", lambda row: f"{row['lag']:,}", 0),
    ("trend/s", lambda row: _rate(row["trend"], "{:+,.1f}"), 90),
    ("in flight", lambda row: f"{row['inFlight']:,}", 0),
    ("consumers", lambda row: f"{row['consumers']:,}", 110),
    ("settled/s", lambda row: _rate(row["settledRate"]), 0),
    ("again/s", lambda row: _rate(row["redeliveredRate"]), 110),
)
_STATES: Final = {
    "current": "green",
    "behind": "yellow",
    "blocked": "bold red",
    "held_up": "bold red",
    "paused": "cyan",
    "idle": "dim",
}


def _attention(picture: Picture) -> Iterator[RenderableType]:
    from rich.text import Text

    listed = picture.overview["attention"]
    for one in listed[:_ATTENTION_MAX]:
        is_error = one["level"] == "error"
        mark, style = ("✖", "bold red") if is_error else ("▲", "yellow")
        yield Text(f"{mark} {shown(one['text'])}", style, no_wrap=True, overflow="ellipsis")
    more = picture.overview["attentionTotal"] - len(listed[:_ATTENTION_MAX])
    if more > 0:
        yield Text(f"  and {more} more", "dim")


def _sheet(row: dict[str, Any]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in row.items():
        table.add_row(name, Text("–" if value is None else shown(value)))
    return table
