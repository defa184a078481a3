"""The servers under test: real processes, fresh for every run, pinned to one core.

Each is stopped by its process id when its context ends, whatever happened inside. Its data is on a
real disk, not in memory, and is deleted at the end.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from bench.machine import Cores, data_folder, process_tree
from bench.protocols import Dialect, Nats, SignalHub, SocketIo
from bench.stores import HubStore, JetStream, RedisStreams, StoreDialect

START_S_MAX = 120.0
STOP_S_MAX = 5.0
POLL_S = 0.002
ROOT = Path(__file__).parent.parent


class ServerFailed(Exception):
    """A server did not start; the text ends with what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How to start one server and how to talk to it.

    `dialect` is for messages that are only forwarded, `store` for stored ones. `ready` finds the
    port, if any, in the server's output; `module` is an additional import that it needs. A slow
    server gets fewer messages and connections, so that its runs take as long as the others'.
    """

    name: str
    command: Callable[[Path], list[str]]
    ready: str
    dialect: Dialect | None = None
    store: StoreDialect | None = None
    program: str = sys.executable
    module: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    is_slow: bool = False

    @property
    def is_installed(self) -> bool:
        has_module = not self.module or find_spec(self.module) is not None
        return has_module and _find(self.program) is not None


def _hub_command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "signalhub", "serve", "--port", "0", "--data", str(folder)]


def _nats_command(folder: Path) -> list[str]:
    return _nats(folder, 'websocket { host: "127.0.0.1", port: -1, no_tls: true }\n')


def _jetstream_command(folder: Path) -> list[str]:
    return _nats(folder, f'jetstream {{ store_dir: "{folder}" }}\n')


def _jetstream_sync_command(folder: Path) -> list[str]:
    return _nats(folder, f'jetstream {{ store_dir: "{folder}", sync_interval: always }}\n')


def _nats(folder: Path, part: str) -> list[str]:
    settings = folder / "nats.conf"
    settings.write_text(f'listen: "127.0.0.1:-1"\n{part}max_connections: 100000\n')
    return [_find("nats-server") or "nats-server", "-c", str(settings)]


def _redis_command(folder: Path) -> list[str]:
    options = {
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always",
        "auto-aof-rewrite-percentage": "0",
    }
    return _redis(folder, options)


def _redis_default_command(folder: Path) -> list[str]:
    return _redis(folder, {})


def _redis(folder: Path, more: dict[str, str]) -> list[str]:
    # It cannot choose a port itself: 0 means none.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {
        "port": str(port),
        "bind": "127.0.0.1",
        # The generator uses many loopback addresses; that mode supports only the first.
        "protected-mode": "no",
        "dir": str(folder),
        **more,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [_find("redis-server") or "redis-server", *words]


def _find(program: str) -> str | None:
    """Return the path of a program: beside the interpreter, or on the path."""
    return shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)


def _socketio_command(folder: Path) -> list[str]:
    app = "bench.peers.socketio_app:app"
    options = ["--host", "127.0.0.1", "--port", "0", "--loop", "uvloop", "--no-access-log"]
    return [sys.executable, "-m", "uvicorn", app, *options]


def _starlette_command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "bench.peers.starlette_app", str(folder), "each"]


def _starlette_group_command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "bench.peers.starlette_app", str(folder), "group"]


_UVICORN_READY = r"running on http://127\.0\.0\.1:(\d+)"
_NATS_READY = r"client connections on 127\.0\.0\.1:(\d+)[\s\S]*Server is ready"
_ONE_CORE = {"GOMAXPROCS": "1"}
# Rooms always have a limit; this one is never reached.
_UNLIMITED = "1000000000"

HUB = Server(
    name="signalhub",
    dialect=SignalHub(),
    store=HubStore(),
    command=_hub_command,
    ready=r"listening on ws://127\.0\.0\.1:(\d+)",
    environment={
        "SIGNALHUB_MESSAGE_RATE": "0",
        "SIGNALHUB_CONNECTION_RATE": "0",
        "SIGNALHUB_MAILBOX_LIMIT": "1000000",
        "SIGNALHUB_ROOMS_RATE": _UNLIMITED,
        "SIGNALHUB_ROOMS_FETCH_RATE": _UNLIMITED,
    },
)
PLAIN_HUB = replace(
    HUB,
    name="signalhub-python",
    environment=HUB.environment | {"SIGNALHUB_NATIVE": "off"},
)
NATS = Server(
    name="nats-ws",
    dialect=Nats(),
    program="nats-server",
    command=_nats_command,
    ready=r"websocket clients on ws://127\.0\.0\.1:(\d+)",
    environment=_ONE_CORE,
)
SOCKETIO = Server(
    name="socketio",
    dialect=SocketIo(),
    program="uvicorn",
    command=_socketio_command,
    ready=_UVICORN_READY,
    is_slow=True,
)
STARLETTE = Server(
    name="starlette",
    program="uvicorn",
    module="starlette",
    command=_starlette_command,
    ready=_UVICORN_READY,
    is_slow=True,
)
STARLETTE_GROUP = Server(
    name="starlette-group",
    program="uvicorn",
    module="starlette",
    command=_starlette_group_command,
    ready=_UVICORN_READY,
    is_slow=True,
)
REDIS = Server(
    name="redis-always",
    store=RedisStreams(),
    program="redis-server",
    command=_redis_command,
    ready=r"port=(\d+)[\s\S]*Ready to accept connections",
)
REDIS_DEFAULT = replace(REDIS, name="redis-default", command=_redis_default_command)
JETSTREAM_SYNC = Server(
    name="jetstream-sync",
    store=JetStream(),
    program="nats-server",
    command=_jetstream_sync_command,
    ready=_NATS_READY,
    environment=_ONE_CORE,
    is_slow=True,
)
JETSTREAM_SYNC_BATCH = Server(
    name="jetstream-sync-batch",
    store=JetStream(batch=64),
    program="nats-server",
    command=_jetstream_sync_command,
    ready=_NATS_READY,
    environment=_ONE_CORE,
    is_slow=True,
)
JETSTREAM = Server(
    name="jetstream",
    store=JetStream(),
    program="nats-server",
    command=_jetstream_command,
    ready=_NATS_READY,
    environment=_ONE_CORE,
)


def unpinned(server: Server) -> Server:
    """Return the same server on all cores: `taskset` undoes the pinning of started servers."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))

    def command(folder: Path) -> list[str]:
        return ["taskset", "--cpu-list", cores, *server.command(folder)]

    return replace(server, command=command)


