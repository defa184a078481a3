"""Calls the task of `celery_app` and waits for its results.

    python -m bench.peers.celery_caller CALLS IN_FLIGHT ROW

It prints as JSON how long this many calls took with this many in flight, the CPU time of this
process during that time, and the seconds of each single call of a sequence, ascending.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque

from bench.peers.celery_app import add

RESULT_S_MAX = 120.0


def keep_in_flight(calls: int, in_flight: int) -> None:
    """Wait for the oldest call, then make another."""
    waiting = deque(add.delay(number) for number in range(min(calls, in_flight)))
    for number in range(calls):
        value = waiting.popleft().get(timeout=RESULT_S_MAX)
        if value != number + 1:
            raise ValueError(f"call {number} returned {value}")
        if (following := number + in_flight) < calls:
            waiting.append(add.delay(following))


def one_by_one(count: int) -> list[float]:
    took_s: list[float] = []
    for number in range(count):
        began = time.monotonic()
        add.delay(number).get(timeout=RESULT_S_MAX)
        took_s.append(time.monotonic() - began)
    return sorted(took_s)


def main(calls: int, in_flight: int, row: int) -> None:
    keep_in_flight(max(1, calls // 10), in_flight)
    print("warm", flush=True)
    sys.stdin.readline()
    began, cpu_before = time.monotonic(), time.process_time()
    keep_in_flight(calls, in_flight)
    facts = {"seconds": time.monotonic() - began, "cpu_s": time.process_time() - cpu_before}
    print(json.dumps(facts), flush=True)
    print(json.dumps(one_by_one(row)), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
