"""Tokens that rooms have verified before: when they are believed without looking again."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from signalhub.auth.denials import Denial, Denials
from signalhub.auth.tokens import Authenticator, mint
from signalhub.core.rooms.access import VerifiedTokens
from signalhub.settings.model import AuthSettings, Key
from signalhub.wire.errors import Refusal

NOW_S = 1_800_000_000.0
SECRET = Key(secret="correct horse battery staple")
ISSUER = AuthSettings().issuer


def token(key: Key = SECRET, **changes: Any) -> str:
    about: dict[str, Any] = {
        "kid": None,
        "subject": "alice",
        "actor": "@(demo/alice)",
        "permissions": {"rooms": ["*"]},
        "lifetime_s": 60.0,
        "issuer": ISSUER,
        "now_s": NOW_S,
        "jti": "one",
    }
    return mint(key, **about | changes)


class Watched(Authenticator):
    """Counts how often a signature is checked."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(AuthSettings(enabled=True, **settings))
        self.checked = 0

    def verify(self, token: str, now_s: float) -> Any:
        self.checked += 1
        return super().verify(token, now_s)


@pytest.fixture
def authenticator() -> Watched:
    return Watched(secret=SECRET.secret)


def test_a_token_is_verified_once_while_nothing_changes(authenticator: Watched) -> None:
    tokens = VerifiedTokens()
    first = tokens.verified(token(), authenticator, NOW_S + 1)

    assert tokens.verified(token(), authenticator, NOW_S + 59) == first
    assert first.claims.subject == "alice"
    assert authenticator.checked == 1


@pytest.mark.parametrize(
    "denial", [Denial(jti="one"), Denial(sub="alice"), Denial(actor="@(demo/alice)")]
)
def test_a_denied_token_is_refused_at_once_however_fresh_it_is(
    authenticator: Watched, denial: Denial
) -> None:
    tokens = VerifiedTokens()
    tokens.verified(token(), authenticator, NOW_S + 1)
    authenticator.use_denials(Denials([denial]))

    with pytest.raises(Refusal, match="revoked"):
        tokens.verified(token(), authenticator, NOW_S + 1)
    assert len(tokens) == 0


@pytest.mark.parametrize("now_s", [NOW_S + 60, NOW_S + 10**6, NOW_S - 1])
def test_a_token_is_refused_after_its_end_and_when_the_clock_is_before_its_beginning(
    authenticator: Watched, now_s: float
) -> None:
    tokens = VerifiedTokens()
    tokens.verified(token(), authenticator, NOW_S + 1)

    with pytest.raises(Refusal):
        tokens.verified(token(), authenticator, now_s)


def test_a_token_whose_key_has_left_the_key_set_is_refused() -> None:
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    signed = token(Key(algorithm="EdDSA"), kid="old", private_key=pem)
    authenticator, tokens = Watched(jwks_url="https://issuer.example/keys"), VerifiedTokens()
    authenticator.use_key_set({"old": private.public_key()})
    tokens.verified(signed, authenticator, NOW_S + 1)
    authenticator.use_key_set({"new": Ed25519PrivateKey.generate().public_key()})

    with pytest.raises(Refusal, match="kid"):
        tokens.verified(signed, authenticator, NOW_S + 1)


def test_tokens_beyond_the_limit_replace_the_longest_unused(authenticator: Watched) -> None:
    tokens = VerifiedTokens()
    kept, first = token(jti="kept"), token(jti="first")
    for text in (first, kept):
        tokens.verified(text, authenticator, NOW_S + 1)
    for number in range(600):
        tokens.verified(token(jti=str(number)), authenticator, NOW_S + 1)
        tokens.verified(kept, authenticator, NOW_S + 1)
    checked = authenticator.checked
    tokens.verified(kept, authenticator, NOW_S + 1)
    assert authenticator.checked == checked
    tokens.verified(first, authenticator, NOW_S + 1)

    assert authenticator.checked == checked + 1
    assert len(tokens) == 512


def test_a_forged_token_is_refused_and_not_remembered(authenticator: Watched) -> None:
    tokens = VerifiedTokens()
    tokens.verified(token(), authenticator, NOW_S + 1)
    head, body, _ = token().split(".")

    with pytest.raises(Refusal, match="signature"):
        tokens.verified(f"{head}.{body}.AAAA", authenticator, NOW_S + 1)
    assert len(tokens) == 1
