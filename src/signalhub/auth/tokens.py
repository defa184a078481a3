"""Tokens: who a client is, and what it may do.

With authentication on, a client presents a JWT. The key is chosen by the token's `kid` and
determines the algorithm, so a token cannot choose how it is checked. PyJWT checks only the
signature; times are compared with the caller's time, without tolerance. Refusals name the failed
check and never repeat a part of the token.

A refreshed token keeps its `jti`, and as `auth_time` when the first of its line was issued, so that
a line can be denied as a whole and ends after `auth.refresh_max_s`. Keys of a key set and the
denial list change while the hub runs; the shell hands them over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from jwt import PyJWS, PyJWTError
from jwt.algorithms import HMACAlgorithm

from signalhub.auth.denials import NOBODY_DENIED, Denials
from signalhub.auth.permissions import Permissions
from signalhub.auth.session_tokens import TOKEN_CHARS_MAX, invalid_token
from signalhub.settings.model import AuthSettings, Key
from signalhub.wire import names
from signalhub.wire.errors import Code, Refusal, SettingsError

HS256 = "HS256"
EDDSA = "EdDSA"

_BEARER = "bearer "


class Claims(msgspec.Struct, frozen=True):
    """What a verified token says."""

    subject: str
    actor: str  # The address.
    capabilities: tuple[str, ...]
    permissions: Permissions
    issued_at_s: float
    expires_at_s: float  # The earlier of its `exp` and the end of the age the hub accepts.
    kid: str | None
    jti: str = ""  # Empty if it has none.
    first_issued_at_s: float = 0.0  # Earlier than `issued_at_s` if it was refreshed.


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claims on the wire; unknown ones are ignored."""

    iss: str
    sub: str
    actor_id: str = msgspec.field(name="actorId")
    iat: int | float
    exp: int | float | None = None
    nbf: int | float | None = None
    aud: str | tuple[str, ...] | None = None
    jti: str | None = None
    auth_time: int | float | None = None
    capabilities: tuple[str, ...] = ()
    permissions: Permissions = Permissions()


class _ConfiguredHs256(HMACAlgorithm):
    """HS256 without PyJWT's check for short secrets: the settings have their own."""

    def __init__(self) -> None:
        super().__init__(HMACAlgorithm.SHA256)

    def check_key_length(self, key: bytes) -> None:
        return None


def _signatures() -> PyJWS:
    signatures = PyJWS(algorithms=[EDDSA])
    signatures.register_algorithm(HS256, _ConfiguredHs256())
    return signatures


_SIGNATURES = _signatures()
_decode_body = msgspec.json.Decoder(_Body).decode


class _VerifyingKey(msgspec.Struct, frozen=True):
    algorithm: str
    material: bytes | Ed25519PublicKey


