"""`signalhub token`: what is minted is accepted, what is not is explained."""

from __future__ import annotations

import io
import json
import stat
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from signalhub.cli.app import run
from signalhub.operate.tokens.token import actor_of, contents
from signalhub.wire.base64url import encoded

SECRET = "correct horse battery staple"


class Tokens:
    """The commands with one settings file."""

    def __init__(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._config = ("--config", str(config))
        self._capsys = capsys

    def mint(self, *words: str) -> str:
        assert run(["token", "mint", "demo/alice", *words, *self._config]) == 0
        return self._capsys.readouterr().out.strip()

    def refusal(self, *words: str) -> str:
        assert run(["token", "mint", "demo/alice", *words, *self._config]) == 2
        return self._capsys.readouterr().err

    def inspect(self, *words: str, code: int = 0) -> str:
        assert run(["token", "inspect", *words, *self._config]) == code
        return "".join(self._capsys.readouterr())


@pytest.fixture
def tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Tokens:
    path = tmp_path / "hub.toml"
    path.write_text(f'[auth]\nenabled = true\nsecret = "{SECRET}"\n')
    return Tokens(path, capsys)


def test_a_minted_token_is_valid_and_says_what_was_asked_for(tokens: Tokens) -> None:
    permissions = ["--send", "demo/*", "--send", "ops/*", "--publish", "*", "--create", "orders*"]
    token = tokens.mint(*permissions, "--subject", "alice")

    facts = json.loads(tokens.inspect(token, "--json"))
    lines = dict(line.split("\t", 1) for line in tokens.inspect(token).splitlines())

    claims = facts["claims"]
    assert facts["valid"] is True
    assert (claims["actorId"], claims["sub"]) == ("demo/alice", "alice")
    assert claims["permissions"]["send"] == ["demo/*", "ops/*"]
    assert claims["permissions"]["create"] == ["orders*"]
    assert claims["permissions"].get("subscribe", []) == []
    assert claims["exp"] - claims["iat"] == 3600
    assert (lines["sub"], lines["verdict"], ":" in lines["exp"]) == ("alice", "valid", True)
    assert actor_of(token) == actor_of(f"Bearer {token}\n") == "@(demo/alice)"


def test_a_role_is_a_set_of_permissions_to_which_others_are_added(tokens: Tokens) -> None:
    token = tokens.mint("--role", "operator", "--admin", "erase", "--send", "demo/*")

    granted = json.loads(tokens.inspect(token, "--json").splitlines()[0])["claims"]["permissions"]
    assert granted["manage"] == granted["control"] == ["*"]
    assert granted["delete"] == []
    assert granted["admin"] == ["view", "sessions", "settings", "limits", "audit", "erase"]
    assert granted["send"] == ["demo/*"]


def test_a_token_is_read_from_a_file_standard_input_or_the_variable(
    tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tokens.mint()

    (tmp_path / "alice.token").write_text(token + "\n")
    tokens.inspect(str(tmp_path / "alice.token"))

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(token.encode() + b"\n")))
    tokens.inspect("-")
    monkeypatch.setenv("SIGNALHUB_TOKEN", token)
    tokens.inspect()


def test_a_token_of_another_hub_is_refused_with_the_reason(
    tokens: Tokens, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[auth]\nenabled = true\nsecret = "quite another shared secret"\n')

    said = Tokens(other, capsys).inspect(tokens.mint(), "--json", code=1)

    facts = json.loads(said.splitlines()[0])
    assert facts["valid"] is False
    assert "signature" in facts["reason"]


@pytest.mark.parametrize("token", ["nonsense", "a.b.c", "e30.W10.x", "é.é.é"])
def test_what_is_no_token_is_said_to_be_none(token: str, tokens: Tokens) -> None:
    assert "not a JWT" in tokens.inspect(token, code=1)
    assert actor_of(token) is None


def test_a_key_that_is_not_there_is_named_once(tokens: Tokens, tmp_path: Path) -> None:
    missing = str(tmp_path / "nokey.pem")

    said = tokens.refusal("--private-key", missing)

    assert f"cannot read the key {missing}: No such file or directory — choose" in said


def test_a_time_that_is_none_is_shown_as_it_is(tokens: Tokens) -> None:
    header, claims = encoded(b'{"alg":"HS256"}'), encoded(b'{"exp":1e300,"iat":0}')

    said = tokens.inspect(f"{header}.{claims}.x", code=1)

    assert "exp\t1e+300\n" in said
    assert "iat\t0 (1970-01-01" in said


def test_the_options_of_mint_are_grouped_by_what_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["token", "mint", "--help"]) == 0

    assert "Permissions" in capsys.readouterr().out


