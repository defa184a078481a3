"""Contexts, error codes, completion and doctor, as users run them."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import re
import shutil
import stat
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from signalhub.auth.tokens import mint
from signalhub.cli.setup.completion import Shell, place_of, script
from signalhub.cli.terminal import contexts, names
from signalhub.cli.terminal.arguments import _verbatim
from signalhub.log.segment import BATCHES_BEGIN
from signalhub.operate.doctor import machine
from signalhub.settings.model import Key
from signalhub.testing import RunningHub, run_hub
from signalhub.wire.envelope import PROTOCOL_VERSION
from signalhub.wire.error_reference import ERRORS, ErrorSource, page
from signalhub.wire.errors import Code, RoomCode
from tests.support.process.command import SECRET, Done, cli, command, unused_url
from tests.support.socket.clients import ALICE, connect

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "signalhub"

Run = Callable[..., Awaitable[Done]]


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


@pytest.fixture(autouse=True)
def few_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each doctor would measure the disk for a while."""
    monkeypatch.setattr(machine, "FSYNCS", 10)


@pytest.fixture
def at_home(home: dict[str, str]) -> Run:
    """Runs a command without naming a hub."""
    return partial(command, "", variables=home)


@pytest.fixture(autouse=True)
def unmarked() -> Iterator[None]:
    yield
    contexts._production.set(None)
    _verbatim.set(())


def minted(lifetime_s: float) -> str:
    return mint(
        Key(secret=SECRET),
        kid=None,
        subject="tests",
        actor="demo/alice",
        permissions={"send": ["*"], "create": ["*"], "subscribe": ["*"]},
        lifetime_s=lifetime_s,
        issuer="signal-hub",
        now_s=time.time(),
    )


# Contexts.


async def test_a_context_is_used_until_another_is_chosen(
    hub: RunningHub, at_home: Run, tmp_path: Path
) -> None:
    added = await at_home("context", "add", "dev", "--url", hub.http_url, "--label", "here")
    await at_home("context", "add", "away", "--url", unused_url(), "--production")
    listed = await at_home("context", "ls")
    shown = await at_home("context", "show", "--json")

    assert (added.code, added.out) == (0, "context dev is stored\n")
    rows = [line.split("\t") for line in listed.out.splitlines()]
    assert rows[0][:3] == ["*", "dev", hub.url]
    assert rows[1][4] == "production"
    assert shown.rows()[0]["url"] == hub.url
    assert stat.S_IMODE((tmp_path / "signalhub" / "contexts.toml").stat().st_mode) == 0o600

    assert (await at_home("ls")).code == 0
    assert (await at_home("ls", "--context", "away")).code == 3
    assert (await at_home("ls", "--context=away")).code == 3
    assert (await at_home("context", "use", "away")).code == 0
    assert (await at_home("ls")).code == 3
    assert (await at_home("ls", "--url", hub.url)).code == 0
    assert (await at_home("context", "rm", "away")).code == 0
    missing = await at_home("ls", "--context", "away")
    assert (missing.code, "no context away" in missing.err) == (2, True)


async def test_variables_choose_and_win_unless_a_context_is_named(
    hub: RunningHub, home: dict[str, str]
) -> None:
    away = unused_url()
    here, there = {**home, "SIGNALHUB_URL": hub.url}, {**home, "SIGNALHUB_URL": away}
    await command("", "context", "add", "away", "--url", away, variables=home)
    await command("", "context", "add", "dev", "--url", hub.url, variables=home)

    assert (await command("", "ls", variables=here)).code == 0
    assert (await command("", "ls", "--context", "dev", variables=there)).code == 0
    chosen = {**home, "SIGNALHUB_CONTEXT": "dev"}
    assert (await command("", "ls", variables=chosen)).code == 0


async def test_the_token_of_a_context_goes_to_its_hub_only(
    home: dict[str, str], tmp_path: Path
) -> None:
    auth = {"enabled": True, "secret": SECRET}
    token = tmp_path / "token"
    token.write_text(minted(60.0))
    async with run_hub(auth=auth) as hub:
        options = ("--url", hub.url, "--token-file", str(token))
        await command("", "context", "add", "prod", *options, variables=home)

        assert (await command("", "ping", "--count", "1", variables=home)).code == 0
        elsewhere = await command(hub.url, "ping", "--count", "1", variables=home)

    assert elsewhere.code == 1
    assert "unauthorized" in elsewhere.err or "token" in elsewhere.err


