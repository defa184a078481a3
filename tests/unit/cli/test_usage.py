"""Usage of every command: help, refusals with advice, exit codes, and the commands on settings."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from signalhub import __version__
from signalhub.cli.app import build, run
from signalhub.cli.hub import serve
from signalhub.cli.terminal.connection import LOCAL, LossNotes, RefusalLog, failure_of
from signalhub.cli.terminal.failures import EXIT_CODES, Exit, Failure
from signalhub.client.protocol.events import ConnectionLost, DeliveryHeldUp, MessageRefused
from signalhub.client.transport.link import NotOpened
from signalhub.wire.errors import (
    ClientError,
    Code,
    GaveUp,
    OutcomeUnknown,
    Refused,
    Unavailable,
    UnknownActor,
    Unsubscribed,
)

VERBS = (
    "serve ui top limits jobs bench backup restore demo sql audit replay erase tell ask request"
    " answer broadcast listen publish subscribe discover ls ping error completion doctor"
)
NOUNS = {
    "context": "add use ls show rm",
    "settings": "check show reference",
    "token": "mint inspect revoke denied jwks",
    "session": "ls close",
    "log": "ls info verify view acknowledge",
    "topic": "create ls info set read delete",
    "sub": "ls info pause resume seek set delete",
    "dlq": "ls show redrive purge",
    "room": "send listen key",
    "inbox": "fetch append",
    "pipeline": "up once status redrive maintain",
    "actors": "run call ls show calls alarms dead redrive purge move forget",
}
COMMANDS = [
    *([verb] for verb in VERBS.split()),
    *([noun] for noun in NOUNS),
    *([noun, verb] for noun, verbs in NOUNS.items() for verb in verbs.split()),
]
MANUAL = (Path(__file__).parents[3] / "docs" / "operate" / "cli.md").read_text()


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings from outside, and no log configured by `serve` afterwards."""
    for name in [name for name in os.environ if name.startswith("SIGNALHUB_")]:
        monkeypatch.delenv(name)
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    yield
    root.handlers[:], root.level = before


def test_every_command_is_listed_here_and_in_the_manual() -> None:
    app = build()
    listed = [[name] for name in app if not name.startswith("-")]
    for noun in NOUNS:
        listed += [[noun, verb] for verb in app[noun] if not verb.startswith("-")]

    assert sorted(listed) == sorted(COMMANDS)
    assert [words for words in COMMANDS if f"signalhub {' '.join(words)}" not in MANUAL] == []
    assert all(f"| {int(code)} | {meaning}" in MANUAL for code, meaning in EXIT_CODES.items())


