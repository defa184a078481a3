"""How the open files of a process are divided, and which addresses are one source."""

from __future__ import annotations

import subprocess
import sys

import pytest

from signalhub.server.port.descriptors import places
from signalhub.settings.model import LimitsSettings
from signalhub.wire.authority import is_loopback, source_of


@pytest.mark.parametrize("files", [64, 256, 1_024, 20_000, 1_048_576])
def test_sockets_leave_files_for_everything_else(files: int) -> None:
    found = places(LimitsSettings(), files)

    assert 1 <= found.per_source <= found.sockets < found.total
    assert files - found.total >= min(64, files // 2)
    assert found.is_loopback_exempt


def test_settings_bound_sockets_but_not_above_the_limit_of_open_files() -> None:
    small = places(LimitsSettings(sockets_max=10, sockets_per_source=3), 20_000)
    large = places(LimitsSettings(sockets_max=50_000), 20_000)

    assert (small.sockets, small.per_source, small.is_loopback_exempt) == (10, 3, False)
    assert large.sockets == places(LimitsSettings(), 20_000).sockets


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::1", "::1"),
        ("", ""),
    ],
)
def test_an_ipv6_network_is_one_source(address: str, source: str) -> None:
    assert source_of(address) == source


def test_loopback_is_recognized() -> None:
    assert [is_loopback(one) for one in ("127.0.0.3", "::1", "192.0.2.7", "2001:db8::/64", "")] == [
        *(True, True, False, False, False)
    ]


def test_the_limit_of_open_files_is_raised_as_far_as_possible() -> None:
    # In a process of its own, which cannot lower the limit of this one.
    program = (
        "import logging, resource; from signalhub.server.port import descriptors; "
        "logging.basicConfig(level='INFO', format='%(message)s %(before)s %(limit)s'); "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (128, 256)); "
        "descriptors.raise_limit(); print(descriptors.limit())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "256\n"
    assert "the limit of open files was raised 128 256" in done.stderr