async def test_in_production_deleting_asks_for_the_name_of_the_context(
    hub: RunningHub, at_home: Run
) -> None:
    await at_home("context", "add", "prod", "--url", hub.url, "--production")
    for topic in ("orders", "news"):
        await at_home("topic", "create", topic, "--durable")

    piped = await at_home("topic", "delete", "orders", "--yes")
    wrong = await at_home("topic", "delete", "orders", "--yes", typed="y\n")
    right = await at_home("topic", "delete", "orders", typed="prod\n")
    direct = await at_home("topic", "delete", "news", "--yes", "--url", hub.url)

    assert (piped.code, wrong.code, right.code, direct.code) == (2, 1, 0, 0)
    assert "prod is in production" in piped.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("add", "dev"), "give --url"),
        (("add", "dev", "--url", "ftp://x"), "ws://"),
        (("add", "dev", "--url", "ws://x", "--colour", "pink"), "choose one of"),
        (("use", "dev"), "no context dev"),
        (("show",), "no context is used"),
        (("rm", "dev"), "no context dev"),
    ],
)
async def test_what_is_wrong_about_a_context_is_said(
    at_home: Run, arguments: tuple[str, ...], named: str
) -> None:
    done = await at_home("context", *arguments)

    assert done.code == 2
    assert named in done.err


async def test_a_file_that_cannot_be_read_is_named(at_home: Run, tmp_path: Path) -> None:
    file = tmp_path / "signalhub" / "contexts.toml"
    file.parent.mkdir()
    file.write_text('current = "dev"\nspeed = 3\n')

    done = await at_home("ls")

    assert done.code == 2
    assert str(file) in done.err


# Error codes.


def test_every_code_is_explained_once_per_meaning() -> None:
    known = {(one.source, one.code) for one in ERRORS}

    assert {str(code) for code in Code} == {code for at, code in known if at is ErrorSource.HUB}
    assert {str(code) for code in RoomCode} == {
        code for at, code in known if at is ErrorSource.ROOM
    }
    meanings = [(one.source, one.code, one.is_retryable) for one in ERRORS]
    assert len(meanings) == len(set(meanings))
    assert all(one.when.endswith(".") and one.advice.endswith(".") for one in ERRORS)


def test_every_code_of_a_command_is_explained() -> None:
    explained = {one.code for one in ERRORS}

    said = {
        node.args[1].value
        for path in (SOURCE / "cli").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id == "Failure" and len(node.args) > 1
        if isinstance(node.args[1], ast.Constant)
    }

    assert said
    assert said - explained == set()


def test_the_reference_of_errors_is_up_to_date() -> None:
    file = ROOT / "docs" / "reference" / "errors.md"
    assert file.read_text() == page(), "run: signalhub error --reference > docs/reference/errors.md"


async def test_a_code_is_explained_with_all_its_meanings(at_home: Run) -> None:
    one = await at_home("error", "queue_full")
    several = await at_home("error", "STORAGE_FAILED", "--json")
    unknown = await at_home("error", "quefull")
    printed = await at_home("error", "--reference")

    assert "Too much waits for the recipient" in one.out
    assert [row["source"] for row in several.rows()] == ["hub", "room"]
    assert unknown.code == 1
    assert re.search(r"did you mean queue_full, \w+, \w+\?", unknown.err)
    assert printed.out == page()
    assert (await at_home("error")).code == 2


# Completion.


def test_the_kind_of_a_name_follows_from_the_words_before_it() -> None:
    kinds = {
        "context use": "context",
        "ls --context": "context",
        "topic info": "topic",
        "topic create": None,
        "sub info": "topic",
        "--context dev topic info --url ws://hub": "topic",
        "publish": "topic",
        "publish orders": None,
        "publish --type": None,
        "ls": None,
    }
    assert {words: names.kind_of(words.split()) for words in kinds} == kinds
    assert names.PROTOCOL == PROTOCOL_VERSION