def test_help_works_and_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ([], *COMMANDS):
        assert run([*command, "--help"]) == 0

        text = " ".join(capsys.readouterr().out.split())
        assert f"Usage: {' '.join(['signalhub', *command])}" in text
        assert all(f"{int(code)} {meaning}" in text for code, meaning in EXIT_CODES.items())
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"Signal Hub {__version__}\n"


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["lsten"], "listen"),
        (["tell"], "signalhub tell --help"),
        (["tell", "demo/bob"], "DATA is missing"),
        (["tell", "demo/bob", "x", "--timeout", "soon"], "--timeout 'soon': not a number"),
        (["tell", "demo/bob", "x", "--timeout"], "--timeout needs a value"),
        (["tell", "demo/bob", "hello", "world"], "quote the text"),
        (["ls", "everybody"], "signalhub ls --help"),
        (["tell", "@(demo", "x"], "invalid address"),
        (["publish", "prices/+", "1"], "contains a wildcard"),
        (["ls", "--token-file", "/dev/null"], "is empty"),
        (["serve", "--data", "/dev/null", "--port", "0"], "/dev/null is not a folder"),
        (["tell", "demo/bob", "x", "--tmeout", "5"], "--tmeout"),
        (["tell", "", "x"], "demo/alice"),
        (["tell", "demo/bob", "x", "--type", "hub:send"], "hub:"),
        (["tell", "demo/bob", "x", "--from", ""], "demo/alice"),
        (["tell", "demo/bob", "x", "--timeout", "0"], "--timeout"),
        (["tell", "demo/bob", "x", "--url", "ftp://127.0.0.1"], "ws://"),
        (["tell", "demo/bob", "x", "--token-file", "/no/such/file"], "/no/such/file"),
        (["publish", "", "x"], "topic"),
        (["subscribe"], "TOPIC"),
        (["subscribe", "a/#/b"], "a/#/b"),
        (["listen", "demo/bob", "--count", "0"], "--count"),
        (["discover", "--limit", "1000"], "--limit"),
        (["serve", "--port", "high"], "--port"),
        (["serve", "--host", "0.0.0.0"], "auth.enabled"),
        (["serve", "--config", "/no/such/file.toml"], "/no/such/file.toml"),
        (["publish", "orders", "1", "--header", "plain"], "trace=a1b2"),
        (["publish", "orders", "1", "--delay", "soon"], "250ms"),
        (["publish", "orders", "1", "--delay", "3000000d"], "--delay is too long"),
        (["publish", "orders", "1", "--delay", "99999999999w"], "--delay is too long"),
        (["publish", "orders", "1", "--deliver-at", "noon"], "2026-01-31T12:00Z"),
        (["publish", "orders", "1", "--delay", "1s", "--deliver-at", "2026-01-31"], "one of them"),
        (["publish", "orders", "1", "--ttl", "0"], "--ttl"),
        (["publish", "orders", "1", "--id", "x"], "--from"),
        (["publish", "orders", "1", "--id", "", "--from", "demo/a"], "--id"),
        (["publish", "orders", "1", "--lines"], "give -"),
        (["ask", "demo/bob", "1", "--id", "x"], "--from"),
        (["subscribe", "orders", "--from", "earliest"], "--as"),
        (["subscribe", "orders", "--no-ack"], "--as"),
        (["subscribe", "orders", "--window", "3"], "--as"),
        (["subscribe", "orders", "invoices", "--as", "billing"], "one topic"),
        (["subscribe", "orders/#/x", "--as", "billing"], "last level"),
        (["subscribe", "orders", "--as", ""], "subscription"),
        (["subscribe", "orders", "--as", "billing", "--consumer", ""], "consumer"),
        (["subscribe", "orders", "--as", "billing", "--from", "demo/a"], "earliest"),
        (["subscribe", "orders", "--as", "billing", "--type", "some"], "key-shared"),
        (["subscribe", "orders", "--as", "billing", "--no-ack", "--nack", "x"], "exclude"),
        (["subscribe", "orders", "--as", "billing", "--delay", "1s"], "--nack"),
        (["subscribe", "orders", "--as", "billing", "--ack-timeout", "0"], "--ack-timeout"),
        (["topic", "create", "orders/#"], "wildcard"),
        (["topic", "create", "orders", "--retention", "long"], "7d"),
        (["topic", "create", "orders", "--retention", "0"], "--retention"),
        (["topic", "create", "orders", "--retention-bytes", "much"], "1G"),
        (["topic", "create", "orders", "--poison", "bury"], "dead_letter"),
        (["topic", "create", "orders", "--dead-letter", "#"], "wildcard"),
        (["topic", "set", "orders"], "--retention 7d"),
        (["topic", "read", "orders", "--from", "0"], "--from"),
        (["topic", "read", "orders", "--from", "5", "--to", "4"], "both ends"),
        (["sub", "set", "orders", "billing"], "--window 16"),
        (["sub", "info", "orders", ""], "subscription"),
        (["sub", "seek", "orders", "billing", "somewhere"], "earliest"),
        (["dlq", "redrive", "orders"], "--all"),
        (["dlq", "redrive", "orders", "--all", "--seq", "1"], "--all"),
        (["dlq", "show", "orders", "0"], "SEQ"),
        (["log", "ls", "--data", "/no/such/folder"], "--data"),
        (["pipeline", "status", "--data", "/no/such/folder"], "there is no log in"),
        (["log", "view", "--data", "/tmp", "--kind", "other"], "subscription-created"),
        (["token", "mint", "demo/op"], "auth.secret"),
        (["token", "inspect"], "standard input"),
        (["erase", "--inbox", "-x"], "unknown option -x"),
        (["inbox", "fetch", "x", "--room", "-x"], "unknown option -x"),
        (["room", "send", "general", "x", "--inbox", "--jsno"], "--inbox"),
        (["actors", "call", "order/17"], "METHOD"),
        (["actors", "call", "order", "checkout"], "invalid actor 'order' — write it as kind"),
        (["actors", "call", "Order/17", "checkout"], "invalid kind 'Order'"),
        (["actors", "call", "order/17", "checkout", "blue-mug"], "'\"blue-mug\"'"),
        (["actors", "call", "order/17", "checkout", "1", "it's"], "argument 2"),
        (["actors", "call", "order/17", "checkout", "--sku"], "unknown option"),
        (["actors", "call", "order/17", "check out"], "check out"),
        (["actors", "call", "order/17", "checkout", "--timeout", "0"], "--timeout"),
        (["actors", "ls", "--limit", "0"], "--limit"),
        (["actors", "ls", "--data", "/no/such/folder"], "/no/such/folder"),
        (["actors", "ls", "--data", "/tmp", "--url", "ws://hub.example/ws"], "one of them"),
        (["actors", "show"], "ACTOR"),
        (["actors", "show", "order"], "kind/key"),
        (["actors", "alarms", "--status", "late"], "skipped"),
        (["actors", "calls", "--id", ""], "the id is empty — give one"),
        (["actors", "dead", "--id", " "], "the id is empty — give one"),
        (["actors", "redrive", "order/17", ""], "the id is empty — give one"),
        (["actors", "redrive", "order/17", "x", "--data", "/tmp"], "running host"),
        (["actors", "purge", "order/17", "x", "--data", "/tmp"], "running host"),
        (["actors", "purge", "order/17", "x"], "--yes"),
        (["actors", "move", "order/17"], "--to"),
        (["actors", "move", "order/17", "--to", "b", "--data", "/tmp"], "running host"),
        (["actors", "run", "shop:Order"], "--data"),
        (["actors", "run", "--data", "/dev/null"], "shop:Order"),
        (["actors", "run", "no_such_module:Order", "--data", "/dev/null"], "no_such_module"),
        (["actors", "run", ":Order", "--data", "/dev/null"], "shop:Order"),
        (["room", "send", "general"], "TEXT"),
        (["room", "send", "general", ""], "nothing to send"),
        (["room", "send", "general", "two", "words"], "quote the text"),
        (["room", "send", "a b", "x"], "a room id has"),
        (["room", "send", "general", "x", "--tenant", "a:b"], "a tenant id has"),
        (["room", "send", "general", "x", "--pseudonym", "a b"], "a pseudonym has"),
        (["room", "send", "general", "x", "--inbox", "a/b"], "an inbox id has"),
        (["room", "send", "general", "x", "--id", "a/b"], "a message id has"),
        (["room", "send", "general", "x", "--type", "chat"], "--type"),
        (["room", "send", "general", "x", "--type", "mls_commit"], "proposal"),
        (["room", "send", "general", "*", "--raw"], "base64url"),
        (["room", "send", "general", "x", "--key", "/no/such/file"], "/no/such/file"),
        (["room", "send", "general", "x", "--key", "/dev/null"], "invalid key file"),
        (["room", "send", "general", "x", "--url", "ftp://x"], "http://"),
        (["room", "send", "general", "x", "--url", "http://u:p@x"], "user name"),
        (["room", "send", "general", "x", "--timeout", "0"], "--timeout"),
        (["room", "listen", "general", "--since", "-1"], "--since"),
        (["room", "listen", "general", "--since", "99999999999999999999"], "--since"),
        (["room", "listen", "general", "--since", "1", "--new"], "exclude each other"),
        (["room", "listen", "general", "--count", "0"], "--count"),
        (["room", "key"], "--out"),
        (["room", "key", "--out", "a", "--show", "b"], "exactly one"),
        (["room", "key", "--show", "/no/such/file"], "--show"),
        (["room", "key", "--out", "/no/such/folder/key"], "/no/such/folder"),
        (["inbox", "fetch"], "SIGNALHUB_INBOX"),
        (["inbox", "fetch", "a/b"], "an inbox id has"),
        (["inbox", "fetch", "x", "--limit", "0"], "--limit"),
        (["inbox", "fetch", "x", "--from", "-1"], "--from"),
        (["inbox", "fetch", "x", "--from", "99999999999999999999"], "--from"),
        (["inbox", "append", "x"], "INBOX or TEXT is missing"),
        (["inbox", "append", "x"], "SIGNALHUB_INBOX"),
        (["inbox", "append", "x", "y", "--id", "a b"], "a message id has"),
        (["inbox", "append", "x", "y", "z"], "quote the text"),
        (["inbox", "fetch", "--jsno"], "unknown option"),
        (["room", "listen", "--cuont", "1"], "unknown option"),
        (["inbox", "append", "--jsno", "hello"], "unknown option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_is_exit_code_2_and_says_what_is_wrong(
    command: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("signalhub: ")
    assert named in captured.err
    assert " — " in captured.err, "it must end with what to do"


@pytest.mark.parametrize(
    ("variables", "command", "words"),
    [
        ({}, ["inbox", "fetch", "x", "--key", "KEY"], "--room"),
        ({}, ["room", "send", "general", "x", "--key", "KEY", "--raw"], "one of them"),
        ({"SIGNALHUB_INBOX": "my-inbox"}, ["inbox", "append", "my-inbox"], "give a text"),
        ({"SIGNALHUB_URL": "http://127.0.0.1:99999"}, ["ls"], "correct SIGNALHUB_URL"),
    ],
    ids=["no room", "raw and key", "no text", "bad port"],
)
def test_keys_and_variables_are_checked_and_no_inbox_is_repeated(
    variables: dict[str, str],
    command: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "key").write_bytes(bytes(range(32)))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert run([str(tmp_path / "key") if word == "KEY" else word for word in command]) == 2

    said = capsys.readouterr().err
    assert words in said
    assert "my-inbox" not in said


@pytest.mark.parametrize(
    ("error", "exit", "advice"),
    [
        (UnknownActor(Code.UNKNOWN_ACTOR, "nobody there"), Exit.FAILED, "signalhub ls"),
        (UnknownActor(Code.UNKNOWN_ACTOR, "left", retryable=True), Exit.FAILED, "check before"),
        (Refused(Code.UNAUTHORIZED, "no"), Exit.FAILED, "signalhub token mint"),
        (Refused(Code.UNAUTHORIZED, "The `aud` …"), Exit.FAILED, "--audience NAME"),
        (
            Refused(Code.UNAUTHORIZED, "The `kid` …", resolution="Try again in ten seconds."),
            Exit.FAILED,
            "— try again in ten seconds",
        ),
        (
            Refused(Code.UNAUTHORIZED, "no", details={"action": "send"}),
            Exit.FAILED,
            "a token that permits it",
        ),
        (Refused(Code.UNAUTHORIZED, "no", details={"action": "speak as"}), Exit.FAILED, "--from"),
        (Refused(Code.QUEUE_FULL, "no", retryable=True), Exit.FAILED, "in a few seconds"),
        (
            Refused(Code.LIMIT_EXCEEDED, "no", resolution="Give up some.", retryable=True),
            Exit.FAILED,
            "no — give up some.",
        ),
        (Refused(Code.INTERNAL_ERROR, "no"), Exit.FAILED, "log"),
        (Refused(Code.RATE_LIMITED, "no", resolution="slow down"), Exit.FAILED, "slow down"),
        (Refused(Code.UNKNOWN_TOPIC, "no"), Exit.FAILED, "signalhub topic ls"),
        (Refused(Code.TOPIC_CONFLICT, "no"), Exit.FAILED, "signalhub topic set"),
        (Refused(Code.UNKNOWN_SUBSCRIPTION, "no"), Exit.FAILED, "signalhub sub ls"),
        (Refused(Code.SUBSCRIPTION_BUSY, "no", retryable=True), Exit.FAILED, "--consumer"),
        (Refused(Code.SUBSCRIPTION_CONFLICT, "no"), Exit.FAILED, "--type"),
        (Refused(Code.STORAGE_FULL, "no", retryable=True), Exit.FAILED, "disk space"),
        (Unsubscribed("taken_over", "gone"), Exit.FAILED, "--consumer"),
        (Unsubscribed("topic_deleted", "gone"), Exit.FAILED, "signalhub topic ls"),
        (Unavailable("no hub"), Exit.UNREACHABLE, "signalhub serve"),
        (NotOpened("no hub"), Exit.UNREACHABLE, "signalhub serve"),
        (NotOpened("x answered HTTP 404 Not Found"), Exit.UNREACHABLE, "--url"),
        (NotOpened("ws://x answered HTTP 400 Bad Request"), Exit.UNREACHABLE, "wss://"),
        (NotOpened("ws://x: in response: http/1.0 400 bad request"), Exit.UNREACHABLE, "wss://"),
        (NotOpened("no hub at x: it does not speak TLS"), Exit.UNREACHABLE, "with ws://"),
        (NotOpened("x answered HTTP 502 Bad Gateway"), Exit.UNREACHABLE, "a proxy is there"),
        (NotOpened("it refuses the TLS handshake: x"), Exit.UNREACHABLE, "its certificate"),
        (NotOpened("busy", is_temporary=True), Exit.UNREACHABLE, "nothing was sent"),
        (GaveUp("no hub"), Exit.UNREACHABLE, "signalhub serve"),
        (OutcomeUnknown("no answer"), Exit.UNKNOWN, "--timeout"),
    ],
)
def test_each_outcome_has_its_exit_code_and_advice(
    error: ClientError, exit: Exit, advice: str
) -> None:
    failure = failure_of(error)

    assert failure.exit is exit
    assert failure.code == error.code
    assert advice in str(failure)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, ("unauthorized", "a token that permits it")),
        ({"detail": "No send.", "resolution": "Ask Ann."}, ("No send — ask Ann.",)),
    ],
)
def test_a_refused_tell_is_told_in_the_hub_s_words_if_it_has_any(
    facts: dict[str, str], words: tuple[str, ...]
) -> None:
    refusals = RefusalLog()
    refusals.sender = "@(demo/alice)"
    refusals(MessageRefused("unauthorized", **facts))

    with pytest.raises(Failure, match=r"from @\(demo/alice\)") as caught:
        refusals.check()
    assert all(word in str(caught.value) for word in words)


