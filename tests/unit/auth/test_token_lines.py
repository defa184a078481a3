"""Tokens over their life: for whom they are, how often they are refreshed, and their revocation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from signalhub.auth import denials, key_sets
from signalhub.auth.denials import Denial, Denials
from signalhub.auth.tokens import Authenticator, mint
from signalhub.operate.tokens.token import contents
from signalhub.settings.model import AuthSettings, Key
from signalhub.wire.base64url import encoded
from signalhub.wire.errors import Refusal, SettingsError

NOW_S = 1_760_000_000.0
DAY_S = 86_400.0
SECRET = "a shared secret of the tests, long enough"
PAIRS = [Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in range(1, 4)]


def settings(**changes: Any) -> AuthSettings:
    return AuthSettings(enabled=True, secret=SECRET, **changes)


def minted(now_s: float = NOW_S, lifetime_s: float = 3600, **facts: Any) -> str:
    given: dict[str, Any] = {"kid": None, "subject": "alice", "actor": "@(demo/alice)"}
    given |= {"permissions": {"send": ["*"]}, "issuer": "signal-hub"} | facts
    return mint(Key(secret=SECRET), lifetime_s=lifetime_s, now_s=now_s, **given)


def refusal(auth: Authenticator, token: str, now_s: float = NOW_S) -> str:
    with pytest.raises(Refusal) as caught:
        auth.verify(token, now_s)
    assert caught.value.code == "unauthorized"
    return caught.value.message


@pytest.mark.parametrize(
    ("configured", "given", "is_for_us"),
    [
        ((), None, True),
        ((), "hub-1", False),
        ("hub-1", "hub-1", True),
        ("hub-1", None, False),
        ("hub-1", "hub-2", False),
        ("hub-1", "hub-10", False),
        (("hub-1", "hub-2"), "hub-2", True),
    ],
)
def test_a_token_is_accepted_by_the_hub_it_names(
    configured: str | tuple[str, ...], given: str | None, is_for_us: bool
) -> None:
    hub = Authenticator(settings(audience=configured))
    token = minted(audience=given or "")

    if is_for_us:
        assert hub.verify(token, NOW_S).subject == "alice"
    else:
        assert "`aud`" in refusal(hub, token)


def test_an_audience_may_be_a_list_and_its_refreshed_token_keeps_it() -> None:
    from jwt import PyJWS

    claims = contents(minted())[1]
    others = PyJWS().encode(json.dumps(claims | {"aud": ["x", "y"]}).encode(), SECRET, "HS256")
    ours = PyJWS().encode(json.dumps(claims | {"aud": ["x", "hub-1"]}).encode(), SECRET, "HS256")
    nobody = PyJWS().encode(json.dumps(claims | {"aud": []}).encode(), SECRET, "HS256")
    hub = Authenticator(settings(audience="hub-1"))

    refreshed, _ = hub.refresh(ours, hub.verify(ours, NOW_S), NOW_S)

    assert contents(refreshed)[1]["aud"] == ["x", "hub-1"]
    assert hub.verify(refreshed, NOW_S)
    assert "`aud`" in refusal(hub, others)
    assert "`aud`" in refusal(Authenticator(settings()), nobody)


def test_a_line_of_refreshed_tokens_keeps_its_jti_and_ends() -> None:
    hub = Authenticator(settings(refreshed_token_s=3600, refresh_max_s=DAY_S))
    token, now_s = minted(lifetime_s=5, jti="line-1"), NOW_S
    session = hub.verify(token, now_s)
    now_s += 4

    for _ in range(25):
        token, expires_ms = hub.refresh(token, session, now_s)
        claims = contents(token)[1]
        assert (claims["jti"], claims["auth_time"], claims["iat"]) == ("line-1", NOW_S, now_s)
        assert expires_ms / 1000 == claims["exp"] <= NOW_S + DAY_S
        now_s = claims["exp"] - 1

    assert claims["exp"] == NOW_S + DAY_S
    with pytest.raises(Refusal, match="expired"):
        hub.refresh(token, session, NOW_S + DAY_S)
    # A token that is valid longer than its line is not refreshed after the end of it either.
    lasting = minted(lifetime_s=10 * DAY_S)
    older = Authenticator(settings(refresh_max_s=DAY_S / 2))
    with pytest.raises(Refusal, match="too long ago"):
        older.refresh(lasting, older.verify(lasting, NOW_S), NOW_S + DAY_S / 2)


def test_a_token_cannot_claim_a_later_beginning_than_its_own() -> None:
    from jwt import PyJWS

    claims = contents(minted())[1] | {"auth_time": NOW_S + DAY_S}
    token = PyJWS().encode(json.dumps(claims).encode(), SECRET, "HS256")

    assert Authenticator(settings()).verify(token, NOW_S).first_issued_at_s == NOW_S


@pytest.mark.parametrize(
    "entry", [{"jti": "line-1"}, {"sub": "alice"}, {"actor": "@(demo/alice)"}], ids=str
)
def test_denied_tokens_are_refused_and_not_refreshed_until_the_entry_ends(
    entry: dict[str, Any],
) -> None:
    hub = Authenticator(settings())
    token, other = minted(jti="line-1"), minted(jti="l", subject="bob", actor="@(demo/bob)")
    session = hub.verify(token, NOW_S)
    refreshed, _ = hub.refresh(token, session, NOW_S)

    hub.use_denials(Denials([Denial(**entry, until=NOW_S + 60), Denial(jti="other")]))

    for denied in (token, refreshed):
        assert refusal(hub, denied) == "The token has been revoked."
        with pytest.raises(Refusal, match="revoked"):
            hub.refresh(denied, session, NOW_S)
    assert hub.is_denied(session, NOW_S + 59)
    assert not hub.is_denied(session, NOW_S + 60)
    assert hub.verify(token, NOW_S + 60)
    assert hub.verify(other, NOW_S)
    # A token without a `jti` is not the one whose `jti` is empty.
    assert hub.verify(minted(subject="eve", actor="@(demo/eve)"), NOW_S)


def test_a_denial_list_is_read_as_it_is_written() -> None:
    entries = [
        Denial(jti="a", until=5, reason="lost"),
        Denial(sub="user 1"),
        Denial(actor="@(a/b)"),
    ]

    assert denials.read(b"# who and why\n\n" + denials.write(entries)) == entries
    assert len(Denials(entries)) == 3
    assert denials.read(b"") == []


@pytest.mark.parametrize(
    "line",
    [
        b"jti",
        b"[]",
        b"{}",
        b'{"jit":"a"}',
        b'{"jti":""}',
        b'{"jti":7}',
        b'{"jti":"a","sub":"b"}',
        b'{"jti":"a","until":"tomorrow"}',
        b'{"actor":"demo"}',
        b"\xff",
        b"[" * 5000,
    ],
)
def test_a_broken_line_breaks_the_whole_list_and_is_named(line: bytes) -> None:
    with pytest.raises(SettingsError, match="line 2: "):
        denials.read(b'{"jti":"good"}\n' + line + b"\n")


def jwk(number: int, **changes: Any) -> dict[str, Any]:
    x = encoded(PAIRS[number].public_key().public_bytes_raw())
    return {"kty": "OKP", "crv": "Ed25519", "kid": f"k{number}", "x": x} | changes


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def signed(number: int, kid: str | None = None) -> str:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    pem = PAIRS[number].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return mint(
        Key(algorithm="EdDSA"),
        kid=kid or f"k{number}",
        subject="alice",
        actor="@(demo/alice)",
        permissions={},
        lifetime_s=60,
        issuer="signal-hub",
        now_s=NOW_S,
        private_key=pem,
    )


def test_keys_of_a_set_rotate_and_a_missed_one_is_reported_once() -> None:
    hub = Authenticator(AuthSettings(enabled=True, jwks_url="https://issuer.example/keys"))
    with pytest.raises(Refusal, match="`kid`") as refused:
        hub.verify(signed(0), NOW_S)
    assert refused.value.resolution.startswith("Try again in ten seconds")
    assert hub.take_missed_key()
    assert not hub.take_missed_key()

    hub.use_key_set(key_sets.read(key_set(jwk(0), jwk(1))))
    assert hub.verify(signed(0), NOW_S)
    assert hub.verify(signed(1), NOW_S)

    hub.use_key_set(key_sets.read(key_set(jwk(1), jwk(2))))
    assert "`kid`" in refusal(hub, signed(0))
    assert hub.verify(signed(2), NOW_S)


def test_a_set_neither_replaces_a_key_of_the_settings_nor_brings_another_algorithm() -> None:
    shared = Key(secret="another shared secret of the tests")
    hub = Authenticator(settings(keys={"k0": shared}, jwks_file="keys.json"))
    hub.use_key_set(key_sets.read(key_set(jwk(0), jwk(1))))
    assert "does not match" in refusal(hub, signed(0))

    x = jwk(1)["x"]
    with pytest.raises(SettingsError, match="no Ed25519 key"):
        key_sets.read(
            key_set(
                {"kty": "oct", "kid": "k1", "k": x, "alg": "HS256"},
                jwk(1, crv="X25519"),
                jwk(1, use="enc"),
                jwk(1, alg="HS256"),
                jwk(1, key_ops=["sign"]),
                jwk(1, x="AAAA"),
                jwk(1, x=7),
                jwk(1, kid=""),
                jwk(1, kid=7),
                {},
            )
        )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"keys":{}}',
        b'{"keys":[1]}',
        b"[" * 9_000,
        key_set(),
        key_set(jwk(0), jwk(1, kid="k0")),
        key_set(*[jwk(0, kid=str(n)) for n in range(300)]),
        key_set(jwk(0)) + b" " * 2**18,
    ],
    ids=range(9),
)
def test_a_set_that_cannot_be_used_is_refused(text: bytes) -> None:
    with pytest.raises(SettingsError):
        key_sets.read(text)
