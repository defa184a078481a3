"""What `deploy/` ships is started: proxies with TLS, the unit, the commands of the container."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

import signalhub
from signalhub.testing import run_hub
from tests.support.process.command import cli
from tests.support.socket.certificates import write_certificate
from tests.support.socket.raw_peer import UPGRADE

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
EXPOSURE_MAX = 3.0
SETTINGS = """
host = "127.0.0.1"
port = 0

[auth]
enabled = true
secret = "at least sixteen bytes, better thirty-two"
"""


def tool(name: str) -> str:
    # Administrators' programs are not on everybody's path.
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def program(
    *command: str, port: int, env: dict[str, str] | None = None
) -> AsyncIterator[None]:
    """A program, until the block ends, from the moment it speaks TLS."""
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    process = await asyncio.create_subprocess_exec(
        *command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    said = asyncio.create_task(process.stderr.read())  # type: ignore[union-attr]
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    _, writer = await asyncio.open_connection(
                        "127.0.0.1", port, ssl=anyone, server_hostname="localhost"
                    )
                except OSError:
                    assert process.returncode is None, (await said).decode()
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    break
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await said


class Front(NamedTuple):
    """A proxy that runs: its port, the file of its authority, and its port without TLS, if any."""

    port: int
    authority: Path
    plain_port: int = 0


Proxy = Callable[[int, Path], AbstractAsyncContextManager[Front]]
"""Starts a proxy in front of a port."""


@asynccontextmanager
async def nginx(hub_port: int, folder: Path) -> AsyncIterator[Front]:
    """The example of nginx, with other ports, the name localhost and a certificate of its own."""
    executable, port, plain_port = tool("nginx"), free_port(), free_port()
    certificate, key = write_certificate(folder, "localhost")
    changes = {
        "127.0.0.1:8787": f"127.0.0.1:{hub_port}",
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "listen 80": f"listen 127.0.0.1:{plain_port}",
        "hub.example.com": "localhost",
        "/etc/ssl/signalhub/hub.pem": str(certificate),
        "/etc/ssl/signalhub/hub.key": str(key),
    }
    text = (DEPLOY / "nginx" / "signalhub.conf").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "signalhub.conf").write_text(text)
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/nginx.pid; worker_processes 1; events {{}}\n"
        f"http {{ access_log off; {temporary} include {folder}/signalhub.conf; }}\n"
    )
    arguments = ["-e", "stderr", "-c", str(folder / "nginx.conf")]
    async with program(executable, *arguments, port=port):
        yield Front(port, certificate, plain_port)


@asynccontextmanager
async def caddy(hub_port: int, folder: Path) -> AsyncIterator[Front]:
    """The example of Caddy as it is, with an authority of its own for localhost."""
    executable, port = tool("caddy"), free_port()
    (folder / "Caddyfile").write_text(
        "{\n admin off\n auto_https disable_redirects\n skip_install_trust\n"
        f" default_bind 127.0.0.1\n}}\nimport {DEPLOY}/caddy/Caddyfile\n"
    )
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "SIGNALHUB_SITE": f"localhost:{port}",
        "SIGNALHUB_UPSTREAM": f"127.0.0.1:{hub_port}",
    }
    command = [executable, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    async with program(*command, port=port, env=env):
        root = folder / "caddy" / "pki" / "authorities" / "local" / "root.crt"
        yield Front(port, root)


PROXIES = pytest.mark.parametrize("proxy", [nginx, caddy])


@PROXIES
async def test_a_hub_behind_a_proxy_is_reached_with_tls(proxy: Proxy, tmp_path: Path) -> None:
    async with run_hub() as hub, proxy(hub.port, tmp_path) as (port, authority, _):
        trusted = ssl.create_default_context(cafile=str(authority))
        url = f"wss://localhost:{port}/ws"
        async with (
            signalhub.connect(url, "@(demo/alice)", ssl=trusted) as alice,
            signalhub.connect(url, "@(demo/bob)", ssl=trusted) as bob,
        ):
            await alice.tell("@(demo/bob)", "note", {"n": 1})
            receipt = await alice.ask("@(demo/bob)", "note", {"n": 2})
            told, asked = [await anext(bob.messages()) for _ in range(2)]
        async with (
            signalhub.hub(f"https://localhost:{port}", ssl=trusted) as rooms,
            rooms.room("circle", pseudonym="p1") as room,
        ):
            sent = await room.send(b"ciphertext")
            heard = await anext(aiter(room))
        untrusted = await cli(url, "ping", "--count", "1", "--timeout", "3")
        known = {"SSL_CERT_FILE": str(authority)}
        pinged = await cli(url, "ping", "--count", "1", variables=known)
        plain = await cli(url.replace("wss", "ws"), "ping", "--count", "1")
        fetched = await cli(url.replace("wss", "ws"), "inbox", "fetch", "x")

    assert (told.payload, asked.payload) == ({"n": 1}, {"n": 2})
    assert receipt.status == "delivered"
    assert (heard.ciphertext, heard.seq) == (b"ciphertext", sent.seq)
    assert "SSL_CERT_FILE" in untrusted.err
    assert untrusted.code == 3
    assert pinged.code == 0, pinged.err
    assert (plain.code, fetched.code) == (3, 3)
    assert "begin --url with wss://" in plain.err
    assert "begin --url with wss://" in fetched.err


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a request with its own head."""
    head = await reader.readuntil(b"\r\n\r\n")
    body = json.dumps(head.decode().splitlines()).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    await writer.drain()
    writer.close()


