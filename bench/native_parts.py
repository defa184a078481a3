"""`python -m bench.native_parts`: what single calls of the native part cost, per message.

Each call does what the hub asks of it at once for a read, a commit or a pass; calls are made from
Python, so the way there and back is included. Where one Python function does the same, it is
measured beside it. Exit codes: 0 measured, 2 the native part is not installed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console

from bench import invocation, machine
from bench.protocols import SignalHub
from bench.stores import HubStore
from bench.tables import number, table
from signalhub import native
from signalhub.core.messages.dedup import _Table, plain_fingerprint
from signalhub.core.streams.streams import Held
from signalhub.core.subscriptions.window import Acked
from signalhub.log.record import SALT_BYTES, PlainRecords
from signalhub.wire.entry import Entry, Kind, MessageBody, SettledBody, encode_body

if TYPE_CHECKING:
    from signalhub_native import DedupTable

ROUNDS = 15
COUNT = 64  # Messages of one call.
ROUND_S = 0.02
IDS = b"00000000-0000-4000-8000-000000000001" * COUNT
NOW_MS = 1_700_000_000_000
KEY_BYTES = 10
KNOWN = 100_000  # Ids that a table knows already.
_NAME = "p00000"
_BYTES_MAX = 2**20

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Part:
    """Calls that do the same for `count` messages, natively and perhaps in Python."""

    name: str
    native: Call
    python: Call | None = None
    count: int = COUNT


def parts() -> list[Part]:
    """Return all parts with their input, made anew."""
    import signalhub_native as made

    reader = made.Reader(2**23, _BYTES_MAX)

    def reading(frames: bytes) -> Call:
        return lambda: reader.read(frames, 10**6, 1)

    def run_of(frames: bytes) -> object:
        ((run,), *_) = reader.read(frames, 10**6, 1)
        return run

    numbers = range(COUNT)
    tells = SignalHub().sends(_NAME, "r00000", numbers)
    publishes = HubStore().publishes(_NAME, 0, numbers)
    acks = HubStore().acks(_NAME, 0, range(1, COUNT + 1))
    told, published = run_of(tells), run_of(publishes)
    assert isinstance(told, made.Tells)
    assert isinstance(published, made.Publishes)
    entries = [_entry(number) for number in numbers]
    salts = random.Random(1).randbytes(SALT_BYTES * COUNT)
    held = [Held(seq, seq, NOW_MS, _message(seq), 200) for seq in numbers]
    acked = [Acked(1, list(numbers), NOW_MS, "@(bench/c00000)")]
    settled = SettledBody("s", 1, [one for some in acked for one in some.settlements()])
    answered = b'{"topic":"bench/kept-00000","epoch":"1","seq":', b',"subscriberCount":1}'
    return [
        Part("read tells", reading(tells)),
        Part("copies of tells", lambda: told.copies(IDS, b'"@(a)"', b'"@(b)"', NOW_MS)),
        Part("read durable publishes", reading(publishes)),
        Part("keys of publishes", lambda: made.Publishes.keys([published])),
        Part("bodies of publishes", lambda: made.Publishes.bodies([published], IDS, [0])),
        Part(
            "answers to publishes",
            lambda: made.Publishes.answers([published], [1], IDS, *answered, NOW_MS),
        ),
        Part("read acks", reading(acks)),
        Part(
            "key of one message",
            lambda: made.fingerprint(_NAME, "00000000-0000-4000-8000-000000000001"),
            lambda: plain_fingerprint(_NAME, "00000000-0000-4000-8000-000000000001"),
            count=1,
        ),
        Part("look up ids", _finding(made.DedupTable()), _finding(_Table())),
        Part("remember ids", _adding(made.DedupTable()), _adding(_Table())),
        Part(
            "encode entries of the log",
            lambda: made.Records(entries, salts).data,
            lambda: PlainRecords(entries, salts).data,
        ),
        Part(
            "compose deliveries",
            lambda: made.first_copies(held, 0, 1, b'"@(c)"', b"", b"", b"p.1.", NOW_MS),
        ),
        Part(
            "encode settlements",
            lambda: made.acked_body("s", 1, acked),
            lambda: encode_body(settled),
        ),
    ]


def _message(number: int) -> MessageBody:
    data = b'{"text":"%b"}' % (b"x" * 200)
    return MessageBody(f"id-{number:09d}", bytes(16), "@(bench/p)", "bench:event", data)


def _entry(number: int) -> Entry:
    body = encode_body(_message(number))
    return Entry(Kind.PUBLISHED, "bench/kept-00000", 1, number + 1, NOW_MS, body)


def _keys(number: int) -> list[bytes]:
    order = random.Random(number)
    return [order.randbytes(KEY_BYTES) for _ in range(COUNT)]


def _finding(known: _Table | DedupTable) -> Call:
    """Look up ids that a table knows and others."""
    for turn in range(KNOWN // COUNT):
        known.add_queued(_keys(turn), NOW_MS, 1, 1, 1, 0)
    keys = [*_keys(7)[: COUNT // 2], *_keys(-1)[COUNT // 2 :]]
    find = known.find
    return lambda: [find(key) for key in keys]


def _adding(known: _Table | DedupTable) -> Call:
    """Add ids to a table that forgets as many, so that it does not grow."""
    given = [_keys(turn) for turn in range(KNOWN // COUNT)]
    at = 0

    def add() -> None:
        nonlocal at
        at += 1
        now_ms = NOW_MS + at
        known.add_queued(given[at % len(given)], now_ms, 1, 1, 1, now_ms - len(given) // 2)

    for _ in given:
        add()
    return add


def measure(every: Sequence[Part], rounds: int, round_s: float) -> dict[str, list[list[float]]]:
    """Return CPU microseconds per message of each part, natively and in Python, round by round."""
    calls = {(part.name, at): call for part in every for at, call in enumerate(_calls(part))}
    times = {key: _times(call, round_s) for key, call in calls.items()}
    found: dict[str, list[list[float]]] = {part.name: [[] for _ in _calls(part)] for part in every}
    counts = {part.name: part.count for part in every}
    for _ in range(rounds):
        for (name, at), call in calls.items():
            again = range(times[name, at])
            # Of this thread only: what other programs take does not count.
            began = time.thread_time()
            for _ in again:
                call()
            took_s = time.thread_time() - began
            found[name][at].append(took_s / len(again) / counts[name] * 1e6)
    return found


def _calls(part: Part) -> list[Call]:
    return [part.native] if part.python is None else [part.native, part.python]


def _times(call: Call, round_s: float) -> int:
    """Return how often a call fits into a round."""
    began, times = time.thread_time(), 0
    while time.thread_time() - began < round_s:
        call()
        times += 1
    return max(1, times)


def print_parts(console: Console, found: dict[str, list[list[float]]], rounds: int) -> None:
    shown = table(f"Calls of {COUNT} messages, CPU µs per message, medians of {rounds} rounds")
    shown.add_column("")
    for heading in ("native", "Python", "×"):
        shown.add_column(heading, justify="right")
    for name, (ours, *others) in found.items():
        own = median(ours)
        plain = median(others[0]) if others else None
        cells = ["–", "–"] if plain is None else [number(plain, 3), number(plain / own, 1)]
        shown.add_row(name, number(own, 3), *cells)
    console.print(shown)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = invocation.open_console()
    if not native.IS_ON:
        console.print("bench: the native part is not installed, or turned off", style="red")
        return 2
    found = measure(parts(), options.runs, ROUND_S)
    print_parts(console, found, options.runs)
    facts = {"conditions": machine.describe(), "us_per_message": found}
    invocation.write(console, facts, options.json, "native-parts-")
    return 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="bench.native_parts", description=__doc__.splitlines()[0])
    made.add_argument("--runs", type=int, default=ROUNDS, metavar="N", help="number of rounds")
    made.add_argument("--json", type=Path, metavar="FILE", help="file for the result")
    return made


if __name__ == "__main__":
    sys.exit(main())