class Authenticator:
    """Verifies tokens with the keys of the settings."""

    def __init__(self, auth: AuthSettings) -> None:
        self._issuer = auth.issuer
        self._audience = frozenset(auth.audiences)
        self._age_s_max = auth.token_age_max_s
        self._refreshed_s = auth.refreshed_token_s
        self._refresh_s_max = auth.refresh_max_s
        self._has_key_set = bool(auth.jwks_file or auth.jwks_url)
        self._key_set: dict[str, _VerifyingKey] = {}
        self.key_sets_used = 0  # Whoever remembers a verified token forgets it when this changes.
        self._denials = NOBODY_DENIED
        self._is_key_missed = False
        self._keys = {
            kid: _verifying_key(f"auth.keys.{kid}", key) for kid, key in auth.keys.items()
        }
        self._key_without_kid: _VerifyingKey | None = None
        if auth.secret:
            self._key_without_kid = _verifying_key("auth", Key(secret=auth.secret))
        elif len(self._keys) == 1:
            (self._key_without_kid,) = self._keys.values()
        if not self._keys and not self._key_without_kid and not self._has_key_set:
            raise SettingsError(
                "auth: no key is configured; set auth.secret or add one to auth.keys"
            )

    def use_key_set(self, keys: Mapping[str, Ed25519PublicKey]) -> None:
        """Replace the keys of the key set; those of the settings come first."""
        self._key_set = {kid: _VerifyingKey(EDDSA, key) for kid, key in keys.items()}
        self.key_sets_used += 1

    def take_missed_key(self) -> bool:
        """Did a token since the last call name a key that may be in a newer key set?"""
        is_missed, self._is_key_missed = self._is_key_missed, False
        return is_missed

    def use_denials(self, denials: Denials) -> None:
        """Replace the denial list."""
        self._denials = denials

    def is_denied(self, claims: Claims, now_s: float) -> bool:
        """Has a token been denied since it was verified?"""
        return self._denials.covers(claims, now_s)

    def verify(self, token: str, now_s: float) -> Claims:
        """The claims of a valid token; raises `Refusal` with `unauthorized` for any other."""
        token = _bare(token)
        kid, key = self._key_of(token)
        body = self._checked(_signed_body(token, key), now_s)
        aged_out_s = body.iat + self._age_s_max
        claims = Claims(
            subject=body.sub,
            actor=f"@({body.actor_id})",
            capabilities=body.capabilities,
            permissions=body.permissions,
            issued_at_s=body.iat,
            expires_at_s=aged_out_s if body.exp is None else min(body.exp, aged_out_s),
            kid=kid,
            jti=body.jti or "",
            first_issued_at_s=body.iat if body.auth_time is None else min(body.auth_time, body.iat),
        )
        if self._denials.covers(claims, now_s):
            raise _unauthorized("The token has been revoked.")
        return claims

    def refresh(self, token: str, session: Claims, now_s: float) -> tuple[str, int]:
        """The token to use from now on and its expiry in milliseconds.

        The hub can sign a new one only with a shared secret; an EdDSA token is returned unchanged.
        Raises `Refusal` with `invalid_token`.
        """
        try:
            claims = self.verify(token, now_s)
        except Refusal as refusal:
            raise invalid_token(refusal.message) from None
        if claims.actor != session.actor:
            raise invalid_token("The token belongs to another actor than this session.")
        _, key = self._key_of(_bare(token))
        if not isinstance(key.material, bytes):
            return _bare(token), int(claims.expires_at_s * 1000)
        issued_at_s = int(now_s)
        ends_at_s = int(claims.first_issued_at_s + self._refresh_s_max)
        if issued_at_s >= ends_at_s:
            raise invalid_token("The token was first issued too long ago to be refreshed.")
        expires_at_s = min(issued_at_s + int(self._refreshed_s), ends_at_s)
        body = msgspec.structs.replace(
            _signed_body(_bare(token), key),
            iat=issued_at_s,
            exp=expires_at_s,
            nbf=None,
            auth_time=claims.first_issued_at_s,
        )
        refreshed = _sign(body, key.algorithm, key.material, claims.kid)
        return refreshed, int(min(expires_at_s, issued_at_s + self._age_s_max) * 1000)

    def _key_of(self, token: str) -> tuple[str | None, _VerifyingKey]:
        try:
            kid = _SIGNATURES.get_unverified_header(token).get("kid")
        except PyJWTError:
            raise _unauthorized("The token is not a JWT.") from None
        if kid is not None:
            key = self._keys.get(kid) or self._key_set.get(kid)
            if key is None:
                self._is_key_missed = self._has_key_set
                unknown = "The token's `kid` is not a key of this hub."
                raise _unauthorized(unknown, _NEWER_KEYS if self._has_key_set else _ANOTHER)
            return kid, key
        if self._key_without_kid is None:
            raise _unauthorized("The token has no `kid`, and this hub has several keys.")
        return None, self._key_without_kid

    def _checked(self, body: _Body, now_s: float) -> _Body:
        if body.iss != self._issuer:
            raise _unauthorized("The token's `iss` is not the issuer this hub trusts.")
        self._check_audience(body.aud)
        if not body.sub:
            raise _unauthorized("The token's `sub` is empty.")
        if body.actor_id.startswith("@(") or not names.is_address(f"@({body.actor_id})"):
            raise _unauthorized("The token's `actorId` is not the path of an address.")
        if names.is_reserved(f"@({body.actor_id})"):
            raise _unauthorized("The token's `actorId` is an address of the hub's own.")
        if body.iat > now_s:
            raise _unauthorized("The token's `iat` is in the future.")
        if now_s - body.iat > self._age_s_max:
            raise _unauthorized("The token has expired: it is older than this hub accepts.")
        if body.exp is not None and now_s >= body.exp:
            raise _unauthorized("The token has expired: its `exp` has passed.")
        if body.nbf is not None and now_s < body.nbf:
            raise _unauthorized("The token is not valid yet: its `nbf` is in the future.")
        return body

    def _check_audience(self, aud: str | tuple[str, ...] | None) -> None:
        """A token for somebody else is not for this hub, and one with an audience names it."""
        named = (aud,) if isinstance(aud, str) else aud or ()
        if self._audience.isdisjoint(named) and (self._audience or aud is not None):
            raise _unauthorized(
                "The token's `aud` does not name this hub.",
                "Get a token whose `aud` is a name of the hub, `auth.audience`; for a hub without"
                " names, one without `aud`.",
            )