async def test_names_come_from_the_hub_and_the_contexts(
    hub: RunningHub, at_home: Run, home: dict[str, str]
) -> None:
    await at_home("context", "add", "dev", "--url", hub.url)
    for topic in ("orders/eu", "news", "or$(reboot)"):
        await at_home("topic", "create", topic, "--durable")

    async def completed(*words: str) -> list[str]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in home.items():
                patch.setenv(name, value)
            return await asyncio.to_thread(names.names, words)

    assert await completed("topic", "info", "") == ["news", "orders/eu"]
    assert await completed("topic", "info", "--url", hub.url, "x") == []
    assert await completed("publish", "or") == ["orders/eu"]
    assert await completed("--context", "d") == ["dev"]
    assert await completed("tell", "") == []


async def test_the_hub_of_a_context_that_is_named_never_gets_the_token_of_the_variable(
    home: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(minted(60.0))
    async with run_hub(auth={"enabled": True, "secret": SECRET}) as hub:
        dev = ("context", "add", "dev", "--url", hub.url)
        await command("", *dev, variables=home)
        await command("", *dev[:2], "own", *dev[3:], "--token-file", str(file), variables=home)
        await command("", "context", "use", "dev", variables=home)
        variables = {**home, "SIGNALHUB_TOKEN": minted(60.0)}
        made = await command("", "topic", "create", "orders", "--durable", variables=variables)
        assert made.code == 0, made.err

        async def topics(*words: str) -> list[str]:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in variables.items():
                    patch.setenv(name, value)
                return await asyncio.to_thread(names.names, ("topic", "info", *words, "o"))

        assert await topics() == ["orders"]
        assert await topics("--url", hub.url) == ["orders"]
        assert await topics("--context", "own") == ["orders"]
        assert await topics("--context", "dev") == await topics("--context=dev") == []
        ping = partial(command, "", "ping", "--count", "1", variables=variables)
        assert (await ping()).code == 0
        assert (await ping("--context", "own")).code == 0
        refused = await ping("--context", "dev")
        assert (refused.code, "unauthorized" in refused.err or "token" in refused.err) == (1, True)


async def test_without_a_hub_there_are_no_names_and_no_wait(home: dict[str, str]) -> None:
    words = ("__complete", "topic", "info", "o")
    async with asyncio.timeout(30):
        done = await cli(unused_url(), *words, variables=home)

    assert (done.code, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_know_commands_and_ask_for_names(shell: Shell) -> None:
    text = script(shell)

    assert "redrive" in text
    assert text.count("signalhub __complete") == 1


async def test_the_script_is_installed_where_the_shell_looks_and_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    places: dict[Shell, str] = {
        "bash": ".local/share/bash-completion/completions/signalhub",
        "zsh": ".zfunc/_signalhub",
        "fish": ".config/fish/completions/signalhub.fish",
    }
    assert {shell: place_of(shell) for shell in places} == {
        shell: tmp_path / place for shell, place in places.items()
    }

    done = await command("", "completion", "bash", "--install")

    file = tmp_path / places["bash"]
    assert (done.code, done.out.splitlines()[0]) == (0, str(file))
    assert "complete -F _signalhub_with_names" in file.read_text()
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    # Stands for the command, which may not be on the path here.
    fake = 'signalhub() { [[ $1 == __complete ]] && printf "orders/eu\\n"; }'
    ask = 'COMP_WORDS=({words}); COMP_CWORD={at}; {function}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    lines = [
        f"{fake}; source {file}",
        ask.format(words="signalhub topic inf", at=2, function="_signalhub_with_names"),
        ask.format(words="signalhub topic info o", at=3, function="_signalhub_with_names"),
        "complete -p signalhub",
    ]
    process = await asyncio.create_subprocess_exec(
        "bash", "--norc", "-c", "\n".join(lines), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()

    assert process.returncode == 0
    assert {"info", "orders/eu"} <= set(out.decode().splitlines())
    assert "complete -F _signalhub_with_names signalhub" in out.decode()


# Doctor.


async def test_doctor_finds_a_healthy_hub_healthy(hub: RunningHub, run: Run) -> None:
    data = str(hub.settings.data)
    done = await run("doctor", "--json", "--data", data, "--full")

    found = {row["check"]: row for row in done.rows()}
    assert {
        *("settings", "versions", "auth", "port", "limits", "disk", "fsync", "log", "index"),
        *("lake", "java", "hub", "health", "metrics", "sdk"),
    } <= found.keys()
    others = {check: row for check, row in found.items() if check not in ("fsync", "java", "disk")}
    assert {row["level"] for row in others.values()} == {"ok"}, others
    assert done.code in (0, 1, 2)


async def test_doctor_says_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    settings = tmp_path / "hub.toml"
    settings.write_text('host = "0.0.0.0"\n[auth]\nenabled = false\n')
    token = tmp_path / "token"
    token.write_text(minted(-60.0))

    options = ("--config", str(settings), "--token-file", str(token), "--data", str(tmp_path))
    done = await command(unused_url(), "doctor", "--json", *options)

    found = {row["check"]: row for row in done.rows() if row["level"] != "ok"}
    assert done.code == 2
    assert "auth.enabled" in found["settings"]["text"] + found["settings"]["advice"]
    assert "expired" in found["token"]["text"]
    assert "unavailable" in found["hub"]["advice"]
    assert all(row["advice"] for row in found.values())


async def test_doctor_sees_damage_of_the_log(tmp_path: Path) -> None:
    async with run_hub(data=str(tmp_path)) as hub, connect(hub.url, ALICE) as alice:
        for number in range(5):
            await alice.create_topic(f"orders-{number}")
    segment = min((tmp_path / "log").glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[BATCHES_BEGIN + 60] ^= 1
    segment.write_bytes(content)

    done = await command(unused_url(), "doctor", "--json", "--data", str(tmp_path))

    levels = {row["level"] for row in done.rows() if row["check"] == "log"}
    assert (done.code, levels) == (2, {"fail"})


async def test_a_quick_check_is_about_the_hub_alone(hub: RunningHub, run: Run) -> None:
    done = await run("doctor", "--quick", "--json")

    assert (done.code, {row["check"] for row in done.rows()}) == (
        0,
        {"hub", "health", "metrics", "sdk"},
    )


async def test_a_bundle_holds_no_secrets_and_no_names(
    hub: RunningHub, run: Run, tmp_path: Path
) -> None:
    for topic in ("orders-of-acme", 'events of "acme"'):
        await run("topic", "create", topic, "--durable")
    settings, log, target = (tmp_path / name for name in ("hub.toml", "hub.log", "report.tar.gz"))
    lake = "s3://AKIA:acme/key@acme/lake"
    settings.write_text(
        f'[auth]\nenabled = true\nsecret = "{SECRET}"\n[pipeline]\nlake = "{lake}"\n'
    )
    log.write_text('{"topic": "orders-of-acme", "identity": "@(acme/anna)", "ip": "10.1.2.3"}\n')
    options = ("--config", str(settings), "--log", str(log), "--bundle", str(target))

    refused = await run("doctor", "--quick", *options)
    assert (refused.code, target.exists()) == (2, False)
    done = await run("doctor", *options, "--yes")
    again = await run("doctor", "--quick", *options, "--yes")

    assert "metrics.txt" in done.err
    with tarfile.open(target) as archive:
        files = {
            member.name.partition("/")[2]: (archive.extractfile(member) or io.BytesIO()).read()
            for member in archive
        }
    everything = b"".join(files.values()).decode()
    for hidden in ("acme", SECRET, "10.1.2.3", "AKIA", str(tmp_path)):
        assert hidden not in everything
    assert {"report.json", "settings.json", "metrics.txt", "packages.txt", "hub.log"} <= set(files)
    assert json.loads(files["series.json"])["series"].keys() >= {"in", "out", "errors"}
    assert json.loads(files["settings.json"])["auth.enabled"]["value"] is True
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert (again.code, "cannot write" in again.err) == (2, True)


async def test_completing_imports_next_to_nothing() -> None:
    program = (
        "import sys; from signalhub.cli.terminal import names\n"
        "names.names(['context', 'use', ''])\n"
        "print({'cyclopts', 'rich', 'asyncio', 'msgspec'} & set(sys.modules))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.decode().strip() == "set()"