def test_a_delivery_that_is_held_up_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    held_up = DeliveryHeldUp(code="storage_failed", seq=7, detail="It waits.", resolution="Stay.")
    LossNotes(LOCAL)(held_up)

    assert "note: It waits. Stay." in capsys.readouterr().err


def test_a_lost_connection_is_noted_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "closed_by_operator: An operator has closed the session."
    LossNotes(LOCAL)(ConnectionLost(url="ws://x", reason=reason))

    noted = "connection lost: closed_by_operator: An operator has closed the session; reconnecting"
    assert capsys.readouterr().err == f"{noted}\n"


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (OSError(errno.EADDRINUSE, "in use"), "port 8787"),
        (OSError(errno.EADDRNOTAVAIL, "not available"), "10.9.8.7"),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), "10.9.8.7"),
        (PermissionError(errno.EACCES, "denied"), "1023"),
        (PermissionError(errno.EACCES, "denied", "data/state.db"), "data/state.db"),
    ],
)
def test_a_hub_that_cannot_start_says_why(error: OSError, named: str) -> None:
    failure = serve.start_failure(error, "10.9.8.7", 8787)

    assert failure.exit is Exit.FAILED
    assert named in str(failure)


def test_a_numeric_ipv6_host_is_bracketed_in_the_url() -> None:
    assert serve.address_of("::1", 80) == "ws://[::1]:80/ws"
    assert serve.address_of("localhost", 80) == "ws://localhost:80/ws"


