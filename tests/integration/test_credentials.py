"""Keys and denials that change while the hub runs: edited files, and an issuer that rotates."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from signalhub.auth import denials
from signalhub.auth.denials import Denial, Denials
from signalhub.auth.tokens import Authenticator
from signalhub.server.credentials import Credentials
from signalhub.settings.model import AuthSettings
from signalhub.testing import FakeClock
from signalhub.wire.base64url import encoded
from signalhub.wire.errors import Refusal, SettingsError
from tests.support.socket.stage import eventually, run_stage
from tests.support.socket.tokens import AUTH, PAIR, SECRET, token_for

NOW = FakeClock().now_ms()
TOKEN = token_for("@(demo/alice)", FakeClock(), kid="signed")


def key_set(*kids: str) -> bytes:
    public: Any = load_pem_public_key(PAIR.public.encode())
    x = encoded(public.public_bytes_raw())
    keys = [{"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x} for kid in kids]
    return json.dumps({"keys": keys}).encode()


class Case:
    """Credentials on their own, with what they handed to the hub."""

    def __init__(self, data: Path, **auth: Any) -> None:
        settings = AuthSettings(enabled=True, secret=SECRET, **auth)
        self.authenticator = Authenticator(settings)
        self.lists: list[Denials] = []
        self.credentials = Credentials(
            settings, data / "denied.jsonl", self.authenticator, self._deny, data
        )
        self.now = NOW

    def _deny(self, listed: Denials) -> None:
        self.lists.append(listed)
        self.authenticator.use_denials(listed)

    async def start(self) -> Case:
        self.credentials.read_files()
        await self.credentials.start(self.now)
        return self

    async def tick(self, seconds: float = 1) -> list[str]:
        self.now += int(seconds * 1000)
        self.credentials.tick(self.now)
        await eventually(lambda: not self.credentials.is_reading)
        return [*self.credentials.degradations(self.now)]

    def accepts(self, token: str = TOKEN) -> bool:
        try:
            self.authenticator.verify(token, NOW / 1000)
        except Refusal:
            return False
        return True


async def test_a_changed_denial_list_is_read_again_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = await Case(tmp_path).start()
    token = token_for("@(demo/alice)", FakeClock())
    path = tmp_path / "denied.jsonl"
    assert (await case.tick(), case.lists, case.accepts(token)) == ([], [], True)

    path.write_bytes(denials.write([Denial(actor="@(demo/alice)")]))
    assert (await case.tick(), case.accepts(token)) == ([], False)
    assert await case.tick() == []
    assert len(case.lists) == 1, "it is read only when it has changed"

    kept = path.rename(tmp_path / "kept")
    assert (await case.tick(), case.accepts(token)) == (["denial_list_unreadable"], False)
    kept.rename(path)
    assert (await case.tick(), case.accepts(token)) == ([], False)

    caplog.clear()
    path.write_text('{"jit": "misspelt"}')
    for _ in range(3):
        assert (await case.tick(), case.accepts(token)) == (["denial_list_unreadable"], False)
    assert len(caplog.records) == 1
    path.unlink()
    assert (await case.tick(), case.accepts(token)) == (["denial_list_unreadable"], False)

    path.write_text("# nobody any more\n")
    assert (await case.tick(), case.accepts(token)) == ([], True)


async def test_a_hub_does_not_start_with_a_list_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "denied.jsonl").write_text("alice\n")

    with pytest.raises(SettingsError, match=r"denied\.jsonl: line 1: "):
        await Case(tmp_path).start()
    with pytest.raises(SettingsError, match=r"auth\.jwks_file .*keys\.json: No such file"):
        await Case(tmp_path / "x", jwks_file=str(tmp_path / "keys.json")).start()


async def test_a_list_that_the_settings_name_is_missed_from_the_start(
    tmp_path: Path,
) -> None:
    default, named = await Case(tmp_path).start(), Case(tmp_path, denied_file="denied.jsonl")
    await named.start()

    assert await default.tick() == []
    assert await named.tick() == ["denial_list_unreadable"]
    (tmp_path / "denied.jsonl").write_bytes(denials.write([Denial(sub="mallory")]))
    assert await named.tick() == []
    assert [len(one) for one in named.lists] == [1]


async def test_a_key_set_in_a_file_rotates(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(key_set("other"))
    case = await Case(tmp_path, jwks_file=str(path)).start()
    assert not case.accepts()

    path.write_bytes(key_set("other", "signed"))
    assert (await case.tick(), case.accepts()) == ([], True)
    path.write_text("{}")
    assert (await case.tick(), case.accepts()) == (["key_set_unavailable"], True)
    path.write_bytes(key_set("other"))
    assert (await case.tick(), case.accepts()) == ([], False)


class Issuer(ThreadingHTTPServer):
    """Answers with a key set, or whatever the test wants."""

    def __init__(self) -> None:
        self.status = 200
        self.body = key_set("other")
        self.headers: dict[str, str] = {}
        self.requests = 0
        issuer = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.requests += 1
                self.send_response(issuer.status)
                for name, value in issuer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(issuer.body)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server_port}/keys"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


async def fetched(case: Case, issuer: Issuer, seconds: float) -> int:
    """Let time pass; the number of requests that the issuer gets."""
    before = issuer.requests
    await case.tick(seconds)
    key_url = case.credentials._key_url
    assert key_url is not None
    await eventually(lambda: not key_url._is_fetching)
    return issuer.requests - before


async def test_an_unknown_key_makes_the_hub_ask_the_issuer_but_not_all_the_time(
    tmp_path: Path, issuer: Issuer
) -> None:
    case = await Case(tmp_path, jwks_url=issuer.url).start()
    assert not case.accepts()
    issuer.body = key_set("other", "signed")

    assert await fetched(case, issuer, 1) == 0, "it has just been asked"
    assert await fetched(case, issuer, 10) == 1
    assert case.accepts()
    assert await fetched(case, issuer, 60) == 0, "nothing is missed"
    for _ in range(20):
        case.accepts(token_for("@(demo/alice)", FakeClock(), kid="shared"))
        await fetched(case, issuer, 1)
    assert issuer.requests == 4
    assert await fetched(case, issuer, 300) == 1, "from time to time it looks anyway"


async def test_an_issuer_that_fails_leaves_the_keys_and_degrades_after_a_while(
    tmp_path: Path, issuer: Issuer
) -> None:
    issuer.body = key_set("signed")
    case = await Case(tmp_path, jwks_url=issuer.url, jwks_refresh_s=100).start()
    assert case.accepts()

    answers: list[tuple[float, int, bytes, dict[str, str]]] = [
        (100, 500, b"", {}),
        (60, 200, b"<html>", {}),
        (60, 200, b" " * 2**20, {}),
        (60, 302, b"", {"Location": f"{issuer.url}?elsewhere"}),
    ]
    for wait_s, status, body, headers in answers:
        issuer.status, issuer.body, issuer.headers = status, body, headers
        assert await fetched(case, issuer, wait_s) == 1
        assert case.accepts()
        assert case.credentials.degradations(case.now) == []
    assert await fetched(case, issuer, 30) == 1
    assert case.credentials.degradations(case.now) == ["key_set_unavailable"]

    issuer.status, issuer.body, issuer.headers = 200, key_set("signed"), {}
    await fetched(case, issuer, 20)
    assert case.credentials.degradations(case.now) == []


async def test_without_any_key_from_the_issuer_the_hub_starts_degraded(tmp_path: Path) -> None:
    case = await Case(tmp_path, jwks_url="http://127.0.0.1:9/keys").start()

    assert case.credentials.degradations(case.now) == ["key_set_unavailable"]


async def test_a_hub_starts_with_the_keys_it_had_while_its_issuer_is_away(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.body = key_set("signed")
    await Case(tmp_path, jwks_url=issuer.url, jwks_refresh_s=100).start()
    kept = tmp_path / "key-set.json"
    assert kept.stat().st_mode & 0o777 == 0o600

    issuer.status = 500
    again = await Case(tmp_path, jwks_url=issuer.url, jwks_refresh_s=100).start()

    assert again.accepts()
    assert again.credentials.degradations(again.now) == []
    (told,) = [one for one in caplog.records if "earlier start" in one.message]
    assert vars(told)["keys"] == ["signed"]
    assert vars(told)["age_s"] in range(60)
    # Its age counts.
    await again.tick(301)
    assert again.credentials.degradations(again.now) == ["key_set_unavailable"]


async def test_keys_kept_of_another_issuer_or_that_others_may_write_are_not_used(
    tmp_path: Path, issuer: Issuer
) -> None:
    issuer.body = key_set("signed")
    await Case(tmp_path, jwks_url=issuer.url).start()
    kept, issuer.status = tmp_path / "key-set.json", 500
    content = kept.read_bytes()

    async def accepts(url: str = issuer.url) -> bool:
        return (await Case(tmp_path, jwks_url=url).start()).accepts()

    assert not await accepts(f"{issuer.url}?other")
    assert await accepts()
    kept.chmod(0o620)
    assert not await accepts()
    kept.chmod(0o600)
    for damaged in (content[:-9], b"", content.replace(b"Ed25519", b"Ed448")):
        kept.write_bytes(damaged)
        assert not await accepts()


async def test_a_long_denial_list_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    case = await Case(tmp_path).start()
    entries = [Denial(jti=f"token-{number:08}") for number in range(20_000)]
    (tmp_path / "denied.jsonl").write_bytes(denials.write(entries))

    case.credentials.tick(case.now + 1_000)

    assert (case.credentials.is_reading, case.lists) == (True, [])
    turns = 0
    while case.credentials.is_reading:
        await asyncio.sleep(0)
        turns += 1
    assert [len(one) for one in case.lists] == [20_000]
    assert turns > 100, "the loop has gone on meanwhile"


async def test_a_session_ends_when_its_token_is_written_into_the_list(tmp_path: Path) -> None:
    path = tmp_path / "denied"
    async with run_stage(auth=AUTH | {"denied_file": str(path)}) as stage:
        alice = await stage.connect(authToken=token_for("@(demo/alice)", stage.clock))
        bob = await stage.connect(authToken=token_for("@(demo/bob)", stage.clock))

        path.write_bytes(denials.write([Denial(sub="@(demo/alice)")]))

        assert (await alice.receive("hub:disconnect"))["payload"]["reason"] == "unauthorized"
        assert await alice.until_closed() == 1008
        assert alice.close_reason == "unauthorized"
        assert (await bob.ask("hub:heartbeat"))["type"] == "hub:heartbeat_ack"