def mint(
    key: Key,
    *,
    kid: str | None,
    subject: str,
    actor: str,
    permissions: Mapping[str, Sequence[str] | None],
    lifetime_s: float,
    issuer: str,
    now_s: float,
    jti: str = "",
    audience: str = "",
    capabilities: Sequence[str] = (),
    private_key: str = "",
) -> str:
    """A new token, signed with the secret of an HS256 key, or with `private_key` in PEM for EdDSA.

    Raises `SettingsError` for a token that no hub would accept.
    """
    if unknown := sorted(set(permissions) - set(Permissions.__struct_fields__)):
        known = ", ".join(Permissions.__struct_fields__)
        raise SettingsError(f"permissions: unknown verb {', '.join(unknown)}; use {known}")
    path = names.path_of(actor)
    if not subject or not names.is_address(f"@({path})"):
        raise SettingsError("a token needs a subject and an actor such as @(service/name)")
    if names.is_reserved(f"@({path})"):
        raise SettingsError(f"@({path}) is an address of the hub's own")
    body = _Body(
        iss=issuer,
        sub=subject,
        actor_id=path,
        iat=int(now_s),
        exp=int(now_s + lifetime_s),
        aud=audience or None,
        jti=jti or None,
        capabilities=tuple(capabilities),
        permissions=Permissions(
            **{verb: tuple(globs) for verb, globs in permissions.items() if globs is not None}
        ),
    )
    return _sign(body, key.algorithm, _signing_material(key, private_key), kid)


def _bare(token: str) -> str:
    token = token.lstrip()
    if token[: len(_BEARER)].lower() == _BEARER:
        token = token[len(_BEARER) :]
    token = token.strip()
    if not token:
        raise _unauthorized("The token is missing.")
    if len(token) > TOKEN_CHARS_MAX:
        raise _unauthorized(f"The token is longer than {TOKEN_CHARS_MAX} characters.")
    if not token.isascii():
        raise _unauthorized("The token is not a JWT.")
    return token


def _signed_body(token: str, key: _VerifyingKey) -> _Body:
    try:
        signed = _SIGNATURES.decode(token, key.material, algorithms=[key.algorithm])
    except PyJWTError:
        raise _unauthorized("The token's signature or algorithm does not match its key.") from None
    try:
        return _decode_body(signed)
    except msgspec.ValidationError as error:
        raise _unauthorized(f"The token's claims are invalid: {error}.") from None
    except (ValueError, RecursionError):
        raise _unauthorized("The token's claims are not JSON.") from None


def _signing_material(key: Key, private_key: str) -> bytes | Ed25519PrivateKey:
    if key.algorithm == HS256:
        try:
            return _ConfiguredHs256().prepare_key(key.secret)
        except PyJWTError:
            raise SettingsError("signing with HS256 needs a shared secret, not a key") from None
    try:
        private = load_pem_private_key(private_key.encode(), password=None)
    except (ValueError, TypeError):
        private = None
    if not isinstance(private, Ed25519PrivateKey):
        raise SettingsError("signing with EdDSA needs an Ed25519 private key in PEM")
    return private


def _sign(body: _Body, algorithm: str, material: bytes | Ed25519PrivateKey, kid: str | None) -> str:
    headers = None if kid is None else {"kid": kid}
    return _SIGNATURES.encode(msgspec.json.encode(body), material, algorithm, headers=headers)


def _verifying_key(name: str, key: Key) -> _VerifyingKey:
    if key.algorithm == HS256:
        if not key.secret:
            raise SettingsError(f"{name}.secret is empty; HS256 needs a shared secret")
        return _VerifyingKey(HS256, key.secret.encode())
    try:
        public = load_pem_public_key(key.public_key.encode())
    except ValueError:
        public = None
    if not isinstance(public, Ed25519PublicKey):
        raise SettingsError(f"{name}.public_key must be an Ed25519 public key in PEM")
    return _VerifyingKey(EDDSA, public)


_ANOTHER = "Get a new token and connect with it."
_NEWER_KEYS = (
    "Try again in ten seconds, when the hub has read its key set again; if that does not help, get"
    " a new token."
)


def _unauthorized(message: str, resolution: str = _ANOTHER) -> Refusal:
    return Refusal(Code.UNAUTHORIZED, message, resolution)
