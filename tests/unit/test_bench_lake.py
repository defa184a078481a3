"""The benchmarks of the lake: what they send, count and conclude, without Spark."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path

import pytest

from bench.lake.goals import GOALS
from bench.lake.logs import fill, inbox_name, open_log, publications, room_messages
from bench.lake.plain import main as land_plainly
from bench.lake.sender import send_on_schedule
from bench.lake.site import CpuMeter, count_rows, log_end
from bench.subjects import MeasurementFailed, Results, Sample
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.source.plan import LogPosition, Segments, log_of

FRAME = b"0123456789"
ANSWER = b"<kept>"


def answer(server: socket.socket, frames: int) -> None:
    """One answer for each frame, cut in the middle and sent in two parts."""
    left = frames * len(FRAME)
    while left:
        left -= len(server.recv(left))
    text = b"x" + ANSWER * frames
    server.sendall(text[:4])
    server.sendall(text[4:])


def test_messages_leave_on_schedule_and_every_answer_is_counted_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=answer, args=(theirs, 50))
        thread.start()
        sent = send_on_schedule(ours.fileno(), FRAME * 50, 50, 1_000.0, ANSWER)
        thread.join()
    assert len(sent.answered) == 50
    assert sent.due[-1] - sent.due[0] == pytest.approx(0.049)
    took_s = sent.answered_s(40)
    assert len(took_s) == 10
    assert took_s == sorted(took_s)
    assert took_s[0] > 0


def test_a_hub_that_hangs_up_ends_the_measurement() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises((MeasurementFailed, BrokenPipeError)):
            send_on_schedule(ours.fileno(), FRAME, 1, 1_000.0, ANSWER)


def test_publications_have_the_size_the_goal_in_megabytes_was_set_with(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        fill(log, publications(), 1_200)
    end = log_end(tmp_path)
    assert end.offset == 1_200
    slices = Segments(log_of(tmp_path)).plan(LogPosition(end.epoch, 0), end).slices
    assert 300 < sum(one.end - one.begin for one in slices) / 1_200 < 400


def test_the_script_without_spark_makes_a_row_of_every_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_log(tmp_path) as log:
        fill(log, publications(), 1_200)
    lake, cores = Lake(str(tmp_path / "lake")), os.sched_getaffinity(0)
    try:
        land_plainly(str(tmp_path), lake.location("entries"), str(min(cores)))
    finally:
        os.sched_setaffinity(0, cores)
    assert '"seconds"' in capsys.readouterr().out
    assert count_rows(lake, "entries") == 1_200
    assert lake.committed("entries", 0, log_end(tmp_path).epoch) == 1_199


def test_inboxes_take_turns_and_count_from_one() -> None:
    found = [(one.stream, one.seq) for one in islice(room_messages(2, 256), 4)]
    first, second = inbox_name(0), inbox_name(1)
    assert found == [(first, 1), (second, 1), (first, 2), (second, 2)]


def test_growth_is_judged_by_the_largest_lake_and_the_smallest() -> None:
    results = Results(seed=1, share=1.0)
    for commits, plan_ms in ((20, 10.0), (200, 30.0), (2_000, 14.0)):
        results.add("growth", Sample(f"{commits} commits", {"plan_ms": plan_ms}))
    (goal,) = [one for one in GOALS if "planning" in one.text]
    assert goal.value(results.summaries()) == pytest.approx(1.4)
    assert goal.judge(results.summaries()) == "pass"


def test_a_goal_nobody_measured_is_neither_reached_nor_missed() -> None:
    assert {goal.judge({}) for goal in GOALS} == {"not measured"}


def test_the_time_of_a_process_tree_counts_threads_and_children_that_have_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.7: pass"
    with CpuMeter(os.getpid()) as meter:
        thread = threading.Thread(target=lambda: sum(range(5_000_000)))
        thread.start()
        thread.join()
        subprocess.run([sys.executable, "-c", burn], check=True)

    assert meter.seconds > 0.3


def test_a_child_that_ends_takes_no_time_back() -> None:
    burn = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", burn], stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        child.stdout.readline()

        with CpuMeter(os.getpid()) as meter:
            child.kill()
            child.wait()

    assert 0 <= meter.seconds < 0.3
