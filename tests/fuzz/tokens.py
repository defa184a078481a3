"""Tokens, key sets and denial lists that were tampered with.

Invariant: a token is refused with `Refusal` and nothing else, or it says exactly what somebody with
the key has signed. Lists are refused with `SettingsError`, or read.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections import deque
from functools import partial
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt import PyJWS

from signalhub.auth import denials, key_sets
from signalhub.auth.session_tokens import SessionTokens
from signalhub.auth.tokens import Authenticator, Claims
from signalhub.settings.model import AuthSettings, Key
from signalhub.wire.errors import Refusal, SettingsError
from tests.fuzz.mutations import Damage

NOW_S: Final = 1_760_000_000.0
SECRET: Final = "a shared secret that is long enough for anybody"
OTHER_SECRET: Final = "another secret, which is not a key of this hub at all"
_PRIVATE: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_STRANGER: Final = Ed25519PrivateKey.from_private_bytes(bytes(32))
PUBLIC: Final = (
    _PRIVATE.public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    .decode()
)

BODY: Final[dict[str, Any]] = {
    "iss": "signal-hub",
    "sub": "somebody",
    "actorId": "fuzz/anybody",
    "iat": 1_759_999_000,
    "exp": 1_760_080_000,
    "nbf": 1_759_999_000,
    "aud": ["hub-1", "hub-2"],
    "jti": "t-1",
    "auth_time": 1_759_998_000,
    "capabilities": ["x"],
    "permissions": {"send": ["*"], "publish": ["prices/#"], "register": ["fuzz/*"]},
}
HEADER: Final[dict[str, Any]] = {"typ": "JWT", "alg": "HS256", "kid": "shared"}
ODD: Final[list[Any]] = [
    *(None, True, False, 0, 1, -1, 0.5, 1e308, -1e308, 10**40, 1_760_000_000, 1_759_000_000.5),
    *("", "x", "\0", "é", "\ud800", "@(x)", "fuzz/other", "cloudflare/signal-hub", "a" * 300, "*"),
    *("none", "None", "HS256", "HS512", "EdDSA", "RS256", "shared", "signed", "fuzz/*", "hub-1"),
    *([], {}, [[]], ["x"], {"send": ["*"]}, ["hub-1"], [None], {"kid": "shared"}, "#", "**/**"),
]
_TEXT: Final = [
    b".",
    b"..",
    b"=",
    b"-_",
    b"Bearer ",
    b" ",
    b"eyJ",
    b"\xff",
    b"\0",
    b"e30",
    b"bnVsbA",
]
LISTS: Final = [
    b'{"jti":"t-1","until":1796000000,"reason":"lost laptop"}\n# a comment\n\n{"sub":"user-4711"}\n'
    b'{"actor":"@(browser/ui-7)"}\n',
    b'{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","use":"sig","alg":"EdDSA","x":"'
    b'11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},{"kty":"RSA","n":"x","e":"AQAB"},'
    b'{"kty":"OKP","crv":"Ed25519","kid":"b","key_ops":["verify"],"x":'
    b'"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}',
]


def _encoded(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


class Forger(Damage):
    """Tokens: some signed with a key of the hub, whatever they say, and some changed after that."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, odd_text=_TEXT)
        self._signatures = PyJWS(algorithms=["HS256", "EdDSA"])
        self._recent: deque[tuple[bytes, bytes]] = deque(maxlen=100)
        self._sign = {
            "HS256": partial(self._signatures.encode, key=SECRET.encode(), algorithm="HS256"),
            "EdDSA": partial(self._signatures.encode, key=_PRIVATE, algorithm="EdDSA"),
        }

    def next(self) -> tuple[str, bytes | None]:
        """A token, and what its signature covers; `None` if nobody with a key has signed it."""
        body: Any = BODY
        for _ in range(self.below(3)):
            body = self.altered(body, ODD)
        signed = self._text_of(body)
        if self.is_likely(0.1):
            signed = self.damage(signed)
        kind = self.below(20)
        if kind == 0:
            # With the wrong key, or the public key as if it were a secret.
            key = self.pick([OTHER_SECRET.encode(), b"\0", PUBLIC.encode()[:-1] + b" "])
            return self._token(HEADER | {"alg": "HS256"}, signed, key), None
        if kind < 5:
            # The header says something else; the signature is right for HS256.
            return self._token(self.altered(HEADER, ODD), signed, SECRET.encode()), signed
        algorithm = "EdDSA" if kind == 5 else "HS256"
        kid = "signed" if algorithm == "EdDSA" else "shared"
        token = self._sign[algorithm](signed, headers={"kid": kid}).encode()
        self._recent.append((token.rsplit(b".", 1)[0], signed))
        changed = self.damaged(token, 0.6)
        # Damage may put together an earlier token, or only add what stands before tokens.
        start = changed.strip().removeprefix(b"Bearer ").strip().rsplit(b".", 1)[0]
        known = (body for covered, body in self._recent if covered == start)
        return changed.decode("latin-1"), next(known, None)

    def _token(self, header: Any, body: bytes, key: bytes) -> str:
        """As PyJWT would make it, for headers that it would refuse to write."""
        start = _encoded(self._text_of(header)) + b"." + _encoded(body)
        algorithm = self._signatures.get_algorithm_by_name("HS256")
        return (start + b"." + _encoded(algorithm.sign(start, key))).decode()

    def _text_of(self, value: Any) -> bytes:
        if self.is_likely(0.005):
            depth = self.below(2_000)
            return b'{"x":' + b"[" * depth + b"]" * depth + b"}"
        return json.dumps(value).encode()