@PROXIES
async def test_a_proxy_keeps_the_name_and_tells_the_real_address(
    proxy: Proxy, tmp_path: Path
) -> None:
    async def request(path: str) -> tuple[str, str]:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trusted)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n"
            "X-Forwarded-For: 203.0.113.7\r\n\r\n".encode()
        )
        answer = (await reader.read()).decode()
        writer.close()
        head, _, body = answer.partition("\r\n\r\n")
        return head.split()[1], body

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    upstream = server.sockets[0].getsockname()[1]
    async with server, proxy(upstream, tmp_path) as (port, authority, _):
        trusted = ssl.create_default_context(cafile=str(authority))
        _, body = await request("/health")
        metrics, _ = await request("/metrics")

    fields = dict(line.lower().split(": ", 1) for line in re.findall(r'"([^"]+: [^"]*)"', body))
    assert fields["host"] == f"localhost:{port}"
    assert fields["x-forwarded-for"] == "127.0.0.1"
    assert fields["x-forwarded-proto"] == "https"
    assert metrics == "404"


@PROXIES
async def test_the_hub_sees_the_address_of_the_client(proxy: Proxy, tmp_path: Path) -> None:
    """It comes from another address than the proxy, and claims a third one."""
    async with (
        run_hub(trusted_proxies=["127.0.0.1"]) as hub,
        proxy(hub.port, tmp_path) as (port, authority, _),
    ):
        trusted = ssl.create_default_context(cafile=str(authority))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trusted, server_hostname="localhost", local_addr=("127.0.0.2", 0)
        )
        writer.write(UPGRADE.replace(b"\r\n", b"\r\nX-Forwarded-For: 203.0.113.7\r\n", 1))
        answer = await reader.readuntil(b"\r\n\r\n")
        sources = {one.source for one in hub.app.runner.connections}
        writer.close()

    assert b" 101 " in answer
    assert sources == {"127.0.0.2"}


async def test_nginx_does_not_answer_other_names(tmp_path: Path) -> None:
    """Neither in the handshake nor in `Host`, with TLS and without."""

    async def answer(host: str, port: int, trusted: ssl.SSLContext | None) -> bytes:
        name = "localhost" if trusted else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trusted, server_hostname=name
        )
        writer.write(f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        with closing(writer):
            return await reader.read()

    async with run_hub() as hub, nginx(hub.port, tmp_path) as (port, authority, plain_port):
        trusted = ssl.create_default_context(cafile=str(authority))
        known = await answer("localhost", port, trusted)
        unknown = await answer("hub.example.org", port, trusted)
        plain = await answer("localhost", plain_port, None)
        unknown_plain = await answer("hub.example.org", plain_port, None)
        trusted.check_hostname = False
        with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized"):
            await asyncio.open_connection(
                "127.0.0.1", port, ssl=trusted, server_hostname="hub.example.org"
            )

    assert b"degradations" in known
    assert (unknown, unknown_plain) == (b"", b"")
    assert b" 308 " in plain
    assert b"Location: https://localhost/health" in plain


def unit_lines(key: str) -> list[str]:
    text = (DEPLOY / "systemd" / "signalhub.service").read_text()
    return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)


