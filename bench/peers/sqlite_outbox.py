"""A plain outbox: durable calls within one process, without hub, hosts or actors.

    python -m bench.peers.sqlite_outbox FILE CALLS BATCH ROW

Requests are inserted and committed; read, executed, and replaced by their results in a second
transaction; results are read and deleted in a third. Each commit covers as many calls as hosts put
into one batch. It prints what `celery_caller` prints.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import apsw
import msgspec


class Outbox:
    """Create two tables in a file that is synced with every commit."""

    def __init__(self, path: str) -> None:
        self.connection = apsw.Connection(path)
        self.connection.pragma("journal_mode", "wal")
        self.connection.pragma("synchronous", "FULL")
        self.execute = self.connection.execute
        for name in ("requests", "results"):
            self.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def call(self, first: int, count: int) -> list[int]:
        """Make calls and wait for their results."""
        ids = range(first, first + count)
        with self.connection:
            rows = [(one, msgspec.json.encode({"m": "add", "a": [one]})) for one in ids]
            self.connection.executemany("INSERT INTO requests VALUES (?, ?)", rows)
        with self.connection:
            for one, body in self._take("requests", count):
                value = msgspec.json.decode(body)["a"][0] + 1
                result = msgspec.json.encode({"value": value})
                self.execute("INSERT INTO results VALUES (?, ?)", (one, result))
        with self.connection:
            found = self._take("results", count)
        return [msgspec.json.decode(body)["value"] for _, body in found]

    def _take(self, table: str, count: int) -> list[Any]:
        query = f"SELECT id, body FROM {table} ORDER BY id LIMIT ?"
        rows: list[Any] = self.execute(query, (count,)).fetchall()
        ids = [(one,) for one, _ in rows]
        self.connection.executemany(f"DELETE FROM {table} WHERE id = ?", ids)
        return rows


def main(path: str, calls: int, batch: int, row: int) -> None:
    outbox = Outbox(path)
    began, cpu_before = time.monotonic(), time.process_time()
    for first in range(0, calls, batch):
        count = min(batch, calls - first)
        if outbox.call(first, count) != list(range(first + 1, first + count + 1)):
            raise ValueError("a call returned something else than was asked for")
    facts = {"seconds": time.monotonic() - began, "cpu_s": time.process_time() - cpu_before}
    print(json.dumps(facts), flush=True)
    took_s: list[float] = []
    for number in range(row):
        began = time.monotonic()
        outbox.call(number, 1)
        took_s.append(time.monotonic() - began)
    print(json.dumps(sorted(took_s)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
