"""A hub with or without the pipeline beside it, on all cores, stopped with all its processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.lake.site import CpuMeter, folder
from bench.machine import choose_cores, process_tree
from bench.servers import HUB, Running, Server, unpinned
from bench.subjects import MeasurementFailed
from signalhub.pipeline.run.status import read_status

UP_S_MAX = 180.0
STOP_S_MAX = 60.0
_POLL_S = 0.1


class Hub(Running):
    """A server that gets more time to stop, because the pipeline finishes its batch."""

    def metering_pipeline(self) -> CpuMeter:
        """Return the CPU use of the pipeline and its children."""
        return CpuMeter(self._process.pid, with_root=False)

    def await_pipeline(self) -> None:
        """Wait until it is landing."""
        deadline = time.monotonic() + UP_S_MAX
        while time.monotonic() < deadline:
            status = read_status(self.folder)
            if status is not None and status.state == "running":
                return
            time.sleep(_POLL_S)
        tail = (self.folder / "output.txt").read_text(errors="replace")[-600:]
        raise MeasurementFailed(f"the pipeline did not start; the hub printed: {tail}")

    def stop(self) -> None:
        """Make sure that no process is left: it would write into a folder that is being deleted."""
        pids = process_tree(self._process.pid)
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S_MAX)
        self._process.kill()
        self._process.wait()
        deadline = time.monotonic() + STOP_S_MAX
        while left := [pid for pid in pids[1:] if Path(f"/proc/{pid}").exists()]:
            if time.monotonic() > deadline:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return
            time.sleep(_POLL_S)


@contextmanager
def running_hub(*, has_pipeline: bool) -> Iterator[Hub]:
    """Run a hub in a new folder; with a pipeline, wait until that is landing."""
    with folder() as place:
        hub = Hub(_server(has_pipeline=has_pipeline), place, choose_cores())
        hub.start()
        try:
            if has_pipeline:
                hub.await_pipeline()
            yield hub
        finally:
            hub.stop()


def _server(*, has_pipeline: bool) -> Server:
    run = "--pipeline" if has_pipeline else "--no-pipeline"
    return unpinned(dataclasses.replace(HUB, command=lambda place: [*HUB.command(place), run]))