def test_the_token_comes_from_the_file_or_else_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("from.the.file\n")
    monkeypatch.setenv("SIGNALHUB_TOKEN", "from.the.variable")

    assert replace(LOCAL, token_file=path).token() == "from.the.file"
    assert LOCAL.token() == "from.the.variable"
    monkeypatch.delenv("SIGNALHUB_TOKEN")
    assert LOCAL.token() is None


def test_settings_show_lists_values_and_sources_but_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hub.toml"
    path.write_text('port = 9\n[auth.keys.main]\nsecret = "a secret of many bytes"\n')
    monkeypatch.setenv("SIGNALHUB_AUTH_SECRET", "another secret of many bytes")

    assert run(["settings", "show", "--json", "--config", str(path)]) == 0
    rows = {row["setting"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert run(["settings", "show", "--config", str(path)]) == 0
    text = capsys.readouterr().out

    assert rows["port"] == {"setting": "port", "value": 9, "source": str(path)}
    assert rows["host"]["source"] == "default"
    assert rows["auth.secret"]["value"] == "•••"
    assert rows["auth.secret"]["source"] == "SIGNALHUB_AUTH_SECRET"
    assert rows["auth.keys"]["value"]["main"]["secret"] == "•••"
    assert "of many bytes" not in text + json.dumps(rows)
    assert f"port\t9\t{path}" in text


def test_settings_show_lists_wrong_values_too_and_then_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hub.toml"
    path.write_text('port = "high"\n[auth]\nkeys = "never shown"\n')
    monkeypatch.setenv("SIGNALHUB_HOST", "0.0.0.0")

    assert run(["settings", "show", "--config", str(path)]) == 2

    captured = capsys.readouterr()
    assert "host\t0.0.0.0\tSIGNALHUB_HOST" in captured.out
    assert f"port\thigh\t{path}" in captured.out
    assert "port is" in captured.err
    assert "auth.keys is" in captured.err
    assert "signalhub settings reference" in captured.err
    assert "never shown" not in captured.out + captured.err


def test_settings_are_shown_even_if_empty_and_said_to_be_valid(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["settings", "show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert run(["settings", "check"]) == 0

    assert {"origins\t[]\tdefault", 'auth.secret\t""\tdefault'} <= set(lines)
    assert "settings are valid" in capsys.readouterr().out


def test_a_settings_file_that_is_wrong_is_named_in_text_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hub.toml"
    path.write_text("port = 'many'\n")

    assert run(["settings", "check", "--config", str(path)]) == 2
    assert f"with `signalhub settings show --config {path}`" in capsys.readouterr().err
    assert run(["settings", "check", "--json", "--config", "/no/such/file.toml"]) == 2
    captured = capsys.readouterr()
    failure = json.loads(captured.err)
    assert (failure["error"], captured.out) == ("settings", "")
    assert "/no/such/file.toml" in failure["message"]
    assert failure["resolution"].endswith("`signalhub settings show`")


def test_settings_are_checked_together_with_the_key_set_they_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, keys = tmp_path / "hub.toml", tmp_path / "keys.json"
    config.write_text(f'[auth]\nenabled = true\njwks_file = "{keys}"\n')
    check = ["settings", "check", "--config", str(config)]

    assert run(check) == 2
    missing = capsys.readouterr().err
    keys.write_text("not a key set")
    assert run(check) == 2
    broken = capsys.readouterr().err

    assert f"auth.jwks_file {keys}: No such file or directory" in missing
    assert f"auth.jwks_file {keys}: " in broken
    assert "signalhub token jwks" in broken
