"""`signalhub erase` as its users run it where there is no lake: beside a hub and without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from signalhub.testing import run_hub
from tests.pipeline.remains import remains
from tests.support.process.command import cli, unused_url
from tests.support.process.people import ADA, PLAIN, SECRET, converse, entries


async def test_beside_a_hub_the_log_is_erased_and_a_certificate_printed(tmp_path: Path) -> None:
    async with run_hub(data=str(tmp_path)) as hub:
        await converse(hub)
        refused = await cli(hub.url, "erase", "--actor", ADA, "--data", str(tmp_path))
        done = await cli(
            hub.url, "erase", "--actor", ADA, "--data", str(tmp_path), "--yes", "--json"
        )

        assert refused.code == 2
        assert "use --yes" in refused.err
        assert done.code == 0, done.err
        (found,) = done.rows()
        assert found["state"] == "gone"
        assert found["log"]["entries"] >= 1
        assert found["tables"] == {}
        assert ADA not in done.out
        shown = await cli(
            hub.url, "erase", "--certificate", found["id"], "--data", str(tmp_path), "--json"
        )
        assert shown.rows() == [found]
    assert remains(tmp_path, SECRET) == []
    assert remains(tmp_path, PLAIN)
    assert entries(tmp_path) == (True, found["log"]["entries"])


async def test_without_a_hub_the_folder_is_opened_for_as_long_as_it_takes(tmp_path: Path) -> None:
    async with run_hub(data=str(tmp_path)) as hub:
        await converse(hub)
    data = ("--data", str(tmp_path))

    done = await cli(unused_url(), "erase", "--actor", "people/ada", "--yes", *data)
    again = await cli(unused_url(), "erase", "--actor", ADA, "--yes", "--json", *data)

    assert done.code == again.code == 0, done.err
    assert "state\tcomplete\n" in done.out
    assert "Not covered: backups" in done.out
    assert again.rows()[0]["log"]["entries"] == 0
    assert remains(tmp_path, SECRET) == []
    assert remains(tmp_path, ADA) == []
    assert remains(tmp_path, PLAIN)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "exactly one of --actor, --inbox and --certificate"),
        (
            ("--actor", "people/ada", "--inbox", "x"),
            "exactly one of --actor, --inbox and --certificate",
        ),
        (("--actor", ""), "invalid address"),
        (("--inbox", ""), "the inbox id is empty"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], word: str
) -> None:
    done = await cli(unused_url(), "erase", *arguments, "--yes", "--data", str(tmp_path))

    assert done.code == 2
    assert word in done.err


async def test_an_unknown_certificate_and_a_folder_without_a_hub_are_named(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path))
    unknown = await cli(unused_url(), "erase", "--certificate", "0" * 16, *data)
    nothing = await cli(unused_url(), "erase", "--actor", ADA, "--yes", *data)

    assert (unknown.code, nothing.code) == (1, 2)
    assert "there is no certificate" in unknown.err
    assert "there is no log in" in nothing.err
    assert remains(tmp_path, "") == []