def test_the_unit_is_valid_and_exposes_little(tmp_path: Path) -> None:
    executable = tool("systemd-analyze")
    unit = tmp_path / "signalhub.service"
    text = (DEPLOY / "systemd" / "signalhub.service").read_text()
    unit.write_text(text.replace("/opt/signalhub/bin/signalhub", sys.executable))

    checked = subprocess.run([executable, "verify", unit], capture_output=True, text=True)
    judged = subprocess.run(
        [executable, "security", "--offline=true", "--no-pager", unit],
        capture_output=True,
        text=True,
    )

    if "unrecognized option" in judged.stderr:
        pytest.skip("systemd is too old to judge a unit that is not installed")
    assert checked.returncode == 0, checked.stderr
    assert "signalhub.service" not in checked.stderr
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", judged.stdout)
    assert level, judged.stdout + judged.stderr
    assert float(level[1]) <= EXPOSURE_MAX


@contextmanager
def notified() -> Iterator[tuple[str, socket.socket]]:
    """A socket like that of the service manager."""
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(f"{folder}/notify")
        one.settimeout(30)
        yield f"{folder}/notify", one


def test_the_command_of_the_unit_starts_a_hub_and_says_when_it_is_ready(tmp_path: Path) -> None:
    (command,) = unit_lines("ExecStart")
    (tmp_path / "hub.toml").write_text(SETTINGS)
    words = shlex.split(command.replace("${CREDENTIALS_DIRECTORY}", str(tmp_path)))
    settings = dict(one.split("=", 1) for one in unit_lines("Environment"))
    assert words[0] == "/opt/signalhub/bin/signalhub"

    with notified() as (address, inbox):
        env = os.environ | settings | {"NOTIFY_SOCKET": address}
        env["SIGNALHUB_DATA"] = settings["SIGNALHUB_DATA"].replace("%S", str(tmp_path))
        process = subprocess.Popen(
            [sys.executable, "-m", "signalhub", *words[1:]],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            state = inbox.recv(100)
        finally:
            process.terminate()
            out, err = process.communicate(timeout=30)

    assert state == b"READY=1"
    assert process.returncode == 0, err
    assert b"listening on" in out
    assert (tmp_path / "signalhub" / "log").is_dir()


def steps(keyword: str) -> list[str]:
    text = (DEPLOY / "Containerfile").read_text()
    return re.findall(rf"^{keyword} (.*)$", text, re.MULTILINE)


def test_the_container_file_is_pinned_and_runs_without_privileges() -> None:
    sources = [
        word
        for line in steps("COPY")
        if not line.startswith("--from")
        for word in line.split()[:-1]
    ]
    installs = [line for line in steps("RUN") if "pip install" in line]

    assert all((ROOT / one).exists() for one in sources)
    assert steps("ARG") == ["PYTHON=python:3.11-slim"]
    assert all("--require-hashes" in line or "--no-index" in line for line in installs)
    (user,) = steps("USER")
    assert int(user.split(":")[0]) > 0
    text = (DEPLOY / "Containerfile").read_text()
    assert text.index("USER ") < text.index("ENTRYPOINT ")


def test_the_commands_of_the_container_run_on_a_read_only_root(tmp_path: Path) -> None:
    """As its entry point and its health check do, with everything but the data read-only."""
    executable = tool("unshare")
    (entry,), (command,), (health,) = (
        [json.loads(re.sub(r"^.*?(?=\[)", "", one)) for one in steps(key)]
        for key in ("ENTRYPOINT", "CMD", "HEALTHCHECK")
    )
    data, port = tmp_path / "data", free_port()
    data.mkdir()
    (tmp_path / "hub.toml").write_text(SETTINGS.replace("port = 0", f"port = {port}"))
    assert entry == ["signalhub"]
    replaced = {"/etc/signalhub/hub.toml": str(tmp_path / "hub.toml")}
    words = [replaced.get(one, one) for one in command]
    check = [sys.executable, *health[1:-1], health[-1].replace("8787", str(port))]
    script = f"""
        set -e
        mount --bind {data} {data}
        mount -o remount,bind,ro /
        cd /
        touch {tmp_path}/writable 2>/dev/null && exit 9
        {shlex.join([sys.executable, "-m", "signalhub", *words])} > {data}/out 2>&1 &
        for attempt in $(seq 100); do grep -q listening {data}/out && break; sleep 0.1; done
        {shlex.join(check)}
        kill -TERM $!
        wait $!
    """

    done = subprocess.run(
        [executable, "--mount", "--", "sh", "-c", script],
        env=os.environ | {"SIGNALHUB_DATA": str(data), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    if "unshare failed" in done.stderr or "permission denied" in done.stderr.lower():
        pytest.skip("only root may remount a file system")
    said = (data / "out").read_text() if (data / "out").exists() else ""
    assert done.returncode == 0, done.stderr + said
