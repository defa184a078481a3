"""`python -m bench.watched`: what remains of a hub's speed while people look at it.

One hub carries short loads by turns, watched and not: ten pages keep the overview, one follows all
new messages, and somebody searches without a pause. They run in a process of their own. The result
is the median of the ratios of all rounds; below 1 a watched hub carries less, or answers later. The
bar is 2 percent, and 5 ms for how late timers of the hub's loop fire.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Final

from rich.console import Console

from bench import invocation, machine, native
from bench.figures import Figure
from bench.load import Generator, LoadFailed
from bench.measuring import Shape
from bench.servers import HUB, Running, ServerFailed, running
from bench.shapes import SHAPES
from bench.site import Site
from bench.tables import table

ROUNDS: Final = 9
# Loads in a round, watched and not, after one of each that warms up.
LOADS: Final = 3
SHARE: Final = 0.2
PAGES: Final = 10
RATIO_MIN: Final = 0.98
LOOP_LAG_MS_MAX: Final = 5.0
# Which figure of which load counts, and whether more of it is better.
COMPARED: Final[dict[str, tuple[Figure, bool]]] = {
    "p2p-pipelined": ("rate_s", True),
    "ask-online": ("p99_us", False),
}
_READY: Final = "watching"


def main(arguments: Sequence[str] | None = None) -> int:
    if arguments is None and sys.argv[1:2] == ["--pages"]:
        asyncio.run(look(int(sys.argv[2])))
        return 0
    parser = invocation.parser(
        "bench.watched",
        __doc__.splitlines()[0],
        rounds=ROUNDS,
        only=f"of {', '.join(COMPARED)}",
        share="of the messages",
    )
    parser.set_defaults(share=SHARE)
    options = parser.parse_args(arguments)
    console = invocation.open_console()
    try:
        native.compile_loop()
        names = list(COMPARED)
        if options.only:
            names = invocation.names_of(options.only, names, "load")
    except (native.NoCompiler, ValueError) as error:
        return invocation.refuse(console, error)
    machine.raise_file_limit()
    cores = machine.choose_cores()
    invocation.warn(console, str(machine.describe()["disk"]))
    os.sched_setaffinity(0, {cores.generator})
    generator = Generator()
    found: dict[str, list[tuple[float, float]]] = {}
    lags: list[float] = []
    for shape in (one for one in SHAPES if one.name in names):
        try:
            pairs, lag_ms = by_turns(
                shape, invocation.rounds_of(options), generator, cores, options.share
            )
        except (LoadFailed, ServerFailed) as failure:
            console.print(f"{shape.name}: {failure}", markup=False, highlight=False)
            continue
        found[shape.name] = pairs
        lags.append(lag_ms)
    is_good = print_figures(console, found, lags) and len(found) == len(names)
    invocation.write(console, {"figures": found, "loop_lag_ms": lags}, options.json, "watched-")
    return 0 if is_good else 1


def by_turns(
    shape: Shape, rounds: int, generator: Generator, cores: machine.Cores, share: float
) -> tuple[list[tuple[float, float]], float]:
    """Return the figure without people and with them in each round, and how late timers were."""
    figure, is_more_better = COMPARED[shape.name]
    best = max if is_more_better else min
    pairs: list[tuple[float, float]] = []
    lag_ms = 0.0
    for number in range(rounds):
        with running(HUB, cores) as hub:
            carried: dict[bool, list[float]] = {False: [], True: []}
            for turn in range(1 + LOADS):
                # Who is first may have better luck.
                for is_watched in (False, True) if (turn + number) % 2 else (True, False):
                    value = _measured(shape, hub, generator, share, figure, is_watched)
                    if turn:
                        carried[is_watched].append(value)
            lag_ms = max(lag_ms, _loop_lag_ms(hub.port))
        pairs.append((best(carried[False]), best(carried[True])))
    return pairs, lag_ms


def _measured(
    shape: Shape, hub: Running, generator: Generator, share: float, figure: Figure, watched: bool
) -> float:
    site = Site(generator, hub, share)
    if not watched:
        return shape.measure(site).figures[figure]
    with people(hub.port):
        return shape.measure(site).figures[figure]


def print_figures(
    console: Console, found: dict[str, list[tuple[float, float]]], lags: Sequence[float]
) -> bool:
    shown = table("Watched and not")
    for heading in ("", "alone", "watched", "ratio", "range", ""):
        shown.add_column(heading, justify="left" if not heading else "right")
    is_good = True
    for name, pairs in found.items():
        figure, is_more_better = COMPARED[name]
        ratios = [
            watched / alone if is_more_better else alone / watched for alone, watched in pairs
        ]
        ratio = statistics.median(ratios)
        is_good = is_good and ratio >= RATIO_MIN
        shown.add_row(
            f"{name}, {figure}",
            f"{statistics.median(alone for alone, _ in pairs):,.1f}",
            f"{statistics.median(watched for _, watched in pairs):,.1f}",
            f"{ratio:.3f}",
            f"{min(ratios):.2f}–{max(ratios):.2f}",
            "[green]ok" if ratio >= RATIO_MIN else "[red]slower",
        )
    console.print(shown)
    lag_ms = max(lags, default=0.0)
    console.print(f"loop lag, highest p99 of a second: {lag_ms:.2f} ms", highlight=False)
    return is_good and lag_ms < LOOP_LAG_MS_MAX


def _loop_lag_ms(port: int) -> float:
    url = f"http://127.0.0.1:{port}/api/admin/v1/series?names=loop_lag_p99"
    with urllib.request.urlopen(url) as answer:
        values = json.load(answer)["series"]["loop_lag_p99"]
    return max((one for one in values if one is not None), default=0.0)


@contextmanager
def people(port: int) -> Iterator[None]:
    """Pages that are open while the block runs."""
    command = [sys.executable, "-m", "bench.watched", "--pages", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != _READY:
                raise ServerFailed("the pages could not be opened")
            yield
        finally:
            process.terminate()


async def look(port: int) -> None:
    """Be these people until the process is ended."""
    from signalhub.client.transport.http import HttpClient, Origin
    from signalhub.client.transport.live import LiveFeed, open_feed

    os.nice(10)
    url = f"http://127.0.0.1:{port}"

    async def read(feed: LiveFeed) -> None:
        async for _ in feed.changes():
            pass

    async def search(client: HttpClient) -> None:
        while True:
            await client.request("GET", "/api/admin/v1/search?q=nothing-of-this-name")
            await asyncio.sleep(0.1)

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        for number in range(PAGES + 1):
            feed = await stack.enter_async_context(open_feed(url))
            feed.watch("shown", "overview" if number < PAGES else "tail")
            tasks.create_task(read(feed))
        tasks.create_task(search(HttpClient(Origin.of(url))))
        print(_READY, flush=True)


if __name__ == "__main__":
    sys.exit(main())
