"""`signalhub token`: what is minted is accepted, what is not is explained."""

from __future__ import annotations

import io
import json
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
from signalhub.operate.token import actor_of

SECRET = "correct horse battery staple"


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "hub.toml"
    path.write_text(f'[auth]\nenabled = true\nsecret = "{SECRET}"\n')
    return str(path)


def minted(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["token", "mint", *arguments]) == 0
    return capsys.readouterr().out.strip()


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    code = run(["token", "inspect", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_a_minted_token_is_valid_and_says_what_was_asked_for(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    permissions = ["--send", "demo/*", "--send", "ops/*", "--publish", "*", "--create", "orders*"]
    token = minted(capsys, "demo/alice", *permissions, "--config", config)

    code, facts = inspected(capsys, token, "--config", config)

    claims = facts["claims"]
    assert isinstance(claims, dict)
    assert (code, facts["valid"]) == (0, True)
    assert claims["actorId"] == "demo/alice"
    assert claims["sub"] == "demo/alice"
    assert claims["permissions"]["send"] == ["demo/*", "ops/*"]
    assert claims["permissions"]["create"] == ["orders*"]
    assert claims["permissions"].get("subscribe", []) == []
    assert claims["exp"] - claims["iat"] == 3600
    assert actor_of(token) == actor_of(f"Bearer {token}\n") == "@(demo/alice)"


def test_a_token_of_another_hub_is_refused_with_the_reason(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = minted(capsys, "demo/alice", "--config", config)
    other = tmp_path / "other.toml"
    other.write_text('[auth]\nenabled = true\nsecret = "quite another shared secret"\n')

    code, facts = inspected(capsys, token, "--config", str(other))

    assert (code, facts["valid"]) == (1, False)
    assert "signature" in str(facts["reason"])


def test_a_token_is_read_from_standard_input_or_the_variable(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = minted(capsys, "demo/alice", "--config", config)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(token.encode() + b"\n")))
    assert inspected(capsys, "-", "--config", config)[0] == 0
    monkeypatch.setenv("SIGNALHUB_TOKEN", token)
    assert inspected(capsys, "--config", config)[0] == 0


def test_people_see_claims_times_and_verdict(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    token = minted(capsys, "demo/alice", "--subject", "alice", "--config", config)

    assert run(["token", "inspect", token, "--config", config]) == 0

    lines = dict(line.split("\t", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["sub"] == "alice"
    assert lines["verdict"] == "valid"
    assert ":" in lines["exp"]


@pytest.mark.parametrize("token", ["nonsense", "a.b.c", "e30.W10.x", "é.é.é"])
def test_what_is_no_token_is_said_to_be_none(
    token: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["token", "inspect", token, "--config", config]) == 1
    assert "not a JWT" in capsys.readouterr().err
    assert actor_of(token) is None


def test_an_eddsa_token_is_signed_with_the_private_key_of_its_kid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    key_file, config = tmp_path / "key.pem", tmp_path / "hub.toml"
    key_file.write_bytes(pem)
    config.write_text(
        f'[auth.keys.a]\nalgorithm = "EdDSA"\npublic_key = """{public.decode()}"""\n'
        f'[auth.keys.b]\nsecret = "{SECRET}"\n'
    )
    options = ["--config", str(config)]

    token = minted(capsys, "demo/alice", "--kid", "a", "--private-key", str(key_file), *options)
    code, facts = inspected(capsys, token, *options)

    assert code == 0
    assert facts["header"] == {"alg": "EdDSA", "kid": "a", "typ": "JWT"}
    assert run(["token", "mint", "demo/alice", *options]) == 2
    assert "--kid: a, b" in capsys.readouterr().err
    assert run(["token", "mint", "demo/alice", "--kid", "c", *options]) == 2
    assert "choose one of a, b" in capsys.readouterr().err


def test_minting_with_eddsa_says_that_the_private_half_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    config, wrong = tmp_path / "hub.toml", tmp_path / "wrong.pem"
    config.write_text(f'[auth.keys.a]\nalgorithm = "EdDSA"\npublic_key = """{public.decode()}"""\n')
    wrong.write_text("no key at all")
    options = ["--config", str(config)]

    for more in ([], ["--private-key", str(wrong)], ["--private-key", str(tmp_path / "none.pem")]):
        assert run(["token", "mint", "demo/alice", *options, *more]) == 2
        assert "--private-key" in capsys.readouterr().err


def test_a_lifetime_without_sense_is_wrong_usage(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for lifetime in ("0", "-1", "inf", "nan"):
        assert run(["token", "mint", "demo/a", "--lifetime", lifetime, "--config", config]) == 2
        assert "--lifetime" in capsys.readouterr().err