def authenticator() -> Authenticator:
    keys = {"shared": Key(secret=SECRET), "signed": Key(algorithm="EdDSA", public_key=PUBLIC)}
    auth = AuthSettings(enabled=True, keys=keys, audience="hub-1")
    checks = Authenticator(auth)
    checks.use_denials(denials.Denials([denials.Denial(jti="t-2")]))
    return checks


class Gate:
    """Verifies tokens, and compares what is accepted with what was signed."""

    def __init__(self) -> None:
        self._authenticator = authenticator()
        self._sessions = SessionTokens(b"a secret of the tests")
        self.accepted = self.refused = 0

    def check(self, case: tuple[str, bytes | None]) -> None:
        token, signed = case
        try:
            claims = self._authenticator.verify(token, NOW_S)
        except Refusal:
            self.refused += 1
        else:
            self.accepted += 1
            assert signed is not None, "nobody has signed it"
            # Claims that the hub does not know need not even be text.
            _compare(claims, json.loads(signed.decode(errors="replace")))
            self._refresh(token, claims)
        try:
            self._sessions.check(token, "session-1", int(NOW_S * 1000))
        except Refusal:
            return
        raise AssertionError("it is no session token")

    def _refresh(self, token: str, claims: Claims) -> None:
        try:
            refreshed, _ = self._authenticator.refresh(token, claims, NOW_S)
        except Refusal:
            return
        again = self._authenticator.verify(refreshed, NOW_S)
        assert (again.actor, again.permissions, again.first_issued_at_s) == (
            claims.actor,
            claims.permissions,
            claims.first_issued_at_s,
        )


def _compare(claims: Claims, body: dict[str, Any]) -> None:
    assert claims.subject == body["sub"] != ""
    assert claims.actor == f"@({body['actorId']})"
    assert claims.expires_at_s > NOW_S >= claims.issued_at_s == body["iat"]
    assert body.get("exp") is None or claims.expires_at_s <= body["exp"]
    assert body["iss"] == "signal-hub"
    assert (body.get("jti") or "") == claims.jti != "t-2"
    given = body.get("permissions") or {}
    for verb in claims.permissions.__struct_fields__:
        allowed = getattr(claims.permissions, verb)
        assert not allowed or list(allowed) == list(given[verb])


class ListForger(Damage):
    """Denial lists and key sets."""

    def next(self) -> bytes:
        return self.damaged(self.pick(LISTS), 0.9)


def read_list(text: bytes) -> None:
    """Both readers get everything."""
    for read in (denials.read, key_sets.read):
        try:
            found = read(text)
        except SettingsError:
            continue
        assert len(found) <= text.count(b"{")