class Running:
    """A server that accepts connections, and can be killed and restarted on its data."""

    def __init__(self, server: Server, folder: Path, cores: Cores) -> None:
        self.server = server
        self.folder = folder
        self._cores = cores
        self._process: subprocess.Popen[bytes]
        self.port = 0
        self.pids: list[int] = []

    def start(self) -> float:
        """Start the process and wait until it listens; return the seconds that took."""
        output = self.folder / "output.txt"
        began = time.monotonic()
        self._process = _start(self.server, self.folder, output, self._cores)
        try:
            self.port = _await_port(self.server, self._process, output)
        except BaseException:
            self.stop()
            raise
        took_s = time.monotonic() - began
        self.pids = process_tree(self._process.pid)
        return took_s

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        _stop(self._process)


@contextmanager
def running(server: Server, cores: Cores) -> Iterator[Running]:
    """Start the server in a new folder, wait until it listens, stop it afterwards."""
    with tempfile.TemporaryDirectory(
        prefix="bench-", dir=data_folder(), ignore_cleanup_errors=True
    ) as name:
        target = Running(server, Path(name), cores)
        target.start()
        try:
            yield target
        finally:
            target.stop()


def _start(server: Server, folder: Path, output: Path, cores: Cores) -> subprocess.Popen[bytes]:
    command = server.command(folder)
    # A child inherits the affinity of its parent, so all its threads are pinned from the start.
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores.server})
    try:
        with output.open("wb") as sink:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, **server.environment},
                start_new_session=True,
            )
    except OSError as error:
        raise ServerFailed(f"{server.name} cannot be started: {error}") from error
    finally:
        os.sched_setaffinity(0, mine)


def _await_port(server: Server, process: subprocess.Popen[bytes], output: Path) -> int:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(server.ready, output.read_text(errors="replace")):
            return int(found[1]) if found.re.groups else 0
        time.sleep(POLL_S)
    tail = output.read_text(errors="replace")[-600:]
    raise ServerFailed(f"{server.name} did not start; it printed:\n{tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Also if a second Ctrl-C interrupts the waiting; no effect on a process that has ended.
        process.kill()
        process.wait()
