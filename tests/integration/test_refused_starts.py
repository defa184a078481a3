"""A start that is refused leaves nothing behind, and changes nothing that was there."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from signalhub.pipeline.run import java
from signalhub.server.port import listener
from signalhub.settings.model import AuthSettings, Settings
from signalhub.testing import run_hub
from signalhub.wire.errors import SettingsError

SECRET = "correct horse battery staple correct horse"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def refusals(taken: int, tmp_path: Path) -> list[tuple[dict[str, Any], type[Exception]]]:
    keys = str(tmp_path / "keys.json")
    return [
        ({"port": taken}, OSError),
        ({"auth": {"enabled": True, "jwks_file": keys}}, SettingsError),
        ({"pipeline": {"run": "beside"}}, SettingsError),
    ]


async def refused(data: Path, settings: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        async with run_hub(data=str(data), **settings):
            pass


async def test_a_refused_start_leaves_no_folder_behind(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "problem", lambda: "Java not found")
    parent, empty = tmp_path / "parent", tmp_path / "empty"
    empty.mkdir()
    for settings, kind in refusals(taken, tmp_path):
        await refused(parent / "data", settings, kind)
        await refused(empty, settings, kind)

        assert not parent.exists()
        assert list(empty.iterdir()) == []


async def test_a_machine_without_ipv6_listens_on_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a kernel without IPv6, which is asked for the addresses of a name that has both."""

    def opened(family: int, kind: int, protocol: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return socket.socket(family, kind, protocol)

    monkeypatch.setattr(listener, "socket", opened)
    auth = AuthSettings(enabled=True, secret=SECRET)
    await listener.check_port(Settings(host="", port=0, auth=auth))


async def test_a_refused_start_changes_nothing_that_was_there(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "problem", lambda: "Java not found")
    data = tmp_path / "data"
    async with run_hub(data=str(data)):
        pass

    def content() -> dict[str, bytes]:
        files = (one for one in data.rglob("*") if one.is_file() and one.suffix != ".lock")
        return {str(one): one.read_bytes() for one in files}

    before = content()
    for settings, kind in refusals(taken, tmp_path):
        await refused(data, settings, kind)

        assert content() == before
