"""Erasing where there is no lake, beside a hub and without one: from Python and as a command."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import signalhub
from signalhub import OutcomeUnknown, Refused, Unavailable
from signalhub.log.disk import SystemDisk
from signalhub.log.verify import verify
from signalhub.operate import erase as operations
from signalhub.operate.arguments import InvalidArgument
from signalhub.operate.erase import HubElsewhere, erase, subject_of
from signalhub.pipeline.erase import certificate
from signalhub.settings.model import AuthSettings, Settings
from signalhub.testing import RunningHub, run_hub
from tests.pipeline.remains import remains
from tests.support.process.command import command, unused_url

ADA = "@(people/ada)"
BOB = "@(people/bob)"
SECRET = "theanalyticalengineweaves"
PLAIN = "ploughmen-homeward-plod"


async def converse(hub: RunningHub) -> None:
    """Ada and Bob publish, and Bob writes to Ada, who is away."""
    async with signalhub.connect(hub.url, BOB) as bob:
        await bob.create_topic("orders")
        async with signalhub.connect(hub.url, ADA, durable=True) as ada:
            await ada.publish("orders", "note", SECRET, durable=True)
        await bob.publish("orders", "note", PLAIN, durable=True)


def erased_of_sound_log(data: Path) -> int:
    report = verify(SystemDisk(data / "log", read_only=True))
    assert report.is_sound
    return report.erased


async def test_beside_a_hub_it_is_asked_and_certified(tmp_path: Path) -> None:
    steps: list[str] = []
    settings = Settings(data=str(tmp_path))
    async with run_hub(data=str(tmp_path)) as hub:
        await converse(hub)
        words = ("erase", "--data", str(tmp_path))
        refused = await command(hub.url, *words, "--actor", ADA)
        done = await asyncio.to_thread(
            erase, settings, actor="people/ada", url=hub.url, progress=steps.append
        )
        again = await command(hub.url, *words, "--actor", ADA, "--yes", "--json")
        (found,) = again.rows()
        shown = await command(hub.url, *words, "--certificate", found["id"], "--json")

    assert refused.code == 2
    assert "use --yes" in refused.err
    assert (done.state, done.subject, done.tables) == ("gone", "actor", {})
    assert done.log is not None
    assert erased_of_sound_log(tmp_path) == done.log.entries >= 1
    assert steps == ["searching the log"]
    assert (found["state"], found["tables"], ADA in again.out) == ("gone", {}, False)
    assert shown.rows() == [found]
    assert remains(tmp_path, SECRET) == []
    assert remains(tmp_path, PLAIN)


async def test_without_a_hub_the_folder_is_opened_directly(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with run_hub(data=str(tmp_path)) as hub:
        await converse(hub)
    capfd.readouterr()

    words = ("erase", "--actor", "people/ada", "--yes", "--data", str(tmp_path))
    done = await command(unused_url(), *words)
    again = await asyncio.to_thread(erase, Settings(data=str(tmp_path)), actor=ADA)

    assert done.code == 0, done.err
    assert "state\tcomplete\n" in done.out
    assert "Not covered: backups" in done.out
    assert again.log is not None
    assert (again.state, again.log.entries) == ("gone", 0)
    assert remains(tmp_path, SECRET) == remains(tmp_path, ADA) == []
    assert remains(tmp_path, PLAIN)
    assert capfd.readouterr() == ("", "")


async def test_a_hub_that_cannot_be_asked_is_an_error_of_its_own(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path))
    auth = AuthSettings(enabled=True, secret="correct horse battery staple")

    async with run_hub(data=str(tmp_path), auth=auth) as hub:
        with pytest.raises(HubElsewhere, match="but not at"):
            await asyncio.to_thread(erase, settings, actor=ADA, url=unused_url())
        with pytest.raises(Refused) as refused:
            await asyncio.to_thread(erase, settings, actor=ADA, url=hub.url)
        words = ("erase", "--actor", ADA, "--yes", "--data", str(tmp_path))
        elsewhere = await command(unused_url(), *words)

    assert refused.value.code == "unauthorized"
    assert certificate.known(tmp_path) == []
    assert not issubclass(HubElsewhere, OutcomeUnknown)
    assert elsewhere.code == 3
    assert "give its URL with --url" in elsewhere.err


async def test_a_refusal_keeps_the_certificate_of_an_erasure_that_was_interrupted(
    tmp_path: Path,
) -> None:
    auth = AuthSettings(enabled=True, secret="correct horse battery staple")
    async with run_hub(data=str(tmp_path), auth=auth) as hub:
        begun = certificate.begin(tmp_path, "actor", ADA, 1)
        with pytest.raises(Refused):
            await asyncio.to_thread(erase, Settings(data=str(tmp_path)), actor=ADA, url=hub.url)

    assert certificate.known(tmp_path) == [begun]


def test_an_erasure_that_a_full_disk_stopped_keeps_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise Refused("storage_full", "the disk is full")

    monkeypatch.setattr(operations, "check_log", lambda settings: None)
    monkeypatch.setattr(operations, "_erase_log", stopped)
    with pytest.raises(Refused):
        erase(Settings(data=str(tmp_path)), actor=ADA)

    # The hub hides what it has found, and erases that later, under the same pseudonym.
    (kept,) = certificate.known(tmp_path)
    assert kept.state == "begun"


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
async def test_what_cannot_be_erased_is_refused_before_anything_happens(
    subject: dict[str, str], words: str, tmp_path: Path
) -> None:
    settings = Settings(data=str(tmp_path))
    options = [word for name, value in subject.items() for word in (f"--{name}", value)]

    for operation in (subject_of, erase):
        with pytest.raises(InvalidArgument, match=words):
            operation(settings, **subject)  # type: ignore[arg-type]
    done = await command(unused_url(), "erase", *options, "--yes", "--data", str(tmp_path))

    assert done.code == 2
    assert words in done.err or "exactly one of --actor, --inbox and --certificate" in done.err
    assert remains(tmp_path, "") == []


async def test_the_hub_has_ten_minutes_unless_a_timeout_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def note(settings: Settings, *, timeout_s: float, **options: object) -> None:
        waits.append(timeout_s)
        raise Unavailable("not asked")

    async with run_hub(data=str(tmp_path)):
        pass
    monkeypatch.setattr(operations, "erase", note)
    words = ("erase", "--actor", ADA, "--yes", "--data", str(tmp_path))
    for option in ((), ("--timeout", "5")):
        await command(unused_url(), *words, *option)

    assert waits == [operations.ANSWER_S, 5.0] == [600.0, 5.0]


async def test_an_unknown_certificate_is_a_failure(tmp_path: Path) -> None:
    words = ("erase", "--certificate", "0" * 16, "--data", str(tmp_path))
    unknown = await command(unused_url(), *words)

    assert unknown.code == 1
    assert "there is no certificate" in unknown.err


async def test_an_erasure_that_finds_nothing_says_so(tmp_path: Path) -> None:
    async with run_hub(data=str(tmp_path)) as hub:
        await converse(hub)
        words = ("erase", "--yes", "--data", str(tmp_path))
        nobody = await command(hub.url, *words, "--actor", "people/nobody")
        again = await command(hub.url, *words, "--actor", "people/nobody", "--json")
        nowhere = await command(hub.url, *words, "--inbox", "never-used")
        somebody = await command(hub.url, *words, "--actor", ADA)

    assert [one.code for one in (nobody, again, nowhere, somebody)] == [1, 1, 1, 0]
    assert "nothing of @(people/nobody) was found" in nobody.err
    assert "entries\tnone\n" in nobody.out
    assert again.rows()[0]["state"] == "gone"
    assert '"error":"nothing_found"' in again.err
    assert "nothing of the inbox never-used was found" in nowhere.err
