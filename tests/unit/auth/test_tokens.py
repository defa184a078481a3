"""Tokens: who is let in, refused, refreshed, and what is minted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from signalhub.auth.permissions import Permissions
from signalhub.auth.session_tokens import TOKEN_CHARS_MAX, SessionTokens
from signalhub.auth.tokens import Authenticator, Claims, mint
from signalhub.settings.model import AuthSettings, Key
from signalhub.wire.errors import Code, Refusal, SettingsError

NOW_S = 1_760_000_000.5
SECRET = "a shared secret of the tests"
OTHER_SECRET = "another shared secret of the tests"


def pem_pair(private: Ed25519PrivateKey) -> tuple[str, str]:
    """Private and public key in PEM."""
    return (
        private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode(),
    )


ED_PRIVATE, ED_PUBLIC = pem_pair(Ed25519PrivateKey.from_private_bytes(b"\1" * 32))
CURVE_PUBLIC = (
    generate_private_key(SECP256R1())
    .public_key()
    .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    .decode()
)

KEYS = {
    "shared": Key(secret=OTHER_SECRET),
    "signed": Key(algorithm="EdDSA", public_key=ED_PUBLIC),
}
AUTH = AuthSettings(enabled=True, secret=SECRET, keys=KEYS)

GOOD: dict[str, Any] = {
    "iss": "signal-hub",
    "sub": "user-1",
    "actorId": "browser/ui-7",
    "iat": 1_760_000_000,
    "exp": 1_760_003_600,
    "permissions": {"send": ["*"]},
}


def encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def hmac_token(claims: object, secret: str = SECRET, **header: object) -> str:
    """A token made without the library under test."""
    head = {"alg": "HS256", "typ": "JWT", **header}
    signed = f"{encoded(json.dumps(head).encode())}.{encoded(json.dumps(claims).encode())}"
    digest = hmac.new(secret.encode(), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{encoded(digest)}"


def eddsa_token(claims: object, private: bytes = b"\1" * 32, **header: object) -> str:
    head = {"alg": "EdDSA", "kid": "signed", **header}
    if head["kid"] is None:
        del head["kid"]
    signed = f"{encoded(json.dumps(head).encode())}.{encoded(json.dumps(claims).encode())}"
    signature = Ed25519PrivateKey.from_private_bytes(private).sign(signed.encode())
    return f"{signed}.{encoded(signature)}"


def with_claims(**changes: object) -> dict[str, object]:
    return {**GOOD, **changes}


def signed(**changes: object) -> str:
    return hmac_token(with_claims(**changes))


def without(claim: str) -> dict[str, object]:
    return {name: value for name, value in GOOD.items() if name != claim}


def only(kid: str) -> AuthSettings:
    return AuthSettings(enabled=True, keys={kid: KEYS[kid]})


def refusal_of(token: str, auth: AuthSettings = AUTH, now_s: float = NOW_S) -> Refusal:
    with pytest.raises(Refusal) as caught:
        Authenticator(auth).verify(token, now_s)
    return caught.value


def test_a_good_token_tells_who_and_what() -> None:
    token = hmac_token(
        with_claims(
            capabilities=["plan"],
            permissions={"send": ["local/*"], "subscribe": ["a", "b/*"], "later": 7},
            extra="ignored",
        )
    )

    assert Authenticator(AUTH).verify(token, NOW_S) == Claims(
        subject="user-1",
        actor="@(browser/ui-7)",
        capabilities=("plan",),
        permissions=Permissions(send=("local/*",), subscribe=("a", "b/*")),
        issued_at_s=1_760_000_000,
        expires_at_s=1_760_003_600,
        kid=None,
        first_issued_at_s=1_760_000_000,
    )


@pytest.mark.parametrize(
    ("token", "auth", "kid"),
    [
        *((prefix + hmac_token(GOOD), AUTH, None) for prefix in ("Bearer ", "BEARER    ", "  ")),
        (hmac_token(GOOD, OTHER_SECRET, kid="shared"), AUTH, "shared"),
        (eddsa_token(GOOD), AUTH, "signed"),
        # An only key needs no kid.
        (hmac_token(GOOD, OTHER_SECRET), only("shared"), None),
        (eddsa_token(GOOD, kid=None), only("signed"), None),
    ],
)
def test_a_prefix_is_stripped_and_the_kid_chooses_the_key(
    token: str, auth: AuthSettings, kid: str | None
) -> None:
    claims = Authenticator(auth).verify(token, NOW_S)

    assert (claims.subject, claims.kid) == ("user-1", kid)


def test_missing_permissions_allow_nothing() -> None:
    claims = Authenticator(AUTH).verify(hmac_token(without("permissions")), NOW_S)

    assert claims.permissions == Permissions()


FORGED = "signature or algorithm"
ATTACKS = {
    "nothing": ("", "token is missing"),
    "only a prefix": ("bearer ", "token is missing"),
    "garbage": ("garbage", "not a JWT"),
    "two parts": ("a.b", "not a JWT"),
    "not ASCII": (hmac_token(GOOD) + "é", "not a JWT"),
    "not even Unicode": ("\ud800", "not a JWT"),
    "header is no object": (f"{encoded(b'[]')}.{encoded(b'{}')}.", "not a JWT"),
    "header is no JSON": (f"{encoded(b'{')}.{encoded(b'{}')}.", "not a JWT"),
    "header nested deeply": (f"{encoded(b'[' * 4000)}.{encoded(b'{}')}.AAAA", "not a JWT"),
    "huge": (signed(padding="x" * TOKEN_CHARS_MAX), "longer than"),
    "alg none": (
        ".".join((encoded(b'{"alg":"none"}'), encoded(json.dumps(GOOD).encode()), "")),
        FORGED,
    ),
    "alg none, signed": (hmac_token(GOOD, alg="none"), FORGED),
    "alg missing": (hmac_token(GOOD, alg=None), FORGED),
    "alg is a list": (hmac_token(GOOD, alg=["HS256"]), FORGED),
    "alg HS512": (hmac_token(GOOD, alg="HS512"), FORGED),
    "alg RS256": (hmac_token(GOOD, alg="RS256"), FORGED),
    "public key as secret": (hmac_token(GOOD, ED_PUBLIC, kid="signed"), FORGED),
    "public key as secret, stripped": (hmac_token(GOOD, ED_PUBLIC.strip(), kid="signed"), FORGED),
    "EdDSA for a shared secret": (eddsa_token(GOOD, kid="shared"), FORGED),
    "signed by somebody else": (eddsa_token(GOOD, b"\2" * 32), FORGED),
    "wrong secret": (hmac_token(GOOD, "guess"), FORGED),
    "empty secret": (hmac_token(GOOD, ""), FORGED),
    "kid of another key": (hmac_token(GOOD, SECRET, kid="shared"), FORGED),
    "secret of another key": (hmac_token(GOOD, OTHER_SECRET), FORGED),
    "unknown kid": (hmac_token(GOOD, kid="../../dev/null"), "is not a key"),
    "empty kid": (hmac_token(GOOD, kid=""), "is not a key"),
    "kid is a number": (hmac_token(GOOD, kid=7), "not a JWT"),
    "critical extension": (hmac_token(GOOD, crit=["exp"], exp=1), "not a JWT"),
    "signature missing": (hmac_token(GOOD).rpartition(".")[0] + ".", FORGED),
    "claims exchanged": (
        signed(sub="admin").rpartition(".")[0] + "." + hmac_token(GOOD).rpartition(".")[2],
        FORGED,
    ),
    "claims are no object": (hmac_token([1]), "claims"),
    "claims are no JSON": (hmac_token(GOOD).split(".")[0] + "." + encoded(b"{") + ".AAAA", FORGED),
    "expired": (signed(exp=int(NOW_S)), "expired"),
    "older than a day": (signed(iat=int(NOW_S) - 86_401, exp=int(NOW_S) + 10**6), "expired"),
    "not valid yet": (signed(nbf=int(NOW_S) + 1), "`nbf`"),
    "issued in the future": (signed(iat=int(NOW_S) + 1), "`iat`"),
    "other issuer": (signed(iss="signal-hub2"), "`iss`"),
    "empty subject": (signed(sub=""), "`sub`"),
    "empty actor": (signed(actorId=""), "`actorId`"),
    "actor as an address": (signed(actorId="@(a/b)"), "`actorId`"),
    "actor too long": (signed(actorId="a" * 300), "`actorId`"),
    "actor unprintable": (signed(actorId="a\nb"), "`actorId`"),
    "iss missing": (hmac_token(without("iss")), "iss"),
    "sub missing": (hmac_token(without("sub")), "sub"),
    "actorId missing": (hmac_token(without("actorId")), "actorId"),
    "iat missing": (hmac_token(without("iat")), "iat"),
    "sub is a number": (signed(sub=7), "sub"),
    "actorId is null": (signed(actorId=None), "actorId"),
    "actorId is a list": (signed(actorId=["a"]), "actorId"),
    "iat is text": (signed(iat="1760000000"), "iat"),
    "iat is true": (signed(iat=True), "iat"),
    "exp is text": (signed(exp="never"), "exp"),
    "exp is infinite": (signed(exp=float("inf")), "claims"),
    "nbf is text": (signed(nbf="0"), "nbf"),
    "capabilities are text": (signed(capabilities="*"), "capabilities"),
    "permissions are a list": (signed(permissions=["*"]), "permissions"),
    "a permission is text": (signed(permissions={"send": "*"}), "send"),
    "a pattern is a number": (signed(permissions={"send": [1]}), "send"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_bad_token_is_refused_by_the_check_it_fails_and_never_repeated(attack: str) -> None:
    token, failed_check = ATTACKS[attack]

    refusal = refusal_of(token)

    assert refusal.code == Code.UNAUTHORIZED
    assert failed_check in refusal.message
    assert refusal.resolution
    assert not refusal.retryable
    assert refusal.__cause__ is None
    text = f"{refusal.message} {refusal.resolution} {refusal.details} {refusal!r}"
    assert not any(len(part) > 3 and part in text for part in token.split("."))
    assert "dev/null" not in text


def test_times_have_no_tolerance_and_a_token_ends_by_its_age_at_the_latest() -> None:
    verify = Authenticator(AUTH).verify
    token = hmac_token(with_claims(iat=1_000, nbf=1_005, exp=1_010))
    lasting = hmac_token({**without("exp"), "iat": 1_000})
    late = hmac_token(with_claims(iat=1_000, exp=1_000_000))

    verify(token, 1_005)
    verify(token, 1_009.999)
    assert "`iat`" in refusal_of(token, now_s=999.999).message
    assert "`nbf`" in refusal_of(token, now_s=1_004.999).message
    assert "`exp`" in refusal_of(token, now_s=1_010).message
    assert verify(lasting, 1_000 + 86_400).expires_at_s == 1_000 + 86_400
    assert "older" in refusal_of(lasting, now_s=1_000 + 86_400.5).message
    assert verify(late, 2_000).expires_at_s == 1_000 + 86_400


def test_several_keys_and_no_kid_is_refused() -> None:
    refusal = refusal_of(hmac_token(GOOD), AuthSettings(enabled=True, keys=KEYS))

    assert "no `kid`" in refusal.message


@pytest.mark.parametrize(
    ("auth", "named"),
    [
        (AuthSettings(enabled=True), "auth.secret"),
        (AuthSettings(enabled=True, keys={"k": Key()}), "auth.keys.k.secret"),
        (AuthSettings(enabled=True, keys={"k": Key(algorithm="EdDSA")}), "auth.keys.k.public_key"),
        (
            AuthSettings(enabled=True, keys={"k": Key(algorithm="EdDSA", public_key=ED_PRIVATE)}),
            "auth.keys.k.public_key",
        ),
        (
            AuthSettings(enabled=True, keys={"k": Key(algorithm="EdDSA", public_key=CURVE_PUBLIC)}),
            "auth.keys.k.public_key",
        ),
    ],
)
def test_unusable_keys_are_named(auth: AuthSettings, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        Authenticator(auth)


def test_refreshing_signs_a_longer_token_for_the_same_actor() -> None:
    authenticator = Authenticator(AUTH)
    token = hmac_token(with_claims(capabilities=["plan"]), OTHER_SECRET, kid="shared")
    session = authenticator.verify(token, NOW_S)
    later_s = NOW_S + 3_000

    refreshed, expires_at_ms = authenticator.refresh(f"Bearer {token}", session, later_s)

    claims = authenticator.verify(refreshed, later_s)
    assert expires_at_ms == (int(later_s) + 3_600) * 1000 == claims.expires_at_s * 1000
    assert (claims.actor, claims.subject, claims.capabilities, claims.permissions, claims.kid) == (
        session.actor,
        session.subject,
        session.capabilities,
        session.permissions,
        "shared",
    )
    assert "expired" in refusal_of(refreshed, now_s=expires_at_ms / 1000).message


def test_refreshing_an_eddsa_token_confirms_it_with_its_own_expiry() -> None:
    authenticator = Authenticator(AUTH)
    token = eddsa_token(with_claims(exp=1_760_000_900))
    session = authenticator.verify(eddsa_token(GOOD), NOW_S)

    assert authenticator.refresh(token, session, NOW_S) == (token, 1_760_000_900_000)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (hmac_token(with_claims(actorId="browser/ui-8")), "another actor"),
        (hmac_token(with_claims(exp=1)), "expired"),
        (hmac_token(GOOD, "guess"), "signature"),
        ("", "token is missing"),
    ],
)
def test_refreshing_fails_with_invalid_token(token: str, reason: str) -> None:
    authenticator = Authenticator(AUTH)
    session = authenticator.verify(hmac_token(GOOD), NOW_S)

    with pytest.raises(Refusal, match=reason) as caught:
        authenticator.refresh(token, session, NOW_S)

    assert caught.value.code == Code.INVALID_TOKEN


WANTED: dict[str, Any] = {
    "subject": "operator",
    "actor": "service/planner",
    "permissions": {"send": ["*"], "publish": ["prices/*"]},
    "lifetime_s": 60,
    "issuer": "signal-hub",
    "now_s": NOW_S,
    "capabilities": ["plan"],
}


@pytest.mark.parametrize(
    ("key", "kid", "changes"),
    [
        (Key(secret=SECRET), None, {"actor": "@(service/planner)"}),
        (KEYS["shared"], "shared", {}),
        (KEYS["signed"], "signed", {"private_key": ED_PRIVATE}),
    ],
)
def test_a_minted_token_is_accepted(key: Key, kid: str | None, changes: dict[str, str]) -> None:
    claims = Authenticator(AUTH).verify(mint(key, kid=kid, **WANTED | changes), NOW_S)

    assert (claims.actor, claims.subject) == ("@(service/planner)", "operator")
    assert (claims.capabilities, claims.kid) == (("plan",), kid)
    assert claims.permissions == Permissions(send=("*",), publish=("prices/*",))
    assert claims.expires_at_s == int(NOW_S + 60)


@pytest.mark.parametrize(
    ("key", "changes", "complaint"),
    [
        (Key(secret=SECRET), {"permissions": {"sned": ["*"]}}, "sned"),
        (Key(secret=SECRET), {"subject": ""}, "subject"),
        (Key(secret=SECRET), {"actor": "@()"}, "actor"),
        (Key(), {}, "shared secret"),
        (Key(secret=ED_PUBLIC), {}, "shared secret"),
        (KEYS["signed"], {}, "private key"),
        (KEYS["signed"], {"private_key": ED_PUBLIC}, "private key"),
        (KEYS["signed"], {"private_key": "garbage"}, "private key"),
    ],
)
def test_what_no_hub_would_accept_is_not_minted(
    key: Key, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        mint(key, kid=None, **WANTED | changes)


def test_a_session_token_is_good_for_its_session_until_it_expires() -> None:
    tokens = SessionTokens(b"secret")
    token = tokens.issue("session-1", 1_000, 500)

    tokens.check(token, "session-1", 1_499)

    with pytest.raises(Refusal, match="expired"):
        tokens.check(token, "session-1", 1_500)
    with pytest.raises(Refusal, match="another session"):
        tokens.check(token, "session-2", 1_000)
    wrapped = token.removeprefix("stkn-")
    told = base64.urlsafe_b64decode(wrapped + "=" * (-len(wrapped) % 4)).decode()
    assert told.startswith("session-1:1000:1500:")


def stkn(text: str) -> str:
    return "stkn-" + encoded(text.encode())


@pytest.mark.parametrize(
    "token",
    [
        "",
        "stkn-",
        "stkn-é",
        "stkn-!!!!",
        stkn("session-1:1000:9000"),
        stkn("session-1:1000:9000:"),
        stkn("session-1:1000:9000:" + "0" * 64),
        stkn("session-1:x:9000:" + "0" * 64),
        stkn("session-1:1000:" + "9" * 5_000 + ":0"),
        stkn("session-1:1000:9000:" + "0" * 9_000),
        SessionTokens(b"other").issue("session-1", 1_000, 500),
        SessionTokens(b"secret").issue("session-1", 1_000, 500) + "=",
        SessionTokens(b"secret").issue("session-1", 1_000, 500).removeprefix("stkn-"),
    ],
)
def test_a_forged_session_token_is_refused(token: str) -> None:
    with pytest.raises(Refusal) as caught:
        SessionTokens(b"secret").check(token, "session-1", 1_000)

    assert caught.value.code == Code.INVALID_TOKEN


def test_the_guide_makes_tokens_the_hub_accepts() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "authentication.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (settings,) = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    (secret,) = re.findall(r'jwt.encode\(claims, "(.*?)"', program)
    made: dict[str, Any] = {}

    exec(program, made)

    authenticator = Authenticator(AuthSettings(enabled=True, secret=secret))
    claims = authenticator.verify(made["token"], made["claims"]["iat"])
    assert claims.actor == "@(browser/ui-7)"
    assert claims.permissions.subscribe == ("prices/*",)
    Authenticator(msgspec.convert(tomllib.loads(settings)["auth"], AuthSettings))