def test_an_eddsa_token_is_signed_with_the_private_key_of_its_kid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    config, key, wrong = (tmp_path / name for name in ("hub.toml", "key.pem", "wrong.pem"))
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    wrong.write_text("no key at all")
    signed = f'[auth.keys.a]\nalgorithm = "EdDSA"\npublic_key = """{public.decode()}"""\n'
    config.write_text(f'{signed}[auth.keys.b]\nsecret = "{SECRET}"\n')
    tokens = Tokens(config, capsys)

    token = tokens.mint("--kid", "a", "--private-key", str(key))

    facts = json.loads(tokens.inspect(token, "--json"))
    assert facts["header"] == {"alg": "EdDSA", "kid": "a", "typ": "JWT"}
    assert "--kid: a, b" in tokens.refusal()
    assert "choose one of a, b" in tokens.refusal("--kid", "c")
    for more in ([], ["--private-key", str(wrong)], ["--private-key", str(tmp_path / "none.pem")]):
        assert "--private-key" in tokens.refusal("--kid", "a", *more)
    config.write_text(signed)
    assert "--private-key" in tokens.refusal(), "an only key needs no --kid"


def test_a_lifetime_without_sense_is_wrong_usage(tokens: Tokens) -> None:
    for lifetime in ("0", "-1", "inf", "nan"):
        assert "--lifetime" in tokens.refusal("--lifetime", lifetime)


def test_a_token_is_minted_for_an_audience_and_with_an_id_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "hub.toml"
    config.write_text(f'[auth]\nenabled = true\nsecret = "{SECRET}"\naudience = "hub-1"\n')
    tokens = Tokens(config, capsys)

    first, second = (contents(tokens.mint())[1] for _ in range(2))
    other = tokens.mint("--audience", "hub-2")

    assert first["aud"] == "hub-1"
    assert len({first["jti"], second["jti"]}) == 2
    assert "`aud`" in tokens.inspect(other, code=1)


@pytest.mark.parametrize(("lifetime", "is_noted"), [("86400", False), ("86401", True)])
def test_a_lifetime_beyond_what_the_hub_accepts_is_noted(
    lifetime: str, is_noted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "hub.toml"
    config.write_text(f'[auth]\nenabled = true\nsecret = "{SECRET}"\n')

    assert run(["token", "mint", "a/b", "--lifetime", lifetime, "--config", str(config)]) == 0
    assert ("auth.token_age_max_s" in capsys.readouterr().err) is is_noted


def test_a_revoked_token_is_on_the_list_until_it_could_not_be_used_any_more(
    tokens: Tokens, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "hub.toml"
    config.write_text(f'data = "{tmp_path}/data"\n{config.read_text()}')
    path = tmp_path / "data" / "denied.jsonl"
    assert run(["token", "revoke", "--jti", "x", "--config", str(config)]) == 2
    assert "there is no hub in" in capsys.readouterr().err
    (tmp_path / "data" / "log").mkdir(parents=True)
    token = tokens.mint()
    claims = contents(token)[1]

    def revoke(*words: str, code: int = 0) -> str:
        assert run(["token", "revoke", *words, "--config", str(config)]) == code
        return "".join(capsys.readouterr())

    revoke(token, "--reason", "lost")
    path.write_text(f"# kept\n{path.read_text()}" + '{"jti":"ended","until":1}\n')
    revoke("--subject", "user 1", "--for", "60")
    revoke("--actor", "demo/bob")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith("# kept\n")
    assert "ended" not in path.read_text()
    assert run(["token", "denied", "--json", "--config", str(config)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["kind"], row["name"]) for row in rows] == [
        ("jti", claims["jti"]),
        ("sub", "user 1"),
        ("actor", "@(demo/bob)"),
    ]
    assert rows[0]["until"] == claims["iat"] + 7 * 86_400
    assert rows[2]["until"] is None
    assert "revoked" in tokens.inspect(token, code=1)
    assert "no jti" in revoke(f"{encoded(b'{}')}.{encoded(b'{}')}.x", code=2)
    for words in ([], [token, "--jti", "x"], ["--jti", "x", "--for", "0"]):
        revoke(*words, code=2)
    path.write_text("broken\n")
    assert "line 1" in revoke("--jti", "x", code=2)
    assert path.read_text() == "broken\n"


def test_keys_are_printed_as_a_set_that_tokens_are_checked_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = Ed25519PrivateKey.generate()
    key, sealed, keys = (tmp_path / name for name in ("one.pem", "none.pem", "keys.json"))
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    sealed.write_text("no key at all")
    config = tmp_path / "hub.toml"
    config.write_text(f'[auth]\nenabled = true\njwks_file = "{keys}"\n')

    assert run(["token", "jwks", str(key)]) == 0
    keys.write_text(capsys.readouterr().out)
    tokens = Tokens(config, capsys)
    token = tokens.mint("--kid", "one", "--private-key", str(key))

    assert "valid" in tokens.inspect(token)
    assert private.private_bytes_raw().hex() not in keys.read_text()
    assert run(["token", "jwks", str(sealed)]) == 2
    assert run(["token", "jwks"]) == 2


def test_minting_for_a_hub_with_a_key_set_only_asks_for_the_private_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "hub.toml"
    config.write_text('[auth]\nenabled = true\njwks_url = "https://issuer.example/keys"\n')

    said = Tokens(config, capsys).refusal()

    assert "only a key set" in said
    assert "--kid" in said
    assert "--private-key" in said
    assert "auth.secret" not in said
