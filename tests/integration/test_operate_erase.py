"""Erasing from Python where there is no lake: beside a hub and without one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from signalhub import OutcomeUnknown, Refused
from signalhub.operate.arguments import InvalidArgument
from signalhub.operate.erase import HubElsewhere, erase, subject_of
from signalhub.settings.model import AuthSettings, Settings
from signalhub.testing import run_hub
from tests.pipeline.remains import remains
from tests.support.process.command import unused_url
from tests.support.process.people import ADA, PLAIN, SECRET, converse, entries


async def test_beside_a_hub_it_is_asked_and_the_steps_are_reported(tmp_path: Path) -> None:
    steps: list[str] = []
    settings = Settings(data=str(tmp_path))

    async with run_hub(data=str(tmp_path)) as hub:
        await converse(hub)
        done = await asyncio.to_thread(
            erase, settings, actor="people/ada", url=hub.url, progress=steps.append
        )

    assert (done.state, done.subject, done.tables) == ("gone", "actor", {})
    assert done.log is not None
    assert entries(tmp_path) == (True, done.log.entries)
    assert steps == ["searching the log"]
    assert remains(tmp_path, SECRET) == []
    assert remains(tmp_path, PLAIN)


async def test_without_a_hub_the_folder_is_opened_directly(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with run_hub(data=str(tmp_path)) as hub:
        await converse(hub)
    capfd.readouterr()

    done = await asyncio.to_thread(erase, Settings(data=str(tmp_path)), actor=ADA)

    assert done.state == "gone"
    assert remains(tmp_path, SECRET) == []
    assert capfd.readouterr() == ("", "")


async def test_a_hub_that_cannot_be_asked_is_an_error_of_its_own(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path))

    async with run_hub(
        data=str(tmp_path), auth=AuthSettings(enabled=True, secret="correct horse battery staple")
    ) as hub:
        with pytest.raises(HubElsewhere, match="but not at"):
            await asyncio.to_thread(erase, settings, actor=ADA, url=unused_url())
        with pytest.raises(Refused) as refused:
            await asyncio.to_thread(erase, settings, actor=ADA, url=hub.url)

    assert refused.value.code == "unauthorized"
    assert not issubclass(HubElsewhere, OutcomeUnknown)


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        ({}, "either an actor or an inbox"),
        ({"actor": ADA, "inbox": "x"}, "either an actor or an inbox"),
        ({"actor": "two words"}, "invalid address"),
        ({"inbox": ""}, "inbox id is empty"),
        ({"actor": ADA}, "no log in"),
    ],
)
def test_what_cannot_be_erased_is_refused_before_anything_happens(
    subject: dict[str, str], words: str, tmp_path: Path
) -> None:
    settings = Settings(data=str(tmp_path))

    for operation in (subject_of, erase):
        with pytest.raises(InvalidArgument, match=words):
            operation(settings, **subject)  # type: ignore[arg-type]

    assert list(tmp_path.iterdir()) == []
